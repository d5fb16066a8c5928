"""HTTP requests of the clients: paths, headers, JSON, encoded requests, compression, progress."""

from __future__ import annotations

import socket
import threading
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import BODY, GOOD, Connect, MiB, X, seen
from support.servers import Scripted, http
from tensorwire.client import Client, InferenceServerError, Progress
from tensorwire.client import http as client_http
from tensorwire.client.errors import Operation
from tensorwire.client.requests import Encoding, HttpRequest, ProgressReporter, Target
from tensorwire.client.sync import complete
from tensorwire.compression import compress
from tensorwire.http import HEADER_LENGTH

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client


# --- paths and headers ---


def test_paths(connect: Connect) -> None:
    """Errors name the URL and the model."""
    answer = http(b'{"error": "no"}', status="404 Not Found")
    with Scripted([answer] * 15) as server:
        address = server.address.replace("127.0.0.1", "LOCALHOST")
        with connect(f"http://{address}/a b/\u00fc%20/") as client:
            infer = partial(client.infer, "m", {"x": X})
            calls: list[tuple[Any, str, str | None]] = [
                (infer, "/models/m/infer", "m"),
                (partial(infer, version="1"), "/models/m/versions/1/infer", "m"),
                (partial(infer, version=1), "/models/m/versions/1/infer", "m"),
                (partial(infer, version="1/2"), "/models/m/versions/1%2F2/infer", "m"),
                (partial(client.infer_raw, "m", X), "/models/m/infer", "m"),
                (partial(client.model_metadata, "ü b/?"), "/models/%C3%BC%20b%2F%3F", "ü b/?"),
                (client.server_metadata, "", None),
                (partial(client.model_config, "m", "1"), "/models/m/versions/1/config", "m"),
                (partial(client.statistics, "m/.."), "/models/m%2F../stats", "m/.."),
                (client.statistics, "/models/stats", None),
                (client.repository_index, "/repository/index", None),
                (partial(client.load_model, "/v2"), "/repository/models/%2Fv2/load", "/v2"),
                (partial(client.unload_model, "m"), "/repository/models/m/unload", "m"),
            ]
            for call, path, model in calls:
                with pytest.raises(InferenceServerError) as caught:
                    call()
                whole_path = f"/a%20b/%C3%BC%20/v2{path}"
                lines = server.heads[-1].splitlines()
                assert lines[0].split()[1] == whole_path.lower()
                assert f"host: {address.lower()}" in lines
                assert caught.value.url == f"http://{address.lower()}{whole_path}"
                assert (caught.value.model, caught.value.message) == (model, "no")


def test_headers_of_a_request(client: Any) -> None:
    client.infer("echo", {"x": np.zeros(MiB, np.float32)}, headers={"Host": "other"})
    sent = seen[-1]
    assert (sent["host"], sent["accept-encoding"]) == ("other", "identity")
    assert int(sent["content-length"]) > 4 * MiB
    assert "transfer-encoding" not in sent
    client.infer("echo", {"x": X}, response_compression_algorithm="gzip")
    assert seen[-1]["accept-encoding"] == "gzip"


NOT_PASSED = "the HTTP header {} cannot be passed: the client sets it"
VALUE, NAME = (
    "the value of the HTTP header X is invalid: character",
    "the name of an HTTP header is invalid",
)
MAPPING = "headers must be a mapping of str to str, not int"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"content-length": "3"}, NOT_PASSED.format("content-length")),
        ({"Content-Length": "3"}, NOT_PASSED.format("Content-Length")),
        ({"Transfer-Encoding": "3"}, NOT_PASSED.format("Transfer-Encoding")),
        ({"X": "Bearer s\r\nY: b"}, VALUE + r" '\\r' at position 8$"),
        ({"X": "\u20ac"}, VALUE + " '\u20ac' at position 0$"),
        ({"X\n": "a"}, NAME),
        ({"Authorization: Bearer sec": 1}, f"{NAME}: character ':' at position 13$"),
        ({"": "a"}, "the name of an HTTP header must not be empty$"),
        (3, MAPPING),
        (0, MAPPING),
        ({3: "a"}, "the name of an HTTP header must be a str, not int"),
        ({"X": 3}, "the value of the HTTP header 'X' must be a str, not int"),
    ],
)
def test_invalid_headers_are_rejected(connect: Connect, headers: Any, message: str) -> None:
    fails = pytest.raises((ValueError, TypeError), match=f"^{message}")
    with fails, connect("127.0.0.1:1", headers=headers):
        pass
    with connect("127.0.0.1:1") as client, fails:
        client.infer("m", {"x": X}, headers=headers)


