"""Whether ``tensorwire serve`` and its protocols work with the installed version of uvicorn.

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
    "Config": ("http_protocol_class", "ssl", "callback_notify", "timeout_notify"),
    "Server": ("startup", "shutdown", "on_tick", "force_exit", "server_state", "servers"),
    "ServerState": ("connections", "tasks"),
    "LifespanOff": ("state",),
    "HttpToolsProtocol": (
        *("app", "connections", "cycle", "flow", "headers", "loop", "parser", "pipeline"),
        *("timeout_keep_alive", "timeout_keep_alive_task", "timeout_keep_alive_handler"),
        *("handle_websocket_upgrade", "on_response_complete", "send_400_response", "shutdown"),
        *("_should_upgrade", "_start_asgi_task", "_unset_keepalive_if_required"),
    ),
    "AsgiProtocol": ("url",),
    "FlowControl": (
        *("drain", "pause_reading", "resume_reading", "pause_writing", "resume_writing"),
        *("read_paused", "write_paused"),
    ),
    "RequestResponseCycle": (
        *("body", "disconnected", "message_event", "more_body"),
        *("response_complete", "response_started"),
    ),
}
"""The attributes, by class, that are used or replaced, but perhaps not for the tried request.

``tensorwire serve`` needs those up to ``LifespanOff`` with any protocol, and `AsgiProtocol` all.
"""

_BODY = b'{"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [5]}]}'
_REQUEST = b"POST /v2/models/x/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"


def problem_with_uvicorn(protocol: str) -> str | None:
    """Return why a protocol does not work with the installed uvicorn; None if it works.

    ``protocol`` is a value of uvicorn's option ``http``. The text has the versions that were
    tested. uvicorn makes one connection, in memory, on which one request is answered.
    """
    loop = _Loop()
    try:
        loop.run_until_complete(asyncio.wait_for(_answer_one_request(loop, protocol), 10))
    except (Exception, SystemExit) as error:  # uvicorn ends the process if it cannot start
        oldest, newest = (".".join(map(str, version)) for version in TESTED_UVICORN)
        return f"{type(error).__name__}: {error} (tested with uvicorn {oldest} to {newest})"
    finally:
        loop.close()
    return None


async def _answer_one_request(loop: _Loop, http: str) -> None:
    # The modules may fail, too.
    from uvicorn.protocols.http.flow_control import FlowControl  # noqa: PLC0415
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415

    from .asgi import App  # noqa: PLC0415
    from .model import Model  # noqa: PLC0415

    # In the event loop, so that an error of the protocol is raised here.
    model = Model(lambda request: {"y": request["x"].as_numpy()}, in_event_loop=True)
    app = App({"x": model}, max_body_memory_nbytes=1 << 20)
    # Without a configuration of the log, nothing is printed.
    options: Any = {"http": http, "ws": "none", "lifespan": "off", "log_config": None}
    config: Any = uvicorn.Config(app, workers=1, **options)  # not WEB_CONCURRENCY
    config.load()
    server: Any = uvicorn.Server(config)
    state = server.server_state
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[None])
    await server.on_tick(0)
    protocol = loop.make_protocol()
    transport = _Transport()
    protocol.connection_made(transport)
    sent = _REQUEST % (len(_BODY), _BODY)
    if hasattr(protocol, "get_buffer"):
        protocol.get_buffer(-1)[: len(sent)] = sent
        protocol.buffer_updated(len(sent))
    else:
        protocol.data_received(sent)
    is_counted = protocol in state.connections
    while not (transport.written.endswith(b"}") or transport.is_closed):
        await asyncio.sleep(0)
    used = [config, server, state, server.lifespan]
    if isinstance(protocol, HttpToolsProtocol):  # a plain one has nothing of `AsgiProtocol`
        plain = HttpToolsProtocol(config, state, {}, loop)
        used += [plain, protocol, protocol.cycle, FlowControl(transport)]
    for each in used:
        for name in USED[type(each).__name__]:
            getattr(each, name)
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
    is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Everything is sent at once, and nothing is received after the request."""

    abort = close
    write_eof = pause_reading = resume_reading = set_write_buffer_limits = _ignore
