"""What holds a body, and until when."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest


class Owned(bytearray):
    """A buffer that can be watched: `bytearray` itself takes no weak references."""


def assert_held_until_it_goes(content: bytes, hold: Callable[[Any], Any]) -> None:
    """What ``hold`` makes of a body keeps it, unmoved and unchanged, and nothing else does."""
    body = Owned(content)
    watch = weakref.ref(body)
    held = hold(body)
    with pytest.raises(BufferError):
        body.append(1)  # exported: it cannot move
    assert bytes(body) == content
    del body
    gc.collect()
    assert watch() is not None
    del held
    gc.collect()
    assert watch() is None
