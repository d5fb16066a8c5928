from ..limits import Limits
from ..signatures import ReadableBuffer
from .tensor import Tensor

def view_tensor(
    buffer: ReadableBuffer,
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    limits: Limits,
) -> Tensor: ...
