"""The clients, against a real server and against one that misbehaves as it is told."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from serving import Scripted, http, uvicorn_server
from tensorwire.asgi import Model, create_app
from tensorwire.client import AsyncClient, Client, InferenceServerError

pytestmark = pytest.mark.thread_unsafe(reason="its server is one for all")

MiB = 1 << 20
X = np.arange(1000, dtype=np.float32)
FRAME = tw.encode_response(tw.InferResponse([tw.Tensor("x", X)]))
BODY = bytes(FRAME)
HEADERS = {k: v for k, v in FRAME.headers.items() if k != "Content-Length"}
GOOD = http(BODY, HEADERS)


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(
        request.inputs, id=request.id, parameters={"saw": sorted(request.parameters)}
    )


async def slow(request: tw.InferRequest) -> tw.InferResponse:
    await asyncio.sleep(0.2)
    return tw.InferResponse(request.inputs)


def fail(request: tw.InferRequest) -> Any:
    raise RuntimeError("no")


SPEC = tw.TensorSpec("x", "FP32", [-1])
seen: list[dict[str, Any]] = []
_app = create_app(
    {
        "echo": echo,
        "a b/ü": echo,
        "slow": slow,
        "declared": Model(lambda r: {"y": r["x"].as_numpy() * 2}, [SPEC]),
        "half": lambda r: {"y": r["x"].as_numpy().astype("f2")},
        "fail": fail,
    },
    max_body=128 * MiB,
)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        seen.append({"peer": scope["client"], "path": scope["path"], **headers})
    await _app(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with uvicorn_server(app) as address:
        yield address


class Awaited:
    """An AsyncClient whose calls are run to their end, so that one test is for both clients."""

    def __init__(self, url: str, **options: Any) -> None:
        self.runner = asyncio.Runner()
        self.client = AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            return self.runner.run(getattr(self.client, name)(*arguments, **named))

        return call

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.client.close())
        self.runner.run(asyncio.sleep(0.01))  # in which asyncio closes the sockets
        self.runner.close()


Connect = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Connect:
    return Client if request.param == "sync" else Awaited


@pytest.fixture
def client(connect: Connect, server: str) -> Iterator[Any]:
    with connect(server, timeout=20) as found:
        yield found


# --- what is asked and answered ---


def test_infer(client: Any) -> None:
    inputs = [tw.Tensor("x", X), tw.Tensor("words", ["a", "bc"]), tw.Tensor("none", X[:0])]
    response = client.infer("echo", inputs, id="7", parameters={"more": 1})
    assert np.array_equal(response["x"].as_numpy(), X)
    assert response["words"].as_numpy().tolist() == [b"a", b"bc"]
    assert response["none"].shape == (0,)
    assert all(tensor.binary for tensor in response)
    assert (response.id, response.model_name) == ("7", "echo")
    assert response.parameters["saw"] == ["binary_data_output", "more"]


def test_a_mapping_of_arrays(client: Any) -> None:
    response = client.infer("echo", {"x": X, "y": tw.Tensor("y", [1], datatype="INT8")})
    assert [t.name for t in response] == ["x", "y"]


def test_which_outputs_and_how(client: Any) -> None:
    inputs = {"x": X, "y": X[:2]}
    assert [(t.name, t.binary) for t in client.infer("echo", inputs, ["y"])] == [("y", True)]
    response = client.infer("echo", inputs, ["x", tw.RequestedOutput("y", binary=False)])
    assert [(t.name, t.binary) for t in response] == [("x", True), ("y", False)]
    response = client.infer("echo", inputs, binary_outputs=False)
    assert [t.binary for t in response] == [False, False]
    own = client.infer("echo", inputs, parameters={"binary_data_output": False})
    assert [t.binary for t in own] == [False, False]
    with pytest.raises(TypeError, match="a list of names"):
        client.infer("echo", inputs, "y")


def test_infer_raw(client: Any) -> None:
    response = client.infer_raw("declared", X)
    assert response["y"].binary
    assert np.array_equal(response["y"].as_numpy(), X * 2)
    assert seen[-1]["inference-header-content-length"] == "0"


def test_the_arrays_are_aligned_and_writable(client: Any) -> None:
    for n in (1, 31, 1000, MiB + 3):
        array = client.infer("echo", {"x": np.ones(n, np.float32)})["x"].data
        assert array.ctypes.data % 64 == 0
        assert array.flags.writeable
        assert array.sum() == n


def test_headers(client: Any) -> None:
    client.infer("echo", {"x": np.zeros(MiB, np.float32)}, headers={"X-Tenant": "9"})
    sent = seen[-1]
    assert sent["x-tenant"] == "9"
    assert sent["accept-encoding"] == "identity"
    assert sent["user-agent"] == f"tensorwire/{tw.__version__}"
    assert int(sent["content-length"]) > 4 * MiB
    assert "transfer-encoding" not in sent
    client.infer("echo", {"x": X}, headers={"User-Agent": "mine"})
    assert seen[-1]["user-agent"] == "mine"
    with pytest.raises(ValueError, match="content-length is set by the client itself"):
        client.infer("echo", {"x": X}, headers={"content-length": "3"})


def test_versions_and_names_that_need_quotes(client: Any) -> None:
    client.infer("echo", {"x": X}, version="3")
    assert seen[-1]["path"] == "/v2/models/echo/versions/3/infer"
    with Scripted([GOOD]) as server, type(client)(f"http://{server.address}/pre/") as other:
        other.infer("a b/ü?", {"x": X}, version="1/2")
        wanted = "post /pre/v2/models/a%20b%2f%c3%bc%3f/versions/1%2f2/infer http/1.1"
        assert server.heads[0].startswith(wanted)


def test_metadata(client: Any) -> None:
    assert "binary_tensor_data" in client.server_metadata()["extensions"]
    about = client.model_metadata("declared", "2")
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]


def test_readiness(client: Any, connect: Connect) -> None:
    assert client.is_ready()
    assert client.is_ready("echo")
    assert client.is_ready("echo", "1")
    assert not client.is_ready("nobody")
    with connect(f"127.0.0.1:{free_port()}") as nowhere:
        assert nowhere.is_ready() is False


# --- connections ---


def test_one_connection_is_reused(client: Any) -> None:
    before = len(seen)
    for _ in range(5):
        client.infer("echo", {"x": X})
        client.server_metadata()
        with pytest.raises(InferenceServerError):
            client.infer("fail", {"x": X})
    assert len({call["peer"] for call in seen[before:]}) == 1


def test_a_connection_that_the_server_closed_is_replaced(connect: Connect) -> None:
    with Scripted([GOOD, GOOD]) as server, connect(server.address, connections=1) as client:
        for _ in range(5):
            client.infer("m", {"x": X})
            time.sleep(0.05)  # for the close to arrive
        assert server.n_connections == 3


def test_threads_share_a_client(server: str) -> None:
    with Client(server, connections=4) as client, ThreadPoolExecutor(16) as threads:
        before = len(seen)
        sizes = [1, 1000, 300_000] * 20
        answers = threads.map(lambda n: client.infer("echo", {"x": np.full(n, n)}), sizes)
        for n, answer in zip(sizes, answers, strict=True):
            assert (answer["x"].as_numpy() == n).all()
            assert answer["x"].shape == (n,)
    assert len({call["peer"] for call in seen[before:]}) <= 4


def test_tasks_run_at_once(server: str) -> None:
    async def main() -> float:
        async with AsyncClient(server) as client:
            await client.infer("echo", {"x": X})
            start = time.perf_counter()
            answers = await asyncio.gather(
                *(client.infer("slow", {"x": np.full(1000 * i, i)}) for i in range(20))
            )
            for i, answer in enumerate(answers):
                assert answer["x"].as_numpy().tolist() == [i] * 1000 * i
            return time.perf_counter() - start

    assert asyncio.run(main()) < 2  # of 4 seconds one after another


def test_a_cancelled_call_leaves_the_client_usable(server: str) -> None:
    async def main() -> None:
        async with AsyncClient(server, connections=1) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.infer("slow", {"x": X}), 0.05)
            answer = await client.infer("echo", {"x": X[:3]})
            assert answer["x"].shape == (3,)

    asyncio.run(main())


def test_closed(connect: Connect, server: str) -> None:
    with connect(server) as client:
        assert client.is_ready()
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.infer("echo", {"x": X})


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://u:p@x", "http://x?q", "http://x#f", "http://x:99999"]
)
def test_urls_that_are_none(connect: Connect, url: str) -> None:
    with pytest.raises(ValueError):
        (Client if connect is Client else AsyncClient)(url)


def test_tls(connect: Connect, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test"
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    out = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *name, *out], check=True, capture_output=True)
    options = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}
    with uvicorn_server(app, **options) as address:
        trusting = ssl.create_default_context(cafile=str(certificate))
        with connect(f"https://{address}", ssl_context=trusting) as client:
            assert np.array_equal(client.infer("echo", {"x": X})["x"].as_numpy(), X)
        refused = pytest.raises(ConnectionError, match=r"(?i)certificate")
        with connect(f"https://{address}") as client, refused:
            client.infer("echo", {"x": X})


# --- memory ---


def test_nothing_is_joined(connect: Connect) -> None:
    """32 MiB each way: the response's body, and next to nothing for the request."""
    array = np.zeros(8 * MiB, np.float32)
    head, *payload = tw.encode_response(tw.InferResponse([tw.Tensor("x", array)])).buffers
    nbytes = len(head) + array.nbytes

    def answer(connection: socket.socket) -> None:
        connection.sendall(http(b"", headers_of(head), length=nbytes) + bytes(head))
        connection.sendall(payload[0])

    with Scripted([answer, answer]) as server, connect(server.address) as client:
        client.infer("m", {"x": array})
        tracemalloc.start()
        try:
            response = client.infer("m", {"x": array})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert response["x"].shape == array.shape
        assert server.body_nbytes[-1] > 32 * MiB
    assert peak < nbytes + 5 * MiB


