"""Client and AsyncClient over gRPC: errors, sizes, timeouts, channels, streams."""

from __future__ import annotations

import asyncio
import pickle
import queue
import re
import signal
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc as codec
from support import client_fixtures
from support.client_fixtures import Certificate, Connect, X
from support.grpc_scripted_servers import ScriptedServer
from support.http2_client import END_HEADERS, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, literal
from support.lifetimes import without_gc
from support.memory import peak_nbytes, takes
from support.requirements import package
from support.scripts import run_script
from support.serve_process import free_port
from support.servers import Scripted
from support.threads import in_thread, wait_for
from tensorwire.client import AsyncClient, Client, InferenceServerError, Progress, Timeout
from tensorwire.grpc_messages import SERVICE

grpc = package("grpc")
grpc_streams = package("tensorwire.client.grpc_streams")

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
certificate, server = client_fixtures.certificate, client_fixtures.grpc_server


@pytest.fixture
def client(connect: Connect, server: ScriptedServer) -> Iterator[Any]:
    with connect(server.url, timeout=20) as found:
        yield found


def connect_with_channel(
    connect: Connect, url: str, make: Callable[[Any], Any] | None, **options: Any
) -> Any:
    """Connect with the channel that a function of ``grpc`` or ``grpc.aio`` makes."""
    if make is None:
        return connect(url, **options)
    if connect is Client:
        return connect(url, channel=make(grpc), **options)
    return connect(url, channel=partial(make, grpc.aio), **options)


# --- requests ---


NOT_SENT = "the {} of an HTTP header cannot be sent over gRPC: {!r}"
VALUE = "the value of the HTTP header X "


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"X": "\u00e9"}, VALUE + "cannot be sent over gRPC: character '\u00e9' at position 0$"),
        ({"X": "a\tb"}, VALUE + r"cannot be sent over gRPC: character '\\t' at position 1$"),
        ({"X": "a\r\nb: c"}, f"{VALUE}is invalid"),
        *(({name: "1"}, NOT_SENT.format("name", name)) for name in ("x!", "Data-Bin", "grpc-to")),
        ({"Host": "other"}, "the HTTP header Host cannot be passed: grpcio sets it"),
        ({"Content-Type": "a"}, "the HTTP header Content-Type cannot be passed"),
    ],
)
def test_headers_that_cannot_be_sent(
    client: Any, server: ScriptedServer, headers: dict[str, str], message: str
) -> None:
    before = len(server.calls)
    for call in (
        lambda: client.infer("echo", {"x": X}, headers=headers),
        lambda: client.is_ready(headers=headers),
        lambda: client.stream("echo", [], headers=headers),
        lambda: Client(server.url, headers=headers),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert len(server.calls) == before


def test_methods_of_the_other_transport(client: Any, connect: Connect) -> None:
    with pytest.raises(ValueError, match="infer_raw requires HTTP"):
        client.infer_raw("declared", X)
    with pytest.raises(ValueError, match="ssl_context requires an https:// URL"):
        Client("grpcs://localhost", ssl_context=ssl.create_default_context())
    message = "stream requires a grpc:// or grpcs:// URL, not http"
    with connect("localhost:1") as http, pytest.raises(ValueError, match=message):
        http.stream("m", [])
    with pytest.raises(ValueError, match=message):
        AsyncClient("localhost:1").stream("m", [])  # no event loop runs


def test_server_that_may_require_tls(connect: Connect) -> None:
    fails = pytest.raises(ConnectionError, match=r"TLS, the URL must begin with grpcs://\)$")
    with Scripted([b""]) as server, connect(f"grpc://{server.address}") as client, fails:
        client.server_metadata()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client: Any, algorithm: Any) -> None:
    sizes: list[int] = []
    options: dict[str, Any] = {
        "request_compression_algorithm": algorithm,
        "response_compression_algorithm": "gzip",
        "on_progress": lambda progress: sizes.append(progress.sent_nbytes),
    }
    assert client.infer("echo", {"x": X}, **options)["x"].shape == X.shape
    assert sizes[0] > X.nbytes  # before compression


