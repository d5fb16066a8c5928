"""The memory of a message: one owner for the bytes of a body, and the ndarray views over it."""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
)
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcmp

from ._layout cimport Layout

import numpy as np

from .errors import ElementError, EncodeError, LayoutError, subject

cnp.import_array()

cdef enum:
    RELEASE_GIL_FROM = 8 << 20  # bytes: about 1 ms of reading
    PIECE_NBYTES = 32 << 10


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(
        PyTypeObject* subtype, cnp.dtype descr, int nd, const cnp.npy_intp* dims,
        const cnp.npy_intp* strides, void* data, int flags, PyObject* obj)


cdef extern from "Python.h":
    PyObject* PyMemoryView_GET_BASE(object view)  # borrowed; NULL for memory without an owner

cdef unsigned char nothing = 0  # what an empty body points to, so that no pointer is NULL


# No tp_clear, because views of the memory may outlive it in a cycle that is being collected. The
# trashcan bounds the C stack where bodies own each other through objects of other libraries.
@cython.final
@cython.no_gc_clear
@cython.trashcan(True)
cdef class Body:
    """A run of bytes in somebody's memory, exported and held until the last view of it goes.

    Made from any C-contiguous buffer of one-byte items; `source` is pinned, and not copied. A
    `bytearray` cannot be resized meanwhile. It has no way to be released early: the arrays made
    from it point into that memory and hold it as their base. A Body over a view of another Body
    keeps a reference to that one, not to the view, so that repeated views do not form a chain.

    Raises TypeError when `source` is no buffer, BufferError when it is strided or of wider items.
    """

    def __cinit__(self, source):
        cdef Body owner
        if not PyObject_CheckBuffer(source):
            raise TypeError(f"a body is a bytes-like object, not {type(source).__name__}")
        try:
            PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        except ValueError as error:  # numpy's answer where others raise BufferError
            raise BufferError(f"the body cannot be read: {error}") from None
        if self.buffer.itemsize != 1:
            raise BufferError(
                f"a body is a buffer of single bytes, this one has items of {self.buffer.itemsize} "
                f"bytes: pass memoryview(body).cast('B')"
            )
        self.data = <const unsigned char*>self.buffer.buf if self.buffer.len > 0 else &nothing
        self.nbytes = self.buffer.len
        self.readonly = self.buffer.readonly
        owner = owner_of(source)
        if owner is not None and owner.contains(self.data, self.nbytes):
            self.owner = owner
            PyBuffer_Release(&self.buffer)

    def __dealloc__(self):
        # Does nothing when there is no export: then buffer.obj is NULL.
        PyBuffer_Release(&self.buffer)

    cdef bint contains(self, const unsigned char* data, Py_ssize_t nbytes) noexcept:
        """Whether `nbytes` bytes from `data` lie within this body."""
        cdef uintptr_t offset = <uintptr_t>data - <uintptr_t>self.data
        return offset <= <uintptr_t>self.nbytes and <uintptr_t>nbytes <= self.nbytes - offset

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        export_bytes(buffer, self, self.data, self.nbytes, self.readonly, flags)

    def __len__(self):
        return self.nbytes

    cdef bytes unchanging(self, Py_ssize_t nbytes):
        """The first `nbytes` bytes (the caller has checked that they are there), or more of them.

        A `bytes` object is returned as it is. Of any other memory, which could be written to
        later, the bytes are copied.
        """
        cdef PyObject* exporter = <PyObject*>self.buffer.obj  # NULL for a view of another Body
        if exporter != NULL and PyBytes_CheckExact(<object>exporter) and (
            <const unsigned char*>PyBytes_AS_STRING(<object>exporter) == self.data
        ):
            return <bytes>exporter
        return PyBytes_FromStringAndSize(<const char*>self.data, nbytes)

    def view(self, Py_ssize_t offset, Py_ssize_t nbytes):
        """A flat memoryview of `nbytes` bytes from `offset`, which the caller has checked."""
        assert 0 <= offset <= self.nbytes and 0 <= nbytes <= self.nbytes - offset
        return PyMemoryView_FromObject(self)[offset:offset + nbytes]

    cdef array(self, cnp.dtype dtype, Layout* layout, Py_ssize_t offset):
        """An ndarray over the bytes from `offset`, of the dimensions in `layout`.

        The caller has checked that the body has `layout.nbytes` bytes there, and that they are
        `layout.n_elements` times the size of `dtype`. Nothing is copied: the array points into the
        body and holds it, is as writable as the body is, and may be misaligned.
        """
        cdef int flags = 0 if self.readonly else cnp.NPY_ARRAY_WRITEABLE
        Py_INCREF(dtype)  # PyArray_NewFromDescr steals one reference
        # numpy works out contiguity and alignment itself from the address and the dimensions.
        cdef cnp.ndarray array = PyArray_NewFromDescr(
            <PyTypeObject*>cnp.ndarray, dtype, layout.rank, layout.dims, NULL,
            <void*>(self.data + offset), flags, NULL
        )
        cnp.set_array_base(array, self)
        return array

    cdef int check_bool(self, Py_ssize_t offset, uint64_t nbytes, kind, name) except -1:
        """Raise ElementError for the first byte other than 0 and 1 among those from `offset`."""
        cdef const unsigned char* data = self.data + offset
        cdef Flag flag
        if nbytes < RELEASE_GIL_FROM:
            flag = first_wrong_flag(data, nbytes)
        else:
            with nogil:
                flag = first_wrong_flag(data, nbytes)
        if flag.value > 1:
            i = flag.position
            raise ElementError(
                f"element {i} of {subject(kind, name)} is not a BOOL: its byte is {flag.value}, "
                f"0 or 1 is allowed (body byte {offset + i})",
                tensor=name, element=i, offset=offset + i, expected=1, actual=flag.value,
            )
        return 0

    cdef int check_extent(self, Py_ssize_t offset, Py_ssize_t nbytes, kind, name) except -1:
        """Refuse `nbytes` (0 or more) from `offset` unless the body has them."""
        if nbytes > self.nbytes - offset:
            raise beyond_body(self, offset, nbytes, kind, name)
        return 0