def headers_of(head: Any) -> dict[str, str]:
    return {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }


def test_a_length_that_is_a_lie_costs_nothing(connect: Connect) -> None:
    lie = http(BODY, HEADERS, length=2 * 1024 * MiB - 1)
    with Scripted([lie]) as server, connect(server.address) as client:
        before = resident()
        with pytest.raises(ConnectionError):
            client.infer("m", {"x": X})
        assert resident() - before < 20 * MiB


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# --- answers that are errors ---


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("nobody", 404, "model 'nobody' is not known"),
        ("fail", 500, "model 'fail' failed"),
        ("declared", 400, "unexpected input 'z': the model takes ['x']"),
    ],
)
def test_errors_of_the_server(client: Any, model: str, status: int, message: str) -> None:
    with pytest.raises(InferenceServerError) as caught:
        client.infer(model, {"z": X})
    assert (caught.value.status, str(caught.value)) == (status, message)
    assert isinstance(caught.value, tw.TensorwireError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.status, str(again)) == (status, message)
    assert client.infer("echo", {"x": X})["x"].shape == (1000,)


def test_an_output_that_json_cannot_hold(client: Any) -> None:
    with pytest.raises(InferenceServerError, match="FP16, which has no JSON form") as caught:
        client.infer("half", {"x": X}, binary_outputs=False)
    assert caught.value.status == 400
    assert client.infer("half", {"x": X})["y"].datatype == "FP16"


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (http(b'{"error": "no"}', {"Content-Type": "text/html"}, "400 Bad"), 400, "no"),
        (http(b"<h1>Oh</h1>", {"Content-Type": "text/html"}, "502 Bad Gateway"), 502, "<h1>Oh"),
        (http(b"", {}, "503 Service Unavailable"), 503, "HTTP status 503 Service Unavailable"),
        (http(b"", {}, "503"), 503, "HTTP status 503"),
        (http(b'{"error": 5}', {}, "400 Bad"), 400, '{"error": 5}'),
        (http(b"[" * 9000, {}, "400 Bad"), 400, "[[["),
        (http(b"\xff" * 200_000, {}, "500 Oh"), 500, "\ufffd" * 2000),
        (http(b'{"error": "cut', {}, "500 Oh", length=900), 500, ""),
        (http(b"", {"Location": "/elsewhere"}, "307 Moved"), 307, "HTTP status 307 Moved"),
    ],
)
def test_errors_of_any_kind(connect: Connect, answer: bytes, status: int, message: str) -> None:
    with Scripted([answer]) as server, connect(server.address, timeout=5) as client:
        with pytest.raises(InferenceServerError) as caught:
            client.infer("m", {"x": X})
        assert caught.value.status == status
        assert message in str(caught.value)
        assert len(str(caught.value)) <= 2000
        assert len(server.heads) == 1  # neither repeated nor redirected


