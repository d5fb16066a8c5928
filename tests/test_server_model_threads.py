"""What the application of `create_app` does in the event loop, and what in threads."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import platform
import sys
import sysconfig
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.array_samples import OnlyDlpack
from support.asgi_requests import Exchange, echo, exchange, infer, inference, read
from support.lifetimes import without_gc
from support.scripts import run_script
from support.threads import forbid_threads, wait_for
from tensorwire.server import Model, RequestError, client_calls, create_app
from tensorwire.server.body import RequestBody
from tensorwire.server.body_memory import Reservation
from tensorwire.server.client_calls import ClientCall
from tensorwire.server.compressed_reply import negotiated_reply
from tensorwire.server.inference import Inference
from tensorwire.server.model import as_writable
from tensorwire.sizes import MAX_QUICK_JSON_NBYTES, MAX_QUICK_MESSAGE_NBYTES, MAX_SHARED_JSON_NBYTES
from tensorwire.threads import (
    COMPRESSING,
    DECOMPRESSING,
    N_THREADS,
    PACKAGE,
    READING,
    READING_DECOMPRESSED,
    WRITING,
    ThreadCall,
    Threads,
    in_turn,
)

DECODE = "tensorwire.server.body.decode_request"
BINARY = {"binary_data_output": True}
LARGE = np.arange(MAX_QUICK_JSON_NBYTES, dtype=np.int32)
SMALL = LARGE[:100]
RELEASED_LATER = "this Python releases the objects of a thread when the thread runs again"


def message(x: Any, *, in_json: bool = False, outputs: Any = None, **parameters: Any) -> tw.Frame:
    tensor = tw.Tensor("x", x, binary=not in_json)
    return tw.encode_request(tw.InferRequest([tensor], outputs, parameters=parameters))


def recorder(function: Callable[..., Any], threads: list[bool]) -> Callable[..., Any]:
    """Return a function that records whether it is called in another thread than the event loop."""

    def call(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return function(*args, **options)

    return call


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each response, whether it was encoded in another thread than the event loop."""
    threads: list[bool] = []
    monkeypatch.setattr(tw, "encode_response", recorder(tw.encode_response, threads))
    return threads


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    threads: list[bool] = []
    monkeypatch.setattr(DECODE, recorder(tw.decode_request, threads))
    return threads


async def in_event_loop(request: tw.InferRequest) -> dict[str, Any]:
    assert threading.current_thread() is threading.main_thread()
    return {"y": request["x"].as_numpy()}


def in_thread(request: tw.InferRequest) -> dict[str, Any]:
    assert threading.current_thread() is not threading.main_thread()
    return {"y": request["x"].as_numpy()}


def in_loop(request: tw.InferRequest) -> dict[str, Any]:
    assert threading.current_thread() is threading.main_thread()
    return {"y": request["x"].as_numpy()}


def returns_list(request: tw.InferRequest) -> dict[str, Any]:
    return {"y": request["x"].as_numpy().tolist()}


APP = create_app(
    {
        "async": in_event_loop,
        "thread": in_thread,
        "event loop": Model(in_loop, in_event_loop=True),
        "coroutine": Model(in_event_loop, in_event_loop=False),
        "list": Model(returns_list, in_event_loop=True),
    }
)


