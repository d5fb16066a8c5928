"""Decode HTTP messages. The tensors of a decoded message are views of its body.

`HeaderReader` parses the JSON header once, from its first byte to its last one. Each tensor is
created at the end of its entry. A binary tensor is a view of the bytes after the previous tensor.
`read_tensors` and `read_outputs` put the name of the tensor into errors.
"""

cimport cython
from cpython.buffer cimport PyObject_CheckBuffer
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_RawMalloc
from libc.string cimport memcmp

from ..gil cimport free_memory, write_memory
from ..held_buffer cimport HeldBuffer
from ..http.entries cimport BINARY, REGION, DataPlace, EntryReader
from ..http.members cimport (
    ID, MODEL_NAME, MODEL_VERSION, OUTPUTS, PARAMETERS, TENSORS, HeaderCursor, close_keys,
    mark_member, read_parameters, read_text, skip_member, unexpected_member_error,
    unexpected_value_error)
from ..http.raw cimport raw_request
from ..json.reader cimport (
    begin_reading, end_reading, next_item, next_member, open_level_or_raise, scan_string_or_raise,
    skip_null, skip_value_or_raise, text_to_str)
from ..json.scanner cimport ReadCursor, Text, equals, next_is, skip_blanks
from ..limits cimport Limits
from ..messages.decoding cimport (
    check_request, has_shared_memory, set_requested, set_tensors, unknown_datatype_error, view_body)
from ..messages.message cimport InferRequest, InferResponse, Message, new_message
from ..messages.tensor cimport Tensor, TensorSpec, new_tensor, use_converted

from collections.abc import Iterable

from ..limits import DEFAULT_LIMITS
from ..signatures import ReadableBuffer

from ...errors import (
    DecodeError, ErrorResponseError, HeaderError, LayoutError, format_count, format_number,
    name_tensor)
from ...http import HEADER_LENGTH, parse_header_length

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


cdef Py_ssize_t checked_header_length(HeldBuffer body, header_length, Limits limits) except -1:
    cdef Py_ssize_t nbytes = body.nbytes
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


# --- the header ---


