"""Exported Arrow and DLPack structs for an owner that is not a Python object.

Such an owner may release a struct in any thread, and after the interpreter has ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorwire as tw
from support.arrow_structs import struct_of
from support.dlpack_structs import Consumed
from support.memory import LIBC

# Receives the address of a struct, and that of the function that releases it.
Take = Callable[[int, int], None]

_malloc: Any = LIBC.malloc
_malloc.restype = ctypes.c_void_p
_malloc.argtypes = (ctypes.c_size_t,)


def _move(capsule: Any, kind: str, take: Take) -> None:
    """Move an Arrow struct to memory that Python does not free."""
    struct = struct_of(capsule, kind)
    address = _malloc(ctypes.sizeof(struct))
    ctypes.memmove(address, ctypes.addressof(struct), ctypes.sizeof(struct))
    callback, struct.release = struct.release, None
    take(address, callback)


def _arrow(data: Any, take: Take) -> None:
    schema, array = data.__arrow_c_array__()
    _move(schema, "schema", take)
    _move(array, "array", take)


def _dlpack(tensor: tw.Tensor, take: Take, **options: Any) -> None:
    consumed = Consumed(tensor.__dlpack__(**options))
    take(consumed.address, consumed.managed.deleter)


def _words() -> tw.BytesArray:
    return tw.decode_bytes(tw.encode_bytes(["a" * n for n in range(50)]))


EXPORTS: dict[str, Callable[[Take], None]] = {
    "BYTES": lambda take: _arrow(_words(), take),
    "BYTES tensor": lambda take: _arrow(tw.Tensor("x", ["a", "b" * 100]), take),
    "numbers": lambda take: _arrow(tw.Tensor("x", np.zeros(3)), take),
    "lists of numbers": lambda take: _arrow(tw.Tensor("x", np.zeros((2, 3, 4))), take),
    "BOOL": lambda take: _arrow(tw.Tensor("x", np.ones(30, bool)), take),
    "DLPack": lambda take: _dlpack(tw.Tensor("x", np.zeros(3)), take),
    "versioned DLPack": lambda take: _dlpack(tw.Tensor("x", np.zeros(3)), take, max_version=(1, 0)),
}
