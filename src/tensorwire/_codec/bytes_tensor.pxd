from numpy cimport ndarray

from .memory cimport Body


cdef class BytesTensor:
    cdef object __weakref__
    cdef readonly tuple shape
    cdef Body body
    cdef ndarray starts  # offsets of the prefixes in the body; None if not scanned yet
    cdef Py_ssize_t begin  # offset of the first prefix in the body
    cdef Py_ssize_t end  # offset where the last element ends

    cdef ndarray offsets(self)
    cdef tuple nonnegative_index(self, tuple index)
    cdef row_at(self, index)
    cdef BytesTensor rows_between(self, start, stop)
    cdef BytesTensor elements_between(self, first, last, tuple shape)
    cdef BytesTensor select(self, chosen)


cdef BytesTensor new_tensor(
    Body body, ndarray starts, Py_ssize_t begin, Py_ssize_t end, tuple shape)
cdef BytesTensor tensor_of_wire(bytes wire, tuple shape)
cdef BytesTensor tensor_of_element(Body body, tuple shape)
