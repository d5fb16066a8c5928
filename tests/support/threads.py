"""A thread that runs besides the code of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
