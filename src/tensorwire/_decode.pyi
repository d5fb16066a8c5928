from typing import Any

from ._limits import Limits
from ._messages import InferRequest, InferResponse, Tensor, TensorSpec
from .header import TensorEntry

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
def read_binary(
    body: Any, offset: int, entries: list[TensorEntry], kind: str, limits: Limits = ...
) -> list[Tensor]: ...
