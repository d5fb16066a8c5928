"""Decode HTTP messages. The tensors of a decoded message are views of its body.

`HeaderReader` parses the JSON header once, from its first byte to its last one. Each tensor is
created at the end of its entry. A binary tensor is a view of the bytes after the previous tensor.
The `data` of a JSON tensor is parsed from the text directly into an array. The members of an entry
may have any order: if `data` precedes the datatype, shape or name, it is only validated at first,
and is parsed at the end of the entry.

The functions that read an entry raise errors with SUBJECT in place of the tensor's name.
`read_tensors` and `read_outputs` replace SUBJECT with the name. `raw_request` does the same for raw
requests, which have no header.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport INT64_MAX, uint64_t
from libc.string cimport memcmp, memcpy

from ..bytes.array cimport bytes_of_wire
from ..bytes.writer cimport pack, source_of
from ..datatypes cimport (
    DECODING, Datatype, Layout, Limits, add_elements, check_n_entries, check_rank, dims_as_tuple,
    fill_layout, format_range)
from ..gil cimport FREE_THREADED, count_work, keeps_gil
from ..json.reader cimport (
    MAX_DATA_DEPTH, VALUE_COST, begin_reading, count_value, end_reading, excerpt, next_item,
    next_member, open_level_or_raise, raise_fault, read_int64, read_numbers, read_object,
    read_strings, read_value, scan_string_or_raise, set_member, skip_data, skip_value_or_raise,
    text_to_str)
from ..json.scanner cimport (
    DATA_TOO_DEEP, DUPLICATE_KEY, NO_FAULT, OUT_OF_RANGE, WRONG_TYPE, Fault, Keys, ReadCursor, Text,
    equals, next_is, pop_keys, push_key, skip_blanks, utf8_nbytes_of)
from ..memory cimport Body
from ..messages.message cimport (
    InferRequest, InferResponse, Message, RequestedOutput, new_message, new_output)
from ..messages.tensor cimport Tensor, TensorSpec, new_tensor, use_converted, use_texts
from ..messages.views cimport (
    check_name, check_request, count_elements, datatype_named, has_shared_memory, one_source_error,
    set_requested, set_tensors, tensor_of_body, unknown_datatype_error, view_body)
from ..wire cimport MAX_RANK

from collections.abc import Iterable
from itertools import compress

from ..datatypes import DATATYPES
from ..signatures import ReadableBuffer

from ...errors import (
    SUBJECT, DecodeError, ElementError, ErrorResponseError, HeaderError, LayoutError, format_count,
    format_number, format_shape, name_tensor)
from ...http import HEADER_LENGTH, parse_header_length

cnp.import_array()

cdef Limits DEFAULT_LIMITS = Limits()

# For annotations: what is declared in C has no name in this module at run time.
globals().update(
    InferRequest=InferRequest, InferResponse=InferResponse, Limits=Limits, TensorSpec=TensorSpec)


def decode_request(
    body: ReadableBuffer, header_length: int | str | bytes | None = None, *,
    data: ReadableBuffer | Iterable[ReadableBuffer] | None = None,
    TensorSpec raw_input: TensorSpec | None = None,
    Limits limits not None: Limits = DEFAULT_LIMITS,
) -> InferRequest:
    """Decode a request, and return its tensors as views of ``body`` (WIRE.md 1 to 5).

    Parameters
    ----------
    body : buffer
        The HTTP body: a C-contiguous buffer of bytes.
    header_length : int, str, bytes or None, default None
        The value of the HTTP header ``Inference-Header-Content-Length``, which is the size of the
        JSON header in bytes. None if there is no such HTTP header: then the whole body is JSON.
    data : buffer or iterable of buffers, optional
        The binary data, if it is not in the same memory as the header. ``body`` is then only the
        JSON header. A tensor must be in one of the buffers; a buffer may contain several tensors.
    raw_input : TensorSpec, optional
        The declaration of the model's only input. It is needed if ``header_length`` is 0, because
        such a body only consists of the data (WIRE.md 5).
    limits : Limits, default Limits()
        Limits and options.

    Returns
    -------
    InferRequest
        Binary tensors are views of ``body`` or ``data``: they are not copied, keep the whole buffer
        alive, and are writable if it is. JSON tensors have their own memory, and so does the
        element of a raw request of BYTES.

    Raises
    ------
    DecodeError
        The body is not a valid request: ``HeaderError``, ``LayoutError`` or ``ElementError``. Its
        ``offset`` is a position in the header, or in the buffer of ``data`` that the message names.
    TypeError
        An argument has the wrong type, or both ``header_length`` and ``data`` are passed.
    BufferError
        A buffer is not contiguous, or its items are not bytes.

    Examples
    --------
    >>> import tensorwire as tw
    >>> header = (
    ...     b'{"inputs":[{"name":"x","shape":[2],"datatype":"UINT8",'
    ...     b'"parameters":{"binary_data_size":2}}]}'
    ... )
    >>> tw.decode_request(header + b"\\x01\\x02", len(header))["x"].as_numpy()
    array([1, 2], dtype=uint8)
    >>> tw.decode_request(header, data=b"\\x01\\x02")["x"].as_numpy()
    array([1, 2], dtype=uint8)
    """
    cdef HeaderReader reader = new_reader(body, header_length, data, limits)
    if reader.header_nbytes == 0 and header_length is not None:
        return raw_request(reader.body, raw_input, limits)
    return reader.read_message(True)


def decode_response(
    body: ReadableBuffer, header_length: int | str | bytes | None = None, *,
    data: ReadableBuffer | Iterable[ReadableBuffer] | None = None,
    Limits limits not None: Limits = DEFAULT_LIMITS,
) -> InferResponse:
    """Decode a response, and return its tensors as views of ``body`` (WIRE.md 1 to 4).

    Parameters
    ----------
    body, header_length, data, limits
        See ``decode_request``.

    Returns
    -------
    InferResponse
        The outputs in the order in which the server sent them. Binary tensors are views of
        ``body`` or ``data``: they are not copied, keep the whole buffer alive, and are writable if
        it is. JSON tensors have their own memory.

    Raises
    ------
    DecodeError
        The body is not a valid response; see ``decode_request``. If it is the ``{"error": ...}`` of
        a server, an ErrorResponseError with that text is raised.
    TypeError, BufferError
        See ``decode_request``.

    Examples
    --------
    >>> import tensorwire as tw
    >>> body = b'{"outputs":[{"name":"y","shape":[2],"datatype":"FP32","data":[0.5,1]}]}'
    >>> tw.decode_response(body)["y"].as_numpy()
    array([0.5, 1. ], dtype=float32)
    """
    return new_reader(body, header_length, data, limits).read_message(False)


def decode_response_in_regions(
    body, header_length, *, dict regions, Limits limits not None=DEFAULT_LIMITS
):
    """Decode a response some of whose outputs were requested in regions of shared memory.

    Triton's response does not say so. `regions` has their parameters, by the names of the outputs.
    """
    cdef HeaderReader reader = new_reader(body, header_length, None, limits)
    reader.regions = regions
    return reader.read_message(False)


cdef Py_ssize_t checked_header_length(Body source, header_length, Limits limits) except -1:
    cdef Py_ssize_t nbytes = source.nbytes
    cdef long long announced
    cdef int overflow
    if header_length is not None:
        if type(header_length) is not int:
            header_length = parse_header_length(header_length)
        # -1 if it exceeds 64 bits
        announced = PyLong_AsLongLongAndOverflow(header_length, &overflow)
        if not 0 <= announced <= nbytes:
            parse_header_length(header_length)  # raises the error if it is negative
            raise HeaderError(
                f"{HEADER_LENGTH} is {format_number(header_length)}, but the body has "
                f"{format_count('byte', nbytes)}", expected=header_length, actual=nbytes)
        nbytes = announced
    if nbytes > limits.max_header_nbytes:
        raise HeaderError(
            f"the JSON header is {format_count('byte', nbytes)} long; the limit is "
            f"{limits.max_header_nbytes}", expected=limits.max_header_nbytes, actual=nbytes)
    return nbytes


# --- the header ----------------------------------------------------------------------------------

cdef enum:
    # See gil.pxd.
    ENTRY_COST = 1000
    KEY_COST = 100  # of sorting a key

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


cdef enum Source:  # of the data of a tensor
    JSON
    BINARY
    REGION

cdef list SOURCES = ["data", "binary_data_size", "shared_memory_region"]


cdef struct TensorMembers:
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


@cython.final
@cython.freelist(8)
@cython.no_gc  # no object refers to a HeaderReader, so that it is in no cycle
cdef class HeaderReader:
    """Reads one message. Its fields contain the state of the parser and the current entry."""

    cdef Body body  # the memory that `offset` refers to, which is one of `parts` if there are any
    cdef tuple parts  # the Body of each buffer of `data`; None if the header is in the body, too
    cdef Py_ssize_t part  # index of `body` in `parts`
    cdef object text  # keeps the memory of the header alive
    cdef ReadCursor cursor
    cdef Keys keys  # keys of skipped members and objects; `cursor` points to this struct
    cdef Limits limits
    cdef str kind  # the kind of the tensors: "input" or "output"
    cdef Py_ssize_t header_nbytes
    cdef Py_ssize_t offset  # of the next binary tensor in `body`; at most the size of `body`
    cdef uint64_t n_elements  # of all tensors so far
    cdef str server_error  # the "error" of a server's error response, or None
    cdef Text key  # the key of the member that is being read, for error messages
    cdef Message message
    cdef bint has_tensors  # the list of tensors has been read
    cdef dict regions  # of outputs in shared memory, or None
    # The current entry. Its Python objects cannot be in the struct, which does not own references.
    cdef TensorMembers entry
    cdef str name
    cdef Datatype datatype
    cdef str datatype_text  # as it was sent; None if that is the name of `datatype`
    cdef tuple shape  # None until `measure` has been called
    cdef dict parameters
    cdef object data
    # The position of the entry for error messages, such as "input", 0; -1 outside of entries.
    cdef str item_kind
    cdef Py_ssize_t index

    cdef int begin(self, Body body, Py_ssize_t header_nbytes, Limits limits) except -1:
        self.body = body
        self.limits = limits
        self.header_nbytes = self.offset = header_nbytes
        self.index = -1
        # The text must not change while it is parsed. If it were not a bytes object, another thread
        # could write to it when the GIL is released.
        self.text = body.immutable_bytes(header_nbytes)
        begin_reading(
            &self.cursor, &self.keys, PyBytes_AS_STRING(self.text), header_nbytes,
            <int>limits.max_nesting, limits.max_parameters)
        return 0

    cdef int use_data(self, data) except -1:
        """Use the binary data of other buffers. The body is only the header."""
        if PyObject_CheckBuffer(data):
            self.parts = (Body(data, "data"),)
        else:
            try:
                parts = iter(data)
            except TypeError:
                raise TypeError(
                    f"data must be a bytes-like object or an iterable of them, not "
                    f"{type(data).__name__}") from None
            bodies = []
            for i, part in enumerate(parts):
                bodies.append(Body(part, f"data[{i}]"))
            self.parts = tuple(bodies)
        self.body = self.parts[0] if self.parts else Body(b"", "data[0]")
        self.offset = 0
        return 0

    def __dealloc__(self):
        end_reading(&self.keys)  # all zero if `begin` was not called

    cdef Message read_message(self, bint is_request):
        cdef Text* key = &self.key
        cdef int seen = 0
        cdef ReadCursor* cursor = &self.cursor
        self.message = new_message(is_request)
        self.kind = "input" if is_request else "output"
        self.open_header()
        while next_member(cursor, key, seen == 0):
            if equals(key, b"inputs", 6) if is_request else equals(key, b"outputs", 7):
                self.mark_member(&seen, TENSORS)
                if not self.skip_null():
                    self.read_tensors()
            elif equals(key, b"model_name", 10):
                self.mark_member(&seen, MODEL_NAME)
                self.message.model_name = self.read_text()
            elif equals(key, b"model_version", 13):
                self.mark_member(&seen, MODEL_VERSION)
                self.message.model_version = self.read_text()
            elif equals(key, b"id", 2):
                self.mark_member(&seen, ID)
                self.message.id = self.read_text()
            elif equals(key, b"parameters", 10):
                self.mark_member(&seen, PARAMETERS)
                self.message._parameters = self.read_parameters()
            elif is_request and equals(key, b"outputs", 7):
                self.mark_member(&seen, OUTPUTS)
                if not self.skip_null():
                    self.read_outputs()
            else:
                self.skip_member(&seen)
        self.close_header()
        if is_request:
            check_request(<InferRequest>self.message)
        return self.message

    cdef int open_header(self) except -1:
        if self.header_nbytes == 0:
            raise HeaderError("the JSON header is empty", offset=0)
        skip_blanks(&self.cursor)
        if self.cursor.position == self.cursor.end:
            raise HeaderError("the JSON header is empty: it is only white space", offset=0)
        if not next_is(&self.cursor, c"{"):
            if memcmp(self.cursor.position, b"--", 2) == 0:  # a NUL follows the text
                raise HeaderError(
                    "the JSON header is malformed: it begins with '--', as a multipart body does; "
                    "send the JSON itself as the body",
                    offset=self.cursor.position - self.cursor.start)
            raise self.unexpected_value_error("the JSON header", "an object")
        return open_level_or_raise(&self.cursor)

    cdef int check_end(self) except -1:
        """Raise HeaderError if anything but white space follows the header."""
        cdef Py_ssize_t n_following
        # Skip the spaces that align the first tensor, 8 bytes at a time.
        while self.cursor.end - self.cursor.position >= 8 and (
            memcmp(self.cursor.position, b"        ", 8) == 0
        ):
            self.cursor.position += 8
        skip_blanks(&self.cursor)
        n_following = self.cursor.end - self.cursor.position
        if n_following > 0:
            offset = self.cursor.position - self.cursor.start
            is_whole_body = self.parts is None and self.header_nbytes == self.body.nbytes
            hint = f" (is {HEADER_LENGTH} missing?)" if is_whole_body else ""
            raise HeaderError(
                f"the JSON header is malformed: it is followed by "
                f"{format_count('more byte', n_following)}{hint} (byte {offset})", offset=offset)
        return 0

    cdef int close_header(self) except -1:
        self.close_keys(0)
        self.check_end()
        if not self.has_tensors:
            if self.server_error is not None:
                raise ErrorResponseError.quoting(self.server_error)
            raise HeaderError(f'the JSON header has no "{self.kind}s"')
        if self.parts is not None:
            self.use_next_part()
        if self.offset != self.body.nbytes:
            n_following = format_count("byte", self.body.nbytes - self.offset)
            tensors = format_count("tensor", len(self.message.tensors))
            # The last tensor need not be in the last buffer.
            reason = f" {self.body.format_position(self.offset)}" if self.parts is not None else (
                f": the header of {self.header_nbytes} bytes and {tensors} end at byte "
                f"{self.offset} of {self.body.nbytes}")
            raise LayoutError(
                f"{self.body.subject()} has {n_following} after the last tensor{reason}",
                offset=self.offset, expected=self.offset, actual=self.body.nbytes)
        return 0

    cdef int use_next_part(self) except -1:
        """At the end of a buffer of `data`, go on with the next one that is not empty, if any."""
        while self.offset == self.body.nbytes and self.part + 1 < len(self.parts):
            self.part += 1
            self.body = self.parts[self.part]
            self.offset = 0
        return 0

    # --- members ---

    cdef inline int mark_member(self, int* seen, int member) except -1:
        """Mark a member as read before its value is read. Raises HeaderError for a second one."""
        if seen[0] & member:
            self.cursor.position = self.key.begin - 1
            raise_fault(&self.cursor, DUPLICATE_KEY)
        seen[0] |= member
        return 0

    cdef int skip_member(self, int* seen) except -1:
        """Validate a member that the protocol does not define, and store its key."""
        cdef Text text
        cdef const unsigned char* begin
        cdef const unsigned char* end
        cdef Fault fault = push_key(&self.cursor, self.key.begin)
        if fault != NO_FAULT:
            raise_fault(&self.cursor, fault)
        seen[0] |= OTHER
        count_work(VALUE_COST)
        begin = self.cursor.position
        skip_value_or_raise(&self.cursor)
        if self.cursor.level == 1 and equals(&self.key, b"error", 5):
            # Servers send this member instead of a message. Its value was validated above.
            end = self.cursor.position
            self.cursor.position = begin
            if next_is(&self.cursor, c'"'):
                scan_string_or_raise(&self.cursor, &text)
                self.server_error = text_to_str(&text)
            self.cursor.position = end
        return 0

    cdef int close_keys(self, Py_ssize_t first) except -1:
        """Check that the keys of an object, which were stored from `first` on, are unique."""
        cdef Fault fault
        if self.keys.n_keys > first:
            if keeps_gil(KEY_COST * (self.keys.n_keys - first)):
                fault = pop_keys(&self.cursor, first)
            else:
                with nogil:
                    fault = pop_keys(&self.cursor, first)
            if fault != NO_FAULT:
                raise_fault(&self.cursor, fault)
        return 0

    cdef bint skip_null(self) except -1:
        """Skip null, which means the same as a missing member. Returns False for other values."""
        if not next_is(&self.cursor, c"n"):
            return False
        skip_value_or_raise(&self.cursor)
        return True

    cdef int scan_text(self, Text* text) except -1:
        if not next_is(&self.cursor, c'"'):
            raise self.unexpected_member_error("a string")
        return scan_string_or_raise(&self.cursor, text)

    cdef str read_text(self):
        cdef Text text
        if self.skip_null():
            return None
        self.scan_text(&text)
        return text_to_str(&text)

    cdef dict read_parameters(self):
        if self.skip_null():
            return None
        if not next_is(&self.cursor, c"{"):
            raise self.unexpected_member_error("an object")
        return read_object(&self.cursor) or None

    cdef dict read_entry_parameters(
        self, const char* reserved, Py_ssize_t reserved_nbytes, const unsigned char** value
    ):
        """Return the parameters of an entry, without the parameter with the name `reserved`.

        The result is None if there are no others. `value` is set to the text of the reserved
        parameter, unless that is missing or null. If it is an integer, `entry.nbytes` is set to it.
        """
        cdef ReadCursor* cursor = &self.cursor
        cdef dict members = None
        cdef Text key
        cdef bint is_first = True
        cdef bint has_reserved = False
        if self.skip_null():
            return None
        if not next_is(cursor, c"{"):
            raise self.unexpected_member_error("an object")
        open_level_or_raise(cursor)
        while next_member(cursor, &key, is_first):
            is_first = False
            if not equals(&key, reserved, reserved_nbytes):
                if members is None:
                    members = {}
                count_value(cursor)
                set_member(cursor, members, &key, read_value(cursor))
                continue
            if has_reserved:
                cursor.position = key.begin - 1
                raise_fault(cursor, DUPLICATE_KEY)
            has_reserved = True
            if not self.skip_null():
                value[0] = cursor.position
                self.entry.size_fault = read_int64(cursor, &self.entry.nbytes)
                if self.entry.size_fault != NO_FAULT:
                    cursor.position = value[0]
                    skip_value_or_raise(cursor)
        return members

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

    # --- tensors ---

    cdef int read_tensors(self) except -1:
        cdef list entries = None
        cdef tuple tensors = ()
        cdef const unsigned char* entry_end = NULL
        cdef int level
        if not next_is(&self.cursor, c"["):
            raise self.unexpected_member_error("a list")
        open_level_or_raise(&self.cursor)
        level = self.cursor.level
        self.item_kind = self.kind
        try:
            while next_item(&self.cursor, self.index < 0):
                self.next_entry()
                entry_end = NULL
                self.read_entry()
                entry_end = self.cursor.position
                tensor = self.tensor()
                if self.index == 0:
                    tensors = (tensor,)
                elif self.index == 1:
                    entries = [tensors[0], tensor]
                else:
                    entries.append(tensor)
        except DecodeError as error:  # outside of entries, a HeaderError without SUBJECT
            if entry_end != NULL and not isinstance(error, HeaderError):
                self.cursor.position, self.cursor.level = entry_end, level
                self.check_rest()
            name_tensor(error, self.kind, self.name)
            raise
        self.index = -1
        if entries is not None:
            tensors = tuple(entries)
        self.has_tensors = True
        return set_tensors(self.message, tensors, self.kind)

    cdef int check_rest(self) except -1:
        """Raise HeaderError if the rest of the header, after the current entry, is invalid.

        A wrong header length often causes errors in tensors, too. In that case, the error in the
        header is more helpful than the one in the tensor. NaN and Infinity may be valid data, so
        they are not reported, and neither is what follows them.
        """
        cdef Text key
        cdef const unsigned char* at
        try:
            while next_item(&self.cursor, False):
                skip_value_or_raise(&self.cursor)
            while next_member(&self.cursor, &key, False):
                skip_value_or_raise(&self.cursor)
            return self.check_end()
        except HeaderError as error:
            at = self.cursor.start + <Py_ssize_t>(error.offset or 0)
            if at >= self.cursor.end or at[0] not in b"NI":
                raise
            return 0

    cdef int next_entry(self) except -1:
        self.index += 1
        return check_n_entries(
            self.index, self.item_kind, self.limits, DECODING,
            self.cursor.position - self.cursor.start)

    cdef int read_entry(self) except -1:
        """Read the members of an entry, and set `entry` and the attributes that belong to it."""
        cdef ReadCursor* cursor = &self.cursor
        cdef TensorMembers* entry = &self.entry
        cdef Py_ssize_t first_key = cursor.keys.n_keys
        cdef Text* key = &self.key
        cdef int seen = 0
        if not next_is(cursor, c"{"):
            raise self.unexpected_value_error("", "an object")
        open_level_or_raise(cursor)
        count_work(ENTRY_COST)
        entry.shape = entry.size = entry.data = NULL
        entry.is_list = False
        self.name = self.datatype_text = self.datatype = self.parameters = self.data = None
        self.shape = None
        while next_member(cursor, key, seen == 0):
            if equals(key, b"name", 4):
                self.mark_member(&seen, NAME)
                self.read_name()
            elif equals(key, b"datatype", 8):
                self.mark_member(&seen, DATATYPE)
                self.read_datatype()
            elif equals(key, b"shape", 5):
                self.mark_member(&seen, SHAPE)
                self.read_shape()
            elif equals(key, b"parameters", 10):
                self.mark_member(&seen, PARAMETERS)
                self.parameters = self.read_entry_parameters(b"binary_data_size", 16, &entry.size)
            elif equals(key, b"data", 4):
                self.mark_member(&seen, DATA)
                if not self.skip_null():
                    self.read_data(seen & (NAME | SHAPE) == (NAME | SHAPE))
            else:
                self.skip_member(&seen)
        self.close_keys(first_key)
        if seen & (NAME | DATATYPE | SHAPE) != NAME | DATATYPE | SHAPE:
            raise self.incomplete_entry_error(seen)
        check_name(entry.name_nbytes, entry.has_nul, self.limits)
        return 0

    cdef int read_name(self) except -1:
        cdef Text text
        self.scan_text(&text)
        self.name = cached_name(&text)
        self.entry.name_nbytes = utf8_nbytes_of(&text)
        self.entry.has_nul = text.has_escapes and "\0" in self.name
        return 0

    cdef int read_datatype(self) except -1:
        cdef Text text
        self.scan_text(&text)
        self.datatype = datatype_named(text.begin, text.nbytes)
        if self.datatype is None:  # an unknown name, or one with escapes
            self.datatype_text = text_to_str(&text)
            self.datatype = DATATYPES.get(self.datatype_text)
        return 0

    cdef int read_shape(self) except -1:
        """Read the dimensions to `layout`. Dimensions that it cannot store are only counted."""
        cdef ReadCursor* cursor = &self.cursor
        cdef TensorMembers* entry = &self.entry
        cdef Py_ssize_t n_dims = 0
        cdef long long dim = 0
        cdef Fault fault
        if not next_is(cursor, c"["):
            raise self.unexpected_member_error("a list of integers")
        entry.shape = cursor.position
        entry.is_measurable = True
        open_level_or_raise(cursor)
        while next_item(cursor, n_dims == 0):
            fault = read_int64(cursor, &dim)
            if fault == WRONG_TYPE:
                raise self.unexpected_value_error(f".shape[{n_dims}]", "an integer")
            if fault != NO_FAULT and fault != OUT_OF_RANGE:
                raise_fault(cursor, fault)
            if fault == OUT_OF_RANGE or dim < 0 or n_dims >= MAX_RANK:
                entry.is_measurable = False
                count_work(VALUE_COST)  # there may be many
            else:
                entry.layout.dims[n_dims] = dim
            n_dims += 1
        entry.rank = n_dims
        entry.layout.rank = <int>n_dims if entry.is_measurable else 0
        if n_dims > self.limits.max_rank:
            entry.is_measurable = False
        return 0

    cdef tuple dims(self):
        cdef ReadCursor cursor
        if not self.entry.is_measurable:
            check_rank(self.entry.rank, self.limits.max_rank, DECODING)
            cursor = self.cursor
            cursor.position, cursor.level = self.entry.shape, 0
            cursor.n_values_left = self.entry.rank
            return tuple(read_value(&cursor))
        return dims_as_tuple(self.entry.layout.dims, self.entry.layout.rank)

    cdef int measure(self) except -1:
        """Set `shape`, and the number of elements and bytes of the entry, or raise LayoutError."""
        cdef Layout* layout = &self.entry.layout
        self.shape = self.dims()
        if not self.entry.is_measurable:  # the layout does not have the dimensions
            fill_layout(layout, self.shape, self.datatype, self.limits.max_rank, DECODING)  # raises
        return count_elements(layout, self.shape, self.datatype, &self.n_elements, self.limits)

    cdef Tensor tensor(self):
        cdef Tensor tensor
        cdef bint has_region = False
        cdef Source source
        if self.datatype is None:
            raise unknown_datatype_error(self.datatype_text)
        if (self.regions is not None and self.entry.data == NULL and self.entry.size == NULL
                and self.name in self.regions):
            self.parameters = {**(self.parameters or {}), **self.regions[self.name]}
        if self.parameters:
            has_region = has_shared_memory(self.parameters)
            self.parameters = self.parameters or None
        source = self.source(has_region)
        if source == BINARY:
            return self.binary_tensor(self.declared_nbytes())
        if source == REGION:
            self.measure()
        elif self.data is None:
            self.read_skipped_data()
        tensor = new_tensor(self.name, self.datatype, self.shape, self.parameters, False)
        use_converted(tensor, self.data)
        return tensor

    cdef Source source(self, bint has_region) except *:
        """Return where the data of the entry is. Raises HeaderError unless that is one place."""
        cdef bint is_json = self.entry.data != NULL
        cdef bint is_binary = self.entry.size != NULL
        if is_json and not is_binary and not has_region:
            return JSON
        if is_binary and not is_json and not has_region:
            return BINARY
        if has_region and not is_json and not is_binary:
            return REGION
        # OVMS sends an empty output without a source (WIRE.md 3).
        if not (is_json or is_binary or has_region) and self.kind == "output" and 0 in self.dims():
            return BINARY
        present = [is_json, is_binary, has_region]
        raise one_source_error(SOURCES, list(compress(SOURCES, present)))

    # --- binary data ---

    cdef Py_ssize_t declared_nbytes(self) except -1:
        cdef TensorMembers* entry = &self.entry
        cdef ReadCursor cursor
        if entry.size == NULL:
            return 0
        if entry.size_fault == NO_FAULT and entry.nbytes >= 0:
            return entry.nbytes
        cursor = self.cursor
        cursor.position = entry.size
        offset = entry.size - cursor.start
        if entry.size_fault == WRONG_TYPE:
            raise HeaderError(
                f"binary_data_size of {SUBJECT} must be an integer, not {excerpt(&cursor)}",
                offset=offset)
        is_negative = entry.size[0] == c"-"
        problem = "is negative" if is_negative else "exceeds 2^63 - 1 bytes"
        raise LayoutError(
            f"binary_data_size of {SUBJECT} {problem}: {excerpt(&cursor)}",
            offset=offset, expected=0 if is_negative else INT64_MAX, actual=read_value(&cursor))

    cdef Tensor binary_tensor(self, Py_ssize_t nbytes):
        cdef Tensor tensor
        self.measure()
        tensor = new_tensor(self.name, self.datatype, self.shape, self.parameters, True)
        if self.parts is not None and nbytes > 0:
            self.use_next_part()
        view_body(tensor, &self.entry.layout, self.body, self.offset, nbytes, self.limits)
        self.offset += nbytes
        return tensor

    # --- JSON data ---

    cdef int read_data(self, bint is_described) except -1:
        """Parse the data at the cursor, or only validate it if it cannot be parsed yet.

        `is_described` is True if the name and the shape have been read.
        """
        cdef TensorMembers* entry = &self.entry
        cdef ReadCursor* cursor = &self.cursor
        entry.data = cursor.position
        entry.is_list = next_is(cursor, c"[")
        if not entry.is_list:
            skip_value_or_raise(cursor)
        elif is_described and self.datatype is not None:
            self.parse_elements()
        else:
            skip_data(cursor)
        return 0

    cdef int read_skipped_data(self) except -1:
        """Parse data that preceded the datatype, shape or name. The cursor does not move."""
        cdef const unsigned char* position = self.cursor.position
        cdef int level = self.cursor.level
        self.cursor.position = self.entry.data
        if not self.entry.is_list:
            offset = self.entry.data - self.cursor.start
            raise HeaderError(
                f"the JSON data of {SUBJECT} must be a list, not {excerpt(&self.cursor)} "
                f"(byte {offset})", offset=offset)
        try:
            self.parse_elements()
        finally:
            self.cursor.position, self.cursor.level = position, level
        return 0

    cdef int parse_elements(self) except -1:
        """Set `data` to the elements of the lists at the cursor, in new memory (WIRE.md 4).

        An element takes at least two bytes of the text. Memory is only allocated if the text has
        room for the number of elements.
        """
        cdef Layout* layout = &self.entry.layout
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
        if n_expected > <uint64_t>(self.cursor.end - self.cursor.position) // 2:
            n_expected = 0  # the text has fewer elements, which is an error
        if datatype.dtype is None:
            wire = read_strings(&self.cursor, n_expected, &n_read, &fault)
        elif n_expected == layout.n_elements:
            array = cnp.PyArray_EMPTY(layout.rank, layout.dims, datatype.dtype.type_num, 0)
            fault = read_numbers(
                &self.cursor, datatype.dtype, <char*>cnp.PyArray_DATA(array), n_expected, &n_read)
            self.data = array
        else:
            fault = read_numbers(&self.cursor, datatype.dtype, NULL, 0, &n_read)
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
        offset = self.cursor.position - self.cursor.start
        self.data = None
        if fault == DATA_TOO_DEEP:
            raise HeaderError(
                f"the JSON data of {SUBJECT} is nested too deeply; the limit is {MAX_DATA_DEPTH} "
                f"lists (byte {offset})", expected=MAX_DATA_DEPTH, offset=offset)
        if fault not in (WRONG_TYPE, OUT_OF_RANGE):
            raise_fault(&self.cursor, fault)
        value = excerpt(&self.cursor)
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

    cdef int read_outputs(self) except -1:
        cdef list entries = []
        if not next_is(&self.cursor, c"["):
            raise self.unexpected_member_error("a list")
        open_level_or_raise(&self.cursor)
        self.item_kind = "requested output"
        while next_item(&self.cursor, self.index < 0):
            self.next_entry()
            self.name = None
            try:
                entries.append(self.read_output())
            except DecodeError as error:
                name_tensor(error, "output", self.name)
                raise
        self.index = -1
        return set_requested(self.message, tuple(entries))

    cdef RequestedOutput read_output(self):
        cdef ReadCursor* cursor = &self.cursor
        cdef Py_ssize_t first_key = cursor.keys.n_keys
        cdef const unsigned char* binary = NULL
        cdef dict parameters = None
        cdef Text* key = &self.key
        cdef int seen = 0
        if not next_is(cursor, c"{"):
            raise self.unexpected_value_error("", "an object")
        open_level_or_raise(cursor)
        while next_member(cursor, key, seen == 0):
            if equals(key, b"name", 4):
                self.mark_member(&seen, NAME)
                self.read_name()
            elif equals(key, b"parameters", 10):
                self.mark_member(&seen, PARAMETERS)
                parameters = self.read_entry_parameters(b"binary_data", 11, &binary)
            else:
                self.skip_member(&seen)
        self.close_keys(first_key)
        if not seen & NAME:
            raise self.incomplete_entry_error(seen | DATATYPE | SHAPE)
        check_name(self.entry.name_nbytes, self.entry.has_nul, self.limits)
        if binary == NULL:
            return new_output(self.name, None, parameters)
        if binary[0] != c"t" and binary[0] != c"f":
            cursor.position = binary
            raise HeaderError(
                f"binary_data of {SUBJECT} must be true or false, not {excerpt(cursor)}",
                offset=binary - cursor.start)
        return new_output(self.name, binary[0] == c"t", parameters)

    cdef incomplete_entry_error(self, int seen):
        member = "name" if not seen & NAME else "datatype" if not seen & DATATYPE else "shape"
        return HeaderError(
            f'{self.path_of_entry()} has no "{member}"',
            offset=self.cursor.position - self.cursor.start)


# --- cached names --------------------------------------------------------------------------------

cdef extern from "Python.h":
    # For borrowed references, which Cython would otherwise count.
    const void* str_data "PyUnicode_DATA"(PyObject* text) noexcept
    Py_ssize_t str_length "PyUnicode_GET_LENGTH"(PyObject* text) noexcept

cdef extern from *:
    const uint64_t MULTIPLIER "0x9E3779B97F4A7C15ULL"  # 2^64 / phi, as in Fibonacci hashing

cdef enum:
    SLOT_BITS = 10
    N_SLOTS = 1 << SLOT_BITS
    MAX_CACHED_NBYTES = 32

ctypedef PyObject* CachedName  # an owned reference, or NULL in an empty slot
cdef CachedName[N_SLOTS] CACHE  # names of recent messages


cdef str cached_name(const Text* text):
    """Return a name, which is the object of an earlier message if the cache still has it.

    Servers receive the same names again and again. Neither a new str nor its hash is needed then.
    In a free-threaded Python, there is no cache, because another thread could replace a name while
    it is read.
    """
    cdef CachedName* slot
    cdef PyObject* cached
    if FREE_THREADED or not text.is_ascii or text.has_escapes or not (
        2 <= text.nbytes <= MAX_CACHED_NBYTES
    ):
        return text_to_str(text)
    slot = &CACHE[slot_of(text)]
    cached = slot[0]
    if cached == NULL or str_length(cached) != text.nbytes or (
        memcmp(str_data(cached), text.begin, text.nbytes) != 0
    ):
        name = text_to_str(text)
        Py_INCREF(name)
        slot[0] = <PyObject*>name
        Py_XDECREF(cached)
    return <str>slot[0]


cdef inline uint64_t slot_of(const Text* text) noexcept:
    """Return the index of the slot of a name, which is a hash of its bytes.

    8 bytes are read at a time. The last 8 may overlap those before them.
    """
    cdef Py_ssize_t nbytes = text.nbytes, i = 0
    cdef uint64_t word = 0, hashed = nbytes
    while i <= nbytes - 8:
        memcpy(&word, text.begin + i, 8)
        hashed = (hashed ^ word) * MULTIPLIER
        hashed ^= hashed >> 32
        i += 8
    if nbytes >= 8:
        memcpy(&word, text.begin + nbytes - 8, 8)
    else:
        memcpy(&word, text.begin, nbytes)
    return (hashed ^ word) * MULTIPLIER >> (64 - SLOT_BITS)


cdef HeaderReader new_reader(body, header_length, data, Limits limits):
    cdef Body source = Body(body)
    cdef HeaderReader reader = HeaderReader.__new__(HeaderReader)
    reader.begin(source, checked_header_length(source, header_length, limits), limits)
    if data is not None:
        if header_length is not None:
            raise TypeError(
                "header_length and data exclude each other: with data, the body is only the header")
        reader.use_data(data)
    return reader


# --- raw requests ---------------------------------------------------------------------------------


cdef InferRequest raw_request(Body source, TensorSpec spec, Limits limits):
    """Return a raw binary request. Its body is the data of the declared input (WIRE.md 5)."""
    cdef Message request
    if spec is None:
        raise HeaderError(
            f"{HEADER_LENGTH} is 0, which means a raw binary request, but no raw_input is declared")
    try:
        tensor = raw_tensor(source, spec, limits)
    except DecodeError as error:
        name_tensor(error, "input", spec.name)
        raise
    request = new_message(True)
    request.tensors = (tensor,)
    # The client of a raw request expects binary outputs, and has no way to request them.
    request._parameters = {"binary_data_output": True}
    return request


cdef Tensor raw_tensor(Body source, TensorSpec spec, Limits limits):
    cdef Layout layout
    cdef uint64_t n_elements = 0
    cdef Datatype datatype = DATATYPES[spec.datatype]
    cdef Tensor tensor
    cdef tuple batch = (1,) if spec.batching else ()
    cdef tuple shape
    if datatype.itemsize > 0:
        shape = batch + deduced_dims(source.nbytes, datatype, spec)
        return tensor_of_body(source, spec.name, spec.datatype, shape, limits)
    shape = batch + spec.dims
    if shape.count(1) != len(shape):
        raise LayoutError(
            f"a raw request of BYTES has one element, but {SUBJECT} is declared as "
            f"{format_shape(spec.dims)}, not [1]")
    if source.nbytes >= 1 << 32:
        raise LayoutError(
            f"{SUBJECT} is one BYTES element of {source.nbytes} bytes; the limit is 2^32 - 1",
            expected=(1 << 32) - 1, actual=source.nbytes)
    fill_layout(&layout, shape, datatype, limits.max_rank, DECODING)
    add_elements(&n_elements, layout.n_elements, limits, DECODING)
    tensor = new_tensor(spec.name, datatype, shape, None, True)
    wire = pack(source_of("O", [source.view(0, source.nbytes)], shape))  # with a length prefix
    use_texts(tensor, bytes_of_wire(wire, shape))
    return tensor


cdef tuple deduced_dims(Py_ssize_t nbytes, Datatype datatype, TensorSpec spec):
    """Return the declared dims. A variable one is computed from the size of the body."""
    n_variable = spec.dims.count(-1)
    if n_variable > 1:
        raise LayoutError(
            f"the shape of {SUBJECT} cannot be deduced: {format_shape(spec.dims)} has "
            f"{n_variable} variable dimensions", expected=1, actual=n_variable)
    row_nbytes = datatype.itemsize  # times the fixed dims: a Python int, which cannot overflow
    for dim in spec.dims:
        row_nbytes *= 1 if dim == -1 else dim
    if n_variable == 0:
        is_filled = nbytes == row_nbytes
    else:
        is_filled = row_nbytes > 0 and nbytes % row_nbytes == 0
    if not is_filled:
        multiple = "a multiple of " if n_variable else ""
        raise LayoutError(
            f"a raw body of {format_count('byte', nbytes)} does not fill {SUBJECT}: "
            f"{spec.datatype} {format_shape(spec.dims)} requires "
            f"{multiple}{format_number(row_nbytes)} bytes",
            expected=row_nbytes, actual=nbytes)
    return tuple(map(lambda dim: nbytes // row_nbytes if dim == -1 else dim, spec.dims))
