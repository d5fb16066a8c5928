"""Decode responses to arrays and encode arrays to requests, with every contender."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from . import arrays as data
from .arrays import Array, Arrays, bools, floats, read_elements, texts
from .contenders import CODECS
from .measuring import copies, row

large = pytest.mark.large
SIZES = [
    *[pytest.param(size, id=size) for size in ("128 B", "50 x 128 B", "4 KB", "64 KB", "1 MB")],
    *[pytest.param(size, id=size, marks=large) for size in ("16 MB", "64 MB", "16 MB BOOL")],
]
UNITS = {"B": 1, "KB": 1000, "MB": 1_000_000}
every_codec = pytest.mark.parametrize("contender", CODECS)
every_size = pytest.mark.parametrize("size", SIZES)


def arrays_of(size: str) -> Arrays:
    count, _, one = size.rpartition(" x ")
    number, unit, *is_bool = one.split()
    nbytes = int(number) * UNITS[unit]
    make, n = (bools, nbytes) if is_bool else (floats, nbytes // 4)
    return {f"x{i}": make(n) for i in range(int(count or 1))}


def as_arrays(sent: Array | Arrays) -> Arrays:
    return sent if isinstance(sent, dict) else {"x": sent}


@contextmanager
def decoding(contender: str, sent: Array | Arrays) -> Iterator[Callable[[], list[Array]]]:
    codec, arrays = CODECS[contender], as_arrays(sent)
    codec.prepare(arrays)
    body, header_length = codec.body_of(arrays)
    with codec.context():
        yield partial(codec.decode, body, header_length, list(arrays))


@contextmanager
def encoding(contender: str, sent: Array | Arrays) -> Iterator[Callable[[], Any]]:
    codec, arrays = CODECS[contender], as_arrays(sent)
    prepared = codec.prepare(arrays)
    with codec.context():
        yield partial(codec.encode, prepared)


OPERATIONS = {"decode": decoding, "encode": encoding}


def check(found: list[Array], arrays: Arrays) -> None:
    for array, sent in zip(found, arrays.values(), strict=True):
        data.check(array, sent)


def measure_decoding(
    benchmark: BenchmarkFixture, group: str, contender: str, arrays: Arrays
) -> None:
    with row(benchmark, group, contender), decoding(contender, arrays) as decode:
        check(decode(), arrays)
        benchmark(decode)


def measure_encoding(
    benchmark: BenchmarkFixture, group: str, contender: str, arrays: Arrays
) -> None:
    with row(benchmark, group, contender), encoding(contender, arrays) as encode:
        check(CODECS[contender].read_back(encode(), list(arrays)), arrays)
        benchmark(encode)


@every_codec
@every_size
def test_decode(benchmark: BenchmarkFixture, size: str, contender: str) -> None:
    if size == "64 MB":
        n = copies(contender, "bench_codec", "decode", CODECS[contender].copies[0])
        benchmark.extra_info["copied"] = n
    measure_decoding(benchmark, f"decode: {size}", contender, arrays_of(size))


@every_codec
@every_size
def test_encode(benchmark: BenchmarkFixture, size: str, contender: str) -> None:
    if size == "64 MB":
        n = copies(contender, "bench_codec", "encode", CODECS[contender].copies[1])
        benchmark.extra_info["copied"] = n
    measure_encoding(benchmark, f"encode: {size}", contender, arrays_of(size))


@large
@every_codec
def test_decode_and_read(benchmark: BenchmarkFixture, contender: str) -> None:
    """A view postpones the cost of reading its memory, which this includes."""
    arrays = arrays_of("64 MB")
    with row(benchmark, "decode: 64 MB, read", contender), decoding(contender, arrays) as decode:

        def run() -> list[Array]:
            found = decode()
            read_elements(found[0])
            return found

        check(run(), arrays)
        benchmark(run)


# --- BYTES: to arrays of bytes objects and from them ---

BYTES: dict[str, Callable[[], Array]] = {
    "300k x 0-40 B": partial(texts, 300_000, 0, 40),
    "100k x 100-300 B": partial(texts, 100_000, 100, 300),
}
every_workload = pytest.mark.parametrize("workload", BYTES)


@every_codec
@every_workload
def test_decode_bytes(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    arrays = {"x": BYTES[workload]()}
    measure_decoding(benchmark, f"BYTES: decode {workload}", contender, arrays)


@every_codec
@every_workload
def test_encode_bytes(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    arrays = {"x": BYTES[workload]()}
    measure_encoding(benchmark, f"BYTES: encode {workload}", contender, arrays)


# What tensorwire makes of BYTES without a bytes object for each element, and encodes them from.
FORMS: dict[str, Callable[[tw.BytesArray], Any]] = {
    "tensorwire, BytesArray": lambda elements: elements,
    "tensorwire, str": lambda elements: elements.as_strings(),
    "tensorwire, StringDType": lambda elements: elements.as_numpy(np.dtypes.StringDType()),
    "tensorwire, Arrow": lambda elements: pytest.importorskip("pyarrow").array(elements),
}
every_form = pytest.mark.parametrize("contender", FORMS)


@every_form
@every_workload
def test_decode_to_other_forms(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    sent, convert = BYTES[workload](), FORMS[contender]
    frame = tw.encode_response(tw.InferResponse({"x": sent}))
    body, header_length = bytes(frame), frame.header_length

    def decode() -> Any:
        return convert(tw.decode_response(body, header_length)["x"].elements)

    with row(benchmark, f"BYTES: decode {workload}", contender):
        data.check(data.objects(list(as_list(decode()))), sent)
        benchmark(decode)


@every_form
@every_workload
def test_encode_other_forms(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    sent = BYTES[workload]()
    form = FORMS[contender](tw.decode_bytes(tw.encode_bytes(sent)))

    def encode() -> tw.Frame:
        return tw.encode_request(tw.InferRequest({"x": form}))

    with row(benchmark, f"BYTES: encode {workload}", contender):
        frame = encode()
        received = tw.decode_request(bytes(frame), frame.header_length)
        data.check(received["x"].as_numpy(), sent)
        benchmark(encode)


def as_list(form: Any) -> list[Any]:
    found: list[Any] = form.to_pylist() if hasattr(form, "to_pylist") else form.tolist()
    return found
