"""A thread that runs besides the code of a test, and waiting for what other threads do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
