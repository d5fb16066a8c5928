"""The messages of HTTP: bodies, which may be compressed, and frames."""

from __future__ import annotations

from dataclasses import dataclass

import tensorwire as tw

from .._codec.datatypes import UNLIMITED
from ..arguments import Nonfinite, Selection
from ..http import HEADER_LENGTH
from .body import RequestBody
from .inference import ServedModel
from .model import RequestError


@dataclass(eq=False)
class HttpModel(ServedModel[RequestBody, tw.Frame]):
    """A model as HTTP serves it. The last two parameters are those of ``create_app``."""

    selection: Selection
    nonfinite: Nonfinite

    def is_slow_to_decode(self, message: RequestBody) -> bool:
        return message.is_slow_to_decode

    def decode(self, message: RequestBody) -> tw.InferRequest:
        if message.framing.header_length == 0 and self.model.raw_input is None:
            raise RequestError(
                f"{HEADER_LENGTH} is 0, which means a raw binary request, but the model does not "
                "declare exactly one input"
            )
        return message.decode(self.limits, self.model.raw_input)

    def is_slow_to_encode(self, nbytes: int, request: tw.InferRequest) -> bool:
        """Writing JSON is slow. Binary data is sent from the memory of the arrays."""
        if request.outputs:
            return not all(output.binary for output in request.outputs)
        return request.parameters.get("binary_data_output") is not True

    def encode(self, response: tw.InferResponse, request: tw.InferRequest) -> tw.Frame:
        return tw.encode_response(
            response,
            request,
            selection=self.selection,
            nonfinite=self.nonfinite,
            limits=UNLIMITED,
        )
