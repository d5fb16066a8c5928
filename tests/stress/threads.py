"""Share objects between 8 threads: `python -m stress.threads [SECONDS [SCENARIO ...]]`.

Each scenario is repeated for a number of seconds, 60 by default. It creates objects that the
threads share, and one function for each thread. The functions start at the same time. They check
results that are defined, and accept the exceptions of docs/guide/memory.md where a thread modifies
objects that others use. A crash of the process is the error that this program searches for, above
all in a free-threaded Python. tests/test_api_threads.py runs each scenario for a short time.
"""

from __future__ import annotations

import itertools
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

import tensorwire as tw

N_THREADS = 8
# What a call may raise if another thread modifies its arguments: the exceptions of SECURITY.md, and
# the RuntimeError of a dict that changes its size during iteration.
ALLOWED = (
    *(tw.TensorwireError, TypeError, ValueError, BufferError, IndexError, KeyError),
    *(MemoryError, RuntimeError),
)
# CPython 3.13 has no locks for bytearray: it may lose count of the exports.
HAS_SAFE_BYTEARRAY = getattr(sys, "_is_gil_enabled", lambda: True)() or sys.version_info >= (3, 14)
X = np.arange(1000, dtype=np.float64)
FLAGS = X > 500
WORDS = [b"w" * (i % 11) for i in range(300)]

Work = Callable[[], None]
Scenario = Callable[[], list[Work]]


def request_with_all_kinds() -> tw.InferRequest:
    return tw.InferRequest(
        [
            tw.Tensor("x", X),
            tw.Tensor("words", WORDS),
            tw.Tensor("flags", FLAGS),
            tw.Tensor("json", X[:10], binary=False, parameters={"a": [1, "b"]}),
            tw.Tensor("json words", WORDS[:10], binary=False),
        ],
        [tw.RequestedOutput("x", binary=True), tw.RequestedOutput("words")],
        id="shared",
        parameters={"priority": 1, "nested": {"a": [1, 2]}},
    )


FRAME = tw.encode_request(request_with_all_kinds())
BODY = bytes(FRAME)


def check_request(request: tw.InferRequest) -> None:
    assert np.array_equal(request["x"].as_numpy(), X)
    assert request["words"].as_numpy().tolist() == WORDS
    assert request["json"].as_numpy().tolist() == X[:10].tolist()
    assert request["json words"].as_numpy().tolist() == WORDS[:10]
    assert np.array_equal(request["flags"].as_numpy(), FLAGS)
    assert request.id == "shared"


def received(body: bytes) -> tw.BodyBuffer:
    buffer = tw.BodyBuffer(len(body), FRAME.header_length)
    buffer.write(body)
    return buffer


# --- objects that threads only read ---


def one_body() -> list[Work]:
    """All threads decode the same body."""
    bodies: list[Any] = [BODY, bytearray(BODY) if HAS_SAFE_BYTEARRAY else received(BODY)]

    def decode(body: Any) -> None:
        for _ in range(5):
            check_request(tw.decode_request(body, FRAME.header_length))

    return [partial(decode, bodies[i % 2]) for i in range(N_THREADS)]


