"""The decoder: a body becomes a message, whose tensors are views of that body.

The JSON header is read once, from its first byte to its last. A tensor is complete when its entry
ends: a binary one takes the bytes behind those of the tensors before it, and the data of a JSON
tensor is read from the text straight into its array. Members may stand in any order: `data` that
comes before the datatype or the shape is validated first, and read when the entry has ended.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_FromSsize_t
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.set cimport PySet_Add, PySet_GET_SIZE
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT64_MAX, uint64_t
from libc.string cimport memcpy

from ._body cimport Body
from ._datatypes cimport Datatype
from ._json_reader cimport (
    DATA_TOO_DEEP,
    DUPLICATE_KEY,
    MAX_DATA_DEPTH,
    NO_FAULT,
    OUT_OF_RANGE,
    WRONG_TYPE,
    Cursor,
    Fault,
    Keys,
    Text,
    at,
    begin_reading,
    count_work,
    end_reading,
    excerpt,
    next_item,
    next_member,
    open_at,
    pop_keys,
    push_key,
    raise_fault,
    read_numbers,
    read_object,
    read_strings,
    read_value,
    says,
    scan_int64,
    scan_string,
    set_member,
    skip_any,
    skip_blanks,
    skip_data,
    skip_literal,
    string_of,
    utf8_nbytes_of,
)
from ._layout cimport Layout, count_elements, measure
from ._limits cimport Limits
from ._messages cimport (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    TensorSpec,
    make_tensor,
)
from ._wire cimport MAX_RANK, WIDEST_ITEMSIZE

import numpy as np

from .bytes_tensor import BytesTensor
from ._datatypes import BYTES, DATATYPES, RAW_BF16, bf16_dtype
from .errors import (
    DecodeError,
    ElementError,
    HeaderError,
    LayoutError,
    number_text,
    plural,
    shape_text,
    subject,
)
from .http import HEADER_LENGTH, parse_header_length

cnp.import_array()

cdef Limits DEFAULT_LIMITS = Limits()
cdef dict ROWS = DATATYPES  # typed, which makes the lookup a call in C

# The same table for C: each name as a word, and the row, which DATATYPES keeps.
cdef struct Row:
    uint64_t name
    PyObject* datatype

cdef enum:
    N_ROWS = 14
cdef Row[N_ROWS] NAMED_ROWS
for row_number, row in enumerate(DATATYPES.values()):
    NAMED_ROWS[row_number].name = int.from_bytes(row.name.encode(), "little")
    NAMED_ROWS[row_number].datatype = <PyObject*>row
del row_number, row


def decode_request(
    body, header_length=None, *, TensorSpec raw_input=None, Limits limits not None=DEFAULT_LIMITS,
):
    """Validate a request, and return its tensors as views of ``body``.

    Parameters
    ----------
    body
        The HTTP body: any C-contiguous buffer of bytes. It is kept, whole, until the last view of
        it is released, and no byte of a binary tensor is copied. Arrays are writable when the body
        is. JSON tensors get memory of their own.
    header_length
        The value of ``Inference-Header-Content-Length`` as int, str or bytes; None when that header
        was absent.
    raw_input
        The input that the model declares. It is needed when the header length is 0 (WIRE.md 5).
    limits
        What is accepted; see ``Limits``.

    Raises
    ------
    DecodeError
        ``HeaderError``, ``LayoutError`` or ``ElementError``, whatever the bytes are.
    TypeError
        An argument has the wrong type.
    BufferError
        The body is not contiguous, or its items are not bytes.
    """
    cdef Body source = Body(body)
    cdef Py_ssize_t header_nbytes = checked_header_length(source, header_length, limits)
    if header_nbytes == 0 and header_length is not None:
        return raw_request(source, raw_input, limits)
    cdef MessageReader reader = MessageReader.__new__(MessageReader)
    reader.begin(source, header_nbytes, limits)
    return reader.read_request()


def decode_response(
    body, header_length=None, *, Limits limits not None=DEFAULT_LIMITS,
):
    """Validate a response, and return its tensors as views of ``body``.

    Arguments, memory and errors are those of ``decode_request``. The outputs are in the order in
    which the server wrote them. The ``{"error": ...}`` of a server is a HeaderError that quotes it.
    """
    cdef Body source = Body(body)
    cdef Py_ssize_t header_nbytes = checked_header_length(source, header_length, limits)
    cdef MessageReader reader = MessageReader.__new__(MessageReader)
    reader.begin(source, header_nbytes, limits)
    return reader.read_response()


cdef Py_ssize_t checked_header_length(Body source, header_length, Limits limits) except -1:
    """Bytes of JSON at the beginning of the body."""
    cdef Py_ssize_t nbytes = source.nbytes
    if header_length is not None:
        announced = header_length
        if type(header_length) is not int or header_length < 0:
            announced = parse_header_length(header_length)
        if announced > nbytes:
            raise beyond(announced, nbytes)
        nbytes = announced
    if nbytes > limits.max_header_nbytes:
        raise HeaderError(
            f"the JSON header is too long: {nbytes} bytes, at most {limits.max_header_nbytes} are "
            f"accepted",
            expected=limits.max_header_nbytes,
            actual=nbytes,
        )
    return nbytes


# --- the header ----------------------------------------------------------------------------------

cdef enum:
    MANY_KEYS = 1000  # whose sorting takes about a tenth of a millisecond
    WORK_PER_ENTRY = 10  # in terms of Python objects; see `count_work`

# Members that have been seen, of the object that is being read.
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


cdef struct Entry:
    # The members of a tensor's entry, as far as they have been read. Pointers are into the text.
    const unsigned char* shape
    Py_ssize_t rank  # what `shape` has, which may be more than Layout has room for
    const unsigned char* size  # the value of binary_data_size; NULL without one
    const unsigned char* data  # the value of data; NULL without one
    const unsigned char* data_end
    Fault size_fault
    long long nbytes  # what binary_data_size says, unless that has a fault
    bint is_list  # `data` is
    bint is_tried  # reading `data` has been tried
    bint has_nul  # the name has
    Py_ssize_t name_nbytes  # in UTF-8
    bint is_measurable  # the dimensions stand in `layout`, which they fit, and none is negative
    Layout layout


@cython.final
@cython.freelist(8)
cdef class MessageReader:
    """One message being read: where in its JSON header and where in its body."""

    cdef Body body
    cdef object text  # keeps the memory of the text
    cdef Cursor cursor
    cdef Keys keys  # of objects that are skipped; `cursor` points to them
    cdef Limits limits
    cdef str kind  # of the tensors: "input" or "output"
    cdef Py_ssize_t header_nbytes
    cdef Py_ssize_t offset  # in the body, where the next binary tensor begins; at most its length
    cdef object n_elements  # declared so far; counted only where they are limited
    cdef str server_error
    cdef bint is_lenient  # as other packages are with JSON data
    # The entry that is being read; Python objects stand beside the struct, where they are counted.
    cdef Entry entry
    cdef str name
    cdef Datatype datatype
    cdef str unknown_datatype
    cdef dict parameters
    cdef object data
    # Where that is, for error messages: "input", 0. The index is -1 outside of entries.
    cdef str item_kind
    cdef Py_ssize_t index

    cdef int begin(self, Body body, Py_ssize_t header_nbytes, Limits limits) except -1:
        self.body = body
        self.limits = limits
        self.header_nbytes = self.offset = header_nbytes
        self.n_elements = 0
        self.index = -1
        # The text must not change while it is read. A bytes object cannot; anything else could be
        # written to by another thread, at the latest when the GIL is released.
        self.text = body.unchanging(header_nbytes)
        begin_reading(
            &self.cursor, &self.keys, PyBytes_AS_STRING(self.text), header_nbytes,
            <int>limits.max_nesting)
        return 0

    def __dealloc__(self):
        end_reading(&self.keys)  # all zero when `begin` was not called

    cdef InferRequest read_request(self):
        cdef InferRequest request = InferRequest.__new__(InferRequest)
        cdef Text key
        cdef int seen = 0
        cdef Cursor* cursor = &self.cursor
        self.kind = "input"
        self.open_header()
        while next_member(cursor, &key, seen == 0):
            if says(&key, b"inputs", 6):
                self.see(&seen, TENSORS, &key)
                if not self.is_absent():
                    request.inputs = self.read_tensors()
            elif says(&key, b"id", 2):
                self.see(&seen, ID, &key)
                request.id = self.read_text("id")
            elif says(&key, b"outputs", 7):
                self.see(&seen, OUTPUTS, &key)
                if not self.is_absent():
                    request.outputs = self.read_outputs()
            elif says(&key, b"parameters", 10):
                self.see(&seen, PARAMETERS, &key)
                request._parameters = self.read_parameters()
            elif says(&key, b"model_name", 10):
                self.see(&seen, MODEL_NAME, &key)
                request.model_name = self.read_text("model_name")
            elif says(&key, b"model_version", 13):
                self.see(&seen, MODEL_VERSION, &key)
                request.model_version = self.read_text("model_version")
            else:
                self.skip_member(&seen, &key)
        self.close_header(request.inputs)
        if not request.inputs and not self.is_lenient:
            raise HeaderError("the request has no inputs")
        check_flag(request._parameters, "binary_data_output")
        return request

    cdef InferResponse read_response(self):
        cdef InferResponse response = InferResponse.__new__(InferResponse)
        cdef Text key
        cdef int seen = 0
        cdef Cursor* cursor = &self.cursor
        self.kind = "output"
        self.open_header()
        while next_member(cursor, &key, seen == 0):
            if says(&key, b"outputs", 7):
                self.see(&seen, TENSORS, &key)
                if not self.is_absent():
                    response.outputs = self.read_tensors()
            elif says(&key, b"model_name", 10):
                self.see(&seen, MODEL_NAME, &key)
                response.model_name = self.read_text("model_name")
            elif says(&key, b"model_version", 13):
                self.see(&seen, MODEL_VERSION, &key)
                response.model_version = self.read_text("model_version")
            elif says(&key, b"id", 2):
                self.see(&seen, ID, &key)
                response.id = self.read_text("id")
            elif says(&key, b"parameters", 10):
                self.see(&seen, PARAMETERS, &key)
                response._parameters = self.read_parameters()
            else:
                self.skip_member(&seen, &key)
        self.close_header(response.outputs)
        return response

    cdef int open_header(self) except -1:
        if self.header_nbytes == 0:
            raise HeaderError("the JSON header is empty", offset=0)
        skip_blanks(&self.cursor)
        if self.cursor.position == self.cursor.end:
            raise HeaderError("the JSON header is empty: it has only white space", offset=0)
        if not at(&self.cursor, c"{"):
            raise self.misfit("its value", "an object")
        return open_at(&self.cursor)

    cdef int check_end(self) except -1:
        """Raise HeaderError where anything but white space follows the header."""
        cdef Py_ssize_t n_following
        skip_blanks(&self.cursor)
        n_following = self.cursor.end - self.cursor.position
        if n_following > 0:
            offset = self.cursor.position - self.cursor.start
            follow = "more byte follows" if n_following == 1 else "more bytes follow"
            whole = self.header_nbytes == self.body.nbytes
            hint = f" (is {HEADER_LENGTH} missing?)" if whole else ""
            raise HeaderError(
                f"the JSON header is malformed: it ends at byte {offset}, and {n_following} "
                f"{follow}{hint}", offset=offset)
        return 0

    cdef int close_header(self, list tensors) except -1:
        """Check that the header was one of a message, and that its tensors are the whole body."""
        self.close_keys(0)
        self.check_end()
        if tensors is None:
            if self.server_error is not None:
                raise HeaderError(
                    f"the body is a server's error, not a message: {self.server_error[:500]}")
            raise HeaderError(
                f'the JSON header does not fit the protocol: it has no "{self.kind}s"')
        if self.offset != self.body.nbytes:
            raise tail(self.body, self.offset, len(tensors), self.header_nbytes)
        return 0

    # --- members ---

    cdef inline int see(self, int* seen, int member, const Text* key) except -1:
        """Note that a member is there, or raise HeaderError when it was there before."""
        if seen[0] & member:
            self.cursor.position = key.begin - 1
            raise_fault(&self.cursor, DUPLICATE_KEY)
        seen[0] |= member
        return 0

    cdef int skip_member(self, int* seen, const Text* key) except -1:
        """Validate a member that the protocol does not know, and remember its key."""
        cdef Text text
        cdef const unsigned char* begin
        cdef Fault fault = push_key(&self.cursor, key.begin)
        if fault != NO_FAULT:
            raise_fault(&self.cursor, fault)
        seen[0] |= OTHER
        count_work(&self.cursor, 1)
        begin = self.cursor.position
        skip_any(&self.cursor)
        if self.cursor.level == 1 and says(key, b"error", 5):
            # What a server answers instead of a message. (Validated: this finds the same again.)
            end, self.cursor.position = self.cursor.position - begin, begin
            if at(&self.cursor, c'"'):
                scan_string(&self.cursor, &text)
                self.server_error = string_of(&text)
            self.cursor.position = begin + <Py_ssize_t>end
        return 0

    cdef int close_keys(self, Py_ssize_t first) except -1:
        """Check the keys of an object that were remembered, from the `first` of them."""
        cdef Fault fault
        if self.keys.n_keys > first:
            if self.keys.n_keys - first < MANY_KEYS:
                fault = pop_keys(&self.cursor, first)
            else:
                with nogil:
                    fault = pop_keys(&self.cursor, first)
            if fault != NO_FAULT:
                raise_fault(&self.cursor, fault)
        return 0

    cdef bint is_absent(self) except -1:
        """Step behind a null, which equals absence; whether there was one."""
        cdef Fault fault
        if not at(&self.cursor, c"n"):
            return False
        fault = skip_literal(&self.cursor, "null")
        if fault != NO_FAULT:
            raise_fault(&self.cursor, fault)
        return True

    cdef int scan_text(self, Text* text, str member) except -1:
        """Validate the string that a member is."""
        cdef Fault fault
        if not at(&self.cursor, c'"'):
            raise self.misfit(member, "a string")
        fault = scan_string(&self.cursor, text)
        if fault != NO_FAULT:
            raise_fault(&self.cursor, fault)
        return 0

    cdef str read_text(self, str member):
        """A string, or None."""
        cdef Text text
        if self.is_absent():
            return None
        self.scan_text(&text, member)
        return string_of(&text)

    cdef dict read_parameters(self):
        """The parameters of the message; None for none."""
        if self.is_absent():
            return None
        if not at(&self.cursor, c"{"):
            raise self.misfit("parameters", "an object")
        return read_object(&self.cursor)

    cdef dict read_framing(self, const char* own, Py_ssize_t n_own, const unsigned char** value):
        """Parameters but for the one that says how the tensor travels; None without others.

        `value` becomes where that one's value stands, or stays NULL when it is null or missing. If
        it is an integer, `entry.nbytes` becomes that.
        """
        cdef Cursor* cursor = &self.cursor
        cdef dict members = None
        cdef Text key
        cdef bint is_first = True
        cdef bint has_own = False
        if self.is_absent():
            return None
        if not at(cursor, c"{"):
            raise self.misfit("parameters", "an object")
        open_at(cursor)
        while next_member(cursor, &key, is_first):
            is_first = False
            if not says(&key, own, n_own):
                if members is None:
                    members = {}
                set_member(cursor, members, &key, read_value(cursor))
                continue
            if has_own:
                cursor.position = key.begin - 1
                raise_fault(cursor, DUPLICATE_KEY)
            has_own = True
            if not self.is_absent():
                value[0] = cursor.position
                self.entry.size_fault = scan_int64(cursor, &self.entry.nbytes)
                if self.entry.size_fault != NO_FAULT:
                    cursor.position = value[0]
                    skip_any(cursor)
        return members

    cdef misfit(self, str member, str wanted):
        """The error for the value at the cursor, which is JSON, but not what the protocol wants."""
        offset = self.cursor.position - self.cursor.start
        of = f" of {self.item_kind} {self.index}" if self.index >= 0 else ""
        return HeaderError(
            f"the JSON header does not fit the protocol: {member}{of} is {excerpt(&self.cursor)}, "
            f"not {wanted} (byte {offset})", offset=offset)

    # --- tensors ---

    cdef list read_tensors(self):
        """The entries in wire order; the binary ones cover the body exactly (WIRE.md 1)."""
        cdef list tensors = []
        if not at(&self.cursor, c"["):
            raise self.misfit(f"{self.kind}s", "a list")
        open_at(&self.cursor)
        self.item_kind = self.kind
        while next_item(&self.cursor, self.index < 0):
            self.index += 1
            self.check_number()
            self.read_entry()
            try:
                tensors.append(self.peer_tensor() if self.is_lenient else self.tensor())
            except (LayoutError, ElementError):
                self.check_rest()
                raise
        self.index = -1
        if len(tensors) > 1 and not self.is_lenient:
            check_unique([(<Tensor>tensor).name for tensor in tensors], self.kind)
        return tensors

    cdef int check_rest(self) except -1:
        """Raise HeaderError where the header has a fault behind the entry that was read.

        A tensor that does not fit the body is often the result of a wrong header length.
        """
        cdef Text key
        while next_item(&self.cursor, False):
            skip_any(&self.cursor)
        while next_member(&self.cursor, &key, False):
            skip_any(&self.cursor)
        return self.check_end()

    cdef int read_entry(self) except -1:
        """Read the members of an entry to `entry` and the fields beside it."""
        cdef Cursor* cursor = &self.cursor
        cdef Entry* entry = &self.entry
        cdef Py_ssize_t first_key = cursor.keys.n_keys
        cdef Text key, text
        cdef int seen = 0
        if not at(cursor, c"{"):
            raise self.misfit("the entry", "an object")
        open_at(cursor)
        count_work(cursor, WORK_PER_ENTRY)
        entry.shape = entry.size = entry.data = entry.data_end = NULL
        entry.is_list = entry.is_tried = False
        self.name = self.unknown_datatype = self.datatype = self.parameters = self.data = None
        while next_member(cursor, &key, seen == 0):
            if says(&key, b"name", 4):
                self.see(&seen, NAME, &key)
                self.scan_text(&text, "name")
                self.name = string_of(&text)
                entry.name_nbytes = utf8_nbytes_of(&text)
                entry.has_nul = text.has_escapes and "\0" in self.name
            elif says(&key, b"datatype", 8):
                self.see(&seen, DATATYPE, &key)
                self.read_datatype()
            elif says(&key, b"shape", 5):
                self.see(&seen, SHAPE, &key)
                self.read_shape()
            elif says(&key, b"parameters", 10):
                self.see(&seen, PARAMETERS, &key)
                self.parameters = self.read_framing(b"binary_data_size", 16, &entry.size)
            elif says(&key, b"data", 4):
                self.see(&seen, DATA, &key)
                if not self.is_absent():
                    self.read_data(seen & (NAME | SHAPE) == (NAME | SHAPE))
            else:
                self.skip_member(&seen, &key)
        self.close_keys(first_key)
        if seen & (NAME | DATATYPE | SHAPE) != NAME | DATATYPE | SHAPE:
            raise self.incomplete(seen)
        if entry.has_nul:
            raise bad_name(self.name, self.kind)
        check_name(self.name, entry.name_nbytes, self.kind, self.limits)
        return 0

    cdef int read_datatype(self) except -1:
        cdef Text text
        cdef uint64_t word = 0
        cdef int i
        self.scan_text(&text, "datatype")
        if text.nbytes <= 8:
            memcpy(&word, text.begin, text.nbytes)
            for i in range(N_ROWS):
                if word == NAMED_ROWS[i].name:
                    self.datatype = <Datatype>NAMED_ROWS[i].datatype
                    return 0
        self.unknown_datatype = string_of(&text)  # unless it is escaped, or in another case
        if self.is_lenient:
            self.unknown_datatype = self.unknown_datatype.upper()
        self.datatype = ROWS.get(self.unknown_datatype)
        return 0

    cdef int read_shape(self) except -1:
        """Read the dimensions to `layout`; those that do not fit it are only counted."""
        cdef Cursor* cursor = &self.cursor
        cdef Entry* entry = &self.entry
        cdef Py_ssize_t n_dims = 0
        cdef long long dim = 0
        cdef Fault fault
        if not at(cursor, c"["):
            raise self.misfit("shape", "a list of integers")
        entry.shape = cursor.position
        entry.is_measurable = True
        open_at(cursor)
        while next_item(cursor, n_dims == 0):
            fault = scan_int64(cursor, &dim)
            if fault == WRONG_TYPE:
                raise self.misfit(f"dimension {n_dims}", "an integer")
            if fault != NO_FAULT and fault != OUT_OF_RANGE:
                raise_fault(cursor, fault)
            if fault == OUT_OF_RANGE or dim < 0 or n_dims >= MAX_RANK:
                entry.is_measurable = False
            else:
                entry.layout.dims[n_dims] = dim
            n_dims += 1
        entry.rank = n_dims
        entry.layout.rank = <int>n_dims if entry.is_measurable else 0
        if n_dims > self.limits.max_rank:
            entry.is_measurable = False
        return 0

    cdef tuple shape(self):
        """The dimensions as Python has them. Raises LayoutError for too many, and makes none."""
        cdef Cursor cursor
        cdef int axis
        cdef tuple dims
        if not self.entry.is_measurable:
            if self.entry.rank > self.limits.max_rank and not self.is_lenient:
                raise LayoutError(
                    f"{subject(self.kind, self.name)} has {self.entry.rank} dimensions, at most "
                    f"{self.limits.max_rank} are accepted", tensor=self.name,
                    expected=self.limits.max_rank, actual=self.entry.rank)
            cursor = self.cursor
            cursor.position, cursor.level = self.entry.shape, 0
            return tuple(read_value(&cursor))
        dims = PyTuple_New(self.entry.layout.rank)
        for axis in range(self.entry.layout.rank):
            dim = PyLong_FromSsize_t(self.entry.layout.dims[axis])
            Py_INCREF(dim)  # PyTuple_SET_ITEM steals one reference
            PyTuple_SET_ITEM(dims, axis, dim)
        return dims

    cdef int lay_out(self) except -1:
        """Count the elements and bytes of the entry's shape, or raise LayoutError."""
        cdef Entry* entry = &self.entry
        cdef uint64_t itemsize = self.datatype.itemsize or WIDEST_ITEMSIZE
        if self.limits.max_elements < INT64_MAX:
            self.n_elements += n_declared(self.shape())
            check_elements(self.n_elements, self.kind, self.name, self.limits)
        if not (entry.is_measurable and count_elements(&entry.layout, itemsize)):
            # This raises, and says why.
            measure(&entry.layout, self.shape(), itemsize, self.limits, self.kind, self.name,
                    self.datatype)
        return 0

    cdef Tensor tensor(self):
        """The tensor of the entry that was read, whose data comes from exactly one place."""
        cdef Entry* entry = &self.entry
        cdef bint is_json = entry.data != NULL
        cdef bint is_binary = entry.size != NULL
        cdef bint has_region = False
        if self.datatype is None:
            raise self.unknown()
        if self.parameters:
            has_region = check_region(self.parameters, self.name, self.kind)
        if is_json + is_binary + has_region != 1:
            # OVMS sends an empty output without any of them (WIRE.md 3).
            is_binary = not (is_json or is_binary or has_region) and self.has_no_elements()
            if not is_binary:
                raise self.not_one_source(has_region)
        if is_binary:
            self.take(self.declared_nbytes())
        elif has_region:
            self.lay_out()
        elif self.data is None:
            self.read_late()
        return make_tensor(
            self.name, self.datatype.name, self.shape(), self.data, self.parameters, is_binary)

    cdef bint has_no_elements(self):
        return self.kind == "output" and 0 in self.shape()

    # --- binary data ---

    cdef Py_ssize_t declared_nbytes(self) except -1:
        """The value of binary_data_size, or 0 without one."""
        cdef Entry* entry = &self.entry
        cdef Cursor cursor
        if entry.size == NULL:
            return 0
        if entry.size_fault == NO_FAULT and entry.nbytes >= 0:
            return entry.nbytes
        cursor = self.cursor
        cursor.position = entry.size
        offset = entry.size - cursor.start
        if entry.size_fault == WRONG_TYPE:
            raise HeaderError(
                f"binary_data_size of {subject(self.kind, self.name)} is {excerpt(&cursor)}, not "
                f"an integer", tensor=self.name, offset=offset)
        is_negative = entry.size[0] == c"-"
        problem = "is negative" if is_negative else "passes 2^63 - 1 bytes"
        raise LayoutError(
            f"binary_data_size of {subject(self.kind, self.name)} {problem}: {excerpt(&cursor)}",
            tensor=self.name, offset=offset, expected=0 if is_negative else INT64_MAX,
            actual=read_value(&cursor))

    cdef int take(self, Py_ssize_t nbytes) except -1:
        """View the next `nbytes` bytes of the body as the entry's tensor."""
        cdef Datatype datatype = self.datatype
        cdef Layout* layout = &self.entry.layout
        dtype = datatype.dtype
        self.lay_out()
        if dtype is None and datatype.itemsize == 0:
            self.data = BytesTensor.scan(
                self.body, self.shape(), self.offset, nbytes, self.limits, self.kind, self.name)
        else:
            if dtype is None:
                dtype = bf16(self.name, self.kind, self.limits)
            if <uint64_t>nbytes != layout.nbytes:
                raise wrong_size(
                    self.shape(), layout.nbytes, nbytes, self.kind, self.name, datatype)
            self.body.check_extent(self.offset, nbytes, self.kind, self.name)
            if (<cnp.dtype>dtype).type_num == cnp.NPY_BOOL and self.limits.check_bool:
                self.body.check_bool(self.offset, nbytes, self.kind, self.name)
            self.data = self.body.array(dtype, layout, self.offset)
        self.offset += nbytes
        return 0

    # --- JSON data ---

    cdef int read_data(self, bint is_described) except -1:
        """Read the data at the cursor, now or, where the entry may say more about it, later."""
        cdef Entry* entry = &self.entry
        cdef Cursor* cursor = &self.cursor
        entry.data = cursor.position
        entry.is_list = at(cursor, c"[")
        if not entry.is_list:
            skip_any(cursor)
        elif not is_described or self.datatype is None:
            skip_data(cursor)
        elif not self.is_lenient:
            self.read_elements()
        elif not self.try_elements():
            skip_data(cursor)
        entry.data_end = cursor.position
        return 0

    cdef bint try_elements(self) except -1:
        """Read the lists at the cursor. If they do not fit the tensor, stay and return False."""
        cdef const unsigned char* position = self.cursor.position
        cdef int level = self.cursor.level
        self.entry.is_tried = True
        try:
            self.read_elements()
        except DecodeError:
            self.data = None
            self.cursor.position, self.cursor.level = position, level
            return False
        return True

    cdef int read_late(self) except -1:
        """Read the data that came before the datatype, the shape or the name.

        The cursor is behind the entry again afterwards, also when this raises: `check_rest` goes on
        there.
        """
        cdef const unsigned char* position = self.cursor.position
        cdef int level = self.cursor.level
        self.cursor.position = self.entry.data
        if not self.entry.is_list:
            offset = self.entry.data - self.cursor.start
            raise HeaderError(
                f"the JSON data of {subject(self.kind, self.name)} is {excerpt(&self.cursor)}, "
                f"not a list (byte {offset})", tensor=self.name, offset=offset)
        try:
            self.read_elements()
        finally:
            self.cursor.position, self.cursor.level = position, level
        return 0

    cdef int read_elements(self) except -1:
        """Read the lists at the cursor, in memory of their own (WIRE.md 4).

        Nothing is allocated for more elements than the text can hold: each takes two bytes of it.
        """
        cdef Layout* layout = &self.entry.layout
        cdef Datatype datatype = self.datatype
        cdef uint64_t n_expected, n_read = 0
        cdef Fault fault = NO_FAULT
        cdef cnp.ndarray array
        cdef bytes wire = None
        if not datatype.in_json:
            raise HeaderError(
                f"{subject(self.kind, self.name)} is {datatype.name} with JSON data: it travels "
                f"only binary", tensor=self.name)
        self.lay_out()
        n_expected = layout.n_elements
        if n_expected > <uint64_t>(self.cursor.end - self.cursor.position) // 2:
            n_expected = 0  # the count will tell
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
                f"{subject(self.kind, self.name)} does not match its shape: {datatype.name} "
                f"{shape_text(self.shape())} needs {layout.n_elements} elements, its JSON data has "
                f"{n_read}",
                tensor=self.name, expected=layout.n_elements, actual=n_read)
        if wire is not None:
            self.data = BytesTensor.packed(wire, self.shape())
        return 0

    cdef int raise_data_fault(self, Fault fault, uint64_t element) except -1:
        cdef Datatype datatype = self.datatype
        offset = self.cursor.position - self.cursor.start
        self.data = None
        if fault == DATA_TOO_DEEP:
            raise HeaderError(
                f"the JSON data of {subject(self.kind, self.name)} is nested deeper than "
                f"{MAX_DATA_DEPTH} lists (byte {offset})",
                tensor=self.name, expected=MAX_DATA_DEPTH, offset=offset)
        if fault not in (WRONG_TYPE, OUT_OF_RANGE):
            raise_fault(&self.cursor, fault)
        takes = "strings of less than 2^32 bytes" if fault == OUT_OF_RANGE else "strings"
        if datatype.dtype is not None:
            kind = (<object>datatype.dtype).kind
            if fault == WRONG_TYPE:
                takes = {"b": "true and false", "f": "numbers"}.get(kind, "integers")
            elif kind == "f":
                takes = f"magnitudes up to {np.finfo(datatype.dtype).max}"
            else:
                takes = f"{np.iinfo(datatype.dtype).min} to {np.iinfo(datatype.dtype).max}"
        raise ElementError(
            f"element {element} of {subject(self.kind, self.name)} does not fit its datatype: "
            f"{datatype.name} takes {takes}, the value is {excerpt(&self.cursor)} (byte {offset})",
            tensor=self.name, element=element, offset=offset)

    # --- requested outputs ---

    cdef list read_outputs(self):
        cdef list outputs = []
        if not at(&self.cursor, c"["):
            raise self.misfit("outputs", "a list")
        open_at(&self.cursor)
        self.item_kind = "requested output"
        while next_item(&self.cursor, self.index < 0):
            self.index += 1
            self.check_number()
            outputs.append(self.read_output())
        self.index = -1
        if len(outputs) > 1:
            check_unique([(<RequestedOutput>output).name for output in outputs], "output")
        return outputs

    cdef RequestedOutput read_output(self):
        cdef Cursor* cursor = &self.cursor
        cdef Py_ssize_t first_key = cursor.keys.n_keys
        cdef RequestedOutput output = RequestedOutput.__new__(RequestedOutput)
        cdef const unsigned char* binary = NULL
        cdef Py_ssize_t name_nbytes = 0
        cdef Text key, text
        cdef int seen = 0
        if not at(cursor, c"{"):
            raise self.misfit("the entry", "an object")
        open_at(cursor)
        while next_member(cursor, &key, seen == 0):
            if says(&key, b"name", 4):
                self.see(&seen, NAME, &key)
                self.scan_text(&text, "name")
                output.name = string_of(&text)
                name_nbytes = utf8_nbytes_of(&text)
                if text.has_escapes and "\0" in output.name:
                    raise bad_name(output.name, "output")
            elif says(&key, b"parameters", 10):
                self.see(&seen, PARAMETERS, &key)
                output._parameters = self.read_framing(b"binary_data", 11, &binary)
            else:
                self.skip_member(&seen, &key)
        self.close_keys(first_key)
        if not seen & NAME:
            raise self.incomplete(seen | DATATYPE | SHAPE)
        check_name(output.name, name_nbytes, "output", self.limits)
        if binary != NULL:
            output.binary = binary[0] == c"t"
            if binary[0] != c"t" and binary[0] != c"f":
                cursor.position = binary
                raise HeaderError(
                    f"binary_data of {subject('output', output.name)} is {excerpt(cursor)}, not "
                    f"true or false", tensor=output.name, offset=binary - cursor.start)
        return output

    # --- errors ---

    cdef int check_number(self) except -1:
        """Reject one entry more than are accepted; `index` is that of the entry at the cursor."""
        if self.index >= self.limits.max_tensors:
            raise HeaderError(
                f"the message has more than {self.limits.max_tensors} {self.item_kind}s, which is "
                f"the limit", expected=self.limits.max_tensors, actual=self.index + 1,
                offset=self.cursor.position - self.cursor.start)
        return 0

    cdef incomplete(self, int seen):
        member = "name" if not seen & NAME else "datatype" if not seen & DATATYPE else "shape"
        return HeaderError(
            f'the JSON header does not fit the protocol: {self.item_kind} {self.index} has no '
            f'"{member}"', offset=self.cursor.position - self.cursor.start)

    cdef unknown(self):
        return HeaderError(
            f"{subject(self.kind, self.name)} has an unknown datatype: "
            f"{self.unknown_datatype[:40]!r}", tensor=self.name)

    cdef not_one_source(self, bint has_region):
        present = [
            name
            for name, is_present in (
                ("data", self.entry.data != NULL),
                ("binary_data_size", self.entry.size != NULL),
                ("shared_memory_region", has_region),
            )
            if is_present
        ]
        return HeaderError(
            f"{subject(self.kind, self.name)} needs exactly one of data, binary_data_size and "
            f"shared_memory_region, it has {' and '.join(present) or 'none'}",
            tensor=self.name,
        )

    # --- other packages' messages ---

    cdef PeerTensor peer_tensor(self):
        """The entry as KServe takes it: more tolerant where its data is JSON."""
        cdef Entry* entry = &self.entry
        cdef PeerTensor made = PeerTensor.__new__(PeerTensor)
        cdef const unsigned char* position = self.cursor.position
        made.name = self.name
        made.datatype = self.unknown_datatype if self.datatype is None else self.datatype.name
        made.parameters = self.parameters
        if entry.data != NULL:
            if not entry.is_tried and entry.is_list and self.datatype is not None:
                self.cursor.position = entry.data
                self.try_elements()
                self.cursor.position = position
            made.text = PyMemoryView_FromObject(self.text)[
                entry.data - self.cursor.start:entry.data_end - self.cursor.start]
            if entry.size != NULL:  # which counts for nothing beside the data
                self.cursor.position = entry.size
                self.parameters = {
                    **(self.parameters or {}), "binary_data_size": read_value(&self.cursor)}
                made.parameters = self.parameters
                self.cursor.position = position
        elif entry.size != NULL:
            if self.datatype is None:
                raise self.unknown()
            self.take(self.declared_nbytes())
        made.shape = self.shape()
        if self.data is not None:
            made.tensor = make_tensor(
                made.name, made.datatype, made.shape, self.data, self.parameters,
                entry.data == NULL)
        return made


