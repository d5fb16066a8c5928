"""What the application of `create_app` does in the event loop, and what in threads."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import platform
import sysconfig
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import Exchange, exchange, infer, inference, read
from support.lifetimes import without_gc
from support.scripts import run_script
from tensorwire.server import ClientDisconnectedError, Model, RequestError, create_app
from tensorwire.server import model as model_module
from tensorwire.server.body import RequestBody
from tensorwire.server.model import MAX_BODY_NBYTES, MAX_JSON_NBYTES
from tensorwire.server.workers import N_THREADS, ThreadCall, Workers

DECODE = "tensorwire.server.body.decode_request"
BINARY = {"binary_data_output": True}
LARGE = np.arange(MAX_JSON_NBYTES, dtype=np.int32)
SMALL = LARGE[:100]


def message(x: Any, *, in_json: bool = False, parameters: Any = None) -> tw.Frame:
    tensor = tw.Tensor("x", x, binary=not in_json)
    return tw.encode_request(tw.InferRequest([tensor], parameters=parameters))


def recorder(function: Callable[..., Any], threads: list[bool]) -> Callable[..., Any]:
    """Return a function that records whether it is called in the thread of the event loop."""

    def call(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return function(*args, **options)

    return call


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
        (message(SMALL, in_json=True, parameters=BINARY), False, False),
        (message(LARGE, in_json=True, parameters=BINARY), False, True),
        (message(LARGE, parameters=BINARY), False, False),
        (message(np.zeros(MAX_BODY_NBYTES, bool), parameters=BINARY), False, True),
        (message(SMALL, parameters=BINARY), True, True),
    ],
    ids=["small JSON", "large JSON", "binary", "large binary", "compressed"],
)
def test_where_a_request_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    frame: tw.Frame,
    is_compressed: bool,
    expected: bool,
) -> None:
    threads: list[bool] = []
    monkeypatch.setattr(DECODE, recorder(tw.decode_request, threads))
    assert post(model, frame, is_compressed=is_compressed).outputs[0].name == "y"
    assert threads == [expected]


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
        (message(LARGE, parameters=BINARY), False),
        (message(LARGE, parameters={"binary_data_output": False}), True),
    ],
    ids=["small JSON", "large JSON", "binary", "not binary"],
)
def test_where_a_response_is_encoded(
    monkeypatch: pytest.MonkeyPatch, model: str, frame: tw.Frame, expected: bool
) -> None:
    threads: list[bool] = []
    monkeypatch.setattr(tw, "encode_response", recorder(tw.encode_response, threads))
    response = post(model, frame)
    n = response["y"].shape[0]
    assert np.array_equal(response["y"].as_numpy(), LARGE[:n])
    # A synchronous model is called in a thread, which also encodes. Large lists are converted.
    is_large_list = model == "list" and n == len(LARGE)
    assert threads == [expected or model == "thread" or is_large_list]


@pytest.mark.parametrize(("nbytes", "expected"), [(100, False), (MAX_BODY_NBYTES, True)])
def test_where_inputs_are_copied(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, expected: bool
) -> None:
    threads: list[bool] = []
    monkeypatch.setattr(model_module, "as_writable", recorder(model_module.as_writable, threads))
    app = create_app({"m": Model(in_event_loop, writable_inputs=True)})
    assert infer(app, "m", message(np.zeros(nbytes, np.uint8), parameters=BINARY)).status == 200
    assert threads == [expected]


class Foreign:
    """An array of another package, whose dtype is not numpy's."""

    dtype = "foreign.int32"

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("is_async", [True, False])
def test_model_that_returns_arrays_of_another_package(is_async: bool) -> None:
    async def function(request: tw.InferRequest) -> dict[str, Any]:
        return {"y": Foreign(request["x"].as_numpy().copy())}

    def synchronous(request: tw.InferRequest) -> dict[str, Any]:
        return {"y": Foreign(request["x"].as_numpy().copy())}

    app = create_app({"m": function if is_async else Model(synchronous, in_event_loop=True)})
    frame = message(LARGE, parameters=BINARY)
    found = infer(app, "m", frame).response()
    assert np.array_equal(found["y"].as_numpy(), LARGE)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([[1.5] * 1000] * 50, True),
        ([[1.5] * 10] * 5, False),
        ([b"a" * 70_000], True),
        (["a" * 70_000], True),
        ("a" * 70_000, True),
        (["a"] * 100, False),
        (np.array([b"a" * 70_000], object), True),
        (np.array(["a", "b"], object), False),
        (np.array(["a" * 70_000], np.dtypes.StringDType()), True),
        (["a"] * 2000, True),
        (Foreign(np.zeros(3)), True),  # its size is not known
    ],
    ids=lambda value: type(value).__name__,
)
def test_where_lists_and_texts_are_converted(
    monkeypatch: pytest.MonkeyPatch, value: Any, expected: bool
) -> None:
    async def function(request: tw.InferRequest) -> dict[str, Any]:
        return {"y": value}

    threads: list[bool] = []
    monkeypatch.setattr(tw, "encode_response", recorder(tw.encode_response, threads))
    infer(create_app({"m": function}), "m", message(SMALL, parameters=BINARY)).response()
    assert threads == [expected]


