"""The threads of an application, and how many requests it works on at once."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from ..arguments import check_integer
from ..errors import format_count
from .body import ClientDisconnectedError
from .memory import OverloadedError

log = logging.getLogger("tensorwire.server")

DEFAULT_MAX_CONCURRENCY = 1000
"""Default limit of the requests that are in progress or wait for a thread."""

N_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Number of threads in which an application calls synchronous functions."""


class Workers:
    """Calls synchronous models in threads, and limits the number of requests in progress.

    It is the context of each request that is counted, and raises OverloadedError. Requests whose
    models are called in the event loop and return at once are not counted.
    """

    def __init__(self, max_concurrency: int) -> None:
        self.max_concurrency: int = check_integer("max_concurrency", max_concurrency, minimum=1)
        self._lock = threading.Lock()
        self._n_requests = 0
        self._n_calls = 0  # running or waiting for a thread
        self._executor: ThreadPoolExecutor | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._n_requests < self.max_concurrency:
                self._n_requests += 1
                return
        raise OverloadedError(
            "the server is overloaded: the limit is "
            f"{format_count('request', self.max_concurrency)} in progress",
            limit="max_concurrency",
        )

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_requests -= 1

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in a thread, with the context variables of the caller.

        A call that waits for a thread does not begin if its future is cancelled. Raises
        OverloadedError if no thread can be started.
        """
        future: Future[Any] = Future()
        # The executor keeps a cancelled call until a thread is free, but not its arguments.
        call = [future, copy_context(), function, *arguments]
        failure = ""
        with self._lock:
            if self._executor is None:  # not earlier: the process may be forked before
                self._executor = ThreadPoolExecutor(N_THREADS, "tensorwire")
            try:
                self._executor.submit(_run, call)
            except RuntimeError as error:
                # The executor has queued the call. It would count a thread that drops the call as
                # one more idle thread, and start too few threads later, so it is replaced. Its
                # threads end after the calls that it has accepted before.
                self._executor.shutdown(wait=False)
                self._executor = None
                failure = str(error)
                future.cancel()  # unless another thread has begun it
            self._n_calls += 1
        future.add_done_callback(lambda _: self._end_call(call))
        if failure and future.cancelled():
            log.error("no thread can be started for a model: %s", failure)
            message = "the server is overloaded: no thread can be started"
            raise OverloadedError(message, limit="threads")
        return future

    def _end_call(self, call: list[Any]) -> None:
        call.clear()
        with self._lock:
            self._n_calls -= 1

    @property
    def has_calls(self) -> bool:
        return self._n_calls > 0

    @property
    def is_busy(self) -> bool:
        return self._n_calls > N_THREADS


class ThreadCall:
    """The call of a synchronous model, which does not begin if the client is gone by then.

    ``wait_for_disconnect`` is an async function that returns when the client disconnects. A
    transport that calls ``disconnect`` or ``cancel`` itself does not need it.
    """

    is_cancelled: bool = False  # the client does not wait for the response
    _future: Future[Any] | None = None
    _workers: Workers | None = None
    _is_disconnected = False

    def __init__(self, wait_for_disconnect: Callable[[], Awaitable[object]] | None = None) -> None:
        self._wait_for_disconnect = wait_for_disconnect

    def cancel(self) -> None:
        """Cancel the call unless it runs: the client certainly does not wait for the response."""
        self.is_cancelled = True
        if self._future is not None:
            self._future.cancel()

    def disconnect(self) -> None:
        """Cancel the call if it waits for a thread.

        If no call waits for long, it is not cancelled: a client that has only closed its sending
        direction gets the response.
        """
        self._is_disconnected = True
        if self._future is not None and self._workers is not None and self._workers.is_busy:
            self._future.cancel()

    async def run(self, workers: Workers, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread. Raises ClientDisconnectedError if the call was cancelled."""
        future = self._future = workers.submit(function, *arguments)
        self._workers = workers
        watcher = None
        if self._is_disconnected:  # while the request was decoded
            self.disconnect()
        elif self._wait_for_disconnect is not None and workers.is_busy:
            watcher = asyncio.create_task(self._watch(self._wait_for_disconnect))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if (self._is_disconnected or self.is_cancelled) and future.cancelled():
                raise ClientDisconnectedError(
                    "the client closed the connection before its request was processed"
                ) from None
            raise
        finally:
            if watcher is not None:
                watcher.cancel()
            # The exception of the call refers to this frame, and the future to the exception. The
            # cycle would keep the request in memory until a garbage collection.
            self._future = None
            del future

    async def _watch(self, wait_for_disconnect: Callable[[], Awaitable[object]]) -> None:
        with suppress(Exception):  # of middleware; the call then runs in any case
            await wait_for_disconnect()
            self.disconnect()


def _run(call: list[Any]) -> None:
    try:
        future, context, *function = call
    except ValueError:  # it is empty: the call was cancelled
        return
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = context.run(*function)
    except BaseException as error:
        future.set_exception(error)
        del future  # the exception refers to this frame
    else:
        future.set_result(result)