def test_headers_are_sent_as_they_were_checked(connect: Connect) -> None:
    """Whatever the methods of a subclass of str return, and a mapping at the second access."""

    class Hostile(str):
        def lower(self) -> str:
            return "x"

        def __str__(self) -> str:
            return "a\r\nInjected: yes"

        def __format__(self, _: str) -> str:
            return str(self)

    class Changes(dict[str, str]):
        def items(self) -> Any:
            return {"X": "a"}.items()

    with Scripted([GOOD] * 2) as server, connect(server.address, headers={"X-A": "1"}) as client:
        for headers in ({"X": Hostile("a"), "x-a": "2"}, Changes({"X": "a\r\nInjected: yes"})):
            client.infer("m", {"x": X}, headers=headers)
            assert "\r\nx: a\r\n" in server.heads[-1]
            assert "injected" not in server.heads[-1]
        assert [head.count("x-a") for head in server.heads] == [1, 1]
        with pytest.raises(ValueError, match=NOT_PASSED.format("Content-Length")):
            client.infer("m", {"x": X}, headers={Hostile("Content-Length"): "3"})


# --- bodies ---


def test_binary_and_json_outputs(client: Any) -> None:
    inputs = {"x": X, "y": X[:2]}
    for options, expected in (
        ({}, [("x", True), ("y", True)]),
        ({"outputs": ["y"]}, [("y", True)]),
        ({"outputs": ["x", tw.RequestedOutput("y", binary=False)]}, [("x", True), ("y", False)]),
        ({"binary_outputs": False}, [("x", False), ("y", False)]),
        ({"parameters": {"binary_data_output": False}}, [("x", False), ("y", False)]),
        ({"binary_inputs": False}, [("x", False), ("y", False)]),
        ({"binary_inputs": False, "binary_outputs": True}, [("x", True), ("y", True)]),
    ):
        response = client.infer("echo", inputs, **options)
        assert [(tensor.name, tensor.binary) for tensor in response.outputs] == expected
    parameters = {"binary_data_output": False}
    request = tw.InferRequest(inputs, ["x"], parameters=parameters)
    assert not client.infer("echo", request)["x"].binary
    assert client.infer("echo", request, parameters={"binary_data_output": True})["x"].binary


def test_infer_raw(client: Any) -> None:
    calls: list[Progress] = []

    def report(progress: Progress) -> None:
        calls.append(progress)

    released = weakref.ref(report)
    response = client.infer_raw("declared", X, on_progress=report)
    del report
    assert released() is None
    assert response["y"].binary
    assert np.array_equal(response["y"].as_numpy(), X * 2)
    assert seen[-1]["inference-header-content-length"] == "0"
    assert calls[0] == Progress(X.nbytes, X.nbytes, 0, None)
    assert [call.received_nbytes for call in calls[1:]] == [calls[1].response_nbytes]


def test_json_inputs(connect: Connect, server: str) -> None:
    inputs = {"x": X, "y": tw.Tensor("y", [1.5], datatype="FP64"), "words": ["a"]}
    with connect(server, binary_inputs=False) as client:
        for given in (inputs, [tw.Tensor("x", X)], tw.InferRequest(inputs)):
            response = client.infer("echo", given)
            assert "inference-header-content-length" not in seen[-1]
            assert seen[-1]["content-type"] == "application/json"
            assert np.array_equal(response["x"].as_numpy(), X)
        client.infer("echo", inputs, binary_inputs=True)
        assert seen[-1]["content-type"] == "application/octet-stream"
        encoded = tw.encode_request(tw.InferRequest([tw.Tensor("x", X, binary=False)]))
        assert client.infer("echo", encoded)["x"].shape == X.shape
        with pytest.raises(tw.EncodeError, match="FP16"):
            client.infer("echo", {"x": X.astype(np.float16)})


