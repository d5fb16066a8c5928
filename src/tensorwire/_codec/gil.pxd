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


# The work of each thread is counted in all modules together. The cost of an operation is about the
# number of nanoseconds that it takes in a slow case, for example because the memory is new.

cdef void count_work(Py_ssize_t cost) noexcept
cdef bint keeps_gil(Py_ssize_t cost) noexcept
cdef Py_ssize_t end_of_batch(Py_ssize_t begin, Py_ssize_t n, Py_ssize_t cost) noexcept
# Other threads may run meanwhile.
cdef bytes copied_bytes(const void* data, Py_ssize_t nbytes)
cdef void free_memory(void* memory, Py_ssize_t nbytes) noexcept  # of PyMem_RawMalloc

cdef void drop_reference(void* owned) noexcept nogil

cdef enum:
    WORK_PER_BATCH = 100_000  # work that is counted at once
    WORK_PER_TURN = 1_000_000  # after which the clock is read: see `count_work`


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
