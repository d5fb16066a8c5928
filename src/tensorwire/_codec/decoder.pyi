from .datatypes import Limits
from .memory import ReadableBuffer
from .messages import InferRequest, InferResponse, Tensor, TensorSpec

def decode_request(
    body: ReadableBuffer,
    header_length: int | str | bytes | None = None,
    *,
    raw_input: TensorSpec | None = None,
    limits: Limits = ...,
) -> InferRequest: ...
def decode_response(
    body: ReadableBuffer,
    header_length: int | str | bytes | None = None,
    *,
    limits: Limits = ...,
) -> InferResponse: ...
def view_tensor(
    buffer: ReadableBuffer,
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    limits: Limits,
) -> Tensor: ...
