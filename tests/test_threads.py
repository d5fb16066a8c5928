"""The threads of the package: for models, and for its own work."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import random
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from support.lifetimes import without_gc
from support.scripts import run_script
from support.threads import wait_for
from tensorwire import threads
from tensorwire.server import ClientDisconnectedError, client_calls
from tensorwire.server.client_calls import ClientCall
from tensorwire.threads import N_THREADS, Threads, in_thread, in_turn

STARTERS: list[Any] = [in_thread, lambda *call: ClientCall().run(Threads(N_THREADS), *call)]


@contextmanager
def without_idle_threads() -> Iterator[None]:
    """Hide the idle threads from the next calls. The exit of the interpreter needs them again."""
    hidden = threads._idle.copy()
    threads._idle.clear()
    yield
    threads._idle.extend(hidden)


@pytest.mark.parametrize("start", STARTERS, ids=["work", "model"])
async def test_function_is_called_once_if_no_thread_can_be_started(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread begins the call while the start of a thread fails."""
    called = threading.Event()
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        called.set()

    def fail(_: threading.Thread) -> None:
        called.wait(0.2)
        raise RuntimeError("can't start new thread")

    await start(time.sleep, 0)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with without_idle_threads():
        results = await asyncio.gather(start(call), return_exceptions=True)
    assert len(calls) == (start is in_thread)
    assert isinstance(results[0], Exception) == (start is not in_thread)


def test_calls_of_several_event_loops_with_cancellations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call ends, none runs twice, and no thread remains, although few can be started."""
    start_thread, pool = threading.Thread.start, Threads(N_THREADS)
    begun: Counter[int] = Counter()

    def start(thread: threading.Thread) -> None:
        if isinstance(thread, threads._Thread) and random.random() < 0.3:
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    async def run(offset: int) -> None:
        calls = [
            in_thread(begun.update, [offset + i])
            if i % 3 == 0
            else ClientCall().run(pool, begun.update, [offset + i])
            for i in range(500)
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        for task in random.sample(tasks, 100):
            asyncio.get_running_loop().call_later(random.random() / 100, task.cancel)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)

    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.001)
    monkeypatch.setattr(threading.Thread, "start", start)
    loops = [threading.Thread(target=lambda n=n: asyncio.run(run(n * 1000))) for n in range(3)]
    before = set(threads._threads)
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert set(begun.values()) == {1}
    wait_for(lambda: threads._threads <= before)
    assert not pool._n_running


async def test_context_and_exceptions() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)

    def fail(error: BaseException) -> None:
        variable.set(2)
        raise error

    for start in STARTERS:
        assert await start(variable.get) == 1
        for error in (ValueError(), asyncio.CancelledError(), StopIteration()):
            expected = RuntimeError if isinstance(error, StopIteration) else type(error)
            with pytest.raises(expected):
                await start(fail, error)
    assert variable.get() == 1


async def test_call_is_dropped_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not kept until a thread is free, whether its client or its task is cancelled."""
    monkeypatch.setattr(client_calls, "GONE_SECONDS", 0)

    class Argument:
        pass

    pool, released = Threads(N_THREADS), threading.Event()
    alone = ClientCall()
    alone.disconnect()  # while its request was decoded: it does not wait, and its client may
    assert await alone.run(pool, int, 1) == 1
    running = [
        asyncio.create_task(ClientCall().run(pool, released.wait, 20)) for _ in range(N_THREADS)
    ]
    await asyncio.sleep(0)
    with without_gc():
        for how in ("task is cancelled", "cancel", "disconnect", "disconnect before"):
            argument, call = Argument(), ClientCall()
            found = weakref.ref(argument)
            if how == "disconnect before":
                call.disconnect()
            task = asyncio.create_task(call.run(pool, id, argument))
            del argument
            await asyncio.sleep(0)
            if how == "task is cancelled":
                task.cancel()
            elif how in ("cancel", "disconnect"):
                getattr(call, how)()
            expected = asyncio.CancelledError if task.cancelling() else ClientDisconnectedError
            with suppress(expected):
                assert await task == "dropped"
            del task
            await asyncio.sleep(0)  # this task refers to the exception until it waits
            assert (found(), len(pool._waiting)) == (None, 0), how
    released.set()
    await asyncio.gather(*running)


