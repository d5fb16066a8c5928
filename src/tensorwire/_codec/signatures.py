"""Signatures of compiled classes, which ``inspect.signature`` and ``help`` show."""

from __future__ import annotations

from inspect import Signature, signature
from typing import Any


def constructor_signature(parameters: str) -> Signature:
    """Return the signature of a constructor with these parameters, which include their types."""
    scope: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef constructor({parameters}): ...", scope)
    return signature(scope["constructor"])