@cython.final
cdef class PeerTensor:
    """An entry of another package's message: what it says, and the tensor, where it is one.

    ``tensor`` is None for an entry without data, and for JSON data that is not of its datatype and
    shape. ``text`` is the JSON of the
    data as a memoryview; None without any.
    """

    cdef readonly str name
    cdef readonly str datatype
    cdef readonly tuple shape
    cdef readonly dict parameters
    cdef readonly Tensor tensor
    cdef readonly object text


def read_peer_message(body, Py_ssize_t header_nbytes, bint is_request, Limits limits not None):
    """A message as KServe takes it: its members but for the tensors, and a list of PeerTensor.

    Raises DecodeError.
    """
    cdef Body source = Body(body)
    cdef MessageReader reader
    cdef InferRequest request
    cdef InferResponse response
    if header_nbytes < 0:
        raise HeaderError(
            f"{HEADER_LENGTH} is negative: {header_nbytes}", expected=0, actual=header_nbytes)
    reader = MessageReader.__new__(MessageReader)
    reader.begin(source, checked_header_length(source, header_nbytes, limits), limits)
    reader.is_lenient = True
    if is_request:
        request = reader.read_request()
        tensors, request.inputs = request.inputs, []
        return request, tensors
    response = reader.read_response()
    tensors, response.outputs = response.outputs, []
    return response, tensors


