"""Memory and references: 100,000 calls of each entry point, and the lifetimes of bodies."""

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
from support.lifetimes import Owned, assert_result_keeps_body_alive

pytestmark = [
    pytest.mark.no_sanitizers(reason="it measures memory"),
    pytest.mark.thread_unsafe(reason="it counts the objects of the process"),
]


@pytest.mark.slow(reason="it makes 100,000 calls of each entry point")
def test_no_entry_point_leaks() -> None:
    """There must be no error output either, such as an exception in a destructor."""
    path = [str(Path(tw.__file__).parent.parent), *sys.path]
    script = f"import sys; sys.path[:0] = {path!r}; sys.argv[1:] = []\n"
    script += "from stress import leaks; leaks.main()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= len(leaks.ENTRY_POINTS) - 1  # pyarrow may be missing


# --- lifetime of bodies (tests/test_ownership.py tests views of decoded messages) ---


ELEMENTS = reference.elements([b"a", b"bc", b"x" * 50])
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "BytesArray": tw.decode_bytes,
    "reshaped": lambda b: tw.decode_bytes(b).reshape((3, 1)),
    "a row": lambda b: tw.decode_bytes(b).reshape((3, 1))[1],
    "a Tensor of it": lambda b: tw.Tensor("x", tw.decode_bytes(b)),
    "a frame": lambda b: tw.encode_request(tw.InferRequest([tw.Tensor("x", tw.decode_bytes(b))])),
    "a frame's buffer": lambda b: tw.encode_request(
        tw.InferRequest([tw.Tensor("x", tw.decode_bytes(b))])
    ).buffers[1],
    "a frame's chunks": lambda b: tw.encode_request(
        tw.InferRequest([tw.Tensor("x", tw.decode_bytes(b))])
    ).chunks(8),
    "an iterator": lambda b: iter(tw.decode_bytes(b)),
    "Arrow's capsule": lambda b: tw.decode_bytes(b).__arrow_c_array__()[1],
    "a raw request": lambda b: tw.decode_request(b, 0, raw_input=tw.TensorSpec("x", "BYTES", [1])),
    "a numeric raw request's array": lambda b: tw.decode_request(
        b, 0, raw_input=tw.TensorSpec("x", "UINT8", [-1])
    )["x"].as_numpy()[3:],
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_result_keeps_the_body_alive(function: Callable[[Any], Any]) -> None:
    assert_result_keeps_body_alive(ELEMENTS, function)


BAD: dict[str, Callable[[Any], Any]] = {
    "trailing bytes": lambda b: tw.decode_bytes(b, 2),
    "truncated element": lambda b: tw.decode_bytes(memoryview(b)[:-1]),
    "not a message": tw.decode_request,
    "header length too large": lambda b: tw.decode_response(b, 1 << 40),
    "raw request, undeclared input": lambda b: tw.decode_request(b, 0),
    "raw request, too many elements": lambda b: tw.decode_request(
        b, 0, raw_input=tw.TensorSpec("x", "UINT8", [-1]), limits=tw.Limits(max_elements=3)
    ),
    "strided": lambda b: tw.decode_bytes(memoryview(b)[::2]),
    "target too small or not writable": lambda b: tw.encode_bytes_into(["a" * 500], b),
}


@pytest.mark.parametrize("work", BAD.values(), ids=BAD.keys())
def test_error_does_not_keep_the_body_alive(work: Callable[[Any], Any]) -> None:
    """Only the frames of its traceback, whose arguments include the body, keep it alive."""
    body = Owned(ELEMENTS)
    weak_reference = weakref.ref(body)
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
    assert weak_reference() is None
    assert caught.args