def test_encoded_request_for_another_model(client: Any, server: ScriptedServer) -> None:
    before = len(server.calls)
    for name, version, call in (
        ("echo", "1", ("echo", None)),
        ("echo", None, ("echo", "1")),
        ("echo", "1", ("echo", "2")),
        (None, None, ("echo", None)),
        ("other", None, ("echo", None)),
    ):
        request = tw.InferRequest({"x": X}, model_name=name, model_version=version)
        with pytest.raises(ValueError, match=r"^the encoded request is for .* the call is for"):
            client.infer(call[0], codec.encode_request(request), version=call[1])
    assert len(server.calls) == before
    message = codec.encode_request(request)
    assert client.infer("other", message)["x"].shape == X.shape
    assert server.messages[-1] == message
    assert client.infer("echo", {"x": X}, version=3).model_version == "3"


def test_invalid_encoded_requests(client: Any) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 31

    with pytest.raises(tw.EncodeError, match="2147483648 bytes long; the limit is 2147483647") as e:
        client.infer("echo", Huge())
    assert (e.value.actual, e.value.expected) == (1 << 31, (1 << 31) - 1)
    with pytest.raises(tw.HeaderError, match="the gRPC message is malformed"):
        client.infer("echo", b"\x0a\xff")
    with pytest.raises(TypeError, match=r"a Frame, .* over HTTP, .*grpc\.encode_request"):
        client.infer("echo", tw.encode_request(tw.InferRequest({"x": X})))
    with Client("localhost:1") as http, pytest.raises(TypeError, match="sent over gRPC"):
        http.infer("echo", b"")


def test_progress(client: Any) -> None:
    calls: list[Progress] = []
    message = codec.encode_request(tw.InferRequest({"x": X}, model_name="echo"))
    client.infer("echo", message, on_progress=calls.append)
    n_sent, n_received = calls[-1].sent_nbytes, calls[-1].received_nbytes
    sent = Progress(len(message), len(message), 0, None)
    assert calls == [sent, Progress(n_sent, n_sent, n_received, n_received)]

    def fail(_: Progress) -> None:
        raise ConnectionError("mine")

    with pytest.raises(ConnectionError, match=r"^mine$"):
        client.infer("echo", message, on_progress=fail)


# --- errors ---

STATUSES = {
    **{"CANCELLED": 499, "UNKNOWN": 500, "INVALID_ARGUMENT": 400, "DEADLINE_EXCEEDED": 504},
    **{"NOT_FOUND": 404, "ALREADY_EXISTS": 409, "PERMISSION_DENIED": 403, "DATA_LOSS": 500},
    **{"RESOURCE_EXHAUSTED": 429, "FAILED_PRECONDITION": 400, "ABORTED": 409, "INTERNAL": 500},
    **{"OUT_OF_RANGE": 400, "UNIMPLEMENTED": 501, "UNAVAILABLE": 503, "UNAUTHENTICATED": 401},
}
RETRIED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
FAILED = ("Socket closed", "failed to connect to all addresses")  # texts of a failed connection
# The text of grpcio for a message above a limit, which the client does not check in these calls.
TOO_LONG = f"CLIENT: Sent message larger than max ({'9' * 5000} vs. 4)"


@pytest.mark.parametrize("code", STATUSES)
def test_status_codes(connect: Connect, code: str) -> None:
    """A server may send any text. Retries do not depend on it."""

    def reject(message: bytes, context: Any) -> Any:
        context.abort(getattr(grpc.StatusCode, code), text)

    with ScriptedServer({"ModelInfer": reject}) as server, connect(server.url, retries=1) as client:
        for text in ("", "no \u00fc", TOO_LONG, *FAILED):
            server.calls.clear()
            is_failure = code == "UNAVAILABLE" and text in FAILED
            kind = ConnectionError if is_failure else InferenceServerError
            with pytest.raises(kind, match=f"^ModelInfer {server.url}: ") as caught:
                client.infer("m", {"x": X})
            assert isinstance(caught.value.__cause__, grpc.RpcError)
            assert len(server.calls) == (2 if code in RETRIED else 1)
            if not is_failure:
                error: Any = caught.value
                assert (error.status, error.message) == (STATUSES[code], text[:2000])
                assert (error.url, error.model) == (server.url, "m")
    assert len(STATUSES) == len(grpc.StatusCode) - 1


EMPTY_SETTINGS = frame(SETTINGS)
RESPONSE_FIELDS = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
RESPONSE_HEAD = frame(HEADERS, END_HEADERS, 1, RESPONSE_FIELDS)


