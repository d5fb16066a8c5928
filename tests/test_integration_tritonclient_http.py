"""How tritonclient.http sends bodies and receives responses with the integration."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from contextlib import closing
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from interop.samples import bits
from support import client_fixtures
from support import tritonclient_comparison as comparison
from support.client_fixtures import Certificate, chunked
from support.memory import peak_nbytes
from support.servers import Scripted
from support.servers import http as http_response
from support.tritonclient_calls import (
    ARRAYS,
    LENGTH,
    Recording,
    connect,
    exchange,
    given,
    http,
    http_answer,
    one,
    outcomes,
)
from support.tritonclient_comparison import FLOATS, LARGE, both, response
from support.wrappers import closure, wrapped
from tensorwire.integrations import tritonclient
from tensorwire.integrations.tritonclient.transport import FileBody, Transport, payload_class

pytestmark = comparison.MARKS
either, installed, any_data = comparison.either, comparison.installed, comparison.any_data
without_leftovers = comparison.without_leftovers
certificate = client_fixtures.certificate

ANSWER = http_answer(*ARRAYS)


def twice(_: Any) -> list[dict[str, Any]]:
    return [{"inputs": [given(http)]}, {"inputs": [given(http, FLOATS + 2)]}]


# --- requests --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_positional_arguments(either: bool, is_wrapped: bool) -> None:
    """All arguments can be positional, including the compression; also those of a wrapper."""
    tritonclient.uninstall()
    before = closure if is_wrapped else lambda function, _: function
    with wrapped(http.InferenceServerClient, "infer", before, lambda: None):
        if either:
            tritonclient.install()
        with Recording([ANSWER]) as server, connect(http, server.address) as client:
            options = ("", None, "7", 0, False, False, 0, None, None, None, "gzip", None, None)
            client.infer("m", [given(http)], *options)
        tritonclient.uninstall()
    [(_, headers, body)] = server.requests
    assert ("Content-Encoding", "gzip") in headers
    assert body.endswith(FLOATS.tobytes())


def test_async_infer_has_read_the_array_when_it_returns(any_data: None) -> None:
    sent = FLOATS.copy()
    with Recording([ANSWER]) as server, connect(http, server.address) as client:
        tensor = given(http, sent)
        handle = client.async_infer("m", [tensor])
        sent[:] = 0
        tensor.set_data_from_numpy(FLOATS + 1)
        assert bits(handle.get_result().as_numpy("OUTPUT0")) == bits(FLOATS)
    assert server.requests[0][2].endswith(FLOATS.tobytes())


def test_redirected_request_has_the_same_body(either: bool) -> None:
    """Only aiohttp follows redirects, for which it sends the body again."""
    moved = http_response(b"", {"Location": "/v2/models/m/infer"}, "307 Temporary Redirect")
    _, requests, _ = exchange("http aio", answer=[moved, ANSWER])
    first, second = (body for _, _, body in requests)
    assert first == second
    assert first.endswith(FLOATS.tobytes())


def test_tls(either: bool, certificate: Certificate) -> None:
    options = {"ssl": True, "ssl_options": {"ca_certs": certificate.file}}
    with client_fixtures.TlsScripted([ANSWER, ANSWER], certificate) as server:
        found = outcomes("http infer", server.address, twice, **options)
    assert [bits(result[0]) for result in found] == [bits(FLOATS)] * 2
    assert server.n_connections == 1


@pytest.mark.parametrize(
    ("client", "n_copies"), [("http infer", 2), ("http async_infer", 2), ("http aio", 1)]
)
def test_large_request_is_not_copied(either: bool, client: str, n_copies: int) -> None:
    tensor = given(http, np.ones(1 << 22, np.float32))
    reply = http_answer(FLOATS[:4])
    with Scripted([reply, reply]) as server:
        call = partial(outcomes, client, server.address)
        call(one)  # fill caches
        nbytes = peak_nbytes(lambda: call(lambda _: [{"inputs": [tensor]}]))
    found = nbytes / (1 << 24)
    # asyncio may copy the piece that the socket does not take at once.
    assert found < 0.3 if either else found > n_copies - 0.1


def test_subclass_of_the_class_of_the_library_gets_bytes() -> None:
    """It may have methods that expect `bytes`."""
    stub = import_module("geventhttpclient").HTTPClient
    transport = Transport("_client_stub", stub, ("post", "request"), FileBody)
    with connect(http, "localhost:1") as client:
        assert transport.is_plain(client)
        client._client_stub.__class__ = type("Subclass", (stub,), {})
        assert not transport.is_plain(client)


# --- bodies ----------------------------------------------------------------------------------

MANY_BYTES = np.arange(1 << 22, dtype=np.uint8)
BUFFERS: list[Any] = [
    *(b"{header}", b"small", MANY_BYTES, b"", MANY_BYTES[: (1 << 20) + 1], b"end", b"."),
]
WHOLE = b"".join(map(bytes, BUFFERS))


def test_file_body_is_sent_from_the_start_each_time() -> None:
    """geventhttpclient may repeat a request after the connection was closed while it was sent."""
    sockets = import_module("gevent.socket")
    body = FileBody(BUFFERS)
    assert len(body) == len(WHOLE)
    ours, theirs = sockets.socketpair()
    theirs.close()
    with closing(ours), pytest.raises(OSError, match="Broken pipe"):
        ours.sendfile(body)
    for _ in range(2):
        ours, theirs = sockets.socketpair()
        received = bytearray()

        def receive(theirs: Any = theirs, received: bytearray = received) -> None:
            while chunk := theirs.recv(1 << 16):
                received += chunk

        reader = import_module("gevent").spawn(receive)
        with closing(theirs):
            with closing(ours):
                assert ours.sendfile(body) == len(body)
            reader.get()
        assert received == WHOLE


def test_payload_of_aiohttp() -> None:
    payload = payload_class()(BUFFERS)
    assert payload.size == len(WHOLE)
    assert payload_class()([b"a", np.frombuffer("\xe9".encode(), np.uint8)]).decode() == "a\xe9"
    written: list[bytes] = []

    class Writer:
        async def write(self, chunk: Any) -> None:
            assert len(chunk) <= 1 << 20
            written.append(bytes(chunk))

    asyncio.run(payload.write(Writer()))
    asyncio.run(payload.write(Writer()))
    assert b"".join(written) == 2 * WHOLE


# --- responses -------------------------------------------------------------------------------

BODY, HEADER_LENGTH = response(*ARRAYS)
HEADERS = {LENGTH: str(HEADER_LENGTH)}


def in_pieces(connection: socket.socket) -> None:
    for i in range(0, len(ANSWER), 50_001):
        connection.sendall(ANSWER[i : i + 50_001])


def with_header_length(length: object) -> bytes:
    return http_response(BODY, {LENGTH: str(length)})


ANSWERS: dict[str, Any] = {
    "with a length": ANSWER,
    "in pieces": in_pieces,
    "small": http_answer(FLOATS[:4], FLOATS[:1]),
    "chunked": http_response(
        chunked(BODY, 70_000), {**HEADERS, "Transfer-Encoding": "chunked"}, length=""
    ),
    "until the connection is closed": http_response(BODY, HEADERS, length=""),
    "last of the connection": http_response(BODY, {**HEADERS, "Connection": "close"}),
    "gzip": http_response(gzip.compress(BODY), {**HEADERS, "Content-Encoding": "gzip"}),
    "deflate": http_response(zlib.compress(BODY), {**HEADERS, "Content-Encoding": "deflate"}),
    "truncated header": http_response(BODY[:5], HEADERS, length=len(BODY)),
    "truncated": http_response(BODY[:-1], HEADERS, length=len(BODY)),
    "truncated after the header": http_response(BODY[:HEADER_LENGTH], HEADERS, length=len(BODY)),
    "extreme length": http_response(BODY, HEADERS, length=1 << 62),
    "length of 64 bits": http_response(BODY, HEADERS, length=2**64 - 1),
    "header only": http_response(BODY[:HEADER_LENGTH], HEADERS),
    "header length of the whole body": with_header_length(len(BODY)),
    "header length too large": with_header_length(len(BODY) + 1),
    "header length 0": with_header_length(0),
    "negative header length": with_header_length(-5),
    "header length that is no number": with_header_length("x"),
    "error": http_response(b'{"error":"no such model"}', status="400 Bad Request"),
    "large error": http_response(
        b'{"error":"%b"}' % (b"e" * LARGE), HEADERS, status="500 Internal Server Error"
    ),
    "no response": b"",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_response(name: str) -> None:
    """The server closes the connection after the response."""
    both(lambda: exchange("http infer", answer=[ANSWERS[name]]))


def received(answer: bytes, read: Any = lambda result: result.as_numpy("OUTPUT0")) -> Any:
    """Return what is read from the result of one call."""
    with Scripted([answer]) as server, connect(http, server.address) as client:
        return read(client.infer("m", [given(http, FLOATS[:4])]))


@pytest.mark.parametrize("name", ["with a length", "chunked", "gzip"])
def test_arrays_are_aligned_views(installed: None, name: str) -> None:
    def check(result: Any) -> None:
        array = result.as_numpy("OUTPUT1")
        assert np.shares_memory(array, result.as_numpy("OUTPUT1"))
        assert not array.flags.writeable
        assert array.flags.aligned

    received(ANSWERS[name], check)


@pytest.mark.parametrize("name", ["with a length", "chunked"])
def test_response_is_read_completely(either: bool, name: str) -> None:
    with Scripted([ANSWERS[name]]) as server, connect(http, server.address) as client:
        response = client._post("v2", b"{}", None, None)
        result = http.InferResult(response, False)
        assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)
        assert response.read() == b""


def test_older_geventhttpclient_returns_bytearrays(
    either: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arrays of its responses are writable."""
    monkeypatch.setattr("geventhttpclient.response.copy", lambda data: data[:])
    found = received(ANSWER)
    assert bits(found) == bits(FLOATS)
    assert found.flags.writeable


