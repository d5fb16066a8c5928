"""BYTES elements used by several test files, and sequences of bytes that may be UTF-8."""

from __future__ import annotations

from collections.abc import Iterator

from support import reference

WORDS = [b"a", b"", b"b\0\0", "é".encode(), b"12345678901234567890"]
WIRE = reference.elements(WORDS)


def utf8_sequences() -> Iterator[bytes]:
    """Yield 1 to 4 bytes around the bounds of RFC 3629, valid and invalid ones."""
    edges = b"\x00\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xff"
    yield from (bytes([first]) for first in range(256))
    yield from (bytes([first, second]) for first in range(0x80, 256) for second in edges)
    for first in range(0xE0, 256):
        yield from (bytes([first, second, third]) for second in edges for third in edges)
    for first in (0xE0, 0xED, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5):
        for second in edges:
            yield from (bytes([first, second, third, last]) for third in edges for last in edges)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
