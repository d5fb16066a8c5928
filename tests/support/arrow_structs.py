"""The structs of the Arrow C data interface as ctypes classes, to build producers by hand.

See https://arrow.apache.org/docs/format/CDataInterface.html.
"""

from __future__ import annotations

import ctypes
from typing import Any

ReleaseCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# A capsule has only the address of its name, so these objects must stay alive.
CAPSULE_NAMES = {kind: f"arrow_{kind}".encode() for kind in ("schema", "array", "array_stream")}

_new_capsule: Any = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_get_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class ArrowSchema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class ArrowArray(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


def capsule(struct: Any, kind: str) -> Any:
    """Return a capsule without a destructor; `struct` must outlive it."""
    return _new_capsule(ctypes.addressof(struct), CAPSULE_NAMES[kind], None)


def struct_of(owner: Any, kind: str) -> Any:
    """Return the struct of a capsule; the capsule must outlive it."""
    of_class: Any = ArrowSchema if kind == "schema" else ArrowArray
    return of_class.from_address(_get_pointer(owner, CAPSULE_NAMES[kind]))
