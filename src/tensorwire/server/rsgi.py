"""Serve with RSGI, the interface of granian: the application of ``create_app`` without ASGI."""

from __future__ import annotations

import asyncio
from typing import Any

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from .body import ClientDisconnectedError
from .compressed import ACCEPT_ENCODING
from .exchange import Exchange, failure_reply
from .framing import FRAMING_HEADERS
from .service import Service

# A body up to this size is received as one object. A larger body is received in chunks, because a
# call for each chunk costs less than another copy of the body. A response is always sent as one
# object, because granian does not wait for the client between the chunks of a response.
_MAX_JOINED_NBYTES = 64 << 10
# The names as granian and as Exchange expect them.
_HEADER_NAMES = [(name, name.encode()) for name in (*FRAMING_HEADERS, ACCEPT_ENCODING)]


async def respond(service: Service, scope: Any, protocol: Any) -> None:
    """Respond to an RSGI event."""
    if scope.proto != "http":
        protocol.close(403)  # a WebSocket; granian responds with this HTTP status
        return
    get_all = scope.headers.get_all
    headers = [
        (raw_name, value.encode("latin-1"))
        for name, raw_name in _HEADER_NAMES
        for value in get_all(name)
    ]
    target = service.route(scope.method, scope.path)
    exchange = Exchange(service, target, headers, protocol.client_disconnect)
    try:
        async with asyncio.timeout(service.receive_timeout):
            await _receive_body(exchange, protocol)
    except TimeoutError:
        exchange.reject_late()
    except ProtocolClosed:  # the client closed the connection before the body was complete
        return
    try:
        reply = await exchange.reply()
    except ClientDisconnectedError:
        return
    except asyncio.CancelledError as error:  # a model may cancel its own task
        reply = failure_reply(error)
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers()]
    protocol.response_bytes(reply.status, pairs, bytes(reply.body))


async def _receive_body(exchange: Exchange, protocol: Any) -> None:
    length = None if exchange.body is None else exchange.body.framing.content_length
    if length and length <= _MAX_JOINED_NBYTES:
        exchange.write(await protocol())
    elif not exchange.is_rejected:
        # If a chunked body is malformed, granian ends the iteration without an error. The decoder
        # then rejects the message, unless it is complete by its own lengths.
        async for chunk in protocol:
            exchange.write(chunk)
            if exchange.is_rejected:
                return