@pytest.mark.parametrize("binary", [True, False, None])
def test_where_requested_outputs_are_encoded(
    monkeypatch: pytest.MonkeyPatch, binary: bool | None
) -> None:
    threads: list[bool] = []
    monkeypatch.setattr(tw, "encode_response", recorder(tw.encode_response, threads))
    request = tw.InferRequest([tw.Tensor("x", LARGE)], [tw.RequestedOutput("y", binary=binary)])
    post("async", tw.encode_request(request))
    assert threads == [binary is not True]


@pytest.mark.parametrize(
    "values",
    [{"y": LARGE, "z": LARGE.tolist()}, {"z": LARGE.tolist(), "y": LARGE}],
    ids=["array first", "list first"],
)
def test_where_lists_beside_arrays_are_encoded(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    """Converting the list takes long, although the request asks for binary data."""
    threads: list[bool] = []
    monkeypatch.setattr(tw, "encode_response", recorder(tw.encode_response, threads))
    app = create_app({"m": Model(lambda _: values, in_event_loop=True)})
    response = infer(app, "m", message(SMALL, parameters=BINARY)).response()
    assert response["z"].as_numpy().tolist() == LARGE.tolist()
    assert threads == [True]


@pytest.mark.parametrize("is_compressed", [False, True])
def test_where_read_request_decodes(monkeypatch: pytest.MonkeyPatch, is_compressed: bool) -> None:
    threads: list[bool] = []
    monkeypatch.setattr(DECODE, recorder(tw.decode_request, threads))
    frame = message(SMALL)
    body, headers = bytes(frame), {tw.http.HEADER_LENGTH: str(frame.header_length)}
    if is_compressed:
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    assert np.array_equal(read(headers, [body])["x"].as_numpy(), SMALL)
    assert threads == [is_compressed]


class Calls:
    """Requests to a model that waits, of clients that may disconnect."""

    def __init__(self, **options: Any) -> None:
        self.n_called = 0
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.app = create_app({"m": self.model, "other": in_event_loop}, **options)
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


def test_call_that_waits_for_a_thread_is_dropped_when_its_client_disconnects() -> None:
    calls = Calls()

    async def run() -> None:
        present, gone = asyncio.Event(), asyncio.Event()
        first = [asyncio.create_task(calls.request(present)) for _ in range(N_THREADS)]
        await asyncio.sleep(0.1)
        dropped = [asyncio.create_task(calls.request(gone)) for _ in range(20)]
        last = asyncio.create_task(calls.request(present))
        await asyncio.sleep(0.1)
        assert calls.n_called == N_THREADS
        gone.set()
        await asyncio.wait_for(asyncio.gather(*dropped), 5)
        assert calls.statuses == []
        calls.released.set()
        await asyncio.gather(*first, last)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}  # no task waits for a client

    asyncio.run(run())
    assert calls.n_called == N_THREADS + 1
    assert calls.statuses == [200] * (N_THREADS + 1)


@pytest.mark.parametrize("fails", [False, True])
def test_middleware_that_repeats_the_request(fails: bool) -> None:
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

    async def run() -> None:
        tasks = [asyncio.create_task(request()) for _ in range(N_THREADS + 5)]
        await asyncio.sleep(0.1)
        calls.released.set()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 10) == [200] * (N_THREADS + 5)

    asyncio.run(run())


