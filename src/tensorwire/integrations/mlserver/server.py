"""MLServer's REST endpoint ``infer`` on this codec, before its data plane."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from io import BytesIO
from shutil import copyfileobj
from types import SimpleNamespace
from typing import Any

from mlserver.codecs.json import decode_from_bytelike_json_to_dict
from mlserver.errors import MLServerError
from mlserver.types import Datatype, InferenceRequest

import tensorwire as tw

from ..._codec.body_buffer import BodyBuffer
from ...errors import TensorwireError
from ...http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE
from ...server.asgi import Receive, Scope, Send, read_request, send_frame
from ...server.errors import ClientDisconnectedError
from ...server.framing import Framing
from ..rest import (
    has_binary_data,
    raw_headers,
    receive_again,
    receive_body,
    send_body,
    text_headers,
)
from . import _PATCH
from .convert import (
    binary_selection,
    mlserver_error,
    to_inference_request,
    write_json_response,
    write_response,
)

Handle = Callable[[Any, Scope, Receive, Send], Any]
Headers = dict[str, str]


async def respond(route: Any, original: Handle, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to a POST request to MLServer's endpoint ``infer``. Raises MLServerError.

    JSON that MLServer would reject is passed on to ``original``.
    """
    headers = text_headers(scope)
    path = scope["path_params"]  # may also have parameters of an application around MLServer's
    model = path["model_name"], path.get("model_version")
    is_binary = is_binary_request(headers)
    try:
        if is_binary:
            request = await read_binary(route.endpoint.__self__, model, scope, receive)
        else:
            body = bytes((await receive_body(scope, receive, _PATCH.max_body_nbytes))[1])
            request = read_json(body, headers, is_gzip(scope))
    except ClientDisconnectedError:
        return
    except TensorwireError as error:
        raise mlserver_error(error) from error
    if request is None:
        await original(route, scope, receive_again(body, receive), send)
        return
    selection = binary_selection(request)
    # Of a Request and a Response, MLServer's endpoint uses the headers.
    given, found = SimpleNamespace(headers=headers), SimpleNamespace(headers={})
    response = await route.endpoint(given, found, request, *model)
    if any(selection(output.name) for output in response.outputs):
        try:
            frame = write_response(response, selection)
        except TensorwireError as error:
            raise mlserver_error(error) from error
        await send_frame(send, frame, headers=raw_headers(found.headers))
        return
    try:
        text = write_json_response(response)
    except (TypeError, ValueError) as error:
        if not is_binary:
            raise
        raise MLServerError(
            f"the outputs cannot be sent as JSON ({error.__cause__ or error}); to get them as "
            f"binary data, set the parameter binary_data_output of the request to true"
        ) from error
    await send_body(send, text, {"content-type": JSON_TYPE, **found.headers})


# --- binary requests -----------------------------------------------------------------------------


def is_binary_request(headers: Headers) -> bool:
    """Return whether these are the headers of a binary request, which MLServer does not accept."""
    content_type = headers.get("content-type", "").lower()
    return (
        HEADER_LENGTH.lower() in headers
        or BINARY_TYPE in content_type
        or "json-header-size" in content_type
    )


async def read_binary(
    endpoints: Any, model: tuple[str, str | None], scope: Scope, receive: Receive
) -> InferenceRequest | None:
    """Read a binary request, whose tensors are writable views of the body."""
    is_raw = Framing(scope["headers"]).header_length == 0
    raw_input = await declared_input(endpoints, *model) if is_raw else None
    request = await read_request(
        scope, receive, max_body_nbytes=_PATCH.max_body_nbytes, raw_input=raw_input
    )
    return to_inference_request(request)


async def declared_input(endpoints: Any, name: str, version: str | None) -> tw.TensorSpec | None:
    """Return the input that the settings of the model declare, if they declare exactly one."""
    model = await endpoints.model_metadata(name, version)
    if not model.inputs or len(model.inputs) != 1:
        return None
    [declared] = model.inputs
    return tw.TensorSpec(declared.name, Datatype(declared.datatype).value, declared.shape)


# --- JSON requests -------------------------------------------------------------------------------


def read_json(body: bytes, headers: Headers, is_compressed: bool) -> InferenceRequest | None:
    """Read a JSON request as MLServer does. Returns None if it has an error.

    MLServer would also decompress a body that it then rejects, so this function does it first.
    Raises TensorwireError and MLServerError.
    """
    try:
        text = decompress(body) if is_compressed else body
    except (OSError, EOFError, zlib.error):
        return None
    if not is_json(headers.get("content-type")):
        return None
    try:
        tree = decode_from_bytelike_json_to_dict(text)
        if not has_binary_data(tree):
            return InferenceRequest.model_validate(tree)
    except ValueError:
        return None
    # A request whose binary tensors are all empty has no header length.
    return to_inference_request(tw.decode_request(text))


def is_gzip(scope: Scope) -> bool:
    """Return whether MLServer decompresses a body: if any of its Content-Encodings is gzip."""
    return any(name == b"content-encoding" and value == b"gzip" for name, value in scope["headers"])


def decompress(body: bytes) -> bytes:
    """Return the same as ``gzip.decompress``: a body may have several members.

    Raises BodyTooLargeError if the result is longer than ``max_body_nbytes``, and OSError,
    EOFError and zlib.error.
    """
    result = BodyBuffer(max_nbytes=_PATCH.max_body_nbytes)
    with gzip.GzipFile(fileobj=BytesIO(body)) as file:
        copyfileobj(file, result)
    return bytes(result)


def is_json(content_type: str | None) -> bool:
    """Return whether FastAPI reads a body as JSON. It also does so without a Content-Type."""
    if not content_type:
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type.startswith("application/") and media_type.endswith(("/json", "+json"))
