"""REST: MLServer's own endpoint, with our reader in front of it and our writer behind.

Binary requests and JSON requests that MLServer accepts are answered here. All others go on to
MLServer, which answers them with its own errors. The hook is the ``handle`` of MLServer's route
class, which runs inside its middlewares and error handlers, and which a server that is up already
runs for its next request.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from fastapi import Response as PlainResponse
from mlserver.errors import MLServerError
from mlserver.rest.app import APIRoute
from mlserver.rest.endpoints import Endpoints
from mlserver.rest.requests import Request
from mlserver.rest.responses import Response
from mlserver.types import Datatype, InferenceRequest, InferenceResponse
from pydantic import ValidationError

import tensorwire as tw

from ...asgi._head import framing
from ...asgi.exchange import (
    ClientDisconnected,
    Message,
    RawHeaders,
    Receive,
    Scope,
    Send,
    read_request,
    send_frame,
)
from ...errors import TensorwireError
from ...http import BINARY_TYPE, HEADER_LENGTH
from ..patching import Replacement
from .data import refusal
from .messages import frame_of, inference_request, json_of, json_request, selection

HEADER_LENGTH_NAME = HEADER_LENGTH.lower().encode()
BINARY_WORDS = (BINARY_TYPE.encode(), b"json-header-size")  # of a Content-Type

Handle = Callable[[Any, Scope, Receive, Send], Any]


def replacements() -> list[Replacement]:
    return [Replacement(APIRoute, "handle", handling, inherited=True)]


def handling(old: Handle) -> Handle:
    async def handle(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_infer(self.endpoint) or scope["method"] != "POST":
            await old(self, scope, receive, send)
        elif is_binary(scope["headers"]):
            await answer_binary(self.endpoint, scope, receive, send)
        else:
            await answer_json(self, old, scope, receive, send)

    return handle


def is_infer(endpoint: Any) -> bool:
    """Whether this is MLServer's own infer, which stands behind ``generate``, too."""
    owner = getattr(endpoint, "__self__", None)
    return isinstance(owner, Endpoints) and endpoint.__name__ == "infer"


def is_binary(headers: RawHeaders) -> bool:
    """Whether a request is one that MLServer alone would not take."""
    return any(
        name == HEADER_LENGTH_NAME
        or (name == b"content-type" and any(word in value.lower() for word in BINARY_WORDS))
        for name, value in headers
    )


async def answer_binary(endpoint: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Read a request with a header length, and answer it."""
    try:
        length, _, _ = framing(scope["headers"])
        spec = await declared_input(endpoint, scope) if length == 0 else None
        request = inference_request(await read_request(scope, receive, raw_input=spec))
    except ClientDisconnected:
        return
    except TensorwireError as error:
        raise refusal(error) from error
    await answer(endpoint, request, scope, receive, send, as_text)


async def declared_input(endpoint: Any, scope: Scope) -> tw.TensorSpec | None:
    """What a raw binary request is read by: the model's input, if its settings name just one."""
    model = await endpoint.__self__.model_metadata(**scope["path_params"])
    if not model.inputs or len(model.inputs) != 1:
        return None
    [declared] = model.inputs
    return tw.TensorSpec(declared.name, Datatype(declared.datatype).value, declared.shape)


async def answer_json(route: Any, old: Handle, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a JSON request; leave it to MLServer where that has nothing but an error for it."""
    body = await read_ahead(receive)
    if body is None:
        return
    request = await read_json(Request(scope, again(body, receive)))
    if request is None:
        await old(route, scope, again(body, receive), send)
    else:
        await answer(route.endpoint, request, scope, receive, send, as_json)


async def read_ahead(receive: Receive) -> bytes | None:
    """The body as it comes, compressed perhaps; None when the client has gone."""
    chunks, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that brings the body first."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


async def read_json(request: Request) -> InferenceRequest | None:
    """The request that a JSON body is; None for what MLServer answers with an error."""
    if not is_json(request.headers.get("content-type")):
        return None
    try:
        body = await request.body()
        found = json_request(body)
        return InferenceRequest.model_validate(await request.json()) if found is None else found
    except ValidationError:
        return without_bytes(body) if b'"binary_data_size"' in body else None
    except (ValueError, OSError, EOFError, zlib.error):  # of JSON, of gzip
        return None


def is_json(content_type: str | None) -> bool:
    """Whether FastAPI takes a body of this type for JSON; it does without a type."""
    if not content_type:
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type.startswith("application/") and media_type.endswith(("/json", "+json"))


def without_bytes(body: bytes) -> InferenceRequest:
    """A request whose binary tensors are all empty, and that has no header length therefore."""
    try:
        return inference_request(tw.decode_request(body))
    except TensorwireError as error:
        raise refusal(error) from error


async def answer(
    endpoint: Any,
    request: InferenceRequest,
    scope: Scope,
    receive: Receive,
    send: Send,
    write: Callable[[InferenceResponse], Response],
) -> None:
    """Let MLServer infer, and answer in the forms that the request asks for.

    ``write`` makes the JSON of a response that has no arrays.
    """
    is_wanted_binary, headers = selection(request), PlainResponse()
    del headers.headers["content-length"]
    response = await endpoint(
        raw_request=Request(scope, receive),
        raw_response=headers,
        payload=request,
        **scope["path_params"],
    )
    try:
        frame = frame_of(response, is_wanted_binary)
    except TensorwireError as error:
        raise refusal(error) from error
    if frame is not None:
        await send_frame(send, frame, headers=headers.raw_headers)
        return
    text = json_of(response)
    plain = write(response) if text is None else PlainResponse(text, media_type="application/json")
    plain.headers.raw.extend(headers.headers.raw)
    await plain(scope, receive, send)


def as_json(response: InferenceResponse) -> Response:
    """The answer to a JSON request, as FastAPI makes it."""
    return Response(response.model_dump(mode="json"))


def as_text(response: InferenceResponse) -> Response:
    """The JSON answer to a binary request; MLServerError where there is none."""
    try:
        return Response(response.model_dump())
    except (TypeError, UnicodeDecodeError) as error:  # orjson's, json's
        cause = error.__cause__ or error
        raise MLServerError(f"the outputs have no JSON form, ask for binary: {cause}") from error