def test_request_of_a_dropped_call_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is released at once, and not when a thread is free."""
    calls = Calls()
    found: list[Any] = []
    decode = tw.decode_request

    def record(*arguments: Any, **options: Any) -> Any:
        request = decode(*arguments, **options)
        found.append(weakref.ref(request["x"]))
        return request

    async def run() -> None:
        present, gone = asyncio.Event(), asyncio.Event()
        first = [asyncio.create_task(calls.request(present)) for _ in range(N_THREADS)]
        await asyncio.sleep(0.1)
        monkeypatch.setattr(DECODE, record)
        dropped = asyncio.create_task(calls.request(gone))
        await asyncio.sleep(0.1)
        assert [ref() is None for ref in found] == [False]
        gone.set()
        await asyncio.wait_for(dropped, 5)
        del dropped
        gc.collect()
        assert [ref() is None for ref in found] == [True]
        calls.released.set()
        await asyncio.gather(*first)

    asyncio.run(run())


@pytest.mark.parametrize(("error", "status"), [(RuntimeError, 500), (RequestError, 400)])
@pytest.mark.parametrize("model", ["thread", "event loop", "async"])
def test_request_of_a_failing_model_is_released(
    model: str, error: type[Exception], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is released at once, and not by the garbage collector."""
    if model == "thread" and sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("a thread releases its objects when it runs again")
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


@pytest.mark.parametrize("is_busy", [False, True])
def test_call_of_a_client_that_disconnected_while_its_request_was_decoded(is_busy: bool) -> None:
    """The call is only dropped if it would wait for a thread."""
    called: list[int] = []

    async def run() -> None:
        workers, waiting = Workers(1), threading.Event()
        tasks = [
            asyncio.create_task(ThreadCall().run(workers, waiting.wait, 20))
            for _ in range(N_THREADS if is_busy else 0)
        ]
        await asyncio.sleep(0.05)
        call = ThreadCall()
        call.disconnect()
        if is_busy:
            with pytest.raises(ClientDisconnectedError):
                await call.run(workers, called.append, 1)
        else:
            await call.run(workers, called.append, 1)
        waiting.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert called == ([] if is_busy else [1])


def test_threads_are_not_busy_after_calls() -> None:
    async def run() -> None:
        workers = Workers(1)
        for _ in range(2):
            waiting = threading.Event()
            tasks = [
                asyncio.create_task(ThreadCall().run(workers, waiting.wait, 20))
                for _ in range(N_THREADS + 1)
            ]
            await asyncio.sleep(0.05)
            assert workers.is_busy
            waiting.set()
            await asyncio.gather(*tasks)
            assert not workers.is_busy

    asyncio.run(run())