def test_infinities_in_json_inputs(client: Any) -> None:
    array = np.array([1, np.nan, -np.inf])
    n_requests = len(seen)
    for form in (array, tw.Tensor("x", array, binary=False)):
        with pytest.raises(
            tw.EncodeError, match=r"element 2 of input 'x' is -inf, .*: pass nonfinite='literal'"
        ):
            client.infer("echo", {"x": form}, binary_inputs=False)
    assert len(seen) == n_requests
    for nonfinite, expected in (("literal", array), ("null", [1, np.nan, np.nan])):
        response = client.infer(
            "echo", {"x": array}, binary_inputs=False, binary_outputs=True, nonfinite=nonfinite
        )
        assert np.array_equal(response["x"].as_numpy(), expected, equal_nan=True)


HINT = " (if the server reads only JSON, call infer with binary_inputs=False)"


@pytest.mark.parametrize("status", [400, 415, 422, 404, 500])
def test_server_that_may_not_read_binary_data(connect: Connect, status: int) -> None:
    """The error has a hint until the server has accepted a binary request. None is requested."""
    rejected = http(b'{"error": "no"}', {"Connection": "keep-alive"}, f"{status} No")
    answers = [rejected, rejected, rejected, http(b'{"outputs": []}'), rejected]
    expected = HINT if status < 500 and status != 404 else ""
    with Scripted(answers) as server, connect(server.address) as client:

        def message_of(call: Any) -> str:
            with pytest.raises(InferenceServerError) as caught:
                call()
            assert (caught.value.status, caught.value.message) == (status, "no")
            return str(caught.value).partition(": no")[2]

        assert message_of(lambda: client.infer("m", {"x": X})) == expected
        assert message_of(lambda: client.infer_raw("m", X)) == expected
        assert message_of(lambda: client.infer("m", {"x": X}, binary_inputs=False)) == ""
        client.infer("m", {"x": X})
        assert message_of(lambda: client.infer("m", {"x": X})) == ""
        assert [head[:4] for head in server.heads] == ["post"] * 5


def test_threads_that_send_a_frame_do_not_share_its_views() -> None:
    """Without the GIL, the memoryviews of ``buffers`` must not be used in several threads."""

    class SharedFrame:
        header_length = 1

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter([b"a", memoryview(b"bc")])

    frame: Any = SharedFrame()  # it has no attribute `buffers`
    infer_request: Any = Client("localhost")._adapter.infer_request
    request = infer_request(Target("m", None, None), frame, Encoding(), None)
    assert complete(request).buffers == (b"a", b"bc")


@pytest.mark.parametrize("max_nbytes", [1, 7, 100, 1 << 20])
def test_pieces_of_a_request(max_nbytes: int) -> None:
    """One send operation gets at most `max_nbytes` bytes and at most 64 pieces."""
    small = [b"%d" % i for i in range(300)]
    buffers: tuple[Any, ...] = (b"", b"ab" * 500, *small, memoryview(bytes(range(256))))
    request = HttpRequest(Operation("POST", "/"), b"head", buffers, 1 << 17)
    windows = list(request.windows(max_nbytes))
    assert b"".join(b"".join(window) for window in windows) == b"".join((b"head", *buffers))
    for i, window in enumerate(windows):
        assert sum(map(len, window if i else window[1:])) <= max_nbytes
        assert 0 < len(window) <= 64


# --- compression ---


