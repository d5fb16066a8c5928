"""The ASGI functions and application, called without a server."""

from __future__ import annotations

import asyncio
import gzip
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import (
    ALL,
    BODY,
    FRAME,
    SPEC,
    WORDS,
    X,
    ask,
    async_echo,
    double,
    echo,
    exchange,
    infer,
    inference,
    read,
)
from support.memory import peak_nbytes
from tensorwire.server import ClientDisconnectedError, create_app, send_error, send_frame

APP = create_app({"echo": async_echo, "double": double}, max_body_nbytes=100_000)


# --- requests ---


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


@pytest.mark.thread_unsafe(reason="it measures the process")
def test_decompression_stops_at_max_body() -> None:
    """100 MB of zeros in 100 KB are rejected at the limit, before more is decompressed."""
    bomb = gzip.compress(bytes(100 << 20), 9)
    headers = {"Content-Encoding": "gzip", "Content-Length": str(len(bomb))}

    def send(chunks: list[bytes]) -> None:
        answer = infer(APP, chunks=chunks, headers=headers)
        assert answer.status == 413
        assert answer.n_received < 10

    for chunks in (cut(bomb, 4096), [bomb]):
        assert peak_nbytes(partial(send, chunks)) < 4 << 20


def test_options_of_read_request() -> None:
    assert same(read(FRAME.headers, [BODY], limits=tw.Limits(max_tensors=2)))
    with pytest.raises(tw.HeaderError, match="more than 1 input, which is the limit"):
        read(FRAME.headers, [BODY], limits=tw.Limits(max_tensors=1))
    raw = tw.encode_raw_request(X.as_numpy())
    found = read(raw.headers, [bytes(raw)], raw_input=SPEC)
    assert np.array_equal(found["x"].as_numpy(), X.as_numpy())
    with pytest.raises(tw.LayoutError, match="no raw_input is declared"):
        read(raw.headers, [bytes(raw)])


def test_client_that_disconnects() -> None:
    with pytest.raises(ClientDisconnectedError):
        read(FRAME.headers, [BODY[:100], None])
    disconnected = infer(APP, chunks=[BODY[:100], None])
    assert (disconnected.status, disconnected.bodies) == (0, [])


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([BODY[:-5]], "the body is shorter than Content-Length"),
        ([BODY, b"x"], "the body exceeds Content-Length"),
    ],
)
def test_body_of_another_length(chunks: list[bytes], message: str) -> None:
    """A server that lets this through is not trusted."""
    with pytest.raises(tw.LayoutError, match=message):
        read(FRAME.headers, chunks)
    answer = infer(APP, chunks=chunks)
    assert (answer.status, message in answer.error) == (400, True)


ARRIVALS: dict[str, tuple[dict[str, str], bytes]] = {
    "with Content-Length": ({"Content-Length": str(len(BODY))}, BODY),
    "without Content-Length": ({}, BODY),
    "compressed": ({"Content-Encoding": "gzip"}, gzip.compress(BODY)),
}


@pytest.mark.parametrize(("headers", "sent"), ARRIVALS.values(), ids=ARRIVALS.keys())
def test_body_at_and_above_max_body(headers: dict[str, str], sent: bytes) -> None:
    headers = headers | {"Inference-Header-Content-Length": str(FRAME.header_length)}
    chunks = [sent[:100], sent[100:]]
    for max_body_nbytes in (len(BODY), len(BODY) + 1):
        assert read(headers, chunks, max_body_nbytes=max_body_nbytes)["x"].shape == X.shape
    with pytest.raises(tw.BodyTooLargeError, match=r"the body is \d+ bytes long") as caught:
        read(headers, chunks, max_body_nbytes=len(BODY) - 1)
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
        {"Content-Length": "1", "content-length": "2"},
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


