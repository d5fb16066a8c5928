"""BYTES_STEPS: what is done with BYTES on their own, and by whom. To add one, add a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .contender import module
from .contenders import struct_elements, struct_objects
from .floor import library


@dataclass(frozen=True)
class Elements:
    """The same elements in every form that a step starts from; made before anything is measured."""

    wire: bytes
    objects: NDArray[np.object_]

    @cached_property
    def tensor(self) -> tw.BytesTensor:
        return tw.decode_bytes(self.wire, len(self.objects))

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each element's prefix begins."""
        nbytes = [4 + len(element) for element in self.objects]
        return np.cumsum([0, *nbytes[:-1]], dtype=np.int64)

    @cached_property
    def texts(self) -> NDArray[np.object_]:
        return self.tensor.as_strings()

    @cached_property
    def strings(self) -> NDArray[Any]:
        return self.tensor.as_numpy(STRINGS)

    @cached_property
    def fixed(self) -> NDArray[np.bytes_]:
        return self.tensor.as_numpy("S")

    @cached_property
    def arrow(self) -> Any:
        return pyarrow().array(self.tensor)


STRINGS = np.dtypes.StringDType()


def pyarrow() -> Any:
    return module("pyarrow")


def triton_utils() -> Any:
    return module("tritonclient.utils")


def c_scan(elements: Elements) -> NDArray[np.int64]:
    memory = np.frombuffer(elements.wire, np.uint8)
    starts = np.empty(len(elements.objects), np.int64)
    found = library().scan(memory.ctypes.data, memory.nbytes, starts.ctypes.data)
    assert found == len(starts)
    return starts


def triton_objects(elements: Elements) -> Any:
    return triton_utils().deserialize_bytes_tensor(elements.wire)


def triton_pack(values: Any) -> Any:
    return triton_utils().serialize_byte_tensor(values).item()


def texts_of(objects: NDArray[np.object_]) -> list[str]:
    return [element.decode() for element in objects.tolist()]


Step = Callable[[Elements], Any]

# Each step: our way, tritonclient's where it has one, the way that a user would go without us, and
# the limit: a C loop over the same bytes, or numpy's own C loop that makes the same objects.
BYTES_STEPS: dict[str, dict[str, Step]] = {
    "scan": {
        "tensorwire": lambda e: tw.decode_bytes(e.wire, len(e.objects)),
        "tritonclient": triton_objects,
        "limit (C loop)": c_scan,
    },
    "scan, number unknown": {
        "tensorwire": lambda e: tw.decode_bytes(e.wire),
        "tritonclient": triton_objects,
        "limit (C loop)": c_scan,
    },
    "to objects": {
        "tensorwire": lambda e: e.tensor.as_numpy(),
        "tritonclient": triton_objects,
        "naive": lambda e: struct_objects(e.wire),
        "limit (S array, tolist)": lambda e: e.fixed.tolist(),
    },
    "to str": {
        "tensorwire": lambda e: e.tensor.as_strings(),
        "tritonclient": lambda e: texts_of(triton_objects(e)),
        "naive": lambda e: texts_of(struct_objects(e.wire)),
    },
    "to StringDType": {
        "tensorwire": lambda e: e.tensor.as_numpy(STRINGS),
        "tritonclient": lambda e: np.array(texts_of(triton_objects(e)), STRINGS),
        "naive": lambda e: np.array(texts_of(e.tensor.as_numpy()), STRINGS),
    },
    "to S": {
        "tensorwire": lambda e: e.tensor.as_numpy("S"),
        "tritonclient": lambda e: triton_objects(e).astype("S"),
        "naive": lambda e: e.tensor.as_numpy().astype("S"),
    },
    "to Arrow": {
        "tensorwire": lambda e: pyarrow().array(e.tensor),
        "tritonclient": lambda e: pyarrow().array(triton_objects(e)),
        "naive": lambda e: pyarrow().array(e.tensor.tolist()),
    },
    "from objects": {
        "tensorwire": lambda e: tw.encode_bytes(e.objects),
        "tritonclient": lambda e: triton_pack(e.objects),
        "naive": lambda e: struct_elements(e.objects),
    },
    "from str": {
        "tensorwire": lambda e: tw.encode_bytes(e.texts),
        "tritonclient": lambda e: triton_pack(e.texts),
        "naive": lambda e: struct_elements(
            np.array([t.encode() for t in e.texts.tolist()], object)
        ),
    },
    "from StringDType": {
        "tensorwire": lambda e: tw.encode_bytes(e.strings),
        "tritonclient": lambda e: triton_pack(e.strings.astype(object)),
        "naive": lambda e: tw.encode_bytes(e.strings.tolist()),
    },
    "from S": {
        "tensorwire": lambda e: tw.encode_bytes(e.fixed),
        "tritonclient": lambda e: triton_pack(e.fixed),
        "naive": lambda e: tw.encode_bytes(e.fixed.tolist()),
    },
    "from Arrow": {
        "tensorwire": lambda e: tw.encode_bytes(e.arrow),
        "tritonclient": lambda e: triton_pack(np.array(e.arrow.to_pylist(), object)),
        "naive": lambda e: tw.encode_bytes(e.arrow.to_pylist()),
    },
}
