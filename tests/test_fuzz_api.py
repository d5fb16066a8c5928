"""The fuzz target "api" without a fuzzer, and regression tests for its findings.

The stress tests run programs in separate processes with a timeout, which fails them on a
deadlock.
"""

from __future__ import annotations

import faulthandler
import os
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference
from support.requirements import package
from support.scale import scaled
from support.scripts import run_script

package("pyarrow")

from fuzz import api  # noqa: E402 - it imports pyarrow

WATCHDOG_SECONDS = 60
N_STEPS = scaled(6_000)
A = np.arange(4, dtype="f4")


@pytest.fixture(autouse=True)
def watchdog(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Exit with a traceback of all threads if a test takes too long."""
    with capfd.disabled():
        stderr = os.dup(2)  # pytest's captured stderr would be lost
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True, file=stderr)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(stderr)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.thread_unsafe(reason="hostile objects belong to one episode at a time")
def test_random_episodes(seed: int) -> None:
    n_steps, number = 0, 0
    try:
        while n_steps < N_STEPS:
            n_steps += api.episode(api.episode_bytes(seed, number))
            number += 1
    except BaseException as error:
        error.add_note(f"to reproduce: python -m fuzz.api --seed {seed} --episode {number}")
        raise


# --- regression tests for findings ---


class Converting(np.ndarray[Any, Any]):
    """A subclass whose conversions return another type."""

    def astype(self, *_: Any, **__: Any) -> Any:
        return np.full(self.shape, 0x0101010101010101)

    def reshape(self, *_: Any, **__: Any) -> Any:
        return np.zeros(3)


@pytest.mark.parametrize("dtype", ["O", "S3", "U3", np.dtypes.StringDType()])
def test_array_subclass_with_its_own_conversions(dtype: Any) -> None:
    """The numbers of the converted array were read as pointers to objects."""
    array = np.array(["a", "bc"], dtype).view(Converting)
    assert tw.encode_bytes(array) == reference.elements([b"a", b"bc"])
    assert tw.Tensor("x", array).as_numpy().tolist() == [b"a", b"bc"]


class EmptyIteration(str):
    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        return iter("")

    def __getitem__(self, _: Any) -> str:
        raise IndexError


def test_str_without_utf8_form_is_rejected() -> None:
    """The characters are read from memory, because a subclass may override iteration."""
    with pytest.raises(tw.EncodeError, match=r"character 1 is a lone surrogate, U\+D800"):
        tw.encode_bytes([EmptyIteration("a\ud800")])
    beyond = np.array([0x41, 0x110000], "<u4").view("U2")
    with pytest.raises(tw.EncodeError, match=r"character 1 is an invalid code point, U\+110000"):
        tw.encode_bytes(list(beyond))


def test_bytes_array_new_returns_an_empty_tensor() -> None:
    tensor = tw.BytesArray.__new__(tw.BytesArray)
    assert (tensor.tolist(), tensor.shape, bytes(tensor.wire)) == ([], (0,), b"")


def test_cycle_with_a_memoryview_is_collected() -> None:
    """CPython crashes if it collects an exported memoryview. Objects tracked first are cleared
    first.
    """
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", [b"a", b"bc"])]))
    program = f"""
    import gc, pickle
    import tensorwire as tw

    class Node: pass

    for wrap in (memoryview, lambda b: pickle.PickleBuffer(memoryview(b))):
        for is_first in (False, True):
            node = Node()
            node.itself = node
            memory = bytearray({bytes(frame)!r})
            view = wrap(memory)
            if not is_first:
                node = Node()
                node.itself = node
            node.request = tw.decode_request(view, {frame.header_length})
            if is_first:
                node.members = [node.request["x"], memoryview(node.request["x"].data.wire)]
            del view, node
            gc.collect()
            memory.append(0)  # raises BufferError if any view of it remains
    print("done")
    """
    run(program)


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("value", [2**20, 2**62, -1, 2**63, None, "x"])
def test_altered_pickles_of_limits(at: int, value: Any) -> None:
    """A rank above numpy's maximum wrote beyond the end of an array on the stack."""
    function, arguments = reduced(tw.Limits())[:2]
    altered = list(arguments)
    altered[at] = value
    try:
        limits = function(*altered)
    except ValueError:
        return
    assert limits.max_rank <= 64
    assert limits.max_nesting <= 1000
    body, length = reference.request([reference.entry("x", "FP32", [1] * 65, None)])
    with pytest.raises(tw.DecodeError):
        tw.decode_request(body, length, limits=limits)


def test_altered_pickles_of_messages() -> None:
    tensor = tw.Tensor("x", A)
    items = [
        tw.InferRequest([tensor], [tw.RequestedOutput("y")]),
        tw.InferResponse([tensor]),
        tw.RequestedOutput("y", binary=True),
    ]
    for item in items:
        function, arguments = reduced(item)[:2]
        for i in range(len(arguments)):
            for wrong in (5, [5], object()):
                with pytest.raises((TypeError, tw.EncodeError)):
                    function(*arguments[:i], wrong, *arguments[i + 1 :])


def reduced(item: Any) -> tuple[Any, ...]:
    """Return the function, the arguments and the state that a pickle contains."""
    made = item.__reduce_ex__(5)
    assert isinstance(made, tuple)
    return made


@pytest.mark.parametrize("index", [(2**70,), [2**70], slice(2**70, None, 2**70), (0, -(2**70))])
def test_index_beyond_64_bits(index: Any) -> None:
    tensor = tw.decode_bytes(reference.elements([b"a"] * 4)).reshape((2, 2))
    try:
        assert tensor[index].size == 0
    except IndexError:
        return


def test_number_beyond_fp16_in_64_dimensions() -> None:
    """numpy's flat iterator supports at most 32 dimensions and raised RuntimeError."""
    values: Any = 1e10
    for _ in range(64):
        values = [values]
    with pytest.raises(tw.EncodeError, match=r"element 0 .* is out of range for FP16"):
        tw.Tensor("x", values, datatype="FP16")


def test_names_of_wrong_type_are_not_found() -> None:
    request = tw.InferRequest([tw.Tensor("x", A)])
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    for name in (5, None, b"x", deep):
        with pytest.raises(
            tw.TensorNotFoundError, match=r"no tensor (5|None|bytes|list): there are"
        ):
            request[name]  # type: ignore[index]
    with pytest.raises(TypeError, match="True or False, not list"):
        tw.RequestedOutput("y", binary=deep)
    with pytest.raises(TypeError, match="BYTES can be converted to object"):
        tw.decode_bytes(b"").as_numpy("i4")  # type: ignore[call-overload]
    # numpy formats the list for its own message. This works in Pythons that allow deeper recursion,
    # and the message is empty in some older ones.
    with pytest.raises(TypeError, match=r"is not a dtype|^Field elements must be|^$"):
        tw.decode_bytes(b"").as_numpy(deep)
    with pytest.raises(tw.EncodeError, match="'binary_data_output' of the message is nested too"):
        tw.InferRequest([tw.Tensor("x", A)], parameters={"binary_data_output": deep})
    with pytest.raises(tw.EncodeError, match="must be True or False, not list"):
        tw.InferRequest([tw.Tensor("x", A)], parameters={"binary_data_output": [1]})


# --- strings that threads change, fork, large bodies; stress/threads.py has other objects ---

THREADS = """
import faulthandler, os, random, signal, sys, threading, time, warnings
faulthandler.dump_traceback_later(50, exit=True)
sys.setswitchinterval(1e-6)
warnings.simplefilter("ignore")
import numpy as np
import tensorwire as tw
from support import reference

END = time.monotonic() + 3
FAULTS = []
ALLOWED = (tw.TensorwireError, TypeError, ValueError, BufferError, IndexError, KeyError)

def until_the_end(work):
    def loop():
        try:
            while time.monotonic() < END:
                try:
                    work()
                except ALLOWED:
                    pass
        except BaseException as error:
            FAULTS.append(repr(error))
            raise
    thread = threading.Thread(target=loop)
    thread.start()
    return thread

def together(*works):
    for thread in [until_the_end(work) for work in works]:
        thread.join()
    assert not FAULTS, FAULTS
"""

STRINGS = """
texts = ["", "short", "é" * 5, "a text of medium length", "long " * 100]
kinds = [np.dtypes.StringDType(), np.dtypes.StringDType(na_object=np.nan)]
arrays = [np.array(texts * 20, kind) for kind in kinds]
words = tw.decode_bytes(reference.elements([text.encode() for text in texts] * 50))
damaged = tw.decode_bytes(reference.elements([b"a"] * 50 + [b"\\xff"]))

def change():
    array = random.choice(arrays)
    array[random.randrange(len(array))] = random.choice(texts)

def missing():
    arrays[1][random.randrange(len(arrays[1]))] = np.nan

def encode():
    # An error is raised without the array's lock, for which others may wait with the GIL.
    tw.decode_bytes(tw.encode_bytes(random.choice(arrays)), 100)

def tensor():
    tw.encode_request(tw.InferRequest([tw.Tensor("x", arrays[0], binary=False)]))

def decode():
    array = random.choice((words, damaged)).as_numpy(kinds[0])
    assert array.tolist() == texts * 50

together(change, missing, encode, tensor, decode)
"""

# A child does not use the StringDType arrays of its parent: numpy locks their memory, and a lock
# that another thread holds at the fork is never released in the child.
FORK = """
frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", ["a", "é"] * 50)]))
body = bytes(frame)
texts = ["a text of some length"] * 100
shared = np.array(texts, np.dtypes.StringDType())

def exchange(array=shared):
    request = tw.decode_request(bytearray(body), frame.header_length)
    assert request["x"].data.as_numpy(np.dtypes.StringDType())[1] == "é"
    assert tw.decode_bytes(tw.encode_bytes(array)).size == 100
    buffer = tw.BodyBuffer(None)
    buffer.write(bytes(2_000_000))

def fork():
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)  # ends a child that hangs
            exchange(np.array(texts, np.dtypes.StringDType()))
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status

together(exchange, exchange, exchange, fork)
"""

LARGE = """
import mmap

nbytes = 2**31 + 8
memory = mmap.mmap(-1, nbytes + 200)  # anonymous: pages that are not written take no memory
header = b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[%d],' % nbytes
header = (header + b'"parameters":{"binary_data_size":%d}}]}' % nbytes).ljust(200)
memory[:200] = header
memory[-1:] = b"z"
request = tw.decode_request(memory, 200)
array = request["x"].as_numpy()
assert array.shape == (nbytes,) and array[-1] == ord("z")
frame = tw.encode_request(request)
assert len(frame) - frame.header_length == nbytes
assert frame.headers["Content-Length"] == str(len(frame))
assert sum(map(len, frame.chunks(2**30))) == len(frame)
raw = tw.encode_raw_request(array)
spec = tw.TensorSpec("x", "UINT8", [-1])
assert tw.decode_request(raw.buffers[0], 0, raw_input=spec)["x"].shape == (nbytes,)
try:
    tw.decode_request(memoryview(memory)[:-1], 200)
except tw.LayoutError as error:
    assert (error.expected, error.actual) == (nbytes, nbytes - 1)
    error.__traceback__ = None
else:
    raise AssertionError
del request, array, frame, raw  # before the memory is used for other objects

memory[:4] = (nbytes).to_bytes(4, "little")
memory[4 + nbytes : 8 + nbytes] = (192).to_bytes(4, "little")
words = tw.decode_bytes(memory)
assert (words.shape, len(words.element(0)), len(words.element(1))) == ((2,), nbytes, 192)
assert len(words[1:].wire) == 196
"""


@pytest.mark.slow(reason="it runs programs that take seconds")
@pytest.mark.thread_unsafe(reason="it starts processes with threads of their own")
@pytest.mark.parametrize(
    "program",
    [STRINGS, FORK, LARGE],
    ids=["StringDType", "fork", "2 GiB"],
)
def test_stress(program: str) -> None:
    run(THREADS + program)


def run(program: str) -> None:
    """Run a program in a separate process with a timeout."""
    done = run_script(textwrap.dedent(program), timeout=WATCHDOG_SECONDS - 5)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-4000:]}"
