"""Decode gRPC messages. The tensors of a decoded message are views of it (WIRE.md 12).

`MessageReader` reads the fields of a message in the order in which they were sent, which may be any
order. Raw contents are assigned to the tensors at the end. The functions that read the entry of a
tensor raise errors with SUBJECT in place of its name; `read_tensor` and `finish` replace it.

If a message is not a `bytes` object, another thread could write to it at any time. Every length is
therefore checked wherever it is read, before it is used.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from ..bytes.array cimport bytes_of_wire
from ..datatypes cimport (
    Datatype, Layout, datatype_named, dims_as_tuple, fill_layout, format_range)
from ..gil cimport (
    ITEM_COST, LONG_NBYTES, TEXT_COST, collect_work, copied_bytes, count_or_release_gil,
    count_or_release_gil_unless_short, count_work, take_gil)
from ..grpc.protobuf cimport (
    FIELDS_TOO_DEEP, FIELD_TRUNCATED, FIXED32, FIXED64, GROUP_MISMATCH, LENGTH_DELIMITED,
    LENGTH_TOO_LARGE, MAX_MESSAGE_DEPTH, MAX_MESSAGE_NBYTES, NO_FIELD_FAULT, START_GROUP,
    TAG_INVALID, VARINT, VARINT_TOO_LONG, WIRE_TYPE_INVALID, Field, FieldFault, FieldCursor,
    WireType, cursor_of, next_field, read_field_value, read_tag, read_varint)
from ..held_buffer cimport HeldBuffer
from ..json.reader cimport text_to_str
from ..json.scanner cimport Text
from ..limits cimport DECODING, Limits, check_n_entries, check_rank
from ..messages.decoding cimport (
    check_name, check_request, has_shared_memory, measure_layout, one_place_error,
    set_requested, set_tensors, unknown_datatype_error, view_body)
from ..messages.message cimport (
    InferRequest, InferResponse, Message, RequestedOutput, new_message, new_output)
from ..messages.parameters cimport has_nul
from ..messages.tensor cimport Tensor, is_shared, new_tensor, use_converted
from ..new_objects cimport shrunk_bytes
from ..utf8 cimport is_ascii, is_valid_utf8, whole_characters
from ..wire cimport MAX_RANK, PREFIX_NBYTES, store_le32, store_low_bytes

from ..limits import DEFAULT_LIMITS
from ..signatures import ReadableBuffer

from ...errors import (
    SUBJECT, DecodeError, ElementError, ErrorResponseError, HeaderError, LayoutError, format_count,
    format_shape, format_value, name_tensor)

cnp.import_array()

# For annotations: what is declared in C has no name in this module at run time.
globals().update(InferRequest=InferRequest, InferResponse=InferResponse, Limits=Limits)

cdef enum:
    N_CONTENTS = 9  # the numbers of the fields of InferTensorContents are 1 to 8

# The fields of InferTensorContents, and the wire type of one element of each.
cdef tuple CONTENTS_NAMES = (
    None, "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents",
    "fp32_contents", "fp64_contents", "bytes_contents")
cdef WireType[N_CONTENTS] ELEMENT_TYPES
ELEMENT_TYPES[:] = [
    VARINT, VARINT, VARINT, VARINT, VARINT, VARINT, FIXED32, FIXED64, LENGTH_DELIMITED]

# Fields of ModelInferRequest, for `read_fields`.
cdef dict NAMES = {1: ("model_name", str), 2: ("model_version", str), 3: ("id", str)}

# The field that has the elements of a datatype. FP16 and BF16 have none.
cdef dict CONTENTS_OF = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4,
    "UINT64": 5, "FP32": 6, "FP64": 7, "BYTES": 8,
}


def decode_request(
    message: ReadableBuffer, *, Limits limits not None: Limits = DEFAULT_LIMITS,
) -> InferRequest:
    """Decode a ``ModelInferRequest``, and return its tensors as views of ``message`` (WIRE.md 12).

    Parameters
    ----------
    message : buffer
        The serialized message: a C-contiguous buffer of bytes.
    limits : Limits, default Limits()
        Limits and options. ``max_header_nbytes`` applies to everything but the data of tensors and
        fields that are skipped; ``max_nesting`` does not apply.

    Returns
    -------
    InferRequest
        Tensors in ``raw_input_contents`` are views of ``message``: they are not copied, keep the
        whole message alive, and are writable if it is. Their ``binary`` is True. Typed ``contents``
        are converted to memory of their own.

    Raises
    ------
    DecodeError
        The message is not a valid request: ``HeaderError``, ``LayoutError`` or ``ElementError``.
    TypeError
        An argument has the wrong type.
    BufferError
        The message is not contiguous, or its items are not bytes.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> import tensorwire.grpc
    >>> request = tw.InferRequest({"x": np.array([1, 2], np.uint8)}, model_name="m")
    >>> tw.grpc.decode_request(tw.grpc.encode_request(request))["x"].as_numpy()
    array([1, 2], dtype=uint8)
    """
    return decoded(message, limits, True)


def decode_response(
    message: ReadableBuffer, *, Limits limits not None: Limits = DEFAULT_LIMITS,
) -> InferResponse:
    """Decode a ``ModelInferResponse``, and return its tensors as views of it (WIRE.md 12).

    Parameters
    ----------
    message, limits
        See ``decode_request``.

    Returns
    -------
    InferResponse
        The outputs in the order in which the server sent them. Tensors in ``raw_output_contents``
        are views of ``message``: they are not copied, keep the whole message alive, and are
        writable if it is.

    Raises
    ------
    DecodeError
        The message is not a valid response: ``HeaderError``, ``LayoutError`` or ``ElementError``.
    TypeError
        An argument has the wrong type.
    BufferError
        The message is not contiguous, or its items are not bytes.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> import tensorwire.grpc
    >>> message = tw.grpc.encode_response(tw.InferResponse({"y": np.array([0.5, 1])}))
    >>> tw.grpc.decode_response(message)["y"].as_numpy()
    array([0.5, 1. ])
    """
    return decoded(message, limits, False)


def decode_response_in_regions(message, *, dict regions, Limits limits not None=DEFAULT_LIMITS):
    """Decode a response some of whose outputs were requested in regions of shared memory.

    Triton's response does not say so. `regions` has their parameters, by the names of the outputs.
    """
    cdef MessageReader reader = new_reader(message, limits, False)
    reader.regions = regions
    reader.read_message_fields(outermost(reader.body))
    return reader.finish()


def decode_stream_response(
    message: ReadableBuffer, *, Limits limits not None: Limits = DEFAULT_LIMITS,
) -> InferResponse:
    """Decode a ``ModelStreamInferResponse``, and return the response that it contains (WIRE.md 12).

    Parameters
    ----------
    message, limits
        See ``decode_request``.

    Returns
    -------
    InferResponse
        See ``decode_response``.

    Raises
    ------
    ErrorResponseError
        The message is the error of a server. The text of the exception contains the server's text.
    DecodeError, TypeError, BufferError
        See ``decode_response``.

    Examples
    --------
    >>> import tensorwire.grpc
    >>> tensorwire.grpc.decode_stream_response(b"\\n\\x0cout of order")
    Traceback (most recent call last):
    tensorwire.errors.ErrorResponseError: the server returned an error: out of order
    """
    error, response = read_stream_response(message, limits)
    if error is not None:
        raise ErrorResponseError.quoting(error)
    return response


def read_stream_response(message, Limits limits not None = DEFAULT_LIMITS):
    """Return the error of a ``ModelStreamInferResponse`` and None, or None and its response."""
    cdef MessageReader reader = new_reader(message, limits, False)
    cdef FieldCursor fields = outermost(reader.body)
    cdef Field field
    cdef str error = ""
    while fields.position < fields.end:
        reader.next(&fields, &field)
        if field.wire_type != LENGTH_DELIMITED:
            continue
        if field.number == 1:
            error = reader.text(&field, "error_message")
        elif field.number == 2:
            reader.read_message_fields(cursor_of(&field))
    if error:
        return error, None
    return None, reader.finish()


cdef str decode_long_utf8(const unsigned char* data, Py_ssize_t nbytes, Py_ssize_t* n_valid):
    """Decode text that does not change. Long text is validated in pieces, then without the GIL.

    For a UnicodeDecodeError, `n_valid` is the size of the valid pieces before the one of the error.
    """
    cdef Py_ssize_t n = nbytes
    cdef Text text
    text.begin, text.nbytes = data, nbytes
    text.is_ascii, text.has_escapes = True, False
    while nbytes > LONG_NBYTES:
        if n_valid[0] == nbytes:
            return text_to_str(&text)
        n = min(nbytes - n_valid[0], <Py_ssize_t>LONG_NBYTES)
        if n_valid[0] + n < nbytes:
            n = whole_characters(data + n_valid[0], n)
        if not is_ascii(data + n_valid[0], n):
            text.is_ascii = False
            if not is_valid_utf8(data + n_valid[0], n):
                break
        count_work(n)
        n_valid[0] += n
    # The whole text, or an invalid piece, for which this raises the error.
    return PyUnicode_DecodeUTF8(<const char*>data + n_valid[0], n, "strict")


cdef Message decoded(message, Limits limits, bint is_request):
    cdef MessageReader reader = new_reader(message, limits, is_request)
    reader.read_message_fields(outermost(reader.body))
    return reader.finish()


cdef FieldCursor outermost(HeldBuffer body) noexcept:
    cdef FieldCursor fields
    fields.position, fields.end, fields.depth = body.data, body.data + body.nbytes, 1
    return fields


# --- messages ------------------------------------------------------------------------------------


cdef struct EntryFields:
    # What has been read of the entry of a tensor.
    Py_ssize_t name_nbytes
    Py_ssize_t rank  # the number of dimensions, which may be more than `layout` can store
    uint64_t contents_nbytes  # of the typed contents
    Layout layout


cdef struct Contents:
    uint32_t number  # of the field of the datatype, or 0
    uint32_t other  # the number of the first other field with elements, or 0
    uint64_t n_read  # elements of the field, whether they are stored or not
    # Where the elements are stored, and how.
    uint64_t n_room  # the number of elements for which there is room
    unsigned char* target
    unsigned char* end
    uint64_t itemsize
    uint64_t bias  # makes integers in range positive: 2^(n-1) if they are signed, else 0
    const unsigned char* begin  # of the field or packed integer that is being read
    # The first integer that is out of range, or NULL; its value and its index.
    const unsigned char* out_of_range
    int64_t value
    uint64_t element


@cython.final
@cython.freelist(8)
@cython.no_gc  # no object refers to a MessageReader, so that it is in no cycle
cdef class MessageReader:
    """Reads a ModelInferRequest or ModelInferResponse. Its fields contain the state."""

    cdef HeldBuffer body
    cdef Limits limits
    cdef Message message
    cdef bint is_request
    cdef str kind  # the kind of the tensors: "input" or "output"
    cdef list tensors
    cdef list requested
    cdef list raw  # the offset and the size of each raw content
    cdef dict regions  # of outputs in shared memory, or None
    cdef Py_ssize_t n_parameters
    cdef Py_ssize_t header_nbytes  # bytes so far that are not data of a tensor
    cdef Py_ssize_t counted_nbytes  # of these, those whose work has been counted
    cdef Py_ssize_t next_check  # the value of `header_nbytes` from which on it is checked
    cdef uint64_t n_elements  # of all tensors so far
    # The path of what is being read, for errors: "inputs", 0, "contents", for example.
    cdef str items  # the list of the current entry
    cdef Py_ssize_t index  # of the current entry; -1 outside of entries
    cdef str member  # None outside of members that are messages
    # The current entry.
    cdef EntryFields entry
    cdef str name
    cdef Datatype datatype
    cdef str datatype_text
    cdef dict parameters

    # --- fields ---

    cdef int next(self, FieldCursor* fields, Field* field) except -1:
        cdef FieldFault fault = next_field(fields, field)
        cdef bint has_length = field.wire_type == LENGTH_DELIMITED
        if fault != NO_FIELD_FAULT:
            self.raise_fault(fault, field.tag)
        return self.count_header(
            (field.begin if has_length else fields.position) - field.tag, field)

    cdef inline int count_header(self, Py_ssize_t nbytes, const Field* field) except -1:
        """Count bytes of a field that are not data of a tensor. Raises HeaderError.

        Each field is counted, and each byte of text, so that this limits the time of reading them.
        """
        self.header_nbytes += nbytes
        if self.header_nbytes > self.next_check:
            self.check_header(field)
        return 0

    cdef int check_header(self, const Field* field) except -1:
        """Raise HeaderError if the limit is exceeded, else count the work since the last call."""
        limit = self.limits.max_header_nbytes
        if self.header_nbytes > limit:
            offset = field.tag - self.body.data
            raise HeaderError(
                f"the gRPC message has more than {format_count('byte', limit)} besides its "
                f"tensors, which is the limit (byte {offset})",
                offset=offset, expected=limit, actual=self.header_nbytes)
        count_work(TEXT_COST * (self.header_nbytes - self.counted_nbytes))
        self.counted_nbytes = self.header_nbytes
        self.next_check = min(<Py_ssize_t>limit, self.header_nbytes + LONG_NBYTES)
        return 0

    cdef str text(self, const Field* field, str member):
        cdef const char* data = <const char*>field.begin
        cdef Py_ssize_t nbytes = field.end - field.begin
        cdef Py_ssize_t n_valid = 0
        cdef bytes copy
        self.count_header(nbytes, field)
        if not self.body.is_bytes():  # CPython reads the text twice, and relies on the first time
            copy = copied_bytes(data, nbytes)
            data = PyBytes_AS_STRING(copy)
        try:
            return decode_long_utf8(<const unsigned char*>data, nbytes, &n_valid)
        except UnicodeDecodeError as error:
            offset = field.begin - self.body.data + n_valid + error.start
            self.member = member if self.member is None else f"{self.member}.{member}"
            raise HeaderError(
                f"{self.path()} is not valid UTF-8 (byte {offset})", offset=offset) from None

    cdef str path(self):
        """Return the path of what is being read, such as ``inputs[0].contents``."""
        item = [] if self.index < 0 else [f"{self.items}[{self.index}]"]
        return ".".join([*item, *([] if self.member is None else [self.member])])

    cdef int raise_fault(self, FieldFault fault, const unsigned char* position) except -1:
        offset = position - self.body.data
        problem = {
            FIELD_TRUNCATED: "ends inside a field",
            VARINT_TOO_LONG: "has an integer of more than 10 bytes",
            TAG_INVALID: "has a field with an invalid number",
            WIRE_TYPE_INVALID: "has a field with an unknown wire type",
            LENGTH_TOO_LARGE: f"has a field that is longer than {MAX_MESSAGE_NBYTES} bytes",
            GROUP_MISMATCH: "has the end of a group that was not begun",
            FIELDS_TOO_DEEP: f"is nested too deeply; the limit is {MAX_MESSAGE_DEPTH} levels",
        }[fault]
        raise HeaderError(
            f"the gRPC message is malformed: {self.path() or 'it'} {problem} (byte {offset})",
            offset=offset)

    # --- the message ---

    cdef int read_message_fields(self, FieldCursor fields) except -1:
        """Read the fields of the message, or of a part of it: another part may follow."""
        cdef Field field
        cdef Message message = self.message
        cdef uint32_t raw_number = 7 if self.is_request else 6
        while fields.position < fields.end:
            self.next(&fields, &field)
            if field.wire_type != LENGTH_DELIMITED:
                continue  # no field that is known has another type
            if field.number == 5:
                self.read_tensor(&field)
            elif field.number == raw_number:
                check_n_entries(
                    len(self.raw), "raw content", self.limits, DECODING,
                    field.tag - self.body.data)
                self.raw.append((field.begin - self.body.data, field.end - field.begin))
            elif field.number == 1:
                message.model_name = self.text(&field, "model_name") or None
            elif field.number == 2:
                message.model_version = self.text(&field, "model_version") or None
            elif field.number == 3:
                message.id = self.text(&field, "id") or None
            elif field.number == 4:
                message._parameters = self.with_parameter(message._parameters, &field)
            elif field.number == 6:
                self.read_requested(&field)
        return 0

    cdef int begin_entry(self, str items, list entries, str kind, const Field* field) except -1:
        self.items, self.index = items, len(entries)
        self.name = ""
        self.parameters = None
        self.entry.name_nbytes = 0
        count_work(10 * ITEM_COST)
        return check_n_entries(
            self.index, kind, self.limits, DECODING, field.tag - self.body.data)

    cdef Message finish(self):
        """Assign the raw contents, and return the message with its tensors and outputs."""
        cdef Tensor tensor
        cdef Py_ssize_t n_raw = len(self.raw), n_with_data = 0, i = 0
        if self.regions is not None:
            self.use_regions()
        for tensor in self.tensors:
            n_with_data += not in_region(tensor)
        # Triton's responses have an empty content for an output in shared memory.
        cdef bint has_all = not self.is_request and n_raw == len(self.tensors)
        if n_raw > 0 and n_raw != n_with_data and not has_all:
            raise LayoutError(
                f"the message has {format_count('raw content', n_raw)}, but "
                f"{format_count(self.kind, n_with_data)} outside of shared memory",
                expected=n_with_data, actual=n_raw)
        for tensor in self.tensors:
            if in_region(tensor) and not has_all:
                continue
            try:
                if n_raw > 0:
                    offset, nbytes = self.raw[i]
                    i += 1
                    if not in_region(tensor):
                        self.use_raw(tensor, offset, nbytes)
                    elif nbytes > 0:
                        raise self.place_error(
                            ["raw_output_contents", "shared_memory_region"])
                elif is_shared(tensor):
                    self.use_nothing(tensor)
            except DecodeError as error:
                name_tensor(error, self.kind, tensor.name)
                raise
        set_tensors(self.message, tuple(self.tensors), self.kind)
        if self.requested is not None:
            set_requested(self.message, tuple(self.requested))
        if self.is_request:
            check_request(<InferRequest>self.message)
        return self.message

    cdef int use_regions(self) except -1:
        """Add the parameters of regions to the outputs that have no data, or an empty content."""
        cdef Tensor tensor
        cdef Py_ssize_t n_raw = len(self.raw), i = 0
        for tensor in self.tensors:
            is_empty = n_raw == 0 or (n_raw == len(self.tensors) and self.raw[i][1] == 0)
            if is_empty and is_shared(tensor) and tensor.name in self.regions:
                tensor._parameters = {**(tensor._parameters or {}), **self.regions[tensor.name]}
            i += 1
        return 0

    cdef int use_raw(self, Tensor tensor, Py_ssize_t offset, Py_ssize_t nbytes) except -1:
        cdef Layout layout
        if not is_shared(tensor):
            raise HeaderError(
                f"{SUBJECT} has both contents and raw_{self.kind}_contents")
        fill_layout(&layout, tensor.shape, tensor.element_type, MAX_RANK, DECODING)
        view_body(tensor, &layout, self.body, offset, nbytes, self.limits)
        tensor.binary = True
        return 0

    cdef int use_nothing(self, Tensor tensor) except -1:
        cdef Layout layout
        fill_layout(&layout, tensor.shape, tensor.element_type, MAX_RANK, DECODING)
        if layout.n_elements > 0:
            raise self.place_error([])
        view_body(tensor, &layout, self.body, 0, 0, self.limits)
        return 0

    cdef place_error(self, list present):
        return one_place_error(
            ["contents", f"raw_{self.kind}_contents", "shared_memory_region"], present)

    # --- parameters ---

    cdef dict with_parameter(self, dict parameters, const Field* entry):
        """Add an entry of a map of parameters, and return the dict; None is an empty one.

        The last one of equal keys or values counts. Like Google's upb, this ignores an entry with
        an unknown field.
        """
        cdef FieldCursor fields = cursor_of(entry)
        cdef Field field
        cdef str key = ""
        cdef bint is_known = True
        value = None
        if self.n_parameters >= self.limits.max_parameters:
            offset, limit = entry.tag - self.body.data, self.limits.max_parameters
            raise HeaderError(
                f"the parameters have more than {format_count('value', limit)}, which is the "
                f"limit (byte {offset})", offset=offset, expected=limit, actual=limit + 1)
        self.n_parameters += 1
        self.member = "parameters"
        while fields.position < fields.end:
            self.next(&fields, &field)
            if field.wire_type != LENGTH_DELIMITED or field.number > 2:
                is_known = False
            elif field.number == 1:
                key = self.text(&field, "key")
            else:
                value = self.parameter_value(cursor_of(&field), value)
        self.member = None
        if is_known:
            if parameters is None:
                parameters = {}
            parameters[key] = value
        return parameters

    cdef parameter_value(self, FieldCursor fields, value):
        """Return the value of an InferParameter, or `value` if it has none."""
        cdef Field field
        cdef double number
        while fields.position < fields.end:
            self.next(&fields, &field)
            if field.wire_type == VARINT:
                if field.number == 1:
                    value = field.value != 0
                elif field.number == 2:
                    value = <int64_t>field.value
                elif field.number == 5:
                    value = field.value
            elif field.wire_type == LENGTH_DELIMITED:
                if field.number == 3:
                    value = self.text(&field, "string_param")
            elif field.wire_type == FIXED64 and field.number == 4:
                memcpy(&number, field.begin, 8)  # little-endian, as the machine
                value = number
        return value

    # --- tensors ---

    cdef int read_tensor(self, const Field* field) except -1:
        self.begin_entry("inputs" if self.is_request else "outputs", self.tensors, self.kind, field)
        try:
            self.read_entry(cursor_of(field))
            self.tensors.append(self.tensor(cursor_of(field)))
        except DecodeError as error:
            name_tensor(error, self.kind, self.name)
            raise
        self.index = -1
        return 0

    cdef int read_entry(self, FieldCursor fields) except -1:
        """Read the fields of a tensor's entry, except for its contents."""
        cdef EntryFields* entry = &self.entry
        cdef Field field
        self.datatype = None
        self.datatype_text = ""
        entry.rank = entry.layout.rank = 0
        entry.contents_nbytes = 0
        while fields.position < fields.end:
            self.next(&fields, &field)
            if field.number == 3:
                self.read_shape(&field)
            elif field.wire_type != LENGTH_DELIMITED:
                continue
            elif field.number == 1:
                self.name = self.text(&field, "name")
                entry.name_nbytes = field.end - field.begin
            elif field.number == 2:
                self.datatype = datatype_named(field.begin, field.end - field.begin)
                if self.datatype is None:
                    self.datatype_text = self.text(&field, "datatype")
                else:
                    self.count_header(field.end - field.begin, &field)
            elif field.number == 4:
                self.parameters = self.with_parameter(self.parameters, &field)
            elif field.number == 5:
                entry.contents_nbytes += field.end - field.begin
        return check_name(entry.name_nbytes, has_nul(self.name), self.limits)

    cdef int read_shape(self, const Field* field) except -1:
        """Add one dimension, or several that are packed. Too many of them are only counted."""
        cdef Py_ssize_t nbytes = field.end - field.begin
        cdef FieldFault fault
        if field.wire_type == VARINT or field.wire_type == LENGTH_DELIMITED:
            self.count_header(nbytes, field)
            released = count_or_release_gil_unless_short(nbytes)
            fault = read_dims(cursor_of(field), &self.entry)
            take_gil(released)
            if fault != NO_FIELD_FAULT:
                self.member = "shape"
                self.raise_fault(fault, field.tag)
        return 0

    cdef tuple measured_shape(self):
        """Return the shape, and compute the number of elements and bytes, or raise LayoutError."""
        cdef Layout* layout = &self.entry.layout
        cdef tuple shape = dims_as_tuple(layout.dims, layout.rank)
        check_rank(self.entry.rank, self.limits.max_rank, DECODING)
        measure_layout(layout, shape, self.datatype, &self.n_elements, self.limits)
        return shape

    cdef Tensor tensor(self, FieldCursor entry):
        """Return the tensor whose fields have been read. It has no data yet if that is raw."""
        cdef Tensor tensor
        cdef tuple shape
        cdef bint has_region = False
        if self.datatype is None:
            raise unknown_datatype_error(self.datatype_text)
        if self.parameters is not None:
            # KServe's client sends this parameter of HTTP over gRPC, too.
            self.parameters.pop("binary_data_size", None)
            has_region = has_shared_memory(self.parameters)
        shape = self.measured_shape()
        tensor = new_tensor(self.name, self.datatype, shape, self.parameters or None, False)
        if self.entry.contents_nbytes > 0:
            self.member = "contents"
            data = self.contents(entry, shape)
            self.member = None
            if data is not None and has_region:
                raise self.place_error(["contents", "shared_memory_region"])
            use_converted(tensor, data)
        return tensor

    cdef contents(self, FieldCursor entry, tuple shape):
        """Return the elements in the typed contents of an entry; None if there are none.

        Returns an array or a BytesArray. Its memory is allocated only if the contents have a byte
        for each element of the shape; otherwise, the elements are only counted.
        """
        cdef Layout* layout = &self.entry.layout
        cdef Datatype datatype = self.datatype
        cdef Contents contents
        cdef FieldFault fault
        cdef cnp.ndarray array
        cdef bytes wire
        cdef PyObject* owned
        memset(&contents, 0, sizeof(contents))
        contents.number = CONTENTS_OF.get(datatype.name, 0)
        if contents.number > 0 and 0 < layout.n_elements <= self.entry.contents_nbytes:
            contents.n_room = layout.n_elements
            if datatype.dtype is None:
                # A prefix replaces a tag and a length, which together have at least 2 bytes.
                wire = PyBytes_FromStringAndSize(
                    NULL, self.entry.contents_nbytes + (PREFIX_NBYTES - 2) * layout.n_elements)
                contents.target = <unsigned char*>PyBytes_AS_STRING(wire)
                contents.end = contents.target + len(wire)
            else:
                array = cnp.PyArray_EMPTY(layout.rank, layout.dims, datatype.dtype.type_num, 0)
                contents.target = <unsigned char*>cnp.PyArray_DATA(array)
        contents.itemsize = datatype.itemsize
        if contents.number == 2:
            contents.bias = <uint64_t>1 << (8 * datatype.itemsize - 1)
        released = count_or_release_gil(TEXT_COST * (entry.end - entry.position))
        fault = read_contents(entry, &contents)
        take_gil(released)
        if fault != NO_FIELD_FAULT:
            self.raise_fault(fault, contents.begin)
        if contents.other > 0:
            expected = CONTENTS_NAMES[contents.number] or "raw contents"
            raise HeaderError(
                f"{SUBJECT} is {datatype.name}, which can only be sent as {expected}, but has "
                f"{CONTENTS_NAMES[contents.other]}")
        if contents.n_read == 0:
            return None
        if contents.n_read != contents.n_room:
            raise LayoutError(
                f"{SUBJECT} does not match its shape: {datatype.name} {format_shape(shape)} "
                f"requires {format_count('element', layout.n_elements)}, but its "
                f"{CONTENTS_NAMES[contents.number]} have {contents.n_read}",
                expected=layout.n_elements, actual=contents.n_read)
        if contents.out_of_range != NULL:
            offset = contents.out_of_range - self.body.data
            raise ElementError(
                f"element {contents.element} of {SUBJECT} is {contents.value}, which is out of "
                f"range for {format_range(datatype)} (byte {offset})",
                element=contents.element, offset=offset)
        if datatype.dtype is not None:
            return array
        nbytes = contents.target - <unsigned char*>PyBytes_AS_STRING(wire)
        Py_INCREF(wire)
        owned, wire = <PyObject*>wire, None  # now `owned` is the only reference
        return bytes_of_wire(shrunk_bytes(owned, nbytes), shape)

    # --- requested outputs ---

    cdef int read_requested(self, const Field* field) except -1:
        cdef FieldCursor fields = cursor_of(field)
        cdef Field member
        if self.requested is None:
            self.requested = []
        self.begin_entry("outputs", self.requested, "requested output", field)
        try:
            while fields.position < fields.end:
                self.next(&fields, &member)
                if member.wire_type != LENGTH_DELIMITED:
                    continue
                if member.number == 1:
                    self.name = self.text(&member, "name")
                    self.entry.name_nbytes = member.end - member.begin
                elif member.number == 2:
                    self.parameters = self.with_parameter(self.parameters, &member)
            check_name(self.entry.name_nbytes, has_nul(self.name), self.limits)
            self.requested.append(self.output())
        except DecodeError as error:
            name_tensor(error, "output", self.name)
            raise
        self.index = -1
        return 0

    cdef RequestedOutput output(self):
        binary = None if self.parameters is None else self.parameters.pop("binary_data", None)
        if binary is not None and type(binary) is not bool:
            raise HeaderError(
                f"binary_data of {SUBJECT} must be true or false, not {format_value(binary)}")
        return new_output(self.name, binary, self.parameters or None)


