"""Callbacks of Arrow and DLPack structs: those of producers, and those of exported structs."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import dlpack_structs
from support.arrow_numbers import NumbersProducer, NumbersStream, TextProducer
from support.foreign_owner import EXPORTS
from support.requirements import skip_or_fail
from support.scripts import run_script

pytestmark = pytest.mark.thread_unsafe(reason="it waits for threads")

# --- callbacks of producers ---


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The callbacks in C."""
    compiler = shutil.which("cc")
    if compiler is None:
        skip_or_fail("cc", "there is no C compiler")
    source = Path(__file__).parent / "support" / "waiting_callbacks.c"
    path = tmp_path_factory.mktemp("callbacks") / "library.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", path, source], check=True)
    return ctypes.CDLL(str(path))


class Gate:
    """Producers whose callbacks wait until a Python thread of this class opens a gate."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.library.reset_gate()
        self.n_opened = 0
        self.is_over = False
        self.kept: list[Any] = []  # the memory of the producers
        self.thread = threading.Thread(target=self.open)
        self.thread.start()

    def open(self) -> None:
        while not self.is_over:
            if self.library.count_calls() > self.n_opened:
                self.n_opened += 1
                self.library.open_gate()
            time.sleep(0.001)

    def address(self, name: str) -> int:
        return ctypes.cast(self.library[name], ctypes.c_void_p).value or 0


@pytest.fixture
def gate(library: ctypes.CDLL) -> Iterator[Gate]:
    found = Gate(library)
    yield found
    found.is_over = True
    found.thread.join()


def array(gate: Gate, layout: bytes) -> Any:
    """Return an array of one number or text. Its schema remains in its capsule."""
    release = gate.address("release_array")
    if layout == b"u":
        made: Any = TextProducer(layout, length=1, release=release)
    else:
        made = NumbersProducer(1, (), layout, array_changes={0: {"release": release}})
    gate.kept.append(made)
    return made


def stream(gate: Gate, layout: bytes, *, is_failing: bool = False) -> Any:
    """Return a stream of one array, which then ends or fails."""
    made = NumbersStream([array(gate, layout)], is_failing)
    made.schema_release = gate.address("release_schema")
    made.stream[2] = gate.address("get_last_error")
    made.stream[3] = gate.address("release_stream")
    gate.kept.append(made)
    return made


def dlpack(gate: Gate, is_versioned: bool) -> Any:
    deleter = gate.address("delete_tensor")
    made = dlpack_structs.Producer(np.zeros(3), is_versioned=is_versioned, deleter=deleter)
    gate.kept.append(made)
    return made


PRODUCERS: dict[str, tuple[Callable[[Gate], Any], int]] = {  # with the number of callbacks
    "array of numbers": (lambda gate: array(gate, b"i"), 1),
    "array of text": (lambda gate: array(gate, b"u"), 1),
    "stream of numbers": (lambda gate: stream(gate, b"i"), 3),
    "stream of text": (lambda gate: stream(gate, b"u"), 3),
    "failing stream": (lambda gate: stream(gate, b"i", is_failing=True), 4),
    "stream of another type": (lambda gate: stream(gate, b"tdD"), 2),
    "DLPack": (lambda gate: dlpack(gate, False), 1),
    "versioned DLPack": (lambda gate: dlpack(gate, True), 1),
}


def make_and_collect(producer: Any) -> None:
    """Let the garbage collector call the callbacks."""
    cycle: list[Any] = [tw.Tensor("x", producer)]
    cycle.append(cycle)
    del cycle
    gc.collect()


def fail(producer: Any) -> None:
    """Call the callbacks while an exception is raised."""
    tw.Tensor("x", producer, shape=[100])


@pytest.mark.parametrize("use", [partial(tw.Tensor, "x"), make_and_collect, fail])
@pytest.mark.parametrize("name", PRODUCERS)
def test_callbacks_of_producers_are_called_without_the_gil(
    gate: Gate, name: str, use: Callable[[Any], None]
) -> None:
    """A callback may wait for a thread that needs the GIL."""
    make, n_callbacks = PRODUCERS[name]
    raised = None
    try:
        use(make(gate))
    except (tw.EncodeError, TypeError) as error:
        raised = str(error)
    gc.collect()
    assert gate.library.count_calls() == n_callbacks
    assert gate.library.count_timeouts() == 0
    if name == "failing stream":
        assert raised == "the Arrow stream of tensor 'x' failed: the disk is gone"
    else:
        assert (raised is not None) == (use is fail or "another type" in name)


# --- callbacks of exported structs ---

# When the process exits, after the interpreter has ended, the C library calls the functions that
# are registered with __cxa_atexit, each with an address: those that release the structs.
AT_EXIT = """
import ctypes, faulthandler, sys
from support.foreign_owner import EXPORTS

def take(address, callback):
    call = ctypes.CDLL(None).__cxa_atexit
    assert call(ctypes.c_void_p(callback), ctypes.c_void_p(address), None) == 0

faulthandler.enable()
for name in sys.argv[1:]:
    EXPORTS[name](take)
"""


@pytest.mark.parametrize("names", [*([name] for name in EXPORTS), list(EXPORTS)], ids=str)
def test_exports_are_released_after_the_interpreter_has_ended(names: list[str]) -> None:
    done = run_script(AT_EXIT, *names, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
