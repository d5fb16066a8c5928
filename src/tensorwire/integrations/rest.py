"""What the REST servers of KServe and MLServer share: bodies, metadata, and values in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._codec.body_buffer import BodyBuffer
from ..arguments import check_integer
from ..http import EXTENSION
from ..server.asgi import AsgiMessage, Receive, Scope, Send, chunk_of
from ..server.framing import Framing
from ..sizes import DEFAULT_MAX_BODY_NBYTES
from .patching import Function, Patch, Untested


class InstallRest(Protocol):
    """The type of `RestPatch.install`."""

    def __call__(
        self, *, untested: Untested = "known", max_body_nbytes: int = DEFAULT_MAX_BODY_NBYTES
    ) -> None: ...


class RestPatch(Patch):
    """The replacements for a package with a REST server. See ``Patch``."""

    max_body_nbytes = DEFAULT_MAX_BODY_NBYTES

    def install(
        self, *, untested: Untested = "known", max_body_nbytes: int = DEFAULT_MAX_BODY_NBYTES
    ) -> None:
        """Make the package use this codec in the whole process.

        A second call has no effect, except that its ``max_body_nbytes`` applies from then on. This
        function is thread-safe.

        Parameters
        ----------
        untested
            What to do about functions that differ from those that the integration was tested with.
            See ``tensorwire.integrations.tritonclient.install``.
        max_body_nbytes
            Maximum length of the body of a request to a REST endpoint that the integration reads,
            in bytes, before and after decompression. The status for longer ones is 413.

        Raises
        ------
        IntegrationError
            As for ``tensorwire.integrations.tritonclient.install``.
        TypeError
            ``max_body_nbytes`` is not an int.
        ValueError
            ``untested`` has another value, or ``max_body_nbytes`` is less than 1.
        """
        limit = check_integer("max_body_nbytes", max_body_nbytes, minimum=1)
        super().install(untested=untested)
        self.max_body_nbytes = limit

    def options(self) -> dict[str, Any]:
        """Return the arguments with which another process installs the same."""
        return {"untested": self.untested, "max_body_nbytes": self.max_body_nbytes}


# --- requests ------------------------------------------------------------------------------------


async def receive_body(
    scope: Scope, receive: Receive, max_body_nbytes: int
) -> tuple[Framing, BodyBuffer]:
    """Return what the headers of a request say about its body, and the body as it was sent.

    Raises DecodeError, ClientDisconnectedError, and BodyTooLargeError if the body is longer than
    ``max_body_nbytes``.
    """
    framing = Framing(scope["headers"])
    body = BodyBuffer(framing.content_length, framing.header_length, max_nbytes=max_body_nbytes)
    more = True
    while more:
        chunk, more = chunk_of(await receive())
        body.write(chunk)
    return framing, body


def has_binary_data(request: Any) -> bool:
    """Return whether a parsed JSON request has an input with ``binary_data_size``."""
    inputs = request.get("inputs") if isinstance(request, dict) else None
    for tensor in inputs if isinstance(inputs, list) else ():
        parameters = tensor.get("parameters") if isinstance(tensor, dict) else None
        if isinstance(parameters, dict) and "binary_data_size" in parameters:
            return True
    return False


def text_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request with lower-case names: of several, the first value."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return headers


def receive_again(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI receive callable that returns a body again before it continues."""
    pending: list[AsgiMessage] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_first() -> AsgiMessage:
        return pending.pop() if pending else await receive()

    return receive_first


# --- responses -----------------------------------------------------------------------------------


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI requires them."""
    return [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]


async def send_body(send: Send, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a response with status 200."""
    sent = [(b"content-length", b"%d" % len(body)), *raw_headers(headers)]
    await send({"type": "http.response.start", "status": 200, "headers": sent})
    await send({"type": "http.response.body", "body": body})


def replace_metadata(original: Function) -> Function:
    """Replace the method that returns the metadata of the server: they list the extension."""

    async def metadata(self: Any) -> Any:
        found = await original(self)
        if EXTENSION in found.extensions:
            return found
        return found.model_copy(update={"extensions": [*found.extensions, EXTENSION]})

    return metadata


# --- values in JSON ------------------------------------------------------------------------------


def flat_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of an array for orjson, which writes them as a flat list.

    FP16 and FP32 are converted to FP64, as Python does: 0.1 becomes 0.10000000149011612.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(np.float64) if flat.dtype.kind == "f" else flat