cdef MessageReader new_reader(message, Limits limits, bint is_request):
    cdef MessageReader reader = MessageReader.__new__(MessageReader)
    reader.body = HeldBuffer(message)
    reader.limits = limits
    reader.is_request = is_request
    reader.kind = "input" if is_request else "output"
    reader.message = new_message(is_request)
    reader.tensors, reader.raw = [], []
    reader.index = -1
    reader.next_check = min(<Py_ssize_t>limits.max_header_nbytes, <Py_ssize_t>LONG_NBYTES)
    return reader


cdef bint in_region(Tensor tensor) except -1:
    return tensor._parameters is not None and "shared_memory_region" in tensor._parameters


cdef FieldFault read_dims(FieldCursor fields, EntryFields* entry) noexcept nogil:
    cdef FieldFault fault
    cdef uint64_t dim = 0
    cdef Py_ssize_t rank = entry.rank
    while fields.position < fields.end:
        fault = read_varint(&fields, &dim)
        if fault != NO_FIELD_FAULT:
            return fault
        if rank < MAX_RANK:
            entry.layout.dims[rank] = <int64_t>dim
        rank += 1
    entry.rank, entry.layout.rank = rank, <int>min(rank, <Py_ssize_t>MAX_RANK)
    return NO_FIELD_FAULT


