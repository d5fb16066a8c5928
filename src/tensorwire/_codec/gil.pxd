from libc.string cimport memcpy

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define TENSORWIRE_FREE_THREADED 1
    #else
    #define TENSORWIRE_FREE_THREADED 0
    #endif
    #if CYTHON_TRACE
    #define TENSORWIRE_IS_TRACED 1
    #else
    #define TENSORWIRE_IS_TRACED 0
    #endif
    """
    const bint FREE_THREADED "TENSORWIRE_FREE_THREADED"  # Python was built without the GIL
    const bint IS_TRACED "TENSORWIRE_IS_TRACED"  # each line calls Python, which needs the GIL


cdef extern from "Python.h":
    ctypedef struct PyThreadState
    PyThreadState* PyEval_SaveThread() noexcept
    void PyEval_RestoreThread(PyThreadState* released) noexcept


# The work of each thread is counted in all modules together. The cost of an operation is about the
# number of nanoseconds that it takes in a slow case, for example because the memory is new: 1 for
# a byte that is copied or scanned, or for READ_NBYTES that are only read, or freed.
#
# Work of the package is passed to `count_or_release_gil` and the functions like it, which keep the
# GIL if the work is short. `with nogil` is for code that must not have the GIL however short it is:
# callbacks of other packages, and code that holds a foreign lock (npystring.pxd).
cdef enum:
    READ_NBYTES = 8
    TEXT_COST = 8  # of a byte of JSON or of a field, or of writing a short element
    ITEM_COST = 100  # of what is a Python object, or becomes one

    LONG_NBYTES = 64 << 10  # work is counted between pieces of this size, or of this cost
    WORK_PER_TURN = 1_000_000  # after which the clock is read: see `count_work`

cdef void count_work(Py_ssize_t cost) noexcept
cdef Py_ssize_t end_of_batch(Py_ssize_t begin, Py_ssize_t n, Py_ssize_t cost) noexcept
# Other threads may run meanwhile.
cdef bytes copied_bytes(const void* data, Py_ssize_t nbytes)
cdef void free_memory(void* memory, Py_ssize_t nbytes) noexcept  # of PyMem_RawMalloc


cdef inline void collect_work(Py_ssize_t* work, Py_ssize_t cost) noexcept:
    """Add a cost to `work`, and count it when it is large. Other threads may run then."""
    work[0] += cost
    if work[0] >= LONG_NBYTES:
        count_work(work[0])
        work[0] = 0


cdef inline PyThreadState* release_gil_if_long(Py_ssize_t cost) noexcept:
    """Release the GIL if the next operation costs WORK_PER_TURN or more.

    The operation is a call of a `noexcept nogil` function, or of C. Pass the result to `take_gil`
    after it. There must be no other operation in between. The caller counts the work of shorter
    operations. No other thread runs before or during one of these.
    """
    return PyEval_SaveThread() if cost >= WORK_PER_TURN and not IS_TRACED else NULL


cdef inline PyThreadState* count_or_release_gil(Py_ssize_t cost) noexcept:
    """Do the same, but count the work of a shorter operation. Other threads may run then, too."""
    released = release_gil_if_long(cost)
    if released == NULL:
        count_work(cost)
    return released


cdef inline PyThreadState* count_or_release_gil_unless_short(Py_ssize_t nbytes) noexcept:
    """Do the same for LONG_NBYTES or more. The caller counts shorter operations.

    No other thread runs before or during one of these.
    """
    return count_or_release_gil(nbytes) if nbytes >= LONG_NBYTES else NULL


cdef inline void take_gil(PyThreadState* released) noexcept:
    if released != NULL:
        PyEval_RestoreThread(released)


cdef inline unsigned char* write_memory(
    unsigned char* target, const void* data, Py_ssize_t nbytes
) noexcept:
    """Copy memory, and return the address after the copy. Other threads may run meanwhile."""
    released = count_or_release_gil(nbytes)
    memcpy(target, data, nbytes)
    take_gil(released)
    return target + nbytes
