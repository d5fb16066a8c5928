"""Arrays in the routes of Starlette, FastAPI and frameworks that are based on them.

``read_tensors`` returns the arrays, strings and JSON values of a request, and ``TensorResponse``
sends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .._codec.limits import DEFAULT_LIMITS, Limits
from .._codec.messages.tensor import TensorSpec
from ..arguments import check_type
from ..errors import TensorwireError
from ..http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE
from ..sizes import DEFAULT_MAX_BODY_NBYTES
from .asgi import send_frame
from .body import RequestBody
from .errors import RequestError
from .values import FRAME_HEADERS, Content, frame_of, values_of

__all__ = ["OPENAPI", "TensorResponse", "read_tensors"]

_EXAMPLE = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}],
    "parameters": {"factor": 3},
}
OPENAPI: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": {"type": "object"}, "example": _EXAMPLE},
            BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "responses": {
        "400": {"description": "The request is not valid."},
        "413": {"description": "The body is too long."},
        "415": {"description": "The Content-Encoding is not supported."},
    },
    "parameters": [
        {
            "name": HEADER_LENGTH,
            "in": "header",
            "required": False,
            "description": "Size of the JSON header in bytes. Without it, the whole body is JSON.",
            "schema": {"type": "integer", "minimum": 1},
        }
    ],
}
"""What OpenAPI says about requests for ``read_tensors``, and its errors: FastAPI's
``openapi_extra``."""


async def read_tensors(
    request: Request,
    *,
    inputs: Sequence[TensorSpec] = (),
    max_body_nbytes: int = DEFAULT_MAX_BODY_NBYTES,
    limits: Limits = DEFAULT_LIMITS,
) -> dict[str, Any]:
    """Read the arrays, strings and JSON values of an inference request.

    Parameters
    ----------
    request : starlette.requests.Request
        The request. What it asks for is kept in its ``scope``, for ``TensorResponse``.
    inputs : sequence of TensorSpec, default ()
        The declared inputs. A request with other inputs is not valid. If empty, any inputs are
        accepted. Parameters are not checked.
    max_body_nbytes : int, default 2**31 - 1
        Maximum length of the body in bytes, after decompression.
    limits : Limits, optional
        The limits for ``decode_request``.

    Returns
    -------
    dict
        The inputs by name, as ``ndarray``, or ``BytesArray`` for BYTES; and the parameters of the
        request, except ``binary_data_output``, as JSON values. Binary arrays are writable views of
        the body that was received.

    Raises
    ------
    HTTPException
        The request is not valid: status 400, 413 or 415. The framework responds with ``{"detail":
        text}``, and after ``install_error_handlers(app)`` with ``{"error": text}``.
    ClientDisconnect
        Starlette's exception: the client closed the connection before the whole body had arrived.

    Examples
    --------
    >>> from fastapi import FastAPI, Request
    >>> from tensorwire import TensorSpec
    >>> from tensorwire.server.starlette import OPENAPI, TensorResponse, read_tensors
    >>> app = FastAPI()
    >>> @app.post("/double", response_class=TensorResponse, openapi_extra=OPENAPI)
    ... async def double(request: Request) -> TensorResponse:
    ...     values = await read_tensors(request, inputs=[TensorSpec("x", "FP32", [-1])])
    ...     return TensorResponse({"y": values["x"] * 2, "unit": "cm"}, request)
    """
    try:
        body = RequestBody(request.headers.raw, max_body_nbytes)
        async for chunk in request.stream():  # also if the body was read before
            body.buffer.write(chunk)
        decoded = await body.read_slowly(body.decode, limits)
        return values_of(decoded, inputs, request.scope)
    except TensorwireError as error:
        raise InvalidRequestError(error.status, str(error)) from error


class InvalidRequestError(HTTPException):
    """The request is not valid."""


class TensorResponse(Response):
    """A response with arrays, strings and JSON values.

    Parameters
    ----------
    content : mapping, InferResponse or Frame
        The values by name. Strings, numbers, booleans, None, mappings, and lists and tuples other
        than those of text or arrays become parameters of the response, which are for few values: a
        decoder accepts 1024 by default. Whatever else ``Tensor`` accepts becomes an output. A Frame
        is sent as it is. The memory of the arrays is not copied before it is sent, and must not
        change until then.
    request : starlette.requests.Request, optional
        The request, which ``read_tensors`` has read. The response has the outputs that the request
        asks for, as binary data or as JSON. If it does not say how, they are binary if the request
        has binary data, and JSON otherwise. Without a request, all outputs are binary, except those
        of an InferResponse whose ``binary`` is False.
    status_code : int, default 200
        The HTTP status.
    headers : mapping of str to str, optional
        Additional headers. Content-Type, Content-Length and Inference-Header-Content-Length are
        those of the frame (WIRE.md 1).
    background : BackgroundTask, optional
        What Starlette runs after the response.

    Raises
    ------
    HTTPException
        Status 400: the request asks for an output that does not exist, or for JSON that cannot
        represent an output: FP16, BF16, or BYTES that are not UTF-8.
    EncodeError, TypeError
        A value cannot be sent.
    ValueError
        ``read_tensors`` has not read the request.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorwire.server.starlette import TensorResponse
    >>> response = TensorResponse({"y": np.zeros(3), "label": "cat"})
    >>> response.headers["content-type"]
    'application/octet-stream'
    """

    media_type = BINARY_TYPE

    def __init__(
        self,
        content: Content,
        request: Request | None = None,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        background: BackgroundTask | None = None,
    ) -> None:
        if request is not None:
            check_type("request", request, Request, "a Request of Starlette")
        try:
            self.frame = frame_of(content, None if request is None else request.scope)
        except RequestError as error:
            raise InvalidRequestError(error.status, str(error)) from error
        super().__init__(None, status_code, headers, background=background)
        self.headers.update(self.frame.headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (name, value)
            for name, value in self.raw_headers
            if name.decode("latin-1") not in FRAME_HEADERS
        ]
        await send_frame(send, self.frame, status=self.status_code, headers=headers)
        if self.background is not None:
            await self.background()


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
