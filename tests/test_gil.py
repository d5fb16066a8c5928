"""Other threads run during long operations, and wait for a few milliseconds at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc
from support import grpc_cases as cases
from support import reference
from support.protobuf_wire import delimited, integer
from support.threads import repeating
from tensorwire._codec.grpc.reader import read_names
from tensorwire._codec.grpc.writer import append_fields

pytestmark = [
    pytest.mark.slow(reason="each operation takes about half a second"),
    pytest.mark.no_sanitizers(reason="it measures time"),
    pytest.mark.thread_unsafe(reason="it starts threads, and measures the GIL"),
    pytest.mark.skipif(
        not hasattr(time, "pthread_getcpuclockid"), reason="there are no clocks of threads"
    ),
]

# A thread that waits for the GIL asks for it after 5 ms, the switch interval.
MAX_WAIT_SECONDS = 0.05
GENEROUS = tw.Limits(max_header_nbytes=1 << 40, max_name_nbytes=1 << 40)

Work = Callable[[], Any]


# --- messages of many tensors, each of which is read or written in less than 1 ms -----------------


def decoding(datatype: str, n_elements: int, data: bytes, n_tensors: int) -> Work:
    """Decode tensors that are all in the same memory."""
    entries = ",".join(
        f'{{"name":"x{i}","datatype":"{datatype}","shape":[{n_elements}],'
        f'"parameters":{{"binary_data_size":{len(data)}}}}}'
        for i in range(n_tensors)
    )
    header = f'{{"inputs":[{entries}]}}'.encode()
    return lambda: tw.decode_request(header, data=[data] * n_tensors)


def decoding_json(header: str) -> Work:
    body = header.encode()
    return lambda: tw.decode_request(body, limits=GENEROUS)


def json_inputs(datatype: str, element: str, n_elements: int, n_tensors: int) -> str:
    data = ",".join([element] * n_elements)
    entries = ",".join(
        f'{{"name":"x{i}","datatype":"{datatype}","shape":[{n_elements}],"data":[{data}]}}'
        for i in range(n_tensors)
    )
    return f'{{"inputs":[{entries}]}}'


def response_of(array: Any, n_tensors: int, *, binary: bool = True) -> tw.InferResponse:
    tensor = tw.Tensor("y", array, binary=binary)
    return tw.InferResponse([tensor.replace(name=f"y{i}") for i in range(n_tensors)])


def encoding_json(array: Any, n_tensors: int) -> Work:
    response = response_of(array, n_tensors, binary=False)
    return lambda: tw.encode_response(response, limits=GENEROUS)


def decoding_typed(datatype: str, n_elements: int, contents: bytes) -> Work:
    """Decode 40 tensors with typed contents."""
    message = b"".join(cases.typed(f"x{i}", datatype, (n_elements,), contents) for i in range(40))
    return lambda: tw.grpc.decode_request(message)


HALF_A_MILLION, A_MB, N = 499_999, np.zeros(1_000_000, np.uint8), 400
FRAME = tw.Frame((A_MB.data,) * N, None)
RESPONSE = response_of(A_MB, N)

EMPTY, PACKED = bytes(4 * HALF_A_MILLION), delimited(2, b"\1" * 1_000_000)

MANY_TENSORS: dict[str, Callable[[], Work]] = {
    "decode empty elements": lambda: decoding("BYTES", HALF_A_MILLION, EMPTY, 80),
    "decode BOOL": lambda: decoding("BOOL", 8_000_000, bytes(8_000_000), 800),
    "decode JSON numbers": lambda: decoding_json(json_inputs("INT32", "7", 49_000, 600)),
    "decode JSON strings": lambda: decoding_json(json_inputs("BYTES", '"ä"', 9_000, 600)),
    "encode JSON numbers": lambda: encoding_json(np.full(49_000, 123456, np.int32), 400),
    "encode JSON strings": lambda: encoding_json(["w" * 50] * 18_000, 400),
    "decode packed integers": lambda: decoding_typed("INT32", 1_000_000, PACKED),
    "decode integers that are not packed": lambda: decoding_typed(
        "INT32", HALF_A_MILLION, integer(2, 1) * HALF_A_MILLION
    ),
    "decode typed texts": lambda: decoding_typed(
        "BYTES", HALF_A_MILLION, delimited(8) * HALF_A_MILLION
    ),
    "encode a gRPC message": lambda: partial(tw.grpc.encode_response, RESPONSE),
    "join a frame": lambda: partial(bytes, tw.encode_response(RESPONSE)),
    "join a frame of buffers": lambda: partial(bytes, FRAME),
    "append raw contents": lambda: partial(append_fields, b"", 7, [A_MB] * N),
}

# --- headers --------------------------------------------------------------------------------------

FIELDS = integer(15, 1) * (30 << 20)
TENSOR = '{"name":"x","datatype":"INT8","shape":[1],"data":[1]'
MANY_MEMBERS = ",".join(f'"{i}":0' for i in range(3_000_000))


def decoding_grpc(message: bytes) -> Work:
    return lambda: tw.grpc.decode_request(message)


def reading_names(message: bytes) -> Work:
    return lambda: read_names(message, tw.Limits())


def rejected(work: Work) -> Work:
    def decode() -> None:
        with pytest.raises(tw.DecodeError):
            work()

    return decode


HEADERS: dict[str, Callable[[], Work]] = {
    "unknown fields": lambda: decoding_grpc(cases.typed("x", "INT8", (1,), integer(2, 1)) + FIELDS),
    "read names": lambda: reading_names(FIELDS),
    "read many names": lambda: reading_names(delimited(1, "ééé") * (7 << 20)),
    "a long name": lambda: reading_names(delimited(1, "é" * (30 << 20))),
    "gRPC dimensions": lambda: rejected(
        decoding_grpc(cases.tensor("x", "INT8", (), integer(3, 1) * (30 << 20)))
    ),
    "JSON dimensions": lambda: rejected(
        decoding_json(f'{{"inputs":[{{"shape":[{"1," * (30 << 20)}1]}}]}}')
    ),
    "a string with escapes": lambda: decoding_json(
        f'{{"id":"\\n{"é" * (30 << 20)}","inputs":[{TENSOR}}}]}}'
    ),
    "names with escapes": lambda: decoding_json(
        json_inputs("INT8", "1", 1, 4000).replace('"x', '"' + r"\n" * 8000)
    ),
    "unknown members": lambda: decoding_json(f'{{"inputs":[{TENSOR},{MANY_MEMBERS}}}]}}'),
    "members before the tensors": lambda: rejected(decoding_json(f"{{{MANY_MEMBERS}}}")),
    "one large unknown member": lambda: rejected(decoding_json(f'{{"z":{{{MANY_MEMBERS}}}}}')),
    "a value of the wrong type": lambda: rejected(
        decoding_json(f'{{"id":[{"[1]," * (10 << 20)}1]}}')
    ),
}

# --- parameters -----------------------------------------------------------------------------------

# Few lists, because a garbage collection visits all their items; and none of more than 32 MB, which
# malloc moves as it grows.
LISTS = {"k": [[1] * 1_000_000] * 40}
PARAMETERS: dict[str, Callable[[], Work]] = {
    "check parameters": lambda: partial(tw.RequestedOutput, "x", parameters=LISTS),
    "copy parameters": lambda: partial(
        getattr, tw.RequestedOutput("x", parameters=LISTS), "parameters"
    ),
}

# --- BYTES and lists ------------------------------------------------------------------------------

A_LONG_ELEMENT = [bytes(400_000_000)]


def words_of(elements: list[bytes]) -> tw.BytesArray:
    return tw.decode_bytes(tw.encode_bytes(elements))


def converting(name: str, *arguments: Any, n_elements: int = 4_000_000) -> Work:
    words = words_of([b"abcdefgh"] * n_elements)
    return lambda: getattr(words, name)(*arguments)


BYTES: dict[str, Callable[[], Work]] = {
    "encode text": lambda: partial(tw.encode_bytes, ["ä" * 20] * 6_000_000),
    "encode a long element": lambda: partial(tw.encode_bytes, A_LONG_ELEMENT),
    "encode a U array": lambda: partial(tw.encode_bytes, np.full(6_000_000, "abcdefgh")),
    "as_numpy": lambda: converting("as_numpy"),
    "as_numpy of a long element": lambda: words_of(A_LONG_ELEMENT).as_numpy,
    "as_numpy of S": lambda: converting("as_numpy", "S", n_elements=10_000_000),
    "as_strings": lambda: converting("as_strings"),
    "copy": lambda: words_of(A_LONG_ELEMENT).copy,
    "export to Arrow": lambda: converting("__arrow_c_array__", n_elements=10_000_000),
    "select": lambda: converting("__getitem__", np.arange(10_000_000)[::-1], n_elements=10_000_000),
    "list of numbers": lambda: partial(tw.Tensor, "x", [1.5] * 3_000_000, datatype="FP32"),
    "nested lists": lambda: partial(tw.Tensor, "x", [[1.5]] * 2_000_000, datatype="FP32"),
}


def longest_wait(work: Work) -> float:
    """Return the most CPU time that `work` takes while another thread waits for the GIL.

    It is CPU time, so that the load of the machine matters little.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    waits: list[float] = []

    def wait() -> None:
        before = time.clock_gettime(clock)
        time.sleep(0.0001)
        waits.append(time.clock_gettime(clock) - before)

    with repeating(wait):
        result = work()
    del result  # Python frees memory with the GIL held
    return max(waits)


