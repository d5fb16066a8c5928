"""Use this codec in KServe's REST server: for its data plane, JSON requests and responses."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import MethodType
from typing import Any, NamedTuple

from fastapi.routing import APIRoute, APIRouter
from kserve import InferRequest, InferResponse
from kserve.constants.constants import INFERENCE_CONTENT_LENGTH_HEADER
from kserve.errors import InvalidInput
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.infer_type import RequestedOutput
from kserve.protocol.rest.v2_datamodels import InferenceRequest
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils.utils import generate_uuid
from starlette.requests import Request
from starlette.responses import Response

import tensorwire as tw

from ...errors import DecodeError
from ...http import EXTENSION, JSON_TYPE, header_length
from .convert import (
    Options,
    read_json_request,
    read_request,
    shallow_copy,
    write_json_response,
    write_response,
)

GetOptions = Callable[[], Options | None]
"""Returns the options of ``install``, or None while the integration is not installed."""


def decode_body(body: bytes, headers: dict[str, str], model_name: str, options: Options) -> Any:
    """Decode a request whose Content-Type is not JSON. Raises InvalidInput.

    Without a header length, the whole body is JSON (WIRE.md 1). tritonclient sends such bodies.
    """
    try:
        json_length = header_length(headers)
    except DecodeError as error:
        raise InvalidInput(str(error)) from error
    if json_length is None:
        json_length = len(body)
    if json_length == 0 and body:
        raise InvalidInput(
            f"Inference-Header-Content-Length is 0, so the body of {len(body)} bytes is a raw "
            f"binary request, but model '{model_name}' of KServe declares no inputs; send a JSON "
            f"header, and its length in Inference-Header-Content-Length"
        )
    return read_request(InferRequest, body, json_length, model_name, options)


# --- JSON requests -------------------------------------------------------------------------------

# If the Content-Type of a request is JSON, FastAPI awaits `Request.json()` and validates the result
# as an InferenceRequest. It does not validate an instance of that class again. FastAPI's way to
# change how a request is read is a route class that passes another request to its handler.


class RegisteredApp:
    """A FastAPI application that gives KServe's infer routes another class as they are included."""

    def __init__(self, app: Any, route_class: type[APIRoute]) -> None:
        self._app = app
        self._route_class = route_class

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    def include_router(self, router: APIRouter, *arguments: Any, **more: Any) -> None:
        for route in router.routes:
            if type(route) is APIRoute and is_infer(route.endpoint):
                route.__class__ = self._route_class
        self._app.include_router(router, *arguments, **more)


def is_infer(endpoint: Any) -> bool:
    """Return whether an endpoint is KServe's own ``infer``."""
    owner = getattr(endpoint, "__self__", None)
    return isinstance(owner, V2Endpoints) and endpoint.__name__ == "infer"


def infer_route_class(options: GetOptions) -> type[APIRoute]:
    """Return the class of the routes whose JSON requests are read by this codec."""
    read_json = Request.json  # Starlette's own function

    class JsonRequest(Request):
        async def json(self) -> Any:
            found, in_use = None, options()
            if in_use is not None and Request.json is read_json:  # not wrapped since
                found = await read_json_body(self, in_use)
            return await super().json() if found is None else found

    class InferRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Any]:
            handle = super().get_route_handler()

            async def handle_json(request: Request) -> Response:
                if type(request) is Request:  # other code may use a class of its own
                    request = JsonRequest(request.scope, request.receive)
                response: Response = await handle(request)
                return response

            return handle_json

    return InferRoute


async def read_json_body(request: Request, options: Options) -> InferenceRequest | None:
    """Read the JSON body of a request. Returns None if KServe has to read it."""
    body = await request.body()
    found = read_json_request(body, options)
    return None if found is None else LazyInferenceRequest.from_message(found, body)


class LazyInferenceRequest(InferenceRequest):  # type: ignore[misc]
    """KServe's pydantic model of a JSON request. Its fields are built on first access.

    KServe only converts it to an InferRequest, and the integration does this without the fields.
    """

    @classmethod
    def from_message(cls, message: tw.InferRequest, body: bytes) -> LazyInferenceRequest:
        request: LazyInferenceRequest = cls.__new__(cls)
        request.__setstate__(
            {
                "__dict__": {"_message": message, "_body": body},
                "__pydantic_fields_set__": set(),
                "__pydantic_extra__": None,
                "__pydantic_private__": None,
            }
        )
        return request

    def __getattr__(self, name: str) -> Any:
        if name not in InferenceRequest.model_fields or "_body" not in self.__dict__:
            return super().__getattr__(name)
        validated = InferenceRequest.model_validate(json.loads(self.__dict__["_body"]))
        self.__setstate__(validated.__getstate__())
        return getattr(self, name)


