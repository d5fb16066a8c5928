"""Addresses of servers: URLs, Unix sockets and proxies."""

from __future__ import annotations

import base64
import contextlib
import errno
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import (
    GOOD,
    Certificate,
    Connect,
    MiB,
    OnUnixSocket,
    TlsScripted,
    X,
    connect_to,
)
from support.serve_process import free_port
from support.servers import Scripted, http
from support.threads import in_thread
from tensorwire.client import Client, InferenceServerError, Timeout
from tensorwire.client.addresses import find_proxy, parse_url

pytestmark = pytest.mark.thread_unsafe(reason="the tests change the environment")
connect = client_fixtures.connect
certificate = client_fixtures.certificate


# --- Unix sockets ---


@pytest.mark.parametrize("prefix", ["unix:", "unix://", "UNIX:"])
def test_unix_socket(connect: Connect, tmp_path: Path, prefix: str) -> None:
    url = f"{prefix}{tmp_path}/a%20b.sock"
    with OnUnixSocket([GOOD] * 3, tmp_path / "a b.sock") as server, connect(url) as client:
        for n in (1, 1000, 8 * MiB):
            assert client.infer("m", {"x": np.zeros(n)})["x"].shape == X.shape
        assert server.n_connections == 1
        assert server.heads[0].startswith("post /v2/models/m/infer http/1.1\r\nhost: localhost\r\n")
    with connect(url) as client:
        with pytest.raises(ConnectionError, match=r"^POST unix:/.*/a b\.sock:/v2/models/m/infer: "):
            client.infer("m", {"x": X})
        assert not client.is_ready()


def test_unix_socket_whose_queue_is_full(connect: Connect, tmp_path: Path) -> None:
    """Linux reports EAGAIN then: the client tries again until its timeout expires."""
    path = tmp_path / "busy.sock"
    server = OnUnixSocket([GOOD], path, backlog=0)
    waiting, code = [], 0
    while code == 0:
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].setblocking(False)
        code = waiting[-1].connect_ex(str(path))
    assert code == errno.EAGAIN
    with connect(f"unix:{path}", timeout=Timeout(connect=0.2)) as client:
        started = time.thread_time()
        with pytest.raises(TimeoutError, match=r"after 0.2 seconds \(connect timeout\)"):
            client.infer("m", {"x": X})
        assert time.thread_time() - started < 0.1
        for one in waiting:
            one.close()
        with server:
            assert client.infer("m", {"x": X}, timeout=5)["x"].shape == X.shape


# --- URLs ---


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("x", ("x", 80, "x", "http://x")),
        ("http://x:8000/a/", ("x", 8000, "x:8000", "http://x:8000")),
        ("https://x", ("x", 443, "x", "https://x")),
        ("https://[::1]:8443", ("::1", 8443, "[::1]:8443", "https://[::1]:8443")),
        ("[::1]", ("::1", 80, "[::1]", "http://[::1]")),
        ("grpc://x", ("x", 80, "x", "grpc://x")),
        ("grpcs://x", ("x", 443, "x", "grpcs://x")),
        ("GRPC://[::1]:8001/", ("::1", 8001, "[::1]:8001", "grpc://[::1]:8001")),
        ("grpc:8001", ("grpc", 8001, "grpc:8001", "http://grpc:8001")),
        ("grpc+unix:/a%20b", ("localhost", 0, "localhost", "grpc+unix:/a b")),
        ("grpc+unix:///a", ("localhost", 0, "localhost", "grpc+unix:/a")),
    ],
)
def test_address_in_a_url(url: str, expected: tuple[Any, ...]) -> None:
    found = parse_url(url)
    assert (found.host, found.port, found.host_header, found.origin) == expected
    assert found.is_tls == url.startswith(("https", "grpcs"))
    assert found.is_grpc == url.lower().startswith(("grpc:/", "grpcs", "grpc+"))
    for path in ("/v2x", "/v2/other", "/v22", "/a.v2"):  # not that of the protocol
        assert parse_url(f"host{path}").prefix == path