def test_refused_before_it_is_read(connect: Connect) -> None:
    small = create_app({"echo": echo}, max_body=1000)
    with uvicorn_server(small) as address, connect(address, timeout=10) as client:
        with pytest.raises(InferenceServerError, match="the body is too long") as caught:
            client.infer("echo", {"x": np.zeros(8 * MiB, np.float32)})
        assert caught.value.status == 413
        assert client.infer("echo", {"x": X[:3]})["x"].shape == (3,)


# --- answers that are broken ---


def chunked(body: bytes, n_chunk: int, end: bytes = b"0\r\n\r\n") -> bytes:
    parts = [body[i : i + n_chunk] for i in range(0, len(body), n_chunk)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


BROKEN = (ConnectionError, tw.DecodeError)  # by whether the library sees it first, or the codec
CHUNKED = HEADERS | {"Transfer-Encoding": "chunked"}


@pytest.mark.parametrize("n_chunk", [1, 100, 10_000])
def test_chunked(connect: Connect, n_chunk: int) -> None:
    answer = http(chunked(BODY, n_chunk), CHUNKED, length="")
    with Scripted([answer, answer]) as server, connect(server.address) as client:
        for _ in range(2):
            array = client.infer("m", {"x": X})["x"].data
            assert np.array_equal(array, X)
            assert array.ctypes.data % 64 == 0
        assert server.n_connections == 1


def test_an_encoding_that_is_none(connect: Connect) -> None:
    answer = http(BODY, HEADERS | {"Content-Encoding": "Identity"})
    with Scripted([answer]) as server, connect(server.address) as client:
        assert np.array_equal(client.infer("m", {"x": X})["x"].data, X)


def test_until_the_connection_closes(connect: Connect) -> None:
    with Scripted([http(BODY, HEADERS, length="")]) as server, connect(server.address) as client:
        assert np.array_equal(client.infer("m", {"x": X})["x"].as_numpy(), X)
    cut = Scripted([http(BODY[:-4], HEADERS, length="")])
    with cut as server, connect(server.address) as client, pytest.raises(tw.LayoutError):
        client.infer("m", {"x": X})


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (http(BODY[:-1], HEADERS, length=len(BODY)), ConnectionError, ""),
        (http(b"", HEADERS, length=len(BODY)), ConnectionError, ""),
        (http(chunked(BODY, 100, b""), CHUNKED, length=""), ConnectionError, ""),
        (http(chunked(BODY, 100)[:-300], CHUNKED, length=""), ConnectionError, ""),
        (b"", ConnectionError, ""),
        (b"HTTP/1.1 200 OK\r\nContent-", BROKEN, ""),
        (b"220 mail.example.com ESMTP\r\n", ConnectionError, ""),
        (http(BODY, HEADERS, length=len(BODY) - 4), BROKEN, ""),
        (http(BODY), tw.HeaderError, "is Inference-Header-Content-Length missing?"),
        (http(BODY, HEADERS | {"Inference-Header-Content-Length": "x"}), tw.HeaderError, "'x'"),
        (http(b"<html>"), tw.HeaderError, "malformed"),
        (http(BODY, HEADERS | {"Content-Encoding": "gzip"}), tw.HeaderError, "'gzip': unasked"),
    ],
)
def test_broken_answers(connect: Connect, answer: bytes, error: Any, message: str) -> None:
    with Scripted([answer]) as server, connect(server.address, timeout=5) as client:
        for _ in range(2):  # the next call meets nothing that is left of this one
            with pytest.raises(error) as caught:
                client.infer("m", {"x": X})
            assert message in str(caught.value)
            assert len(str(caught.value)) < 700
            time.sleep(0.02)  # for the close to arrive
        assert server.n_connections == 2