@pytest.mark.parametrize("name", ["truncated", "truncated after the header"])
def test_closed_connection_is_an_error_although_the_parser_reports_none(
    installed: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The call does not wait for a connection that the server has closed."""
    library = import_module("geventhttpclient.response")
    feed, n_ends = library.HTTPResponse.feed, 0

    def silent_feed(self: Any, data: bytes) -> None:
        nonlocal n_ends
        if data:
            feed(self, data)
            return
        n_ends += 1
        assert n_ends < 5, "receives from a closed connection repeatedly"

    monkeypatch.setattr(library.HTTPResponse, "feed", silent_feed)
    with pytest.raises(library.HTTPConnectionClosed, match=r"after \d+ of \d+ bytes"):
        received(ANSWERS[name])


def test_connection_is_closed_after_a_timeout(either: bool) -> None:
    """It is closed at once, although the exception still refers to the response."""
    with (
        Scripted([ANSWER[:-1], ANSWER]) as server,
        connect(http, server.address, network_timeout=0.2) as client,
    ):
        with pytest.raises(TimeoutError) as error:
            client.infer("m", [given(http)])
        assert server.client_has_closed.wait(5)
    assert error.tb is not None


def test_large_response_is_received_into_the_result(either: bool) -> None:
    large = http_answer(np.ones(1 << 22, np.float32))
    received(ANSWER)  # fill caches
    n_copies = peak_nbytes(lambda: received(large)) / (1 << 24)
    assert n_copies == pytest.approx(1, abs=0.05) if either else n_copies > 1.9