class Raw(Scripted):
    """Sends bytes, and receives in between. Then it closes or resets the connection."""

    def __init__(self, *sent: bytes, is_reset: bool = False) -> None:
        super().__init__([])
        self.sent = sent
        self.is_reset = is_reset

    def __enter__(self) -> Any:
        super().__enter__()
        return f"grpc://{self.address}"

    def serve(self, connection: socket.socket) -> None:
        for i, data in enumerate(self.sent):
            if i > 0:
                time.sleep(0.1)
                connection.recv(1 << 16)
            connection.sendall(data)
        time.sleep(0.1)  # closing may discard what the client has not received yet
        if self.is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def balanced(library: Any) -> Any:
    """Return a channel of the caller to a port where nothing listens."""
    options = [("grpc.lb_policy_name", "round_robin")]
    return library.insecure_channel(f"127.0.0.1:{free_port()}", options)


# How a connection fails: the URL or a server.
FAILURES: dict[str, Callable[[], Any]] = {
    "all backends refuse": lambda: nullcontext("grpc://named:1"),
    "name is unknown": lambda: nullcontext("grpc://host.invalid:1"),
    "no Unix socket": lambda: nullcontext("grpc+unix:/none/none"),
    "closes": Raw,
    "HTTP/1": lambda: Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3),
    "closes later": lambda: Raw(EMPTY_SETTINGS, b""),
    "resets the connection": lambda: Raw(EMPTY_SETTINGS, b"", is_reset=True),
    "goes away": lambda: Raw(EMPTY_SETTINGS, frame(GOAWAY, payload=bytes(8))),
    "refuses the stream": lambda: Raw(
        EMPTY_SETTINGS, frame(RST_STREAM, 0, 1, (7).to_bytes(4, "big"))
    ),
    "responds in part": lambda: Raw(EMPTY_SETTINGS, RESPONSE_HEAD),
}


@pytest.mark.parametrize("name", FAILURES)
def test_connection_that_fails(connect: Connect, name: str) -> None:
    """The text of the installed grpcio is that of a failed connection, and not of a server."""
    channel = balanced if name == "all backends refuse" else None
    options = {"timeout": 20, "trust_env": False}
    with (
        FAILURES[name]() as url,
        connect_with_channel(connect, url, channel, **options) as client,
    ):
        for _ in range(2):
            with pytest.raises(ConnectionError, match=f"^ModelInfer {re.escape(url)}: ") as caught:
                client.infer("m", {"x": X})
            cause: Any = caught.value.__cause__
            assert cause.code() is grpc.StatusCode.UNAVAILABLE


def test_proxy_that_refuses(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{free_port()}")
    with connect("grpc://models.test:8001") as client, pytest.raises(ConnectionError) as caught:
        client.infer("m", {"x": X})
    assert str(caught.value).endswith("the proxy in http_proxy, unless no_proxy lists the host)")
    assert "refused" in str(caught.value) and "secret" not in str(caught.value)


def test_url_of_the_other_protocol(connect: Connect, server: ScriptedServer) -> None:
    for scheme, message in (("https", "TLS: use an http://"), ("grpcs", "TLS: use a grpc://")):
        fails = pytest.raises(ConnectionError, match=f" the server does not use {message} URL$")
        with connect(f"{scheme}://{server.address}", timeout=20) as client, fails:
            client.infer("m", {"x": X})
    with connect(f"http://{server.address}", timeout=20) as client:
        for call in (client.server_metadata, lambda: client.infer("m", {"x": np.zeros(1 << 20)})):
            with pytest.raises(ConnectionError, match=r": the server speaks .* use a grpc:// URL$"):
                call()
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    fails = pytest.raises(ConnectionError, match=r": the server speaks .* use an http:// URL$")
    with Scripted([answer]) as http, connect(f"grpc://{http.address}") as client, fails:
        client.infer("m", {"x": X})


def test_invalid_response(connect: Connect) -> None:
    names = ("ModelInfer", "ModelMetadata", "ModelReady")
    answers: dict[str, Any] = {name: lambda *_: b"\x2a\xff\xff" for name in names}
    with ScriptedServer(answers) as server, connect(server.url, retries=3) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.infer("m", {"x": X}),
            lambda: client.model_metadata("m"),
            lambda: client.is_ready("m"),
            lambda: client.wait_until_ready("m", 5),
        ]
        for call in calls:
            with pytest.raises(tw.DecodeError, match=rf"^Model\w+ {server.url}: .* is malformed"):
                call()
        assert len(server.calls) == 4


# --- sizes ---


