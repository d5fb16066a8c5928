cimport cython
cimport numpy as cnp

from ..bytes.array cimport BytesArray
from ..datatypes cimport Datatype
from ..gil cimport write_memory

# Decoders and encoders make tensors, messages and frames without a constructor, so `__cinit__` of
# these has no arguments, and makes a valid object: a tensor without elements, for example. Callers
# set the fields with `__init__`, but only once, because the objects cannot change. Those that only
# callers make (`TensorSpec`, `Limits`, `ResponseOptions`) get their arguments in `__cinit__`.


cdef inline int make_once(made, bint* is_made) except -1:
    """Raise TypeError if an object is already made. Python code can call `__init__` again."""
    cdef bint was_made
    with cython.critical_section(made):
        was_made = is_made[0]
        is_made[0] = True
    if was_made:
        raise TypeError(f"{type(made).__name__} objects cannot be changed")
    return 0


cdef class Tensor:
    cdef object __weakref__
    cdef readonly str name
    cdef readonly tuple shape
    cdef readonly bint binary
    cdef readonly Py_ssize_t nbytes  # 0 in shared memory
    cdef Datatype element_type
    cdef dict _parameters  # None if there are none
    # The data: `bytes_array` for BYTES, the other fields for numbers, and neither in shared memory.
    cdef BytesArray bytes_array
    cdef object owner  # the memory exists as long as this object
    cdef cnp.dtype dtype
    cdef char* memory
    cdef bint is_readonly
    cdef bint is_made


cdef class TensorSpec:
    cdef readonly str name
    cdef readonly str datatype
    cdef readonly tuple dims
    cdef readonly bint batching


cdef inline bint is_shared(Tensor tensor) noexcept:
    """Return whether a tensor is in shared memory: the message does not have its data."""
    return tensor.bytes_array is None and tensor.owner is None


cdef cnp.ndarray array_of(Tensor tensor)
cdef int use_converted(Tensor tensor, data) except -1
cdef void use_memory(
    Tensor tensor, object owner, cnp.dtype dtype, char* memory, Py_ssize_t nbytes, bint is_readonly
) noexcept
cdef void use_bytes_array(Tensor tensor, BytesArray bytes_array) noexcept
cdef Tensor new_tensor(str name, Datatype element_type, tuple shape, dict parameters, bint binary)


cdef inline unsigned char* copy_data(unsigned char* target, Tensor tensor) except NULL:
    """Copy the data of a tensor, which is not in shared memory. Return the address after the copy.

    `tensor.nbytes` bytes are written: BYTES have their length prefixes.
    """
    if tensor.bytes_array is None:
        return write_memory(target, tensor.memory, tensor.nbytes)
    return write_memory(target, tensor.bytes_array.wire_data(), tensor.nbytes)