@cython.final
@cython.freelist(8)
@cython.no_gc  # no object refers to a reader, so that it is in no cycle
cdef class HeaderReader:
    """Reads one message."""

    cdef HeaderCursor header
    cdef HeldBuffer header_body  # keeps the memory of the header alive
    cdef Py_ssize_t header_nbytes
    cdef unsigned char* header_copy  # NULL if the header was not copied
    cdef EntryReader entry
    # The memory that `offset` refers to, which is one of `buffers` if there are any.
    cdef HeldBuffer body
    cdef tuple buffers  # of `data`; None if the binary data follows the header
    cdef Py_ssize_t i_buffer  # index of `body` in `buffers`
    cdef str kind  # the kind of the tensors: "input" or "output"
    cdef Py_ssize_t offset  # of the next binary tensor in `body`; at most the size of `body`
    cdef str server_error  # the "error" of a server's error response, or None
    cdef Message message
    cdef bint has_tensors  # the list of tensors has been read
    cdef dict regions  # of outputs in shared memory, or None

    def __dealloc__(self):
        end_reading(&self.header.keys)  # all zero if reading did not begin
        if self.header_copy != NULL:
            free_memory(self.header_copy, self.header_nbytes)

    cdef int begin(self, HeldBuffer body, header_length, Limits limits) except -1:
        cdef const unsigned char* text = body.data
        cdef Py_ssize_t header_nbytes = checked_header_length(body, header_length, limits)
        self.body = self.header_body = body
        self.header_nbytes = self.offset = header_nbytes
        self.header.index = -1
        self.entry = EntryReader.__new__(EntryReader)
        self.entry.header = &self.header
        self.entry.limits = limits
        # The text must not change while it is parsed. If it were not a bytes object, another thread
        # could write to it when the GIL is released.
        if not body.is_bytes():
            text = self.header_copy = <unsigned char*>PyMem_RawMalloc(header_nbytes)
            if text == NULL:
                raise MemoryError
            write_memory(self.header_copy, body.data, header_nbytes)
        begin_reading(
            &self.header.cursor, &self.header.keys, <const char*>text, header_nbytes,
            <int>limits.max_nesting, limits.max_parameters)
        return 0

    cdef int use_data(self, data) except -1:
        """Use the binary data of other buffers. The body is only the header."""
        if PyObject_CheckBuffer(data):
            self.buffers = (HeldBuffer(data, "data"),)
        else:
            try:
                buffers = iter(data)
            except TypeError:
                raise TypeError(
                    f"data must be a bytes-like object or an iterable of them, not "
                    f"{type(data).__name__}") from None
            held = []
            for i, buffer in enumerate(buffers):
                held.append(HeldBuffer(buffer, f"data[{i}]"))
            self.buffers = tuple(held)
        self.body = self.buffers[0] if self.buffers else HeldBuffer(b"", "data[0]")
        self.offset = 0
        return 0

    cdef Message read_message(self, bint is_request):
        cdef Text* key = &self.header.key
        cdef int seen = 0
        cdef ReadCursor* cursor = &self.header.cursor
        cdef const unsigned char* value
        self.message = new_message(is_request)
        self.kind = "input" if is_request else "output"
        self.open_header()
        while next_member(cursor, key, seen == 0):
            if equals(key, b"inputs", 6) if is_request else equals(key, b"outputs", 7):
                mark_member(&self.header, &seen, TENSORS)
                if not skip_null(cursor):
                    self.read_tensors()
            elif equals(key, b"model_name", 10):
                mark_member(&self.header, &seen, MODEL_NAME)
                self.message.model_name = read_text(&self.header)
            elif equals(key, b"model_version", 13):
                mark_member(&self.header, &seen, MODEL_VERSION)
                self.message.model_version = read_text(&self.header)
            elif equals(key, b"id", 2):
                mark_member(&self.header, &seen, ID)
                self.message.id = read_text(&self.header)
            elif equals(key, b"parameters", 10):
                mark_member(&self.header, &seen, PARAMETERS)
                self.message._parameters = read_parameters(&self.header)
            elif is_request and equals(key, b"outputs", 7):
                mark_member(&self.header, &seen, OUTPUTS)
                if not skip_null(cursor):
                    self.read_outputs()
            else:
                value = cursor.position
                skip_member(&self.header, &seen)
                if equals(key, b"error", 5):
                    self.read_server_error(value)
        self.close_header()
        if is_request:
            check_request(<InferRequest>self.message)
        return self.message

    cdef int read_server_error(self, const unsigned char* value) except -1:
        """Read the member that servers send instead of a message. Its value was validated."""
        cdef Text text
        cdef const unsigned char* end = self.header.cursor.position
        self.header.cursor.position = value
        if next_is(&self.header.cursor, c'"'):
            scan_string_or_raise(&self.header.cursor, &text)
            self.server_error = text_to_str(&text)
        self.header.cursor.position = end
        return 0

    cdef int open_header(self) except -1:
        if self.header_nbytes == 0:
            raise HeaderError("the JSON header is empty", offset=0)
        skip_blanks(&self.header.cursor)
        if self.header.cursor.position == self.header.cursor.end:
            raise HeaderError("the JSON header is empty: it is only white space", offset=0)
        if not next_is(&self.header.cursor, c"{"):
            if self.header.cursor.end - self.header.cursor.position >= 2 and (
                memcmp(self.header.cursor.position, b"--", 2) == 0
            ):
                raise HeaderError(
                    "the JSON header is malformed: it begins with '--', as a multipart body does; "
                    "send the JSON itself as the body",
                    offset=self.header.cursor.position - self.header.cursor.start)
            raise unexpected_value_error(&self.header, "the JSON header", "an object")
        return open_level_or_raise(&self.header.cursor)

    cdef int check_end(self) except -1:
        """Raise HeaderError if anything but white space follows the header."""
        cdef Py_ssize_t n_following
        cdef int _
        for _ in range(8):  # skip the spaces that align the first tensor
            if self.header.cursor.end - self.header.cursor.position < 8 or (
                memcmp(self.header.cursor.position, b"        ", 8) != 0
            ):
                break
            self.header.cursor.position += 8
        skip_blanks(&self.header.cursor)
        n_following = self.header.cursor.end - self.header.cursor.position
        if n_following > 0:
            offset = self.header.cursor.position - self.header.cursor.start
            is_whole_body = self.buffers is None and self.header_nbytes == self.body.nbytes
            hint = f" (is {HEADER_LENGTH} missing?)" if is_whole_body else ""
            raise HeaderError(
                f"the JSON header is malformed: it is followed by "
                f"{format_count('more byte', n_following)}{hint} (byte {offset})", offset=offset)
        return 0

    cdef int close_header(self) except -1:
        close_keys(&self.header, 0)
        self.check_end()
        if not self.has_tensors:
            if self.server_error is not None:
                raise ErrorResponseError.quoting(self.server_error)
            raise HeaderError(f'the JSON header has no "{self.kind}s"')
        if self.buffers is not None:
            self.use_next_buffer()
        if self.offset != self.body.nbytes:
            n_following = format_count("byte", self.body.nbytes - self.offset)
            tensors = format_count("tensor", len(self.message.tensors))
            # The last tensor need not be in the last buffer.
            reason = f" {self.body.format_position(self.offset)}" if self.buffers is not None else (
                f": the header of {self.header_nbytes} bytes and {tensors} end at byte "
                f"{self.offset} of {self.body.nbytes}")
            raise LayoutError(
                f"{self.body.subject()} has {n_following} after the last tensor{reason}",
                offset=self.offset, expected=self.offset, actual=self.body.nbytes)
        return 0

    cdef int use_next_buffer(self) except -1:
        """At the end of a buffer of `data`, go on with the next one that is not empty, if any."""
        while self.offset == self.body.nbytes and self.i_buffer + 1 < len(self.buffers):
            self.i_buffer += 1
            self.body = self.buffers[self.i_buffer]
            self.offset = 0
        return 0

    cdef int read_tensors(self) except -1:
        cdef list entries = None
        cdef tuple tensors = ()
        cdef const unsigned char* entry_end = NULL
        cdef int level
        cdef EntryReader entry = self.entry
        if not next_is(&self.header.cursor, c"["):
            raise unexpected_member_error(&self.header, "a list")
        open_level_or_raise(&self.header.cursor)
        level = self.header.cursor.level
        entry.kind = self.kind
        self.header.items = b"inputs" if type(self.message) is InferRequest else b"outputs"
        try:
            while next_item(&self.header.cursor, self.header.index < 0):
                entry_end = NULL
                entry.read_entry()
                entry_end = self.header.cursor.position
                tensor = self.tensor(entry)
                if self.header.index == 0:
                    tensors = (tensor,)
                elif self.header.index == 1:
                    entries = [tensors[0], tensor]
                else:
                    entries.append(tensor)
        except DecodeError as error:  # outside of entries, a HeaderError without SUBJECT
            if entry_end != NULL and not isinstance(error, HeaderError):
                self.header.cursor.position, self.header.cursor.level = entry_end, level
                self.check_rest()
            name_tensor(error, self.kind, entry.name)
            raise
        self.header.index = -1
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
            while next_item(&self.header.cursor, False):
                skip_value_or_raise(&self.header.cursor)
            while next_member(&self.header.cursor, &key, False):
                skip_value_or_raise(&self.header.cursor)
            return self.check_end()
        except HeaderError as error:
            at = self.header.cursor.start + <Py_ssize_t>(error.offset or 0)
            if at >= self.header.cursor.end or at[0] not in b"NI":
                raise
            return 0

    cdef Tensor tensor(self, EntryReader entry):
        cdef Tensor tensor
        cdef bint has_region = False
        cdef DataPlace place
        if entry.datatype is None:
            raise unknown_datatype_error(entry.datatype_text)
        if (self.regions is not None and entry.members.data == NULL and entry.members.size == NULL
                and entry.name in self.regions):
            entry.parameters = {**(entry.parameters or {}), **self.regions[entry.name]}
        if entry.parameters:
            has_region = has_shared_memory(entry.parameters)
            entry.parameters = entry.parameters or None
        place = entry.data_place(has_region)
        if place == BINARY:
            return self.binary_tensor(entry, entry.declared_nbytes())
        if place == REGION:
            entry.measure()
        elif entry.data is None:
            entry.read_skipped_data()
        tensor = new_tensor(entry.name, entry.datatype, entry.shape, entry.parameters, False)
        use_converted(tensor, entry.data)
        return tensor

    cdef Tensor binary_tensor(self, EntryReader entry, Py_ssize_t nbytes):
        cdef Tensor tensor
        entry.measure()
        tensor = new_tensor(entry.name, entry.datatype, entry.shape, entry.parameters, True)
        if self.buffers is not None and nbytes > 0:
            self.use_next_buffer()
        view_body(tensor, &entry.members.layout, self.body, self.offset, nbytes, entry.limits)
        self.offset += nbytes
        return tensor

    cdef int read_outputs(self) except -1:
        cdef list entries = []
        if not next_is(&self.header.cursor, c"["):
            raise unexpected_member_error(&self.header, "a list")
        open_level_or_raise(&self.header.cursor)
        self.entry.kind = "requested output"
        self.header.items = b"outputs"
        while next_item(&self.header.cursor, self.header.index < 0):
            try:
                entries.append(self.entry.read_output())
            except DecodeError as error:
                name_tensor(error, "output", self.entry.name)
                raise
        self.header.index = -1
        return set_requested(self.message, tuple(entries))


cdef HeaderReader new_reader(body, header_length, data, Limits limits):
    cdef HeaderReader reader = HeaderReader.__new__(HeaderReader)
    reader.begin(HeldBuffer(body), header_length, limits)
    if data is not None:
        if header_length is not None:
            raise TypeError(
                "header_length and data exclude each other: with data, the body is only the header")
        reader.use_data(data)
    return reader