def view_tensor(buffer, str name not None, str datatype, tuple shape not None, str kind,
                Limits limits not None=DEFAULT_LIMITS):
    """A tensor that fills a buffer, which is not copied. Raises DecodeError.

    ``kind``: what an error message calls it, "input" or "output".
    """
    cdef Body source = Body(buffer)
    return whole_body(source, name, datatype, shape, kind, limits)


cdef Tensor whole_body(
    Body source, str name, str datatype, tuple shape, str kind, Limits limits
):
    cdef Layout layout
    cdef Datatype row = ROWS.get(datatype)
    if row is None:
        raise HeaderError(
            f"{subject(kind, name)} has an unknown datatype: {datatype!r:.40}", tensor=name)
    dtype = row.dtype
    if dtype is None and row.itemsize == 0:
        data = BytesTensor.scan(source, shape, 0, source.nbytes, limits, kind, name)
    else:
        if dtype is None:
            dtype = bf16(name, kind, limits)
        measure(&layout, shape, row.itemsize, limits, kind, name, row)
        if <uint64_t>source.nbytes != layout.nbytes:
            raise wrong_size(shape, layout.nbytes, source.nbytes, kind, name, row)
        if row.name == "BOOL" and limits.check_bool:
            source.check_bool(0, source.nbytes, kind, name)
        data = source.array(dtype, &layout, 0)
    return make_tensor(name, datatype, shape, data, None, True)


