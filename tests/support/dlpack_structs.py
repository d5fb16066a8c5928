"""The structs of DLPack as ctypes classes, to build producers and consumers by hand.

See https://dmlc.github.io/dlpack/latest/c_api.html.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

READ_ONLY, IS_COPIED = 1, 2
VERSIONED, UNVERSIONED = b"dltensor_versioned", b"dltensor"
# A capsule has only the address of its name, so these objects must stay alive.
USED = {VERSIONED: b"used_dltensor_versioned", UNVERSIONED: b"used_dltensor"}
CODES = {"i": 0, "u": 1, "f": 2, "V": 4, "b": 6}  # by the dtype's kind; V is bfloat16

# ctypes releases the GIL while it calls such a function.
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_api: Any = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = (ctypes.py_object,)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("dl_tensor", DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    )


class Consumed:
    """The struct of a capsule that this consumer has taken over."""

    def __init__(self, capsule: Any) -> None:
        name = _api.PyCapsule_GetName(capsule)
        kind = DLManagedTensorVersioned if name == VERSIONED else DLManagedTensor
        self.address = _api.PyCapsule_GetPointer(capsule, name)
        self.managed = kind.from_address(self.address)
        self.tensor: DLTensor = self.managed.dl_tensor
        _api.PyCapsule_SetName(capsule, USED[name])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def strides(self) -> tuple[int, ...] | None:
        """None, which means C-contiguous, without dimensions and before numpy 2.4."""
        return tuple(self.tensor.strides[: self.tensor.ndim]) if self.tensor.strides else None

    def delete(self) -> None:
        """Call the deleter without the GIL."""
        Deleter(self.managed.deleter)(self.address)


# The producers whose structs are in use, by the address of the struct.
_EXPORTED: dict[int, Producer] = {}


def _delete(address: int) -> None:
    _EXPORTED.pop(address).n_deleted += 1


_DELETER = Deleter(_delete)
_DELETER_ADDRESS = ctypes.cast(_DELETER, ctypes.c_void_p).value


class Producer:
    """Exports an array as DLPack, with some fields of the structs changed.

    `n_deleted` counts the calls of the deleter. `changes` are fields of the struct or of its
    DLTensor; "shape" and "strides" are tuples or None. If `is_cached`, the same capsule is returned
    each time. The capsules have no destructor. The producer is kept alive until the deleter is
    called.
    """

    def __init__(
        self,
        array: Any,
        *,
        is_versioned: bool = True,
        is_cached: bool = False,
        name: bytes | None = None,
        **changes: Any,
    ) -> None:
        self.array = array
        self.name = name or (VERSIONED if is_versioned else UNVERSIONED)
        self.is_cached = is_cached
        self.n_deleted = 0
        self.capsule: Any = None
        dtype = array.dtype
        tensor = DLTensor(
            *(array.ctypes.data, 1, 0, array.ndim),
            *(CODES.get(dtype.kind, 0), 8 * dtype.itemsize, 1),
            *(_ints(array.shape), _ints(n // dtype.itemsize for n in array.strides), 0),
        )
        flags = 0 if array.flags.writeable else READ_ONLY
        self.managed: Any = (
            DLManagedTensorVersioned(1, 0, None, _DELETER_ADDRESS, flags, tensor)
            if is_versioned
            else DLManagedTensor(tensor, None, _DELETER_ADDRESS)
        )
        for key, value in changes.items():
            is_of_tensor = key in dict(DLTensor._fields_)
            setattr(
                self.managed.dl_tensor if is_of_tensor else self.managed,
                key,
                _ints(value) if isinstance(value, tuple) else value,
            )

    @property
    def capsule_name(self) -> bytes:
        name: bytes = _api.PyCapsule_GetName(self.capsule)
        return name

    def __dlpack_device__(self) -> Any:
        return self.managed.dl_tensor.device_type, self.managed.dl_tensor.device_id

    def __dlpack__(self, **_options: Any) -> Any:
        if self.capsule is None or not self.is_cached:
            address = ctypes.addressof(self.managed)
            self.capsule = _api.PyCapsule_New(address, self.name, None)
            _EXPORTED[address] = self
        return self.capsule


def _ints(values: Any) -> Any:
    values = tuple(values)
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def values_of(consumed: Consumed, dtype: Any) -> Any:
    """Return a copy of the elements of a C-contiguous tensor."""
    tensor = consumed.tensor
    size = int(np.prod(consumed.shape)) * tensor.bits // 8
    content = ctypes.string_at(tensor.data + tensor.byte_offset, size) if size else b""
    return np.frombuffer(content, dtype).reshape(consumed.shape)