def one_message() -> list[Work]:
    """All threads use a message and its frame. Its BYTES are scanned on first access."""
    request = request_with_all_kinds()
    if next(counter) % 2:
        request = tw.decode_request(bytearray(BODY), FRAME.header_length)
    frame = tw.encode_request(request)

    def read() -> None:
        check_request(request)
        assert "x" in request and "y" not in request
        assert list(dict(request).items()) == list(request.items())
        assert len(list(request)) == 5 and len(repr(request)) > 0
        tensor = request["x"]
        assert len(tensor) == 1000 and tensor.parameters == {}
        with suppress(DeprecationWarning):  # since NumPy 2.5
            tensor.as_numpy().shape = (10, 100)
        assert tensor.as_numpy().size == len(np.from_dlpack(tensor)) == 1000
        assert len(tensor.__arrow_c_array__()) == 2
        with suppress(AttributeError):
            request.id = None  # type: ignore[misc]

    def read_words() -> None:
        words, text = request["words"].elements, [word.decode() for word in WORDS]
        assert (words[7], words[10:20].tolist()) == (WORDS[7], WORDS[10:20])
        assert words[::7].tolist() == WORDS[::7]
        assert words.reshape((30, 10))[2].tolist() == WORDS[20:30]
        assert words.as_strings().tolist() == text
        assert words.as_numpy("S").tolist() == WORDS
        assert words.as_numpy(np.dtypes.StringDType()).tolist() == text
        assert words.copy() == words
        assert len(words.__arrow_c_array__()) == 2

    def copy() -> None:
        check_request(pickle.loads(pickle.dumps(request, 5)))
        check_request(request.replace(outputs=["y"]))
        check_request(tw.decode_request(bytes(tw.encode_request(request)), FRAME.header_length))
        own = tw.encode_response(tw.InferResponse(request, id="a"), request)
        tw.decode_response(bytes(own), own.header_length)
        tw.encode_raw_request(tw.Tensor("copy", request["x"]))

    def send() -> None:
        for _ in range(20):
            assert bytes(frame) == b"".join(frame) == b"".join(frame.chunks(1000)) == BODY
            assert frame.headers["Content-Length"] == str(len(BODY)) == str(len(frame))
            assert sum(map(len, frame.buffers)) == len(BODY)

    return [read, read_words, copy, send] * (N_THREADS // 4)


counter = itertools.count()


def lazy_values() -> list[Work]:
    """A BytesArray is scanned, and a list is encoded, by the first of all threads."""
    tensors = [tw.Tensor("words", WORDS, binary=binary) for binary in (True, False) * 50]

    def use() -> None:
        for tensor in tensors:
            if not tensor.binary:
                tw.encode_request(tw.InferRequest([tensor]))
            assert tensor.elements[5] == WORDS[5]
            assert tensor.elements.reshape((10, 30)).shape == (10, 30)

    return [use] * N_THREADS


# --- objects that threads modify ---


def accepting(work: Work) -> Work:
    """Return a function that does the work repeatedly, and accepts the documented exceptions."""

    def run() -> None:
        for _ in range(50):
            with suppress(*ALLOWED):
                work()

    return run


def modified_values() -> list[Work]:
    """Threads encode a list, and bytearrays in it, while others modify them."""
    values: list[Any] = [b"a" * i for i in range(50)]
    buffers: list[Any] = [bytearray(100) if HAS_SAFE_BYTEARRAY else b"x" for _ in range(5)]
    numbers = itertools.count()

    def encode() -> None:
        tw.decode_bytes(tw.encode_bytes(values))

    def encode_buffers() -> None:
        tw.decode_bytes(tw.encode_bytes([*values, *buffers]))

    def make_tensor() -> None:
        tw.encode_raw_request(tw.Tensor("x", [values[:10], values[:10]])[0])  # type: ignore[index]

    def change_list() -> None:
        i = next(numbers)
        values[i % 50 :] = [str(k) * 5 for k in range(i % 50, 50 + i % 3)]
        values.append(bytes(i % 100))
        del values[: i % 5]
        values.extend([buffers[i % 5], "ä" * (i % 10), b"x" * 1000])

    def change_buffers() -> None:
        i = next(numbers)
        buffer = buffers[i % 5]
        if HAS_SAFE_BYTEARRAY:
            buffer.extend(bytes(i % 1000))
            del buffer[50:]

    works = (encode, encode, encode_buffers, make_tensor, change_list, change_list, change_buffers)
    return [accepting(work) for work in (*works, encode)]


def modified_body() -> list[Work]:
    """Threads decode a body while others write to it. Decoding reads within the body."""
    body = received(BODY)
    view = np.frombuffer(memoryview(body), np.uint8)
    generator = np.random.default_rng(next(counter))
    places = generator.integers(0, len(body), 5000).tolist()

    def decode() -> None:
        for tensor in tw.decode_request(body, FRAME.header_length).values():
            if isinstance(tensor.data, tw.BytesArray):
                words = tensor.data
                reads = (words.as_numpy, words.as_strings, words.__arrow_c_array__)
                for read in (*reads, partial(words.as_numpy, np.dtypes.StringDType())):
                    with suppress(*ALLOWED):
                        read()

    def write() -> None:
        for place in places:
            original = view[place]
            view[place] = place * 37 % 256
            view[place] = original

    return [accepting(decode)] * 6 + [write] * 2


# --- BodyBuffer ---


def one_writer() -> list[Work]:
    """One thread writes to a BodyBuffer, the others read it. Views never show other bytes."""
    content_length = len(BODY) if next(counter) % 2 else None
    buffer = tw.BodyBuffer(content_length, FRAME.header_length)
    done = threading.Event()

    def write() -> None:
        position = 0
        while position < len(BODY):
            with suppress(BufferError):  # another thread has a view
                part = BODY[position : position + 500]
                if position % 3:
                    buffer.write(part)
                else:
                    with buffer.remaining() as view:
                        part = part[: len(view)]
                        view[: len(part)] = part
                    buffer.advance(len(part))
                position += len(part)
        done.set()

    def read() -> None:
        while not done.is_set():
            arrived = bytes(buffer)
            assert arrived == BODY[: len(arrived)]
            assert buffer.nbytes >= len(arrived) and len(buffer) >= len(arrived)
            repr(buffer)
        assert buffer.complete
        check_request(tw.decode_request(buffer, FRAME.header_length))

    return [write] + [read] * (N_THREADS - 1)


def several_writers() -> list[Work]:
    """All threads write to one BodyBuffer. Every accepted chunk is in it, in some order."""
    sizes = [3, 50, 1000, 70_000, (1 << 20) + 1]  # the GIL is released for the last one
    buffer = tw.BodyBuffer(None if next(counter) % 2 else 8 << 20)
    n_bytes = [0] * N_THREADS
    n_finished = itertools.count(1)

    def write(number: int) -> None:
        for i in range(10):
            size = sizes[(number + i) % (5 if i == 5 else 4)]
            with suppress(BufferError, tw.TensorwireError):
                buffer.write(bytes([number + 1]) * size)
                n_bytes[number] += size
            with suppress(BufferError, tw.TensorwireError):
                len(bytes(buffer)), buffer.complete, buffer.remaining()
        if next(n_finished) == N_THREADS:
            written = np.frombuffer(memoryview(buffer), np.uint8)
            found = np.bincount(written, minlength=N_THREADS + 1)
            assert found[1 : N_THREADS + 1].tolist() == n_bytes
            assert len(buffer) == sum(n_bytes)

    return [partial(write, number) for number in range(N_THREADS)]


def hostile_writers() -> list[Work]:
    """All threads call all methods of one BodyBuffer. Nothing is written outside of it."""
    buffer = tw.BodyBuffer(max_nbytes=4 << 20)

    def use() -> None:
        buffer.write(bytes(100))
        view = buffer.remaining()
        view[:100] = bytes([1]) * 100
        buffer.advance(50)
        with suppress(*ALLOWED):
            buffer.write(memoryview(buffer)[:1000])
        with suppress(*ALLOWED):
            tw.decode_request(buffer, 10)
        del view
        buffer.write(bytes(50_000))

    return [accepting(use)] * N_THREADS


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        *(one_body, one_message, lazy_values, modified_values, modified_body),
        *(one_writer, several_writers, hostile_writers),
    )
}


@contextmanager
def frequent_switches() -> Iterator[None]:
    """With a GIL, switch threads often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(scenario: Scenario, seconds: float) -> int:
    """Repeat a scenario, and return how often. Raises the first exception of a thread."""

    def together(work: Work, barrier: threading.Barrier) -> None:
        barrier.wait(60)
        work()

    deadline, n_rounds = time.monotonic() + seconds, 0
    with frequent_switches(), ThreadPoolExecutor(N_THREADS) as pool:
        while n_rounds == 0 or time.monotonic() < deadline:
            works = scenario()
            assert len(works) == N_THREADS
            barrier = threading.Barrier(len(works))
            for future in [pool.submit(together, work, barrier) for work in works]:
                future.result()
            n_rounds += 1
    return n_rounds


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    is_free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, {'without' if is_free_threaded else 'with'} the GIL")
    for name in sys.argv[2:] or SCENARIOS:
        print(f"{name}: {run(SCENARIOS[name], seconds)} rounds", flush=True)


if __name__ == "__main__":
    main()