def message_of(request: Any) -> tuple[tw.InferRequest, bytes] | None:
    """Return the message of a LazyInferenceRequest, and its body.

    Returns None if its fields were built, because the program may have changed them, and for any
    other request.
    """
    if not isinstance(request, LazyInferenceRequest) or "_message" not in request.__dict__:
        return None
    return request.__dict__["_message"], request.__dict__["_body"]


# --- responses that follow the request ---------------------------------------------------------

# `DataPlane.infer` has the request and the response, for REST and gRPC. What the request says about
# its response is read before the model is called, because the model may change the request. It is
# applied to a copy of the response, because a model may return the same object several times.
# Therefore, requests that run at the same time or inside one another do not affect each other.


class ResponseFormat(NamedTuple):
    """What a request says about its response.

    Attributes
    ----------
    request_id
        The id of the request, or None.
    outputs
        The outputs that the request lists, each with its ``binary_data`` if it has one. None if the
        request lists no outputs.
    is_binary
        ``binary_data_output`` of the request, or None if it is absent.
    """

    request_id: str | None
    outputs: list[RequestedOutput] | None
    is_binary: bool | None

    @classmethod
    def of(cls, request: InferRequest) -> ResponseFormat:
        """Return the format that a request asks for."""
        if request.from_grpc:
            # The response to raw contents has raw contents, and always contains all outputs.
            return cls(request.id, None, True if request.use_binary_outputs else None)
        parameters = request.parameters
        is_binary = parameters.get("binary_data_output") if parameters else None
        listed = request.request_outputs
        if not listed:
            return cls(request.id, None, is_binary)
        outputs = [
            RequestedOutput(output.name, binary_parameter(output.binary_data)) for output in listed
        ]
        return cls(request.id, outputs, is_binary)

    def apply(self, response: Any) -> Any:
        """Return the response of a model, in this format and with an id.

        If the request says nothing, the arguments that the model passed to InferResponse apply. A
        dict only gets an id, because KServe sends dicts as JSON.
        """
        if isinstance(response, dict):
            if "outputs" not in response or response.get("id"):
                return response
            return {**response, "id": self.response_id()}
        if not isinstance(response, InferResponse):
            return response
        if self.outputs is None and self.is_binary is None and response.id:
            return response
        response = shallow_copy(response)
        response.id = response.id or self.response_id()
        if self.outputs is not None:
            response._requested_outputs = self.outputs
        if self.is_binary is not None:
            response._use_binary_outputs = self.is_binary
            if self.outputs is None and response._requested_outputs:
                # The model selects the outputs, and the request selects their format.
                names = [output.name for output in response._requested_outputs]
                response._requested_outputs = [RequestedOutput(name) for name in names]
        return response

    def response_id(self) -> str:
        """Return the id of a response to which the model gave none."""
        return self.request_id or generate_uuid()


async def infer(
    call: Callable[..., Awaitable[tuple[Any, dict[str, str]]]],
    options: Options,
    model_name: str,
    request: Any,
    headers: Any,
) -> tuple[Any, dict[str, str]]:
    """Call the ``infer`` method of a data plane. Return the response in the request's format."""
    if not options.follow_request or not isinstance(request, InferRequest):
        return await call(model_name, request, headers)
    wanted = ResponseFormat.of(request)
    response, response_headers = await call(model_name, request, headers)
    return wanted.apply(response), response_headers


def binary_parameter(is_binary: bool | None) -> dict[str, bool] | None:
    """Return the parameters of a requested output that has only ``binary_data``, or nothing."""
    return None if is_binary is None else {"binary_data": is_binary}


# --- JSON responses ------------------------------------------------------------------------------

# KServe's infer endpoint converts the tree that the `encode` method of its data plane returns to a
# pydantic model, and sends `bytes` unchanged. All other callers of `encode` expect the tree. The
# endpoint therefore runs with a data plane of its own, whose `encode` returns the text.


