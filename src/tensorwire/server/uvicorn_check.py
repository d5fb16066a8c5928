"""Whether ``InferProtocol`` works with the installed version of uvicorn.

The public interface of uvicorn is ``Config``, ``Server`` and the option ``http``. tensorwire uses
more, which may change in any version, so ``tensorwire serve`` tries it before it starts.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

TESTED_UVICORN = (0, 46), (0, 54)
"""The oldest and the newest version of uvicorn with which the tests were run."""

USED = {
    "Config": (
        *("load", "loaded", "loaded_app", "http_protocol_class", "lifespan_class", "ssl"),
        *("limit_concurrency", "timeout_keep_alive", "proxy_headers", "forwarded_allow_ips"),
    ),
    "Server": ("startup", "shutdown", "on_tick", "handle_exit", "force_exit", "server_state"),
    "ServerState": ("connections", "tasks", "default_headers", "total_requests"),
}
"""The attributes that are used beyond the public interface, by class.

Besides, tensorwire uses ``uvicorn.middleware.proxy_headers.ProxyHeadersMiddleware``, the loggers
``uvicorn.error`` and ``uvicorn.access``, the arguments with which a protocol is made (``config``,
``server_state``, ``app_state``, ``_loop``) and its method ``shutdown``. `AsgiProtocol` is a
subclass of ``HttpToolsProtocol``.
"""

_BODY = b'{"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [5]}]}'
_REQUEST = b"POST /v2/models/x/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"


def problem_with_uvicorn() -> str | None:
    """Return why InferProtocol does not work with the installed uvicorn; None if it works.

    The text has the versions that were tested.
    uvicorn makes one connection, in memory, on which one request is answered.
    """
    loop = _Loop()
    try:
        loop.run_until_complete(asyncio.wait_for(_answer_one_request(loop), 10))
    except (Exception, SystemExit) as error:  # uvicorn ends the process if it cannot start
        oldest, newest = (".".join(map(str, version)) for version in TESTED_UVICORN)
        return f"{type(error).__name__}: {error} (tested with uvicorn {oldest} to {newest})"
    finally:
        loop.close()
    return None


async def _answer_one_request(loop: _Loop) -> None:
    # The modules may fail, too.
    from .asgi import App  # noqa: PLC0415
    from .uvicorn import InferProtocol  # noqa: PLC0415

    async def model(request: Any) -> Any:
        return {"y": request["x"].as_numpy()}

    app = App({"x": model}, max_body_memory_nbytes=1 << 20)
    # Without a configuration of the log, nothing is printed.
    options: Any = {"http": InferProtocol, "ws": "none", "lifespan": "off", "log_config": None}
    config: Any = uvicorn.Config(app, workers=1, **options)  # not WEB_CONCURRENCY
    config.load()
    server: Any = uvicorn.Server(config)
    state = server.server_state
    for used in (config, server, state):
        for name in USED[type(used).__name__]:
            getattr(used, name)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[None])
    await server.on_tick(0)
    protocol = loop.make_protocol()
    transport = _Transport()
    protocol.connection_made(transport)
    sent = _REQUEST % (len(_BODY), _BODY)
    protocol.get_buffer(-1)[: len(sent)] = sent
    protocol.buffer_updated(len(sent))
    is_counted = protocol in state.connections
    while not transport.written.endswith(b"}"):
        await asyncio.sleep(0)
    protocol.shutdown()
    protocol.connection_lost(None)
    answer = transport.written
    is_right = answer.startswith(b"HTTP/1.1 200 ") and b'"data":[5]' in answer
    if not (is_right and b"\r\ndate: " in answer and is_counted) or state.connections:
        raise RuntimeError(f"the response to a request is wrong: {answer!r}")


class _Loop(asyncio.SelectorEventLoop):
    """Does not listen, and keeps the function that makes a protocol for each connection."""

    make_protocol: Any

    async def create_server(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        self.make_protocol = protocol_factory


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Everything is sent at once, and nothing is received after the request."""

    write_eof = close = abort = pause_reading = resume_reading = _ignore
    set_write_buffer_limits = _ignore
