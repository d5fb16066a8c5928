"""Running one input of the target "api"."""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Callable

import numpy as np

from fuzz.api import codec_operations, object_operations  # noqa: F401  # they fill OPERATIONS
from fuzz.api.world import World

EPISODE_NBYTES = 600


def api(data: bytes) -> None:
    """Run any input: calls return valid results or raise documented exceptions."""
    episode(data)


def episode(data: bytes, trace: Callable[[str], None] | None = None) -> int:
    """Run one input and return the number of steps."""
    world = World(data)
    world.trace = trace
    is_enabled = gc.isenabled()
    gc.collect()
    gc.disable()  # collections are steps; automatic ones would not be reproducible
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        try:
            world.run()
        finally:
            if is_enabled:
                gc.enable()
    return world.n_steps


def episode_bytes(seed: int, number: int) -> bytes:
    return random.Random(f"{seed}:{number}").randbytes(EPISODE_NBYTES)