# --- typed contents ------------------------------------------------------------------------------

cdef FieldFault read_contents(FieldCursor entry, Contents* contents) noexcept nogil:
    """Read the elements in the contents of an entry, which may have several."""
    cdef FieldCursor fields
    cdef Field field
    cdef FieldFault fault
    while entry.position < entry.end:
        fault = next_field(&entry, &field)
        contents.begin = field.tag
        if fault != NO_FIELD_FAULT:
            return fault
        if field.number != 5 or field.wire_type != LENGTH_DELIMITED:
            continue
        fields = cursor_of(&field)
        while fields.position < fields.end:
            fault = next_field(&fields, &field)
            contents.begin = field.tag
            if fault == NO_FIELD_FAULT and field.number < N_CONTENTS and (
                field.wire_type == ELEMENT_TYPES[field.number]
                or field.wire_type == LENGTH_DELIMITED  # packed
            ):
                fault = read_elements(&field, contents)
            if fault != NO_FIELD_FAULT:
                return fault
    return NO_FIELD_FAULT


cdef FieldFault read_elements(const Field* field, Contents* contents) noexcept nogil:
    """Read the elements of a field, which is one, or packed. If there is no room, count them."""
    cdef WireType element_type = ELEMENT_TYPES[field.number]
    cdef uint64_t nbytes = field.end - field.begin
    cdef uint64_t value = 0
    cdef bint is_cut
    cdef FieldCursor fields
    cdef FieldFault fault
    if element_type != LENGTH_DELIMITED:
        if nbytes == 0:
            return NO_FIELD_FAULT  # packed, without elements
        is_cut = (
            field.end[-1] >= 0x80 if element_type == VARINT
            else nbytes % (4 if element_type == FIXED32 else 8) != 0)
        if is_cut:
            return FIELD_TRUNCATED
    if field.number != contents.number:
        if contents.other == 0:
            contents.other = field.number
        return NO_FIELD_FAULT
    if element_type == VARINT:
        fields = cursor_of(field)
        while fields.position < fields.end:
            contents.begin = fields.position
            fault = read_varint(&fields, &value)
            if fault != NO_FIELD_FAULT:
                return fault
            read_integer(value, contents)
    elif element_type == LENGTH_DELIMITED:
        contents.n_read += 1
        if contents.n_read <= contents.n_room:
            if PREFIX_NBYTES + nbytes > <uint64_t>(contents.end - contents.target):
                return FIELD_TRUNCATED  # another thread has changed the message
            store_le32(contents.target, <uint32_t>nbytes)
            memcpy(contents.target + PREFIX_NBYTES, field.begin, nbytes)
            contents.target += PREFIX_NBYTES + nbytes
    else:
        contents.n_read += nbytes // contents.itemsize
        if contents.n_read <= contents.n_room:
            memcpy(contents.target, field.begin, nbytes)
            contents.target += nbytes
    return NO_FIELD_FAULT