class PlaneWithText:
    """A data plane whose ``encode`` returns the text of a JSON response instead of a tree.

    If a subclass or other code has another ``encode`` than the given one, this one is called.
    """

    def __init__(self, plane: Any, encode: Any, options: Options) -> None:
        self._plane = plane
        self._encode = encode
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def encode(self, model_name: Any, response: Any, headers: Any, req_attributes: Any) -> Any:
        encode = self._plane.encode
        # The type itself: a wrapper may imitate the attributes of what it wraps.
        is_own = type(encode) is MethodType and encode.__func__ is self._encode
        if is_own and isinstance(response, InferResponse):
            found = encode_json(response, headers, self._options)
            if found is not None:
                return found
        return encode(
            model_name=model_name,
            response=response,
            headers=headers,
            req_attributes=req_attributes,
        )


def encode_json(
    response: Any, headers: Any, options: Options
) -> tuple[bytes, dict[str, str]] | None:
    """Return the body and headers of a JSON response. Returns None if KServe has to encode it."""
    if is_cloudevent(headers):
        return None
    text = write_json_response(response, options)
    if text is None:
        return None
    # The endpoint removes "content-type" and "content-length", which may come from a predictor. It
    # does not remove names with upper-case letters.
    return text, {"Content-Type": JSON_TYPE, "Content-Length": str(len(text))}


def is_cloudevent(headers: Any) -> bool:
    """Return whether a request may be a CloudEvent. The response must then be one as well."""
    return bool(headers) and (
        any(name.startswith("ce-") for name in headers)
        or "cloudevents" in headers.get("content-type", "")
    )


# --- the data plane ------------------------------------------------------------------------------


class BinaryDataPlane(DataPlane):  # type: ignore[misc]
    """A data plane for KServe's server, which decodes and encodes bodies with this codec.

    No function of KServe is replaced, and only the REST requests of one server are affected.
    KServe's classes and clients in the same process are not. KServe itself still reads JSON
    requests and writes JSON responses, because it does so before and after it calls its data plane;
    only ``install`` changes that. Worker processes of the server use the data plane as well.

        server = ModelServer()
        server.dataplane = BinaryDataPlane(server.registered_models)
        server.start([model])

    Parameters
    ----------
    model_registry
        The models of the server.
    writable, aligned, bf16_as_uint16, follow_request
        As for ``install``.
    """

    def __init__(
        self,
        model_registry: Any,
        *,
        writable: bool = False,
        aligned: bool = False,
        bf16_as_uint16: bool = False,
        follow_request: bool = True,
    ) -> None:
        super().__init__(model_registry)
        self._options = Options(writable, aligned, bf16_as_uint16, follow_request)

    def metadata(self) -> dict[str, Any]:
        """Return KServe's metadata, with ``binary_tensor_data`` among the extensions."""
        return announce_extension(super().metadata())

    def decode_inference_request(self, body: Any, headers: Any, model_name: str) -> Any:
        """Decode a body to an InferRequest, or convert KServe's InferenceRequest to one.

        Raises InvalidInput.
        """
        if isinstance(body, bytes):
            return decode_body(body, headers, model_name, self._options)
        return super().decode_inference_request(body, headers, model_name)

    async def infer(
        self, model_name: str, request: Any, headers: Any = None
    ) -> tuple[Any, dict[str, str]]:
        """Call a model. Return its response, in the format of the request, and HTTP headers."""
        return await infer(super().infer, self._options, model_name, request, headers)

    def encode(
        self, model_name: Any, response: Any, headers: Any, req_attributes: dict[str, Any]
    ) -> tuple[Any, dict[str, str]]:
        """Return the body of a response, or its JSON tree, and its HTTP headers."""
        json_length = None
        if isinstance(response, InferResponse):
            response, json_length = write_response(response, self._options)
        response, response_headers = super().encode(model_name, response, headers, req_attributes)
        if json_length is not None:
            response_headers[INFERENCE_CONTENT_LENGTH_HEADER] = str(json_length)
        return response, response_headers


def announce_extension(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the server metadata with ``binary_tensor_data`` among the extensions."""
    extensions = metadata["extensions"]
    if EXTENSION in extensions:
        return metadata
    return {**metadata, "extensions": [*extensions, EXTENSION]}
