cimport numpy as cnp
from cpython.object cimport PyObject, PyTypeObject

from ..bytes.array cimport BytesArray
from ..datatypes cimport Datatype
from ..memory cimport write_memory

# Tensors, messages and frames cannot change: their constructors do everything in `__cinit__`, which
# runs once. Their fields are in base classes, so that decoders and encoders can make objects
# without calling a constructor.


cdef inline new_object(type kind, type base):
    """Return an object of a class with the fields of `base`, which the caller sets."""
    return (<PyTypeObject*>base).tp_new(kind, <PyObject*>(), NULL)


cdef class TensorFields:
    cdef object __weakref__
    cdef readonly str name
    cdef readonly tuple shape
    cdef readonly bint binary
    cdef readonly Py_ssize_t nbytes  # 0 in shared memory
    cdef Datatype row
    cdef dict _parameters  # None if there are none
    # The data: `texts` for BYTES, the other fields for numbers, and neither in shared memory.
    cdef BytesArray texts
    cdef object owner  # the memory exists as long as this object
    cdef cnp.dtype dtype
    cdef char* memory
    cdef bint is_readonly


cdef class Tensor(TensorFields):
    pass


cdef class TensorSpec:
    cdef readonly str name
    cdef readonly str datatype
    cdef readonly tuple dims
    cdef readonly bint batching


cdef inline bint is_shared(Tensor tensor) noexcept:
    """Return whether a tensor is in shared memory: the message does not have its data."""
    return tensor.texts is None and tensor.owner is None


cdef cnp.ndarray array_of(Tensor tensor)
cdef int use_converted(Tensor tensor, data) except -1
cdef void use_memory(
    Tensor tensor, object owner, cnp.dtype dtype, char* memory, Py_ssize_t nbytes, bint is_readonly
) noexcept
cdef void use_texts(Tensor tensor, BytesArray texts) noexcept
cdef Tensor new_tensor(str name, Datatype row, tuple shape, dict parameters, bint binary)


cdef inline unsigned char* write_data(unsigned char* target, Tensor tensor) except NULL:
    """Copy the data of a tensor, which is not in shared memory. Return the address after the copy.

    `tensor.nbytes` bytes are written: BYTES have their length prefixes.
    """
    if tensor.texts is None:
        return write_memory(target, tensor.memory, tensor.nbytes)
    return write_memory(target, tensor.texts.wire_data(), tensor.nbytes)
