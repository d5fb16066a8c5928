"""Signatures of compiled classes, which ``inspect.signature`` and ``help`` show, and a type."""

from __future__ import annotations

from inspect import Signature, signature
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    try:
        from collections.abc import Buffer
    except ImportError:  # before Python 3.12
        Buffer = Any

# numpy declares the buffer protocol for its arrays only from Python 3.12 on.
ReadableBuffer = Buffer | NDArray[Any]


def constructor_signature(parameters: str) -> Signature:
    """Return the signature of a constructor with these parameters, which include their types."""
    scope: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef constructor({parameters}): ...", scope)
    return signature(scope["constructor"])
