from ..bytes.reader cimport Elements


cdef class BytesArray:
    cdef object __weakref__
    cdef readonly tuple shape
    cdef readonly Py_ssize_t nbytes  # of the wire bytes, length prefixes included
    # A tuple of bytes and str until they are encoded, then the wire bytes until they are scanned,
    # and then the Elements in them. A received array is scanned from the start.
    cdef object content

    cdef tuple values_or_none(self)
    cdef encoded(self)
    cdef Elements scanned(self)
    cdef const unsigned char* wire_data(self) except NULL
    cdef converted(self, dtype, str kind=*, str name=*)
    cdef strings(self, str kind=*, str name=*)
    cdef array(self, dtype, copy, str kind=*, str name=*)


cdef BytesArray bytes_of_elements(Elements elements, tuple shape)
cdef BytesArray bytes_of_wire(bytes wire, tuple shape)
cdef BytesArray bytes_of_values(tuple values, Py_ssize_t nbytes, tuple shape)
