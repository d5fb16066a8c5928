"""Hostile objects for the target "api": arguments whose methods call tensorwire again.

Each method of these classes first calls `side_effect`. The target sets it to a function that raises
`Hostile`, runs any other operation on the objects in use, or does nothing. Then the method returns
what `answer` chooses: a sensible value in half of the cases, and junk otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np


class Hostile(Exception):
    """Raised by a hostile object. Any call may propagate it."""


def _nothing() -> None:
    """Do nothing: outside of a run, hostile objects are harmless."""


def _sensible(sensible: Any) -> Any:
    return sensible


side_effect: Callable[[], None] = _nothing
answer: Callable[[Any], Any] = _sensible


def connect(new_side_effect: Callable[[], None], new_answer: Callable[[Any], Any]) -> None:
    """Set what all hostile objects call from now on."""
    global side_effect, answer
    side_effect, answer = new_side_effect, new_answer


def disconnect() -> None:
    connect(_nothing, _sensible)


def returning(result: Any) -> Any:
    """Return a method that calls `side_effect` and returns the result."""

    def method(*_: Any, **__: Any) -> Any:
        side_effect()
        return result

    return method


def answering(sensible: Any) -> Any:
    """Return a method that calls `side_effect` and returns what `answer` chooses."""

    def method(*_: Any, **__: Any) -> Any:
        side_effect()
        return answer(sensible)

    return method


def calling(function: Any) -> Any:
    """Return a method that calls `side_effect` and then the function with its arguments."""

    def method(*arguments: Any) -> Any:
        side_effect()
        return function(*arguments)

    return method


class Index:
    """An object with `__index__`, which may return a different integer each time."""

    __index__ = __int__ = answering(1)
    __float__ = answering(1.0)


class Compares:
    """Compares equal to everything, or has an arbitrary result. Its hash is constant."""

    __eq__ = answering(True)
    __hash__ = returning(1)
    __lt__ = __gt__ = __le__ = __ge__ = returning(False)
    __bool__ = returning(True)


class EqualIndex(Index, Compares):
    """A dimension that equals every other dimension but converts to its own integer."""


class Iterates:
    """An iterable whose length differs from the number of items that it yields.

    Lengths that are too large are excluded, because `len` itself raises OverflowError for them.
    """

    def __len__(self) -> int:
        side_effect()
        length = answer(2)
        return length if type(length) is int and 0 <= length < 2**63 else 5

    def __iter__(self) -> Iterator[Any]:
        for _ in range(3):
            side_effect()
            yield answer(b"item")

    __getitem__ = answering(b"item")


class HasArray:
    """An object with `__array__` only."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        side_effect()
        return answer(np.arange(3, dtype=np.float32))


class HasArrow:
    """An object with `__arrow_c_array__`; what it returns comes from the objects in use."""

    __arrow_c_array__ = answering(None)


class HasStream:
    """An object with `__arrow_c_stream__`."""

    __arrow_c_stream__ = answering(None)


class HasDlpack:
    """An object with `__dlpack__`."""

    def __dlpack__(self, **options: Any) -> Any:
        side_effect()
        return answer(np.arange(3, dtype=np.float32).__dlpack__())

    __dlpack_device__ = answering((1, 0))


