from libc.stdint cimport uint64_t

from ..datatypes cimport Datatype, Layout
from ..json.scanner cimport Fault
from ..http.members cimport HeaderCursor
from ..limits cimport Limits
from ..messages.message cimport RequestedOutput


cdef enum DataPlace:  # of the data of a tensor
    JSON
    BINARY
    REGION


cdef struct EntryMembers:
    # The members of a tensor's entry that have been read. Pointers refer to the text.
    const unsigned char* shape
    Py_ssize_t rank  # number of dimensions in the text, which may be more than Layout can store
    const unsigned char* size  # the text of binary_data_size; NULL without one
    const unsigned char* data  # the text of data; NULL without one
    Fault size_fault  # of the integer binary_data_size
    long long nbytes  # the value of binary_data_size, unless it has a fault
    bint is_list  # whether `data` is a list
    bint has_nul  # whether the name contains a NUL
    Py_ssize_t name_nbytes  # size of the name in UTF-8
    bint is_measurable  # whether `layout` has all dimensions, and none is negative
    Layout layout


cdef class EntryReader:
    cdef HeaderCursor* header  # of the HeaderReader, which owns this object
    cdef Limits limits
    cdef str kind  # of the entry: "input", "output" or "requested output"
    cdef uint64_t n_elements  # of all tensors so far
    # The current entry. Its Python objects cannot be in the struct, which does not own references.
    cdef EntryMembers members
    cdef str name
    cdef Datatype datatype
    cdef str datatype_text  # as it was sent; None if that is the name of `datatype`
    cdef tuple shape  # None until `measure` has been called
    cdef dict parameters
    cdef object data

    cdef int read_entry(self) except -1
    cdef int open_entry(self) except -1
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
