"""The messages of HTTP: bodies, which may be compressed, and frames."""

from __future__ import annotations

from dataclasses import dataclass

import tensorwire as tw

from .._codec.datatypes import UNLIMITED
from ..arguments import Nonfinite, Selection
from ..http import HEADER_LENGTH
from .body import RequestBody
from .model import MAX_BODY_NBYTES, MAX_JSON_NBYTES, Model, RequestError


@dataclass
class HttpFormat:
    """See ``Format``. The parameters are those of ``create_app``."""

    limits: tw.Limits
    selection: Selection
    nonfinite: Nonfinite

    @staticmethod
    def is_slow_to_decode(message: RequestBody) -> bool:
        nbytes, framing = len(message.buffer), message.framing
        json_nbytes = nbytes if framing.header_length is None else framing.header_length
        return bool(framing.encoding) or json_nbytes > MAX_JSON_NBYTES or nbytes > MAX_BODY_NBYTES

    def decode(self, message: RequestBody, model: Model) -> tw.InferRequest:
        if message.framing.header_length == 0 and model.raw_input is None:
            raise RequestError(
                f"{HEADER_LENGTH} is 0, which means a raw binary request, but the model does not "
                "declare exactly one input"
            )
        return message.decode(self.limits, model.raw_input)

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
