"""Responses that are errors, chunked, malformed or too long."""

from __future__ import annotations

import gzip
import pickle
import socket
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import BODY, FRAME, GOOD, HEADERS, Connect, MiB, X, chunked
from support.memory import takes
from support.servers import Scripted, http
from tensorwire._codec.datatypes import UNLIMITED
from tensorwire.client import InferenceServerError
from tensorwire.client.responses import ERROR_NBYTES, ResponseReader
from tensorwire.http import HEADER_LENGTH

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client


# --- error responses ---


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("nobody", 404, "model 'nobody' is not known"),
        ("fail", 500, "model 'fail' failed"),
        ("declared", 400, "unexpected input 'z': the model takes ['x']"),
    ],
)
def test_errors_of_the_tensorwire_server(
    client: Any, server: str, model: str, status: int, message: str
) -> None:
    client.infer("echo", {"x": X})  # the server reads binary data: there is no hint
    with pytest.raises(InferenceServerError) as caught:
        client.infer(model, {"z": X})
    error = caught.value
    assert (error.status, error.message, error.model) == (status, message, model)
    url = f"http://{server}/v2/models/{model}/infer"
    assert (error.url, str(error)) == (url, f"POST {url}: status {status}: {message}")
    assert isinstance(error, tw.TensorwireError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.status, again.message, str(again)) == (status, message, str(error))
    assert client.infer("echo", {"x": X})["x"].shape == (1000,)


CUT_GZIP = gzip.compress(b'{"error": "down"}')[:-8]


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (http(b'{"error": "no"}', {"Content-Type": "text/html"}, "400 Bad"), 400, "no"),
        (http(b"<h1>Oh</h1>", {"Content-Type": "text/html"}, "502 Bad Gateway"), 502, "<h1>Oh"),
        (http(b"", {}, "503 Service Unavailable"), 503, "status 503: Service Unavailable"),
        (http(b"", {}, "503"), 503, "infer: status 503"),
        (http(b'{"error": 5}', {}, "400 Bad"), 400, '{"error": 5}'),
        (http(b"[" * 60_000, {}, "400 Bad"), 400, "[[["),
        (http(b"\xff" * 200_000, {}, "500 Oh"), 500, "\ufffd" * 2000),
        (http(b'{"error": "cut', {}, "500 Oh", length=900), 500, ""),
        (http(b"\x01", {"Content-Encoding": "br"}, "502 Bad"), 502, "status 502: Bad"),
        (http(b"\x01", {"Content-Encoding": "gzip"}, "502 Bad"), 502, "status 502: Bad"),
        (http(b"", {"Location": "/elsewhere"}, "307 Moved"), 307, "status 307: Moved"),
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


def receive(reader: ResponseReader, answer: bytes) -> None:
    left = memoryview(answer)
    while left and not reader.complete:
        buffer = reader.get_buffer()
        n = min(len(buffer), len(left))
        buffer[:n] = left[:n]
        reader.received(n)
        left = left[n:]


def test_size_of_an_error() -> None:
    """Also if it expands, only its start is kept."""
    for body in (gzip.compress(bytes(MiB)), bytes(ERROR_NBYTES + 10_000)):
        reader = ResponseReader(None)
        headers = {"Content-Encoding": "gzip"} if len(body) < ERROR_NBYTES else {}
        receive(reader, http(body, headers, "400 Bad"))
        assert reader.complete
        assert len(reader.error_body) == ERROR_NBYTES


def test_connection_that_ends_within_an_error() -> None:
    reader = ResponseReader(None)
    receive(reader, http(b"a part", status="400 Bad", length=100))
    assert (reader.complete, reader.reusable) == (False, True)
    reader.eof()
    assert (reader.complete, reader.reusable, reader.error_body) == (True, False, b"a part")


def test_connection_whose_protocol_was_switched(connect: Connect) -> None:
    """It is not used again."""
    switched = b"HTTP/1.1 101 Other\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    with Scripted([switched, GOOD]) as server, connect(server.address) as client:
        for n in range(2):
            with pytest.raises(InferenceServerError, match="status 101"):
                client.infer("m", {"x": X})
            assert server.n_connections == n + 1


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


def interim_responses_alone(connection: socket.socket) -> None:
    for _ in range(2):
        connection.sendall(INTERIM)
        time.sleep(0.02)
    connection.sendall(GOOD)


