"""Call an ASGI app without a server: one request in chunks, and the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensorwire as tw

X = tw.Tensor("x", np.arange(1000, dtype=np.float32))
WORDS = tw.Tensor("words", ["a", "bc"])
ALL = {"binary_data_output": True}
REQUEST = tw.InferRequest([X, WORDS], parameters=ALL, id="7")
# Without padding after the header: only the length in the HTTP headers aligns the tensor.
FRAME = tw.encode_request(REQUEST, align=1)
assert (FRAME.header_length or 0) % 16
BODY = bytes(FRAME)


@dataclass
class Exchange:
    """One request to an ASGI app, and its response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    bodies: list[Any] = field(default_factory=list)
    n_received: int = 0

    @property
    def body(self) -> bytes:
        return b"".join(self.bodies)

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        (message,) = json.loads(self.body).values()
        return str(message)

    def response(self) -> tw.InferResponse:
        assert self.status == 200, self.body[:500]
        assert int(self.headers["content-length"]) == len(self.body)
        return tw.decode_response(self.body, tw.header_length(self.headers))


def ask(
    app: Any,
    path: str,
    method: str = "GET",
    chunks: Iterable[Any] = (b"",),
    headers: dict[str, str] | None = None,
) -> Exchange:
    """Call `app`. A chunk of None means that the client disconnects."""
    exchange = Exchange()
    pending = list(chunks)
    raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}

    async def receive() -> dict[str, Any]:
        if not pending or pending[0] is None:
            return {"type": "http.disconnect"}
        exchange.n_received += 1
        return {"type": "http.request", "body": pending.pop(0), "more_body": bool(pending)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            exchange.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            exchange.bodies.append(message["body"])

    asyncio.run(app(scope, receive, send))
    return exchange


def infer(app: Any, model: str = "echo", frame: tw.Frame = FRAME, **more: Any) -> Exchange:
    more = {"chunks": [bytes(frame)], "headers": frame.headers, **more}
    return ask(app, f"/v2/models/{model}/infer", "POST", **more)
