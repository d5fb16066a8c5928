"""Objects that threads share, and that a thread modifies while another one reads them.

Free-threaded Pythons need these tests most: their threads run at the same time. The error that they
search for is a crash. With TENSORWIRE_TEST_SCALE=200, each scenario takes 20 seconds.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import pickle
import random
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.scale import scaled
from support.scripts import run_script
from support.threads import repeating

pytestmark = pytest.mark.thread_unsafe(reason="it starts threads")

N_THREADS = 8
# What a call may raise if another thread modifies its arguments: the exceptions of SECURITY.md, and
# the RuntimeError of a dict that changes its size during iteration.
ALLOWED = (
    *(tw.TensorwireError, TypeError, ValueError, BufferError, LookupError),
    *(MemoryError, RuntimeError),
)
# CPython 3.13 has no locks for bytearray: it may lose count of the exports.
HAS_SAFE_BYTEARRAY = getattr(sys, "_is_gil_enabled", lambda: True)() or sys.version_info >= (3, 14)
STRINGS = np.dtypes.StringDType()
X = np.arange(1000, dtype=np.float64)
WORDS = [b"w" * (i % 11) for i in range(300)]


def request_with_all_kinds() -> tw.InferRequest:
    tensors = [
        *(tw.Tensor("x", X), tw.Tensor("words", WORDS), tw.Tensor("flags", X > 500)),
        tw.Tensor("json", X[:10], binary=False, parameters={"a": [1, "b"]}),
        tw.Tensor("json words", WORDS, binary=False),
    ]
    outputs = [tw.RequestedOutput("x", binary=True), tw.RequestedOutput("words")]
    parameters = {"priority": 1, "nested": {"a": [1, 2]}}
    return tw.InferRequest(tensors, outputs, id="shared", parameters=parameters)


REQUEST = request_with_all_kinds()
FRAME = tw.encode_request(REQUEST)
BODY, N_HEADER = bytes(FRAME), FRAME.header_length or 0

Work = Callable[[], object]


def received(body: bytes = BODY) -> tw.BodyBuffer:
    buffer = tw.BodyBuffer(len(body), N_HEADER)
    buffer.write(body)
    return buffer


@contextmanager
def frequent_switches() -> Iterator[None]:
    """With a GIL, switch threads often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def together(scenario: Callable[[], list[Work]], seconds: float) -> None:
    """Make the works of a scenario again and again, and call them at the same time, in threads."""

    def run(work: Work, barrier: threading.Barrier) -> None:
        barrier.wait(60)
        work()

    end = time.monotonic() + seconds
    faulthandler.dump_traceback_later(seconds + 120, exit=True)
    try:
        with frequent_switches(), ThreadPoolExecutor(N_THREADS) as pool:
            while True:
                works = scenario()
                barrier = threading.Barrier(len(works))
                for future in [pool.submit(run, work, barrier) for work in works]:
                    future.result()
                if time.monotonic() > end:
                    return
    finally:
        faulthandler.cancel_dump_traceback_later()


# --- objects that threads only read ---

# Functions of a request, which return the same each time; BYTES are scanned when they are first
# read, and JSON is written when its bytes are first needed.
READS: tuple[Callable[[tw.InferRequest], Any], ...] = (
    *(lambda r, key=key: r[key].as_numpy().tolist() for key in REQUEST),
    lambda r: [(key, tensor.nbytes, tensor.parameters) for key, tensor in r.items()],
    *(lambda r: (r.id, "x" in r, "y" in r, len(r)), repr),
    lambda r: np.from_dlpack(r["x"]).tolist(),
    lambda r: len(r["x"].__arrow_c_array__() + r["words"].elements.__arrow_c_array__()),
    lambda r: (r["words"].elements[7], r["words"].elements[10:20].tolist()),
    lambda r: r["json words"].elements[::7].reshape((43, 1)).tolist(),
    lambda r: [r["words"].elements.as_numpy(kind).tolist() for kind in ("S", STRINGS)],
    lambda r: (r["words"].as_strings().tolist(), r["json words"].as_strings().tolist()),
    lambda r: r["words"].elements.copy() == r["words"].elements,
    lambda r: bytes(tw.encode_request(r)),
    lambda r: bytes(tw.encode_request(pickle.loads(pickle.dumps(r, 5)))),
    lambda r: bytes(tw.encode_request(r.replace(outputs=["y"]))),
    lambda r: bytes(tw.encode_response(tw.InferResponse(r, id="a"), r)),
    lambda r: bytes(tw.encode_raw_request(tw.Tensor("copy", r["x"]))),
)
EXPECTED = [read(REQUEST) for read in READS]


