from libc.stdint cimport int64_t, uint64_t
from numpy cimport ndarray

from .memory cimport Body
from .wire cimport PREFIX_NBYTES


cdef struct Element:
    const unsigned char* data
    Py_ssize_t nbytes


cdef inline Element element_in(
    const unsigned char* data, const int64_t* starts, Py_ssize_t n_elements, Py_ssize_t end,
    Py_ssize_t i,
) noexcept nogil:
    """Return element `i` of `n_elements` elements, whose prefixes are at `starts` in `data`."""
    cdef Element element
    cdef Py_ssize_t begin = <Py_ssize_t>starts[i] + PREFIX_NBYTES
    cdef Py_ssize_t stop = <Py_ssize_t>starts[i + 1] if i + 1 < n_elements else end
    element.data = data + begin
    element.nbytes = stop - begin
    return element


cdef inline Element element_at(
    Body body, const int64_t* starts, Py_ssize_t n_elements, Py_ssize_t end, Py_ssize_t i
) noexcept:
    return element_in(body.data, starts, n_elements, end, i)


cdef ndarray scan_elements(Body body, uint64_t n_elements, Py_ssize_t offset, Py_ssize_t nbytes)
