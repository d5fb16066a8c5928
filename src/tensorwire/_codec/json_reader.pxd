"""Read JSON values at a cursor; see json_reader.pyx."""

from libc.stdint cimport uint64_t
from numpy cimport dtype

from .json_scanner cimport Fault, Keys, ReadCursor, Text

cdef enum:
    MAX_INTEGER_DIGITS = 4300  # Python's default; converting text to int takes quadratic time
    MAX_DATA_DEPTH = 100  # nested lists in `data`; a tensor has at most 64 dimensions


cdef void begin_reading(
    ReadCursor* cursor, Keys* keys, const char* text, Py_ssize_t nbytes, int max_level,
    Py_ssize_t max_values) noexcept
cdef void end_reading(Keys* keys) noexcept
cdef void count_work(ReadCursor* cursor, Py_ssize_t n) noexcept
cdef int raise_fault(ReadCursor* cursor, Fault fault) except -1
cdef str excerpt(ReadCursor* cursor)
cdef int open_level_or_raise(ReadCursor* cursor) except -1
cdef bint next_item(ReadCursor* cursor, bint is_first) except -1
cdef bint next_member(ReadCursor* cursor, Text* key, bint is_first) except -1
cdef str text_to_str(const Text* text)
cdef int count_value(ReadCursor* cursor) except -1
cdef object read_value(ReadCursor* cursor)
cdef dict read_object(ReadCursor* cursor)
cdef int set_member(ReadCursor* cursor, dict members, const Text* key, value) except -1
cdef int skip_value_or_raise(ReadCursor* cursor) except -1
cdef int skip_data(ReadCursor* cursor) except -1
cdef Fault read_numbers(
    ReadCursor* cursor, dtype dtype, char* target, uint64_t n_expected, uint64_t* n_read)
cdef bytes read_strings(ReadCursor* cursor, uint64_t n_expected, uint64_t* n_read, Fault* fault)
