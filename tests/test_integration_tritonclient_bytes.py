"""tritonclient's BYTES functions with and without the integration: serialize, deserialize, shared
memory.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tensorwire as tw
from interop.samples import NOT_TEXT, TEXTS, Array, bits, bytes_array
from support import tritonclient_comparison as comparison
from support.tritonclient_comparison import (
    BYTES_ARRAYS,
    FEW,
    FLOATS,
    Octets,
    both,
    module,
    object_array,
    outcome,
)
from tensorwire.integrations.tritonclient.convert import elements_at

pytestmark = comparison.MARKS
either = comparison.either
utils, shm = module("utils", "http"), module("utils.shared_memory", "http")


# --- serialize -------------------------------------------------------------------------------


class Text(str):
    def __str__(self) -> str:
        return "a text"


class Unprintable:
    def __str__(self) -> str:
        raise LookupError("has no text")


ODD: list[Any] = [
    *(1, 2.5, None, True, 10**30, float("nan"), (1, "a"), {"a": 1}, bytearray(b"ab"), print),
    *(Text("b"), Octets(b"c"), np.str_("n"), np.bytes_(b"m"), np.float32(0.1), np.int8(-1)),
    *("\ud800", "a\udfffb", Unprintable(), np.zeros(0), np.array([1, 2])),
]


@pytest.mark.parametrize("name", BYTES_ARRAYS)
def test_serialize(name: str) -> None:
    both(lambda: utils.serialize_byte_tensor(BYTES_ARRAYS[name]))


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("before", [[], [b"a", "b"]], ids=["alone", "after others"])
def test_serialize_other_elements(before: list[Any], value: Any) -> None:
    array = object_array([*before, value, "c"])
    both(lambda: utils.serialize_byte_tensor(array))


@pytest.mark.parametrize("value", [b"ab", [b"a"], None, np.bytes_(b"a"), np.float32(1), 5])
def test_serialize_rejects_other_objects(value: Any) -> None:
    both(lambda: utils.serialize_byte_tensor(value))


element = st.one_of(
    st.binary(max_size=9),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=5),
    st.sampled_from(ODD[:12]),
)


@given(values=st.lists(element, max_size=8), step=st.sampled_from([1, -1, 2]))
@FEW
def test_serialize_random_elements(values: list[Any], step: int) -> None:
    array = object_array(values)[::step]
    both(lambda: utils.serialize_byte_tensor(array))


@given(
    array=npst.arrays(
        st.one_of(npst.scalar_dtypes(), npst.byte_string_dtypes(max_len=5)),
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    )
)
@FEW
def test_serialize_random_arrays(array: Array) -> None:
    if array.dtype.kind != "U":
        both(lambda: utils.serialize_byte_tensor(array))
        both(lambda: utils.serialize_byte_tensor(array.T))


# --- deserialize -----------------------------------------------------------------------------

WIRE = tw.encode_bytes([*TEXTS, NOT_TEXT, b"x" * 300])
BUFFERS: dict[str, Any] = {
    "bytes": WIRE,
    "bytearray": bytearray(WIRE),
    "memoryview": memoryview(WIRE),
    "slice": memoryview(b"?" + WIRE + b"?")[1:-1],
    "array": np.frombuffer(WIRE, np.uint8),
    "empty": b"",
    "empty memoryview": memoryview(b""),
    "empty array": np.empty(0, np.uint8),
    "int8": np.frombuffer(WIRE, np.int8),
    "chars": memoryview(WIRE).cast("c"),
    "words": np.frombuffer(WIRE[:16], np.uint32),
    "0-d": np.array(5, np.uint8),
    "2-d": np.frombuffer(WIRE[:16], np.uint8).reshape(4, 4),
    "2-d, whole elements": np.frombuffer(tw.encode_bytes([b"abcd"] * 2), np.uint8).reshape(4, 4),
    "strided": memoryview(WIRE)[::2],
    "strided array": np.repeat(np.frombuffer(WIRE, np.uint8), 2)[::2],
    "str": "abcd",
    "list": [1, 0, 0, 0, 65],
    "None": None,
    "object array": np.array([b"\1\0\0\0a"], object),
    "S array": np.array([b"\1\0\0\0a"]),
    "subclass": Octets(WIRE),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_deserialize(name: str) -> None:
    both(lambda: utils.deserialize_bytes_tensor(BUFFERS[name]))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_deserialize_truncated(kind: type) -> None:
    cuts = [kind(WIRE[:n]) for n in range(len(WIRE))]
    both(lambda: [outcome(partial(utils.deserialize_bytes_tensor, cut)) for cut in cuts])


@given(wire=st.binary(max_size=20))
@FEW
def test_deserialize_random_bytes(wire: bytes) -> None:
    both(lambda: utils.deserialize_bytes_tensor(wire))


@given(values=st.lists(st.binary(max_size=9), min_size=1))
@FEW
def test_round_trip(values: list[bytes]) -> None:
    found = both(
        lambda: utils.deserialize_bytes_tensor(
            utils.serialize_byte_tensor(bytes_array(values)).item()
        )
    )
    assert found[5] == [(bytes, value) for value in values]


# --- shared memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "shape", "offset"),
    [
        *((datatype, [2, 2], 3) for datatype in (np.object_, np.dtype(object), np.bytes_)),
        *((np.object_, shape, 3) for shape in ((4,), [1], [7], [2, np.int64(2)], np.array([4]))),
        *((np.object_, shape, 3) for shape in ([8], [1 << 40], [1 << 62, 4], [])),
        *((np.object_, shape, 3) for shape in ([0], [2, 0], [-1], [-2, -2], [4.0], 4, "4")),
        *((np.object_, [1], offset) for offset in (0, 7, 40, 1 << 40, -1, -8, -100, 3.0, None)),
        (np.uint8, [4], 3),
        (np.float32, [2], 4),
    ],
)
def test_read_shared_memory(datatype: Any, shape: Any, offset: Any) -> None:
    """The region is larger than the elements, which begin at its byte 3."""
    wire = tw.encode_bytes([b"a", b"", b"b\0", b"\xff", b"", b"", b""])
    region = bytearray(b"???" + wire + b"\xff\xff\xff\xff")
    handle = SimpleNamespace(_mpsm_handle=SimpleNamespace(buf=memoryview(region)))
    both(lambda: shm.get_contents_as_numpy(handle, datatype, shape, offset))


def test_other_bytes_after_the_elements_in_shared_memory() -> None:
    """The function of tritonclient, which takes longer, is not needed."""
    region = memoryview(bytearray(b"???" + tw.encode_bytes([b"a", b"", b"c"]) + b"\xff" * 4))
    assert elements_at(region, [2, 1], 3).tolist() == [[b"a"], [b""]]


def test_write_and_read_shared_memory(either: bool) -> None:
    handle = shm.create_shared_memory_region("tensorwire", "tensorwire_test", 4096)
    try:
        sent = object_array([*TEXTS, NOT_TEXT], (2, 3))
        shm.set_shared_memory_region(handle, [utils.serialize_byte_tensor(sent), FLOATS[:4]])
        found = shm.get_contents_as_numpy(handle, np.object_, (2, 3))
        assert bits(found) == bits(sent)
        assert found.flags.writeable
    finally:
        shm.destroy_shared_memory_region(handle)
