from libc.stdint cimport uint64_t

from ..json.scanner cimport Fault
from ..http.members cimport MemberReader
from ..messages.message cimport RequestedOutput


cdef enum DataPlace:  # of the data of a tensor
    JSON
    BINARY
    REGION


cdef class EntryReader(MemberReader):
    cdef int next_entry(self) except -1
    cdef int read_entry(self) except -1
    cdef int read_name(self) except -1
    cdef int read_datatype(self) except -1
    cdef int read_shape(self) except -1
    cdef dict read_entry_parameters(
        self, const char* reserved, Py_ssize_t reserved_nbytes, const unsigned char** value)
    cdef incomplete_entry_error(self, int seen)
    cdef tuple dims(self)
    cdef int measure(self) except -1
    cdef DataPlace data_place(self, bint has_region) except *
    cdef Py_ssize_t declared_nbytes(self) except -1
    cdef int read_data(self, bint is_described) except -1
    cdef int read_skipped_data(self) except -1
    cdef int parse_elements(self) except -1
    cdef int raise_data_fault(self, Fault fault, uint64_t element) except -1
    cdef RequestedOutput read_output(self)
