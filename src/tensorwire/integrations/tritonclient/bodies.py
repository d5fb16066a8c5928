"""Send and receive large bodies through the HTTP libraries of tritonclient with fewer copies.

tritonclient.http uses geventhttpclient, and tritonclient.http.aio uses aiohttp. Nothing in these
libraries is replaced. They get request bodies of a type that they send without joining its parts.
Responses of geventhttpclient are received into the memory of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from inspect import getattr_static
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...sizes import PIECE_NBYTES
from ..functions import foreign_code
from .convert import is_large

# --- requests ------------------------------------------------------------------------------------


class HttpLibrary(NamedTuple):
    """An HTTP library that a client of tritonclient uses.

    ``stub_name`` is the attribute of a client that sends requests, an object of ``stub_class``.
    ``methods`` are those of the stub that a body passes through. ``body_type`` creates a body from
    a list of buffers.
    """

    stub_name: str
    stub_class: type
    methods: tuple[str, ...]
    body_type: Callable[[list[Any]], Any]

    def is_plain(self, client: Any) -> bool:
        """Return whether a body goes from the client to the HTTP library without other code.

        Other code, by which a program has replaced or wrapped a part of the client, may expect
        `bytes`.
        """
        stub = getattr(client, self.stub_name, None)
        return type(stub) is self.stub_class and not any(
            name in vars(owner)
            or foreign_code(getattr_static(type(owner), name), package) is not None
            for owner, name, package in (
                (client, "_post", "tritonclient"),
                *((stub, name, self.stub_class.__module__) for name in self.methods),
            )
        )


def joined_runs(buffers: Sequence[Any]) -> list[Any]:
    """Join the small buffers that follow each other. Large ones are not copied."""
    runs: list[Any] = []
    small: list[Any] = []
    for buffer in buffers:
        if not is_large(buffer):
            small.append(buffer)
            continue
        runs += [b"".join(small), memoryview(buffer)]
        small = []
    runs.append(b"".join(small))
    return [run for run in runs if len(run)]


class FileBody:
    """A request body that geventhttpclient sends like a file, buffer by buffer.

    ``read`` returns a whole buffer, whatever size is requested, because the caller only passes it
    to the socket.
    """

    def __init__(self, buffers: Sequence[Any]) -> None:
        self._buffers = joined_runs(buffers)
        self._nbytes = sum(map(len, self._buffers))
        self._n_read = 0

    def __len__(self) -> int:
        """Return the number of bytes, which is sent as Content-Length."""
        return self._nbytes

    @property
    def mode(self) -> str:
        """Return that this is a binary file.

        The socket reads this attribute before it sends the file, and ``read`` then begins with the
        first buffer again: older versions of geventhttpclient repeat a request if the server has
        closed the connection meanwhile.
        """
        self._n_read = 0
        return "rb"

    def read(self, size: int = -1) -> Any:
        """Return the next buffer, or no bytes at the end."""
        if self._n_read == len(self._buffers):
            return b""
        self._n_read += 1
        return self._buffers[self._n_read - 1]


@cache
def payload_class() -> Any:
    """Return the class of request bodies that aiohttp sends buffer by buffer."""
    from aiohttp.payload import Payload  # noqa: PLC0415 - only programs with asyncio have it loaded

    class BuffersPayload(Payload):
        """A request body of several buffers. It can be sent repeatedly, as redirects require."""

        _autoclose = True  # nothing has to be closed

        def __init__(self, buffers: Sequence[Any]) -> None:
            super().__init__(joined_runs(buffers))
            self._size = sum(map(len, self._value))

        def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
            return b"".join(self._value).decode(encoding, errors)

        async def write(self, writer: Any) -> None:
            # asyncio may copy what the socket does not take at once, so the pieces are small.
            for buffer in self._value:
                view = memoryview(buffer)
                for begin in range(0, len(view), PIECE_NBYTES):
                    await writer.write(view[begin : begin + PIECE_NBYTES])

    return BuffersPayload


# --- responses -----------------------------------------------------------------------------------


def receive_rest(response: Any) -> NDArray[np.uint8] | None:
    """Receive the rest of a response of geventhttpclient, after its JSON header was read.

    The bytes go from the socket to the array that is returned, which is read-only. They do not pass
    through the HTTP parser, which would receive them in pieces of 4 KB and copy them three times.

    Returns None, and has received nothing, if the rest has arrived, or the response has no
    Content-Length, or the memory is too small for it.
    """
    try:
        sock, begun = response._sock, response._body_buffer
        if sock is None or response.message_complete or "content-length" not in response:
            return None
        rest = np.empty(len(begun) + response.get_remaining_content_length(), np.uint8)
    # another version of geventhttpclient, or a wrong length, which may be negative there
    except (AttributeError, MemoryError, ValueError):
        return None
    n_received = len(begun)
    rest[:n_received] = np.frombuffer(begun, np.uint8)
    view = memoryview(rest)  # type: ignore[arg-type]
    try:
        while n_received < len(rest):
            n_new = sock.recv_into(view[n_received:])
            if n_new == 0:
                response.feed(b"")  # raises the error of the parser, unless it has none
                from geventhttpclient.response import HTTPConnectionClosed  # noqa: PLC0415 - optional

                raise HTTPConnectionClosed(
                    f"the connection was closed after {n_received} of {len(rest)} bytes of the "
                    f"binary data"
                )
            n_received += n_new
    except BaseException:
        response.release()  # closes the connection, because the message is not complete
        raise
    begun.clear()
    response.message_complete = True
    response.release()  # returns the connection to the pool, unless the server closes it
    rest.flags.writeable = False
    return rest