SCHEMES = r"must be http, https, grpc, grpcs, unix or grpc\+unix, and have a host"


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ("ftp://x http:// grpc://", f"the URL of a server {SCHEMES}"),
        (
            "http://u@x http://u:sec/ret@h ftp://u:secret@h http://u:secret@h:99999",
            "the URL of a server must not have credentials",
        ),
        ("http://x?q http://x#f grpc://x?a=b", "the URL .* must not have a query or a fragment"),
        ("localhost:abc localhost:99999 localhost:-1", r"the URL .* is invalid: 'lo.*' \(Port "),
        ("http://x:0", r"the URL .* is invalid: 'http://x:0' \(the port must not be 0\)$"),
        (
            "h/v2 http://h/a/v2/ https://h/v2/models/m/infer h/v2/health/live h/v2/models",
            "the URL of a server must end before /v2, which the client adds",
        ),
        (f"http://{'a' * 64} a..b http://..:80 a!b", r"the URL .* is invalid: .* \(.*(label|host)"),
        ("http://[::1", r"the URL of a server is invalid: 'http://.*' \(Invalid IPv6 URL\)"),
        ("http:/host https:/a/b grpc:/h:1 htp:/x", "the URL of a server must have // after its"),
        ("unix: unix:relative.sock unix://host/x unix:/a%00b", "the .* must be unix:/path"),
        ("grpc+unix:a", r"the URL of a Unix socket must be grpc\+unix:/path, not 'grpc\+unix:a'"),
        ("grpc://x/v2", "the URL of a gRPC server must not have a path"),
        ("unix:u:sec@/x unix://u:sec@h/x", "the URL of a Unix socket must be unix:/path$"),
        ("http://x:0?token=sec ftp://x#sec http:/x?sec h/v2?sec grpc://x/v2?sec", "the URL"),
    ],
)
def test_invalid_urls(urls: str, message: str) -> None:
    for url in urls.split():
        with pytest.raises(ValueError, match=f"^{message}") as caught:
            Client(url)
        assert "sec" not in str(caught.value)
    with pytest.raises(ValueError, match=SCHEMES):
        Client("")


# --- proxies ---

PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def relay(connection: socket.socket, address: str) -> None:
    """Connect to a server, and copy the bytes of both connections until one of them ends."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other thread has shut them down
            while chunk := source.recv(1 << 16):
                target.sendall(chunk)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port))) as other,
        in_thread(copy, other, connection),
    ):
        copy(connection, other)


class Tunnel(Scripted):
    """A proxy that forwards the connections of CONNECT requests."""

    answer = b"HTTP/1.1 200 Connection established\r\n\r\n"

    def __init__(self) -> None:
        super().__init__([])

    def serve(self, connection: socket.socket) -> None:
        self.read(connection)
        connection.sendall(self.answer)
        relay(connection, self.heads[-1].split()[1])


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_proxy(connect: Connect, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It gets the whole URL."""
    with Scripted([http(b"{}"), GOOD]) as proxy:
        monkeypatch.setenv(name, f"http://us%40er:pass@{proxy.address}")
        with connect("http://models.test:8000/pre") as client:
            assert client.server_metadata() == {}
            assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert proxy.n_connections == 1
        lines = proxy.heads[1].splitlines()
        assert lines[0] == "post http://models.test:8000/pre/v2/models/m/infer http/1.1"
        assert "host: models.test:8000" in lines
        credentials = base64.b64encode(b"us@er:pass").decode().lower()
        assert f"proxy-authorization: basic {credentials}" in lines
    with Scripted([GOOD]) as proxy:
        monkeypatch.setenv(name, f"http://user:pass@{proxy.address}")
        with connect("http://models.test", headers={"proxy-authorization": "Bearer 9"}) as client:
            client.infer("m", {"x": X})
        assert "proxy-authorization: bearer 9" in proxy.heads[0].splitlines()
        assert "basic" not in proxy.heads[0]


