"""KServe's server on this codec: its data plane, and the processes that it spawns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kserve import InferRequest, InferResponse
from kserve.constants.constants import INFERENCE_CONTENT_LENGTH_HEADER
from kserve.errors import InvalidInput
from kserve.protocol.dataplane import DataPlane

from ...errors import DecodeError
from ...http import EXTENSION, header_length
from .messages import read_request, write_response
from .options import Options


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


class BinaryDataPlane(DataPlane):  # type: ignore[misc]
    """KServe's data plane, reading and writing binary bodies with this codec; nothing is patched.

        server = ModelServer()
        server.dataplane = BinaryDataPlane(server.registered_models)
        server.start([model])

    ``writable``, ``aligned``, ``bf16_as_uint16``: as ``install``. REST only, and only what passes
    through the server: KServe's own classes and clients in the same process stay as they are.
    Works with ``workers``: each process gets it from the first.
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
