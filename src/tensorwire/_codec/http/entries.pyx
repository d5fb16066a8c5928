"""Read the entry of a tensor, or of a requested output, in a JSON header.

The `data` of a JSON tensor is parsed from the text directly into an array. The members of an entry
may have any order: if `data` precedes the datatype, shape or name, it is only validated at first,
and is parsed at the end of the entry. Errors contain SUBJECT in place of the tensor's name.
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport INT64_MAX, uint64_t

from ..bytes.array cimport bytes_of_wire
from ..datatypes cimport (
    Datatype, Layout, datatype_named, dims_as_tuple, fill_layout, format_range)
from ..gil cimport ITEM_COST, count_work
from ..http.members cimport (
    DATA, DATATYPE, NAME, PARAMETERS, SHAPE, close_keys, mark_member, path_of_entry, scan_text,
    skip_member, unexpected_member_error, unexpected_value_error)
from ..http.names cimport cached_name
from ..json.reader cimport (
    MAX_DATA_DEPTH, count_value, excerpt, next_item, next_member, open_level_or_raise,
    raise_fault, read_int64, read_numbers, read_strings, read_value, set_member, skip_data,
    skip_null, skip_value_or_raise, text_to_str)
from ..json.scanner cimport (
    DATA_TOO_DEEP, DUPLICATE_KEY, NO_FAULT, OUT_OF_RANGE, WRONG_TYPE, Fault, ReadCursor, Text,
    equals, next_is, utf8_nbytes_of)
from ..limits cimport DECODING, check_n_entries, check_rank
from ..messages.decoding cimport check_name, measure_layout, one_place_error
from ..messages.message cimport RequestedOutput, new_output
from ..wire cimport MAX_RANK

from itertools import compress

from ..datatypes import DATATYPES

from ...errors import SUBJECT, ElementError, HeaderError, LayoutError, format_count, format_shape

cnp.import_array()

cdef list PLACES = ["data", "binary_data_size", "shared_memory_region"]


@cython.final
@cython.freelist(8)
@cython.no_gc  # only the HeaderReader refers to it, so that it is in no cycle
cdef class EntryReader:

    cdef int read_entry(self) except -1:
        """Read the members of an entry, and set `entry` and the attributes that belong to it."""
        cdef ReadCursor* cursor = &self.header.cursor
        cdef EntryMembers* members = &self.members
        cdef Py_ssize_t first_key = cursor.keys.n_keys
        cdef Text* key = &self.header.key
        cdef int seen = 0
        self.open_entry()
        count_work(10 * ITEM_COST)
        members.shape = members.size = members.data = NULL
        members.is_list = False
        self.name = self.datatype_text = self.datatype = self.parameters = self.data = None
        self.shape = None
        while next_member(cursor, key, seen == 0):
            if equals(key, b"name", 4):
                mark_member(self.header, &seen, NAME)
                self.read_name()
            elif equals(key, b"datatype", 8):
                mark_member(self.header, &seen, DATATYPE)
                self.read_datatype()
            elif equals(key, b"shape", 5):
                mark_member(self.header, &seen, SHAPE)
                self.read_shape()
            elif equals(key, b"parameters", 10):
                mark_member(self.header, &seen, PARAMETERS)
                self.parameters = self.read_entry_parameters(b"binary_data_size", 16, &members.size)
            elif equals(key, b"data", 4):
                mark_member(self.header, &seen, DATA)
                if not skip_null(cursor):
                    self.read_data(seen & (NAME | SHAPE) == (NAME | SHAPE))
            else:
                skip_member(self.header, &seen)
        close_keys(self.header, first_key)
        if seen & (NAME | DATATYPE | SHAPE) != NAME | DATATYPE | SHAPE:
            raise self.incomplete_entry_error(seen)
        check_name(members.name_nbytes, members.has_nul, self.limits)
        return 0

    cdef int open_entry(self) except -1:
        cdef ReadCursor* cursor = &self.header.cursor
        self.header.index += 1
        check_n_entries(
            self.header.index, self.kind, self.limits, DECODING, cursor.position - cursor.start)
        if not next_is(cursor, c"{"):
            raise unexpected_value_error(self.header, "", "an object")
        return open_level_or_raise(cursor)

    cdef int read_name(self) except -1:
        cdef Text text
        scan_text(self.header, &text)
        self.name = cached_name(&text)
        self.members.name_nbytes = utf8_nbytes_of(&text)
        self.members.has_nul = text.has_escapes and "\0" in self.name
        return 0

    cdef int read_datatype(self) except -1:
        cdef Text text
        scan_text(self.header, &text)
        self.datatype = datatype_named(text.begin, text.nbytes)
        if self.datatype is None:  # an unknown name, or one with escapes
            self.datatype_text = text_to_str(&text)
            self.datatype = DATATYPES.get(self.datatype_text)
        return 0

    cdef int read_shape(self) except -1:
        """Read the dimensions to `layout`. Dimensions that it cannot store are only counted."""
        cdef ReadCursor* cursor = &self.header.cursor
        cdef EntryMembers* members = &self.members
        cdef Py_ssize_t n_dims = 0
        cdef long long dim = 0
        cdef Fault fault
        if not next_is(cursor, c"["):
            raise unexpected_member_error(self.header, "a list of integers")
        members.shape = cursor.position
        members.is_measurable = True
        open_level_or_raise(cursor)
        while next_item(cursor, n_dims == 0):
            fault = read_int64(cursor, &dim)
            if fault == WRONG_TYPE:
                raise unexpected_value_error(self.header, f".shape[{n_dims}]", "an integer")
            if fault != NO_FAULT and fault != OUT_OF_RANGE:
                raise_fault(cursor, fault)
            if fault == OUT_OF_RANGE or dim < 0 or n_dims >= MAX_RANK:
                members.is_measurable = False
                count_work(ITEM_COST)  # there may be many
            else:
                members.layout.dims[n_dims] = dim
            n_dims += 1
        members.rank = n_dims
        members.layout.rank = <int>n_dims if members.is_measurable else 0
        if n_dims > self.limits.max_rank:
            members.is_measurable = False
        return 0

    cdef dict read_entry_parameters(
        self, const char* reserved, Py_ssize_t reserved_nbytes, const unsigned char** value
    ):
        """Return the parameters of an entry, without the parameter with the name `reserved`.

        The result is None if there are no others. `value` is set to the text of the reserved
        parameter, unless that is missing or null. If it is an integer, `members.nbytes` is set.
        """
        cdef ReadCursor* cursor = &self.header.cursor
        cdef dict parameters = None
        cdef Text key
        cdef bint is_first = True
        cdef bint has_reserved = False
        if skip_null(cursor):
            return None
        if not next_is(cursor, c"{"):
            raise unexpected_member_error(self.header, "an object")
        open_level_or_raise(cursor)
        while next_member(cursor, &key, is_first):
            is_first = False
            if not equals(&key, reserved, reserved_nbytes):
                if parameters is None:
                    parameters = {}
                count_value(cursor)
                set_member(cursor, parameters, &key, read_value(cursor))
                continue
            if has_reserved:
                cursor.position = key.begin - 1
                raise_fault(cursor, DUPLICATE_KEY)
            has_reserved = True
            if not skip_null(cursor):
                value[0] = cursor.position
                self.members.size_fault = read_int64(cursor, &self.members.nbytes)
                if self.members.size_fault != NO_FAULT:
                    cursor.position = value[0]
                    skip_value_or_raise(cursor)
        return parameters

    cdef incomplete_entry_error(self, int seen):
        member = "name" if not seen & NAME else "datatype" if not seen & DATATYPE else "shape"
        return HeaderError(
            f'{path_of_entry(self.header)} has no "{member}"',
            offset=self.header.cursor.position - self.header.cursor.start)

    # --- shapes and sizes ---

    cdef tuple dims(self):
        cdef ReadCursor cursor
        if not self.members.is_measurable:
            check_rank(self.members.rank, self.limits.max_rank, DECODING)
            cursor = self.header.cursor
            cursor.position, cursor.level = self.members.shape, 0
            cursor.n_values_left = self.members.rank
            return tuple(read_value(&cursor))
        return dims_as_tuple(self.members.layout.dims, self.members.layout.rank)

    cdef int measure(self) except -1:
        """Set `shape`, and the number of elements and bytes of the entry, or raise LayoutError."""
        cdef Layout* layout = &self.members.layout
        self.shape = self.dims()
        if not self.members.is_measurable:  # the layout does not have the dimensions
            fill_layout(layout, self.shape, self.datatype, self.limits.max_rank, DECODING)  # raises
        return measure_layout(layout, self.shape, self.datatype, &self.n_elements, self.limits)

    cdef DataPlace data_place(self, bint has_region) except *:
        """Return where the data of the entry is. Raises HeaderError unless that is one place."""
        cdef bint is_json = self.members.data != NULL
        cdef bint is_binary = self.members.size != NULL
        if is_json and not is_binary and not has_region:
            return JSON
        if is_binary and not is_json and not has_region:
            return BINARY
        if has_region and not is_json and not is_binary:
            return REGION
        # OVMS sends an empty output with none of these (WIRE.md 3).
        has_none = not (is_json or is_binary or has_region)
        if has_none and self.kind == "output" and 0 in self.dims():
            return BINARY
        present = [is_json, is_binary, has_region]
        raise one_place_error(PLACES, list(compress(PLACES, present)))

    cdef Py_ssize_t declared_nbytes(self) except -1:
        cdef EntryMembers* members = &self.members
        cdef ReadCursor cursor
        if members.size == NULL:
            return 0
        if members.size_fault == NO_FAULT and members.nbytes >= 0:
            return members.nbytes
        cursor = self.header.cursor
        cursor.position = members.size
        offset = members.size - cursor.start
        if members.size_fault == WRONG_TYPE:
            raise HeaderError(
                f"binary_data_size of {SUBJECT} must be an integer, not {excerpt(&cursor)}",
                offset=offset)
        is_negative = members.size[0] == c"-"
        problem = "is negative" if is_negative else "exceeds 2^63 - 1 bytes"
        raise LayoutError(
            f"binary_data_size of {SUBJECT} {problem}: {excerpt(&cursor)}",
            offset=offset, expected=0 if is_negative else INT64_MAX, actual=read_value(&cursor))

    # --- JSON data ---

    cdef int read_data(self, bint is_described) except -1:
        """Parse the data at the cursor, or only validate it if it cannot be parsed yet.

        `is_described` is True if the name and the shape have been read.
        """
        cdef EntryMembers* members = &self.members
        cdef ReadCursor* cursor = &self.header.cursor
        members.data = cursor.position
        members.is_list = next_is(cursor, c"[")
        if not members.is_list:
            skip_value_or_raise(cursor)
        elif is_described and self.datatype is not None:
            self.parse_elements()
        else:
            skip_data(cursor)
        return 0

    cdef int read_skipped_data(self) except -1:
        """Parse data that preceded the datatype, shape or name. The cursor does not move."""
        cdef const unsigned char* position = self.header.cursor.position
        cdef int level = self.header.cursor.level
        self.header.cursor.position = self.members.data
        if not self.members.is_list:
            offset = self.members.data - self.header.cursor.start
            raise HeaderError(
                f"the JSON data of {SUBJECT} must be a list, not {excerpt(&self.header.cursor)} "
                f"(byte {offset})", offset=offset)
        try:
            self.parse_elements()
        finally:
            self.header.cursor.position, self.header.cursor.level = position, level
        return 0

    cdef int parse_elements(self) except -1:
        """Set `data` to the elements of the lists at the cursor, in new memory (WIRE.md 4).

        An element takes at least two bytes of the text. Memory is only allocated if the text has
        room for the number of elements.
        """
        cdef Layout* layout = &self.members.layout
        cdef Datatype datatype = self.datatype
        cdef uint64_t n_expected, n_read = 0
        cdef Fault fault = NO_FAULT
        cdef cnp.ndarray array
        cdef bytes wire = None
        if not datatype.in_json:
            raise HeaderError(
                f"{SUBJECT} has JSON data, but {datatype.name} can only be sent as binary data")
        self.measure()
        n_expected = layout.n_elements
        if n_expected > <uint64_t>(self.header.cursor.end - self.header.cursor.position) // 2:
            n_expected = 0  # the text has fewer elements, which is an error
        if datatype.dtype is None:
            wire = read_strings(&self.header.cursor, n_expected, &n_read, &fault)
        elif n_expected == layout.n_elements:
            array = cnp.PyArray_EMPTY(layout.rank, layout.dims, datatype.dtype.type_num, 0)
            fault = read_numbers(
                &self.header.cursor, datatype.dtype, <char*>cnp.PyArray_DATA(array), n_expected,
                &n_read)
            self.data = array
        else:
            fault = read_numbers(&self.header.cursor, datatype.dtype, NULL, 0, &n_read)
        if fault != NO_FAULT:
            self.raise_data_fault(fault, n_read)
        if n_read != layout.n_elements:
            raise LayoutError(
                f"{SUBJECT} does not match its shape: {datatype.name} {format_shape(self.shape)} "
                f"requires {format_count('element', layout.n_elements)}, but its JSON data has "
                f"{n_read}",
                expected=layout.n_elements, actual=n_read)
        if wire is not None:
            self.data = bytes_of_wire(wire, self.shape)
        return 0

    cdef int raise_data_fault(self, Fault fault, uint64_t element) except -1:
        cdef Datatype datatype = self.datatype
        offset = self.header.cursor.position - self.header.cursor.start
        self.data = None
        if fault == DATA_TOO_DEEP:
            raise HeaderError(
                f"the JSON data of {SUBJECT} is nested too deeply; the limit is {MAX_DATA_DEPTH} "
                f"lists (byte {offset})", expected=MAX_DATA_DEPTH, offset=offset)
        if fault not in (WRONG_TYPE, OUT_OF_RANGE):
            raise_fault(&self.header.cursor, fault)
        value = excerpt(&self.header.cursor)
        kind = None if datatype.dtype is None else (<object>datatype.dtype).kind
        if fault == WRONG_TYPE:
            expected = {None: "a string", "b": "true or false", "f": "a number"}.get(
                kind, "an integer")
            problem = f"must be {expected} ({datatype.name}), not {value}"
        elif kind is None:
            problem = f"is {value}, which is too long for BYTES; the limit is 2^32 - 1 bytes"
        else:
            problem = f"is {value}, which is out of range for {format_range(datatype)}"
        raise ElementError(
            f"element {element} of {SUBJECT} {problem} (byte {offset})",
            element=element, offset=offset)

    # --- requested outputs ---

    cdef RequestedOutput read_output(self):
        cdef ReadCursor* cursor = &self.header.cursor
        cdef Py_ssize_t first_key = cursor.keys.n_keys
        cdef const unsigned char* binary = NULL
        cdef dict parameters = None
        cdef Text* key = &self.header.key
        cdef int seen = 0
        self.name = None
        self.open_entry()
        while next_member(cursor, key, seen == 0):
            if equals(key, b"name", 4):
                mark_member(self.header, &seen, NAME)
                self.read_name()
            elif equals(key, b"parameters", 10):
                mark_member(self.header, &seen, PARAMETERS)
                parameters = self.read_entry_parameters(b"binary_data", 11, &binary)
            else:
                skip_member(self.header, &seen)
        close_keys(self.header, first_key)
        if not seen & NAME:
            raise self.incomplete_entry_error(seen | DATATYPE | SHAPE)
        check_name(self.members.name_nbytes, self.members.has_nul, self.limits)
        if binary == NULL:
            return new_output(self.name, None, parameters)
        if binary[0] != c"t" and binary[0] != c"f":
            cursor.position = binary
            raise HeaderError(
                f"binary_data of {SUBJECT} must be true or false, not {excerpt(cursor)}",
                offset=binary - cursor.start)
        return new_output(self.name, binary[0] == c"t", parameters)
