"""The route of KServe's REST server that reads and writes inference requests with this codec."""

from __future__ import annotations

from functools import update_wrapper
from operator import is_
from types import MethodType
from typing import Any

import orjson
from fastapi import FastAPI
from kserve import InferResponse
from kserve.errors import ModelNotReady
from kserve.protocol.rest.v2_datamodels import InferenceResponse
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils.utils import generate_uuid
from starlette.routing import Match, Route

import tensorwire as tw

from ..._codec.body_buffer import BodyBuffer
from ...errors import DecodeError
from ...http import JSON_TYPE
from ...server.asgi import Receive, Send, send_error
from ...server.errors import ClientDisconnectedError, UnsupportedEncodingError
from ..rest import receive_again, receive_body, send_body, text_headers
from . import _PATCH, is_installed
from .convert import is_binary, read_request, write_response

PATH = "/v2/models/{model_name}/infer"
LEFT_TO_KSERVE = "tensorwire.left_to_kserve"  # a key in the scope of a request

Headers = dict[str, str]


class InferRoute(Route):
    """The route of ``infer``, while the integration is installed.

    ``own`` are the ``functions_of`` KServe's data plane.
    """

    def __init__(self, app: FastAPI, plane: Any, own: list[Any]) -> None:
        # Instrumentation uses the names of the endpoint.
        endpoint = update_wrapper(InferEndpoint(app, plane, own), V2Endpoints.infer)
        super().__init__(PATH, endpoint, methods=["POST"], include_in_schema=False)

    def matches(self, scope: Any) -> tuple[Match, Any]:
        """Match what KServe's own route would match as well."""
        match, child_scope = super().matches(scope)
        if match is not Match.FULL or LEFT_TO_KSERVE in scope or not is_installed():
            return Match.NONE, {}
        return match, {**child_scope, "route": self}


def functions_of(plane: Any) -> list[Any]:
    """Return the functions of a data plane that the route does not call, as it does the same."""
    methods = (plane.decode, plane.decode_inference_request, plane.encode)
    # The type itself: a wrapper may imitate the attributes of what it wraps.
    return [method.__func__ if type(method) is MethodType else method for method in methods]


class InferEndpoint:
    """An ASGI application that does what KServe's ``infer`` endpoint does.

    Requests of other kinds, and JSON that this codec rejects, go on to KServe's own endpoint.
    Binary requests that it rejects are errors.
    """

    def __init__(self, app: FastAPI, plane: Any, own: list[Any]) -> None:
        self.app = app
        self.plane = plane
        self.own = own

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["model_name"]
        headers = text_headers(scope)
        try:
            framing, body = await receive_body(scope, receive, _PATCH.max_body_nbytes)
        except DecodeError as error:
            await send_error(send, str(error), error.status)
            return
        except ClientDisconnectedError:
            return
        is_own = all(map(is_, functions_of(self.plane), self.own))
        if is_cloudevent(headers) or not is_own:
            await self.leave_to_kserve(scope, body, receive, send)
            return
        try:
            if framing.encoding and framing.header_length is not None:
                raise UnsupportedEncodingError(
                    "the request has a Content-Encoding, which KServe does not support"
                )
            request, infer_request = read_request(body, framing.header_length, name)
        except DecodeError as error:
            if not is_binary(body, framing.header_length):
                await self.leave_to_kserve(scope, body, receive, send)
                return
            await self.check_ready(name)
            await send_error(send, str(error), error.status)
            return
        await self.check_ready(name)
        response, more_headers = await self.plane.infer(
            model_name=name, request=infer_request, headers=headers
        )
        if type(response) is InferResponse:
            content, own_headers = write_response(response, request)
        else:
            content, own_headers = self.encode(name, response, headers, request)
        for header in ("content-length", "content-type"):  # those of a predictor
            more_headers.pop(header, None)
        await send_body(send, content, {**more_headers, **own_headers})

    async def leave_to_kserve(
        self, scope: Any, body: BodyBuffer, receive: Receive, send: Send
    ) -> None:
        scope[LEFT_TO_KSERVE] = True
        await self.app.router(scope, receive_again(bytes(body), receive), send)

    async def check_ready(self, name: str) -> None:
        """Raise ModelNotReady, or ModelNotFound."""
        if not await self.plane.model_ready(name, True):
            raise ModelNotReady(name)

    def encode(
        self, name: str, response: Any, headers: Headers, request: tw.InferRequest
    ) -> tuple[bytes, Headers]:
        """Return the body and the headers of a response that is a dict, as KServe does."""
        if isinstance(response, dict) and "outputs" in response and not response.get("id"):
            response = {**response, "id": request.id or generate_uuid()}
        content, own_headers = self.plane.encode(
            model_name=name, response=response, headers=headers, req_attributes={}
        )
        if not isinstance(content, bytes):
            checked = InferenceResponse.model_validate(content)
            content = orjson.dumps(checked.model_dump(mode="json"))
            own_headers = {**own_headers, "content-type": JSON_TYPE}
        return content, own_headers


def is_cloudevent(headers: Headers) -> bool:
    """Return whether a request may be a CloudEvent. The response must then be one as well."""
    return "cloudevents" in headers.get("content-type", "") or any(
        name.startswith("ce-") for name in headers
    )