cdef bf16(str name, str kind, Limits limits):
    dtype = RAW_BF16 if limits.bf16_as_uint16 else bf16_dtype()
    if dtype is None:
        raise HeaderError(
            f"{subject(kind, name)} is BF16, for which numpy needs the ml_dtypes package; "
            f"Limits(bf16_as_uint16=True) delivers its 16-bit words without",
            tensor=name,
        )
    return dtype


cdef bint check_region(dict parameters, str name, str kind) except -1:
    region = parameters.get("shared_memory_region")
    if region is not None and type(region) is not str:
        raise HeaderError(
            f"shared_memory_region of {subject(kind, name)} is a string, not {region!r:.40}",
            tensor=name,
        )
    return region is not None


# --- raw requests ---------------------------------------------------------------------------------


cdef InferRequest raw_request(Body source, TensorSpec spec, Limits limits):
    """The whole body is one tensor; everything else is deduced from the model (WIRE.md 5)."""
    if spec is None:
        raise HeaderError(
            f"{HEADER_LENGTH} is 0, a raw binary request, and no raw_input is declared for it"
        )
    cdef Tensor tensor
    cdef Datatype datatype = ROWS[spec.datatype]
    batch = (1,) if spec.batching else ()
    if datatype.itemsize == 0:
        shape = batch + spec.dims
        check_elements(n_declared(shape), "input", spec.name, limits)
        data = raw_element(source, shape, spec, limits)
        tensor = make_tensor(spec.name, spec.datatype, shape, data, None, True)
    else:
        shape = batch + deduce(source.nbytes, datatype, spec)
        check_elements(n_declared(shape), "input", spec.name, limits)
        tensor = whole_body(source, spec.name, spec.datatype, shape, "input", limits)
    # The client of a raw request cannot say it, and means it: every output is returned binary.
    return InferRequest([tensor], parameters={"binary_data_output": True})


