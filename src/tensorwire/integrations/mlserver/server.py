"""Use this codec in MLServer's REST endpoint ``infer``: read requests and write responses.

This module responds to binary requests, and to JSON requests that MLServer accepts. All other
requests are passed on to MLServer, which responds with its own errors. The replacement of the
``handle`` method of MLServer's route class calls this module, so MLServer's middlewares and error
handlers apply. Running servers use the replacement from the next request on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from fastapi import Response as PlainResponse
from mlserver.errors import MLServerError
from mlserver.rest.endpoints import Endpoints
from mlserver.rest.requests import Request
from mlserver.rest.responses import Response
from mlserver.types import Datatype, InferenceRequest, InferenceResponse
from pydantic import ValidationError

import tensorwire as tw

from ...errors import TensorwireError
from ...http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE
from ...server.asgi import Message, Receive, Scope, Send, read_request, send_frame
from ...server.body import ClientDisconnectedError
from ...server.framing import Framing
from ...server.service import RawHeaders
from .convert import (
    array_of,
    binary_selection,
    mlserver_error,
    read_json_request,
    to_inference_request,
    write_json_response,
    write_response,
)

Handle = Callable[[Any, Scope, Receive, Send], Any]

# MLServer's own reader is faster for shorter JSON requests, because pydantic checks short lists
# faster than arrays are created.
SHORT_JSON_NBYTES = 1 << 14
N_AS_LISTS = 100  # after this number of requests as lists, a model gets arrays again

# The number of the next requests of a model to read into lists; see `record_use`.
requests_as_lists: dict[str, int] = {}

HEADER_LENGTH_NAME = HEADER_LENGTH.lower().encode()
BINARY_CONTENT_TYPES = (BINARY_TYPE.encode(), b"json-header-size")  # a binary type contains one


def is_infer(endpoint: Any) -> bool:
    """Return whether an endpoint is MLServer's own ``infer``, which ``generate`` also uses."""
    owner = getattr(endpoint, "__self__", None)
    return isinstance(owner, Endpoints) and endpoint.__name__ == "infer"


def is_binary(headers: RawHeaders) -> bool:
    """Return whether these are the headers of a binary request, which MLServer does not accept."""
    return any(
        name == HEADER_LENGTH_NAME
        or (name == b"content-type" and any(part in value.lower() for part in BINARY_CONTENT_TYPES))
        for name, value in headers
    )


# --- binary requests -----------------------------------------------------------------------------


