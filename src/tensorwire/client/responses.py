"""Read HTTP responses without performing I/O.

A ``ResponseReader`` belongs to one connection. The connection receives into ``get_buffer()`` and
calls ``received(n)``, or ``eof()`` at the end of the stream, until ``complete`` is true. llhttp
(httptools) parses the head. The rest of a body whose length is known, and which is not compressed,
does not go through the parser: ``get_buffer()`` is then the free memory of the BodyBuffer, so that
the socket receives into the memory that the arrays will refer to. Every other body goes through
the parser, and is decompressed if it is compressed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

try:
    import httptools
except ImportError:
    raise ImportError(
        "an HTTP client requires httptools: pip install 'tensorwire[client]'"
    ) from None

import tensorwire as tw

from ..compression import Decompressor, is_supported
from ..errors import format_count, format_value

ERROR_NBYTES = 64 << 10
"""Maximum number of bytes that are read from the body of an error response."""

_SCRATCH_NBYTES = 64 << 10
# The limit of a head, including interim responses. Chunk headers between two parts of a body, and
# the trailer section, have the same limit.
_MAX_HEAD_NBYTES = 256 << 10
_HTTP2_SETTINGS = re.compile(rb"\x00..\x04.\x00{4}", re.DOTALL)  # the first frame (RFC 9113 3.4)
_TLS_ALERT = re.compile(rb"\x15\x03")  # (RFC 8446 5.1)
_WHITESPACE = b" \t"  # of HTTP headers; bytes.strip() without arguments removes more
_HEADERS = {  # the headers that are read
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"inference-header-content-length",
    b"location",
    b"retry-after",
    b"transfer-encoding",
}


class ResponseReader:
    """Reads the responses of one connection, one after another. ``start`` lists what is read."""

    def __init__(self, max_body_nbytes: int | None) -> None:
        self.max_body_nbytes = max_body_nbytes
        self._scratch = memoryview(bytearray(_SCRATCH_NBYTES))
        self._parser: Any = None
        self.start()

    def start(self, *, has_only_head: bool = False) -> None:
        """Prepare for the response to the next request.

        A successful response to CONNECT has only a head: what follows belongs to the tunnel.
        """
        self._has_only_head = has_only_head
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self.headers: dict[bytes, list[bytes]] = {}
        self._error: BaseException | None = None
        self._decompressor: Decompressor | None = None
        self._until_eof = False
        self._is_readable = True  # whether the body of an error response can be decompressed
        self._framing_nbytes = 0
        self.n_received = 0  # bytes of the response, including the head
        self.body_nbytes = 0  # bytes of the body that have arrived, before decompression
        self.status = 0  # until the head of the final response is complete
        self.reason = b""
        self.content_length: int | None = None
        self.header_length: int | None = None  # of a successful response
        self.buffer: Any = None  # a BodyBuffer for a successful response, decompressed
        self.error_body = b""  # the start of the body of any other response, decompressed
        self.is_direct = False  # whether get_buffer is the memory of the body
        self.complete = False
        self.reusable = False  # whether the connection can be used again

    def close(self) -> None:
        """Remove the references to the parser and the last error, which refer to this object."""
        self._parser = self._error = None

    # --- bytes that arrive ---

    def get_buffer(self) -> memoryview:
        """Return the memory to receive into. Release it before the next call of any method."""
        if self.is_direct:
            remaining: memoryview = self.buffer.remaining()
            return remaining
        return self._scratch

    def received(self, nbytes: int) -> None:
        """Process bytes in the memory of ``get_buffer``. Raises ConnectionError and DecodeError."""
        self.n_received += nbytes
        if self.is_direct:
            self.buffer.advance(nbytes)
            self.body_nbytes += nbytes
            if self.buffer.complete:
                self.complete, self.is_direct = True, False
        else:
            self._parse(nbytes)

    def eof(self, is_truncated: bool = False) -> None:
        """Process the end of the stream. Raises ConnectionError and DecodeError.

        If TLS was not closed, or the connection was reset, the stream may end anywhere
        (``is_truncated``). Such an end is not taken for the end of the body.
        """
        self.reusable = False
        if self.complete:
            return
        if self.n_received == 0:
            raise ConnectionError("the server closed the connection before it responded")
        if self.status >= 300:
            self.complete = True  # the start of an error message is better than none
        elif self._until_eof and not is_truncated:
            self._finish()
        elif self.status == 0:
            raise ConnectionError(
                "the server closed the connection before the head of the response was complete"
            )
        else:
            raise ConnectionError(
                "the server closed the connection before the body of the response was complete: "
                f"{format_count('byte', self.body_nbytes)} arrived"
                + ("" if self.content_length is None else f" of {self.content_length}")
            )

    def _parse(self, nbytes: int) -> None:
        body_nbytes = self.body_nbytes
        handled = sys.exc_info()[1]  # if the caller handles an exception, it becomes a context
        try:
            self._parser.feed_data(self._scratch[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._parser = None
            self.reusable = False
            if self._error is None and isinstance(error, httptools.HttpParserCallbackError):
                # A signal handler has raised an exception before a callback could catch it.
                self._error = None if error.__context__ is handled else error.__context__
            if self._error is not None:
                raise self._error from None
            if self.complete:  # the bytes after the response are invalid
                return
            if self.status == 0 and _HTTP2_SETTINGS.match(self._scratch[:nbytes]):
                raise ConnectionError(
                    "the server speaks HTTP/2, as gRPC servers do: use a grpc:// URL"
                ) from error
            if self.status == 0 and _TLS_ALERT.match(self._scratch[:nbytes]):
                raise ConnectionError("the server uses TLS: use an https:// URL") from error
            raise ConnectionError(f"the response is not valid HTTP: {error}") from error
        if self.complete:
            if not self.reusable:
                self._parser = None
            return
        # bytes of the head, of chunk headers or of trailers since the last part of the body
        self._framing_nbytes = (
            self._framing_nbytes + nbytes if body_nbytes == self.body_nbytes else 0
        )
        if self._framing_nbytes > _MAX_HEAD_NBYTES:
            part = "the head" if self.status == 0 else "a chunk header or the trailer section"
            raise ConnectionError(
                f"{part} of the response exceeds the limit of {_MAX_HEAD_NBYTES} bytes"
            )
        if self.buffer is not None and self.content_length is not None and not self._decompressor:
            self.is_direct = True
            self._parser = None  # it does not see the rest of this response

    # --- callbacks of the parser ---

    def on_message_begin(self) -> None:
        if self.complete:  # of a response that was not requested
            self.reusable = False

    def on_status(self, reason: bytes) -> None:
        if not self.complete:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key in _HEADERS and self.status == 0:  # later headers are trailers
            self.headers.setdefault(key, []).append(value.strip(_WHITESPACE))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:  # an interim response
            self.headers.clear()
            self.reason = b""
            return
        self.status = status
        try:
            if status < 100:
                raise ConnectionError(f"the response is not valid HTTP: status {status:03}")
            if self._has_only_head:
                self.complete = True
                return
            self._read_head()
        except BaseException as error:
            self._error = error
            raise

    def on_body(self, chunk: bytes) -> None:
        if self.complete:
            return
        self.body_nbytes += len(chunk)
        try:
            self._write(chunk)
        except BaseException as error:
            self._error = error
            raise
        if self.buffer is None and self.body_nbytes >= ERROR_NBYTES:
            self.complete, self.reusable = True, False  # the rest of the message is not read

    def on_message_complete(self) -> None:
        if self.status == 0 or self.complete:
            return
        if not self._parser.should_keep_alive():  # also because of a trailer
            self.reusable = False
        try:
            self._finish()
        except BaseException as error:
            self._error = error
            raise

    # --- the head and the body ---

    def _read_head(self) -> None:
        headers = self.headers
        self.reusable = self._parser.should_keep_alive()
        if self.status >= 500 and self.reusable:
            # Many servers close the connection after such a response without announcing it.
            values = b",".join(headers.get(b"connection", ())).lower().split(b",")
            self.reusable = b"keep-alive" in [value.strip(_WHITESPACE) for value in values]
        if b"content-length" in headers:  # the parser has checked it, but accepts any zeros
            self.content_length = int(headers[b"content-length"][0].lstrip(b"0") or 0)
        if b"transfer-encoding" in headers:
            coding = b",".join(headers[b"transfer-encoding"])
            if coding.lower() != b"chunked":
                raise _not_supported_error("Transfer-Encoding", coding)
        elif self.content_length is None:
            self._until_eof = True
        if b"content-encoding" in headers:
            encoding = b",".join(headers[b"content-encoding"]).lower()
            if is_supported(encoding):
                self._decompressor = Decompressor(encoding)
            elif encoding not in (b"", b"identity"):
                if 200 <= self.status < 300:
                    raise _not_supported_error("Content-Encoding", encoding)
                self._is_readable = False
        if 200 <= self.status < 300:
            names = (b"inference-header-content-length", b"content-type")
            self.header_length = tw.header_length(
                [(name, value) for name in names for value in headers.get(name, ())]
            )
            length = None if self._decompressor else self.content_length
            self.buffer = tw.BodyBuffer(length, self.header_length, max_nbytes=self.max_body_nbytes)

    def _write(self, chunk: bytes) -> None:
        if not self._is_readable:
            return
        pieces: Iterable[bytes] = (chunk,)
        if self._decompressor is not None:  # the chunk is at most as large as the scratch memory
            pieces = self._decompressor.pieces(chunk)
        try:
            for piece in pieces:
                if self.buffer is not None:
                    self.buffer.write(piece)
                    continue
                self.error_body += piece[: ERROR_NBYTES - len(self.error_body)]
                if len(self.error_body) == ERROR_NBYTES:
                    break
        except tw.DecompressionError as error:
            if self.buffer is not None:
                raise tw.DecompressionError(
                    f"the compressed response is invalid: {error}"
                ) from None
            self._is_readable = False  # the status of the error is more important

    def _finish(self) -> None:
        is_complete = self._decompressor is None or self._decompressor.is_complete
        if not is_complete and self.buffer is not None and self.body_nbytes > 0:
            raise tw.DecompressionError(
                f"the compressed response is truncated after "
                f"{format_count('byte', self.body_nbytes)} "
                f"({format_count('byte', len(self.buffer))} decompressed)"
            )
        self.complete = True


def first_value(headers: dict[bytes, list[bytes]], name: bytes) -> str | None:
    values = headers.get(name)
    return None if values is None else values[0].decode("latin-1")


def _not_supported_error(header: str, value: bytes) -> tw.DecompressionError:
    shown = format_value(value.decode("latin-1"))
    return tw.DecompressionError(f"the response has {header} {shown}, which is not supported")
