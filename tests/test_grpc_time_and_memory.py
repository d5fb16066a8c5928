"""gRPC messages that are expensive to decode: linear time, bounded memory (WIRE.md 12).

Memory of arrays counts, but that of raw contents does not: they are views.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import tensorwire as tw
import tensorwire.grpc
from support import grpc_cases as cases
from support.memory import cpu_seconds, peak_nbytes
from support.protobuf_wire import delimited, group, integer, nested_groups

pytestmark = [
    pytest.mark.no_sanitizers(reason="it measures time and memory"),
    pytest.mark.thread_unsafe(reason="it measures the process"),
]

GENEROUS = tw.Limits(max_tensors=1 << 40, max_name_nbytes=1 << 40)
SIZE = 400_000
SLACK_NBYTES = 64 << 10
VIEWS, ARRAYS, TEXT, OBJECTS = 0, 8, 4, 64


def typed(datatype: str, field: bytes, n_elements: int) -> Callable[[int], bytes]:
    """Return a function that makes typed contents of one field, repeated."""

    def make(nbytes: int) -> bytes:
        n = nbytes // len(field)
        return cases.typed("x", datatype, (n * n_elements,), field * n)

    return make


def empty_tensors(nbytes: int) -> bytes:
    return b"".join(cases.tensor(f"{i:07d}", "INT8", (0,)) for i in range(nbytes // 21))


def requested_outputs(nbytes: int) -> bytes:
    outputs = b"".join(delimited(6, delimited(1, f"{i:07d}")) for i in range(nbytes // 11))
    return cases.tensor("x", "INT8", (0,)) + outputs


# name: a function that makes a message of n bytes, n, and the multiple
HOSTILE: dict[str, tuple[Callable[[int], bytes], int, int]] = {
    "unknown fields": (lambda n: integer(9, 0) * (n // 2), SIZE, VIEWS),
    "unknown fields of an input": (
        lambda n: cases.tensor("x", "INT8", (0,), integer(9, 0) * (n // 2)), SIZE, VIEWS,
    ),
    "groups": (lambda n: nested_groups(99) * (n // 198), SIZE, VIEWS),
    "starts of groups": (lambda n: b"\x4b" * n, SIZE, VIEWS),
    "small groups": (lambda n: group(9) * (n // 2), SIZE, VIEWS),
    "empty contents": (
        lambda n: cases.tensor("x", "INT8", (0,), delimited(5) * (n // 2)), SIZE, VIEWS,
    ),
    "a shape of 400,000 dimensions": (
        lambda n: cases.tensor("x", "INT8", (), delimited(3, b"\1" * n)), SIZE, VIEWS,
    ),
    "names of one tensor": (
        lambda n: cases.tensor("x", "INT8", (0,), delimited(1, "y") * (n // 3)), SIZE, VIEWS,
    ),
    "a long name": (lambda n: cases.tensor("x" * n, "INT8", (0,)), SIZE, TEXT),
    "a long name of wide letters": (
        lambda n: cases.tensor("x" * n + "\U0001f600", "INT8", (0,)), SIZE, 2 * TEXT,
    ),
    "a long datatype": (lambda n: cases.tensor("x", "A" * n), SIZE, TEXT),
    "parameters": (lambda n: cases.KEY * (n // len(cases.KEY)), SIZE, OBJECTS),
    "empty entries of parameters": (lambda n: delimited(4) * (n // 2), SIZE, OBJECTS),
    "raw contents": (lambda n: delimited(7) * (n // 2), SIZE, 3 * ARRAYS),
    "empty tensors": (empty_tensors, SIZE, OBJECTS),
    "requested outputs": (requested_outputs, SIZE, OBJECTS),
    "integers": (typed("INT64", delimited(3, b"\1" * 100), 100), SIZE, ARRAYS),
    "integers that are not packed": (typed("INT64", integer(3, 1), 1), SIZE, ARRAYS),
    "empty texts": (typed("BYTES", delimited(8), 1), SIZE, ARRAYS),
    "fewer elements than the shape": (
        lambda n: cases.typed("x", "INT64", (n + 1,), delimited(3, b"\1" * n)), SIZE, VIEWS,
    ),
    "the last element out of range": (
        lambda n: cases.typed("x", "INT8", (n + 1,), delimited(2, b"\1" * n + b"\x80\1")), SIZE, 1,
    ),
}  # fmt: skip


def decode(message: bytes) -> str:
    """Return the text of the error, or "". The views of a message are scanned, too."""
    try:
        for tensor in tw.grpc.decode_request(message, limits=GENEROUS).inputs:
            if isinstance(tensor.data, tw.BytesArray) and tensor.data.size:
                tensor.data.element(0)
    except tw.DecodeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("make", "nbytes", "multiple"), HOSTILE.values(), ids=HOSTILE)
def test_time_is_linear_and_memory_bounded(
    make: Callable[[int], bytes], nbytes: int, multiple: int
) -> None:
    quarter, whole = make(nbytes // 4), make(nbytes)
    decode(quarter)
    assert peak_nbytes(lambda: decode(whole)) <= multiple * len(whole) + SLACK_NBYTES
    assert len(decode(whole)) < 700
    seconds = [cpu_seconds(partial(decode, body), 3) for body in (quarter, whole)]
    assert seconds[1] < 4 * 2.5 * seconds[0] + 2e-3
    assert seconds[1] < 100e-9 * len(whole)
