"""BYTES elements used by several test files, and their encoded form."""

from __future__ import annotations

from support import reference

WORDS = [b"a", b"", b"b\0\0", "é".encode(), b"12345678901234567890"]
WIRE = reference.elements(WORDS)