def one_message() -> list[Work]:
    """All threads read a message, a frame and a body, in different orders."""
    body: Any = bytearray(BODY) if HAS_SAFE_BYTEARRAY else received()
    request = request_with_all_kinds()
    if random.random() < 0.5:
        request = tw.decode_request(body, N_HEADER)
    frame = tw.encode_request(request)

    def read(first: int) -> None:
        for i in range(first, first + len(READS)):
            assert READS[i % len(READS)](request) == EXPECTED[i % len(READS)]
            assert bytes(frame) == b"".join(frame.chunks(1000)) == BODY
            assert frame.headers["Content-Length"] == str(len(frame))
        assert bytes(tw.encode_request(tw.decode_request(body, N_HEADER))) == BODY

    return [partial(read, 2 * i) for i in range(N_THREADS)]


# --- objects that threads modify ---


def accepting(work: Work) -> Work:
    """Return a function that does the work repeatedly, and accepts the documented exceptions."""

    def run() -> None:
        for _ in range(50):
            with suppress(*ALLOWED):
                work()

    return run


def modified_values() -> list[Work]:
    """Threads encode a list, bytearrays in it, and StringDType arrays, while others modify them."""
    values: list[Any] = [b"a" * i for i in range(50)]
    buffers: list[Any] = [bytearray(100) if HAS_SAFE_BYTEARRAY else b"x" for _ in range(5)]
    texts = ["", "short", "é" * 5, "a text of medium length", "long " * 100]
    kinds = (STRINGS, np.dtypes.StringDType(na_object=np.nan))
    arrays = [np.array(texts * 20, kind) for kind in kinds]

    def change_list() -> None:
        i = random.randrange(100)
        values[i % 50 :] = [str(k) * 5 for k in range(i % 50, 50 + i % 3)]
        values.append(bytes(i))
        del values[: i % 5]
        values.extend([buffers[i % 5], "ä" * (i % 10), b"x" * 1000])

    def change_buffers() -> None:
        buffer = random.choice(buffers)
        if HAS_SAFE_BYTEARRAY:
            buffer.extend(bytes(random.randrange(1000)))
            del buffer[50:]

    def change_strings() -> None:
        for array, more in zip(arrays, ([], [np.nan]), strict=True):
            array[random.randrange(100)] = random.choice([*texts, *more])

    def encode(data: Any) -> None:
        # An error is raised without the array's lock, for which others may wait with the GIL.
        tw.decode_bytes(tw.encode_bytes(data))

    works: tuple[Work, ...] = (
        *(change_list, change_buffers, change_strings, partial(encode, values)),
        lambda: encode([*values, *buffers]),
        lambda: encode(random.choice(arrays)),
        lambda: tw.encode_request(tw.InferRequest([tw.Tensor("x", arrays[0], binary=False)])),
        lambda: tw.encode_raw_request(tw.Tensor("x", [values[:10], values[:10]])[0]),  # type: ignore[index]
    )
    return [accepting(work) for work in works]


def modified_body() -> list[Work]:
    """Threads decode a body while others write to it. Decoding reads within the body.

    The header is copied before it is read; the tensors follow from the copy.
    """
    body = received()
    view = np.frombuffer(memoryview(body), np.uint8)
    n_finished: list[int] = []

    def decode() -> None:
        tensors = list(tw.decode_request(body, N_HEADER).values())
        assert sum(each.nbytes for each in tensors if each.binary) == len(body) - N_HEADER
        for tensor in tensors:
            if isinstance(words := tensor.data, tw.BytesArray):
                reads = (words.as_numpy, words.as_strings, words.__arrow_c_array__)
                for read in (*reads, partial(words.as_numpy, STRINGS)):
                    with suppress(*ALLOWED):
                        read()

    def decode_often() -> None:
        accepting(decode)()
        n_finished.append(1)

    def write() -> None:
        while len(n_finished) < N_THREADS - 1:
            place = random.randrange(random.choice([N_HEADER, len(body)]))
            for byte in (random.randrange(256), BODY[place]):  # others run between iterations
                view[place] = byte

    return [*[decode_often] * (N_THREADS - 1), write]


