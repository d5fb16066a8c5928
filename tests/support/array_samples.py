"""Arrays of each datatype and shape, and tensors that were decoded at a known address."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw

from .lifetimes import Owned
from .requirements import package
from .scripts import run_script

ml_dtypes = package("ml_dtypes")
DTYPES: dict[str, Any] = {
    **{"BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32},
    **{"UINT64": np.uint64, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32},
    **{"INT64": np.int64, "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32},
    "FP64": np.float64,
}
SHAPES: dict[str, tuple[int, ...]] = {"scalar": (), "empty": (0, 3), "1-d": (7,), "n-d": (2, 3, 4)}

every_datatype = pytest.mark.parametrize("datatype", DTYPES)
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def sample(datatype: str, shape: tuple[int, ...] = (2, 3)) -> Any:
    return (np.arange(np.prod(shape)) % 7).reshape(shape).astype(DTYPES[datatype])


def decoded(array: Any, *, readonly: bool = False, offset: int = 0) -> tw.Tensor:
    """Return a decoded tensor, whose memory begins `offset` bytes after a multiple of 64."""
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("x", array)]))
    memory = Owned(len(frame) + 128)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % 64 + offset
    body = memoryview(memory)[start : start + len(frame)]
    body[:] = bytes(frame)
    if readonly:
        body = body.toreadonly()
    return tw.decode_response(body, frame.header_length)["x"]


def address(tensor: tw.Tensor) -> int:
    return int(tensor.as_numpy().ctypes.data)


def memory_of(tensor: tw.Tensor) -> Any:
    """Return the Owned object of `decoded`."""
    body = memoryview(tensor.as_numpy().base)  # type: ignore[arg-type]
    found = body.obj
    while not isinstance(found, Owned):
        found = gc.get_referents(found)[0]
        found = found.obj if isinstance(found, memoryview) else found
    return found


def assert_only_the_array_keeps_the_body(consume: Callable[[tw.Tensor], Any]) -> None:
    """Check that the array that a consumer of DLPack makes keeps the body alive."""
    tensor = decoded(sample("FP32"))
    owner = weakref.ref(memory_of(tensor))
    made = consume(tensor)
    del tensor
    gc.collect()
    assert owner() is not None
    assert made.tolist() == sample("FP32").tolist()
    del made
    gc.collect()
    assert owner() is None


def assert_no_reference_leaks(consume: Callable[[tw.Tensor], Any]) -> None:
    """Check that a consumer of DLPack, and capsules without a consumer, release the array."""
    tensor = decoded(sample("FP32"))
    array = tensor.as_numpy()
    consume(tensor)
    before = sys.getrefcount(array)
    for _ in range(1000):
        consume(tensor)
        tensor.__dlpack__()
    gc.collect()
    assert sys.getrefcount(array) <= before


OUTLIVES = """
import sys, gc, numpy as np, tensorwire as tw
{imports}
frame = tw.encode_response(tw.InferResponse([tw.Tensor("x", np.arange(3.0))]))
body = bytearray(bytes(frame))
x = tw.decode_response(body, frame.header_length)["x"]
kept = {from_dlpack}(x), x.__dlpack__()
back = tw.Tensor("y", {arange}(3.0)).data
del body, x, frame, tw
for name in [name for name in sys.modules if name.startswith("tensorwire")]:
    del sys.modules[name]
gc.collect()
for made in (kept[0], back):
    assert made.tolist() == [0, 1, 2]
sys.kept = kept, back  # until the interpreter has ended
"""


def assert_consumers_outlive_message_and_module(**code: str) -> None:
    done = run_script(OUTLIVES.format(**code))
    assert (done.returncode, done.stderr) == (0, "")


class OnlyDlpack:
    """An array of another package, whose dtype is not numpy's, and whose size is not known."""

    dtype = "foreign.float64"

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()
