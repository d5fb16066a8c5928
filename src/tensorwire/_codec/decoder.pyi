from typing import Any

from .datatypes import Limits
from .messages import InferRequest, InferResponse, Tensor, TensorSpec

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
def view_tensor(
    buffer: Any,
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    limits: Limits,
) -> Tensor: ...
