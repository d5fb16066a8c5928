"""Signatures of compiled classes, which ``inspect.signature`` and ``help`` show, and types."""

from __future__ import annotations

from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, Literal

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

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
]
"""The name of a datatype of the protocol."""

Nonfinite = Literal["null", "literal", "error"]
"""How to write numbers that are not finite as JSON."""

Selection = Literal["spec", "triton"]
"""Which outputs of a response are binary: see ``encode_response``."""


def constructor_signature(parameters: str) -> Signature:
    """Return the signature of a constructor with these parameters, which include their types."""
    scope: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef constructor({parameters}): ...", scope)
    return signature(scope["constructor"])
