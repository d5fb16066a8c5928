cimport numpy as cnp
from libc.stdint cimport uint32_t
from libc.string cimport memchr

from .bytes_array cimport BytesArray
from .datatypes cimport Datatype
from .memory cimport write_memory
from .wire cimport PREFIX_NBYTES, store_le32


cdef extern from "Python.h":
    Py_ssize_t PyUnicode_FindChar(
        str text, Py_UCS4 character, Py_ssize_t start, Py_ssize_t end, int direction)
    Py_ssize_t PyUnicode_GET_LENGTH(str text)
    int PyUnicode_KIND(str text)
    int PyUnicode_1BYTE_KIND
    const void* PyUnicode_DATA(str text)


cdef inline bint has_nul(str text) noexcept:
    if PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND:
        return memchr(PyUnicode_DATA(text), 0, PyUnicode_GET_LENGTH(text)) != NULL
    return PyUnicode_FindChar(text, 0, 0, PyUnicode_GET_LENGTH(text), 1) >= 0


# Messages cannot change. Their fields are set before Python code, or another thread, can use them:
# `is_made` is True from then on, and PyObject_GC_Track is called. Before, the garbage collector
# does not know them, because it would show them to callers of `gc.get_objects()`.

cdef extern from "Python.h":
    void PyObject_GC_Track(object)
    void PyObject_GC_UnTrack(object)


cdef class Tensor:
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
    cdef bint is_made


cdef class RequestedOutput:
    cdef readonly str name
    cdef readonly object binary  # True, False or None
    cdef dict _parameters
    cdef bint is_made

    cdef dict arguments(self)


cdef class Message:
    cdef object __weakref__
    cdef tuple tensors
    cdef dict by_name  # the tensors by their names; None if there is at most one
    cdef tuple requested  # the outputs that a request selects, or None
    cdef readonly str id
    cdef readonly str model_name
    cdef readonly str model_version
    cdef dict _parameters
    cdef bint is_made

    cdef Tensor find(self, name)
    cdef dict as_dict(self)
    cdef dict arguments(self)


cdef class InferRequest(Message):
    pass


cdef class InferResponse(Message):
    pass


cdef class TensorSpec:
    cdef readonly str name
    cdef readonly str datatype
    cdef readonly tuple dims
    cdef readonly bint batching


cdef class Frame:
    cdef bytes header  # the JSON header; None in a raw request, and if the caller made the buffers
    cdef tuple tensors  # whose memory follows the header
    cdef tuple exported  # the buffers that the caller passed; None if an encoder made the frame
    cdef readonly object header_length  # int or None
    cdef Py_ssize_t nbytes
    cdef bint is_made


cdef bint is_shared(Tensor tensor) noexcept
cdef cnp.ndarray array_of(Tensor tensor)
cdef int use_converted(Tensor tensor, data) except -1
cdef void use_memory(
    Tensor tensor, object owner, cnp.dtype dtype, char* memory, Py_ssize_t nbytes, bint is_readonly
) noexcept
cdef void use_texts(Tensor tensor, BytesArray texts) noexcept

cdef Tensor new_tensor(str name, Datatype row, tuple shape, dict parameters, bint binary)
cdef RequestedOutput new_output(str name, binary, dict parameters)
cdef Message new_message(bint is_request)
cdef Frame new_frame(bytes header, tuple tensors, header_length, Py_ssize_t nbytes)
cdef dict items_by_name(tuple items, str kind, type error_class)
cdef binary_data_output(InferRequest request)


cdef inline unsigned char* write_data(unsigned char* target, Tensor tensor) except NULL:
    """Copy the data of a tensor, which is not in shared memory. Return the address after the copy.

    `tensor.nbytes` bytes are written: BYTES have their length prefixes.
    """
    cdef Py_ssize_t begin, nbytes = tensor.nbytes
    if tensor.texts is None:
        return write_memory(target, tensor.memory, nbytes)
    begin = tensor.texts.begin
    if begin < 0 and nbytes >= PREFIX_NBYTES:  # a raw binary request: its element has no prefix
        nbytes -= PREFIX_NBYTES
        store_le32(target, <uint32_t>nbytes)
        target += PREFIX_NBYTES
        begin += PREFIX_NBYTES
    return write_memory(target, tensor.texts.packed().data + begin, nbytes)