def test_early_error_reads_the_body_first() -> None:
    for path in ("/v2/models/unknown/infer", "/nowhere"):
        answer = ask(APP, path, "POST", [BODY[:1000], BODY[1000:]], FRAME.headers)
        assert (answer.status, answer.n_received) == (404, 2)
    endless = ask(APP, "/nowhere", "POST", [bytes(8 << 20)] * 9)
    assert (endless.status, endless.n_received) == (404, 3)


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


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_client_that_does_not_read_keeps_no_memory_that_others_need(
    monkeypatch: pytest.MonkeyPatch, is_compressed: bool
) -> None:
    monkeypatch.setattr("tensorwire.server.asgi.PERIOD_SECONDS", 0.01)
    app = create_app({"echo": async_echo}, max_body_memory_nbytes=75_000)
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.zeros(80_000, np.int8))]))
    stopped = asyncio.Event()

    async def unread(scope: Any, receive: Any, send: Any) -> None:
        async def wait(message: Any) -> None:
            stopped.set()
            await asyncio.Event().wait()

        await app(scope, receive, wait)

    async with asyncio.timeout(5):
        silent = asyncio.create_task(exchange(unread, **inference(frame=frame)))
        await stopped.wait()
        await asyncio.sleep(0.05)
        assert not silent.done()  # no other body waits
        sent = inference(frame=frame)
        if is_compressed:
            body = gzip.compress(bytes(frame))
            sent["chunks"] = [body]
            sent["headers"] |= {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
        else:
            sent["chunks"] = cut(bytes(frame), 70_000)
        status = (await exchange(app, **sent)).status
        assert status == (503 if is_compressed else 200)  # what is decompressed does not wait
        assert (await silent).status == 0
        assert (await exchange(app, **sent)).status == 200


async def test_client_that_does_not_read_may_do_so_without_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is counted for the body of a compressed request, but a small one takes none."""
    monkeypatch.setattr("tensorwire.server.asgi.PERIOD_SECONDS", 0.01)
    app = create_app({"echo": async_echo})
    body = gzip.compress(BODY)
    headers = FRAME.headers | {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
    sent = inference(chunks=[body], headers=headers)
    stopped, is_read = asyncio.Event(), asyncio.Event()

    async def unread(scope: Any, receive: Any, send: Any) -> None:
        async def wait(message: Any) -> None:
            stopped.set()
            await is_read.wait()
            await send(message)

        await app(scope, receive, wait)

    task = asyncio.create_task(exchange(unread, **sent))
    await stopped.wait()
    app.body_memory.n_refused += 1
    await asyncio.sleep(0.05)
    is_read.set()
    assert (await task).status == 200


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


@pytest.mark.parametrize("seconds", [None, 20])
async def test_middleware_that_limits_the_time_of_a_message(seconds: float | None) -> None:
    """Its error is not taken for the end of `receive_timeout`."""
    app = create_app({"echo": echo}, receive_timeout=seconds)

    never: Any = asyncio.Event()

    async def limited(scope: Any, _: Any, send: Any) -> None:
        await app(scope, lambda: asyncio.wait_for(never.wait(), 0.01), send)

    with pytest.raises(TimeoutError):
        await exchange(limited, **inference())


def test_large_frames_are_sent_buffer_by_buffer() -> None:
    big = tw.Tensor("x", np.zeros(20_000, np.float32))
    frame = tw.encode_request(tw.InferRequest([big, WORDS], parameters=ALL))
    answer = infer(APP, frame=frame)
    assert len(answer.bodies) == 4  # header, x, words and the end
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
    assert bodies.pop() == b""  # with it, a server waits until the client has received the rest
    chunks = [np.frombuffer(body, np.uint8) for body in bodies[2:]]
    assert [len(chunk) for chunk in chunks] == [1 << 20] * 2
    assert [np.shares_memory(chunk, big) for chunk in chunks] == [zero_copy] * 2
    assert all(isinstance(body, bytes) for body in bodies[1:]) is not zero_copy
    assert b"".join(bodies[1:]) == bytes(frame)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_zero_copy_of_the_application(zero_copy: bool) -> None:
    app = create_app({"echo": async_echo}, zero_copy=zero_copy)
    big = tw.Tensor("x", np.zeros(1 << 19, np.float32))
    answer = infer(app, frame=tw.encode_request(tw.InferRequest([big], parameters=ALL)))
    assert {type(body) for body in answer.bodies[1:-1]} == {memoryview if zero_copy else bytes}


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


# --- the application ---


def test_lifespan_and_websocket() -> None:
    sent: list[str] = []
    pending = ["lifespan.startup", "lifespan.shutdown"]

    async def receive() -> Any:
        return {"type": pending.pop(0)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(APP({"type": "lifespan"}, receive, send))
    asyncio.run(APP({"type": "websocket"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
