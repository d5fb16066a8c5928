"""What the clients do for a call: ids, lists of numbers, encoded requests, retries, waiting."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import uvloop

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import (
    BODY,
    FORK,
    GOOD,
    HEADERS,
    Connect,
    X,
    app,
    free_port,
    seen,
)
from support.memory import takes
from support.requirements import package
from support.scripts import run_script
from support.servers import Scripted, http, uvicorn_server
from support.threads import Places, in_thread
from tensorwire import threads
from tensorwire.client import (
    AUTO_ID,
    AsyncClient,
    Client,
    InferenceServerError,
    Timeout,
    requests,
    responses,
)
from tensorwire.client.limits import ConnectDeadline, Deadline, ReadinessWait, Retries

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client


# --- ids ---


def test_requests_are_numbered(client: Any) -> None:
    ids = [client.infer("echo", {"x": X}).id for _ in range(3)]
    assert ids == ["1", "2", "3"]
    assert client.infer("echo", {"x": X}, id="mine").id == "mine"
    assert client.infer("echo", {"x": X}, id=None).id is None
    assert client.infer("echo", {"x": X}, id=AUTO_ID).id == "4"
    assert repr(AUTO_ID) == "AUTO_ID"


def test_client_without_timeouts(connect: Connect, server: str) -> None:
    with connect(server, timeout=None) as client:
        assert client.infer("echo", {"x": X}).outputs[0].tolist() == X.tolist()


# --- lists of numbers ---


def test_datatypes_of_lists_from_the_metadata(client: Any) -> None:
    before = len(seen)
    for _ in range(2):  # the model declares FP32
        response = client.infer("declared", {"x": [1, 2, 3]})
        assert response["y"].as_numpy().tolist() == [2, 4, 6]
    paths = [call["path"] for call in seen[before:]]
    assert paths == ["/v2/models/declared", *["/v2/models/declared/infer"] * 2]
    client.infer("declared", {"x": (1,)}, version="1")
    assert seen[-2]["path"] == "/v2/models/declared/versions/1"
    inputs = {"x": [1, 2, 3]}
    client.infer("declared", inputs)
    assert inputs == {"x": [1, 2, 3]}


def test_caches_of_a_client_are_limited(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_CACHED", 1)
    made = getattr(client, "client", client)
    for version in (None, "1", None):
        assert client.infer("declared", {"x": [1]}, version=version)["y"].shape == (1,)
        assert (len(made._transport.heads), len(made._datatypes)) == (1, 1)


def test_lists_of_strings_and_arrays_need_no_metadata(client: Any) -> None:
    before = len(seen)
    client.infer("echo", {"words": [["a", "b"]], "more": (b"c",), "x": X})
    assert len(seen) == before + 1


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
UNDECLARED = "^input 'x' is a list of numbers, but the metadata of model '{}' does not declare its"


@pytest.mark.parametrize(
    ("model", "inputs", "error", "message"),
    [
        ("declared", {"x": ["a"]}, InferenceServerError, "the model declares FP32"),
        ("declared", {"x": ENDLESS}, tw.EncodeError, "is a list that is nested too deeply"),
        ("declared", [tw.Tensor("x", X), X], TypeError, "only Tensors, not ndarray"),
        ("declared", [[1, 2], [3, 4]], TypeError, "only Tensors, not list"),
        ("declared", X, TypeError, "not ndarray: pass a single input as"),
        ("declared", "abc", TypeError, "not str: pass a single input as"),
        ("declared", 3, TypeError, "not int: pass a single input as"),
        ("declared", None, TypeError, "not NoneType: pass a single input as"),
        ("declared", X[0], TypeError, "not float32: pass a single input as"),
        ("declared", tw.Tensor("x", X), TypeError, "not Tensor: pass a single input as"),
        ("declared", tw.Tensor("x", ["a"]).data, TypeError, "not BytesArray: pass a single"),
        ("echo", {"x": [1]}, ValueError, UNDECLARED.format("echo")),
        ("declared", {"y": X, "x": [0.5], "z": []}, ValueError, "^input 'z' is a list"),
        (
            *("nobody", {"x": [1]}, InferenceServerError),
            r"GET .*: model 'nobody' is not known \(.* numbers: pass an array, or a Tensor with a ",
        ),
    ],
)
def test_inputs_that_do_not_fit(
    client: Any, model: str, inputs: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        client.infer(model, inputs)


@pytest.mark.parametrize("name", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.table"])
def test_data_frame_in_place_of_the_inputs(name: str) -> None:
    module, _, function = name.partition(".")
    frame = getattr(package(module), function)({"x": [1, 2]})
    with pytest.raises(TypeError, match=r"not \w+: pass tensors_from_dataframe\(inputs\)$"):
        Client("localhost:1").infer("m", frame)
    column = frame["x"]
    with pytest.raises(TypeError, match=r"not \w+: pass a single input as"):
        Client("localhost:1").infer("m", column)


@pytest.mark.parametrize(
    "metadata",
    [
        *(b"{}", b'{"inputs":3}', b'{"inputs":[{"name":"x"}]}', b'{"inputs":[[]]}'),
        b'{"inputs":[{"name":"x","datatype":{"a":1}}]}',
        b'{"inputs":[{"name":["x"],"datatype":"FP32"}]}',
    ],
)
def test_metadata_without_inputs(connect: Connect, metadata: bytes) -> None:
    fails = pytest.raises(ValueError, match=UNDECLARED.format("m"))
    with Scripted([http(metadata)]) as server, connect(server.address) as client, fails:
        client.infer("m", {"x": [1]})


def test_inputs_that_change_while_the_metadata_is_requested(server: str) -> None:
    """The request has the inputs of the moment of the call."""

    async def main() -> None:
        async with AsyncClient(server) as client:
            inputs: dict[str, Any] = {"x": [1.0]}
            call = asyncio.ensure_future(client.infer("declared", inputs))
            await asyncio.sleep(0)
            inputs["y"] = [2.0]
            assert (await call)["y"].tolist() == [2.0]

    asyncio.run(main())


# --- encoded requests ---


def test_frame_is_sent_repeatedly(client: Any) -> None:
    request = tw.InferRequest([tw.Tensor("x", X)], id="7", parameters={"binary_data_output": True})
    frame = tw.encode_request(request)
    for _ in range(3):
        response = client.infer("echo", frame)
        assert np.array_equal(response["x"].data, X)
        assert (response.id, response["x"].binary) == ("7", True)
    X2 = np.zeros((2, 3), np.float32)
    json = tw.encode_request(tw.InferRequest([tw.Tensor("x", X2, binary=False)]))
    assert client.infer("echo", json)["x"].shape == (2, 3)
    invalid: list[dict[str, Any]] = [{"id": "8"}, {"outputs": ["x"]}, {"parameters": {}}]
    for options in invalid:
        with pytest.raises(TypeError, match="must be passed to encode_request"):
            client.infer("echo", frame, **options)


def test_threads_that_send_a_frame_do_not_share_its_views() -> None:
    """Without the GIL, the memoryviews of ``buffers`` must not be used in several threads."""

    class SharedFrame:
        header_length = 1

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter([b"a", memoryview(b"bc")])

        @property
        def buffers(self) -> Any:
            raise AssertionError

    frame: Any = SharedFrame()
    infer_request: Any = Client("localhost")._transport.infer_request
    assert infer_request(requests.Target("m", None, None), frame).buffers == (b"a", b"bc")


# --- the event loop ---

LOOP, THREAD = "the loop", "a thread"


@pytest.mark.parametrize(
    ("nbytes", "is_binary", "encoding", "decoding"),
    [
        (4000, False, LOOP, LOOP),
        (400_000, False, THREAD, THREAD),
        (400_000, True, LOOP, LOOP),
        (4_000_000, True, LOOP, THREAD),  # its BYTES, if it has any, are checked one by one
    ],
)
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_large_messages_are_processed_in_a_thread(
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    factory: Any,
    nbytes: int,
    is_binary: bool,
    encoding: str,
    decoding: str,
) -> None:
    places = Places(monkeypatch)
    places.note(tw, "encode_request")
    places.note(tw, "decode_response")

    async def main() -> None:
        places.loop = asyncio.get_running_loop()
        inputs = {"x": np.zeros(nbytes // 4, np.float32)}
        async with AsyncClient(server, binary_inputs=is_binary) as client:
            assert (await client.infer("echo", inputs))["x"].nbytes == nbytes

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert places.noted == [f"encode_request in {encoding}", f"decode_response in {decoding}"]


def test_large_messages_do_not_wait_for_the_threads_of_the_event_loop(server: str) -> None:
    """These threads may be waiting for the client themselves."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))

        async with AsyncClient(server, binary_inputs=False) as client:

            def infer() -> tw.InferResponse:
                call = client.infer("echo", {"x": np.zeros(100_000, np.float32)})
                return asyncio.run_coroutine_threadsafe(call, loop).result(timeout=30)

            assert (await asyncio.to_thread(infer))["x"].nbytes == 400_000

    asyncio.run(main())


