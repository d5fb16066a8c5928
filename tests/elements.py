"""BYTES elements of several test files, and their wire form."""

from __future__ import annotations

import wire

WORDS = [b"a", b"", b"b\0\0", "é".encode(), b"12345678901234567890"]
WIRE = wire.elements(WORDS)
