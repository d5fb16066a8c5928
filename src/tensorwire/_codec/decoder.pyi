from typing import Any, final

from .datatypes import Limits
from .memory import ReadableBuffer
from .messages import InferRequest, InferResponse, Tensor, TensorSpec

@final
class PeerTensor:
    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def parameters(self) -> dict[str, Any] | None: ...
    @property
    def tensor(self) -> Tensor | None: ...
    @property
    def text(self) -> memoryview | None: ...

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
def read_peer_message(
    body: ReadableBuffer,
    header_nbytes: int,
    is_request: bool,
    limits: Limits,
    needs_arrays: bool = False,
) -> tuple[Any, list[PeerTensor], list[dict[str, Any] | None]]: ...
def view_tensor(
    buffer: ReadableBuffer,
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    limits: Limits,
) -> Tensor: ...
