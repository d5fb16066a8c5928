"""Compressed HTTP bodies: gzip, deflate and zstd, in steps of limited size.

zlib detects whether data has a zlib or a gzip header. Therefore zlib data with the encoding
``gzip`` is accepted, and gzip data with the encoding ``deflate``. zstd is in the standard library
of Python 3.14; before, the package backports.zstd has the same functions.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

from .errors import DecompressionError
from .sizes import PIECE_NBYTES

# Encoders for HTTP use windows of up to 8 MiB (RFC 9659), which the decoder has to allocate.
_MAX_WINDOW_LOG = 23
_NO_MEMORY = ("not enough memory", "Error -4 ")  # in errors of zstd and zlib
_ZLIB_NAMES = (b"gzip", b"x-gzip", b"deflate")


@cache
def find_zstd() -> Any:
    """Return the module of zstd, or None if it is not installed."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return import_module(name)
    except ImportError:
        return None


def is_supported(encoding: bytes) -> bool:
    """Return whether a Content-Encoding, in lower case, can be decompressed."""
    return encoding in _ZLIB_NAMES or (encoding == b"zstd" and find_zstd() is not None)


class Decompressor:
    """Decompresses one body, which is one member of gzip or one frame of zstd.

    Parameters
    ----------
    encoding : bytes
        A supported Content-Encoding.

    Raises
    ------
    MemoryError
        There is no memory for the state.
    """

    def __init__(self, encoding: bytes) -> None:
        self._is_zstd = encoding == b"zstd"
        if self._is_zstd:
            zstd = find_zstd()
            self._error: type[Exception] = zstd.ZstdError
            options = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
            try:
                self._state: Any = zstd.ZstdDecompressor(options=options)
            except zstd.ZstdError:  # the options are valid, so there is no other reason
                raise MemoryError from None
        else:
            self._error = zlib.error
            self._state = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: detect the header

    @property
    def is_complete(self) -> bool:
        """Whether the end of the compressed data has arrived."""
        return bool(self._state.eof)

    def pieces(self, chunk: bytes | memoryview) -> Iterator[bytes]:
        """Decompress a chunk, in pieces of up to 1 MiB.

        zlib copies the unconsumed rest of a chunk at every step. Pass chunks of limited size.
        Raises DecompressionError, also for other data after the end of the compressed data, and
        MemoryError.
        """
        state = self._state
        if state.eof:
            raise DecompressionError("it is followed by other data")
        try:
            yield state.decompress(chunk, PIECE_NBYTES)
            if self._is_zstd:
                while not (state.eof or state.needs_input):
                    yield state.decompress(b"", PIECE_NBYTES)
            else:
                # At the end, the data that follows may be in unconsumed_tail, too.
                while not state.eof and (rest := state.unconsumed_tail):
                    yield state.decompress(rest, PIECE_NBYTES)
        except self._error as error:
            if any(text in str(error) for text in _NO_MEMORY):
                raise MemoryError from None
            raise DecompressionError(str(error)) from None
        if state.unused_data:
            raise DecompressionError("it is followed by other data")


def compress(chunks: Iterable[bytes | memoryview], encoding: str) -> bytes:
    """Return the compressed chunks: "gzip", "deflate" (the zlib format) or "zstd"."""
    compressor: Any
    if encoding == "zstd":
        compressor = find_zstd().ZstdCompressor()
    else:
        wbits = zlib.MAX_WBITS | (16 if encoding == "gzip" else 0)  # 16: with the header of gzip
        compressor = zlib.compressobj(wbits=wbits)
    compressed = [compressor.compress(chunk) for chunk in chunks]
    return b"".join((*compressed, compressor.flush()))