cdef inline void read_integer(uint64_t value, Contents* contents) noexcept nogil:
    """Count an integer or bool, and store it if there is room.

    Like protobuf, this ignores the upper half of a 32-bit integer.
    """
    cdef uint64_t itemsize = contents.itemsize
    contents.n_read += 1
    if contents.n_read > contents.n_room:
        return
    if contents.number == 1:
        value = value != 0
    elif contents.number == 2:
        value = <uint64_t><int64_t><int32_t>value
    elif contents.number == 4:
        value = <uint32_t>value
    if itemsize < 4 and (value + contents.bias) >> (8 * itemsize) != 0 and (
        contents.out_of_range == NULL
    ):
        contents.out_of_range = contents.begin
        contents.value = <int64_t>value
        contents.element = contents.n_read - 1
    store_low_bytes(contents.target, value, itemsize)
    contents.target += itemsize


# --- the other messages of the service -----------------------------------------------------------


def nbytes_besides_raw(message, Py_ssize_t limit):
    """Return how many bytes of a request are not raw contents, or any number above `limit`.

    Only about `limit` bytes are read. If the message is malformed, the bytes up to the error count.
    """
    cdef HeldBuffer body = HeldBuffer(message)
    cdef FieldCursor fields = outermost(body)
    cdef Field field
    cdef Py_ssize_t nbytes = 0
    cdef bint is_raw
    while fields.position < fields.end and nbytes <= limit:
        if read_tag(&fields, &field) != NO_FIELD_FAULT:
            break
        if field.wire_type == START_GROUP:  # only reading its fields would tell where it ends
            return limit + 1
        if read_field_value(&fields, &field) != NO_FIELD_FAULT:
            break
        is_raw = field.number == 7 and field.wire_type == LENGTH_DELIMITED
        nbytes += (field.begin if is_raw else fields.position) - field.tag
    return nbytes


