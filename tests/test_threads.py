"""Threads: a body that another thread modifies, and release of the GIL.

test_free_threading.py shares bodies and messages between threads; test_bytes_array.py has BYTES.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference
from support.threads import repeating

pytestmark = pytest.mark.thread_unsafe(reason="it starts threads, and measures the GIL")


X = np.arange(1000, dtype=np.float64)
FRAME = tw.encode_request(
    tw.InferRequest(
        [
            tw.Tensor("x", X),
            tw.Tensor("words", [b"w" * (i % 11) for i in range(1000)]),
            tw.Tensor("flags", X > 500),
            tw.Tensor("json", X[:10], binary=False),
        ],
        id="shared",
    )
)


def test_header_modified_during_decoding() -> None:
    """The header is copied before it is read; the tensors follow from the copy."""
    body = bytearray(bytes(FRAME))
    assert FRAME.header_length is not None
    rng = np.random.default_rng(1)
    original = bytes(body[: FRAME.header_length])
    view = np.frombuffer(body, np.uint8)

    def write() -> None:
        at = int(rng.integers(len(original)))
        view[at] = rng.integers(256)
        view[at] = original[at]

    n_read = 0
    with repeating(write):
        for _ in range(3000):
            try:
                request = tw.decode_request(body, FRAME.header_length)
            except tw.DecodeError:
                continue
            n_read += 1
            ends = [t.nbytes for t in request.values() if t.binary]
            assert sum(ends) == len(body) - len(original)
    assert n_read > 0


def test_bool_elements_modified_during_decoding() -> None:
    body = bytearray(16 << 20)
    view = np.frombuffer(body, np.uint8)
    spec = tw.TensorSpec("x", "BOOL", [-1])

    def write() -> None:
        view[12_345_678] = 2
        view[12_345_678] = 0

    verdicts = set()
    with repeating(write):
        for _ in range(50):
            try:
                tw.decode_request(body, 0, raw_input=spec)
                verdicts.add("read")
            except tw.ElementError as error:
                verdicts.add(str(error))
    assert all(v == "read" or "element 12345678 of input 'x'" in v for v in verdicts)


@pytest.mark.parametrize("binary", [True, False])
def test_list_modified_during_encoding(binary: bool) -> None:
    """Other threads run between batches of elements. There is an error or a result."""
    words = [b"x" * 50] * 100_000
    values: list[Any] = list(words)
    others = itertools.cycle(["ä" * 100_000, bytearray(200_000), b"y" * 70_000, b"z"])

    def change() -> None:
        values.append(next(others))
        if len(values) > len(words) + 100:
            values[:] = words

    verdicts = set()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with repeating(change):
            for _ in range(100):
                try:
                    tensor = tw.Tensor("x", values, datatype="BYTES", binary=binary)
                    assert tensor.elements.size == tensor.shape[0]
                    verdicts.add("encoded")
                except tw.EncodeError as error:
                    verdicts.add(str(error))
    finally:
        sys.setswitchinterval(interval)
    assert all("were modified" in v for v in verdicts - {"encoded"})


# --- release of the GIL ---


def ticks_during(work: Callable[[], Any], n_times: int) -> int:
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


SIXTY_MB = bytes(60_000_000)
FLAGS = tw.TensorSpec("x", "BOOL", [-1])
EMPTY_ELEMENTS = bytes(4 << 22)
FAR_APART = reference.elements([bytes(400 + 7919 * i % 801) for i in range(100_000)])


def grow() -> None:
    """Grow a buffer to 64 MB by doubling, so that moving it takes most of the time."""
    body = tw.BodyBuffer(None)
    while len(body) < 64_000_000:
        body.advance(len(body.remaining()))


def rejected(text: str) -> Callable[[], None]:
    body = text.encode()

    def decode() -> None:
        with pytest.raises(tw.HeaderError):
            tw.decode_request(body)

    return decode


MANY_MEMBERS = ",".join(f'"{i * 7919 % 300_000:06d}":0' for i in range(300_000))
MANY_LISTS = ",".join(["[1]"] * 2_000_000)
MANY_VALUES = ",".join(["0.5"] * 2_000_000)
MANY_NUMBERS = (
    f'{{"inputs":[{{"name":"x","shape":[2000000],"datatype":"FP32","data":[{MANY_VALUES}]}}]}}'
).encode()

# Operations of several ms, and a number of ticks that only calls without the GIL reach. A tick
# takes 0.5 ms.
LONG: dict[str, tuple[Callable[[], Any], int]] = {
    "checking BOOL elements": (lambda: tw.decode_request(SIXTY_MB, 0, raw_input=FLAGS), 2),
    "scanning empty elements": (lambda: tw.decode_bytes(EMPTY_ELEMENTS, 1 << 22), 2),
    "scanning elements far apart": (lambda: tw.decode_bytes(FAR_APART, 100_000), 2),
    "writing a large chunk": (lambda: tw.BodyBuffer(None).write(SIXTY_MB), 2),
    "growing a body buffer": (grow, 5),
    "reading JSON data": (lambda: tw.decode_request(MANY_NUMBERS), 5),
    "skipping unknown members": (rejected(f"{{{MANY_MEMBERS}}}"), 5),
    "skipping one large unknown member": (rejected(f'{{"z":{{{MANY_MEMBERS}}}}}'), 5),
    "rejecting a long value of the wrong type": (rejected(f'{{"id":[{MANY_LISTS}]}}'), 5),
}


@pytest.mark.slow(reason="it takes long")
@pytest.mark.parametrize(("work", "n_ticks"), LONG.values(), ids=LONG.keys())
@pytest.mark.no_sanitizers(reason="it measures time")
def test_long_operations_let_other_threads_run(work: Callable[[], Any], n_ticks: int) -> None:
    assert any(ticks_during(work, 20) > 20 * n_ticks for _ in range(5))