def test_large_metadata_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(monkeypatch)
    places.note(responses, "read_json")

    async def main(address: str) -> None:
        places.loop = asyncio.get_running_loop()
        async with AsyncClient(address) as client:
            assert len(await client.server_metadata()) == 1

    with Scripted([http(b'{"name": "%b"}' % (b"a" * 100_000))]) as scripted:
        asyncio.run(main(scripted.address))
    assert places.noted == ["read_json in a thread"]


def test_large_response_is_decoded_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is decoded in the event loop: the model has run already."""
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("y", np.zeros(50_000), binary=False)]))

    def fail_to_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main(address: str) -> None:
        async with AsyncClient(address) as client:
            monkeypatch.setattr(threads, "_executor", None)
            monkeypatch.setattr(threading.Thread, "start", fail_to_start)
            assert (await client.infer("m", {"x": X}))["y"].shape == (50_000,)
            monkeypatch.undo()

    with Scripted([http(bytes(frame))]) as scripted:
        asyncio.run(main(scripted.address))


# --- retries ---


def failing(status: str, headers: dict[str, str] | None = None) -> bytes:
    return http(b'{"error": "try again"}', headers, status)


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("status", ["429 Busy", "502 Bad", "503 Busy", "504 Late"])
def test_retries(connect: Connect, status: str) -> None:
    answers = [failing(status, {"Connection": "keep-alive"})] * 2 + [GOOD]
    with Scripted(answers) as server, connect(server.address, retries=2) as client:
        with takes(0.1, 3):  # the pauses: 0.05 to 0.1, 0.1 to 0.2 s
            assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert len(server.heads) == 3
    with Scripted(answers) as server, connect(server.address, retries=1) as client:
        with pytest.raises(InferenceServerError, match="try again") as caught:
            client.infer("m", {"x": X})
        assert (caught.value.status, caught.value.retry_after) == (int(status[:3]), None)
        assert len(server.heads) == 2


def silent(_: socket.socket) -> None:
    time.sleep(0.3)


@pytest.mark.parametrize(
    "answer", [failing("400 Bad"), failing("404 Not Found"), failing("500 No"), silent]
)
def test_errors_that_are_not_retried(connect: Connect, answer: Any) -> None:
    options = {"timeout": 0.2, "retries": 3}
    with Scripted([answer]) as server, connect(server.address, **options) as client:
        with pytest.raises((InferenceServerError, TimeoutError)):
            client.infer("m", {"x": X})
        assert len([head for head in server.heads if head.startswith("post")]) == 1


def test_connection_errors_are_retried(connect: Connect) -> None:
    class FailsTwice(Scripted):
        def serve(self, connection: Any) -> None:
            if self.n_connections > 2:
                super().serve(connection)

    with FailsTwice([GOOD]) as server, connect(server.address, retries=2) as client:
        assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert server.n_connections == 3
    with FailsTwice([GOOD]) as server, connect(server.address, retries=1) as client:
        with pytest.raises(ConnectionError):
            client.infer("m", {"x": X})
        assert server.n_connections == 2


@pytest.mark.slow(reason="it waits for timeouts")
def test_retry_after(connect: Connect) -> None:
    kept = {"Connection": "keep-alive"}
    answers = [failing("503 Busy", kept | {"Retry-After": "1"}), GOOD]
    server = Scripted(answers)
    with server, connect(server.address, retries=1) as client, takes(0.95, 5):
        assert client.infer("m", {"x": X})["x"].shape == X.shape
    ignored = ["Sat, 21 Nov 2026 21:00:00 GMT", "soon", "9" * 10, "9" * 400, "1.5"]
    for value, seconds in [("61", 61.0), *((value, None) for value in ignored)]:
        answers = [failing("503 Busy", kept | {"Retry-After": value}), GOOD]
        with Scripted(answers) as server, connect(server.address, retries=1) as client:
            if seconds is None:
                assert client.infer("m", {"x": X})["x"].shape == X.shape
                continue
            with pytest.raises(InferenceServerError) as caught:
                client.infer("m", {"x": X})
            assert caught.value.retry_after == seconds
            assert pickle.loads(pickle.dumps(caught.value)).retry_after == seconds


@pytest.mark.slow(reason="it waits for timeouts")
def test_total_timeout_limits_retries(connect: Connect) -> None:
    answers = [failing("503 Busy")]
    options = {"timeout": Timeout(total=1), "retries": 1000}
    with Scripted(answers) as server, connect(server.address, **options) as client:
        with takes(0, 1.2), pytest.raises(InferenceServerError, match="try again"):
            client.infer("m", {"x": X})
        assert 2 <= len(server.heads) <= 6


# --- waiting ---


@pytest.mark.slow(reason="it waits for timeouts")
def test_wait_for_a_server_that_starts(connect: Connect) -> None:
    port = free_port()
    with connect(f"127.0.0.1:{port}") as client:
        server = Scripted([http(b"{}")])
        server.listening.close()

        def start() -> None:
            time.sleep(0.3)
            server.listening = socket.create_server(("127.0.0.1", port))
            server.__enter__()

        with in_thread(start), takes(0.25, 3):
            client.wait_until_ready(10)
        server.__exit__()


@pytest.mark.slow(reason="it waits for timeouts")
def test_wait_until_ready_reports_what_was_last_seen(connect: Connect) -> None:
    with connect(f"127.0.0.1:{free_port()}") as client:
        message = r"^the server is not ready after 0.3 seconds; last seen: GET .*Errno 111"
        with pytest.raises(TimeoutError, match=message):
            client.wait_until_ready(0.3)
    with Scripted([silent]) as server, connect(server.address) as client:
        with pytest.raises(TimeoutError, match=r"last seen: GET .* took longer than"):
            client.wait_until_ready(0.2)
        for seconds in (0, float("inf")):
            message = f"^timeout must be a positive number of seconds, not {seconds}$"
            with pytest.raises(ValueError, match=message):
                client.wait_until_ready(seconds)
        with pytest.raises(TypeError, match=r"^timeout must be .*, not NoneType$"):
            client.wait_until_ready(None)


# --- headers and URLs ---


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"X": "a\r\nY: b"}, "the value of the HTTP header X is invalid"),
        ({"X": "\u20ac"}, "the value of the HTTP header X is invalid"),
        ({"X\n": "a"}, "the name of an HTTP header is invalid"),
        ({"": "a"}, "the name of an HTTP header is invalid"),
    ],
)
def test_invalid_headers_are_rejected(
    connect: Connect, headers: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message), connect("127.0.0.1:1", headers=headers):
        pass
    with connect("127.0.0.1:1") as client, pytest.raises(ValueError, match=message):
        client.infer("m", {"x": X}, headers=headers)


class Changes(Mapping[str, str]):
    """A mapping whose value changes after it was checked."""

    n_read = 0

    def __getitem__(self, name: str) -> str:
        self.n_read += 1
        return "a" if self.n_read == 1 else "a\r\nInjected: yes"

    def __iter__(self) -> Iterator[str]:
        return iter(["X"])

    def __len__(self) -> int:
        return 1


class Items(dict[str, str]):
    def items(self) -> Any:
        return {"X": "a"}.items()


class Formatted(str):
    def __format__(self, _: str) -> str:
        return "a\r\nInjected: yes"

    def __str__(self) -> str:
        return "a\r\nInjected: yes"


class OtherName(str):
    def lower(self) -> str:
        return "x"


@pytest.mark.parametrize(
    "make", [Changes, lambda: Items({"X": "a\r\nInjected: yes"}), lambda: {"X": Formatted("a")}]
)
def test_headers_that_change_after_they_were_checked(connect: Connect, make: Any) -> None:
    headers = make()
    with Scripted([GOOD]) as server, connect(server.address) as client:
        client.infer("m", {"x": X}, headers=headers)
        assert "\r\nx: a\r\n" in server.heads[0]
        assert "injected" not in server.heads[0]


def test_name_of_a_header_that_hides_what_it_is(client: Any) -> None:
    with pytest.raises(ValueError, match="the HTTP header Content-Length cannot be passed"):
        client.infer("echo", {"x": X}, headers={OtherName("Content-Length"): "3"})


def test_request_line_and_host(connect: Connect) -> None:
    with Scripted([GOOD, GOOD]) as server:
        url = server.address.replace("127.0.0.1", "LOCALHOST") + "/a b/\u00fc%20/"
        with connect(url, headers={"x-a": "1"}) as client:
            client.infer("m", {"x": X}, headers={"X-A": "2"})
            client.infer("m", {"x": X}, headers={"Host": "other"})
    first, second = (head.splitlines() for head in server.heads)
    assert first[0] == "post /a%20b/%c3%bc%20/v2/models/m/infer http/1.1"
    assert f"host: {server.address.replace('127.0.0.1', 'localhost')}" in first
    assert [line for line in first if line.startswith("x-a")] == ["x-a: 2"]
    assert [line for line in second if line.startswith("host")] == ["host: other"]


# --- processes ---


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_fork(server: str, kind: str) -> None:
    """The child process opens its own connection, and the parent process keeps its connection.

    The child process closes its copy of the connection of the parent process.
    """
    before = len(seen)
    done = run_script(FORK, server, kind, "")
    assert done.returncode == 0, done.stderr
    parent, child, parent_again = (call["peer"] for call in seen[before:])
    assert parent == parent_again != child


def test_closed_client_stays_closed_in_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("localhost:1")
    client.close()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.is_ready()


@pytest.mark.parametrize(
    ("attempt", "longest"), [(0, 0.1), (1, 0.2), (4, 1.6), (7, 10), (20, 10), (100_000, 10)]
)
def test_delay_of_a_retry(attempt: int, longest: float) -> None:
    """It is random, and becomes longer with each retry up to a limit."""
    delays = []
    for _ in range(100):
        retries = Retries(1)
        retries.n_pauses = attempt
        delays.append(retries.delay(ConnectionError("x"), Deadline(Timeout())) or 0)
        assert retries.delay(ConnectionError("x"), Deadline(Timeout())) is None
    assert longest / 2 <= min(delays) < 0.6 * longest
    assert 0.9 * longest < max(delays) <= longest


@pytest.mark.parametrize(
    ("seconds", "delay"), [(0.0, 0.0), (59.0, 59.0), (60.0, 60.0), (61.0, None)]
)
def test_longest_retry_after(seconds: float, delay: float | None) -> None:
    error = InferenceServerError("busy", status=503)
    error.retry_after = seconds
    assert Retries(1).delay(error, Deadline(Timeout())) == delay


class Clock:
    """Replaces ``time.monotonic`` in the client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.mark.parametrize(
    ("timeout", "step", "expected"),
    [
        (Timeout(read=3), "read", (3, "read")),
        (Timeout(read=3, total=15), "read", (3, "read")),
        (Timeout(read=3, total=7), "read", (2, "total")),
        (Timeout(read=2, total=7), "read", (2, "total")),
        (Timeout(read=None, total=7), "read", (2, "total")),
        (Timeout(read=3, total=5), "read", "total timeout"),
        (Timeout(read=3, total=4), "total", "total timeout"),
        (Timeout(connect=1), "total", (None, "total")),
        (Timeout(connect=1), "connect", (1, "connect")),
        (Timeout(connect=3, read=1), "connecting", (1, "connect")),
        (Timeout(connect=3, total=7), "connecting", (1, "connect")),
        (Timeout(connect=3, total=6), "connecting", (1, "total")),
        (Timeout(connect=None, total=6), "connecting", (1, "total")),
        (Timeout(connect=None), "connecting", (None, "connect")),
        (Timeout(connect=2), "connecting", "connect timeout"),
    ],
)
def test_limit_of_a_step(
    timeout: Timeout, step: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 seconds after the call began, and 2 seconds after it began to connect.

    A timeout that expires in this moment has expired.
    """
    clock = Clock(monkeypatch)
    deadline = Deadline(timeout)
    clock.now += 3
    connecting = ConnectDeadline(deadline)
    clock.now += 2
    limit = partial(deadline.limit, step)
    if step == "connecting":
        limit = partial(connecting.limit, "read")
    if isinstance(expected, str):
        with pytest.raises(TimeoutError, match=expected):
            limit()
    else:
        assert limit() == expected


@pytest.mark.slow(reason="it waits for timeouts")
def test_total_timeout_begins_with_each_call(connect: Connect) -> None:
    answers = [GOOD, GOOD]
    with Scripted(answers) as server, connect(server.address, timeout=Timeout(total=0.4)) as client:
        client.infer("m", {"x": X})
        time.sleep(0.5)
        client.infer("m", {"x": X})


def test_attempts_of_wait_until_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    wait = ReadinessWait(None, 100)
    assert wait.timeout(Timeout(total=3)) == Timeout(total=3)
    assert wait.timeout(Timeout(read=5)) == Timeout(read=5, total=100)
    pauses = [wait.next_delay(ConnectionError("refused")) for _ in range(30)]
    assert pauses[0] <= 0.02
    assert 0.5 <= pauses[-1] <= 1
    clock.now += 98
    assert wait.timeout(Timeout(total=3)) == Timeout(total=2)


LOADING = InferenceServerError("loading", status=503)


@pytest.mark.parametrize(
    ("errors", "seen"),
    [
        ([ConnectionError("refused"), LOADING], "loading"),
        ([LOADING, ConnectionError("refused")], "refused"),
        ([LOADING, TimeoutError("late")], "loading"),
        ([TimeoutError("late"), LOADING, TimeoutError("later")], "loading"),
        ([TimeoutError("late"), TimeoutError("later")], "late"),
    ],
)
def test_what_wait_until_ready_has_last_seen(
    errors: list[Exception], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of the last attempt, which was cut short, does not hide an error."""
    clock = Clock(monkeypatch)
    wait = ReadinessWait(None, 5)
    for error in errors[:-1]:
        assert wait.next_delay(error) > 0
    clock.now += 5
    with pytest.raises(TimeoutError, match=f"last seen: {seen}$") as caught:
        wait.next_delay(errors[-1])
    assert str(caught.value.__cause__) == seen


def test_child_process_closes_the_connections_of_its_parent(connect: Connect) -> None:
    """Otherwise the server would not notice that the parent process has closed them."""
    with Scripted([GOOD] * 2) as server:
        with connect(server.address) as client:
            client.infer("m", {"x": X})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
                child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
        try:
            assert server.client_has_closed.wait(10)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.parametrize(
    "kind",
    [
        "sync",
        pytest.param(
            "async",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 14),
                reason="after a fork, SystemExit does not end an event loop of Python 3.14",
            ),
        ),
    ],
)
def test_child_process_that_ends_during_a_call_of_its_parent(kind: str) -> None:
    """It unwinds the frames of the call, and leaves the connection to its parent."""

    def answer(connection: Any) -> None:
        time.sleep(0.5)
        connection.sendall(GOOD)

    script = (
        FORK.partition("runner = ")[0]
        + """
def fork(_=None):
    if os.fork() == 0:
        sys.exit()

async def main():
    call = asyncio.ensure_future(client.infer("m", {"x": x}))
    await asyncio.sleep(0.1)
    fork()
    await call

if kind == "sync":
    client.infer("m", {"x": x}, on_progress=lambda p: fork() if not p.received_nbytes else None)
else:
    asyncio.run(main())
"""
    )
    with Scripted([answer]) as server:
        done = run_script(script, server.address, kind, "")
    assert done.returncode == 0, done.stderr


def test_pickled_client_has_the_same_options(connect: Connect) -> None:
    with Scripted([http(BODY, HEADERS)]) as server:
        options: Any = {"timeout": Timeout(total=9), "headers": {"X-A": "1"}, "max_body": 10_000}
        kind = Client if connect is Client else AsyncClient
        client = pickle.loads(pickle.dumps(kind(server.address, **options)))
        assert (client.timeout, client._options.max_body) == (Timeout(total=9), 10_000)
        if isinstance(client, Client):
            with client:
                client.infer("m", {"x": X})
            assert "x-a: 1" in server.heads[0]


def test_client_that_is_not_closed() -> None:
    """Its connections are closed without a warning when it is released."""
    with uvicorn_server(app) as address:
        client = Client(address)
        client.infer("echo", {"x": X})
        del client
