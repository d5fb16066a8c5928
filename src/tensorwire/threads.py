"""Threads for what would block an event loop: models, and work of this package."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

from .sizes import MAX_QUICK_JSON_NBYTES, MAX_SHARED_JSON_NBYTES

Result = TypeVar("Result")
InThread = Callable[..., Awaitable[Any]]
"""``in_thread``, or another function with its parameters."""

IDLE_SECONDS = 60
"""A thread that gets no call for this time ends."""

N_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Number of threads for the models of an application, and for each kind of work of this package."""


class Threads:
    """Starts calls in threads, ``limit`` at once. Further calls wait, in their order.

    All objects share the threads. A lock guards all that threads share: nothing relies on the GIL.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._forget()
        _users.add(self)

    def _forget(self) -> None:
        """Begin without calls, as a process does that was forked."""
        self._n_running = 0
        self._waiting: OrderedDict[ThreadCall, None] = OrderedDict()

    def start(self, call: ThreadCall) -> bool:
        """Return whether a call waits for a thread. Raises RuntimeError if none can be started."""
        with _lock:
            if _is_exiting:  # threads end when no call waits
                raise RuntimeError("the interpreter exits")
            if self._n_running >= self._limit:
                self._waiting[call] = None
                return True
            # The lock is held until the thread has started: if that fails, nothing has been
            # queued, neither this call nor one that would wait for its end.
            thread = _idle.pop() if _idle else _start_thread()
            self._n_running += 1
            thread.call = call
            thread.wakeup.release()
            return False

    def drop(self, call: ThreadCall) -> bool:
        """Forget a call that waits. Return False if it does not: it has begun, or was dropped."""
        with _lock:
            return self._waiting.pop(call, call) is None  # the values are None

    def end(self, thread: _Thread) -> ThreadCall | None:
        """Return the next call for a thread, which is idle if there is none. It needs the lock."""
        if self._waiting:
            return self._waiting.popitem(last=False)[0]
        self._n_running -= 1
        if _is_exiting:
            thread.wakeup.release()  # without a call: it ends
        else:
            _idle.append(thread)
        return None


class ThreadCall:
    """A call of a function in a thread, which an event loop waits for.

    A garbage collection may close coroutines that wait for calls: those of an event loop that was
    closed. It may run at any time, also in a thread that has a lock, or for which another one
    waits. So ``result``, when it is closed, and ``when_ended`` take no lock.
    """

    _threads: Threads
    _future: asyncio.Future[None]
    is_in_progress: bool = False
    """From its start until it has ended or was dropped, also if its task was cancelled."""
    _endings: deque[Callable[[], object]]
    """What is called when it has ended."""
    _job: tuple[Context, Callable[..., Any], tuple[Any, ...]] | None = None
    """What is called; None as soon as a thread has begun, or nothing waits for the call."""
    _result: Any = None
    _error: BaseException | None = None

    def start(self, threads: Threads, function: Callable[..., Any], *arguments: Any) -> bool:
        """Start the call. Return whether it waits for a thread.

        Raises RuntimeError if no thread can be started. The function is then not called.
        """
        self._threads = threads
        self._future = asyncio.get_running_loop().create_future()
        self._endings = deque()
        self._job = copy_context(), function, arguments
        self.is_in_progress = True
        try:
            return threads.start(self)
        except BaseException:
            self._job, self.is_in_progress = None, False
            raise

    async def result(self) -> Any:
        """Wait for the result. A call that waits for a thread is dropped on cancellation."""
        try:
            await self._future
        except GeneratorExit:  # a thread then calls nothing
            self._job = None
            raise
        except BaseException:
            self.drop()
            self._result = self._error = None  # if it was cancelled just when it had ended
            raise
        # Nothing here refers to the result or the exception any longer. The exception refers to
        # this frame: a cycle would keep the request in memory until a garbage collection.
        result, self._result = self._result, None
        error, self._error = self._error, None
        if error is None:
            return result
        try:
            raise error
        finally:
            del error

    def drop(self, error: BaseException | None = None) -> None:
        """Drop the call, with its arguments, if it waits for a thread, and raise ``error``."""
        if self._job is not None and self._threads.drop(self):
            self._job, self.is_in_progress = None, False
            self._error = error
            self._settle()

    def when_ended(self, function: Callable[[], object]) -> None:
        """Call a function when the call has ended, in its thread; or now if it has ended.

        This is for a call whose task was cancelled: its event loop may end before it.
        """
        self._endings.append(function)
        if not self.is_in_progress:
            self._call_endings()

    def _call_endings(self) -> None:
        while self._endings:
            # The thread and the event loop may do this at once: only one gets each function.
            with suppress(IndexError, RuntimeError, MemoryError):
                self._endings.popleft()()

    def do(self, thread: _Thread) -> ThreadCall | None:
        """Do the call in a thread, and return the next one for this thread."""
        self._call()
        self.is_in_progress = False
        with _lock:
            if thread not in _threads:  # the function has forked this process, and returned
                return None
            following = self._threads.end(thread)
        self._call_endings()
        # The event loop does not get the result or the exception as an argument: this thread
        # would release them only when it runs again.
        try:
            with suppress(MemoryError):  # it may have been scheduled
                self._future.get_loop().call_soon_threadsafe(self._settle)
        except RuntimeError:  # the event loop is closed
            self._result = self._error = None
        return following

    def _call(self) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        context, function, arguments = job
        try:
            self._result = context.run(function, *arguments)
        except BaseException as error:  # including SystemExit and the panics of Rust extensions
            self._error = error
            del self  # the exception refers to this frame

    def _settle(self) -> None:
        if self._future.done():  # nothing waits any longer
            self._result = self._error = None
        else:
            self._future.set_result(None)


class _Thread(threading.Thread):
    """A thread that waits at a lock of its own for its next call."""

    def __init__(self) -> None:
        # A daemon, because the interpreter would wait for it before `_wait_for_calls` runs.
        super().__init__(name="tensorwire", daemon=True)
        self.wakeup: threading.Lock = threading.Lock()
        self.wakeup.acquire()
        self.call: ThreadCall | None = None

    def run(self) -> None:
        while True:
            if not self.wakeup.acquire(timeout=IDLE_SECONDS):
                with _lock:
                    if self in _idle:
                        _idle.remove(self)
                        _threads.discard(self)
                        return
                self.wakeup.acquire()  # it has just been given a call
            call, self.call = self.call, None
            if call is None:
                return
            while call is not None:
                call = call.do(self)
            if self not in _threads:  # the call has forked this process
                return


_lock = threading.Lock()
_idle: list[_Thread] = []  # the last one is used first
_threads: set[_Thread] = set()
# A lock refers to its event loop. What waits for the lock, or will release it, refers to the lock.
_turns: WeakValueDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakValueDictionary()
_users: WeakSet[Threads] = WeakSet()
_is_exiting = False


def _start_thread() -> _Thread:
    thread = _Thread()
    thread.start()
    _threads.add(thread)
    return thread


def _forget_threads() -> None:
    """Begin without threads in a new process: `fork` copies only the thread that calls it."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _idle.clear()
    _threads.clear()
    for each in _users:
        each._forget()


