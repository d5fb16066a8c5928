"""Hostile objects for the target "api": arguments whose methods call tensorwire again.

Each method of these classes first calls `meddle`, which the target sets to something that raises
`Hostile`, runs any other operation on the objects in use, or does nothing. Then it returns what
`answer` chooses: a sensible value in half of the cases, and junk otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np


class Hostile(Exception):
    """Raised by a hostile object. Any call may propagate it."""


def _nothing() -> None:
    """Do nothing: outside of a run, hostile objects are harmless."""


def _sensible(sensible: Any) -> Any:
    return sensible


meddle: Callable[[], None] = _nothing
answer: Callable[[Any], Any] = _sensible


def connect(meddles: Callable[[], None], answers: Callable[[Any], Any]) -> None:
    """Set what all hostile objects call from now on."""
    global meddle, answer
    meddle, answer = meddles, answers


def disconnect() -> None:
    connect(_nothing, _sensible)


class Index:
    """An object with `__index__`, which may return a different integer each time."""

    def __index__(self) -> int:
        meddle()
        number: int = answer(1)
        return number

    __int__ = __index__

    def __float__(self) -> float:
        meddle()
        number: float = answer(1.0)
        return number


class Compares:
    """Compares equal to everything, or has an arbitrary result. Its hash is constant."""

    def __eq__(self, other: object) -> bool:
        meddle()
        equal: bool = answer(True)
        return equal

    def __hash__(self) -> int:
        meddle()
        return 1

    def __lt__(self, other: object) -> bool:
        meddle()
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __bool__(self) -> bool:
        meddle()
        return True


class EqualIndex(Index, Compares):
    """A dimension that equals every other dimension but converts to its own integer."""

    __hash__ = Compares.__hash__


class Iterates:
    """An iterable whose length differs from the number of items that it yields.

    Lengths that are too large are excluded, because `len` itself raises OverflowError for them.
    """

    def __len__(self) -> int:
        meddle()
        length = answer(2)
        return length if type(length) is int and 0 <= length < 2**63 else 5

    def __iter__(self) -> Iterator[Any]:
        for _ in range(3):
            meddle()
            yield answer(b"item")

    def __getitem__(self, index: Any) -> Any:
        meddle()
        return answer(b"item")


class HasArray:
    """An object with `__array__` only."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        meddle()
        return answer(np.arange(3, dtype=np.float32))


class HasArrow:
    """An object with `__arrow_c_array__`; what it returns comes from the objects in use."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        meddle()
        return answer(None)


class HasStream:
    """An object with `__arrow_c_stream__`."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        meddle()
        return answer(None)


class HasDlpack:
    """An object with `__dlpack__`."""

    def __dlpack__(self, **options: Any) -> Any:
        meddle()
        return answer(np.arange(3, dtype=np.float32).__dlpack__())

    def __dlpack_device__(self) -> tuple[int, int]:
        meddle()
        device: tuple[int, int] = answer((1, 0))
        return device


class Getattr:
    """Has every attribute except most special ones, with a different value each time."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not name.startswith(("__arrow", "__array", "__dlpack")):
            raise AttributeError(name)
        meddle()
        return answer(name)


class Deleted:
    """Calls `meddle` when it is deleted. Python ignores exceptions of `__del__`."""

    def __del__(self) -> None:
        try:
            meddle()
        except Exception:
            return


class Cycle(Deleted):
    """A reference cycle, which calls `meddle` when it is collected."""

    def __init__(self) -> None:
        self.itself = self


class Keys(Mapping[Any, Any]):
    """A mapping, also of HTTP headers and of parameters."""

    def __getitem__(self, key: Any) -> Any:
        meddle()
        return answer(b"1")

    def __iter__(self) -> Iterator[Any]:
        for key in ("Content-Type", "binary_data_size", "k"):
            meddle()
            yield answer(key)

    def __len__(self) -> int:
        meddle()
        return 2


class Str(str):
    """A str whose comparison, hash and conversions have side effects."""

    def __eq__(self, other: object) -> bool:
        meddle()
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        meddle()
        return str.__hash__(self)

    def __str__(self) -> str:
        meddle()
        return "another"

    def encode(self, *_: Any, **__: Any) -> bytes:
        meddle()
        return b"another"


class Bytes(bytes):
    def __len__(self) -> int:
        meddle()
        return 2**31

    def __getitem__(self, index: Any) -> Any:
        meddle()
        return 0

    def isdigit(self) -> bool:
        meddle()
        return True


class Int(int):
    """An int whose arithmetic returns wrong results."""

    def __add__(self, other: Any) -> Any:
        meddle()
        return answer(0)

    __radd__ = __sub__ = __mul__ = __rmul__ = __mod__ = __add__

    def __lt__(self, other: Any) -> bool:
        meddle()
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __index__(self) -> int:
        meddle()
        return 2**63 - 1


class List(list[Any]):
    def __len__(self) -> int:
        meddle()
        return 1000

    def __iter__(self) -> Iterator[Any]:
        meddle()
        return list.__iter__(self)

    def __getitem__(self, index: Any) -> Any:
        meddle()
        return list.__getitem__(self, index) if list.__len__(self) else b""


class Tuple(tuple[Any, ...]):
    __slots__ = ()

    def __len__(self) -> int:
        meddle()
        return 1000

    def __iter__(self) -> Iterator[Any]:
        meddle()
        return tuple.__iter__(self)

    def __eq__(self, other: object) -> bool:
        meddle()
        return True

    def __hash__(self) -> int:
        return 1


class Dict(dict[Any, Any]):
    def get(self, *_: Any) -> Any:
        meddle()
        return answer(None)

    def __contains__(self, key: object) -> bool:
        meddle()
        return False

    def keys(self) -> Any:
        meddle()
        return dict.keys(self)

    def __iter__(self) -> Iterator[Any]:
        meddle()
        return dict.__iter__(self)


class Array(np.ndarray[Any, Any]):
    """An array that calls `meddle` whenever numpy creates a view of it."""

    def __array_finalize__(self, obj: Any) -> None:
        meddle()

    def reshape(self, *shape: Any, **options: Any) -> Any:
        meddle()
        return answer(self)

    def astype(self, *arguments: Any, **options: Any) -> Any:
        meddle()
        return answer(self)


def plain() -> list[Callable[[], Any]]:
    """Return a function for each kind of hostile object that needs no value."""
    kinds: list[Callable[[], Any]] = [
        *(Index, Compares, EqualIndex, Iterates, HasArray, HasArrow, HasStream, HasDlpack, Getattr),
        *(Deleted, Cycle, Keys),
        *(lambda: Str("x"), lambda: Bytes(b"bytes"), lambda: Int(3), lambda: Int(2**63)),
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
        meddle()
        view: memoryview = answer(memoryview(bytearray(b"\1\0\0\0a")))
        return view

    def __release_buffer__(self, view: memoryview, /) -> None:
        meddle()
