from ..bytes.reader cimport Elements
from ..memory cimport Body


cdef class BytesArray:
    cdef object __weakref__
    cdef readonly tuple shape
    # Values that are not encoded yet, each exactly bytes or str; then None, and `body` is set.
    cdef tuple values
    cdef Body body
    cdef Elements elements  # None if not scanned yet
    cdef Py_ssize_t begin  # offset of the first prefix in the body
    cdef Py_ssize_t end  # offset where the last element ends

    cdef Body packed(self)
    cdef Elements scanned(self)
    cdef Elements scanned_or_none(self)
    cdef tuple values_or_none(self)
    cdef converted(self, dtype)
    cdef strings(self)
    cdef array(self, dtype, copy)
    cdef row_at(self, index)
    cdef BytesArray rows_between(self, start, stop)
    cdef BytesArray elements_between(self, first, last, tuple shape)
    cdef BytesArray select(self, chosen)


cdef BytesArray new_bytes_array(
    Body body, Elements elements, Py_ssize_t begin, Py_ssize_t end, tuple shape)
cdef BytesArray bytes_of_wire(bytes wire, tuple shape)
cdef BytesArray bytes_of_values(tuple values, Py_ssize_t nbytes, tuple shape)
cdef BytesArray bytes_of_element(Body body, tuple shape)
