from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE, Py_buffer
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define TENSORWIRE_FREE_THREADED 1
    #else
    #define TENSORWIRE_FREE_THREADED 0
    #endif
    """
    const bint FREE_THREADED "TENSORWIRE_FREE_THREADED"  # Python was built without the GIL


# --- work with the GIL held ---
#
# The work of each thread is counted in all modules together. The cost of an operation is about the
# number of nanoseconds that it takes in a slow case, for example because the memory is new.

cdef void count_work(Py_ssize_t cost) noexcept
cdef bint keeps_gil(Py_ssize_t cost) noexcept
cdef Py_ssize_t end_of_batch(Py_ssize_t begin, Py_ssize_t n, Py_ssize_t cost) noexcept
cdef bytes copied_bytes(const void* data, Py_ssize_t nbytes)  # other threads may run meanwhile

cdef enum:
    WORK_PER_BATCH = 100_000  # work that is counted at once


cdef inline void collect_work(Py_ssize_t* work, Py_ssize_t cost) noexcept:
    """Add a cost to `work`, and count it when it is that of a batch. Other threads may run then."""
    work[0] += cost
    if work[0] >= WORK_PER_BATCH:
        count_work(work[0])
        work[0] = 0


cdef inline unsigned char* write_memory(
    unsigned char* target, const void* data, Py_ssize_t nbytes
) noexcept:
    """Copy memory, and return the address after the copy. Other threads may run meanwhile."""
    if keeps_gil(nbytes):  # 1 ns per byte, because the kernel may have to provide new pages
        memcpy(target, data, nbytes)
    else:
        with nogil:
            memcpy(target, data, nbytes)
    return target + nbytes


cdef class Body:
    cdef Py_buffer buffer  # released, and obj is NULL, if `memory` is set
    cdef object memory  # a memoryview to which nothing else refers, or None
    cdef const unsigned char* data
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint readonly
    cdef str name  # in error messages; None for "the body"

    cdef str subject(self)
    cdef str format_position(self, Py_ssize_t offset)
    cdef bytes immutable_bytes(self, Py_ssize_t nbytes)
    cdef bint is_bytes(self) noexcept
    cdef int check_range(self, Py_ssize_t offset, Py_ssize_t nbytes) except -1
    cdef int check_bool(self, Py_ssize_t offset, uint64_t nbytes) except -1


cdef bint same_bytes(first, second) except -1
cdef exported_bytes(object owner, const char* data, Py_ssize_t nbytes)
cdef void drop_reference(void* owned) noexcept nogil


cdef inline int export_bytes(
    Py_buffer* buffer, object owner, const void* data, Py_ssize_t nbytes, bint readonly, int flags
) except -1:
    """Fill the Py_buffer for `__getbuffer__` of an object that exports flat bytes.

    PyBuffer_FillInfo would leak the None that Cython has put into `buffer.obj`.
    """
    if readonly and flags & PyBUF_WRITABLE:
        raise BufferError("the memory is read-only")
    buffer.obj = owner
    buffer.buf = <void*>data
    buffer.len = nbytes
    buffer.itemsize = 1
    buffer.readonly = readonly
    buffer.ndim = 1
    buffer.format = NULL
    if flags & PyBUF_FORMAT:
        buffer.format = b"B"
    buffer.shape = &buffer.len if flags & PyBUF_ND else NULL
    buffer.strides = &buffer.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
    buffer.suboffsets = NULL
    buffer.internal = NULL
    return 0
