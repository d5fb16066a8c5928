cimport cython
from libc.stdint cimport int64_t, uint64_t
from numpy cimport ndarray

from ..body cimport Body
from ..wire cimport PREFIX_NBYTES


cdef struct Element:
    const unsigned char* data
    Py_ssize_t nbytes


cdef struct Span:
    # Scanned elements, which follow one another.
    const unsigned char* data  # the body
    const int64_t* starts  # the offset of the prefix of each element in the body
    Py_ssize_t n
    Py_ssize_t end  # offset where the last element ends


@cython.final
@cython.freelist(8)
cdef class Elements:
    # The elements of a body, and the owner of the memory to which `span` points.
    cdef Body body
    cdef ndarray starts  # read-only, int64 [n]
    cdef Span span


cdef inline Element element_at(const Span* span, Py_ssize_t i) noexcept nogil:
    cdef Element element
    cdef Py_ssize_t begin = <Py_ssize_t>span.starts[i] + PREFIX_NBYTES
    cdef Py_ssize_t stop = <Py_ssize_t>span.starts[i + 1] if i + 1 < span.n else span.end
    element.data = span.data + begin
    element.nbytes = stop - begin
    return element


cdef inline Py_ssize_t begin_of(Elements elements) noexcept:
    """Return the offset of the first prefix in the body, or the end if there are no elements."""
    return <Py_ssize_t>elements.span.starts[0] if elements.span.n > 0 else elements.span.end


cdef Elements new_elements(Body body, ndarray starts, Py_ssize_t end)
cdef Elements scan_elements(Body body, uint64_t n_elements, Py_ssize_t offset, Py_ssize_t nbytes)
cdef uint64_t count_elements(Body body) except? 0
cdef bint are_utf8(Elements elements) noexcept
cdef element_bytes(Elements elements, Py_ssize_t i)
cdef elements_as_objects(Elements elements)
cdef elements_as_str(Elements elements)
cdef elements_as_stringdtype(Elements elements)
cdef elements_as_fixed_width(Elements elements)
cdef gather_elements(Elements elements, ndarray chosen)
cdef tuple export_elements(Elements elements, requested)
