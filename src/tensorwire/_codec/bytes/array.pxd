from ..bytes.reader cimport Elements
from ..memory cimport Body


cdef class BytesArray:
    cdef object __weakref__
    cdef readonly tuple shape
    # Values that are not encoded yet, each exactly bytes or str; then None, and `body` is set.
    cdef tuple values
    cdef Body body
    cdef Elements elements  # None if they were just encoded, and not scanned yet
    cdef Py_ssize_t begin  # offset of the first prefix in the body; negative for a raw element
    cdef Py_ssize_t end  # offset where the last element ends

    cdef Body packed(self)
    cdef Elements scanned(self)
    cdef tuple values_or_none(self)
    cdef converted(self, dtype, str kind=*, str name=*)
    cdef strings(self, str kind=*, str name=*)
    cdef array(self, dtype, copy, str kind=*, str name=*)


cdef inline bint is_raw(BytesArray array) noexcept:
    """Return whether the array is a raw element: a body without a prefix (WIRE.md 5)."""
    return array.begin < 0


cdef BytesArray new_bytes_array(
    Body body, Elements elements, Py_ssize_t begin, Py_ssize_t end, tuple shape)
cdef BytesArray bytes_of_wire(bytes wire, tuple shape)
cdef BytesArray bytes_of_values(tuple values, Py_ssize_t nbytes, tuple shape)
cdef BytesArray bytes_of_element(Body body, tuple shape)