@pytest.mark.parametrize("is_own", [False, True])
def test_response_above_max_body(connect: Connect, server: ScriptedServer, is_own: bool) -> None:
    channel = (lambda library: library.insecure_channel(server.address)) if is_own else None
    with connect_with_channel(
        connect, server.url, channel, max_body_nbytes=1000, retries=3
    ) as client:
        assert client.infer("echo", {"x": X[:10]})["x"].shape == (10,)
        before = len(server.calls)
        calls: list[Callable[[], Any]] = [
            lambda: client.infer("echo", {"x": X}),
            lambda: next(client.stream("repeat", [{"x": X}])),
        ]
        for call in calls:
            with pytest.raises(tw.DecodeError, match=r"long; the limit is 1000$") as caught:
                call()
            assert (caught.value.status, caught.value.expected) == (413, 1000)
            assert 4000 < (caught.value.actual or 0) < 4200
        assert len(server.calls) == before + 2


def test_request_above_a_limit(connect: Connect) -> None:
    fails = pytest.raises(InferenceServerError, match=r"status 413: .*larger than max")
    with ScriptedServer(max_nbytes=1000) as server:
        with connect(server.url, retries=3) as client, fails:
            client.infer("echo", {"x": X})
        options = [("grpc.max_send_message_length", 500)]
        message = "the gRPC message is 40.. bytes long; the limit of the channel is 500"
        with (
            connect_with_channel(
                connect, server.url, lambda lib: lib.insecure_channel(server.address, options)
            ) as client,
            pytest.raises(tw.EncodeError, match=message) as too_long,
        ):
            client.infer("echo", {"x": X})
        assert (too_long.value.expected, (too_long.value.actual or 0) > 4000) == (500, True)


@pytest.mark.parametrize("is_request", [False, True])
def test_compressed_message_above_a_limit(connect: Connect, is_request: bool) -> None:
    """New versions of grpcio do not report which side has rejected it, and how long it is."""
    zeros = np.zeros(100_000)

    def answer(message: bytes, context: Any) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return codec.encode_response(tw.InferResponse({"y": zeros}))

    inputs: dict[str, Any] = {"x": zeros if is_request else X[:1]}
    options: Any = {"request_compression_algorithm": "gzip"} if is_request else {}
    with (
        ScriptedServer({"ModelInfer": answer}, max_nbytes=10_000) as server,
        connect(server.url, max_body_nbytes=10_000, retries=3) as client,
        pytest.raises(InferenceServerError if is_request else tw.BodyTooLargeError) as caught,
    ):
        client.infer("m", inputs, **options)
    assert caught.value.status == 413


def test_request_is_copied_once() -> None:
    """Into the message, also with retries. What grpcio allocates is not traced."""
    array = np.zeros(32 << 20, np.uint8)
    message = codec.encode_request(tw.InferRequest({"x": array}, model_name="m"))

    def call(client: Client, inputs: Any) -> None:
        with pytest.raises(ConnectionError):
            client.infer("m", inputs)

    with Client(f"grpc://127.0.0.1:{free_port()}", retries=2) as client:
        assert array.nbytes < peak_nbytes(partial(call, client, {"x": array})) < 1.01 * array.nbytes
        assert peak_nbytes(partial(call, client, message)) < 0.01 * array.nbytes


# --- timeouts ---


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        (0.2, "no response after 0.2 seconds (read timeout)"),
        (Timeout(read=0.2, total=5), "no response after 0.2 seconds (read timeout)"),
        (Timeout(total=0.2), "the call took longer than 0.2 seconds (total timeout)"),
    ],
)
def test_timeouts(connect: Connect, server: ScriptedServer, timeout: Any, message: str) -> None:
    before = len(server.calls)
    with connect(server.url, retries=3) as client:
        fails = pytest.raises(TimeoutError, match=re.escape(f"ModelInfer {server.url}: {message}"))
        with takes(0.19, 2), fails:
            client.infer("slow", {"x": X}, timeout=timeout)
        assert len(server.calls) == before + 1
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


