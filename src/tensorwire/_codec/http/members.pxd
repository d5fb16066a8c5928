from libc.stdint cimport uint64_t

from ..body cimport Body
from ..datatypes cimport Datatype, Layout, Limits
from ..json.reader cimport raise_fault
from ..json.scanner cimport DUPLICATE_KEY, Fault, Keys, ReadCursor, Text
from ..messages.message cimport Message

# The members of the current object that have been read.
cdef enum Seen:
    NAME = 1
    DATATYPE = 2
    SHAPE = 4
    PARAMETERS = 8
    DATA = 16
    TENSORS = 32
    OUTPUTS = 64
    ID = 128
    MODEL_NAME = 256
    MODEL_VERSION = 512
    OTHER = 1024


cdef struct EntryFields:
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


cdef class MemberReader:
    # All fields of the readers are here, because subclasses use its freelist only if they add none.
    cdef Body header  # keeps the memory of the header alive
    cdef unsigned char* copied  # the header, if it was copied; NULL otherwise
    cdef ReadCursor cursor
    cdef Keys keys  # keys of skipped members and objects; `cursor` points to this struct
    cdef Text key  # the key of the member that is being read, for error messages
    # The position of the entry for error messages, such as "input", 0; -1 outside of entries.
    cdef str item_kind
    cdef Py_ssize_t index

    # --- of EntryReader ---
    cdef Limits limits
    cdef uint64_t n_elements  # of all tensors so far
    # The current entry. Its Python objects cannot be in the struct, which does not own references.
    cdef EntryFields entry
    cdef str name
    cdef Datatype datatype
    cdef str datatype_text  # as it was sent; None if that is the name of `datatype`
    cdef tuple shape  # None until `measure` has been called
    cdef dict parameters
    cdef object data

    # --- of HeaderReader ---
    cdef Body body  # the memory that `offset` refers to, which is one of `parts` if there are any
    cdef tuple parts  # the Body of each buffer of `data`; None if the header is in the body, too
    cdef Py_ssize_t part  # index of `body` in `parts`
    cdef str kind  # the kind of the tensors: "input" or "output"
    cdef Py_ssize_t header_nbytes
    cdef Py_ssize_t offset  # of the next binary tensor in `body`; at most the size of `body`
    cdef str server_error  # the "error" of a server's error response, or None
    cdef Message message
    cdef bint has_tensors  # the list of tensors has been read
    cdef dict regions  # of outputs in shared memory, or None

    cdef int skip_member(self, int* seen) except -1
    cdef int close_keys(self, Py_ssize_t first) except -1
    cdef int scan_text(self, Text* text) except -1
    cdef str read_text(self)
    cdef dict read_parameters(self)
    cdef unexpected_member_error(self, str expected)
    cdef unexpected_value_error(self, str path, str expected)
    cdef str path_of_entry(self)


cdef inline int mark_member(MemberReader reader, int* seen, int member) except -1:
    """Mark a member as read before its value is read. Raises HeaderError for a second one."""
    if seen[0] & member:
        reader.cursor.position = reader.key.begin - 1
        raise_fault(&reader.cursor, DUPLICATE_KEY)
    seen[0] |= member
    return 0
