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


class Index:
    """An object with `__index__`, which may return a different integer each time."""

    def __index__(self) -> int:
        side_effect()
        number: int = answer(1)
        return number

    __int__ = __index__

    def __float__(self) -> float:
        side_effect()
        number: float = answer(1.0)
        return number


class Compares:
    """Compares equal to everything, or has an arbitrary result. Its hash is constant."""

    def __eq__(self, other: object) -> bool:
        side_effect()
        equal: bool = answer(True)
        return equal

    def __hash__(self) -> int:
        side_effect()
        return 1

    def __lt__(self, other: object) -> bool:
        side_effect()
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __bool__(self) -> bool:
        side_effect()
        return True


class EqualIndex(Index, Compares):
    """A dimension that equals every other dimension but converts to its own integer."""

    __hash__ = Compares.__hash__


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

    def __getitem__(self, index: Any) -> Any:
        side_effect()
        return answer(b"item")


class HasArray:
    """An object with `__array__` only."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        side_effect()
        return answer(np.arange(3, dtype=np.float32))


class HasArrow:
    """An object with `__arrow_c_array__`; what it returns comes from the objects in use."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        side_effect()
        return answer(None)


class HasStream:
    """An object with `__arrow_c_stream__`."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        side_effect()
        return answer(None)


class HasDlpack:
    """An object with `__dlpack__`."""

    def __dlpack__(self, **options: Any) -> Any:
        side_effect()
        return answer(np.arange(3, dtype=np.float32).__dlpack__())

    def __dlpack_device__(self) -> tuple[int, int]:
        side_effect()
        device: tuple[int, int] = answer((1, 0))
        return device


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

    def __getitem__(self, key: Any) -> Any:
        side_effect()
        return answer(b"1")

    def __iter__(self) -> Iterator[Any]:
        for key in ("Content-Type", "binary_data_size", "k"):
            side_effect()
            yield answer(key)

    def __len__(self) -> int:
        side_effect()
        return 2


class Str(str):
    """A str whose comparison, hash and conversions have side effects."""

    def __eq__(self, other: object) -> bool:
        side_effect()
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        side_effect()
        return str.__hash__(self)

    def __str__(self) -> str:
        side_effect()
        return "another"

    def encode(self, *_: Any, **__: Any) -> bytes:
        side_effect()
        return b"another"


class UnequalStr(Str):
    """A str that differs from every other one, according to its comparison and hash."""

    def __eq__(self, other: object) -> bool:
        side_effect()
        return False

    def __ne__(self, other: object) -> bool:
        side_effect()
        return True

    def __hash__(self) -> int:
        side_effect()
        return id(self)


class EqualStr(Str):
    """A str that equals every other one, according to its comparison, and has one hash."""

    def __eq__(self, other: object) -> bool:
        side_effect()
        return True

    def __ne__(self, other: object) -> bool:
        side_effect()
        return False

    def __hash__(self) -> int:
        side_effect()
        return hash("binary_data_size")


class Bytes(bytes):
    def __len__(self) -> int:
        side_effect()
        return 2**31

    def __getitem__(self, index: Any) -> Any:
        side_effect()
        return 0

    def isdigit(self) -> bool:
        side_effect()
        return True


class Int(int):
    """An int whose arithmetic returns wrong results."""

    def __add__(self, other: Any) -> Any:
        side_effect()
        return answer(0)

    __radd__ = __sub__ = __mul__ = __rmul__ = __mod__ = __add__

    def __lt__(self, other: Any) -> bool:
        side_effect()
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __index__(self) -> int:
        side_effect()
        return 2**63 - 1


class Float(float):
    """A float whose conversions return wrong results."""

    def __float__(self) -> float:
        side_effect()
        return float("nan")

    def __repr__(self) -> str:
        side_effect()
        return "text"


class Integer(np.int64):
    """A numpy integer whose `item` returns an integer of the same kind."""

    def item(self, *_: Any) -> Any:
        side_effect()
        return self


class List(list[Any]):
    def __len__(self) -> int:
        side_effect()
        return 1000

    def __iter__(self) -> Iterator[Any]:
        side_effect()
        return list.__iter__(self)

    def __getitem__(self, index: Any) -> Any:
        side_effect()
        return list.__getitem__(self, index) if list.__len__(self) else b""


class Tuple(tuple[Any, ...]):
    __slots__ = ()

    def __len__(self) -> int:
        side_effect()
        return 1000

    def __iter__(self) -> Iterator[Any]:
        side_effect()
        return tuple.__iter__(self)

    def __eq__(self, other: object) -> bool:
        side_effect()
        return True

    def __hash__(self) -> int:
        return 1


class Dict(dict[Any, Any]):
    def get(self, *_: Any) -> Any:
        side_effect()
        return answer(None)

    def __contains__(self, key: object) -> bool:
        side_effect()
        return False

    def keys(self) -> Any:
        side_effect()
        return dict.keys(self)

    def __iter__(self) -> Iterator[Any]:
        side_effect()
        return dict.__iter__(self)


class Array(np.ndarray[Any, Any]):
    """An array that calls `side_effect` whenever numpy creates a view of it."""

    def __array_finalize__(self, obj: Any) -> None:
        side_effect()

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