cdef raw_element(Body source, tuple shape, TensorSpec spec, Limits limits):
    cdef Layout layout
    if any(dim != 1 for dim in shape):
        raise LayoutError(
            f"a raw BYTES request is one element: input {spec.name!r} is declared "
            f"{shape_text(spec.dims)}, not [1]",
            tensor=spec.name,
        )
    if source.nbytes >= 1 << 32:
        raise LayoutError(
            f"input {spec.name!r} is one BYTES element of {source.nbytes} bytes, its length is "
            f"below 2^32",
            tensor=spec.name,
            expected=(1 << 32) - 1,
            actual=source.nbytes,
        )
    measure(&layout, shape, WIDEST_ITEMSIZE, limits, "input", spec.name, BYTES)
    return BytesTensor.single(source, shape)


cdef tuple deduce(Py_ssize_t nbytes, Datatype datatype, TensorSpec spec):
    """The declared dims with the variable one worked out from the body's size."""
    n_variable = spec.dims.count(-1)
    if n_variable > 1:
        raise LayoutError(
            f"the shape of input {spec.name!r} cannot be deduced: {shape_text(spec.dims)} has "
            f"{n_variable} variable dimensions",
            tensor=spec.name,
            expected=1,
            actual=n_variable,
        )
    row_nbytes = datatype.itemsize  # of the fixed dims; a Python int, which cannot overflow
    for dim in spec.dims:
        row_nbytes *= 1 if dim == -1 else dim
    fits = nbytes == row_nbytes if n_variable == 0 else row_nbytes > 0 and nbytes % row_nbytes == 0
    if not fits:
        takes = "multiples of " if n_variable else ""
        raise LayoutError(
            f"a raw body of {nbytes} bytes does not fill input {spec.name!r}: {spec.datatype} "
            f"{shape_text(spec.dims)} takes {takes}{number_text(row_nbytes)} bytes",
            tensor=spec.name,
            expected=row_nbytes,
            actual=nbytes,
        )
    return tuple(nbytes // row_nbytes if dim == -1 else dim for dim in spec.dims)


# --- checks --------------------------------------------------------------------------------------


cdef inline int check_name(
    str name, Py_ssize_t nbytes, str kind, Limits limits
) except -1:
    """Reject a name that is too long, in UTF-8."""
    if nbytes > limits.max_name_nbytes:
        raise HeaderError(
            f"the name of {subject(kind, name)} is too long: {nbytes} bytes, at most "
            f"{limits.max_name_nbytes} are accepted",
            tensor=name, expected=limits.max_name_nbytes, actual=nbytes,
        )
    return 0


cdef int check_elements(n_elements, str kind, str name, Limits limits) except -1:
    """Reject more elements than are accepted: those declared up to this tensor."""
    if n_elements > limits.max_elements:
        raise LayoutError(
            f"the message has too many elements: {number_text(n_elements)} up to "
            f"{subject(kind, name)}, at most {limits.max_elements} are accepted",
            tensor=name, expected=limits.max_elements, actual=n_elements,
        )
    return 0


cdef n_declared(tuple shape):
    """The product of the dimensions; anything over 2^63 where it is, and 0 for what cannot be."""
    product = 1
    if 0 in shape:
        return 0
    for dim in shape:
        if dim < 0:
            return 0
        if product <= INT64_MAX:  # so that the factors stay small, however many there are
            product *= dim
    return product


cdef int check_unique(list names, str kind) except -1:
    cdef set seen = set()
    cdef Py_ssize_t n = 0
    for name in names:
        PySet_Add(seen, name)
        n += 1
        if PySet_GET_SIZE(seen) < n:
            raise HeaderError(f"{subject(kind, name)} appears twice", tensor=name)
    return 0


cdef int check_flag(dict parameters, str key) except -1:
    value = None if parameters is None else parameters.get(key)
    if value is not None and type(value) is not bool:
        raise HeaderError(f"{key} of the request is true or false, not {value!r:.40}")
    return 0


cdef wrong_size(tuple shape, expected, nbytes, str kind, str name, Datatype datatype):
    return LayoutError(
        f"{subject(kind, name)} does not match its datatype: {datatype.name} {shape_text(shape)} "
        f"needs {expected} bytes, binary_data_size is {nbytes}",
        tensor=name, expected=expected, actual=nbytes,
    )


cdef beyond(announced, Py_ssize_t nbytes):
    return HeaderError(
        f"{HEADER_LENGTH} is {number_text(announced)}, the body has {nbytes} bytes",
        expected=announced,
        actual=nbytes,
    )


cdef bad_name(str name, str kind):
    return HeaderError(f"the name of {subject(kind, name)} contains a NUL", tensor=name)


cdef tail(Body source, Py_ssize_t offset, Py_ssize_t n_tensors, Py_ssize_t header_nbytes):
    n_following = source.nbytes - offset
    return LayoutError(
        f"the body has {n_following} {plural('byte', n_following)} after its last tensor: the "
        f"header of {header_nbytes} bytes and {n_tensors} {plural('tensor', n_tensors)} end at "
        f"byte {offset} of {source.nbytes}",
        offset=offset,
        expected=offset,
        actual=source.nbytes,
    )
