"""The exceptions, one tree split by whose fault it is and where it lies, and their common words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TensorwireError(Exception):
    """Anything that tensorwire refuses.

    Attributes, each ``None`` when it does not apply: ``tensor`` (name), ``element`` (flat row-major
    index), ``offset`` (byte position in the body or buffer), ``expected`` and ``actual`` (the two
    numbers that disagree, in the unit that the message names).
    """

    status: int = 500

    def __init__(
        self,
        message: str,
        *,
        tensor: str | None = None,
        element: int | None = None,
        offset: int | None = None,
        expected: int | None = None,
        actual: int | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.tensor = tensor
        self.element = element
        self.offset = offset
        self.expected = expected
        self.actual = actual
        if status is not None:
            self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self.__dict__


class DecodeError(TensorwireError, ValueError):
    """The bytes are not a message. ``status`` is what a server answers: 400."""

    status = 400


class HeaderError(DecodeError):
    """The JSON header, or its length, breaks a rule (WIRE.md 1, 3 and 4)."""


class LayoutError(DecodeError):
    """Sizes, shapes and the body's coverage disagree (WIRE.md 1, 3, 4 and 5)."""


class ElementError(DecodeError):
    """One element of a BYTES, BOOL or JSON tensor is wrong (WIRE.md 2 to 4)."""


class EncodeError(TensorwireError, ValueError):
    """The message cannot be written.

    ``status`` is 500, a server's own mistake, or 400 when the client's choice of outputs cannot be
    met (FP16 as JSON).
    """


class IntegrationError(TensorwireError, ImportError):
    """Another package is not the one that an integration knows; nothing of it was changed.

    ``distribution``; ``installed``, its version, ``None`` when it is missing; ``tested``, what the
    integration was tested with (``"2.60 to 2.73"``).
    """

    def __init__(
        self,
        message: str,
        *,
        distribution: str | None = None,
        installed: str | None = None,
        tested: str | None = None,
    ) -> None:
        super().__init__(message)
        self.distribution = distribution
        self.installed = installed
        self.tested = tested


def subject(kind: str, name: str | None) -> str:
    """What a message speaks of: ``input 'image'``, or only ``the buffer`` when it has no name."""
    if name is None:
        return f"the {kind}"
    return f"{kind} {name!r}" if len(name) <= 80 else f"{kind} {name[:80]!r}..."


def number_text(number: int) -> str:
    """An integer from a stranger in bounded space; Python itself refuses to print the longest."""
    return str(number) if number.bit_length() <= 64 else "more than 2^64"


def plural(noun: str, number: int) -> str:
    """The noun as it stands behind a number: ``byte`` for 1, ``bytes`` for any other."""
    return noun if number == 1 else f"{noun}s"


def shape_text(shape: Sequence[int]) -> str:
    """A shape from a stranger in bounded space: ``[2, 3]``, ``[1, 1, ... 900 dimensions]``."""
    dims = [number_text(dim) for dim in shape[:8]]
    if len(shape) > 8:
        dims.append(f"... {len(shape)} dimensions")
    return f"[{', '.join(dims)}]"
