cimport cython
from libc.stdint cimport int64_t, uint64_t
from numpy cimport ndarray

from ..held_buffer cimport HeldBuffer
from ..wire cimport Span


@cython.final
@cython.freelist(8)
cdef class Elements:
    # The elements of a body, and the owner of the memory to which `span` points.
    cdef HeldBuffer body
    cdef ndarray starts  # read-only, int64 [n]
    cdef Span span


cdef Elements new_elements(HeldBuffer body, ndarray starts, Py_ssize_t end)
cdef Elements scan_elements(
    HeldBuffer body, uint64_t n_elements, Py_ssize_t offset, Py_ssize_t nbytes)
cdef uint64_t count_elements(HeldBuffer body) except? 0
cdef element_bytes(Elements elements, Py_ssize_t i)
cdef elements_as_objects(Elements elements)
cdef elements_as_str(Elements elements)
cdef elements_as_stringdtype(Elements elements)
cdef elements_as_fixed_width(Elements elements)
cdef gather_elements(Elements elements, ndarray chosen)
