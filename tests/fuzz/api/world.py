"""The pool of live objects of one episode, and the checks after each call into tensorwire."""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tensorwire as tw
from fuzz import hostile
from fuzz.api.values import MAKERS, junk
from fuzz.comparison import MAX_TEXT
from fuzz.hostile import Hostile

MAX_POOL = 24
MAX_DEPTH = 3  # of operations that hostile objects run within operations
Operation = Callable[["World"], Any]
OPERATIONS: list[Operation] = []


def operation(function: Operation) -> Operation:
    OPERATIONS.append(function)
    return function


class Choices:
    """A stream of bytes that are read as choices. At its end every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.data)

    def below(self, n: int) -> int:
        if self.is_over:
            return 0
        self.at += 1
        return self.data[self.at - 1] % n

    def of(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]

    def one_in(self, n: int) -> bool:
        return not self.is_over and self.below(n) == n - 1


class World:
    """The objects of one episode and its remaining choices."""

    def __init__(self, data: bytes) -> None:
        self.choices: Choices = Choices(data)
        self.pool: list[Any] = []
        self.kept: list[Any] = []  # owners of memory that capsules refer to
        self.depth = 0
        self.n_steps = 0
        self.n_side_effects = 0
        self.trace: Callable[[str], None] | None = None

    # --- steps ---

    def run(self) -> None:
        hostile.connect(self.side_effect, self.answer)
        try:
            while not self.choices.is_over:
                self.step()
        finally:
            hostile.disconnect()

    def step(self) -> None:
        function = self.choices.of(OPERATIONS)
        self.n_steps += 1
        if self.trace is not None:
            self.trace(f"{'  ' * self.depth}{self.n_steps} {function.__name__}")
        with contextlib.suppress(Hostile):
            self.keep(function(self))

    def keep(self, value: Any) -> Any:
        """Put a result into the pool; if the pool is full, replace another object."""
        if value is None:
            return None
        if len(self.pool) < MAX_POOL:
            self.pool.append(value)
        else:
            at = self.choices.below(MAX_POOL)
            dropped = self.pool[at]
            self.pool[at] = value
            del dropped  # only now, because its __del__ may use the pool
        return value

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function of tensorwire and check its exception; return None if it raised one."""
        if self.trace is not None:
            types = [type(argument).__name__ for argument in (*arguments, *options.values())]
            self.trace(f"{'  ' * self.depth}  {getattr(function, '__name__', function)} {types}")
        try:
            return function(*arguments, **options)
        except Hostile:
            raise
        except tw.TensorwireError as error:
            assert len(str(error)) <= MAX_TEXT
            self.check_error(error)
        except Exception as error:
            if not is_documented(error):
                raise
            assert len(str(error)) <= MAX_TEXT
        return None

    def check_error(self, error: tw.TensorwireError) -> None:
        text = str(error)
        assert error.tensor is None or isinstance(error.tensor, str)
        for number in (error.element, error.offset, error.expected, error.actual):
            assert number is None or isinstance(number, int), (text, type(number))
        assert error.status in (400, 413, 500)
        assert error.element is None or error.element >= 0
        assert error.offset is None or error.offset >= 0
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.offset) == (type(error), text, error.offset)

    # --- called by hostile objects ---

    def side_effect(self) -> None:
        """Do nothing, raise an exception, or run further steps within the step."""
        self.n_side_effects += 1
        if self.depth >= MAX_DEPTH or self.choices.is_over:
            return
        action = self.choices.below(8)
        if action == 1:
            raise Hostile
        if action == 2:
            self.pool.clear()
        elif action == 3:
            gc.collect()
        elif action >= 4:
            self.depth += 1
            try:
                self.step()
            finally:
                self.depth -= 1

    def answer(self, sensible: Any) -> Any:
        if self.choices.one_in(2):
            return junk(self)
        return sensible

    # --- arguments ---

    def pick(self, *kinds: type) -> Any:
        """Return an object of the pool that has one of these types, or a new one of the first."""
        found = [item for item in self.pool if isinstance(item, kinds)]
        if found:
            return self.choices.of(found)
        return self.keep(MAKERS[kinds[0]](self))

    def or_junk(self, make: Callable[[], Any]) -> Any:
        """Return a sensible argument, or junk in one of eight cases."""
        if self.choices.one_in(8):
            return junk(self)
        return make()


def is_documented(error: Exception) -> bool:
    """Return whether a call into tensorwire may raise this exception.

    A RecursionError for a structure that contains itself comes from CPython, and so do errors that
    a hostile number causes in Python's formatting.

    In Python 3.11, iter() of a released memoryview returns an iterator and sets an exception. In
    functions that atheris has instrumented, it calls a function of its own before the first item,
    and that call then raises SystemError.
    """
    if isinstance(error, SystemError) and "released memoryview" in str(error.__cause__):
        return "atheris" in sys.modules
    documented = (TypeError, ValueError, BufferError, IndexError, KeyError, MemoryError)
    if isinstance(error, np.ma.MaskError):  # np.ma.masked has no bool and no integer
        return True
    return isinstance(error, documented) and not isinstance(error, Warning)


def read(world: World, item: Any) -> None:
    """Read every byte of a tensor."""
    data = item.data if isinstance(item, tw.Tensor) else item
    if isinstance(data, tw.BytesArray):
        joined = world.call(bytes, data.wire)
        if joined is not None:
            assert len(joined) == data.nbytes
        elements = world.call(data.as_numpy)
        if elements is not None:
            assert elements.shape == data.shape
            assert elements.size == data.size
    elif isinstance(data, np.ndarray) and data.size < 2**20:
        np.asarray(data).tobytes()
