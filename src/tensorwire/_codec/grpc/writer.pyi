from collections.abc import Iterable
from typing import Any

from ..messages.message import InferRequest, InferResponse, ResponseOptions
from ..signatures import ReadableBuffer

def encode_request(request: InferRequest) -> bytes: ...
def encode_response(
    response: InferResponse, request: InferRequest | ResponseOptions | None = None
) -> bytes: ...
def encode_stream_response(
    response: InferResponse, request: InferRequest | ResponseOptions | None = None
) -> bytes: ...
def write_fields(values: dict[str, Any], kinds: dict[int, tuple[str, Any]]) -> bytes: ...
def append_fields(
    head: ReadableBuffer, number: int, contents: Iterable[ReadableBuffer]
) -> bytes: ...