@atexit.register
def _wait_for_calls() -> None:
    """Let idle threads end, and wait for the others, as for threads that are not daemons."""
    global _is_exiting  # noqa: PLW0603
    with _lock:
        _is_exiting = True
        threads = list(_threads)
        for each in _idle:
            each.wakeup.release()
        _idle.clear()
    for each in threads:
        each.join()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_threads)
_has_gil: bool = getattr(sys, "_is_gil_enabled", lambda: True)()  # from Python 3.13 on
PACKAGE = Threads(N_THREADS)  # statistics, metrics, and lookups of a client
# A function that reads a message holds the GIL for most of the time. Whenever an event loop needs
# the GIL, it would wait for all threads that do.
READING = Threads(1 if _has_gil else N_THREADS)
# A small compressed message may take as long as one of any size: others do not wait for it.
DECOMPRESSING = Threads(N_THREADS)
READING_DECOMPRESSED = Threads(1 if _has_gil else N_THREADS)
# Large responses may fill their threads for long: metrics and statistics do not wait for them.
WRITING = Threads(N_THREADS)
COMPRESSING = Threads(N_THREADS)


async def in_thread(
    function: Callable[..., Result], *arguments: Any, threads: Threads = PACKAGE
) -> Result:
    """Call a function of this package in a thread.

    It does not wait for models, or for the default threads of the event loop: a program may have
    filled them with calls that wait for this one. If no thread can be started, the function is
    called in the event loop. It would be too late for an error: the model may have run already.
    """
    call = ThreadCall()
    is_started = False
    with suppress(RuntimeError):
        call.start(threads, function, *arguments)
        is_started = True
    if not is_started:
        return function(*arguments)
    result: Result = await call.result()
    return result


async def in_turn(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in the event loop, and no other one in the same turn of the loop.

    Otherwise a client with many connections could let it call many of them in one turn.
    """
    loop = asyncio.get_running_loop()
    turn = _turns.setdefault(loop, asyncio.Lock())
    await turn.acquire()
    loop.call_soon(turn.release)
    return function(*arguments)


async def read_without_blocking(
    nbytes: int,
    function: Callable[..., Result],
    *arguments: Any,
    threads: Threads = READING,
    run: InThread = in_thread,
) -> Result:
    """Call a function that reads a message: at once, in a turn of the event loop, or in a thread.

    ``nbytes`` is the number of bytes that take time to read, or a larger one. ``run`` is
    ``in_thread``, or a method that drops the call if the client does not wait any longer.
    """
    if nbytes <= MAX_SHARED_JSON_NBYTES:
        return function(*arguments)
    if nbytes <= MAX_QUICK_JSON_NBYTES:
        return await in_turn(function, *arguments)
    result: Result = await run(function, *arguments, threads=threads)
    return result