def read_names(message, Limits limits not None):
    """Return the model_name, model_version and id of a request, without reading the tensors."""
    return tuple(read_fields(message, NAMES, limits).values())


def read_fields(message, dict kinds not None, Limits limits not None = DEFAULT_LIMITS):
    """Return the fields of a message by their names. A missing field has its default value.

    `kinds` has the name and the kind of each field number. The kinds are ``str``, ``[str]``,
    ``bool``, ``int`` and ``[int]``; a list that contains a dict is a list of messages with these
    fields. Of the limits, ``max_header_nbytes`` applies. Raises HeaderError if the message is
    malformed or too long.
    """
    cdef MessageReader reader = new_reader(message, limits, True)
    return read_kinds(reader, outermost(reader.body), kinds)


cdef dict read_kinds(MessageReader reader, FieldCursor fields, dict kinds):
    cdef Field field
    cdef FieldCursor packed
    cdef uint64_t value = 0
    cdef Py_ssize_t work = 0
    cdef dict values = {
        name: kind() if isinstance(kind, type) else [] for name, kind in kinds.values()}
    while fields.position < fields.end:
        reader.next(&fields, &field)
        name, kind = kinds.get(field.number, (None, None))
        if name is None:
            continue
        if kind == [int] and (field.wire_type == VARINT or field.wire_type == LENGTH_DELIMITED):
            packed = cursor_of(&field)
            reader.count_header(packed.end - packed.position, &field)
            while packed.position < packed.end:
                fault = read_varint(&packed, &value)
                if fault != NO_FIELD_FAULT:
                    reader.raise_fault(fault, field.tag)
                collect_work(&work, ITEM_COST)
                values[name].append(<int64_t>value)
        elif kind is bool and field.wire_type == VARINT:
            values[name] = field.value != 0
        elif kind is int and field.wire_type == VARINT:
            values[name] = <int64_t>field.value
        elif field.wire_type != LENGTH_DELIMITED:
            continue
        elif kind is str:
            values[name] = reader.text(&field, name)
        elif kind == [str]:
            values[name].append(reader.text(&field, name))
        elif isinstance(kind, list) and isinstance(kind[0], dict):
            values[name].append(read_kinds(reader, cursor_of(&field), kind[0]))
    return values


# --- the raw contents of messages that other code reads -------------------------------------------


def split_field(message, uint32_t number):
    """Separate the fields of bytes with a number, such as the raw contents, from a message.

    Returns the message without these fields, and a list of their values as views of the message.
    If it has none or is malformed, the message itself is returned.
    """
    cdef HeldBuffer body = HeldBuffer(message)
    cdef FieldCursor fields = outermost(body)
    cdef Field field
    cdef const unsigned char* rest = body.data  # of the fields that remain, and are not copied yet
    cdef list head = []
    cdef list contents = []
    cdef Py_ssize_t work = 0
    while fields.position < fields.end:
        if next_field(&fields, &field) != NO_FIELD_FAULT:
            return message, []
        collect_work(&work, TEXT_COST)
        if field.number == number and field.wire_type == LENGTH_DELIMITED:
            collect_work(&work, 20 * ITEM_COST)
            contents.append(body.view(field.begin - body.data, field.end - field.begin))
            if field.tag > rest:
                head.append(copied_bytes(rest, field.tag - rest))
            rest = fields.position
    if not contents:
        return message, contents
    if rest < fields.end:
        head.append(copied_bytes(rest, fields.end - rest))
    return head[0] if len(head) == 1 else b"".join(head), contents
