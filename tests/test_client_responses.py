"""HTTP responses: errors, chunks, compression, malformed responses, limits."""

from __future__ import annotations

import gzip
import pickle
import socket
import threading
import zlib
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import BODY, FRAME, GOOD, HEADERS, Connect, X, chunked
from support.memory import takes
from support.servers import Scripted, http
from tensorwire._codec.limits import UNLIMITED
from tensorwire.client import InferenceServerError
from tensorwire.http import HEADER_LENGTH

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect


# --- error responses ---

DETAILS = b'{"detail": [{"loc": ["body", "inputs", 0], "msg": "required", "input": {}}]}'
CUT_GZIP = gzip.compress(b'{"error": "down"}')[:-8]


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (http(b'{"error": "no"}', {"Content-Type": "text/html"}, "400 Bad"), 400, "no"),
        (http(b"<h1>Oh</h1>", {"Content-Type": "text/html"}, "502 Bad Gateway"), 502, "<h1>Oh"),
        (http(b"", {}, "503 Service Unavailable"), 503, "status 503: Service Unavailable"),
        (http(b"", {}, "503"), 503, "infer: status 503"),
        (http(b'{"error": 5}', {}, "400 Bad"), 400, '{"error": 5}'),
        (http(b'{"detail": "none"}', {}, "404 No"), 404, "status 404: none"),
        (http(b'{"detail": [{"msg": "a"}, {"msg": "b"}]}', {}, "422 No"), 422, "status 422: a; b"),
        (http(DETAILS, {}, "422 No"), 422, "status 422: body.inputs.0: required"),
        (http(b'{"detail": [5]}', {}, "422 No"), 422, 'status 422: {"detail": [5]}'),
        (http(b"[" * 60_000, {}, "400 Bad"), 400, "[[["),
        (http(b"\xff" * 200_000, {}, "500 Oh"), 500, "\ufffd" * 2000),
        (http(b'{"error": "cut', {}, "500 Oh", length=900), 500, ""),
        (http(b"\x01", {"Content-Encoding": "br"}, "502 Bad"), 502, "status 502: Bad"),
        (http(b"\x01", {"Content-Encoding": "gzip"}, "502 Bad"), 502, "status 502: Bad"),
        (
            http(b"", {"Location": "//us:sec@there/a?sec#sec"}, "307 Moved"),
            *(307, "status 307: Moved (Location '//there/a'; redirects are not followed)"),
        ),
        (b"HTTP/1.1 103 Early\r\n\r\n" + http(b"", {}, "503 Busy"), 503, "status 503: Busy"),
        (http(CUT_GZIP, {"Content-Encoding": "gzip"}, "502 Bad"), 502, "down"),
        (b"HTTP/1.1 101 Other\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", 101, "status 101"),
    ],
)
def test_error_responses_of_any_server(
    connect: Connect, answer: bytes, status: int, message: str
) -> None:
    with Scripted([answer]) as server, connect(server.address, timeout=5) as client:
        with pytest.raises(InferenceServerError) as caught:
            client.infer("m", {"x": X})
        assert caught.value.status == status
        assert message in str(caught.value)
        assert len(caught.value.message) <= 2000
        n_posts = sum(head.startswith("post") for head in server.heads)
        assert n_posts == 1  # the request was neither retried nor redirected


def test_only_the_start_of_a_long_error_is_read(connect: Connect) -> None:
    done = threading.Event()

    def endless(connection: socket.socket) -> None:
        connection.sendall(http(b"no " * 40_000, status="500 No", length=1 << 30))
        done.wait(10)

    with Scripted([endless]) as server, connect(server.address) as client:
        with takes(0, 5), pytest.raises(InferenceServerError, match="no no no") as caught:
            client.infer("m", {"x": X})
        assert (caught.value.status, len(caught.value.message)) == (500, 2000)
        done.set()


