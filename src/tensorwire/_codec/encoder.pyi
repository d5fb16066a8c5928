from typing import Any, Literal

from .datatypes import Limits
from .messages import Frame, InferRequest, InferResponse

Nonfinite = Literal["null", "literal", "error"]
Selection = Literal["spec", "triton"]

def encode_request(
    request: InferRequest,
    *,
    align: int = 64,
    nonfinite: Nonfinite | None = None,
    limits: Limits = ...,
) -> Frame: ...
def encode_response(
    response: InferResponse,
    request: InferRequest | None = None,
    *,
    selection: Selection = "spec",
    align: int = 64,
    nonfinite: Nonfinite = "null",
    limits: Limits = ...,
) -> Frame: ...
def encode_raw_request(array: Any) -> Frame: ...
