from ..json.reader cimport raise_fault, scan_string_or_raise
from ..json.scanner cimport DUPLICATE_KEY, Keys, ReadCursor, Text, next_is


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


cdef struct HeaderCursor:
    # The position in a JSON header, and the path of the current member for error messages.
    ReadCursor cursor
    Keys keys  # keys of skipped members and objects; `cursor` points to this struct
    Text key  # of the current member
    const char* items  # the list of the current entry: "inputs" or "outputs"
    Py_ssize_t index  # of the current entry; -1 outside of entries


cdef int skip_member(HeaderCursor* header, int* seen) except -1
cdef int close_keys(HeaderCursor* header, Py_ssize_t first) except -1
cdef str read_text(HeaderCursor* header)
cdef dict read_parameters(HeaderCursor* header)
cdef unexpected_member_error(HeaderCursor* header, str expected)
cdef unexpected_value_error(HeaderCursor* header, str path, str expected)
cdef str path_of_entry(HeaderCursor* header)


cdef inline int mark_member(HeaderCursor* header, int* seen, int member) except -1:
    """Mark a member as read before its value is read. Raises HeaderError for a second one."""
    if seen[0] & member:
        header.cursor.position = header.key.begin - 1
        raise_fault(&header.cursor, DUPLICATE_KEY)
    seen[0] |= member
    return 0


cdef inline int scan_text(HeaderCursor* header, Text* text) except -1:
    if not next_is(&header.cursor, c'"'):
        raise unexpected_member_error(header, "a string")
    return scan_string_or_raise(&header.cursor, text)
