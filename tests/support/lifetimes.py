"""Checks which objects keep a body alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest


class Owned(bytearray):
    """A bytearray that supports weak references."""


def assert_held_until_it_goes(content: bytes, hold: Callable[[Any], Any]) -> None:
    """Check that the result of `hold` keeps its body alive and unchanged, and nothing else does."""
    body = Owned(content)
    watch = weakref.ref(body)
    held = hold(body)
    with pytest.raises(BufferError):
        body.append(1)  # BufferError: a view exists
    assert bytes(body) == content
    del body
    gc.collect()
    assert watch() is not None
    del held
    gc.collect()
    assert watch() is None
