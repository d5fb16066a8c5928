"""The context of a request: what a model may know of it besides its message."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from types import MappingProxyType

from ..arguments import check_type
from ..errors import format_value
from ..http import HEADER_LENGTH, HasItems

Address = tuple[str, int]

# What HTTP and the metadata of gRPC allow. gRPC reserves names that begin with grpc-, and the
# values of names that end in -bin are not text.
_NAME = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
_VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")
_OF_SERVER = {
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade"),
    *("content-encoding", "content-length", "content-type", "transfer-encoding"),
    *("date", "server"),
    HEADER_LENGTH.lower(),
}


class RequestContext:
    """What a model may know of a request besides its message; and the headers of its response.

    A function with a parameter ``context`` gets it: ``function(request, context=...)``. It can be
    used in any thread, and also after the response was sent. In tests of a model, make one.
    ``client`` and ``deadline`` are attributes, too.

    Parameters
    ----------
    headers : mapping or iterable of pairs, default ()
        The HTTP headers, as ``str`` or ``bytes``. The case of names does not matter.
    client : tuple of str and int, optional
        The address of the client and its port, as in ASGI; None for a Unix socket. A proxy that the
        server trusts may have forwarded the address; the port is then 0.
    deadline : float, optional
        When the client stops waiting, as a time of ``time.monotonic()``: the deadline of a gRPC
        call. None if the call has none, and always over HTTP.

    Examples
    --------
    >>> from tensorwire.server import RequestContext, RequestError
    >>> def double(request, context):
    ...     if context.headers.get("x-tenant") != "a":
    ...         context.response_headers["retry-after"] = "5"
    ...         raise RequestError("the quota of the tenant is used up", 429)
    ...     return {"y": request["x"].as_numpy() * 2}

    In a test:

    >>> import numpy as np
    >>> import tensorwire as tw
    >>> context = RequestContext({"X-Tenant": "a"})
    >>> double(tw.InferRequest({"x": np.array([1.5])}), context)
    {'y': array([3.])}
    """

    def __init__(
        self,
        headers: HasItems | Iterable[tuple[str | bytes, str | bytes]] = (),
        client: Address | None = None,
        deadline: float | None = None,
    ) -> None:
        self._received = headers
        self._headers: Mapping[str, str] | None = None
        self.client = client
        self.deadline = deadline
        self._response_headers = ResponseHeaders()

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the request, with names in lower case; over gRPC, the metadata.

        The mapping is read-only. Bytes are decoded as Latin-1. The values of a repeated header are
        joined with commas, as in HTTP. Binary metadata is base64, as gRPC sends it.
        """
        if self._headers is None:
            self._headers = MappingProxyType(_read(self._received))
        return self._headers

    @property
    def response_headers(self) -> MutableMapping[str, str]:
        """Headers that the response gets in addition, also if the model raises an exception.

        Over gRPC, they are trailing metadata of the call. They are checked when they are set, and
        raise TypeError or ValueError. Names consist of ASCII letters, digits, ``-``, ``_`` and
        ``.``, and become lower case; they do not begin with ``grpc-`` or end with ``-bin``. Values
        are printable ASCII. Headers that the server sets, such as Content-Length, cannot be set.
        What is set after the function has returned may have no effect.
        """
        return self._response_headers

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, at least 0. None if there is no deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def __repr__(self) -> str:
        return "<RequestContext>"  # headers may be secrets


def _read(headers: HasItems | Iterable[tuple[str | bytes, str | bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, item in headers.items() if hasattr(headers, "items") else headers:
        name = (key if isinstance(key, str) else key.decode("latin-1")).lower()
        value = (item if isinstance(item, str) else item.decode("latin-1")).strip(" \t")
        if name in found:
            value = f"{found[name]}{'; ' if name == 'cookie' else ', '}{value}"
        found[name] = value
    return found


def set_headers(context: RequestContext) -> dict[str, str]:
    """Return the headers of the response that a model has set."""
    return context._response_headers.values_by_name.copy()


def _key(name: str) -> str:
    return name.lower() if isinstance(name, str) else name


class ResponseHeaders(MutableMapping[str, str]):
    """The headers that a model sets, as strings whose methods are those of ``str``."""

    def __init__(self) -> None:
        self.values_by_name: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self.values_by_name[_key(name)]

    def __setitem__(self, name: str, value: str) -> None:
        check_type("the name of a response header", name, str, "a str")
        key = str.lower(name)
        shown = format_value(key)
        check_type(f"the value of the response header {shown}", value, str, "a str")
        if key in _OF_SERVER:
            raise ValueError(f"the response header {shown} cannot be set: the server sets it")
        if not _NAME.fullmatch(key):
            raise ValueError(
                f"the name of a response header must consist of ASCII letters, digits, -, _ and ., "
                f"not begin with grpc-, and not end with -bin: {shown}"
            )
        if not _VALUE.fullmatch(value):  # it may be a secret
            raise ValueError(
                f"the value of the response header {shown} must be printable ASCII, without blanks "
                "at its ends"
            )
        self.values_by_name[key] = str.__str__(value)

    def __delitem__(self, name: str) -> None:
        del self.values_by_name[_key(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name.copy())  # another thread may set a header

    def __len__(self) -> int:
        return len(self.values_by_name)