def one_writer() -> list[Work]:
    """One thread writes to a BodyBuffer, the others read it. Views never show other bytes."""
    buffer = tw.BodyBuffer(random.choice([len(BODY), None]), N_HEADER)

    def write() -> None:
        position = 0
        while position < len(BODY):
            part = BODY[position : position + 500]
            with suppress(BufferError):  # another thread has a view
                if position % 3:
                    buffer.write(part)
                else:
                    with buffer.remaining() as view:
                        part = part[: len(view)]
                        view[: len(part)] = part
                    buffer.advance(len(part))
                position += len(part)

    def read() -> None:
        while (n := len(arrived := bytes(buffer))) < len(BODY):
            assert arrived == BODY[:n]
            assert buffer.nbytes >= n
            repr(buffer)
        assert buffer.complete
        assert bytes(tw.encode_request(tw.decode_request(buffer, N_HEADER))) == BODY

    return [write, *[read] * (N_THREADS - 1)]


def several_writers() -> list[Work]:
    """All threads write to one BodyBuffer. Every accepted chunk is in it, in some order."""
    sizes = [3, 50, 1000, 70_000, (1 << 20) + 1]  # the GIL is released for the last one
    buffer = tw.BodyBuffer(random.choice([None, 8 << 20]))
    n_bytes, n_finished = [0] * (N_THREADS + 1), itertools.count(1)

    def write(number: int) -> None:
        for i in range(10):
            size = sizes[(number + i) % (5 if i == 5 else 4)]
            with suppress(BufferError, tw.TensorwireError):
                buffer.write(bytes([number]) * size)
                n_bytes[number] += size
            with suppress(BufferError, tw.TensorwireError):
                len(bytes(buffer)), buffer.complete, buffer.remaining()
        if next(n_finished) == N_THREADS:
            written = np.frombuffer(memoryview(buffer), np.uint8)
            assert np.bincount(written, minlength=N_THREADS + 1).tolist() == n_bytes

    return [partial(write, number) for number in range(1, N_THREADS + 1)]


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


SCENARIOS = (
    *(one_message, modified_values, modified_body, one_writer, several_writers),
    hostile_writers,
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_threads_share_objects(scenario: Callable[[], list[Work]]) -> None:
    together(scenario, scaled(100) / 1000)


# A child does not use the StringDType arrays of its parent: numpy locks their memory, and a lock
# that another thread holds at the fork is never released in the child.
FORK = """
import os, signal, warnings
import numpy as np
import tensorwire as tw
from test_api_threads import BODY, N_HEADER, WORDS, accepting, together

warnings.simplefilter("ignore")
texts = ["a text of some length"] * 100
shared = np.array(texts, np.dtypes.StringDType())

def exchange(array=shared):
    request = tw.decode_request(bytearray(BODY), N_HEADER)
    assert request["words"].data.as_numpy(np.dtypes.StringDType())[3] == "www"
    assert tw.decode_bytes(tw.encode_bytes(array)).size == 100
    tw.BodyBuffer(None).write(bytes(2_000_000))

def fork():
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)  # ends a child that hangs
            exchange(np.array(texts, np.dtypes.StringDType()))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

together(lambda: [*[accepting(exchange)] * 3, *[fork] * 2], 3)
"""


@pytest.mark.slow(reason="it takes seconds")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this machine has no fork")
def test_fork() -> None:
    done = run_script(FORK, timeout=60)
    assert done.returncode == 0, done.stderr[-4000:]


def test_bool_elements_modified_during_decoding() -> None:
    body = bytearray(16 << 20)
    view = np.frombuffer(body, np.uint8)
    spec = tw.TensorSpec("x", "BOOL", [-1])

    def write() -> None:
        view[12_345_678] = 2
        view[12_345_678] = 0

    with repeating(write):
        for _ in range(50):
            try:
                tw.decode_request(body, 0, raw_input=spec)
            except tw.ElementError as error:
                assert "element 12345678 of input 'x'" in str(error)


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

    with frequent_switches(), repeating(change):
        for _ in range(100):
            try:
                tensor = tw.Tensor("x", values, datatype="BYTES", binary=binary)
                assert tensor.elements.size == tensor.shape[0]
            except tw.EncodeError as error:
                assert "were modified" in str(error)


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL"
)
def test_import_does_not_enable_the_gil() -> None:
    program = "import sys, tensorwire, tensorwire.server.framing; assert not sys._is_gil_enabled()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    command = [sys.executable, "-W", "error", "-c", program]
    subprocess.run(command, env=environment, check=True)