CASES = MANY_TENSORS | HEADERS | PARAMETERS | BYTES


@pytest.mark.parametrize("prepare", CASES.values(), ids=CASES.keys())
def test_longest_wait_of_other_threads(prepare: Callable[[], Work]) -> None:
    work = prepare()
    waits: list[float] = []
    while not waits or (min(waits) > MAX_WAIT_SECONDS and len(waits) < 3):
        waits.append(longest_wait(work))
    assert min(waits) <= MAX_WAIT_SECONDS


# --- single operations ----------------------------------------------------------------------------


def ticks_during(work: Work, n_times: int) -> int:
    """Return how often another thread, which sleeps 0.5 ms each time, runs during `work`."""
    n_ticks = 0

    def tick() -> None:
        nonlocal n_ticks
        n_ticks += 1
        time.sleep(0.0005)

    with repeating(tick):
        time.sleep(0.01)
        before = n_ticks
        for _ in range(n_times):
            work()
        return n_ticks - before


def grow() -> None:
    """Grow three buffers to 32 MB by doubling, so that moving them takes most of the time."""
    for _ in range(3):
        body = tw.BodyBuffer(None)
        while len(body) < 32_000_000:  # larger ones need not be copied on Linux
            body.advance(len(body.remaining()))


SIXTY_MB, EMPTY_ELEMENTS = bytes(60_000_000), bytes(4 << 22)
FLAGS = tw.TensorSpec("x", "BOOL", [-1])
FAR_APART = reference.elements([bytes(400 + 7919 * i % 801) for i in range(100_000)])
# Operations of several ms, and a number of ticks that only calls without the GIL reach.
LONG: dict[str, tuple[Work, int]] = {
    "checking BOOL elements": (lambda: tw.decode_request(SIXTY_MB, 0, raw_input=FLAGS), 2),
    "scanning empty elements": (lambda: tw.decode_bytes(EMPTY_ELEMENTS, 1 << 22), 2),
    "scanning elements far apart": (lambda: tw.decode_bytes(FAR_APART, 100_000), 2),
    "writing a large chunk": (lambda: tw.BodyBuffer(None).write(SIXTY_MB), 2),
    "growing a body buffer": (grow, 5),
    "reading JSON data": (decoding_json(json_inputs("FP32", "0.5", 2_000_000, 1)), 5),
    "counting dimensions": (
        rejected(decoding_grpc(cases.tensor("x", "INT8", (), delimited(3, b"\1" * (30 << 20))))),
        5,
    ),
    "skipping white space": (decoding_json(f'{{"inputs":[{TENSOR}}}]{" " * (60 << 20)}}}'), 2),
}


@pytest.mark.parametrize(("work", "n_ticks"), LONG.values(), ids=LONG.keys())
def test_long_operations_let_other_threads_run(work: Work, n_ticks: int) -> None:
    assert any(ticks_during(work, 20) > 20 * n_ticks for _ in range(5))