@pytest.mark.slow(reason="it waits for timeouts")
def test_server_that_never_responds(connect: Connect) -> None:
    """It accepts connections, and sends nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        with connect(url, timeout=Timeout(read=0.2)) as client, pytest.raises(TimeoutError):
            client.infer("m", {"x": X})
        fails = pytest.raises(ConnectionError, match="failed to connect")
        with connect(url, timeout=Timeout(connect=0.3, read=20)) as client, takes(0, 5), fails:
            client.infer("m", {"x": X})


# --- channels ---


def test_channel_of_the_caller(connect: Connect, server: ScriptedServer) -> None:
    """The client does not close it. The caller may have closed it."""
    made: list[Any] = []

    def make(library: Any) -> Any:
        made.append(library.insecure_channel(server.address))
        return made[-1]

    def run(client: Any, call: Callable[[], Any]) -> Any:
        async def await_it() -> Any:
            return await call()

        return call() if connect is Client else client.runner.run(await_it())

    with connect_with_channel(connect, "grpc://named:1", make) as client:
        assert client.infer("echo", {"x": X})["x"].shape == X.shape
        with pytest.raises(InferenceServerError, match=r"^ModelInfer grpc://named:1: status 404"):
            client.infer("unknown", {"x": X})
        client.close()
        with pytest.raises(RuntimeError, match=r"^the client is closed$"):
            client.infer("echo", {"x": X})
        method = made[0].unary_unary("/inference.GRPCInferenceService/ServerReady")
        assert run(client, lambda: method(b"")) == b"\x08\x01"
        run(client, made[0].close)
    with connect_with_channel(connect, server.url, make) as client:
        client.infer("echo", {"x": X})
        run(client, made[1].close)
        with pytest.raises(RuntimeError, match="closed"):
            client.infer("echo", {"x": X})
        with pytest.raises(RuntimeError, match="closed"):
            client.stream("repeat", [])


def test_channel_of_the_caller_and_another_event_loop(server: ScriptedServer) -> None:
    async def main() -> Any:
        async with grpc.aio.insecure_channel(server.address) as channel:
            client = AsyncClient(server.url, channel=channel)
            assert await client.is_ready()
        return client

    client = asyncio.run(main())
    with pytest.raises(RuntimeError, match="the channel of the caller belongs to another event"):
        asyncio.run(client.is_ready())
    asyncio.run(client.close())


def test_channel_of_the_wrong_kind(server: ScriptedServer) -> None:
    with grpc.insecure_channel(server.address) as channel:

        async def main() -> None:
            async with AsyncClient(server.url, channel=channel) as client:
                with pytest.raises(TypeError, match=r"^AsyncClient requires a grpc\.aio\.Channel$"):
                    await client.is_ready()
            async with grpc.aio.insecure_channel(server.address) as other:
                fails = pytest.raises(TypeError, match=r"^Client requires a grpc\.Channel$")
                with Client(server.url, channel=other) as blocking, fails:
                    blocking.is_ready()

        asyncio.run(main())
        wrong: Any = server.address
        with pytest.raises(TypeError, match="channel must be a channel of grpcio, not str"):
            Client(server.url, channel=wrong)
        with pytest.raises(ValueError, match="channel requires a grpc:// or grpcs:// URL"):
            Client("localhost", channel=channel)
        with pytest.raises(TypeError, match="a channel of the caller cannot be pickled"):
            pickle.dumps(Client(server.url, channel=channel))


def test_unix_socket(connect: Connect, tmp_path: Path) -> None:
    path = quote(str(tmp_path / "a b%41.sock"))
    with ScriptedServer(address=f"unix:{path}"), connect(f"grpc+unix:{path}") as client:
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


def test_tls(connect: Connect, certificate: Certificate) -> None:
    key, chain = Path(certificate.key).read_bytes(), Path(certificate.file).read_bytes()
    trusting = grpc.ssl_channel_credentials(chain)
    with ScriptedServer(credentials=grpc.ssl_server_credentials([(key, chain)])) as server:
        url = f"grpcs://{server.address}"
        with connect_with_channel(
            connect, url, lambda library: library.secure_channel(server.address, trusting)
        ) as client:
            assert client.infer("echo", {"x": X})["x"].shape == X.shape
        with connect(url) as client, pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY"):
            client.infer("echo", {"x": X})
        with connect(server.url) as plain, pytest.raises(ConnectionError):
            plain.infer("echo", {"x": X})
        if connect is Client:
            script = "from tensorwire.cli import main; main()"
            options = ("--input", "x:FP32=1", "--ca-file", certificate.file)
            done = run_script(script, "infer", url, "echo", *options)
            assert done.stdout == "x  FP32  [1]\n[1.]\n", done.stderr


def test_restarted_server(connect: Connect) -> None:
    with ScriptedServer() as first, connect(first.url, retries=4) as client:
        client.infer("echo", {"x": X})
        first.server.stop(0).wait()
        with ScriptedServer(address=first.address) as second:
            assert client.infer("echo", {"x": X})["x"].shape == X.shape
            assert len(second.calls) == 1


# --- calls that are ended ---


def test_close_during_a_call_of_another_thread() -> None:
    with ScriptedServer() as server:
        client = Client(server.url, retries=3)

        def close() -> None:
            server.has_begun.wait(5)
            client.close()

        fails = pytest.raises(ConnectionError, match="the client was closed during the call")
        with in_thread(close), fails:
            client.infer("slow", {"x": X})
        assert len(server.calls) == 1


@pytest.mark.parametrize("is_own", [False, True])
async def test_close_during_a_call_of_another_task(is_own: bool) -> None:
    """The server sees that the calls are cancelled."""
    with ScriptedServer() as server:
        channel = grpc.aio.insecure_channel(server.address) if is_own else None
        client = AsyncClient(server.url, channel=channel, retries=3)
        calls = [asyncio.create_task(client.infer("slow", {"x": X})) for _ in range(3)]
        await asyncio.to_thread(server.has_begun.wait, 5)
        stream = client.stream("repeat", [request(hang=True)])
        await anext(stream)
        calls.append(asyncio.ensure_future(anext(stream)))
        await asyncio.sleep(0.1)
        calls.pop(0).cancel()
        await client.close()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, ConnectionError)
            assert str(result).endswith("the client was closed during the call")
        if channel is not None:
            await channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"")
            await channel.close()
        await asyncio.to_thread(wait_for, lambda: server.n_cancelled == 4)


def test_signal_during_a_call() -> None:
    """A handler that raises ends the call, and the server sees that."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with ScriptedServer() as server, Client(server.url) as client:

            def send() -> None:
                server.has_begun.wait(5)
                time.sleep(0.1)  # until grpcio has stored the call
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

            with in_thread(send), takes(0, 1.5), pytest.raises(Interrupted):
                client.infer("slow", {"x": X})
            wait_for(lambda: server.n_cancelled == 1)
            assert client.infer("echo", {"x": X})["x"].shape == X.shape
    finally:
        signal.signal(signal.SIGUSR1, before)


