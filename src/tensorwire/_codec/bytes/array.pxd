from ..bytes.reader cimport Elements


cdef class BytesArray:
    cdef object __weakref__
    cdef readonly tuple shape
    cdef readonly Py_ssize_t nbytes  # of the wire bytes, length prefixes included
    # The elements, None until they are scanned; and what the wire bytes are made of, None for an
    # array that was scanned from the start. It is a tuple of bytes and str until they are encoded.
    cdef Elements elements
    cdef object source

    cdef tuple values_or_none(self)
    cdef bytes encoded(self)
    cdef Elements scanned(self)
    cdef const unsigned char* wire_data(self) except NULL
    cdef converted(self, dtype, str kind=*, str name=*)
    cdef strings(self, str kind=*, str name=*)
    cdef array(self, dtype, copy, str kind=*, str name=*)


cdef BytesArray bytes_of_elements(Elements elements, tuple shape)
cdef BytesArray bytes_of_wire(bytes wire, tuple shape)
cdef BytesArray bytes_of_values(tuple values, Py_ssize_t nbytes, tuple shape)
