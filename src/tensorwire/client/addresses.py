"""The addresses of a server and of its proxy."""

from __future__ import annotations

import os
import re
import socket
from base64 import b64encode
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, unquote_to_bytes, urlsplit
from urllib.request import getproxies, proxy_bypass

from ..arguments import check_type

_API_PATH = re.compile(r"/v2(/(models|health)(/.*)?)?/*$")
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"


class ServerAddress(NamedTuple):
    """The address of a server."""

    is_tls: bool
    host: str
    port: int
    host_header: str
    origin: str  # scheme, host and port
    prefix: str  # the path before /v2
    socket_path: str | None = None  # of a Unix socket
    is_grpc: bool = False
    has_port: bool = True  # whether the URL has a port


class ProxyAddress(NamedTuple):
    """The address of an HTTP proxy."""

    host: str
    port: int
    authorization: str | None  # the value of Proxy-Authorization
    variable: str  # of the environment


def authority(peer: ServerAddress | ProxyAddress) -> str:
    return f"[{peer.host}]:{peer.port}" if ":" in peer.host else f"{peer.host}:{peer.port}"


def parse_url(url: str) -> ServerAddress:
    check_type("url", url, str, "a str")
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    shown = repr(re.split("[?#]", url)[0])  # a query may be a secret
    if scheme in ("unix", "grpc+unix"):
        return _unix_address(scheme, rest, "" if "@" in url else f", not {shown}")
    if "@" in url:  # before the other errors, which show the URL
        raise ValueError("the URL of a server must not have credentials, nor the character @")
    if rest.startswith("/") and not rest.startswith("//"):
        raise ValueError(f"the URL of a server must have // after its scheme: {shown}")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = _ascii_host(parts) if parts.hostname else "", parts.port
        if port == 0:
            raise ValueError("the port must not be 0")
    except ValueError as error:
        raise ValueError(f"the URL of a server is invalid: {shown} ({error})") from None
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not host:
        raise ValueError(
            "the URL of a server must be http, https, grpc, grpcs, unix or grpc+unix, and have a "
            f"host: {shown}"
        )
    if parts.query or parts.fragment:
        raise ValueError("the URL of a server must not have a query or a fragment")
    is_grpc = parts.scheme in ("grpc", "grpcs")
    if is_grpc and parts.path not in ("", "/"):
        raise ValueError(f"the URL of a gRPC server must not have a path: {shown}")
    if _API_PATH.search(parts.path):
        raise ValueError(f"the URL of a server must end before /v2, which the client adds: {shown}")
    is_tls = parts.scheme in ("https", "grpcs")
    has_port = port is not None
    port = port or (443 if is_tls else 80)
    bracketed = f"[{host}]" if ":" in host else host
    netloc = f"{bracketed}:{port}" if has_port else bracketed
    origin = f"{parts.scheme}://{netloc}"
    prefix = quote(parts.path.rstrip("/"), safe=_PATH_CHARACTERS)
    return ServerAddress(
        is_tls, host, port, netloc, origin, prefix, is_grpc=is_grpc, has_port=has_port
    )


def _unix_address(scheme: str, rest: str, shown: str) -> ServerAddress:
    path = unquote(rest).removeprefix("//")  # unix:///path has an empty host
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"the URL of a Unix socket must be {scheme}:/path{shown}")
    if not hasattr(socket, "AF_UNIX"):
        raise ValueError(f"{scheme}: this Python has no Unix sockets")
    is_grpc = scheme == "grpc+unix"
    origin = f"{scheme}:{path}" if is_grpc else f"unix:{path}:"
    return ServerAddress(False, "localhost", 0, "localhost", origin, "", path, is_grpc)


def _ascii_host(parts: SplitResult) -> str:
    host = (parts.hostname or "").encode("idna").decode("ascii")  # getaddrinfo does the same
    if not re.fullmatch(r"[A-Za-z0-9._~%:-]+", host):
        raise ValueError("the host contains characters that are not allowed")
    return host


def find_proxy(server: ServerAddress) -> ProxyAddress | None:
    """Return the proxy that the environment defines for a server. Raises ValueError.

    The variables are HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as ``urllib.request`` reads
    them. Items of NO_PROXY may also be networks, such as ``10.0.0.0/8``.
    """
    proxies = getproxies()
    schemes = ("https" if server.is_tls else "http", "all")
    scheme = next((scheme for scheme in schemes if proxies.get(scheme)), None)
    if scheme is None or server.socket_path is not None:
        return None
    if proxy_bypass(f"{server.host}:{server.port}") or _is_in_a_network(server.host, proxies):
        return None
    names = [name for name in os.environ if name.lower() == f"{scheme}_proxy"]
    variable = max(names, default="the system settings")  # lower case has precedence
    wanted = f"the proxy in {variable} must be http://host:port"
    url = proxies[scheme]
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = _ascii_host(parts), parts.port or 80
    except ValueError:  # its text may contain the password
        raise ValueError(f"{wanted}; trust_env=False ignores it") from None
    if parts.scheme != "http":
        raise ValueError(
            f"{wanted}, but its scheme is {parts.scheme!r}; trust_env=False ignores it"
        )
    authorization = None
    if parts.username is not None:
        # Bytes: they may have any encoding, and the exception of a codec would contain them.
        user, password = (
            unquote_to_bytes(os.fsencode(part)) for part in (parts.username, parts.password or "")
        )
        authorization = f"Basic {b64encode(b'%b:%b' % (user, password)).decode()}"
    return ProxyAddress(host, port, authorization, variable)


def _is_in_a_network(host: str, proxies: dict[str, str]) -> bool:
    for item in proxies.get("no", "").split(","):
        with suppress(ValueError):  # the host or the item is a name
            if ip_address(host) in ip_network(item.strip(" []"), strict=False):
                return True
    return False
