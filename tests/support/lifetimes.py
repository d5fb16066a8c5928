"""Checks which objects keep others alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Owned(bytearray):
    """A bytearray that supports weak references."""


@contextmanager
def without_gc() -> Iterator[None]:
    """Collect garbage, and let only reference counts release objects in a ``with`` block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def assert_result_keeps_body_alive(content: bytes, function: Callable[[Any], Any]) -> None:
    """Check that only the result of `function` keeps the body alive, and keeps it unchanged."""
    body = Owned(content)
    weak_reference = weakref.ref(body)
    result = function(body)
    with pytest.raises(BufferError):
        body.append(1)  # BufferError: a view exists
    assert bytes(body) == content
    del body
    gc.collect()
    assert weak_reference() is not None
    del result
    gc.collect()
    assert weak_reference() is None
