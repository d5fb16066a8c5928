"""Nothing stays behind: 100,000 calls of each entry point, in a process of their own."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorwire as tw
from stress import leaks
from support import reference
from support.lifetimes import Owned, assert_held_until_it_goes

pytestmark = [
    pytest.mark.no_sanitizers(reason="it measures memory"),
    pytest.mark.thread_unsafe(reason="it counts what the process has"),
]


def test_no_entry_point_leaks() -> None:
    """Nor does anything print, as an exception in a destructor would."""
    path = [str(Path(tw.__file__).parent.parent), *sys.path]
    script = f"import sys; sys.path[:0] = {path!r}; sys.argv[1:] = []\n"
    script += "from stress import leaks; leaks.main()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= len(leaks.ENTRY_POINTS) - 1  # pyarrow may be missing


# --- what holds a body (tests/test_ownership.py has the views of a decoded message) ---


ELEMENTS = reference.elements([b"a", b"bc", b"x" * 50])
HOLDERS: dict[str, Callable[[Any], Any]] = {
    "BytesTensor": tw.decode_bytes,
    "reshaped": lambda b: tw.decode_bytes(b).reshape((3, 1)),
    "a row": lambda b: tw.decode_bytes(b).reshape((3, 1))[1],
    "a Tensor of it": lambda b: tw.Tensor("x", tw.decode_bytes(b)),
    "a frame": lambda b: tw.encode_request(tw.InferRequest([tw.Tensor("x", tw.decode_bytes(b))])),
    "a frame's buffer": lambda b: tw.encode_request(
        tw.InferRequest([tw.Tensor("x", tw.decode_bytes(b))])
    ).buffers[1],
    "a frame's pieces": lambda b: tw.encode_request(
        tw.InferRequest([tw.Tensor("x", tw.decode_bytes(b))])
    ).pieces(8),
    "an iterator": lambda b: iter(tw.decode_bytes(b)),
    "Arrow's capsule": lambda b: tw.decode_bytes(b).__arrow_c_array__()[1],
    "a raw request": lambda b: tw.decode_request(b, 0, raw_input=tw.TensorSpec("x", "BYTES", [1])),
    "a numeric raw request's array": lambda b: tw.decode_request(
        b, 0, raw_input=tw.TensorSpec("x", "UINT8", [-1])
    )["x"].as_numpy()[3:],
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS.keys())
def test_held_until_the_last_goes(hold: Callable[[Any], Any]) -> None:
    assert_held_until_it_goes(ELEMENTS, hold)


BAD: dict[str, Callable[[Any], Any]] = {
    "bytes behind": lambda b: tw.decode_bytes(b, 2),
    "no elements": lambda b: tw.decode_bytes(memoryview(b)[:-1]),
    "no message": tw.decode_request,
    "a length": lambda b: tw.decode_response(b, 1 << 40),
    "raw, undeclared": lambda b: tw.decode_request(b, 0),
    "raw, too many": lambda b: tw.decode_request(
        b, 0, raw_input=tw.TensorSpec("x", "UINT8", [-1]), limits=tw.Limits(max_elements=3)
    ),
    "strided": lambda b: tw.decode_bytes(memoryview(b)[::2]),
    "written": lambda b: tw.encode_bytes_into(["a" * 500], b),
}


@pytest.mark.parametrize("work", BAD.values(), ids=BAD.keys())
def test_an_error_holds_no_body(work: Callable[[Any], Any]) -> None:
    """Not even while it is handled, but for its traceback's frames, which have the argument."""
    body = Owned(ELEMENTS)
    watch = weakref.ref(body)
    try:
        work(body)
    except (tw.TensorwireError, BufferError) as error:
        caught: BaseException = error.with_traceback(None)
    else:
        pytest.fail("it was accepted")
    gc.collect()
    body.append(1)
    del body
    gc.collect()
    assert watch() is None
    assert caught.args
