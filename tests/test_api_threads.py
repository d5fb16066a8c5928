"""Objects that threads share, and that a thread modifies while another one reads them.

Free-threaded Pythons need these tests most: their threads run at the same time.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import sysconfig
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from stress import threads
from support.scale import scaled
from support.threads import repeating

pytestmark = pytest.mark.thread_unsafe(reason="it starts threads")


@pytest.mark.parametrize("name", threads.SCENARIOS)
def test_threads_share_objects(name: str) -> None:
    assert threads.run(threads.SCENARIOS[name], scaled(100) / 1000) > 0


def test_header_modified_during_decoding() -> None:
    """The header is copied before it is read; the tensors follow from the copy."""
    body, n_header = bytearray(threads.BODY), threads.FRAME.header_length or 0
    view = np.frombuffer(body, np.uint8)
    rng = np.random.default_rng(1)

    def write() -> None:
        at = int(rng.integers(n_header))
        view[at] = rng.integers(256)
        view[at] = threads.BODY[at]

    n_read = 0
    with repeating(write):
        for _ in range(3000):
            with suppress(tw.DecodeError):
                request = tw.decode_request(body, n_header)
                n_read += 1
                sizes = [tensor.nbytes for tensor in request.values() if tensor.binary]
                assert sum(sizes) == len(body) - n_header
    assert n_read > 0


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

    with threads.frequent_switches(), repeating(change):
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