def test_request_that_the_server_cancels_gets_no_reply() -> None:
    """Whether its model is waiting, runs in a thread, or waits for a thread."""
    calls = Calls()
    calls.app = create_app({"m": calls.model, "never": never})

    async def run() -> None:
        present = asyncio.Event()
        tasks = [asyncio.create_task(calls.request(present, "never"))]
        tasks += [asyncio.create_task(calls.request(present)) for _ in range(N_THREADS + 1)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        calls.released.set()

    asyncio.run(run())
    assert calls.statuses == []


async def never(request: tw.InferRequest) -> Any:
    await asyncio.Event().wait()


def test_coroutine_of_a_request_can_be_closed() -> None:
    """As the interpreter does if the event loop ends first."""

    class Suspend:
        def __await__(self) -> Any:
            yield

    async def wait(request: tw.InferRequest) -> Any:
        await Suspend()

    app = create_app({"m": wait})
    frame = message(SMALL)
    headers = [(b"inference-header-content-length", b"%d" % (frame.header_length or 0))]
    body = RequestBody(headers, None)
    body.buffer.write(bytes(frame))
    model = app.infer_targets[b"/v2/models/m/infer"]
    coroutine: Any = model.infer(body, ThreadCall())
    coroutine.send(None)
    coroutine.close()


def test_requests_beyond_max_concurrency_are_rejected() -> None:
    calls = Calls(max_concurrency=3)

    async def run() -> None:
        present = asyncio.Event()
        accepted = [asyncio.create_task(calls.request(present)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await calls.request(present)
        await calls.request(present, "other")
        assert calls.statuses == [503, 503]
        calls.released.set()
        await asyncio.gather(*accepted)
        await calls.request(present)

    asyncio.run(run())
    assert calls.statuses == [503, 503, 200, 200, 200, 200]


def fail_to_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_model_whose_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
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

    async def run() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail_to_start)
            for _ in range(2 * N_THREADS):
                reply = await post()
                assert reply.status == 503
                assert reply.error == "the server is overloaded: no thread can be started"
        assert n_called == 0
        replies = await asyncio.gather(*[post() for _ in range(N_THREADS)])
        assert [reply.status for reply in replies] == [200] * N_THREADS
        assert n_called == N_THREADS

    asyncio.run(run())


def test_call_that_another_thread_begins_while_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The executor does not know yet that this thread is idle."""
    called = threading.Event()

    def fail(thread: threading.Thread) -> None:
        assert called.wait(20)
        fail_to_start(thread)

    async def run() -> None:
        workers = Workers(1)
        assert await ThreadCall().run(workers, lambda: "first") == "first"
        monkeypatch.setattr(threading.Thread, "start", fail)
        monkeypatch.setattr(threading.Semaphore, "acquire", lambda *_, **__: False)
        assert await ThreadCall().run(workers, called.set) is None
        assert called.is_set()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("frame", "headers"),
    [(message(LARGE, in_json=True), {}), (message(LARGE), {"Accept-Encoding": "gzip"})],
    ids=["decoding and encoding", "encoding and compression"],
)
def test_work_whose_thread_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, frame: tw.Frame, headers: dict[str, str]
) -> None:
    """It is done in the event loop: the model may have run already."""
    app = create_app({"m": in_event_loop}, compress_responses=True)

    async def run() -> Exchange:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail_to_start)
            assert (await exchange(app, "/v2/models/stats")).status == 200
            return await exchange(app, **inference("m", frame, headers=frame.headers | headers))

    reply = asyncio.run(run())
    assert reply.status == 200
    assert reply.headers.get("content-encoding") == headers.get("Accept-Encoding")


LIMITED_THREADS = """
import asyncio, os, resource
import numpy as np
import tensorwire as tw
from support.asgi_requests import exchange, inference
from tensorwire.server import create_app

called = []

def model(request):
    called.append(request.id)
    return {"y": 1}

async def run():
    app = create_app({"m": model})
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    for limit in (0, hard):
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
        frame = tw.encode_request(tw.InferRequest({"x": np.ones(3)}, id=str(limit)))
        print((await exchange(app, **inference("m", frame))).status)
    print(called == [str(hard)])

if os.geteuid() == 0:
    os.setuid(54321)  # the limit does not apply to root
asyncio.run(run())
"""


def test_limit_of_threads() -> None:
    done = run_script(LIMITED_THREADS)
    assert done.stdout.split() == ["503", "200", "True"], done.stderr


def test_max_concurrency_counts_awaitables_of_models_in_the_event_loop() -> None:
    released = asyncio.Event()

    async def wait(request: tw.InferRequest) -> Any:
        await released.wait()
        return {"y": 1}

    models = {
        "awaitable": Model(lambda request: wait(request), in_event_loop=True),  # noqa: PLW0108
        "at once": Model(lambda _: {"y": 1}, in_event_loop=True),
    }
    calls = Calls()
    calls.app = create_app(models, max_concurrency=2)

    async def run() -> None:
        present = asyncio.Event()
        for _ in range(2):
            released.clear()
            accepted = [asyncio.create_task(calls.request(present, "awaitable")) for _ in range(2)]
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


def test_cancellation_in_the_tick_of_the_timeout_wins() -> None:
    """A server that cancels a request does not get a reply, even if the request is late too."""
    calls = Calls(receive_timeout=0.05)

    sent, reply = inference("m", chunks=[]), Exchange()

    async def run() -> None:
        never_set = asyncio.Event()
        call = exchange(calls.app, **sent, disconnected=never_set, reply=reply)
        task = asyncio.create_task(call)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        loop.call_later(0.05, task.cancel)
        threading.Event().wait(0.1)  # both timers are due when the event loop continues
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is a setting of glibc")
def test_requests_reuse_memory() -> None:
    """The memory of a request is not returned to the kernel before the next one."""
    done = run_script(FAULTS)
    assert done.returncode == 0, done.stderr
    # Tensors of 1 MB have 245 pages. The heap may grow a few times.
    assert int(done.stdout) < 40 * 100
