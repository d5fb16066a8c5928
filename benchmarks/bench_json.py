"""JSON: tensors of every datatype and small headers, read and written, and the memory of reading.

The check of what was read or written is not part of what is measured.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .contender import DTYPES, joined
from .json_memory import TEXTS, job
from .json_ways import (
    COUNTS,
    JSON_DATATYPES,
    LIBRARIES,
    OURS,
    TRITONCLIENT,
    body_of,
    elements,
    header_message,
    json_response,
    reader,
    request_reader,
    request_writer,
    response_reader,
    writer,
)
from .measure import check, is_same, measure, measuring

TENSORS = {f"{d} x {count}": (d, n) for count, n in COUNTS.items() for d in JSON_DATATYPES}
HEADERS = {
    f"{n} tensor{'s' * (n > 1)}{', all members' * is_full}": (n, is_full)
    for n in (1, 3, 50)
    for is_full in (False, True)
}
QUICK = {f"{datatype} x {n}" for datatype in ("FP32", "FP64", "INT64") for n in ("1K", "1M")}
QUICK |= {"BYTES x 100K", "BOOL x 100K", *HEADERS, *TEXTS}

with_libraries = pytest.mark.parametrize("contender", [OURS, *LIBRARIES])
with_tritonclient = pytest.mark.parametrize("contender", [OURS, TRITONCLIENT, *LIBRARIES])


@with_libraries
@pytest.mark.parametrize("workload", TENSORS)
def test_read(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    datatype, n = TENSORS[workload]
    with measuring(benchmark, "read a JSON tensor", workload, contender, n_elements=n):
        read, expected = reader(contender, DTYPES[datatype]), elements(datatype, n)
        text = json_response(expected, datatype)

        def right(found: Any) -> None:
            assert_same(found, expected)

        measure(benchmark, right, read, text)


@with_libraries
@pytest.mark.parametrize("workload", TENSORS)
def test_write(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    datatype, n = TENSORS[workload]
    with measuring(benchmark, "write a JSON tensor", workload, contender, n_elements=n):
        array = elements(datatype, n)

        def right(found: Any) -> None:
            assert_same(tw.decode_response(bytes(found))["x"].as_numpy(), array)

        measure(benchmark, right, writer(contender, array, datatype))


@with_tritonclient
@pytest.mark.parametrize("workload", HEADERS)
def test_read_response(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    n_tensors, is_full = HEADERS[workload]
    with measuring(benchmark, "read a small response", workload, contender):
        read = response_reader(contender)
        message, envelope = header_message(n_tensors, is_full=is_full)
        body, header_length = body_of(message, envelope, is_request=False)

        def right(found: Any) -> None:
            check(found, message)

        measure(benchmark, right, read, body, header_length, list(message.arrays))


@with_tritonclient
@pytest.mark.parametrize("workload", HEADERS)
def test_read_request(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    n_tensors, is_full = HEADERS[workload]
    with measuring(benchmark, "read a small request", workload, contender):
        read = request_reader(contender)
        message, envelope = header_message(n_tensors, is_full=is_full)
        body, header_length = body_of(message, envelope, is_request=True)

        def right(found: Any) -> None:
            check(found[0], message)
            assert found[1] == envelope

        measure(benchmark, right, read, body, header_length, list(message.arrays))


@with_tritonclient
@pytest.mark.parametrize("workload", HEADERS)
def test_write_request(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    n_tensors, is_full = HEADERS[workload]
    with measuring(benchmark, "write a small request", workload, contender):
        message, envelope = header_message(n_tensors, is_full=is_full)

        def right(found: Any) -> None:
            body, header_length = joined(found) if isinstance(found, tw.Frame) else found
            request = tw.decode_request(body, header_length)
            check([request[name].as_numpy() for name in message.arrays], message)
            parameters = dict(request.parameters)
            parameters.pop("binary_data_output", None)  # tritonclient's, without outputs
            assert (request.id or None, parameters) == (envelope.id, envelope.parameters)
            assert [output.name for output in request.outputs or ()] == envelope.outputs

        measure(benchmark, right, request_writer(contender, message, envelope))


@with_libraries
@pytest.mark.parametrize("workload", TEXTS)
def test_memory(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    """The peak of what Python's allocators give while the text is read, the result included."""
    with measuring(benchmark, "memory a byte of JSON", workload, contender):
        text = TEXTS[workload]()
        run = job(contender, workload, text)
        run()  # what is imported or cached by the first call is not counted
        tracemalloc.start()
        try:
            kept = benchmark.pedantic(run)  # type: ignore[no-untyped-call]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        del kept
        benchmark.extra_info["per_byte"] = peak / len(text)


def assert_same(found: Any, expected: Any) -> None:
    """BYTES are ``str`` or ``bytes``."""
    if expected.dtype.kind == "O":
        texts = [e.decode() if isinstance(e, bytes) else e for e in found.tolist()]
        assert texts == expected.tolist()
    else:
        assert is_same(found, expected)