ACCEPTED: dict[str, tuple[Any, bool]] = {  # an answer, and whether its connection is used again
    "interim responses": (INTERIM * 2 + GOOD, True),
    "interim responses alone": (interim_responses_alone, True),
    "chunks of 1 byte": (http(chunked(BODY, 1), CHUNKED, length=""), True),
    "chunks": (http(chunked(BODY), HEADERS | {"Transfer-Encoding": "Chunked"}, length=""), True),
    "one chunk": (http(chunked(BODY, 10_000), CHUNKED, length=""), True),
    "chunks, close": (http(chunked(BODY), CHUNKED | {"Connection": "Close"}, length=""), False),
    "chunks, close in a trailer": (http(CLOSING, CHUNKED, length=""), False),
    "chunks, garbage": (http(chunked(BODY), CHUNKED, length="") + b"\0garbage", False),
    "chunks, another response": (http(chunked(BODY), CHUNKED, length="") + GOOD, False),
    "close": (http(BODY, HEADERS | {"Connection": "close"}), False),
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


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_responses(connect: Connect, name: str) -> None:
    answer, is_used_again = ACCEPTED[name]
    with Scripted([answer] * 2) as server, connect(server.address, timeout=5) as client:
        for n in range(2):
            array = client.infer("m", {"x": X})["x"].data
            assert np.array_equal(array, X)
            assert array.ctypes.data % 64 == 0
            assert server.n_connections == (1 if is_used_again else n + 1)


RANDOM = np.random.default_rng(0).integers(0, 256, MiB, np.uint8)


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_long_response(connect: Connect, is_chunked: bool, is_compressed: bool) -> None:
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("x", RANDOM)]))
    body = gzip.compress(bytes(frame), 1) if is_compressed else bytes(frame)
    headers = {HEADER_LENGTH: str(frame.header_length)}
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    if is_chunked:
        headers["Transfer-Encoding"] = "chunked"
        body = chunked(body, 10_000)
    answer = http(body, headers, length="" if is_chunked else None)
    with Scripted([answer]) as server, connect(server.address) as client:
        assert np.array_equal(client.infer("m", {"x": X})["x"].data, RANDOM)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZip", "deflate", ""])
def test_content_encoding_of_an_empty_body(connect: Connect, encoding: str) -> None:
    """Some proxies announce an encoding, and send nothing."""
    answer = http(b"", {"Content-Encoding": encoding})
    with Scripted([answer] * 2) as server, connect(server.address) as client:
        assert client.is_ready()
        assert client.is_ready("m")
        assert server.n_connections == 1


@pytest.mark.parametrize(("body", "headers"), [(BODY, HEADERS), (GZIPPED, HEADERS | GZIP)])
def test_response_without_length_ends_with_the_connection(
    connect: Connect, body: bytes, headers: dict[str, str]
) -> None:
    with Scripted([http(body, headers, length="")]) as server, connect(server.address) as client:
        assert np.array_equal(client.infer("m", {"x": X})["x"].data, X)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (http(BODY[:-1], HEADERS, length=len(BODY)), ConnectionError, ""),
        (http(b"", HEADERS, length=len(BODY)), ConnectionError, ""),
        (http(chunked(BODY, 100, b""), CHUNKED, length=""), ConnectionError, ""),
        (http(chunked(BODY, 100)[:-300], CHUNKED, length=""), ConnectionError, ""),
        (b"", ConnectionError, ""),
        (b"HTTP/1.1 200 OK\r\nContent-", ConnectionError, "before the head of the response was"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", ConnectionError, "before the head of the response was"),
        (b"220 mail.example.com ESMTP\r\n", ConnectionError, "not valid HTTP"),
        (b"\0\0\x06\4\0\0\0\0\0\0\3\0\0\0d", ConnectionError, "use a grpc:// URL"),
        (b"\0\0\x06\4\0\0\0\0\1\0\3\0\0\0d", ConnectionError, "not valid HTTP"),
        (http(BODY, HEADERS, length=len(BODY) - 4), tw.LayoutError, ""),
        (http(BODY[:-4], HEADERS, length=""), tw.LayoutError, ""),
        (http(b"", status="000 No") + GOOD, ConnectionError, "not valid HTTP: status 000"),
        (http(b"", status="099 No") + GOOD, ConnectionError, "not valid HTTP: status 099"),
        (http(BODY, HEADERS, length=f"{len(BODY)}, 9"), ConnectionError, "not valid HTTP"),
        (http(BODY, HEADERS, length=f"+{len(BODY)}"), ConnectionError, "not valid HTTP"),
        (http(BODY, CHUNKED), ConnectionError, "not valid HTTP"),
        (
            http(BODY, HEADERS | {"Transfer-Encoding": "gzip, chunked"}, length=""),
            tw.HeaderError,
            "Transfer-Encoding 'gzip, chunked', which is not supported",
        ),
        (
            b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 50_000,
            ConnectionError,
            "head of the response exceeds",
        ),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 20_000, ConnectionError, "head of the response exceeds"),
        (
            http(chunked(BODY, 100, b"0\r\n" + b"a: b\r\n" * 60_000), CHUNKED, length=""),
            ConnectionError,
            "the trailer section of the response exceeds",
        ),
        (http(BODY), tw.HeaderError, "is Inference-Header-Content-Length missing?"),
        (http(BODY, HEADERS | {"Inference-Header-Content-Length": "x"}), tw.HeaderError, "'x'"),
        (http(b"<html>"), tw.HeaderError, "malformed"),
        (http(BODY, HEADERS | GZIP), tw.HeaderError, "compressed response is inv"),
        (http(BODY, HEADERS | {"Content-Encoding": "br"}), tw.HeaderError, "'br', which is not"),
        (
            http(GZIPPED[:-1], HEADERS | GZIP, length=""),
            tw.HeaderError,
            "the compressed response is truncated after",
        ),
        (http(GZIPPED + b"x", HEADERS | GZIP), tw.HeaderError, "is followed by other data"),
        (http(GZIPPED[:-8] + bytes(8), HEADERS | GZIP), tw.HeaderError, "incorrect data check"),
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
            assert len(str(caught.value)) < 700

        call()
        assert server.has_closed.wait(5)  # so that the second call does not use the connection
        try:
            raise LookupError
        except LookupError:  # the error is the same while another exception is handled
            call()
        assert server.n_connections == 2  # the second call has not read the rest of the response


