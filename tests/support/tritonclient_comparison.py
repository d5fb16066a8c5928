"""Fixtures, comparisons and samples to compare tritonclient with and without the integration."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import NOT_TEXT, TEXTS, Array, binary_sample, bytes_array
from support.requirements import skip_or_fail
from tensorwire.integrations import tritonclient
from tensorwire.integrations.functions import ABSENT, Change, assign
from tensorwire.integrations.tritonclient import convert

MARKS = [
    pytest.mark.no_sanitizers(reason="it tests Python code"),
    pytest.mark.thread_unsafe(reason="it changes the client for the process"),
]
# Less than what users get, so that the tests take less time.
LARGE = convert.MIN_SEPARATE_NBYTES = 256 * 1024
FLOATS = np.arange(LARGE // 4, dtype=np.float32)


def module(name: str, extra: str) -> ModuleType:
    """Import a module of tritonclient. If it is missing, skip the test, or fail it in CI."""
    try:
        return import_module(f"tritonclient.{name}")
    except (ImportError, RuntimeError) as error:
        skip_or_fail(f"tritonclient[{extra}]", f"tritonclient.{name} cannot be imported: {error}")


@pytest.fixture(params=[False, True], ids=["tritonclient", "tritonclient with tensorwire"])
def either(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run the test without the integration and with it."""
    if request.param:
        tritonclient.install()
    yield bool(request.param)
    tritonclient.uninstall()


@pytest.fixture
def installed() -> Iterator[None]:
    tritonclient.install()
    yield
    tritonclient.uninstall()


@pytest.fixture(params=[{}, {"refer_to_arrays": True}], ids=["copies", "references"])
def any_data(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run the test with inputs that have copies of arrays, and with inputs that refer to them."""
    tritonclient.install(**request.param)
    yield bool(request.param)
    tritonclient.uninstall()


@pytest.fixture(autouse=True)
def without_leftovers() -> Iterator[None]:
    """In each module with this name, uninstall the integration after each test."""
    yield
    tritonclient.uninstall()


# --- comparison ---


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result or exception of a call, with all types, in a form that can be compared."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = described(call())
        except Exception as error:
            found = type(error), str(error)
    return found, [str(warning.message) for warning in caught]


def described(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        flags = value.flags
        items = value.ravel().tolist() if value.dtype == object else None
        values = [(type(item), item) for item in items] if items is not None else value.tobytes()
        return type(value), value.dtype, value.shape, flags.writeable, flags.c_contiguous, values
    if isinstance(value, tuple | list):
        return type(value), [described(item) for item in value]
    return type(value), value


def both(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the outcome of a call, after checking that it is the same with the integration."""
    call = partial(call, *arguments)
    without = outcome(call)
    with replaced():
        found = outcome(call)
        assert found == without, f"{found!r:.999} with the codec, {without!r:.999} without"
    assert outcome(call) == without, "another outcome after uninstall()"
    return without[0]


@contextmanager
def replaced() -> Iterator[None]:
    """Make all assignments of install() and uninstall() without their checks, which take longer."""
    with pytest.MonkeyPatch.context() as patch:
        for place in places():
            assert vars(place.owner).get(place.name, ABSENT) is place.old
            patch.setattr(place.owner, place.name, place.new)
        yield


@cache
def places() -> tuple[Change, ...]:
    """Return the assignments of install()."""
    tritonclient.install()
    found = tuple(tritonclient._PATCH._places)
    tritonclient.uninstall()
    return found


def partly_installed(is_only: bool) -> Iterator[str]:
    """Install a part of the replacements, as other threads see it during install and uninstall.

    Yields the name of each replacement while it is the only one, or the only one that is missing.
    """
    tritonclient.install()
    try:
        changes = tritonclient._PATCH._changes
        for change in changes:
            others = [each for each in changes if (each is change) != is_only]
            assign([each._replace(old=each.new, new=each.old) for each in others])
            yield f"{change.owner.__name__}.{change.name}"
            assign(others)
    finally:
        tritonclient.uninstall()


# --- BYTES ---


class Octets(bytes):
    pass


class Sub(np.ndarray[Any, Any]):
    pass


def object_array(values: list[Any], shape: tuple[int, ...] = (-1,)) -> Array:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):  # one by one, because numpy would convert sequences
        array[i] = value
    return array.reshape(shape)


def char_array(values: list[bytes]) -> Array:
    """Return an array whose elements lose trailing white space when read; numpy 2.5 warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array: Array = np.char.array(values)
    return array


BYTES_ARRAYS: dict[str, Array] = {
    "bytes": bytes_array([*TEXTS, NOT_TEXT]),
    "str": object_array(["", "a", "\xe9", "\u20ac", "\U0001f600", "a\0"]),
    "mixed": object_array(["a", b"b", "\xe9", NOT_TEXT]),
    "0-d": np.array(b"ab", object),
    "one": object_array(["x"], (1, 1, 1)),
    "row-major": object_array(["a", "b", "c", "d", "e", "f"], (2, 3)),
    "column-major": np.asfortranarray(object_array(["a", "b", "c", "d", "e", "f"], (2, 3))),
    "transposed": object_array(["a", b"b", "c", "d", "e", "f"], (2, 3)).T,
    "strided": object_array(["a", b"b", "c", "d", "e", "f"])[::-2],
    "repeated": np.broadcast_to(np.array(b"x", object), (3, 2)),
    "read-only": np.broadcast_to(object_array(["x", 1]), (2,)),
    "S": np.array([[b"ab", b""], [b"a\0b\0", b"\xff"]]),
    "S, transposed": np.array([[b"ab", b""], [b"a\0b\0", b"\xff"]]).T,
    "S0": np.zeros(3, "S0"),
    "no value yet": np.empty(3, object),
    "empty object": np.empty((2, 0), object),
    "empty S": np.empty(0, "S3"),
    "empty float": np.empty((0, 2), np.float32),
    "float": np.ones(2, np.float32),
    "bool": np.array(True),
    "void": np.zeros(2, "V4"),
    "record": np.zeros(2, [("a", object)]),
    "masked": np.ma.masked_array(object_array(["a", "b"]), [False, True]),
    "subclass": object_array(["a", b"b"]).view(Sub),
    "char": char_array([b"ab ", b"c"]),
    "unaligned": np.zeros(2, [("x", "u1"), ("y", "S3")])["y"],
}


# --- messages ---


def large(datatype: str) -> Array:
    """Return all values of the sample, repeated so that it is too large to be copied."""
    sample = binary_sample(datatype)
    return np.tile(sample, LARGE // sample.itemsize // len(sample) + 1)


def body_of(array: Any, datatype: str, **options: Any) -> Any:
    """Return the body and header length of a request with this input, and the input's JSON."""
    http = module("http", "http")
    tensor = http.InferInput("INPUT0", list(array.shape), datatype)
    same = tensor.set_data_from_numpy(array, **options)
    assert same is tensor
    found = http.InferenceServerClient.generate_request_body([tensor], request_id="7")
    return *found, tensor._get_tensor()


def response(*arrays: Array, **options: Any) -> tuple[bytes, int | None]:
    """Return a body with these outputs, and the length of its header."""
    outputs = [tw.Tensor(f"OUTPUT{i}", array) for i, array in enumerate(arrays)]
    frame = tw.encode_response(tw.InferResponse(outputs), **options)
    return bytes(frame), frame.header_length


def parsed(body: Any, length: Any, encoding: str | None = None) -> Any:
    parse = module("http", "http").InferenceServerClient.parse_response_body
    return parse(body, header_length=length, content_encoding=encoding)
