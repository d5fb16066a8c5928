"""A thread that runs besides the code of a test, and waiting for what other threads do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a condition is true. Raises AssertionError if it is still false at the end."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[None]:
    """Repeat a function in another thread."""
    is_done = threading.Event()

    def run() -> None:
        while not is_done.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
