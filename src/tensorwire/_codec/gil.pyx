"""Work with the GIL held is counted, so that other threads wait for it for a short time only.

Long operations on plain memory release it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

import sys

cdef extern from *:
    """
    static __thread long long work_of_this_turn;
    static __thread double turn_began;
    """
    long long work_of_this_turn
    double turn_began  # in seconds of the monotonic clock

# A variable of C. At the end of the interpreter, the names of modules become None before the last
# objects are freed, which counts as work.
cdef object switch_interval = sys.getswitchinterval


cdef double monotonic_seconds() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + 1e-9 * now.tv_nsec


cdef void count_work(Py_ssize_t cost) noexcept:
    """Count work that this thread does with the GIL held. Release the GIL briefly now and then.

    It may be called before or after the work. Other threads may run during the call.

    A thread that waits for the GIL asks for it when it has waited for the switch interval, and
    CPython hands it over only then. But each release makes it wait from the beginning, so the time
    between two releases must be longer than this interval.
    """
    global work_of_this_turn, turn_began
    work_of_this_turn += cost
    if work_of_this_turn >= WORK_PER_TURN:
        work_of_this_turn = 0
        if monotonic_seconds() - turn_began >= 1.2 * switch_interval():
            with nogil:
                pass
            turn_began = monotonic_seconds()


cdef Py_ssize_t end_of_batch(Py_ssize_t begin, Py_ssize_t n, Py_ssize_t cost) noexcept:
    """Return where a batch of the elements from `begin` up to `n` ends, and count its work.

    `cost` is that of one element. Other threads may run during the call, but not during the batch.
    """
    cdef Py_ssize_t n_elements = min(n - begin, LONG_NBYTES // cost + 1)
    count_work(n_elements * cost)
    return begin + n_elements


cdef bytes copied_bytes(const void* data, Py_ssize_t nbytes):
    copy = PyBytes_FromStringAndSize(NULL, nbytes)
    write_memory(<unsigned char*>PyBytes_AS_STRING(copy), data, nbytes)
    return copy


cdef void free_memory(void* memory, Py_ssize_t nbytes) noexcept:
    released = count_or_release_gil(nbytes // READ_NBYTES)
    PyMem_RawFree(memory)
    take_gil(released)
