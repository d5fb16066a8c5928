"""Call an ASGI app without a server: one request in chunks, and the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensorwire as tw
from tensorwire.server import RequestError, read_request

X = tw.Tensor("x", np.arange(1000, dtype=np.float32))
WORDS = tw.Tensor("words", ["a", "bc"])
ALL = {"binary_data_output": True}
REQUEST = tw.InferRequest([X, WORDS], parameters=ALL, id="7")
# Without padding after the header: only the length in the HTTP headers aligns the tensor.
FRAME = tw.encode_request(REQUEST, align=1)
assert (FRAME.header_length or 0) % 16
BODY = bytes(FRAME)
SPEC = tw.TensorSpec("x", "FP32", [-1])
OUT = tw.TensorSpec("y", "FP32", [-1])


def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(request.inputs)


async def async_echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(request.inputs)


def double(request: tw.InferRequest) -> dict[str, Any]:
    return {"y": request["x"].as_numpy() * 2}


def rejects_every_second() -> Callable[[tw.InferRequest], tw.InferResponse]:
    """Return a model that returns its inputs, and rejects every second request."""
    n_calls = 0

    def model(request: tw.InferRequest) -> tw.InferResponse:
        nonlocal n_calls
        n_calls += 1
        if n_calls % 2 == 0:
            raise RequestError("no")
        return echo(request)

    return model


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


async def exchange(
    app: Any,
    path: str,
    method: str = "GET",
    chunks: Iterable[Any] = (b"",),
    headers: dict[str, str] | None = None,
    *,
    disconnected: asyncio.Event | None = None,
    reply: Exchange | None = None,
) -> Exchange:
    """Call `app`. A chunk of None means that the client disconnects.

    After the last chunk, it disconnects when `disconnected` is set, and by default at once.
    `reply` gets the response also if the call is cancelled.
    """
    found = reply or Exchange()
    pending = list(chunks)
    raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}

    async def receive() -> dict[str, Any]:
        if not pending and disconnected is not None:
            await disconnected.wait()
        if not pending or pending[0] is None:
            return {"type": "http.disconnect"}
        found.n_received += 1
        return {"type": "http.request", "body": pending.pop(0), "more_body": bool(pending)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.status = message["status"]
            found.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            found.bodies.append(message["body"])

    await app(scope, receive, send)
    return found


def ask(app: Any, path: str, *arguments: Any, **options: Any) -> Exchange:
    """Return what `exchange` returns, in an event loop of its own."""
    return asyncio.run(exchange(app, path, *arguments, **options))


def read(headers: dict[str, str], chunks: Iterable[Any], **options: Any) -> tw.InferRequest:
    """Return what `read_request` returns in an app that gets these headers and this body."""
    found: list[tw.InferRequest] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(await read_request(scope, receive, **options))

    ask(app, "/", "POST", chunks, headers)
    return found[0]


def inference(model: str = "echo", frame: tw.Frame = FRAME, **more: Any) -> dict[str, Any]:
    """Return the arguments of `exchange` for an inference request."""
    path = f"/v2/models/{model}/infer"
    return {
        "path": path,
        "method": "POST",
        "chunks": [bytes(frame)],
        "headers": frame.headers,
    } | more


def infer(app: Any, model: str = "echo", frame: tw.Frame = FRAME, **more: Any) -> Exchange:
    return ask(app, **inference(model, frame, **more))