async def answer_binary(endpoint: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to a binary request. Raises MLServerError."""
    try:
        header_length = Framing(scope["headers"]).header_length
        spec = await declared_input(endpoint, scope) if header_length == 0 else None
        request = to_inference_request(await read_request(scope, receive, raw_input=spec))
    except ClientDisconnectedError:
        return
    except TensorwireError as error:
        raise mlserver_error(error) from error
    await answer(endpoint, request, scope, receive, send, json_for_binary_request)


async def declared_input(endpoint: Any, scope: Scope) -> tw.TensorSpec | None:
    """Return the input that the settings of the model declare, if they declare exactly one."""
    model = await endpoint.__self__.model_metadata(**scope["path_params"])
    if not model.inputs or len(model.inputs) != 1:
        return None
    [declared] = model.inputs
    return tw.TensorSpec(declared.name, Datatype(declared.datatype).value, declared.shape)


# --- JSON requests -------------------------------------------------------------------------------


async def answer_json(
    route: Any, original: Handle, scope: Scope, receive: Receive, send: Send
) -> None:
    """Respond to a JSON request. If MLServer would reject it, call the original ``handle``."""
    body = await receive_body(receive)
    if body is None:
        return
    model = scope["path_params"]["model_name"]
    request = await read_json(Request(scope, receive_again(body, receive)), needs_arrays(model))
    if request is None:
        await original(route, scope, receive_again(body, receive), send)
        return
    arrays = [
        (tensor.data, data.size)
        for tensor in request.inputs
        if (data := array_of(tensor.data)) is not None
    ]
    await answer(route.endpoint, request, scope, receive, send, json_for_json_request)
    if arrays:
        record_use(model, arrays)


async def receive_body(receive: Receive) -> bytes | None:
    """Return the body, which may be compressed, or None if the client has disconnected."""
    chunks, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def receive_again(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that first returns a body that has already been received."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body_first() -> Message:
        return messages.pop() if messages else await receive()

    return receive_body_first


def needs_arrays(model: str) -> bool:
    """Return whether to read the next request of a model into arrays, not into lists."""
    n_lists = requests_as_lists.get(model, 0)
    if n_lists:
        requests_as_lists[model] = n_lists - 1
    return not n_lists


def record_use(model: str, arrays: list[tuple[Any, int]]) -> None:
    """Read the next requests of a model into lists if it has used the lists of most elements.

    ``arrays`` has each ArrayData of a request and its number of elements. To build a list, the text
    is parsed a second time, which takes longer than to only read it into a list.
    """
    n_elements = sum(n for _, n in arrays)
    n_listed = sum(n for data, n in arrays if array_of(data) is None)
    if 2 * n_listed > n_elements:
        requests_as_lists[model] = N_AS_LISTS


async def read_json(request: Request, into_arrays: bool) -> InferenceRequest | None:
    """Read a JSON request. Raises MLServerError.

    Returns None if MLServer has to respond to it with an error of its own.
    """
    if not is_json(request.headers.get("content-type")):
        return None
    try:
        body = await request.body()
        is_long = len(body) > SHORT_JSON_NBYTES
        found = read_json_request(body) if is_long and into_arrays else None
        return InferenceRequest.model_validate(await request.json()) if found is None else found
    except ValidationError:
        return read_empty_tensors(body) if b'"binary_data_size"' in body else None
    except (ValueError, OSError, EOFError, zlib.error):  # malformed JSON, malformed gzip
        return None


def is_json(content_type: str | None) -> bool:
    """Return whether FastAPI reads a body as JSON. It also does so without a Content-Type."""
    if not content_type:
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type.startswith("application/") and media_type.endswith(("/json", "+json"))


def read_empty_tensors(body: bytes) -> InferenceRequest:
    """Read a request whose binary tensors are all empty, and which therefore has no header length.

    Raises MLServerError.
    """
    try:
        return to_inference_request(tw.decode_request(body))
    except TensorwireError as error:
        raise mlserver_error(error) from error


# --- responses -----------------------------------------------------------------------------------


async def answer(
    endpoint: Any,
    request: InferenceRequest,
    scope: Scope,
    receive: Receive,
    send: Send,
    to_json: Callable[[InferenceResponse], Response],
) -> None:
    """Call MLServer's endpoint, and send its response in the form that the request asks for.

    ``to_json`` converts a response without binary outputs and without arrays.
    """
    is_binary_output, headers = binary_selection(request), PlainResponse()
    del headers.headers["content-length"]
    response = await endpoint(
        raw_request=Request(scope, receive),
        raw_response=headers,
        payload=request,
        **scope["path_params"],
    )
    try:
        frame = write_response(response, is_binary_output)
    except TensorwireError as error:
        raise mlserver_error(error) from error
    if frame is not None:
        await send_frame(send, frame, headers=headers.raw_headers)
        return
    text = write_json_response(response)
    plain = to_json(response) if text is None else PlainResponse(text, media_type=JSON_TYPE)
    plain.headers.raw.extend(headers.headers.raw)
    await plain(scope, receive, send)


def json_for_json_request(response: InferenceResponse) -> Response:
    """Convert a response as FastAPI does."""
    return Response(response.model_dump(mode="json"))


def json_for_binary_request(response: InferenceResponse) -> Response:
    """Convert a response. Raises MLServerError if it has no JSON form."""
    try:
        return Response(response.model_dump())
    except (TypeError, UnicodeDecodeError) as error:  # raised by orjson and json
        cause = error.__cause__ or error
        raise MLServerError(
            f"the outputs cannot be sent as JSON ({cause}); to get them as binary data, set the "
            f"parameter binary_data_output of the request to true"
        ) from error
