"""Read the members of the objects in a JSON header. Errors have the path of the member."""

cimport cython

from ..gil cimport ITEM_COST, count_work, free_memory, release_gil, take_gil
from ..json.reader cimport (
    end_reading, excerpt, raise_fault, read_object, scan_string_or_raise,
    skip_null, skip_value_or_raise, text_to_str)
from ..json.scanner cimport NO_FAULT, Fault, Text, next_is, pop_keys, push_key

from ...errors import HeaderError


@cython.freelist(8)
@cython.no_gc  # no object refers to a reader, so that it is in no cycle
cdef class MemberReader:

    def __dealloc__(self):
        end_reading(&self.keys)  # all zero if reading did not begin
        if self.copied != NULL:
            free_memory(self.copied, self.header_nbytes)

    cdef int skip_member(self, int* seen) except -1:
        """Validate a member that the protocol does not define, and store its key."""
        cdef Fault fault = push_key(&self.cursor, self.key.begin)
        if fault != NO_FAULT:
            raise_fault(&self.cursor, fault)
        seen[0] |= OTHER
        count_work(ITEM_COST)
        return skip_value_or_raise(&self.cursor)

    cdef int close_keys(self, Py_ssize_t first) except -1:
        """Check that the keys of an object, which were stored from `first` on, are unique."""
        cdef Fault fault
        if self.keys.n_keys > first:
            released = release_gil(ITEM_COST * (self.keys.n_keys - first))
            fault = pop_keys(&self.cursor, first)
            take_gil(released)
            if fault != NO_FAULT:
                raise_fault(&self.cursor, fault)
        return 0

    cdef int scan_text(self, Text* text) except -1:
        if not next_is(&self.cursor, c'"'):
            raise self.unexpected_member_error("a string")
        return scan_string_or_raise(&self.cursor, text)

    cdef str read_text(self):
        cdef Text text
        if skip_null(&self.cursor):
            return None
        self.scan_text(&text)
        return text_to_str(&text)

    cdef dict read_parameters(self):
        if skip_null(&self.cursor):
            return None
        if not next_is(&self.cursor, c"{"):
            raise self.unexpected_member_error("an object")
        return read_object(&self.cursor) or None

    cdef unexpected_member_error(self, str expected):
        """Return the error for the value of the current member, which has the wrong type."""
        return self.unexpected_value_error(f".{text_to_str(&self.key)}", expected)

    cdef unexpected_value_error(self, str path, str expected):
        """Return the error for the value at the cursor. `path` follows that of the entry.

        If the value is not valid JSON, that error is raised.
        """
        offset = self.cursor.position - self.cursor.start
        path = self.path_of_entry() + path if self.index >= 0 else path.lstrip(".")
        return HeaderError(
            f"{path} must be {expected}, not {excerpt(&self.cursor)} (byte {offset})",
            offset=offset)

    cdef str path_of_entry(self):
        return f"{'inputs' if self.item_kind == 'input' else 'outputs'}[{self.index}]"