class Getattr:
    """Has every attribute except most special ones, with a different value each time."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not name.startswith(("__arrow", "__array", "__dlpack")):
            raise AttributeError(name)
        side_effect()
        return answer(name)


class Deleted:
    """Calls `side_effect` when it is deleted. Python ignores exceptions of `__del__`."""

    def __del__(self) -> None:
        try:
            side_effect()
        except Exception:
            return


class Cycle(Deleted):
    """A reference cycle, which calls `side_effect` when it is collected."""

    def __init__(self) -> None:
        self.itself = self


class Keys(Mapping[Any, Any]):
    """A mapping, also of HTTP headers and of parameters."""

    def __iter__(self) -> Iterator[Any]:
        for key in ("Content-Type", "binary_data_size", "k"):
            side_effect()
            yield answer(key)

    def __getitem__(self, key: Any) -> Any:
        side_effect()
        return answer(b"1")

    def __len__(self) -> int:
        side_effect()
        return 2


class Str(str):
    """A str whose comparison, hash and conversions have side effects."""

    __eq__ = calling(str.__eq__)
    __hash__ = calling(str.__hash__)
    __str__ = returning("another")
    encode = returning(b"another")


class UnequalStr(Str):
    """A str that differs from every other one, according to its comparison and hash."""

    __eq__ = returning(False)
    __ne__ = returning(True)
    __hash__ = calling(id)


class EqualStr(Str):
    """A str that equals every other one, according to its comparison, and has one hash."""

    __eq__ = returning(True)
    __ne__ = returning(False)
    __hash__ = returning(hash("binary_data_size"))


class Bytes(bytes):
    __len__ = returning(2**31)
    __getitem__ = returning(0)
    isdigit = returning(True)


class Int(int):
    """An int whose arithmetic returns wrong results."""

    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __mod__ = answering(0)
    __lt__ = __gt__ = __le__ = __ge__ = returning(False)
    __index__ = returning(2**63 - 1)


class Float(float):
    """A float whose conversions return wrong results."""

    __float__ = returning(float("nan"))
    __repr__ = returning("text")


class Integer(np.int64):
    """A numpy integer whose `item` returns an integer of the same kind."""

    def item(self, *_: Any) -> Any:
        side_effect()
        return self


class List(list[Any]):
    __len__ = returning(1000)
    __iter__ = calling(list.__iter__)

    def __getitem__(self, index: Any) -> Any:
        side_effect()
        return list.__getitem__(self, index) if list.__len__(self) else b""


class Tuple(tuple[Any, ...]):
    __slots__ = ()
    __len__ = returning(1000)
    __iter__ = calling(tuple.__iter__)
    __eq__ = returning(True)

    def __hash__(self) -> int:
        return 1


class Dict(dict[Any, Any]):
    get = answering(None)
    __contains__ = returning(False)
    keys = calling(dict.keys)
    __iter__ = calling(dict.__iter__)


class Array(np.ndarray[Any, Any]):
    """An array that calls `side_effect` whenever numpy creates a view of it."""

    __array_finalize__ = returning(None)

    def reshape(self, *shape: Any, **options: Any) -> Any:
        side_effect()
        return answer(self)

    def astype(self, *arguments: Any, **options: Any) -> Any:
        side_effect()
        return answer(self)


def plain() -> list[Callable[[], Any]]:
    """Return a function for each kind of hostile object that needs no value."""
    kinds: list[Callable[[], Any]] = [
        *(Index, Compares, EqualIndex, Iterates, HasArray, HasArrow, HasStream, HasDlpack, Getattr),
        *(Deleted, Cycle, Keys),
        *(lambda: Str("x"), lambda: Bytes(b"bytes"), lambda: Int(3), lambda: Int(2**63)),
        *(lambda: UnequalStr("x"), lambda: EqualStr("y"), lambda: Float(0.5), lambda: Integer(3)),
        lambda: {UnequalStr("k"): 1, UnequalStr("k"): 2},
        lambda: {UnequalStr("binary_data_size"): 4},
        *(lambda: List([b"a", "b"]), List, lambda: Tuple((2, 3)), lambda: Dict(k=1)),
        lambda: Dict(binary_data_size=4),
        lambda: np.arange(6, dtype=np.float32).view(Array),
        lambda: np.array([b"a", b"bc"], object).view(Array),
    ]
    if sys.version_info >= (3, 12):
        kinds.append(Buffer)
    return kinds


class Buffer:
    """A buffer that is implemented in Python, which CPython supports from 3.12 on."""

    def __buffer__(self, flags: int, /) -> memoryview:
        side_effect()
        view: memoryview = answer(memoryview(bytearray(b"\1\0\0\0a")))
        return view

    def __release_buffer__(self, view: memoryview, /) -> None:
        with suppress(Hostile):  # CPython can only print it, which pytest reports as an error
            side_effect()