cdef Body owner_of(source):
    """The Body that `source` is a view of through memoryviews, arrays and Payloads, or None.

    The result owns an export itself; it is never a view of yet another Body.
    """
    cdef PyObject* base
    while True:  # ends, because each object was made from the next one
        if type(source) is memoryview:
            base = PyMemoryView_GET_BASE(source)
        elif type(source) is cnp.ndarray:
            base = cnp.PyArray_BASE(<cnp.ndarray>source)
        elif type(source) is Payload:
            source = (<Payload>source).array
            continue
        elif type(source) is Body:
            return source if (<Body>source).owner is None else (<Body>source).owner
        else:
            return None
        if base == NULL:
            return None
        source = <object>base


def same_bytes(first, second):
    """Whether two buffers hold the same bytes. (Comparing memoryviews goes item by item.)"""
    cdef Body one = Body(first)
    cdef Body other = Body(second)
    return one.nbytes == other.nbytes and memcmp(one.data, other.data, one.nbytes) == 0


cdef unsigned char all_bits(const unsigned char* data, uint64_t nbytes) noexcept nogil:
    """The bits that any byte has: a loop that the compiler vectorises."""
    cdef unsigned char bits = 0
    cdef uint64_t i
    for i in range(nbytes):
        bits |= data[i]
    return bits


cdef struct Flag:
    uint64_t position
    unsigned char value


cdef Flag first_wrong_flag(const unsigned char* data, uint64_t nbytes) noexcept nogil:
    """The first byte above 1, loaded once; its value is 0 when there is none."""
    cdef Flag flag
    cdef uint64_t begin = 0, end, i
    flag.position = flag.value = 0
    while begin < nbytes:
        end = min(begin + PIECE_NBYTES, nbytes)
        if all_bits(data + begin, end - begin) > 1:
            for i in range(begin, end):
                flag.position, flag.value = i, data[i]
                if flag.value > 1:
                    return flag
            flag.value = 0  # another thread has mended its bytearray meanwhile
        begin = end
    return flag


cdef beyond_body(Body body, offset, nbytes, kind, name):
    remaining = body.nbytes - offset
    return LayoutError(
        f"the body ends inside {subject(kind, name)}: {nbytes} bytes are declared, {remaining} "
        f"remain (body byte {offset})",
        tensor=name, offset=offset, expected=nbytes, actual=remaining,
    )


@cython.final
@cython.freelist(8)
@cython.no_gc_clear  # a memoryview may ask for the array after the collector came by
@cython.trashcan(True)  # the array may be a view of another Payload, and so on
cdef class Payload:
    """The memory of an array as flat read-only bytes; it holds the array."""

    cdef cnp.ndarray array

    def __cinit__(self, cnp.ndarray array not None):
        self.array = array

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        export_bytes(
            buffer, self, cnp.PyArray_DATA(self.array), cnp.PyArray_NBYTES(self.array), True, flags)


cdef bint has_shape(cnp.ndarray array, tuple shape) except -1:
    """Whether the array has these dimensions (ints below 2^63), whatever a subclass says."""
    cdef int axis, rank = cnp.PyArray_NDIM(array)
    if rank != len(shape):
        return False
    for axis in range(rank):
        if cnp.PyArray_DIM(array, axis) != <Py_ssize_t>shape[axis]:
            return False
    return True


cdef int check_array(cnp.ndarray array, cnp.dtype dtype, tuple shape, name) except -1:
    """Check that an array is what its tensor says: C-contiguous, of the dtype and shape given.

    Anything else is an EncodeError that names the tensor. `shape` consists of ints below 2^63.
    """
    if type(array) is not cnp.ndarray and isinstance(array, np.ma.MaskedArray):
        raise EncodeError(
            f"the data of tensor {name!r} is now a masked array, and the wire has no missing "
            f"values", tensor=name)
    # The identity test is the common case; equality of dtypes costs ten times as much.
    if array.descr is not dtype and array.descr != dtype:
        raise EncodeError(
            f"tensor {name!r} was made for {dtype}, its data is now {array.descr}", tensor=name)
    if not has_shape(array, shape):
        raise EncodeError(
            f"tensor {name!r} was made with shape {list(shape)}, its data is now "
            f"{[array.shape[axis] for axis in range(cnp.PyArray_NDIM(array))]}", tensor=name)
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        raise EncodeError(
            f"the data of tensor {name!r} is not contiguous: build a new Tensor from it",
            tensor=name)
    return 0


cdef payload(cnp.ndarray array, cnp.dtype dtype, tuple shape, name):
    """The memory of an array that passes `check_array`: a flat, read-only memoryview, no copy."""
    check_array(array, dtype, shape, name)
    return PyMemoryView_FromObject(Payload(array))
