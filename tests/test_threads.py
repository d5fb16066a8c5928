"""Threads: a body shared by threads, a body that another thread modifies, and release of the GIL.

test_bytes_array.py modifies BYTES.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference

pytestmark = pytest.mark.thread_unsafe(reason="it starts threads, and measures the GIL")

N_THREADS = 8
WORDS = [b"w" * (i % 11) for i in range(1000)]
X = np.arange(1000, dtype=np.float64)
REQUEST = tw.InferRequest(
    [
        tw.Tensor("x", X),
        tw.Tensor("words", WORDS),
        tw.Tensor("flags", X > 500),
        tw.Tensor("json", X[:10], binary=False),
    ],
    id="shared",
)
FRAME = tw.encode_request(REQUEST)


def in_threads(work: Callable[[int], Any], n_each: int = 20) -> list[Any]:
    """Run the functions in threads that start together."""
    barrier = threading.Barrier(N_THREADS)

    def run(number: int) -> list[Any]:
        barrier.wait()
        return [work(number) for _ in range(n_each)]

    with ThreadPoolExecutor(N_THREADS) as pool:
        return [item for part in pool.map(run, range(N_THREADS)) for item in part]


@pytest.mark.parametrize("wrap", [bytes, bytearray])
def test_threads_decode_the_same_body(wrap: Callable[[bytes], Any]) -> None:
    body = wrap(bytes(FRAME))

    def decode(_: int) -> bool:
        request = tw.decode_request(body, FRAME.header_length)
        return (
            np.array_equal(request["x"].as_numpy(), X)
            and request["words"].as_numpy().tolist() == WORDS
            and request["flags"].as_numpy().sum() == 499
            and request["json"].as_numpy().tolist() == X[:10].tolist()
            and request.id == "shared"
        )

    assert all(in_threads(decode))
    if isinstance(body, bytearray):
        body.append(1)  # succeeds, because every view is released


def test_threads_read_the_same_message() -> None:
    """A BytesArray built from values is scanned on first access, here by all threads."""
    expected = bytes(FRAME)
    for _ in range(5):
        words = tw.Tensor("words", WORDS)
        request = tw.InferRequest([tw.Tensor("x", X), words])
        alone = bytes(tw.encode_request(request))

        def use(number: int, words: Any = words, request: Any = request) -> tuple[Any, Any]:
            return bytes(tw.encode_request(request)), words.data[number * 100]

        found = in_threads(use, 3)
        assert {encoded for encoded, _ in found} == {alone}
        assert [word for _, word in found] == [WORDS[n * 100] for n in range(8) for _ in range(3)]
    assert bytes(tw.encode_request(REQUEST)) == expected


# --- a body that is written to while it is decoded ---


@contextmanager
def writer(write: Callable[[], None]) -> Iterator[None]:
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            write()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


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
    with writer(write):
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
    with writer(write):
        for _ in range(50):
            try:
                tw.decode_request(body, 0, raw_input=spec)
                verdicts.add("read")
            except tw.ElementError as error:
                verdicts.add(str(error))
    assert all(v == "read" or "element 12345678 of input 'x'" in v for v in verdicts)


# --- release of the GIL ---


def ticks_during(work: Callable[[], Any], n_times: int) -> int:
    """Return how often another thread, which sleeps 0.5 ms each time, runs during `work`."""
    done, n_ticks = threading.Event(), [0]

    def tick() -> None:
        while not done.is_set():
            n_ticks[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.01)
    before = n_ticks[0]
    for _ in range(n_times):
        work()
    found = n_ticks[0] - before
    done.set()
    thread.join()
    return found


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