@pytest.mark.parametrize("nbytes", [60_000, 70_000, 200_000])
def test_call_after_a_long_error(connect: Connect, nbytes: int) -> None:
    """The rest of the error is not taken for the next response."""
    error = http(b"no " * (nbytes // 3), status="403 No")
    with Scripted([error, GOOD]) as server, connect(server.address) as client:
        with pytest.raises(InferenceServerError, match="no no"):
            client.infer("m", {"x": X})
        if nbytes < 65_536:
            assert client.infer("m", {"x": X})["x"].shape == X.shape
        else:
            with pytest.raises(InferenceServerError, match="no no"):  # on a new connection
                client.infer("m", {"x": X})
        assert server.n_connections == (1 if nbytes < 65_536 else 2)


# --- chunked, truncated and malformed responses ---


CHUNKED = HEADERS | {"Transfer-Encoding": "chunked"}
CLOSING = chunked(BODY, end=b"0\r\nConnection: close\r\n\r\n")
DEFLATED = zlib.compress(BODY)
GZIPPED, GZIP = gzip.compress(BODY), {"Content-Encoding": "gzip"}
NOT_PADDED = tw.encode_response(tw.InferResponse([tw.Tensor("x", X)]), align=1)
BLANKS = {name: f" \t{value} \t" for name, value in HEADERS.items()}
GATEWAY = "application/vnd.vertex-ai-triton.binary+json; json-header-size="
INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Encoding: br\r\n\r\n"
)


def end(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


ACCEPTED: dict[str, tuple[Any, bool]] = {  # an answer, and whether its connection is used again
    "interim responses": (INTERIM * 2 + GOOD, True),
    "interim responses alone": ((INTERIM, 0.02, INTERIM, 0.02, GOOD), True),
    **{f"{n} bytes first": ((GOOD[:n], 0.02, GOOD[n:]), True) for n in (1, 20, 150, 300, 1000)},
    "chunks of 1 byte": (http(chunked(BODY, 1), CHUNKED, length=""), True),
    "chunks": (http(chunked(BODY), HEADERS | {"Transfer-Encoding": "Chunked"}, length=""), True),
    "one chunk": (http(chunked(BODY, 10_000), CHUNKED, length=""), True),
    "chunks, close": (http(chunked(BODY), CHUNKED | {"Connection": "Close"}, length=""), False),
    "chunks, close in a trailer": (http(CLOSING, CHUNKED, length=""), False),
    "chunks, garbage": (http(chunked(BODY), CHUNKED, length="") + b"\0garbage", False),
    "chunks, another response": (http(chunked(BODY), CHUNKED, length="") + GOOD, False),
    "close": (http(BODY, HEADERS | {"Connection": "close"}), False),
    "end": ((http(BODY, HEADERS, length=""), end), False),
    "gzip, end": ((http(GZIPPED, HEADERS | GZIP, length=""), end), False),
    "HTTP/1.0": (GOOD.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
    "not padded": (http(bytes(NOT_PADDED), {HEADER_LENGTH: str(NOT_PADDED.header_length)}), True),
    "gateway": (http(BODY, {"Content-Type": f"{GATEWAY}{FRAME.header_length}"}), True),
    "blanks": (http(BODY, BLANKS, length=f"{len(BODY)} "), True),
    "zeros": (http(BODY, HEADERS, length=f"{len(BODY):05000}"), True),
    "identity": (http(BODY, HEADERS | {"Content-Encoding": "Identity"}), True),
    "gzip": (http(GZIPPED, HEADERS | {"Content-Encoding": " \tgzip \t"}), True),
    "deflate": (http(DEFLATED, HEADERS | {"Content-Encoding": "deflate"}), True),
    "chunked gzip": (http(chunked(GZIPPED), CHUNKED | GZIP, length=""), True),
}


@pytest.mark.parametrize(("answer", "is_used_again"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_responses(connect: Connect, answer: Any, is_used_again: bool) -> None:
    with Scripted([answer] * 2) as server, connect(server.address, timeout=5) as client:
        for n in range(2):
            array = client.infer("m", {"x": X})["x"].data
            assert np.array_equal(array, X)
            assert (array.ctypes.data % 64, array.flags.writeable) == (0, True)
            assert server.n_connections == (1 if is_used_again else n + 1)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZip", "deflate", ""])
def test_content_encoding_of_an_empty_body(connect: Connect, encoding: str) -> None:
    """Some proxies announce an encoding, and send nothing."""
    answer = http(b"", {"Content-Encoding": encoding})
    with Scripted([answer] * 2) as server, connect(server.address) as client:
        assert client.is_ready()
        assert client.is_ready("m")
        assert server.n_connections == 1


HEADS = b"a: b\r\n" * 60_000
HTML, SHOWN = b"\n <!doctype\n html><title>Log in" + b"a" * 99, "'<!doctype html><title>Log in"
GZIP_CHUNKED = {"Transfer-Encoding": "gzip, chunked"}
NOT_HTTP, LATE = "not valid HTTP", "before the head of the response was"
TOO_LONG = "{} of the response exceeds the limit of 262144 bytes"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (http(BODY[:-1], HEADERS, length=len(BODY)), ConnectionError, ""),
        (http(b"", HEADERS, length=len(BODY)), ConnectionError, ""),
        (http(chunked(BODY, 100, b""), CHUNKED, length=""), ConnectionError, ""),
        (http(chunked(BODY, 100)[:-300], CHUNKED, length=""), ConnectionError, ""),
        (b"", ConnectionError, "the URL must begin with https://)"),
        (b"\x15\x03\x01\0\2\2F", ConnectionError, "the server uses TLS: use an https:// URL"),
        (b"HTTP/1.1 200 OK\r\nContent-", ConnectionError, LATE),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", ConnectionError, LATE),
        (b"220 mail.example.com ESMTP\r\n", ConnectionError, NOT_HTTP),
        (b"\0\0\x06\4\0\0\0\0\0\0\3\0\0\0d", ConnectionError, "use a grpc:// URL"),
        (b"\0\0\x06\4\0\0\0\0\1\0\3\0\0\0d", ConnectionError, NOT_HTTP),
        (http(BODY, HEADERS, length=len(BODY) - 4), tw.LayoutError, ""),
        (http(BODY[:-4], HEADERS, length=""), tw.LayoutError, ""),
        (http(b"", status="000 No") + GOOD, ConnectionError, f"{NOT_HTTP}: status 000"),
        (http(b"", status="099 No") + GOOD, ConnectionError, f"{NOT_HTTP}: status 099"),
        (http(BODY, HEADERS, length=f"{len(BODY)}, 9"), ConnectionError, NOT_HTTP),
        (http(BODY, HEADERS, length=f"+{len(BODY)}"), ConnectionError, NOT_HTTP),
        (http(BODY, CHUNKED), ConnectionError, NOT_HTTP),
        (http(BODY, HEADERS | GZIP_CHUNKED, length=""), tw.DecompressionError, "'gzip, chunked',"),
        (b"HTTP/1.1 200 OK\r\n" + HEADS, ConnectionError, TOO_LONG.format("the head")),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 20_000, ConnectionError, TOO_LONG.format("the head")),
        (
            http(chunked(BODY, 100, b"0\r\n" + HEADS), CHUNKED, length=""),
            *(ConnectionError, TOO_LONG.format("the trailer section")),
        ),
        (http(BODY), tw.HeaderError, "is Inference-Header-Content-Length missing?"),
        (http(BODY, HEADERS | {"Inference-Header-Content-Length": "x"}), tw.HeaderError, "'x'"),
        (http(HTML, {"Content-Type": "text/html"}), tw.HeaderError, f"'text/html', text {SHOWN}"),
        (http(GZIPPED, HEADERS), tw.HeaderError, "octet-stream', gzip data without Content-Enc"),
        (http(b'{"detail": 1}'), tw.HeaderError, "0, no Content-Type, text '{\"detail\": 1}')"),
        (http(BODY, HEADERS | GZIP), tw.DecompressionError, "compressed response is inv"),
        (http(BODY, HEADERS | {"Content-Encoding": "br"}), tw.DecompressionError, "'br', which is"),
        (http(GZIPPED[:-1], HEADERS | GZIP, length=""), tw.DecompressionError, "is truncated"),
        (http(GZIPPED + b"x", HEADERS | GZIP), tw.DecompressionError, "is followed by other data"),
        (http(GZIPPED[:-8] + bytes(8), HEADERS | GZIP), tw.DecompressionError, "incorrect data"),
    ],
)
def test_malformed_responses_are_rejected(
    connect: Connect, answer: bytes, error: Any, message: str
) -> None:
    with Scripted([answer]) as server, connect(server.address, timeout=5) as client:

        def call() -> None:
            with pytest.raises(error) as caught:
                client.infer("m", {"x": X})
            assert message in str(caught.value)
            assert str(caught.value).startswith(f"POST http://{server.address}/v2/models/m/infer: ")
            assert len(str(caught.value)) < 700
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

        call()
        assert server.has_closed.wait(5)  # so that the second call does not use the connection
        try:
            raise LookupError
        except LookupError:  # the error is the same while another exception is handled
            call()
        assert server.n_connections == 2  # the second call has not read the rest of the response


# --- limits ---


@pytest.mark.parametrize("length", [None, ""])
def test_response_longer_than_max_body_is_rejected(connect: Connect, length: Any) -> None:
    answer = http(BODY, HEADERS, length=length)
    with (
        Scripted([answer]) as server,
        connect(server.address, max_body_nbytes=len(BODY) - 1) as client,
    ):
        with pytest.raises(
            tw.BodyTooLargeError, match=r"the body is \d+ bytes long; the limit is"
        ) as caught:
            client.infer("m", {"x": X})
        assert caught.value.status == 413
    for max_body_nbytes in (len(BODY), len(BODY) + 1, None):
        with (
            Scripted([answer]) as server,
            connect(server.address, max_body_nbytes=max_body_nbytes) as client,
        ):
            assert client.infer("m", {"x": X})["x"].shape == (1000,)


@pytest.mark.parametrize(
    ("body", "limit", "message"),
    [
        (b'{"name":' + b"[" * 5000, 5008, "the JSON is nested too deeply"),
        (bytes(2000), 1999, "is 2000 bytes long; the limit is 1999"),
    ],
)
def test_limits_apply_to_metadata(connect: Connect, body: bytes, limit: int, message: str) -> None:
    options = {"limits": tw.Limits(max_header_nbytes=limit)}
    with Scripted([http(body)]) as server, connect(server.address, **options) as client:
        with pytest.raises(tw.DecodeError, match=message) as caught:
            client.server_metadata()
        assert type(caught.value) is tw.DecodeError  # it has no header


@pytest.mark.slow(reason="it takes long")
def test_default_limits_accept_what_the_application_sends(connect: Connect) -> None:
    """20,000 outputs, a name of 10,000 bytes, and more than 64 MiB of JSON."""
    outputs = [tw.Tensor(f"{i}", np.zeros(1, np.int8)) for i in range(20_000)]
    outputs.append(tw.Tensor("x" * 10_000, [1], datatype="INT8"))
    frame = tw.encode_response(tw.InferResponse(outputs), limits=UNLIMITED)
    many = http(bytes(frame), {HEADER_LENGTH: str(frame.header_length)})
    n = 35_000_000
    start = b'{"outputs":[{"name":"x","datatype":"UINT8","shape":[%d],"data":[' % n
    long = http(start + b"1," * (n - 1) + b"1]}]}")
    with Scripted([many, long]) as server, connect(server.address) as client:
        response = client.infer("m", {"x": X})
        assert len(response.outputs) == 20_001
        assert client.infer("m", {"x": X})["x"].data.sum() == n