# --- streams ---


def request(**parameters: Any) -> tw.InferRequest:
    return tw.InferRequest({"x": X[:3]}, parameters=parameters)


def encoded(model: str) -> bytes:
    return codec.encode_request(request().replace(model_name=model, id="enc"))


def test_stream(client: Any, server: ScriptedServer) -> None:
    requests = [{"x": X}, [tw.Tensor("x", X)], {"x": [1, 2]}, request(), encoded("repeat")]
    responses = client.stream("repeat", iter(requests), headers={"X-A": "1"})
    assert iter(responses) is responses
    found = [(response.id, response["x"].shape) for response in responses]
    assert found == [("1", (1000,)), ("2", (1000,)), ("3", (2,)), ("4", (3,)), ("enc", (3,))]
    assert ("ModelStreamInfer", "1") in [(sent["path"], sent.get("x-a")) for sent in server.calls]
    assert list(responses) == []
    assert list(client.stream("repeat", [])) == []


def test_several_responses_to_a_request(client: Any) -> None:
    responses = client.stream("repeat", [request(n=3), request(n=0), request(n=2)])
    found = [(response.id, int(response["i"].as_numpy()[0])) for response in responses]
    assert found == [("1", 0), ("1", 1), ("1", 2), ("3", 0), ("3", 1)]


def items_of(queued: queue.Queue[Any], client: Any) -> Any:
    """Return an iterable of the items up to None. It does not block an event loop."""

    async def items() -> AsyncIterator[Any]:
        while (item := await asyncio.to_thread(queued.get)) is not None:
            yield item

    return iter(queued.get, None) if isinstance(client, Client) else items()


def test_responses_arrive_between_the_requests(client: Any) -> None:
    requests: queue.Queue[Any] = queue.Queue()
    responses = client.stream("repeat", items_of(requests, client))
    for value in (1.0, 2.0, 3.0):
        requests.put({"x": np.array([value])})
        assert next(responses)["x"].tolist() == [value]
    requests.put(None)
    assert list(responses) == []