def post(model: str, frame: tw.Frame, *, is_compressed: bool = False) -> tw.InferResponse:
    if not is_compressed:
        return infer(APP, model, frame).response()
    body = gzip.compress(bytes(frame))
    headers = {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
    return infer(APP, model, chunks=[body], headers=frame.headers | headers).response()


@pytest.mark.parametrize("model", ["async", "thread", "event loop", "coroutine"])
@pytest.mark.parametrize(
    ("frame", "is_compressed", "expected"),
    [
        (message(SMALL, in_json=True, **BINARY), False, []),
        (message(LARGE, in_json=True, **BINARY), False, [READING]),
        (message(LARGE, **BINARY), False, []),
        (message(np.zeros(MAX_QUICK_MESSAGE_NBYTES, bool), **BINARY), False, [READING]),
        (message(SMALL, **BINARY), True, [DECOMPRESSING]),
        (message(LARGE, in_json=True), True, [DECOMPRESSING, READING_DECOMPRESSED]),
    ],
    ids=["small JSON", "large JSON", "binary", "large binary", "compressed", "compressed JSON"],
)
def test_where_a_request_is_decoded(
    model: str,
    frame: tw.Frame,
    is_compressed: bool,
    expected: list[Threads],
    decodings: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues: list[Threads] = []
    start = Threads.start

    def note(queue: Threads, call: ThreadCall) -> bool:
        queues.append(queue)
        return start(queue, call)

    monkeypatch.setattr(Threads, "start", note)
    assert post(model, frame, is_compressed=is_compressed).outputs[0].name == "y"
    assert queues[: len(expected)] == expected
    is_read_in_thread = expected[-1:] not in ([], [DECOMPRESSING])
    assert decodings == [is_read_in_thread]


@pytest.mark.parametrize("model", ["async", "thread", "event loop", None])
@pytest.mark.parametrize(
    ("n_elements", "n_turns"),
    [(4, 0), (MAX_SHARED_JSON_NBYTES, 1), (MAX_QUICK_JSON_NBYTES, 0)],
    ids=["small", "medium", "large"],
)
def test_json_of_medium_size_is_read_in_a_turn_of_the_event_loop(
    model: str | None, n_elements: int, n_turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[bool] = []
    monkeypatch.setattr("tensorwire.threads.in_turn", recorder(in_turn, turns))
    frame = message(np.zeros(n_elements, np.int8), in_json=True)
    if model is None:
        read(frame.headers, [bytes(frame)])
    else:
        post(model, frame)
    assert len(turns) == n_turns


@pytest.mark.parametrize("is_compressed", [False, True])
def test_where_read_request_decodes(is_compressed: bool, decodings: list[bool]) -> None:
    frame = message(SMALL)
    body, headers = bytes(frame), {tw.http.HEADER_LENGTH: str(frame.header_length)}
    if is_compressed:
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    assert np.array_equal(read(headers, [body])["x"].as_numpy(), SMALL)
    assert decodings == [False]


@pytest.mark.thread_unsafe(reason="its model expects the main thread")
def test_large_request_does_not_wait_for_the_threads_of_the_event_loop() -> None:
    """They may be waiting for the server themselves."""

    async def main() -> Exchange:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        answered = threading.Event()
        waiting = loop.run_in_executor(None, answered.wait, 30)
        response = await exchange(APP, **inference("async", message(LARGE, in_json=True)))
        answered.set()
        assert await waiting
        return response

    assert asyncio.run(main()).status == 200


@pytest.mark.parametrize("model", ["async", "thread", "event loop", "list"])
@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (message(SMALL), False),
        (message(LARGE), True),
        (message(LARGE, **BINARY), False),
        (message(LARGE, binary_data_output=False), True),
        *(
            (message(LARGE, outputs=[tw.RequestedOutput("y", binary=binary)]), binary is not True)
            for binary in (True, False, None)
        ),
    ],
)
def test_where_a_response_is_encoded(
    model: str, frame: tw.Frame, expected: bool, encodings: list[bool]
) -> None:
    response = post(model, frame)
    n = response["y"].shape[0]
    assert np.array_equal(response["y"].as_numpy(), LARGE[:n])
    # A synchronous model is called in a thread, which also encodes. Large lists are converted.
    is_large_list = model == "list" and n == len(LARGE)
    assert encodings == [expected or model == "thread" or is_large_list]


@pytest.mark.parametrize(("nbytes", "expected"), [(100, False), (MAX_QUICK_MESSAGE_NBYTES, True)])
def test_where_inputs_are_copied(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, expected: bool
) -> None:
    threads: list[bool] = []
    recording = recorder(as_writable, threads)
    monkeypatch.setattr("tensorwire.server.inference.as_writable", recording)
    app = create_app({"m": Model(in_event_loop, writable_inputs=True)})
    assert infer(app, "m", message(np.zeros(nbytes, np.uint8), **BINARY)).status == 200
    assert threads == [expected]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *(
            ({"y": value}, expected)
            for value, expected in (
                ([[1.5] * 1000] * 50, True),
                ([[1.5] * 10] * 5, False),
                ([b"a" * 70_000], True),
                (["a" * 70_000], True),
                ("a" * 70_000, True),
                (["a"] * (MAX_QUICK_JSON_NBYTES // 4 - 1), False),
                (["a"] * (MAX_QUICK_JSON_NBYTES // 4), True),
                ([["a" * 700] * 10] * 10, True),
                ((), False),
                (np.array([b"a" * 70_000], object), True),
                (np.array(["a", "b"], object), False),
                (np.array(["a" * 70_000], np.dtypes.StringDType()), True),
                (OnlyDlpack(np.zeros(3)), True),
            )
        ),
        ({"y": LARGE, "z": LARGE.tolist()}, True),
        ({"y": np.zeros((1500, 1500))}, False),
        ({"y": np.zeros((1500, 1500)).T}, True),
        ({"y": np.zeros((1500, 1500), ">f8")}, True),
        ({"z": LARGE.tolist(), "y": LARGE}, True),
        ({"y": LARGE, "z": ["a"], "n": 5}, False),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_where_lists_and_texts_are_converted(
    values: dict[str, Any], expected: bool, is_async: bool, encodings: list[bool]
) -> None:
    """Converting a list takes long, although the request asks for binary data."""

    async def function(request: tw.InferRequest) -> dict[str, Any]:
        return values

    model = function if is_async else Model(lambda _: values, in_event_loop=True)
    response = infer(create_app({"m": model}), "m", message(SMALL, **BINARY)).response()
    assert response.keys() == values.keys()
    assert encodings[1:] == [expected]  # the first one is that of create_app


async def never(request: tw.InferRequest) -> Any:
    await asyncio.Event().wait()


class Calls:
    """Requests to a model that waits, of clients that may disconnect."""

    def __init__(self, **options: Any) -> None:
        self.n_called = 0
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.app = create_app({"m": self.model, "other": in_event_loop, "never": never}, **options)
        self.statuses: list[int] = []

    def model(self, request: tw.InferRequest) -> tw.InferResponse:
        with self.lock:
            self.n_called += 1
        assert self.released.wait(20)
        return tw.InferResponse(request.inputs)

    async def request(self, disconnected: asyncio.Event, model: str = "m") -> None:
        sent, reply = inference(model, message(SMALL)), Exchange()
        try:
            await exchange(self.app, **sent, disconnected=disconnected, reply=reply)
        finally:
            self.statuses += [reply.status] if reply.status else []

    def begin(self, n: int, disconnected: asyncio.Event, model: str = "m") -> list[Any]:
        return [asyncio.create_task(self.request(disconnected, model)) for _ in range(n)]


async def test_call_that_waits_for_a_thread_is_dropped_when_its_client_disconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its request is released then, and not when a thread is free."""
    monkeypatch.setattr(client_calls, "GONE_SECONDS", 0)
    calls = Calls()
    found: list[Any] = []
    decode = tw.decode_request

    def record(*arguments: Any, **options: Any) -> Any:
        request = decode(*arguments, **options)
        found.append(weakref.ref(request["x"]))
        return request

    present, gone = asyncio.Event(), asyncio.Event()
    first = calls.begin(N_THREADS, present)
    await asyncio.sleep(0.1)
    monkeypatch.setattr(DECODE, record)
    dropped = calls.begin(20, gone)
    last = calls.begin(1, present)
    await asyncio.sleep(0.1)
    assert calls.n_called == N_THREADS
    assert [ref() is None for ref in found] == [False] * 21
    gone.set()
    await asyncio.wait_for(asyncio.gather(*dropped), 5)
    assert calls.statuses == []
    gc.collect()
    assert [ref() is None for ref in found] == [True] * 20 + [False]
    calls.released.set()
    await asyncio.gather(*first, *last)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}  # no task waits for a client
    assert calls.n_called == N_THREADS + 1
    assert calls.statuses == [200] * (N_THREADS + 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_middleware_that_repeats_the_request(fails: bool) -> None:
    """It delivers the body again instead of a disconnect, or raises: the call is not dropped."""
    calls = Calls()

    async def repeating(scope: Any, receive: Any, send: Any) -> None:
        received: list[Any] = []

        async def again() -> Any:
            if fails and received:
                raise RuntimeError("the body has been read")
            received.append(received[0] if received else await receive())
            return received[0]

        await calls.app(scope, again, send)

    async def request() -> int:
        return (await exchange(repeating, **inference("m", message(SMALL)))).status

    tasks = [asyncio.create_task(request()) for _ in range(N_THREADS + 5)]
    await asyncio.sleep(0.1)
    calls.released.set()
    assert await asyncio.wait_for(asyncio.gather(*tasks), 10) == [200] * (N_THREADS + 5)


@pytest.mark.parametrize(("error", "status"), [(RuntimeError, 500), (RequestError, 400)])
@pytest.mark.parametrize("model", ["thread", "event loop", "async"])
def test_request_of_a_failing_model_is_released(
    model: str, error: type[Exception], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is released at once, and not by the garbage collector."""
    if model == "thread" and sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip(RELEASED_LATER)
    # pytest keeps what is logged, and with it the frame of the model.
    monkeypatch.setattr(logging.getLogger("tensorwire.server"), "disabled", True)
    found: list[Any] = []

    def fail(request: tw.InferRequest) -> Any:
        found.append(weakref.ref(request["x"]))
        raise error("no")

    async def fail_async(request: tw.InferRequest) -> Any:
        fail(request)

    function = fail_async if model == "async" else fail
    app = create_app({"m": Model(function, in_event_loop=model == "event loop")})
    with without_gc():
        reply = infer(app, "m", message(SMALL))
        assert (reply.status, [ref() for ref in found]) == (status, [None])


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason=RELEASED_LATER)
async def test_call_that_is_cancelled_when_it_has_just_failed_is_released() -> None:
    def fail(argument: object) -> None:
        raise ValueError

    with without_gc():
        argument = np.zeros(1)
        found, call = weakref.ref(argument), ClientCall()
        call.start(Threads(N_THREADS), fail, argument)
        tasks = [asyncio.create_task(call.result())]
        call._future.add_done_callback(lambda _: tasks[0].cancel())  # before the task continues
        del argument
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        tasks.clear()
        del call
        await asyncio.sleep(0)
        assert found() is None


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason=RELEASED_LATER)
async def test_request_that_is_cancelled_is_released() -> None:
    """Also if its body has arrived in several messages."""
    found: list[Any] = []

    async def wait(request: tw.InferRequest) -> Any:
        found.append(weakref.ref(request["x"]))
        await asyncio.Event().wait()

    frame = message(SMALL)
    sent = inference("m", frame, chunks=[bytes(frame)[:10], bytes(frame)[10:]])
    with without_gc():
        task = asyncio.create_task(exchange(create_app({"m": wait}), **sent))
        while not found:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        del task
        assert found[0]() is None


@pytest.mark.parametrize("text", [[], ["by a cancel scope of anyio"]])
async def test_request_that_the_server_cancels_gets_no_reply(text: list[str]) -> None:
    """Whether its model is waiting, runs in a thread, or waits for a thread."""
    calls = Calls()
    present = asyncio.Event()
    tasks = calls.begin(1, present, "never") + calls.begin(N_THREADS + 1, present)
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel(*text)
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task
    calls.released.set()
    assert calls.statuses == []


@pytest.mark.parametrize("is_compressing", [False, True])
async def test_request_that_middleware_cancels_is_counted_until_its_thread_has_ended(
    monkeypatch: pytest.MonkeyPatch, is_compressing: bool
) -> None:
    """Its body is still in memory, and its thread is not free."""
    started, released = threading.Event(), threading.Event()

    def wait_and(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started.set()
            assert released.wait(20)
            return function(*arguments)

        return call

    model = Model(echo, in_event_loop=True) if is_compressing else wait_and(echo)
    app = create_app({"m": model}, compress_responses=True)
    frame = message(LARGE, **BINARY)
    sent = inference("m", frame, headers={**frame.headers, "Accept-Encoding": "gzip"})
    if is_compressing:
        monkeypatch.setattr(
            "tensorwire.server.http_exchange.negotiated_reply", wait_and(negotiated_reply)
        )
    memory = app.body_memory
    for _ in range(2):  # the second one is not counted as a part of the first one
        started.clear()
        released.clear()
        task = asyncio.create_task(exchange(app, **sent, disconnected=asyncio.Event()))
        while not started.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert memory.nbytes >= LARGE.nbytes
        assert len(app.concurrency.requests) == 1
        released.set()
        async with asyncio.timeout(5):
            while memory.nbytes or app.concurrency.requests:
                await asyncio.sleep(0.01)


def inference_of(app: Any, frame: tw.Frame) -> Inference[RequestBody, tw.Frame]:
    headers = [(b"inference-header-content-length", b"%d" % (frame.header_length or 0))]
    body = RequestBody(headers, 1 << 30)
    body.buffer.write(bytes(frame))
    return Inference(app.http_format, app.infer_routes[b"/v2/models/m/infer"], body)


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize(
    ("is_async", "end"),
    [*((a, b) for a in (False, True) for b in ("cancelled", "closed")), (False, "closed before")],
)
def test_request_is_not_counted_after_its_event_loop(
    transport: str, is_async: bool, end: str
) -> None:
    """The application may be used in another one, for example in the next test of a program.

    The thread ends after the event loop was closed, or between its last turn and that.
    """
    started, released = threading.Event(), threading.Event()

    def in_thread(request: tw.InferRequest) -> tw.InferResponse:
        started.set()
        assert released.wait(20)
        return echo(request)

    async def in_loop(request: tw.InferRequest) -> Any:
        started.set()
        await asyncio.Event().wait()

    app = create_app({"m": in_loop if is_async else in_thread})

    async def begin() -> asyncio.Task[Any]:
        frame = message(LARGE, **BINARY)
        if transport == "http":
            request: Any = exchange(app, **inference("m", frame), disconnected=asyncio.Event())
        else:
            request = inference_of(app, frame).later(ClientCall())
        task = asyncio.create_task(request)
        while not started.is_set():
            await asyncio.sleep(0.01)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin())
    if end == "cancelled":
        task.cancel()
        loop.run_until_complete(asyncio.wait({task}))
    if end == "closed before":
        released.set()
        wait_for(lambda: not app.threads._n_running)
    loop.close()
    released.set()
    wait_for(lambda: not app.threads._n_running)
    del task
    gc.collect()  # of the coroutine, if it has not ended
    wait_for(lambda: not (app.body_memory.nbytes or app.concurrency.requests))


class HeldLock:
    """A lock for which waiting has no end."""

    def acquire(self, blocking: bool = True) -> bool:
        assert not blocking
        return False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    "state", ["in a thread", "before its thread", "awaits", "awaits in finally", "without memory"]
)
async def test_request_that_is_closed_waits_for_no_lock(
    state: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A garbage collection closes those of a closed event loop, perhaps in a thread with a lock."""
    released = threading.Event()
    called: list[str | None] = []

    def in_thread(request: tw.InferRequest) -> tw.InferResponse:
        called.append(request.id)
        assert released.wait(20)
        return echo(request)

    async def in_loop(request: tw.InferRequest) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            if state == "awaits in finally":
                await asyncio.sleep(0)

    function = in_loop if "awaits" in state else in_thread
    app = create_app({"m": function}, max_body_memory_nbytes=4 * LARGE.nbytes)
    app.threads._limit = 1
    statistics = app.infer_routes[b"/v2/models/m/infer"].statistics
    statistics._observe = lambda *_: pytest.fail("the metrics have locks")
    others = Reservation(app.body_memory)
    if state == "without memory":
        others.request(app.body_memory.max_nbytes + 1)
        others.complete()
    n_requests = 2 if state == "before its thread" else 1
    tasks = []
    for _ in range(n_requests):
        sent = inference("m", message(LARGE, **BINARY))
        tasks.append(asyncio.create_task(exchange(app, **sent, disconnected=asyncio.Event())))
        await asyncio.sleep(0.1)
    coroutine: Any = tasks[-1].get_coro()
    locks: list[Any] = [app.body_memory, statistics, sys.modules[Threads.__module__]]
    with monkeypatch.context() as patched:
        for each in locks:
            patched.setattr(each, "_lock", HeldLock())
        coroutine.close()
    assert not caplog.records
    others.release()
    released.set()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    wait_for(lambda: not (app.body_memory.nbytes or app.concurrency.requests))
    assert not app.body_memory._arriving
    assert len(called) == (state in ("in a thread", "before its thread"))


GARBAGE = """
import asyncio, gc, logging
import numpy as np
import tensorwire as tw
from support.asgi_requests import exchange, inference
from tensorwire.server import create_app

async def wait(request):
    await asyncio.Event().wait()

async def main():
    tasks = [asyncio.create_task(exchange(app, **inference(model, FRAME), disconnected=gone))
             for gone in [asyncio.Event()] for model in ("wait", "echo")]
    await tasks[1]

logging.disable(50)
app = create_app({"wait": wait, "echo": lambda request: tw.InferResponse(request.inputs)})
FRAME = tw.encode_request(tw.InferRequest({"x": np.ones(100_000, np.float32)}))
for threshold in range(1, 200):
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    loop.run_until_complete(main())
    loop.close()
    gc.set_threshold(threshold)
gc.collect()
print(app.body_memory.nbytes, app.concurrency.requests)
"""


def test_request_that_a_garbage_collection_ends() -> None:
    """Its event loop was closed. The thread may have a lock that the end of the request needs."""
    done = run_script(GARBAGE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 set()\n", "")


async def test_model_whose_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not called later either, and the next requests have as many threads as before."""
    n_called = 0
    together = threading.Barrier(N_THREADS)

    def model(request: tw.InferRequest) -> tw.InferResponse:
        nonlocal n_called
        n_called += 1
        together.wait(20)
        return tw.InferResponse(request.inputs)

    app = create_app({"m": model}, max_concurrency=N_THREADS)

    async def post() -> Exchange:
        return await exchange(app, **inference("m", message(SMALL)), disconnected=asyncio.Event())

    with monkeypatch.context() as patched:
        forbid_threads(patched)
        for _ in range(2 * N_THREADS):
            reply = await post()
            assert reply.status == 503
            assert reply.error == "the server is overloaded: no thread can be started"
    assert n_called == 0
    replies = await asyncio.gather(*[post() for _ in range(N_THREADS)])
    assert [reply.status for reply in replies] == [200] * N_THREADS
    assert n_called == N_THREADS


@pytest.mark.parametrize(
    ("frame", "headers"),
    [(message(LARGE, in_json=True), {}), (message(LARGE), {"Accept-Encoding": "gzip"})],
    ids=["decoding and encoding", "encoding and compression"],
)
async def test_work_whose_thread_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, frame: tw.Frame, headers: dict[str, str]
) -> None:
    """It is done in the event loop: the model may have run already. Nothing is compressed."""
    app = create_app({"m": in_event_loop}, compress_responses=True)
    with monkeypatch.context() as patched:
        forbid_threads(patched)
        assert (await exchange(app, "/v2/models/stats")).status == 200
        reply = await exchange(app, **inference("m", frame, headers=frame.headers | headers))
    assert reply.status == 200
    assert "content-encoding" not in reply.headers


@pytest.mark.parametrize(
    ("threads", "frame", "coding"),
    [
        (PACKAGE, None, None),
        (READING, message(LARGE, in_json=True), None),
        (DECOMPRESSING, message(SMALL), "Content-Encoding"),
        (WRITING, message(LARGE), None),
        (COMPRESSING, message(LARGE, **BINARY), "Accept-Encoding"),
    ],
    ids=["statistics", "reading", "decompressing", "writing", "compressing"],
)
async def test_work_for_a_client_that_has_left_is_dropped(
    monkeypatch: pytest.MonkeyPatch, threads: Threads, frame: Any, coding: str | None
) -> None:
    """It would delay the requests of other clients, and a shutdown."""
    app = create_app({"m": in_event_loop}, compress_responses=True)
    gone, reply = asyncio.Event(), Exchange()
    monkeypatch.setattr(threads, "_limit", 0)
    sent: Any = {"path": "/v2/models/stats"}
    if frame is not None:
        headers = frame.headers | ({coding: "gzip"} if coding else {})
        if coding == "Content-Encoding":
            sent = inference("m", chunks=[gzip.compress(bytes(frame))], headers=headers)
        else:
            sent = inference("m", frame, headers=headers)
    task = asyncio.create_task(exchange(app, **sent, disconnected=gone, reply=reply))
    async with asyncio.timeout(5):
        while not threads._waiting:
            await asyncio.sleep(0)
        gone.set()
        await task
    assert (reply.status, len(threads._waiting)) == (0, 0)


@pytest.mark.parametrize("kind", [lambda coroutine: coroutine, asyncio.ensure_future])
def test_max_concurrency_counts_awaitables_of_models_in_the_event_loop(kind: Any) -> None:
    released = asyncio.Event()
    n_running = 0

    async def wait(request: tw.InferRequest) -> Any:
        nonlocal n_running
        n_running += 1
        assert n_running <= 2
        await released.wait()
        n_running -= 1
        return {"y": 1}

    models = {
        "awaitable": Model(lambda request: kind(wait(request)), in_event_loop=True),
        "at once": Model(lambda _: {"y": 1}, in_event_loop=True),
    }
    calls = Calls()
    calls.app = create_app(models, max_concurrency=2)

    async def run() -> None:
        present = asyncio.Event()
        for _ in range(2):
            released.clear()
            accepted = calls.begin(2, present, "awaitable")
            await asyncio.sleep(0.05)
            await calls.request(present, "awaitable")
            await calls.request(present, "at once")
            released.set()
            await asyncio.gather(*accepted)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that was never awaited
        asyncio.run(run())
        gc.collect()
    assert calls.statuses == [503, 200, 200, 200] * 2


async def test_cancellation_in_the_tick_of_the_timeout_wins() -> None:
    """A server that cancels a request does not get a reply, even if the request is late too."""
    app = create_app({"m": in_event_loop}, receive_timeout=0.05)
    sent, reply = inference("m", chunks=[]), Exchange()
    task = asyncio.create_task(exchange(app, **sent, disconnected=asyncio.Event(), reply=reply))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.05, task.cancel)
    time.sleep(0.1)  # both timers are due when the event loop continues
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply == Exchange()


FAULTS = """
import asyncio, resource
import numpy as np
import tensorwire as tw
from support.asgi_requests import double, exchange, inference
from tensorwire.server import Model, create_app

async def run():
    app = create_app({"m": Model(double, in_event_loop=True)})
    frame = tw.encode_request(tw.InferRequest({"x": np.ones(250_000, np.float32)}))
    request = inference("m", frame)
    for i in range(50):
        if i == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        assert (await exchange(app, **request)).status == 200
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

asyncio.run(run())
"""


@pytest.mark.no_sanitizers(reason="they have an allocator of their own")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is a setting of glibc")
def test_requests_reuse_memory() -> None:
    """The memory of a request is not returned to the kernel before the next one."""
    done = run_script(FAULTS)
    assert done.returncode == 0, done.stderr
    # Tensors of 1 MB have 245 pages. The heap may grow a few times.
    assert int(done.stdout) < 40 * 100
