"""KServe's server on this codec: its data plane, its JSON, and the processes that it spawns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from kserve import InferRequest, InferResponse
from kserve.constants.constants import INFERENCE_CONTENT_LENGTH_HEADER
from kserve.errors import InvalidInput
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.rest.v2_datamodels import InferenceRequest
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from starlette.requests import Request

from ...errors import DecodeError
from ...http import EXTENSION, JSON_TYPE, header_length
from .messages import (
    JsonRequest,
    read_json_request,
    read_request,
    write_json_response,
    write_response,
)
from .options import Options

INFER = V2Endpoints.infer  # KServe's own, whatever replaces it later


def decode_request(body: bytes, headers: dict[str, str], model_name: str, options: Options) -> Any:
    """The request in a body that does not say that it is JSON; InvalidInput.

    Without the header's length all of it is (WIRE.md 1): so tritonclient sends JSON.
    """
    try:
        json_length = header_length(headers)
    except DecodeError as error:
        raise InvalidInput(str(error)) from error
    if json_length is None:
        json_length = len(body)
    if json_length == 0 and body:
        raise InvalidInput(
            f"Inference-Header-Content-Length is 0, a raw binary request of {len(body)} bytes: "
            f"model '{model_name}' of KServe declares no input to read it by"
        )
    return read_request(InferRequest, body, json_length, model_name, options)


# --- JSON requests -------------------------------------------------------------------------------

# FastAPI calls `Request.json` for a body whose Content-Type is JSON, and validates what it returns
# as an InferenceRequest. An instance of that class is accepted as it is.


async def read_body(request: Request, options: Options) -> InferenceRequest | None:
    """The body of a request for KServe's infer endpoint; None for what KServe reads itself."""
    if type(request) is not Request or hasattr(request, "_json"):
        return None  # a middleware's, or read before
    endpoint = request.scope.get("endpoint")
    if getattr(endpoint, "__func__", None) is not INFER:
        return None
    body = await request.body()
    found = read_json_request(body, options)
    return None if found is None else LazyRequest.over(found, body)


class LazyRequest(InferenceRequest):  # type: ignore[misc]
    """KServe's model of a JSON request, whose fields are made when they are first used.

    KServe makes its InferRequest of it, for which they are not needed.
    """

    @classmethod
    def over(cls, found: JsonRequest, body: bytes) -> LazyRequest:
        made: LazyRequest = cls.__new__(cls)
        made.__setstate__(
            {
                "__dict__": {"_found": found, "_body": body},
                "__pydantic_fields_set__": set(),
                "__pydantic_extra__": None,
                "__pydantic_private__": None,
            }
        )
        return made

    def __getattr__(self, name: str) -> Any:
        if name not in InferenceRequest.model_fields or "_body" not in self.__dict__:
            return super().__getattr__(name)
        made = InferenceRequest.model_validate(json.loads(self.__dict__["_body"]))
        self.__setstate__(made.__getstate__())
        return getattr(self, name)


def found_in(request: Any) -> JsonRequest | None:
    """What was read of the body, unless the fields were used, and changed perhaps, since."""
    return request.__dict__.get("_found") if isinstance(request, LazyRequest) else None


# --- JSON responses ------------------------------------------------------------------------------


def encode_json(response: Any, headers: Any) -> tuple[bytes, dict[str, str]] | None:
    """Body and headers of a response that is JSON as a whole; None where KServe writes it itself.

    Only KServe's infer endpoint sends text as it is: all other callers of a data plane's ``encode``
    expect the tree of the JSON. So this looks at who called the function that calls it.
    """
    if sys._getframe(2).f_code is not INFER.__code__ or is_cloudevent(headers):
        return None
    text = write_json_response(response)
    if text is None:
        return None
    # The endpoint removes a lower-case content-type, which would be the predictor's.
    return text, {"Content-Type": JSON_TYPE, "Content-Length": str(len(text))}


def is_cloudevent(headers: Any) -> bool:
    """Whether a response may have to become a CloudEvent, as its request was."""
    return bool(headers) and (
        any(name.startswith("ce-") for name in headers)
        or "cloudevents" in headers.get("content-type", "")
    )


class BinaryDataPlane(DataPlane):  # type: ignore[misc]
    """KServe's data plane, reading and writing bodies with this codec; nothing is patched.

        server = ModelServer()
        server.dataplane = BinaryDataPlane(server.registered_models)
        server.start([model])

    ``writable``, ``aligned``, ``bf16_as_uint16``: as ``install``. REST only, and only what passes
    through the server: KServe's own classes and clients in the same process stay as they are.
    JSON requests are read by KServe, which does so before it calls its data plane; only
    ``install`` changes that. Works with ``workers``: each process gets it from the first.
    """

    def __init__(
        self,
        model_registry: Any,
        *,
        writable: bool = False,
        aligned: bool = False,
        bf16_as_uint16: bool = False,
    ) -> None:
        super().__init__(model_registry)
        self._options = Options(writable, aligned, bf16_as_uint16)

    def metadata(self) -> dict[str, Any]:
        """KServe's answer, which announces ``binary_tensor_data``, too."""
        return announced(super().metadata())

    def decode_inference_request(self, body: Any, headers: Any, model_name: str) -> Any:
        """An InferRequest over the body, when that is binary; InvalidInput."""
        if isinstance(body, bytes):
            return decode_request(body, headers, model_name, self._options)
        return super().decode_inference_request(body, headers, model_name)

    def encode(
        self, model_name: Any, response: Any, headers: Any, req_attributes: dict[str, Any]
    ) -> tuple[Any, dict[str, str]]:
        """The response's body, or the tree of its JSON, and its HTTP headers."""
        json_length = None
        if isinstance(response, InferResponse):
            if (found := encode_json(response, headers)) is not None:
                return found
            response, json_length = write_response(response, self._options)
        response, response_headers = super().encode(model_name, response, headers, req_attributes)
        if json_length is not None:
            response_headers[INFERENCE_CONTENT_LENGTH_HEADER] = str(json_length)
        return response, response_headers


def announced(metadata: dict[str, Any]) -> dict[str, Any]:
    extensions = metadata["extensions"]
    if EXTENSION in extensions:
        return metadata
    return {**metadata, "extensions": [*extensions, EXTENSION]}


class InChild:
    """What a spawned process runs: it starts without our changes, and makes them first."""

    def __init__(self, target: Callable[..., Any], install: Callable[[], None]) -> None:
        self.target = target
        self.install = install

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.install()
        return self.target(*args, **kwargs)
