"""Read and write the fields of the wire format of protobuf. No Python objects."""

from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t


cdef enum:
    MAX_VARINT_NBYTES = 10
    MAX_MESSAGE_NBYTES = 0x7FFFFFFF  # of a message, and of each field that has a length
    MAX_MESSAGE_DEPTH = 100  # of messages and groups, as in Google's implementations


cdef enum WireType:
    VARINT = 0
    FIXED64 = 1
    LENGTH_DELIMITED = 2
    START_GROUP = 3
    END_GROUP = 4
    FIXED32 = 5


cdef enum FieldFault:
    NO_FIELD_FAULT
    FIELD_TRUNCATED  # the message, or the field that contains it, ends inside the field
    VARINT_TOO_LONG
    TAG_INVALID  # no field number, or one above 2^29 - 1
    WIRE_TYPE_INVALID
    LENGTH_TOO_LARGE
    GROUP_MISMATCH  # the end of a group that was not begun
    FIELDS_TOO_DEEP


# The fields of one message that have not been read: those from `position` to `end`.
cdef struct FieldCursor:
    const unsigned char* position
    const unsigned char* end
    int depth  # of the message: 1 for the outermost one


cdef struct Field:
    const unsigned char* tag  # where the field begins
    uint32_t number
    WireType wire_type
    int depth  # of the message that has the field
    uint64_t value  # of VARINT
    # The bytes of the value, without the length. Those of a group are empty.
    const unsigned char* begin
    const unsigned char* end


cdef inline FieldFault read_varint(FieldCursor* fields, uint64_t* value) noexcept nogil:
    """Read an integer of up to 64 bits. Bits above these are ignored."""
    cdef uint64_t result = 0
    cdef int shift = 0
    cdef unsigned char byte
    while fields.position < fields.end:
        byte = fields.position[0]
        if shift == 7 * MAX_VARINT_NBYTES:
            return VARINT_TOO_LONG
        fields.position += 1
        result |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            return NO_FIELD_FAULT
        shift += 7
    return FIELD_TRUNCATED


cdef inline FieldFault read_tag(FieldCursor* fields, Field* field) noexcept nogil:
    """Read the number and the wire type of a field."""
    cdef uint64_t tag = 0
    cdef FieldFault fault
    field.tag = field.begin = field.end = fields.position
    fault = read_varint(fields, &tag)
    if fault != NO_FIELD_FAULT:
        return fault
    if tag > UINT32_MAX or tag < 8 or fields.position - field.tag > 5:
        return TAG_INVALID
    field.depth = fields.depth
    field.number = <uint32_t>(tag >> 3)
    field.wire_type = <WireType>(tag & 7)
    return NO_FIELD_FAULT


cdef inline FieldFault read_field_value(FieldCursor* fields, Field* field) noexcept nogil:
    """Read what follows a tag, except for groups. The bounds are compared by subtraction."""
    cdef uint64_t nbytes = 0
    cdef FieldFault fault
    field.begin = field.end = fields.position
    if field.wire_type == VARINT:
        fault = read_varint(fields, &field.value)
        field.end = fields.position
        return fault
    if field.wire_type == LENGTH_DELIMITED:
        fault = read_varint(fields, &nbytes)
        if fault != NO_FIELD_FAULT:
            return fault
        if nbytes > MAX_MESSAGE_NBYTES:
            return LENGTH_TOO_LARGE
        field.begin = fields.position
    elif field.wire_type == FIXED64:
        nbytes = 8
    elif field.wire_type == FIXED32:
        nbytes = 4
    else:
        return WIRE_TYPE_INVALID
    if nbytes > <uint64_t>(fields.end - fields.position):
        return FIELD_TRUNCATED
    fields.position += nbytes
    field.end = fields.position
    return NO_FIELD_FAULT


cdef inline FieldFault skip_group(FieldCursor* fields, uint32_t number) noexcept nogil:
    """Skip the fields of a group, whose start has been read, and its end."""
    cdef uint32_t[MAX_MESSAGE_DEPTH] numbers  # of the groups that are open
    cdef int n_open = 0
    cdef Field field
    cdef FieldFault fault
    field.number, field.wire_type = number, START_GROUP
    while True:
        if field.wire_type == START_GROUP:
            if n_open > MAX_MESSAGE_DEPTH - fields.depth:
                return FIELDS_TOO_DEEP
            numbers[n_open] = field.number
            n_open += 1
        elif field.wire_type == END_GROUP:
            n_open -= 1
            if field.number != numbers[n_open]:
                return GROUP_MISMATCH
            if n_open == 0:
                return NO_FIELD_FAULT
        else:
            fault = read_field_value(fields, &field)
            if fault != NO_FIELD_FAULT:
                return fault
        if fields.position == fields.end:
            return FIELD_TRUNCATED
        fault = read_tag(fields, &field)
        if fault != NO_FIELD_FAULT:
            return fault


cdef inline FieldFault next_field(FieldCursor* fields, Field* field) noexcept nogil:
    """Read the field at the position, which is before the end.

    A group is skipped. It has no value: messages of this protocol have no groups.
    """
    cdef FieldFault fault = read_tag(fields, field)
    if fault != NO_FIELD_FAULT:
        return fault
    if field.wire_type == START_GROUP:
        return skip_group(fields, field.number)
    if field.wire_type == END_GROUP:
        return GROUP_MISMATCH
    return read_field_value(fields, field)


cdef inline FieldCursor cursor_of(const Field* field) noexcept nogil:
    cdef FieldCursor fields
    fields.position, fields.end, fields.depth = field.begin, field.end, field.depth + 1
    return fields


# --- writing ---


cdef inline uint64_t varint_nbytes(uint64_t value) noexcept nogil:
    cdef uint64_t nbytes = 1
    while value >= 0x80:
        value >>= 7
        nbytes += 1
    return nbytes


cdef inline unsigned char* write_varint(unsigned char* target, uint64_t value) noexcept nogil:
    while value >= 0x80:
        target[0] = <unsigned char>(value | 0x80)
        target += 1
        value >>= 7
    target[0] = <unsigned char>value
    return target + 1


cdef inline uint64_t field_nbytes(uint64_t nbytes) noexcept nogil:
    """Return the size of a field of `nbytes` bytes, with its tag and length.

    All numbers of fields of this protocol are below 16, so that a tag has one byte.
    """
    return 1 + varint_nbytes(nbytes) + nbytes


cdef inline unsigned char* write_tag(
    unsigned char* target, unsigned char number, WireType wire_type
) noexcept nogil:
    target[0] = <unsigned char>(number << 3 | wire_type)
    return target + 1


cdef inline unsigned char* begin_field(
    unsigned char* target, unsigned char number, uint64_t nbytes
) noexcept nogil:
    """Write the tag and the length of a field of `nbytes` bytes, and return where they begin."""
    return write_varint(write_tag(target, number, LENGTH_DELIMITED), nbytes)