@pytest.mark.parametrize("n_values", [100, MiB])
def test_large_request_is_compressed_in_a_thread(
    n_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def record(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return compress(*arguments)

    monkeypatch.setattr(client_http, "compress", record)
    with Scripted([GOOD]) as server, client_fixtures.Awaited(server.address) as client:
        data = np.zeros(n_values, np.float32)
        client.infer("m", {"x": data}, request_compression_algorithm="gzip")
    assert threads == [n_values == MiB]


@pytest.mark.parametrize("name", ["request", "response"])
def test_unknown_compression_algorithm(client: Any, name: str) -> None:
    options = {f"{name}_compression_algorithm": "br"}
    with pytest.raises(ValueError, match="must be 'gzip', 'deflate', 'zstd' or None, not 'br'"):
        client.infer("echo", {"x": X}, **options)


# --- progress ---


def test_progress(client: Any) -> None:
    calls: list[Progress] = []
    array = np.zeros(8 * MiB, np.int8)
    client.infer("echo", {"x": array}, on_progress=calls.append)
    request_nbytes = int(seen[-1]["content-length"])
    sending = [call for call in calls if call.received_nbytes == 0]
    receiving = calls[len(sending) :]
    assert 8 <= len(sending) <= 20
    assert 3 <= len(receiving) <= 20
    assert sending[-1] == Progress(request_nbytes, request_nbytes, 0, None)
    assert receiving[-1].received_nbytes == receiving[-1].response_nbytes
    assert receiving[-1].received_nbytes > array.nbytes
    assert all(call.sent_nbytes == call.request_nbytes == request_nbytes for call in receiving)
    for numbers in ([c.sent_nbytes for c in sending], [c.received_nbytes for c in receiving]):
        assert numbers == sorted(set(numbers))


def test_progress_of_small_pieces() -> None:
    """It is reported about once per MiB, also if the pieces that arrive are small."""
    reports: list[Progress] = []
    reporter = ProgressReporter(reports.append)
    for nbytes in range(0, 4 * MiB + 1, MiB // 16):
        reporter.received(nbytes, 4 * MiB, nbytes == 4 * MiB)
    assert [report.received_nbytes for report in reports] == [MiB, 2 * MiB, 3 * MiB, 4 * MiB]


@pytest.mark.parametrize("nbytes", [1000, 4 * MiB])
def test_progress_of_a_repeated_request(connect: Connect, nbytes: int) -> None:
    """The numbers begin at 0 again."""
    calls: list[Progress] = []
    answers = [http(b'{"error": "busy"}', {"Connection": "keep-alive"}, "503 Busy"), GOOD]

    def answer(connection: socket.socket) -> None:
        connection.sendall(answers.pop(0))

    # The second request has a new connection if the first one was not known to be sent completely.
    with Scripted([answer, answer]) as server, connect(server.address, retries=1) as client:
        client.infer("m", {"x": np.zeros(nbytes, np.int8)}, on_progress=calls.append)
    n_received = [call.received_nbytes for call in calls]
    second = next(i for i, n in enumerate(n_received) if n) + 1
    assert n_received[second] == 0
    assert [c.sent_nbytes for c in calls[second:]] == sorted(c.sent_nbytes for c in calls[second:])
    assert calls[second].response_nbytes is None
    assert calls[-1].received_nbytes == len(BODY)


@pytest.mark.parametrize("error", [LookupError, BrokenPipeError, TimeoutError])
@pytest.mark.parametrize(
    "when",  # whether the request is sent, the response has begun, and it is complete
    [(False, False, False), (True, False, False), (True, True, False), (True, True, True)],
    ids=["sending", "sent", "receiving", "received"],
)
def test_exception_of_the_progress_function(connect: Connect, error: Any, when: Any) -> None:
    """It is raised unchanged, the call is not repeated, and the connection is closed."""
    array = np.zeros(8 * MiB, np.int8)
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("x", array)]))
    response = http(bytes(frame), {HEADER_LENGTH: str(frame.header_length)})
    is_received_in_part = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(response[: 3 * MiB])
        is_received_in_part.wait(5)  # otherwise the client may receive everything at once
        connection.sendall(response[3 * MiB :])

    def stop(progress: Progress) -> None:
        n_sent, request_nbytes, n_received, response_nbytes = progress
        if n_received > 0:
            is_received_in_part.set()
        if (n_sent == request_nbytes, n_received > 0, n_received == response_nbytes) == when:
            raise error("stop")

    with Scripted([GOOD, answer]) as server, connect(server.address, retries=1) as client:
        client.infer("m", {"x": X})
        with pytest.raises(error, match=r"^stop$"):
            client.infer("m", {"x": array}, on_progress=stop)
        is_received_in_part.set()
        assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert (server.n_connections, len(server.heads)) == (2, 3)
