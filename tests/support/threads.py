"""A thread that runs besides the code of a test, and waiting for what other threads do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tensorwire import threads


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a condition is true. Raises AssertionError if it is still false at the end."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@contextmanager
def in_thread(function: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Call a function in another thread, and wait for its end after the ``with`` block."""
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[None]:
    """Repeat a function in another thread."""
    is_done = threading.Event()

    def run() -> None:
        while not is_done.is_set():
            work()

    with in_thread(run):
        try:
            yield
        finally:
            is_done.set()


class Places:
    """Notes whether functions are called in the thread of an event loop, or in another one.

    The other thread continues when the event loop has run a callback: it is not blocked.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.loop: Any = None
        self.noted: list[str] = []

    def note(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            is_loop = asyncio._get_running_loop() is self.loop
            self.noted.append(f"{name} in {'the loop' if is_loop else 'a thread'}")
            if not is_loop:
                has_run = threading.Event()
                self.loop.call_soon_threadsafe(has_run.set)
                assert has_run.wait(10)
            return function(*arguments, **named)

        self.monkeypatch.setattr(owner, name, call)


def forbid_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread of tensorwire be idle, and none be started, until the patches are undone."""

    def fail_to_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    deadline = time.monotonic() + 1  # for threads of earlier tests, which would be idle then
    while len(threads._idle) < len(threads._threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.setattr(threads, "_idle", [])
    monkeypatch.setattr(threading.Thread, "start", fail_to_start)
