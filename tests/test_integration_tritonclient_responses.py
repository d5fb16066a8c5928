"""tritonclient's responses with and without the integration; which arrays are views or copies."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tensorwire as tw
from interop.samples import DTYPES, Array, binary_sample, bits, bytes_array
from support import tritonclient_comparison
from support.memory import peak_nbytes
from support.tritonclient_comparison import (
    FEW,
    FLOATS,
    LARGE,
    body_of,
    both,
    large,
    module,
    parsed,
    response,
)

pytestmark = tritonclient_comparison.MARKS

http, either, installed = (
    tritonclient_comparison.http,
    tritonclient_comparison.either,
    tritonclient_comparison.installed,
)  # fixtures


def output(
    http: ModuleType, body: Any, length: Any, name: str, encoding: str | None = None
) -> Array | None:
    """Return an output, read as programs read it."""
    array: Array | None = parsed(http, body, length, encoding).as_numpy(name)
    return array


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("datatype", DTYPES)
def test_response(http: ModuleType, datatype: str, is_large: bool) -> None:
    array = large(datatype) if is_large else binary_sample(datatype)
    body, length = response(array, array[::-1], align=1)
    for received in (body, bytearray(body)):
        for name in ("OUTPUT0", "OUTPUT1", "none such"):
            both(output, http, received, length, name)
    found = both(lambda: parsed(http, body, str(length)).as_numpy("OUTPUT0"))
    assert found[:3:2] == (np.ndarray, array.shape)
    assert found[1] == array.dtype or datatype == "BF16"  # which older clients convert to float32


@pytest.mark.parametrize("cut", [1, 3, 4, LARGE, LARGE + 50, 2 * LARGE + 20, 2 * LARGE + 150])
@pytest.mark.parametrize("is_late", [False, True])
def test_malformed_response(http: ModuleType, cut: int, is_late: bool) -> None:
    body, length = response(FLOATS, bytes_array([b"abc"] * (LARGE // 7)))
    damaged = body[cut:] if is_late else body[:-cut]
    for name in ("OUTPUT0", "OUTPUT1"):
        both(output, http, damaged, length, name)


@pytest.mark.parametrize("length", [None, 0, -1, -5, 5, 10**9, "64", "abc", "", b"64", 64.0])
@pytest.mark.parametrize("array", [FLOATS, FLOATS[:4]], ids=["large", "small"])
def test_wrong_header_length(http: ModuleType, array: Array, length: Any) -> None:
    body, _ = response(array)
    both(lambda: parsed(http, body, length).as_numpy("OUTPUT0"))


@pytest.mark.parametrize("kind", [bytearray, memoryview, np.array, str, lambda body: None])
def test_body_of_other_buffer_types(http: ModuleType, kind: Callable[[Any], Any]) -> None:
    body, length = response(FLOATS)
    both(lambda: parsed(http, kind(body), length).as_numpy("OUTPUT0"))


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", bytes), ("gzip", bytes)],
)
def test_compressed_response(
    http: ModuleType, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    for array in (FLOATS, FLOATS[:4]):
        body, length = response(array, array)
        both(output, http, pack(body), length, "OUTPUT1", encoding)


def test_subclass_with_its_own_constructor(http: ModuleType) -> None:
    """It reads `bytes` from the response."""

    class Result(http.InferResult):  # type: ignore[misc, name-defined]
        def __init__(self, response: Any, verbose: bool) -> None:
            length = int(response.get("Inference-Header-Content-Length"))
            self.parts = response.read(length=length), response.read()

    body, length = response(FLOATS)
    both(lambda: Result.from_response_body(body, False, length).parts)


def test_json_response(http: ModuleType) -> None:
    outputs = [tw.Tensor("a", FLOATS, binary=False), tw.Tensor("b", ["x", "\xe9"], binary=False)]
    body = bytes(tw.encode_response(tw.InferResponse(outputs)))
    for name in "ab":
        both(output, http, body, None, name)
    both(lambda: parsed(http, body, None).get_response())
    both(lambda: parsed(http, b'{"outputs": [{"name": "\xff"}]}', None))


def test_verbose_output(http: ModuleType, either: bool, capsys: pytest.CaptureFixture[str]) -> None:
    body, length = response(FLOATS)
    assert length is not None
    http.InferResult.from_response_body(body, True, length)
    assert capsys.readouterr().out == f"{body[:length]!r}\n"


def test_offsets_of_outputs(http: ModuleType) -> None:
    body, length = response(FLOATS, FLOATS[:0], FLOATS)
    both(lambda: parsed(http, body, length)._output_name_to_buffer_map)


def test_arrays_of_a_writable_body_are_copies(http: ModuleType, either: bool) -> None:
    """As without the integration, the caller may reuse the buffer and owns each array."""
    body, length = response(FLOATS, FLOATS)
    received = bytearray(body)
    result = parsed(http, received, length)
    received[:] = bytes(len(received))
    first = result.as_numpy("OUTPUT0")
    first[:] = 0
    assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)


class Reply:
    """The response object of a transport, which the client reads once from the start."""

    def __init__(self, body: bytes, length: int | None, kind: Callable[[bytes], Any]) -> None:
        self.rest, self.kind = body, kind
        self.headers = {"Inference-Header-Content-Length": length and str(length)}

    def get(self, name: str) -> Any:
        return self.headers.get(name)

    def read(self, length: int | None = None) -> Any:
        n = len(self.rest) if length is None else length
        taken, self.rest = self.rest[:n], self.rest[n:]
        return self.kind(taken)


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("array", [FLOATS, FLOATS[:4]], ids=["large", "small"])
def test_response_object_of_a_transport(
    http: ModuleType, array: Array, kind: Callable[[bytes], Any]
) -> None:
    body, length = response(array, array + 1)
    for name in ("OUTPUT0", "OUTPUT1"):
        found = both(
            lambda name: http.InferResult(Reply(body, length, kind), False).as_numpy(name), name
        )
        assert found[3] == (kind is bytearray)


@given(
    array=npst.arrays(
        st.sampled_from([dtype for dtype in DTYPES.values() if dtype.kind in "?uif"]),
        npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=40),
    ),
    is_transposed=st.booleans(),
)
@FEW
def test_round_trip_of_random_arrays(array: Array, is_transposed: bool) -> None:
    http = module("http", "http")
    array = np.tile(array, 40).T if is_transposed else np.tile(array, 40)
    datatype = tw.Tensor("x", array).datatype
    both(lambda: body_of(http, array, datatype))
    body, length = response(array)
    both(lambda: parsed(http, body, length).as_numpy("OUTPUT0"))


def test_response_is_not_copied(http: ModuleType, either: bool) -> None:
    array = np.ones(1 << 22, np.float32)
    body, length = response(array, array)
    read = partial(output, http, body, length, "OUTPUT1")
    read()  # fill caches
    assert peak_nbytes(read) / array.nbytes == pytest.approx(0 if either else 3, abs=0.01)
