from typing import Any

from ..limits import Limits
from ..messages.frame import Frame
from ..messages.message import InferRequest, InferResponse, ResponseOptions
from ..signatures import Nonfinite, Selection

def encode_request(
    request: InferRequest,
    *,
    align: int = 64,
    nonfinite: Nonfinite | None = None,
    limits: Limits = ...,
) -> Frame: ...
def encode_response(
    response: InferResponse,
    request: InferRequest | ResponseOptions | None = None,
    *,
    selection: Selection = "spec",
    align: int = 64,
    nonfinite: Nonfinite = "null",
    limits: Limits = ...,
) -> Frame: ...
def encode_raw_request(array: Any) -> Frame: ...
