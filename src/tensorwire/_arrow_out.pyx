"""BYTES to Arrow: a view array whose data buffers are the body itself (the PyCapsule protocol)."""

cimport cython
cimport numpy as cnp
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.string cimport memcpy

from ._arrow_abi cimport INLINE_NBYTES, ArrowArray, ArrowSchema, View
from ._body cimport Body
from ._elements cimport Element, element_at

from .errors import EncodeError

cnp.import_array()

cdef enum:
    N_FIXED_BUFFERS = 3  # validity, views, and the sizes of the data buffers


def schema(bint is_text):
    """An `arrow_schema` capsule: string view, or binary view; not nullable."""
    cdef ArrowSchema* made = <ArrowSchema*>PyMem_RawCalloc(1, sizeof(ArrowSchema))
    if made == NULL:
        raise MemoryError
    made.format = b"vu" if is_text else b"vz"
    made.name = b""
    made.release = release_schema
    return PyCapsule_New(made, "arrow_schema", free_schema)


cdef void release_schema(ArrowSchema* made) noexcept nogil:
    made.release = NULL  # everything in it is static


cdef void free_schema(object capsule) noexcept:
    cdef ArrowSchema* made = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if made.release != NULL:
        made.release(made)
    PyMem_RawFree(made)


def wants_text(requested):
    """Whether a requested schema (a capsule, or None) is of text rather than of bytes.

    Raises TypeError when it is no such capsule, EncodeError when it has been released.
    """
    cdef ArrowSchema* asked
    if requested is None:
        return False
    if not PyCapsule_IsValid(requested, "arrow_schema"):
        raise TypeError(
            f"a requested schema is an 'arrow_schema' capsule, not {type(requested).__name__}")
    asked = <ArrowSchema*>PyCapsule_GetPointer(requested, "arrow_schema")
    if asked.release == NULL or asked.format == NULL:
        raise EncodeError("the requested Arrow schema has been released")
    return asked.format in (b"u", b"U", b"vu")


def array(Body body not None, cnp.ndarray starts not None, Py_ssize_t end):
    """An `arrow_array` capsule of the elements. No payload byte beyond the views is copied.

    The array holds the body until its consumer releases it. Raises EncodeError for an element
    that a view cannot describe, of 2 GiB or more.
    """
    cdef Exported held = Exported(body)
    cdef ArrowArray* made = <ArrowArray*>PyMem_RawCalloc(1, sizeof(ArrowArray))
    if made == NULL:
        raise MemoryError
    made.release = NULL
    capsule = PyCapsule_New(made, "arrow_array", free_array)
    held.describe(starts, end)
    made.length = starts.shape[0]
    made.n_buffers = N_FIXED_BUFFERS + held.n_data
    made.buffers = held.buffers
    made.private_data = <void*>held
    made.release = release_array
    Py_INCREF(held)  # released with the array
    return capsule


cdef void release_array(ArrowArray* made) noexcept with gil:
    held = <object>made.private_data
    made.private_data = NULL
    made.release = NULL
    Py_DECREF(held)


cdef void free_array(object capsule) noexcept:
    cdef ArrowArray* made = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if made.release != NULL:  # nobody has taken it over
        made.release(made)
    PyMem_RawFree(made)


# No tp_clear: the consumer of the array releases it whenever it likes.
@cython.final
@cython.no_gc_clear
cdef class Exported:
    """What an exported array owns: the views, the list of buffers, and a hold on the body.

    Offsets into a data buffer are signed 32-bit numbers, so a body of 2 GiB and more is given as
    several, each of which begins at an element.
    """

    cdef Body body
    cdef View* views
    cdef const void** buffers
    cdef int64_t* data_nbytes
    cdef Py_ssize_t n_data

    def __cinit__(self, Body body not None):
        self.body = body

    def __dealloc__(self):
        PyMem_RawFree(self.views)
        PyMem_RawFree(self.buffers)
        PyMem_RawFree(self.data_nbytes)

    cdef int describe(self, cnp.ndarray starts, Py_ssize_t end) except -1:
        cdef Py_ssize_t n_elements = starts.shape[0]
        cdef const int64_t* offsets = <const int64_t*>cnp.PyArray_DATA(starts)
        cdef Py_ssize_t begin = <Py_ssize_t>offsets[0] if n_elements else end
        # Each buffer but the last ends because the next element would pass 2^31 - 1, and an element
        # and its prefix take less than 2^32: any two neighbours cover 2^31 - 1 bytes at least.
        cdef Py_ssize_t room = 2 + 2 * ((end - begin) // INT32_MAX)
        self.views = <View*>PyMem_RawCalloc(max(n_elements, 1), sizeof(View))
        self.buffers = <const void**>PyMem_RawCalloc(N_FIXED_BUFFERS + room, sizeof(void*))
        self.data_nbytes = <int64_t*>PyMem_RawCalloc(room, sizeof(int64_t))
        if self.views == NULL or self.buffers == NULL or self.data_nbytes == NULL:
            raise MemoryError
        self.buffers[1] = self.views
        self.write_views(offsets, n_elements, end)
        self.buffers[2 + self.n_data] = self.data_nbytes
        return 0

    cdef int write_views(
        self, const int64_t* offsets, Py_ssize_t n_elements, Py_ssize_t end
    ) except -1:
        cdef const unsigned char* data = NULL  # where the current data buffer begins
        cdef View* view
        cdef Element element
        cdef Py_ssize_t i
        for i in range(n_elements):
            element = element_at(self.body, offsets, n_elements, end, i)
            if element.nbytes > INT32_MAX:
                raise EncodeError(
                    f"element {i} is too long for an Arrow view: {element.nbytes} bytes, of which "
                    f"{INT32_MAX} are possible",
                    element=i, expected=INT32_MAX, actual=element.nbytes)
            view = self.views + i  # all zero, as the format wants what is not used
            view.nbytes = <int32_t>element.nbytes
            if element.nbytes <= INLINE_NBYTES:
                memcpy(view.payload.inline, element.data, element.nbytes)
                continue
            if data == NULL or element.data + element.nbytes - data > INT32_MAX:
                data = element.data
                self.buffers[2 + self.n_data] = data
                self.n_data += 1
            self.data_nbytes[self.n_data - 1] = element.data + element.nbytes - data
            memcpy(view.payload.elsewhere.prefix, element.data, 4)
            view.payload.elsewhere.buffer = <int32_t>(self.n_data - 1)
            view.payload.elsewhere.offset = <int32_t>(element.data - data)
        return 0
