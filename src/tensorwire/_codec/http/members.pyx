"""Read the members of the objects in a JSON header. Errors have the path of the member."""

from ..gil cimport ITEM_COST, count_or_release_gil, count_work, take_gil
from ..json.reader cimport (
    excerpt, raise_fault, read_object, skip_null, skip_value_or_raise, text_to_str)
from ..json.scanner cimport NO_FAULT, Fault, Text, next_is, pop_keys, push_key

from ...errors import HeaderError


cdef int skip_member(HeaderCursor* header, int* seen) except -1:
    """Validate a member that the protocol does not define, and store its key."""
    cdef Fault fault = push_key(&header.cursor, header.key.begin)
    if fault != NO_FAULT:
        raise_fault(&header.cursor, fault)
    seen[0] |= OTHER
    count_work(ITEM_COST)
    return skip_value_or_raise(&header.cursor)


cdef int close_keys(HeaderCursor* header, Py_ssize_t first) except -1:
    """Check that the keys of an object, which were stored from `first` on, are unique."""
    cdef Fault fault
    if header.keys.n_keys > first:
        released = count_or_release_gil(ITEM_COST * (header.keys.n_keys - first))
        fault = pop_keys(&header.cursor, first)
        take_gil(released)
        if fault != NO_FAULT:
            raise_fault(&header.cursor, fault)
    return 0


cdef str read_text(HeaderCursor* header):
    cdef Text text
    if skip_null(&header.cursor):
        return None
    scan_text(header, &text)
    return text_to_str(&text)


cdef dict read_parameters(HeaderCursor* header):
    if skip_null(&header.cursor):
        return None
    if not next_is(&header.cursor, c"{"):
        raise unexpected_member_error(header, "an object")
    return read_object(&header.cursor) or None


cdef unexpected_member_error(HeaderCursor* header, str expected):
    """Return the error for the value of the current member, which has the wrong type."""
    return unexpected_value_error(header, f".{text_to_str(&header.key)}", expected)


cdef unexpected_value_error(HeaderCursor* header, str path, str expected):
    """Return the error for the value at the cursor. `path` follows that of the entry.

    If the value is not valid JSON, that error is raised.
    """
    offset = header.cursor.position - header.cursor.start
    path = path_of_entry(header) + path if header.index >= 0 else path.lstrip(".")
    return HeaderError(
        f"{path} must be {expected}, not {excerpt(&header.cursor)} (byte {offset})", offset=offset)


cdef str path_of_entry(HeaderCursor* header):
    return f"{header.items.decode('ascii')}[{header.index}]"
