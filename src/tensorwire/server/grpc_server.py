"""The gRPC server of ``tensorwire serve``: its limits and its shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from ..grpc_messages import MAX_MESSAGE_NBYTES
from .errors import log
from .grpc import InferenceService
from .grpc_calls import MAX_METADATA_NBYTES, N_RESERVED, OpenCalls, end_now
from .service import FOREVER_SECONDS, GRACE_SECONDS, HANDSHAKE_SECONDS, Service

# A connection without TLS is closed if HTTP/2 has not begun after this time, as by InferProtocol.
_HTTP2_SECONDS = 5.0
# At the end of a shutdown, grpcio asks clients to close their connections. They have this time.
_LINGER_SECONDS = 1.0
# How much of the messages of a call grpcio receives while the server reads none. By default, it is
# the bandwidth times the latency of a connection, which may be as much as fits in the memory. With
# the first number, a stream gets 80 MB/s from a client that is 50 ms away. The second one is for
# servers whose memory is limited: they receive it also of calls that they reject.
_WINDOW_NBYTES, _LIMITED_WINDOW_NBYTES = 4 << 20, 64 << 10
# How many calls may wait until the event loop accepts them, for any time. By default, grpcio
# cancels some of more than 1000, and those that wait for 30 seconds.
_MAX_PENDING = 20_000
# A connection without calls is closed after this time, or `receive_timeout` if that is longer.
# grpcio does not count a call whose response is in its buffers: the client may be reading it.
_IDLE_SECONDS = 60.0
# The same for a client that reads nothing. The system of one that reads slowly, such as 20 kB/s,
# may not show that for several seconds.
_UNREAD_SECONDS = 20.0
_POLL_SECONDS = 0.1  # to see that the server has failed
_RETRY_SECONDS = 1.0  # between attempts to start the server again
_MAX_OPTION = 2**31 - 2  # of grpcio; the next integer means infinity


@asynccontextmanager
async def serving(
    service: Service,
    address: str,
    *,
    certfile: str | None = None,
    keyfile: str | None = None,
    limit_concurrency: int | None = None,
    timeout_graceful_shutdown: float | None = None,
) -> AsyncIterator[OpenCalls]:
    """Serve the models of an application at an address, until the end of the context.

    Then new calls are refused, and requests in progress are finished, unless the end is cancelled.
    Other processes of this user may listen at the same address. Raises OSError if the server cannot
    listen, and TimeoutError if a client delays the end.
    """
    inference = InferenceService(service, limit_concurrency)
    calls = inference.calls
    credentials = None
    if certfile is not None:
        pair = Path(keyfile or certfile).read_bytes(), Path(certfile).read_bytes()
        credentials = grpc.ssl_server_credentials([pair])
    options = server_options(service, certfile is not None, limit_concurrency)
    server = _Server(inference, address, options, credentials)
    await server.start()
    restarting = asyncio.ensure_future(server.restart_if_it_fails())
    try:
        yield calls
    finally:
        restarting.cancel()
        calls.is_ending.set()
        try:
            async with asyncio.timeout(timeout_graceful_shutdown):
                await finish_calls(server.current, inference)
        except TimeoutError:
            log.warning("the end of the shutdown has cancelled %d gRPC calls", len(calls.open))
            for task in inference.tasks:
                task.cancel()
            await asyncio.sleep(_LINGER_SECONDS)  # while the clients get UNAVAILABLE
        finally:
            await _end_calls(server.current)


@dataclass
class _Server:
    """A server of grpcio, and another one when it fails: a path that is not UTF-8 ends it."""

    inference: InferenceService
    address: str
    options: list[tuple[str, int]]
    credentials: Any
    current: Any = None

    async def start(self) -> None:
        self.current = server = grpc.aio.server(options=self.options)
        server.add_generic_rpc_handlers(self.inference.handlers())
        try:
            if self.credentials is None:
                server.add_insecure_port(self.address)
            else:
                server.add_secure_port(self.address, self.credentials)
        except RuntimeError as error:
            # BoringSSL does not take all certificates that OpenSSL takes.
            problem = "" if self.credentials is None else ", or cannot use the certificate"
            raise OSError(f"gRPC cannot listen at {self.address}{problem}: {error}") from None
        await server.start()

    async def restart_if_it_fails(self) -> None:
        while True:
            failed = self.current
            try:
                # Without a timeout, it waits for the calls of a server that has failed.
                while await failed.wait_for_termination(_POLL_SECONDS):
                    pass
                return
            except Exception as error:
                log.error("the gRPC server has failed, and is started again: %r", error)
            with suppress(Exception):  # the same error, or that of a client which does not read
                await _end_calls(failed)  # it still listens, too
            while True:
                try:
                    await self.start()
                    break
                except OSError as error:
                    log.error(str(error))
                    await asyncio.sleep(_RETRY_SECONDS)


async def _end_calls(server: Any) -> None:
    """Stop a server. grpcio would wait 20 seconds for a client that reads nothing of a response.

    Raises TimeoutError then.
    """
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            await asyncio.shield(server.stop(None))
    except TimeoutError:
        raise TimeoutError("a client does not read the response of a gRPC call") from None


def server_options(
    service: Service, has_tls: bool, limit_concurrency: int | None
) -> list[tuple[str, int]]:
    """Return the options of a server of grpcio: limits of messages, connections and times."""

    def milliseconds(seconds: float) -> int:
        return max(1, int(min(1000 * seconds, _MAX_OPTION)))

    max_nbytes = min(service.max_body_nbytes, MAX_MESSAGE_NBYTES)
    handshake_seconds = HANDSHAKE_SECONDS if has_tls else _HTTP2_SECONDS
    window = _WINDOW_NBYTES if limit_concurrency is None else _LIMITED_WINDOW_NBYTES
    options = [
        ("grpc.max_receive_message_length", max_nbytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 1),
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        ("grpc.server_max_unrequested_time_in_server", int(FOREVER_SECONDS)),
        ("grpc.max_metadata_size", MAX_METADATA_NBYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_NBYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", window),
        ("grpc.server_handshake_timeout_ms", milliseconds(handshake_seconds)),
    ]
    if service.receive_timeout is not None:
        timeout = service.receive_timeout
        options += [
            ("grpc.max_connection_idle_ms", milliseconds(max(timeout, _IDLE_SECONDS))),
            # A client with calls then gets a PING, and has a minute to respond.
            ("grpc.keepalive_time_ms", milliseconds(timeout)),
            # Linux ends a connection whose client reads nothing for this time.
            ("grpc.keepalive_timeout_ms", milliseconds(max(timeout, _UNREAD_SECONDS))),
        ]
    if limit_concurrency is not None:
        n_connections = min(limit_concurrency + N_RESERVED, _MAX_OPTION)
        # Of a connection. grpcio also counts calls that have just ended, and would refuse new ones.
        n_calls = min(3 * n_connections, _MAX_OPTION)
        options.append(("grpc.max_allowed_incoming_connections", n_connections))
        options.append(("grpc.max_concurrent_streams", n_calls))
    return options


async def finish_calls(server: Any, inference: InferenceService) -> None:
    """Refuse new calls, and wait for the calls in progress.

    Clients cannot delay the shutdown for long. Models are not interrupted.
    """
    stopping = asyncio.ensure_future(server.stop(FOREVER_SECONDS))
    await asyncio.sleep(0)  # from now on, the server accepts no calls
    calls = inference.calls
    end_now(calls.waiting)  # each stream ends after the response to the request in progress
    # Otherwise, calls whose messages arrive one after another would prolong the shutdown.
    loop = asyncio.get_running_loop()
    loop.call_later(GRACE_SECONDS, end_now, calls.arriving)
    client_deadline = loop.time() + GRACE_SECONDS
    while True:
        seconds_left = client_deadline - loop.time()
        if inference.tasks:
            await asyncio.wait(inference.tasks)
            client_deadline = loop.time() + GRACE_SECONDS
        elif calls.open:
            _, waiting = await asyncio.wait(calls.open, timeout=seconds_left)
            if waiting and not inference.tasks:
                return
        else:
            # Clients close their connections when they have read the responses.
            await asyncio.wait({stopping}, timeout=seconds_left)
            # A call may have arrived at the last moment, and its client may be gone.
            if not (calls.open or inference.tasks):
                return
