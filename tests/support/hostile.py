"""Hostile objects: arguments whose methods lie, raise, or use tensorwire again.

Each method of these classes first calls `act`, which may raise `Hostile` or do anything else. Then
it returns a fixed result, or what `answer` returns for a sensible value. A test sets both functions
with `connect`. Until then, hostile objects do nothing and return sensible values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np


class Hostile(Exception):
    """Raised by a hostile object. Any call may pass it on."""


def _nothing() -> None:
    pass


def _sensible(value: Any) -> Any:
    return value


_act: Callable[[], None] = _nothing
_answer: Callable[[Any], Any] = _sensible


def connect(act: Callable[[], None] = _nothing, answer: Callable[[Any], Any] = _sensible) -> None:
    """Set the functions that all hostile objects call from now on; none by default."""
    global _act, _answer
    _act, _answer = act, answer


def returning(result: Any) -> Any:
    def method(*_: Any, **__: Any) -> Any:
        _act()
        return result

    return method


def answering(sensible: Any) -> Any:
    def method(*_: Any, **__: Any) -> Any:
        _act()
        return _answer(sensible)

    return method


def calling(function: Any) -> Any:
    def method(*arguments: Any) -> Any:
        _act()
        return function(*arguments)

    return method


# --- objects of no particular type ---


class Index:
    """Converts to a number at first, and afterwards to a larger one."""

    def __init__(self, first: int = 1) -> None:
        self.number = first

    def __index__(self) -> Any:
        _act()
        number, self.number = self.number, 2**30
        return _answer(number)

    __int__ = returning(100_000)
    __float__ = answering(1.0)


class Equal:
    """Compares equal to everything."""

    __eq__ = answering(True)
    __hash__ = returning(1)
    __lt__ = __gt__ = __le__ = __ge__ = returning(False)
    __bool__ = returning(True)


class EqualIndex(Index, Equal):
    """A dimension that equals every other one."""


class Iterates:
    """Yields another number of items than its length. `len` raises for other lengths."""

    def __len__(self) -> int:
        _act()
        length = _answer(2)
        return length if type(length) is int and 0 <= length < 2**63 else 5

    def __iter__(self) -> Iterator[Any]:
        for _ in range(3):
            _act()
            yield _answer(b"item")

    __getitem__ = answering(b"item")


class Keys(Mapping[Any, Any]):
    """A mapping of parameters or HTTP headers that has other items each time."""

    def __iter__(self) -> Iterator[Any]:
        for key in ("Content-Type", "binary_data_size", "k"):
            _act()
            yield _answer(key)

    __getitem__ = answering(b"1")
    __len__ = returning(2)


class HasArray:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        _act()
        return _answer(np.arange(3, dtype=np.float32))


class HasArrow:
    __arrow_c_array__ = answering(None)


class HasStream:
    __arrow_c_stream__ = answering(None)


class HasDlpack:
    def __dlpack__(self, **_: Any) -> Any:
        _act()
        return _answer(np.arange(3, dtype=np.float32).__dlpack__())

    __dlpack_device__ = answering((1, 0))


class HasBuffer:
    """A buffer that is implemented in Python, which CPython supports from 3.12 on."""

    def __buffer__(self, flags: int, /) -> memoryview:
        _act()
        view: memoryview = _answer(memoryview(bytearray(b"\1\0\0\0a")))
        return view

    def __release_buffer__(self, view: memoryview, /) -> None:
        with suppress(Hostile):  # CPython can only print it, which pytest reports as an error
            _act()


class HasAttributes:
    """Has every attribute that is not special, and the protocols of arrays."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not name.startswith(("__arrow", "__array", "__dlpack")):
            raise AttributeError(name)
        _act()
        return _answer(name)


class Cached:
    """Exports the objects that another producer has returned once, again and again."""

    def __init__(self, producer: Any, method: str) -> None:
        self.exported = getattr(producer, method)()
        setattr(self, method, self.export)

    def export(self, *_: Any, **__: Any) -> Any:
        _act()
        return self.exported

    __dlpack_device__ = answering((1, 0))


class Deleted:
    """Acts when it is deleted. Python ignores exceptions of `__del__`."""

    def __del__(self) -> None:
        with suppress(Exception):
            _act()


class Cycle(Deleted):
    """Acts when it is collected, because it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


# --- subclasses ---


class Str(str):
    __slots__ = ()
    __eq__ = calling(str.__eq__)
    __hash__ = calling(str.__hash__)
    __iter__ = returning(iter(()))
    __str__ = returning("another")
    encode = returning(b"another")


class UnequalStr(Str):
    """Differs from every other str, and has a hash of its own."""

    __slots__ = ()
    __eq__ = returning(False)
    __ne__ = returning(True)
    __hash__ = calling(id)


class EqualStr(Str):
    """Equals every other str, and has the hash of a reserved parameter."""

    __slots__ = ()
    __eq__ = returning(True)
    __ne__ = returning(False)
    __hash__ = returning(hash("binary_data_size"))


class Bytes(bytes):
    __len__ = returning(2**31)
    __getitem__ = returning(0)
    isdigit = returning(True)


class Int(int):
    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __mod__ = answering(0)
    __eq__ = returning(True)
    __ne__ = __lt__ = __gt__ = __le__ = __ge__ = returning(False)
    __hash__ = int.__hash__
    __index__ = returning(2**63 - 1)


class Float(float):
    __float__ = returning(float("nan"))
    __repr__ = returning("text")


class Integer(np.int64):
    """A numpy integer whose `item` returns an integer of the same kind."""

    def item(self, *_: Any) -> Any:
        _act()
        return self


class List(list[Any]):
    __len__ = returning(1000)
    __iter__ = calling(list.__iter__)

    def __getitem__(self, index: Any) -> Any:
        _act()
        return list.__getitem__(self, index) if list.__len__(self) else b""


class Tuple(tuple[Any, ...]):
    __slots__ = ()
    __len__ = returning(1000)
    __iter__ = calling(tuple.__iter__)
    __eq__ = returning(True)
    __hash__ = returning(1)


class Dict(dict[Any, Any]):
    get = answering(None)
    __contains__ = returning(False)
    keys = calling(dict.keys)
    __iter__ = calling(dict.__iter__)


class Array(np.ndarray[Any, Any]):
    """An array that acts whenever numpy creates a view of it, and whose conversions lie."""

    __array_finalize__ = returning(None)
    reshape = answering(np.zeros(1000))
    astype = answering(np.full(3, 0x0101010101010101))


# Functions that return a new hostile object.
KINDS: tuple[Callable[[], Any], ...] = (
    *(Index, Equal, EqualIndex, Iterates, Keys, Deleted, Cycle, HasAttributes),
    *(HasArray, HasArrow, HasStream, HasDlpack),
    *((HasBuffer,) if sys.version_info >= (3, 12) else ()),
    *(partial(kind, "x") for kind in (Str, UnequalStr, EqualStr)),
    *(partial(Bytes, b"bytes"), partial(Int, 3), partial(Int, 2**63), partial(Integer, 3)),
    *(partial(Float, 0.5), partial(List, [b"a", "b"]), List, partial(Tuple, (2, 3))),
    *(partial(Dict, k=1), partial(Dict, binary_data_size=4)),
    partial(dict, {UnequalStr("k"): 1, UnequalStr("k"): 2}),
    partial(dict, {UnequalStr("binary_data_size"): 4}),
    partial(lambda: np.arange(6, dtype=np.float32).view(Array)),
    partial(lambda: np.array([b"a", b"bc"], object).view(Array)),
)