@pytest.mark.parametrize("n_first", [1, 20, 150, 300, 1000])
def test_response_in_two_parts(connect: Connect, n_first: int) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(GOOD[:n_first])
        time.sleep(0.02)
        connection.sendall(GOOD[n_first:])

    with Scripted([answer, answer]) as server, connect(server.address) as client:
        for _ in range(2):
            assert np.array_equal(client.infer("m", {"x": X})["x"].data, X)


@pytest.mark.parametrize("body", [b"[1]", b"", b"\xff", b"[" * 100])
def test_malformed_metadata_is_rejected(connect: Connect, body: bytes) -> None:
    fails = pytest.raises(tw.DecodeError, match="the metadata is invalid: ")
    with Scripted([http(body)]) as server, connect(server.address) as client, fails:
        client.server_metadata()


# --- limits ---


@pytest.mark.parametrize("length", [None, ""])
def test_response_longer_than_max_body_is_rejected(connect: Connect, length: Any) -> None:
    answer = http(BODY, HEADERS, length=length)
    with Scripted([answer]) as server, connect(server.address, max_body=len(BODY) - 1) as client:
        with pytest.raises(
            tw.HeaderError, match=r"the body is \d+ bytes long; the limit is"
        ) as caught:
            client.infer("m", {"x": X})
        assert caught.value.status == 413
    for max_body in (len(BODY), len(BODY) + 1, None):
        with Scripted([answer]) as server, connect(server.address, max_body=max_body) as client:
            assert client.infer("m", {"x": X})["x"].shape == (1000,)


def test_limits_apply_to_responses(connect: Connect, server: str) -> None:
    limits = tw.Limits(max_header_nbytes=10)
    with connect(server, limits=limits) as client, pytest.raises(tw.HeaderError):
        client.infer("echo", {"x": X})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"name":' + b"[" * 5000, "the JSON is nested too deeply"),
        (bytes(2000), "is 2000 bytes long; the limit is 1999"),
    ],
    ids=["nested too deeply", "too long"],
)
def test_limits_apply_to_metadata(connect: Connect, body: bytes, message: str) -> None:
    limits = tw.Limits(max_header_nbytes=len(body) if message.endswith("deeply") else 1999)
    fails = pytest.raises(tw.HeaderError, match=message)
    with Scripted([http(body)]) as server, fails, connect(server.address, limits=limits) as client:
        client.server_metadata()


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


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_large_content_length_allocates_nothing(connect: Connect) -> None:
    wrong_length = http(BODY, HEADERS, length=2 * 1024 * MiB - 1)
    with Scripted([wrong_length]) as server, connect(server.address) as client:
        before = resident()
        with pytest.raises(ConnectionError):
            client.infer("m", {"x": X})
        assert resident() - before < 20 * MiB
