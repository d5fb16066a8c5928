from typing import Any

from ._limits import Limits
from ._messages import InferRequest, InferResponse, TensorSpec

def decode_request(
    body: Any,
    header_length: int | str | bytes | None = None,
    *,
    raw_input: TensorSpec | None = None,
    limits: Limits = ...,
) -> InferRequest: ...
def decode_response(
    body: Any,
    header_length: int | str | bytes | None = None,
    *,
    limits: Limits = ...,
) -> InferResponse: ...