async def test_client_that_disconnects_while_an_earlier_call_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next call of its request has the whole time for itself."""
    pool, call, released = Threads(1), ClientCall(), threading.Event()

    async def start_behind_another(number: int) -> Any:
        other = asyncio.create_task(ClientCall().run(pool, released.wait, 20))
        await asyncio.sleep(0)
        this = asyncio.create_task(call.run(pool, int, number))
        await asyncio.sleep(0)
        return asyncio.gather(other, this)

    monkeypatch.setattr(client_calls, "GONE_SECONDS", 0.05)
    first = await start_behind_another(1)
    call.disconnect()
    released.set()
    await first
    released.clear()
    monkeypatch.setattr(client_calls, "GONE_SECONDS", 60)
    second = await start_behind_another(2)
    await asyncio.sleep(0.1)
    released.set()
    assert (await second)[1] == 2


@pytest.mark.thread_unsafe(reason="it counts the threads of the package")
def test_event_loop_that_is_closed_before_the_answer() -> None:
    """The thread is free for the next call."""
    released, pool = threading.Event(), Threads(N_THREADS)

    async def abandon() -> None:
        task = asyncio.create_task(ClientCall().run(pool, released.wait, 20))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(abandon())
    assert pool._n_running
    n_threads = len(threads._threads)
    released.set()
    wait_for(lambda: not pool._n_running)
    assert len(threads._threads) == n_threads


SCRIPT = """
import asyncio, os, threading, time
from tensorwire import threads
from tensorwire.server.client_calls import ClientCall

pool = threads.Threads(threads.N_THREADS)
call = lambda function, *arguments: ClientCall().run(pool, function, *arguments)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_process_that_is_forked_begins_without_threads() -> None:
    done = run_script(
        SCRIPT
        + """
async def main():
    reading = threads.in_thread(int, 1, threads=threads.READING)
    assert await call(int, 1) == await asyncio.wait_for(reading, 10) == 1

async def fork():
    running = asyncio.create_task(call(time.sleep, 0.2))
    await main()
    with threads._lock:  # another thread may have it
        child = os.fork()
    return child

child = asyncio.run(fork())
if child == 0:
    assert not pool._n_running and not threads._threads
    asyncio.run(main())
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert done.stdout == "7\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_model_that_forks() -> None:
    """When it returns in the new process, its thread ends, which is the only one."""
    done = run_script(
        SCRIPT
        + """
child = asyncio.run(call(os.fork))
threading.Timer(10, os.kill, (child, 9)).start()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    )
    assert done.stdout == "0\n", done.stderr


def test_event_loop_that_runs_while_the_interpreter_exits() -> None:
    """Its calls fail, and are not waited for."""
    done = run_script(
        SCRIPT
        + """
async def main():
    await asyncio.gather(*[repeat() for _ in range(2 * pool._limit)])

async def repeat():
    while True:
        await call(time.sleep, 0.01)
        begun.set()

begun = threading.Event()
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
begun.wait()
"""
    )
    assert done.returncode == 0, done.stderr


async def test_one_thread_reads_a_message_at_a_time() -> None:
    """What waits holds no thread, and is not read if its caller is cancelled."""
    reading: list[int] = []
    n_read = 0

    def read() -> int:
        nonlocal n_read
        n_read += 1
        reading.append(1)
        time.sleep(0.002)  # other threads run
        n_readers = len(reading)
        reading.pop()
        return n_readers

    calls = [asyncio.create_task(in_thread(read, threads=threads.READING)) for _ in range(6)]
    await asyncio.sleep(0)
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert (threads.READING._n_running == 1) is has_gil
    calls.pop().cancel()
    assert (max(await asyncio.gather(*calls)) == 1) is has_gil
    assert n_read == 5 or not has_gil


async def test_one_call_in_a_turn_of_the_event_loop() -> None:
    """Also after calls that failed, or were cancelled while they waited."""
    n_turns, found = 0, []

    async def count() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    failing = asyncio.create_task(in_turn(int, "x"))
    calls = [asyncio.create_task(in_turn(lambda: found.append(n_turns))) for _ in range(10)]
    await asyncio.sleep(0)
    calls[2].cancel()
    await asyncio.wait([failing, *calls], timeout=10)
    counting.cancel()
    assert isinstance(failing.exception(), ValueError)
    assert len(found) == len(set(found)) == 9


def test_turns_keep_no_event_loop() -> None:
    async def wait_for_turns() -> weakref.ref[asyncio.AbstractEventLoop]:
        await asyncio.gather(*[in_turn(int) for _ in range(3)])
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(wait_for_turns())
    gc.collect()
    assert loop() is None


def test_exit_of_the_interpreter() -> None:
    """It waits for calls in progress, and not for idle threads; later calls are not started."""
    done = run_script(
        SCRIPT
        + """
import atexit

async def late():
    print(await threads.in_thread(threading.current_thread) is threading.main_thread())

async def main():
    await asyncio.gather(*[call(int, 1) for _ in range(4)])
    task = asyncio.create_task(call(lambda: (time.sleep(0.1), print("done"))))
    await asyncio.sleep(0)
    task.cancel()

atexit._clear()
atexit.register(lambda: asyncio.run(late()))
atexit.register(threads._wait_for_calls)
asyncio.run(main())
"""
    )
    assert (done.returncode, done.stdout) == (0, "done\nTrue\n"), done.stderr
