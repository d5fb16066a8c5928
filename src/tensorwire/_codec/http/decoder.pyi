from collections.abc import Iterable
from typing import Any

from ..limits import Limits
from ..messages.message import InferRequest, InferResponse
from ..messages.tensor import TensorSpec
from ..signatures import ReadableBuffer

def decode_request(
    body: ReadableBuffer,
    header_length: int | str | bytes | None = None,
    *,
    data: ReadableBuffer | Iterable[ReadableBuffer] | None = None,
    raw_input: TensorSpec | None = None,
    limits: Limits = ...,
) -> InferRequest: ...
def decode_response(
    body: ReadableBuffer,
    header_length: int | str | bytes | None = None,
    *,
    data: ReadableBuffer | Iterable[ReadableBuffer] | None = None,
    limits: Limits = ...,
) -> InferResponse: ...
def decode_response_in_regions(
    body: ReadableBuffer,
    header_length: int | None,
    *,
    regions: dict[str, dict[str, Any]],
    limits: Limits = ...,
) -> InferResponse: ...
