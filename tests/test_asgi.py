"""The ASGI functions and application, called without a server: bodies, responses and errors."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import tracemalloc
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import ALL, BODY, FRAME, WORDS, X, ask, infer
from tensorwire.server import (
    ClientDisconnectedError,
    Model,
    create_app,
    read_request,
    send_error,
    send_frame,
)
from tensorwire.server.framing import Framing


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(request.inputs)


def double(request: tw.InferRequest) -> dict[str, Any]:
    return {"y": request["x"].as_numpy() * 2}


def fail(request: tw.InferRequest) -> Any:
    raise RuntimeError("an internal secret")


SPEC = tw.TensorSpec("x", "FP32", [-1])
OUT = tw.TensorSpec("y", "FP32", [-1])
APP = create_app(
    {
        "echo": echo,
        "double": double,
        "declared": Model(double, [SPEC], [OUT]),
        "batching": Model(double, [SPEC], [OUT], batching=True),
        "fail": fail,
        "wrong name": Model(lambda r: {"z": r["x"].as_numpy()}, [SPEC], [OUT]),
        "wrong shape": Model(lambda r: {"y": r["x"].as_numpy().reshape(-1, 1)}, [SPEC], [OUT]),
        "wrong type": Model(lambda r: {"y": r["x"].as_numpy().astype("f8")}, [SPEC], [OUT]),
        "nothing": lambda _: None,  # type: ignore[dict-item,return-value]
        "half": lambda r: {"y": r["x"].as_numpy().astype("f2")},
    },
    max_body=100_000,
)


# --- reading ---


def read(headers: dict[str, str], chunks: Iterable[Any], **more: Any) -> tw.InferRequest:
    found: list[tw.InferRequest] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(await read_request(scope, receive, **more))

    ask(app, "/", "POST", chunks, headers)
    return found[0]


def cut(body: bytes, n_chunk: int) -> list[bytes]:
    return [body[i : i + n_chunk] for i in range(0, len(body), n_chunk)]


def same(request: tw.InferRequest) -> bool:
    return np.array_equal(request["x"].as_numpy(), X.as_numpy()) and (
        request["words"].data == WORDS.data
    )


@pytest.mark.parametrize("n_chunk", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("with_length", [True, False])
def test_request_in_chunks_of_any_size(n_chunk: int, with_length: bool) -> None:
    headers = FRAME.headers
    if not with_length:
        del headers["Content-Length"]
    request = read(headers, cut(BODY, n_chunk))
    assert same(request)
    array = request["x"].as_numpy()
    assert array.ctypes.data % 64 == 0
    assert array.flags.writeable


GATEWAY = "application/vnd.vertex-ai-triton.binary+json"


@pytest.mark.parametrize("name", ["json-header-size", "JSON-Header-Size"])
def test_header_length_in_the_media_type(name: str) -> None:
    headers = FRAME.headers
    length = headers.pop("Inference-Header-Content-Length")
    assert same(read(headers | {"Content-Type": f"{GATEWAY}; {name}={length}"}, [BODY]))


@pytest.mark.parametrize(("second", "fits"), [(b"%d", True), (b"0%d", True), (b"1%d", False)])
def test_repeated_header_length_must_agree(second: bytes, fits: bool) -> None:
    length = FRAME.header_length or 0
    name = b"inference-header-content-length"
    headers = [(name, b"%d" % length), (name, second % length)]
    if fits:
        assert Framing(headers).header_length == length
    else:
        with pytest.raises(tw.HeaderError, match="declare two header lengths"):
            Framing(headers)


def raw_deflate(body: bytes) -> bytes:
    maker = zlib.compressobj(wbits=-15)
    return maker.compress(body) + maker.flush()


@pytest.mark.parametrize("n_chunk", [1, 100, 1 << 20])
@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", gzip.compress),
        (" GZip ", gzip.compress),
        ("x-gzip", gzip.compress),
    ],
)
def test_compressed_bodies(encoding: str, compress: Any, n_chunk: int) -> None:
    packed = compress(BODY)
    headers = FRAME.headers | {"Content-Encoding": encoding, "Content-Length": str(len(packed))}
    assert same(read(headers, cut(packed, n_chunk)))


@pytest.mark.parametrize(
    ("encodings", "rejected"),
    [
        ([b""], None),
        ([b"Identity", b"identity"], None),
        ([b"gzip", b"identity"], None),
        ([b"identity", b"gzip"], None),
        ([b"gzip", b"gzip"], "'gzip, gzip'"),
        ([b"gzip", b"identity", b"deflate"], "'gzip, deflate'"),
    ],
)
def test_content_encoding_in_several_headers(encodings: list[bytes], rejected: str | None) -> None:
    """The headers form one list; their order among other headers does not matter."""
    headers = [(k.lower().encode(), v.encode()) for k, v in FRAME.headers.items()]
    headers += [(b"content-encoding", encoding) for encoding in encodings]
    body = gzip.compress(BODY) if b"gzip" in encodings else BODY
    headers = [(k, v) for k, v in headers if k != b"content-length"]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def request() -> tw.InferRequest:
        return await read_request({"headers": headers}, receive)

    if rejected is None:
        assert same(asyncio.run(request()))
    else:
        with pytest.raises(tw.DecodeError, match=f"Content-Encoding {rejected} is not") as caught:
            asyncio.run(request())
        assert caught.value.status == 415


SHORT = gzip.compress(BODY)[:-1]


@pytest.mark.parametrize(
    ("body", "encoding", "message", "status"),
    [
        (SHORT, "gzip", f"after {len(SHORT)} bytes ({len(BODY)} bytes decompressed)", 400),
        (gzip.compress(BODY) + b"x", "gzip", f"after {len(BODY)} decompressed bytes: it is", 400),
        (gzip.compress(BODY) + bytes(50_000), "gzip", "is followed by other data", 400),
        (gzip.compress(BODY) * 2, "gzip", "is followed by other data", 400),
        (b"what?", "gzip", "compressed body is invalid after 0 decomp", 400),
        (raw_deflate(BODY), "deflate", "compressed body is invalid after 0 decomp", 400),
        (b"", "gzip", "truncated after 0 bytes (0 bytes decompressed)", 400),
        (BODY, "br", "Content-Encoding 'br' is not supported", 415),
        (gzip.compress(bytes(200_000)), "gzip", "; the limit is 100000", 413),
    ],
)
@pytest.mark.parametrize("n_chunk", [50, 1 << 20])
def test_invalid_compressed_bodies_are_rejected(
    body: bytes, encoding: str, message: str, status: int, n_chunk: int
) -> None:
    headers = FRAME.headers | {"Content-Encoding": encoding, "Content-Length": str(len(body))}
    answer = infer(APP, chunks=cut(body, n_chunk) or [b""], headers=headers)
    assert message in answer.error
    assert answer.status == status


@pytest.mark.thread_unsafe(reason="it measures the process")
def test_decompression_stops_at_max_body() -> None:
    """100 MB of zeros in 100 KB are rejected at the limit, before more is decompressed."""
    bomb = gzip.compress(bytes(100 << 20), 9)
    headers = {"Content-Encoding": "gzip", "Content-Length": str(len(bomb))}
    for chunks in (cut(bomb, 4096), [bomb]):
        tracemalloc.start()
        answer = infer(APP, chunks=chunks, headers=headers)
        _, peak_nbytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert answer.status == 413
        assert answer.n_received < 10
        assert peak_nbytes < 4 << 20


def test_read_request_rejects_a_body_that_ends_early() -> None:
    with pytest.raises(tw.LayoutError, match="the body is shorter than Content-Length"):
        read(FRAME.headers, [BODY[:-1]])


def test_read_request_applies_limits() -> None:
    assert same(read(FRAME.headers, [BODY], limits=tw.Limits(max_tensors=2)))
    with pytest.raises(tw.HeaderError, match="more than 1 input, which is the limit"):
        read(FRAME.headers, [BODY], limits=tw.Limits(max_tensors=1))


def test_read_request_accepts_a_raw_request() -> None:
    frame = tw.encode_raw_request(X.as_numpy())
    assert np.array_equal(
        read(frame.headers, [bytes(frame)], raw_input=SPEC)["x"].as_numpy(), X.as_numpy()
    )
    with pytest.raises(tw.HeaderError, match="no raw_input is declared"):
        read(frame.headers, [bytes(frame)])


def test_client_that_disconnects() -> None:
    with pytest.raises(ClientDisconnectedError):
        read(FRAME.headers, [BODY[:100], None])
    disconnected = infer(APP, chunks=[BODY[:100], None])
    assert (disconnected.status, disconnected.bodies) == (0, [])


@pytest.mark.parametrize(
    ("chunks", "headers", "status", "message"),
    [
        ([BODY[:-5]], {}, 400, "the body is shorter than Content-Length"),
        ([BODY, b"x"], {}, 400, "the body exceeds Content-Length"),
        ([BODY], {"Content-Length": "x"}, 400, "Content-Length is not a number: 'x'"),
        ([BODY], {"Content-Length": ""}, 400, "Content-Length is not a number: ''"),
        ([BODY], {"Content-Length": "1:"}, 400, "Content-Length is not a number: '1:'"),
        ([BODY], {"Content-Length": "9" * 18}, 413, "the body is 999999999999999999 "),
        ([BODY], {"Content-Length": "9" * 19}, 413, "the body is 9999999999999999999 "),
        ([BODY], {"Content-Length": "9" * 20}, 413, "the body is 99999999999999999999 "),
        ([BODY], {"Content-Length": "9" * 21}, 400, "Content-Length is not a number: '9999"),
        ([BODY], {"Content-Length": "9" * 18 + ":"}, 400, "Content-Length is not a number: '99"),
        ([BODY], {"Inference-Header-Content-Length": ""}, 400, "is not a number: ''"),
        ([BODY], {"Inference-Header-Content-Length": "1:"}, 400, "is not a number: '1:'"),
        (
            [BODY],
            {"Inference-Header-Content-Length": "9" * 19},
            400,
            "is 9999999999999999999, but the",
        ),
        ([BODY], {"Inference-Header-Content-Length": "9" * 21}, 400, "is not a number: '9999"),
        ([BODY], {"Content-Type": f"{GATEWAY};json-header-size=5"}, 400, "two header lengths"),
        ([BODY], {"Inference-Header-Content-Length": "x"}, 400, "is not a number: 'x'"),
        ([BODY], {"Inference-Header-Content-Length": "99999"}, 400, "the body has"),
        ([b"{" * 50_000], {"Content-Length": "50000"}, 400, "the JSON header is malformed"),
        ([b"-" * 50_000], {"Content-Length": "50000"}, 400, "the JSON header is malformed"),
        (
            [b"[" * 50_000],
            {"Inference-Header-Content-Length": "50000", "Content-Length": "50000"},
            400,
            "the JSON is nested too deeply",
        ),
    ],
)
def test_invalid_bodies_are_rejected(chunks: Any, headers: Any, status: int, message: str) -> None:
    answer = infer(APP, chunks=chunks, headers=FRAME.headers | headers)
    assert answer.status == status
    assert message in answer.error


ARRIVALS: dict[str, tuple[dict[str, str], bytes]] = {
    "with Content-Length": ({"Content-Length": str(len(BODY))}, BODY),
    "without Content-Length": ({}, BODY),
    "compressed": ({"Content-Encoding": "gzip"}, gzip.compress(BODY)),
}


@pytest.mark.parametrize(("headers", "sent"), ARRIVALS.values(), ids=ARRIVALS.keys())
def test_body_at_and_above_max_body(headers: dict[str, str], sent: bytes) -> None:
    headers = headers | {"Inference-Header-Content-Length": str(FRAME.header_length)}
    chunks = [sent[:100], sent[100:]]
    for max_body in (len(BODY), len(BODY) + 1):
        assert read(headers, chunks, max_body=max_body)["x"].shape == X.shape
    with pytest.raises(tw.HeaderError, match=r"the body is \d+ bytes long") as caught:
        read(headers, chunks, max_body=len(BODY) - 1)
    assert (caught.value.status, caught.value.expected) == (413, len(BODY) - 1)


def test_too_long_body_is_rejected_before_it_is_read() -> None:
    headers = FRAME.headers | {"Content-Length": "100001"}
    answer = infer(APP, headers=headers)
    assert (answer.status, answer.n_received) == (413, 0)
    assert answer.headers["connection"] == "close"
    assert answer.error == "the body is 100001 bytes long; the limit is 100000"
    del headers["Content-Length"]
    answer = infer(APP, chunks=[bytes(40_000)] * 5, headers=headers)
    assert (answer.status, answer.n_received) == (413, 5)  # the rest is discarded


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": "x"},
        {"Content-Length": "1", "Transfer-Encoding": "chunked"},
        {"Content-Encoding": "br", "Expect": "100-continue"},
        {"Inference-Header-Content-Length": "x", "Expect": "100-continue"},
    ],
    ids=", ".join,
)
def test_request_that_is_rejected_before_it_is_read(headers: dict[str, str]) -> None:
    """The end of the body is not certain, or the client sends it only after 100 Continue."""
    answer = infer(APP, headers=headers)
    assert answer.status in (400, 415)
    assert (answer.n_received, answer.headers["connection"]) == (0, "close")
    waiting = {"Expect": "100-continue"}
    answer = ask(APP, "/nowhere", "POST", [BODY], waiting)
    assert (answer.status, answer.n_received) == (404, 0)
    answer = ask(APP, "/v2", "POST", [BODY], waiting)
    assert (answer.status, answer.n_received) == (405, 0)
    assert (answer.headers["allow"], answer.headers["connection"]) == ("GET, HEAD", "close")


def test_messages_without_optional_members() -> None:
    """A server may omit ``body`` and ``more_body`` (ASGI)."""
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", [1], datatype="INT8", binary=False)]))
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": bytes(frame)},
    ]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v2/models/echo/infer", "headers": []}
    asyncio.run(APP(scope, receive, send))
    assert sent[0]["status"] == 200


@pytest.mark.parametrize("model", ["echo", "double"])
def test_unexpected_error_of_the_codec_is_not_sent(
    model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_to_decode(*_: Any, **__: Any) -> Any:
        raise RuntimeError("an internal secret")

    monkeypatch.setattr("tensorwire.server.body.decode_request", fail_to_decode)
    for headers in (FRAME.headers, {"Content-Encoding": "gzip"}):  # in the event loop, in a thread
        caplog.clear()
        body = gzip.compress(BODY) if "Content-Encoding" in headers else BODY
        answer = infer(APP, model, chunks=[body], headers=headers)
        assert (answer.status, answer.error) == (500, "internal server error")
        assert "an internal secret" in caplog.text


# --- responses ---


def test_echo() -> None:
    response = infer(APP).response()
    assert np.array_equal(response["x"].as_numpy(), X.as_numpy())
    assert response["words"].as_numpy().tolist() == [b"a", b"bc"]
    assert (response.id, response.model_name) == ("7", "echo")


def test_json_response_as_requested() -> None:
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", [1.5], datatype="FP32")]))
    answer = infer(APP, "double", frame)
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["outputs"][0]["data"] == [3.0]
    mixed = tw.InferRequest([X, WORDS], [tw.RequestedOutput("words", binary=True)])
    assert list(infer(APP, "echo", tw.encode_request(mixed)).response()) == ["words"]


def test_large_frames_are_sent_buffer_by_buffer() -> None:
    big = tw.Tensor("x", np.zeros(20_000, np.float32))
    frame = tw.encode_request(tw.InferRequest([big, WORDS], parameters=ALL))
    answer = infer(APP, frame=frame)
    assert len(answer.bodies) == 3  # header, x, words
    assert all(type(body) is bytes for body in answer.bodies)
    assert answer.response()["words"].data == WORDS.data
    assert len(infer(APP).bodies) == 1


@pytest.mark.parametrize("zero_copy", [False, True])
def test_zero_copy_sends_the_memory_of_the_tensors(zero_copy: bool) -> None:
    big = np.zeros(1 << 19, np.float32)
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", big)]))
    bodies: list[Any] = []

    async def send(message: Any) -> None:
        bodies.append(message.get("body"))

    asyncio.run(send_frame(send, frame, zero_copy=zero_copy))
    chunks = [np.frombuffer(body, np.uint8) for body in bodies[2:]]
    assert [len(chunk) for chunk in chunks] == [1 << 20] * 2
    assert [np.shares_memory(chunk, big) for chunk in chunks] == [zero_copy] * 2
    assert all(isinstance(body, bytes) for body in bodies[1:]) is not zero_copy
    assert b"".join(bodies[1:]) == bytes(frame)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_zero_copy_of_the_application(zero_copy: bool) -> None:
    app = create_app({"echo": echo}, zero_copy=zero_copy)
    big = tw.Tensor("x", np.zeros(1 << 19, np.float32))
    answer = infer(app, frame=tw.encode_request(tw.InferRequest([big], parameters=ALL)))
    assert {type(body) for body in answer.bodies[1:]} == {memoryview if zero_copy else bytes}


def test_send_frame_in_any_app() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send_frame(send, FRAME, status=201, headers=[(b"x-more", b"1")])

    answer = ask(app, "/")
    assert (answer.status, answer.headers["x-more"], answer.body) == (201, "1", BODY)

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await send_error(send, "busy", 503, headers=[(b"retry-after", b"1")])

    answer = ask(fails, "/")
    assert (answer.status, answer.headers["retry-after"], answer.error) == (503, "1", "busy")
    empty = tw.encode_raw_request(np.zeros(0, np.int8))

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        await send_frame(send, empty)

    assert ask(nothing, "/").body == b""


def test_sync_models_run_in_a_thread_and_async_ones_do_not() -> None:
    threads: dict[str, int] = {}

    def sync(request: tw.InferRequest) -> dict[str, Any]:
        threads["sync"] = threading.get_ident()
        return {}

    class Async:
        async def __call__(self, request: tw.InferRequest) -> dict[str, Any]:
            threads["async"] = threading.get_ident()
            return {}

    app = create_app({"sync": sync, "async": Async()})
    for name in ("sync", "async"):
        assert infer(app, name).response().outputs == ()
    assert threads["async"] == threading.get_ident() != threads["sync"]


@pytest.mark.parametrize(
    "function", [lambda _: leave(KeyboardInterrupt), lambda _: leave_later(KeyboardInterrupt)]
)
def test_keyboard_interrupt_in_the_event_loop_reaches_the_server(function: Any) -> None:
    app = create_app({"m": Model(function, in_event_loop=True)})
    with pytest.raises(KeyboardInterrupt):
        infer(app, "m")


def leave(error: type[BaseException]) -> Any:
    raise error


async def leave_later(error: type[BaseException]) -> Any:
    raise error


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize(
    "make",
    [
        lambda error: lambda _: leave(error),
        lambda error: Model(lambda _: leave(error), in_event_loop=True),
        lambda error: lambda _: leave_later(error),
    ],
    ids=["thread", "event loop", "async"],
)
def test_model_that_raises_an_exception_of_the_interpreter(
    make: Any, error: type[BaseException]
) -> None:
    answer = infer(create_app({"m": make(error)}), "m")
    assert (answer.status, answer.error) == (500, "model 'm' failed")


def test_keyboard_interrupt_in_a_thread_is_an_error_of_the_model() -> None:
    """Signal handlers run in the main thread alone."""
    answer = infer(create_app({"m": lambda _: leave(KeyboardInterrupt)}), "m")
    assert (answer.status, answer.error) == (500, "model 'm' failed")


def test_raw_requests() -> None:
    frame = tw.encode_raw_request(np.array([1, 2], np.float32))
    response = infer(APP, "declared", frame).response()
    assert response["y"].as_numpy().tolist() == [2, 4]
    batch = infer(APP, "batching", frame).response()
    assert batch["y"].shape == (1, 2)
    answer = infer(APP, "echo", frame)
    assert (answer.status, "the model does not declare exactly one" in answer.error) == (400, True)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([X, WORDS], "unexpected input 'words': the model takes ['x']"),
        ([WORDS], "unexpected input 'words': the model takes ['x']"),
        ([tw.Tensor("x", np.zeros(2))], "input 'x' is FP64 [2], but the model declares FP32 [-1]"),
        (
            [tw.Tensor("x", np.zeros((2, 1), np.float32))],
            "input 'x' is FP32 [2, 1], but the model declares FP32 [-1]",
        ),
    ],
)
def test_inputs_that_differ_from_the_declaration_are_rejected(tensors: Any, message: str) -> None:
    answer = infer(APP, "declared", tw.encode_request(tw.InferRequest(tensors)))
    assert (answer.status, answer.error) == (400, message)


def test_missing_input_is_rejected() -> None:
    app = create_app({"m": Model(double, [SPEC, tw.TensorSpec("z", "BYTES", [1])])})
    answer = infer(app, "m", tw.encode_request(tw.InferRequest([X])))
    assert (answer.status, answer.error) == (400, "input 'z' is missing")


ONE = tw.encode_request(tw.InferRequest([X], parameters=ALL))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("fail", "model 'fail' failed"),
        (
            "wrong name",
            "the model returned output 'z', which is not declared: the model declares ['y']",
        ),
        ("wrong shape", "output 'y' is FP32 [1000, 1], but the model declares FP32 [-1]"),
        ("wrong type", "output 'y' is FP64 [1000], but the model declares FP32 [-1]"),
        ("nothing", "a model must return an InferResponse or a mapping of arrays, not NoneType"),
    ],
)
def test_failing_models_give_status_500(
    model: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = infer(APP, model, ONE)
    assert (answer.status, answer.error) == (500, message)
    assert b"secret" not in answer.body
    assert model in caplog.text
    if model == "fail":
        assert "an internal secret" in caplog.text
    assert infer(APP).status == 200  # the next request succeeds


def test_requests_for_impossible_outputs_give_status_400() -> None:
    half = infer(APP, "half", tw.encode_request(tw.InferRequest([X])))
    assert (half.status, half.error) == (
        400,
        "output 'y' is FP16, which can only be sent as binary data",
    )
    request = tw.InferRequest([X], [tw.RequestedOutput("q")])
    missing = infer(APP, "double", tw.encode_request(request))
    assert (missing.status, "asks for output 'q'" in missing.error) == (400, True)


def test_app_mounted_below_a_prefix() -> None:
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await APP(scope | {"root_path": "/pre"}, receive, send)

    answer = ask(mounted, "/pre/v2/models/echo/infer", "POST", [BODY], FRAME.headers)
    assert answer.response().id == "7"
    assert ask(mounted, "/pre/v2/models/echo").status == 200


def test_early_error_reads_the_body_first() -> None:
    for path in ("/v2/models/nobody/infer", "/nowhere"):
        answer = ask(APP, path, "POST", [BODY[:1000], BODY[1000:]], FRAME.headers)
        assert (answer.status, answer.n_received) == (404, 2)
    endless = ask(APP, "/nowhere", "POST", [bytes(8 << 20)] * 9)
    assert (endless.status, endless.n_received) == (404, 3)


def raise_layout_error(request: tw.InferRequest) -> Any:
    raise tw.LayoutError("an internal secret")


def test_tensorwire_error_of_a_model_is_not_sent() -> None:
    answer = infer(create_app({"m": raise_layout_error}), "m")
    assert (answer.status, answer.error) == (500, "model 'm' failed")


def stop(request: tw.InferRequest) -> Any:
    return next(iter(()))


async def stop_later(request: tw.InferRequest) -> Any:
    return next(iter(()))


def without_json_form(request: tw.InferRequest) -> Any:
    return tw.InferResponse([X], parameters={"k": object()})


def twice(request: tw.InferRequest) -> Any:
    return tw.InferResponse([X, X])


@pytest.mark.parametrize(
    ("model", "logged"),
    [
        (stop, "StopIteration"),
        (stop_later, "StopIteration"),
        (without_json_form, "contains an object of type object"),
        (twice, "output 'x' appears twice"),
    ],
)
def test_responses_that_cannot_be_encoded_give_status_500(
    model: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The model caused the error: the client gets a general message, and the log has the reason."""
    answer = infer(create_app({"m": model}), "m")
    assert (answer.status, answer.error) == (500, "model 'm' failed")
    assert logged in caplog.text