def test_error_of_one_request(client: Any) -> None:
    """The iterator continues with the response to the next request."""
    requests = [request(), request(error="no \u00fc"), request(), request(error="x"), request()]
    responses = client.stream("repeat", requests)
    assert next(responses).id == "1"
    with pytest.raises(InferenceServerError, match=r"^ModelStreamInfer grpc://.*: no \u00fc$") as e:
        next(responses)
    error = e.value
    assert (error.message, error.model, error.id) == ("no \u00fc", "repeat", "2")
    assert (error.status, pickle.loads(pickle.dumps(error)).id) == (500, "2")
    assert next(responses).id == "3"
    with pytest.raises(InferenceServerError, match=r": x$"):
        next(responses)
    assert [response.id for response in responses] == ["5"]


@pytest.mark.parametrize("code", ["NOT_FOUND", None])
def test_server_that_ends_a_stream_while_requests_are_sent(connect: Connect, code: Any) -> None:
    """Its status is reported, and not that a request could not be written."""

    def answer(messages: Any, context: Any) -> Iterator[bytes]:
        next(messages)
        yield codec.encode_stream_response(tw.InferResponse({"x": X}))
        if code is not None:
            context.abort(getattr(grpc.StatusCode, code), "aborted")

    with ScriptedServer({"ModelStreamInfer": answer}) as server, connect(server.url) as client:
        for _ in range(10):
            responses = client.stream("m", [{"x": np.zeros(1 << 18)}] * 20)
            assert next(responses)["x"].shape == X.shape
            if code is not None:
                with pytest.raises(InferenceServerError, match=r"status 404: aborted"):
                    next(responses)
            assert list(responses) == []


def test_invalid_response_of_a_stream(connect: Connect) -> None:
    good = codec.encode_stream_response(tw.InferResponse({"x": X}))

    def answer(messages: Any, context: Any) -> Iterator[bytes]:
        yield from (b"\x12\x02\x2a\xff", good)

    with ScriptedServer({"ModelStreamInfer": answer}) as server, connect(server.url) as client:
        responses = client.stream("m", [])
        with pytest.raises(tw.DecodeError, match=f"^ModelStreamInfer {server.url}: .* malformed"):
            next(responses)
        assert [response["x"].shape for response in responses] == [X.shape]