@pytest.mark.parametrize("length", [None, ""])
def test_too_long_for_the_client(connect: Connect, length: Any) -> None:
    answer = http(BODY, HEADERS, length=length)
    with Scripted([answer]) as server, connect(server.address, max_body=len(BODY) - 1) as client:
        with pytest.raises(tw.HeaderError, match="the body is too long") as caught:
            client.infer("m", {"x": X})
        assert caught.value.status == 413
    with Scripted([answer]) as server, connect(server.address, max_body=None) as client:
        assert client.infer("m", {"x": X})["x"].shape == (1000,)


def test_limits(connect: Connect, server: str) -> None:
    limits = tw.Limits(max_header_nbytes=10)
    with connect(server, limits=limits) as client, pytest.raises(tw.HeaderError):
        client.infer("echo", {"x": X})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"name":' + b"[" * 5000, "the JSON is nested too deep"),
        (bytes(2000), "is too long: 2000"),
    ],
    ids=["deep", "long"],
)
def test_metadata_is_limited(connect: Connect, body: bytes, message: str) -> None:
    limits = tw.Limits(max_header_nbytes=len(body) if message.endswith("deep") else 1999)
    refused = pytest.raises(tw.HeaderError, match=message)
    with (
        Scripted([http(body)]) as server,
        refused,
        connect(server.address, limits=limits) as client,
    ):
        client.server_metadata()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_nobody_there(connect: Connect) -> None:
    port = free_port()
    with connect(f"127.0.0.1:{port}") as client:
        with pytest.raises(ConnectionError, match=f"POST http://127.0.0.1:{port}/v2") as caught:
            client.infer("m", {"x": X})
        assert caught.value.__cause__ is not None


def silent(_: socket.socket) -> None:
    time.sleep(1)


def stalling(connection: socket.socket) -> None:
    connection.sendall(GOOD[:-10])
    time.sleep(1)