@pytest.mark.parametrize(
    "ignored", ["", "Content-Length: 5\r\nContent-Encoding: br\r\n", "Transfer-Encoding: gzip\r\n"]
)
def test_proxy_of_a_tls_server(
    connect: Connect, certificate: Certificate, ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes the TLS connection on, and does not see the request.

    Headers that describe the body of its response are ignored (RFC 9110 9.3.6).
    """
    server = TlsScripted([GOOD] * 3, certificate)
    proxy = Tunnel()
    proxy.answer = f"HTTP/1.1 200 OK\r\n{ignored}\r\n".encode()
    monkeypatch.setenv("HTTPS_PROXY", f"user:pass@{proxy.address}")
    with proxy:
        with connect_to(server, connect) as client:
            for n in (1, 1000, 4 * MiB):
                assert client.infer("m", {"x": np.zeros(n)})["x"].shape == X.shape
        (head,) = proxy.heads
        assert head.splitlines()[:2] == [
            f"connect {server.address} http/1.1",
            f"host: {server.address}",
        ]
        assert "proxy-authorization: basic" in head
        assert all("proxy-authorization" not in head for head in server.heads)
        fails = pytest.raises(tw.BodyTooLargeError, match="the limit is 1000")
        again = TlsScripted([GOOD], certificate)
        with connect_to(again, connect, max_body_nbytes=1000) as client, fails:
            client.infer("m", {"x": X})


def test_tunnel_to_an_ipv6_address(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scripted([http(b"", status="403 No")]) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        fails = pytest.raises(ConnectionError, match=r"status 403 to CONNECT \[::1\]:8443 \(t")
        with connect("https://[::1]:8443") as client, fails:
            client.infer("m", {"x": X})
        assert proxy.heads[0] == "connect [::1]:8443 http/1.1\r\nhost: [::1]:8443"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 407 Who?\r\nContent-Length: 0\r\n\r\n", ConnectionError, "with status 407 to"),
        (b"HTTP/1.1 502 Bad\r\n\r\n", ConnectionError, "status 502 to CONNECT models.test:443"),
        (b"SSH-2.0\r\n", ConnectionError, "not valid HTTP"),
        (b"", ConnectionError, "closed the connection"),
        (None, TimeoutError, r"0.2 seconds \(connect timeout\)"),
    ],
)
def test_proxy_that_does_not_connect(
    connect: Connect,
    answer: bytes | None,
    error: Any,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Scripted([0.5 if answer is None else answer]) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        timeout = Timeout(connect=0.2 if answer is None else 5, read=None)
        fails = pytest.raises(error, match=message)
        with connect("https://models.test", timeout=timeout) as client, fails:
            client.infer("m", {"x": X})


@pytest.mark.parametrize("name", ["http_proxy", "All_Proxy"])
@pytest.mark.parametrize("status", ["407 Who?", "502 Bad Gateway", ""])
def test_errors_through_a_proxy(
    connect: Connect, name: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name the proxy and the variable, without credentials."""
    answer = http(b"<html>no", status=status) if status else b""
    with Scripted([answer]) as proxy, pytest.raises((InferenceServerError, OSError)) as caught:
        monkeypatch.setenv(name, f"http://us%40r9:sec%3Aret@{proxy.address}")
        with connect("http://models.test") as client:
            client.infer("m", {"x": X})
    text = str(caught.value)
    assert text.startswith(
        f"POST http://models.test/v2/models/m/infer: {'status' if status else ''}"
    )
    assert text.endswith(f" (through the proxy http://{proxy.address} of {name})")
    assert "sec" not in text
    assert "r9" not in text


def test_environment_that_is_not_trusted(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with Scripted([GOOD]) as server:
        with connect(server.address, trust_env=False) as client:
            assert client.infer("m", {"x": X})["x"].shape == X.shape
        with connect(server.address) as client, pytest.raises(ConnectionError, match="refused"):
            client.infer("m", {"x": X})


@pytest.mark.parametrize(
    ("url", "no_proxy", "is_used"),
    [
        ("http://models.test", "", True),
        ("http://models.test", "models.test", False),
        ("http://models.test", "other.test, .TEST", False),
        ("http://models.test:8000", "models.test:8000", False),
        ("http://models.test:8000", "models.test:9000", True),
        ("http://models.test", "*", False),
        ("http://10.1.2.3", "10.0.0.0/8", False),
        ("http://11.1.2.3", "10.0.0.0/8", True),
        ("http://[fd00::1]", "fd00::/8", False),
        ("http://[::1]", "::1", False),
        ("http://[::1]:8000", "[::1]", False),
        ("http://10.1.2.3", "10.9.9.9/8", False),
        ("http://10.1.2.3", "a/b, 10.1.2.3", False),
        ("http://10.1.2.3", "models.test, 10.0.0.0/8", False),
        ("unix:/models.sock", "", False),
    ],
)
def test_servers_without_a_proxy(
    url: str, no_proxy: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    proxy = find_proxy(parse_url(url))
    assert (proxy is not None) == is_used
    if proxy is not None:
        assert proxy == ("proxy.test", 3128, None, "ALL_PROXY")


def test_scheme_of_the_server_selects_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://plain.test")
    monkeypatch.setenv("HTTPS_PROXY", "http://[::1]:3128")
    monkeypatch.setenv("ALL_PROXY", "http://all.test")
    assert find_proxy(parse_url("http://x")) == ("plain.test", 80, None, "HTTP_PROXY")
    assert find_proxy(parse_url("https://x")) == ("::1", 3128, None, "HTTPS_PROXY")
    for credentials, expected in (
        ("user", b"user:"),
        ("us%FFer:\udce9%3A", b"us\xffer:\xe9:"),  # not UTF-8
    ):
        monkeypatch.setenv("HTTP_PROXY", f"http://{credentials}@plain.test")
        header = f"Basic {base64.b64encode(expected).decode()}"
        assert find_proxy(parse_url("http://x")) == ("plain.test", 80, header, "HTTP_PROXY")
    monkeypatch.setenv("REQUEST_METHOD", "GET")  # a CGI program: the header Proxy sets HTTP_PROXY
    assert find_proxy(parse_url("http://x")) == ("all.test", 80, None, "ALL_PROXY")


@pytest.mark.parametrize(
    ("proxy", "message"),
    [
        ("socks5://u:secret@proxy.test", "its scheme is 'socks5'; trust_env=False ignores it"),
        ("https://u:secret@proxy.test", "its scheme is 'https'; trust_env=False ignores it"),
        ("http://u:sec/ret@proxy.test", "must be http://host:port; trust_env=False ignores it"),
        ("http://u:secret@proxy.test:x", "must be http://host:port"),
        ("http://u:secret@a..b", "must be http://host:port"),
        ("http://", "must be http://host:port"),
    ],
)
def test_proxies_that_are_not_supported(
    connect: Connect, proxy: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ValueError, match=message) as caught, connect("http://x"):
        pass
    assert "sec" not in str(caught.value)
    with connect("http://x", trust_env=False):
        pass