def test_error_of_the_requests(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is raised as it is, and ends the call. The requests are released."""
    arrays: list[Any] = []

    def requests() -> Iterator[Any]:
        array = np.zeros(1000)
        arrays.append(weakref.ref(array))
        yield {"x": array}
        del array
        yield request(hang=True)  # the server only continues when the call is cancelled
        raise KeyError("mine")

    for failing, error in (
        (requests(), KeyError),
        ([{"x": X}, 3], TypeError),
        ([b"\x0a"], tw.HeaderError),
        ([encoded("other")], ValueError),
        ([{"x": ["a", 1]}], (TypeError, ValueError)),
    ):
        with without_gc():
            responses = client.stream("repeat", failing, timeout=Timeout(total=3))
            with takes(0, 2), pytest.raises(error):
                list(responses)
            assert list(responses) == []
            wait_for(lambda: arrays[0]() is None)
    assert caplog.text == ""


@pytest.mark.parametrize("requests", [{"x": X}, request(), b"", "x", None, X[0]])
def test_requests_that_are_not_an_iterable_of_inputs(client: Any, requests: Any) -> None:
    with pytest.raises(TypeError, match="requests must be an iterable of inputs, not "):
        client.stream("repeat", requests)


def test_total_timeout_of_a_stream(client: Any) -> None:
    timeout = Timeout(read=0.01, total=0.3)
    with takes(0.29, 2):
        responses = client.stream("repeat", [request(hang=True)], timeout=timeout)
        next(responses)
        with pytest.raises(TimeoutError, match=r"the call took longer than 0\.3 seconds"):
            next(responses)
    assert list(responses) == []


async def test_total_timeout_of_a_stream_that_sends() -> None:
    """Also if grpcio is writing a request."""

    async def requests() -> AsyncIterator[Any]:
        while True:
            yield {"x": X[:2]}
            await asyncio.sleep(0)

    async def answer(messages: Any, context: Any) -> AsyncIterator[bytes]:
        async for each in messages:
            yield codec.encode_stream_response(tw.InferResponse(codec.decode_request(each).inputs))

    grpc_server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(answer)
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"ModelStreamInfer": handler})
    grpc_server.add_generic_rpc_handlers([handlers])
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    try:
        async with AsyncClient(f"grpc://127.0.0.1:{port}") as client:
            for _ in range(40):
                with pytest.raises(TimeoutError, match="the call took longer than"):
                    async for _ in client.stream("m", requests(), timeout=Timeout(total=0.03)):
                        pass
    finally:
        await grpc_server.stop(None)


async def test_requests_that_await_what_was_cancelled(server: ScriptedServer) -> None:
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()

    async def requests() -> AsyncIterator[Any]:
        yield request()
        await cancelled

    async with AsyncClient(server.url) as client:
        responses = client.stream("repeat", requests())
        with pytest.raises(asyncio.CancelledError):
            async for _ in responses:
                pass
        assert [each async for each in responses] == []
        assert (await client.infer("echo", {"x": X}))["x"].shape == X.shape


@pytest.mark.parametrize("end", ["close", "delete", "leave"])
def test_stream_that_is_left(connect: Connect, end: str) -> None:
    """The server sees that the call is cancelled, also while the requests have not ended."""
    requests: queue.Queue[Any] = queue.Queue()
    requests.put(request(hang=True))
    with ScriptedServer() as server, connect(server.url) as client:
        responses = client.stream("repeat", items_of(requests, client))
        if end == "leave":
            for _ in responses:
                break
            del responses, _
        else:
            next(responses)
        if end == "close":
            responses.close()
            assert list(responses) == []
            responses.close()
        elif end == "delete":
            del responses
        wait_for(lambda: server.n_cancelled == 1)
        requests.put(None)
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


def test_stream_or_client_that_another_thread_closes(server: ScriptedServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for client in (Client(server.url), Client(server.url, channel=channel)):
            with client.stream("repeat", [request(hang=True)]) as responses:
                next(responses)
                threading.Timer(0.1, responses.close).start()
                assert list(responses) == []
            responses = client.stream("repeat", [request(hang=True)])
            next(responses)
            threading.Timer(0.1, client.close).start()
            with pytest.raises(ConnectionError, match="the client was closed during the call"):
                next(responses)
            assert list(responses) == []


async def test_cancelled_task_that_reads_a_stream() -> None:
    with ScriptedServer() as server:
        async with (
            AsyncClient(server.url) as client,
            client.stream("repeat", [request(hang=True)]) as responses,
        ):
            await anext(responses)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(responses)
            assert [response async for response in responses] == []
        await asyncio.to_thread(wait_for, lambda: server.n_cancelled == 1)


async def test_task_that_is_cancelled_while_a_response_is_decoded(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends, as if no response had arrived. A large response is decoded in a thread."""
    has_begun, may_end = threading.Event(), threading.Event()

    def read(message: bytes, limits: tw.Limits) -> Any:
        has_begun.set()
        may_end.wait(10)
        return codec.decode_stream_response(message)

    monkeypatch.setattr(grpc_streams, "read_stream_response", read)
    inputs = tw.InferRequest({"x": np.zeros(4 << 20, np.uint8)}, parameters={"hang": True})
    async with AsyncClient(server.url) as client:
        stream = client.stream("repeat", [inputs])
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(has_begun.wait, 10)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        may_end.set()
        assert [response async for response in stream] == []


def test_stream_of_an_event_loop_that_has_ended() -> None:
    """It does not look like a stream without further responses."""
    with ScriptedServer() as server:
        client = AsyncClient(server.url)

        async def begin() -> Any:
            stream = client.stream("repeat", [request(n=1), request(hang=True)])
            assert (await anext(stream)).id == "1"
            return stream

        stream = asyncio.run(begin())
        with pytest.raises(ConnectionError, match=r": the event loop of the stream has ended$"):
            asyncio.run(anext(stream))
        asyncio.run(stream.close())
        asyncio.run(client.close())


def test_event_loops_that_have_ended_are_released() -> None:
    """grpcio refers to all of them as long as there is a channel."""
    script = """
import asyncio, gc, sys, weakref
from tensorwire.client import AsyncClient

async def call():
    assert await client.is_ready()
    return weakref.ref(asyncio.get_running_loop())

client = AsyncClient(sys.argv[1])
loops = [asyncio.run(call()) for _ in range(5)]
gc.collect()
print(sum(loop() is not None for loop in loops))
"""
    with ScriptedServer() as server:
        done = run_script(script, server.url)
    assert (done.stdout, done.stderr) == ("1\n", "")
