"""The target "api" of tests/fuzz without a fuzzer, and what it has found.

The stress tests run programs in a process of their own, under a watchdog: a deadlock fails them.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import wire
from fuzz import api, hostile, lying

WATCHDOG_SECONDS = 60
N_STEPS = 4_000
A = np.arange(4, dtype="f4")


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """End the process with a traceback of every thread when a test takes too long."""
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.thread_unsafe(reason="hostile objects belong to one episode at a time")
def test_random_steps(seed: int) -> None:
    n_steps, number = 0, 0
    while n_steps < N_STEPS:
        try:
            n_steps += api.episode(api.episode_bytes(seed, number))
        except BaseException as error:
            error.add_note(f"see it again: python -m fuzz.api --seed {seed} --episode {number}")
            raise
        number += 1


def test_the_same_bytes_are_the_same_steps() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        api.episode(api.episode_bytes(7, 7), trace.append)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10


@pytest.mark.parametrize("error", [OverflowError, AttributeError, SystemError, RuntimeWarning])
def test_an_undocumented_exception_is_found(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object, **__: object) -> None:
        raise error("undocumented")

    monkeypatch.setattr(tw, "header_length", raises)
    with pytest.raises(error, match="undocumented"):
        for number in range(200):
            api.episode(api.episode_bytes(0, number))


def test_a_wrong_frame_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = tw.encode_request

    def doubled(request: tw.InferRequest, **options: Any) -> tw.Frame:
        wrong = tw.InferRequest([tw.Tensor(t.name, np.zeros(3)) for t in request.inputs])
        encode(request, **options)
        return encode(wrong)

    monkeypatch.setattr(tw, "encode_request", doubled)
    with pytest.raises(AssertionError):
        for number in range(200):
            api.episode(api.episode_bytes(0, number))


# --- what the target has found -------------------------------------------------------------------


def test_encode_into_an_array_of_objects() -> None:
    """Its bytes are pointers; writing elements over them crashed when the array was freed."""
    target = np.array([b"a"] * 10, object)
    for wide in (target, np.zeros(100, np.int32), np.zeros(100, "S4")):
        with pytest.raises(BufferError, match="items of"):
            tw.encode_bytes_into([b"element"], wide)
    assert target.tolist() == [b"a"] * 10


class Converts(np.ndarray[Any, Any]):
    """A subclass whose conversions return another type."""

    def astype(self, *_: Any, **__: Any) -> Any:
        return np.full(self.shape, 0x0101010101010101)

    def reshape(self, *_: Any, **__: Any) -> Any:
        return np.zeros(3)


@pytest.mark.parametrize("dtype", ["O", "S3", "U3", np.dtypes.StringDType()])
def test_a_subclass_that_converts_itself(dtype: Any) -> None:
    """The numbers of the converted array were read as pointers to objects."""
    array = np.array(["a", "bc"], dtype).view(Converts)
    assert tw.encode_bytes(array) == wire.elements([b"a", b"bc"])
    assert tw.Tensor("x", array).as_numpy().tolist() == [b"a", b"bc"]


@pytest.mark.parametrize("dtype", ["O", "S3", "U3"])
def test_a_masked_array_of_text(dtype: str) -> None:
    """The mask was ignored."""
    array = np.ma.array(np.array(["a", "bc"], dtype), mask=[False, True])
    with pytest.raises(tw.EncodeError, match="masked"):
        tw.encode_bytes(array)
    with pytest.raises(tw.EncodeError, match="masked"):
        tw.Tensor("x", array)


class Silent(str):
    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        return iter("")

    def __getitem__(self, _: Any) -> str:
        raise IndexError


def test_a_str_without_utf8() -> None:
    """Its characters are read from its memory: iterating may do anything, and numpy can make a
    str with what no code point is."""
    with pytest.raises(tw.EncodeError, match=r"U\+D800 at character 1"):
        tw.encode_bytes([Silent("a\ud800")])
    beyond = np.array([0x41, 0x110000], "<u4").view("U2")
    with pytest.raises(tw.EncodeError, match=r"U\+110000 at character 1"):
        tw.encode_bytes(list(beyond))


@pytest.mark.parametrize("lie", [{"release": None}, {"format": None}])
def test_a_requested_schema_that_was_released(lie: dict[str, Any]) -> None:
    liar = lying.Liar(b"vu", lying.LIES.index((lie, {})), 0)
    schema, _ = liar.__arrow_c_array__()
    with pytest.raises(tw.EncodeError, match="released"):
        tw.decode_bytes(wire.elements([b"a"])).__arrow_c_array__(schema)


def test_no_bytes_tensor_without_its_fields() -> None:
    with pytest.raises(TypeError, match="decode_bytes"):
        tw.BytesTensor.__new__(tw.BytesTensor)