@pytest.mark.parametrize("answer", [silent, stalling])
def test_timeouts(connect: Connect, answer: Any) -> None:
    late = pytest.raises(TimeoutError, match="POST http://")
    with Scripted([answer]) as server, connect(server.address, timeout=0.2) as client, late:
        client.infer("m", {"x": X})
    late = pytest.raises(TimeoutError)
    with Scripted([answer]) as server, connect(server.address) as client, late:
        client.infer("m", {"x": X}, timeout=0.2)


def test_a_slow_answer_may_take_longer_than_the_timeout(connect: Connect) -> None:
    """Which is one of progress, also behind a request that went in several pieces."""

    def drip(connection: socket.socket) -> None:
        for start in range(0, len(GOOD), len(GOOD) // 5 + 1):
            time.sleep(0.25)
            connection.sendall(GOOD[start : start + len(GOOD) // 5 + 1])

    with Scripted([drip]) as server, connect(server.address, timeout=0.8) as client:
        assert client.infer("m", {"x": np.zeros(MiB, np.float32)})["x"].shape == X.shape


def test_nothing_is_repeated(connect: Connect) -> None:
    with Scripted([b""]) as server, connect(server.address) as client:
        with pytest.raises(ConnectionError):
            client.infer("m", {"x": X})
        assert server.n_connections == 1
        with pytest.raises(ConnectionError):
            client.server_metadata()
        assert server.n_connections == (2 if connect is Client else 3)  # aiohttp repeats a GET


def test_no_cookies_are_kept(connect: Connect) -> None:
    answer = http(BODY, HEADERS | {"Set-Cookie": "a=b; Path=/"})
    server = Scripted([answer] * 2)
    named = server.address.replace("127.0.0.1", "localhost")  # of which cookies would be kept
    with server, connect(named) as client:
        for _ in range(2):
            client.infer("m", {"x": X})
    assert len(server.heads) == 2
    assert "cookie" not in server.heads[1]


def test_of_a_long_error_only_its_beginning_is_read(connect: Connect) -> None:
    done = threading.Event()

    def endless(connection: socket.socket) -> None:
        connection.sendall(http(b"no " * 40_000, status="500 No", length=1 << 30))
        done.wait(10)

    with Scripted([endless]) as server, connect(server.address) as client:
        started = time.perf_counter()
        with pytest.raises(InferenceServerError, match="no no no") as caught:
            client.infer("m", {"x": X})
        assert time.perf_counter() - started < 5
        assert (caught.value.status, len(str(caught.value))) == (500, 2000)
        done.set()
        time.sleep(0.1)  # for the close to arrive


def test_a_server_that_reads_nothing(connect: Connect) -> None:
    done = threading.Event()

    class Deaf(Scripted):
        def read(self, connection: socket.socket) -> bool:
            return not done.wait(5)

    with Deaf([b""]) as server, connect(server.address, timeout=0.3) as client:
        started = time.perf_counter()
        with pytest.raises(TimeoutError):
            client.infer("m", {"x": np.zeros(8 * MiB, np.float32)})
        assert time.perf_counter() - started < 3
        done.set()
        time.sleep(0.1)  # for the close to arrive


@pytest.mark.parametrize("body", [b"[1]", b"", b"\xff", b"[" * 100])
def test_metadata_that_is_none(connect: Connect, body: bytes) -> None:
    refused = pytest.raises(tw.DecodeError, match="the metadata is no JSON object")
    with Scripted([http(body)]) as server, connect(server.address) as client, refused:
        client.server_metadata()


# --- the module ---


@pytest.mark.parametrize(("name", "library"), [("Client", "urllib3"), ("AsyncClient", "aiohttp")])
def test_a_library_that_is_missing(name: str, library: str) -> None:
    script = f"import sys; sys.modules[{library!r}] = None; from tensorwire.client import {name}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    message = f"{name} needs {library}: pip install 'tensorwire[client]'"
    assert done.stderr.strip().splitlines()[-1] == f"ImportError: {message}"


def test_each_client_loads_its_own_library_only() -> None:
    script = (
        "import sys, tensorwire.client as c; print('urllib3' in sys.modules);"
        "c.Client; print('urllib3' in sys.modules, 'aiohttp' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "False"]


def test_both_have_the_same_signatures() -> None:
    names = ["__init__", "infer", "infer_raw", "server_metadata", "model_metadata", "is_ready"]
    for name in names:
        sync, asynchronous = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.signature(sync) == inspect.signature(asynchronous)
    assert json.dumps(repr(Client("localhost:8000/x/"))) == '"<Client of http://localhost:8000/x>"'
