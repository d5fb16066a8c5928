"""Encode messages: a JSON header, and the buffers that follow it.

The functions that write a tensor raise errors with SUBJECT in place of its name. `Draft.add`
replaces SUBJECT with the name.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.set cimport PySet_Add, PySet_GET_SIZE
from libc.stdint cimport INT64_MAX
from libc.string cimport memcpy

from .bytes_tensor cimport BytesTensor
from .datatypes cimport Datatype, Limits, product_of, shape_to_send
from .json_writer cimport (
    AS_ERROR,
    AS_LITERAL,
    AS_NULL,
    JsonWriter,
    Nonfinite,
    exact_parameters,
    reserve,
    write_literal,
)
from .memory cimport array_bytes, check_array
from .messages cimport (
    Frame,
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    data_of,
    datatype_name,
    has_nul,
    name_of,
    new_frame,
    output_at,
    shape_of_tensor,
    tensor_at,
    tensors_of,
)

from operator import index

import numpy as np

from .datatypes import DATATYPES, RAW_BF16, bf16_dtype

from ..errors import (
    SUBJECT,
    EncodeError,
    format_names,
    format_text,
    format_value,
    name_subject,
    name_tensor,
    number_text,
    plural,
    shape_text,
    subject,
)

cnp.import_array()

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str text)
    Py_ssize_t PyUnicode_GET_LENGTH(str text)

cdef Limits DEFAULT_LIMITS = Limits()
cdef dict DATATYPES_BY_NAME = DATATYPES  # typed, so that Cython looks names up in C

cdef enum:
    # Nesting depth of the parameters of a message, and of those of a tensor or requested output.
    # The shape of a tensor has the same depth as its parameters.
    MESSAGE_DEPTH = 2
    TENSOR_DEPTH = 4
    MAX_ALIGN = 16 << 20  # limits the number of spaces after the header
    MAX_TREE_DEPTH = 6  # arrays in a peer's message are not nested deeper


def encode_request(
    InferRequest request not None, *, align=64, str nonfinite="null",
    Limits limits not None=DEFAULT_LIMITS,
):
    """Encode a request (WIRE.md 1 to 7).

    Parameters
    ----------
    request : InferRequest
        The request. Its parameter ``binary_data_output`` is also written to each requested output
        whose ``binary`` is None, because servers interpret the parameter differently (WIRE.md 7).
    align : int, default 64
        The JSON header is padded with spaces so that the binary data begins at a multiple of this
        number of bytes, from 1 (no padding) to 2^24 (WIRE.md 6).
    nonfinite : {"null", "literal", "error"}, default "null"
        How to write NaN and infinities in JSON tensors: as ``null``, or as ``NaN`` and
        ``Infinity``, which Triton accepts. With "error", they raise EncodeError (WIRE.md 4).
    limits : Limits, default Limits()
        The limits of the receiver. ``decode_request`` with the same limits accepts the request.

    Returns
    -------
    Frame
        The encoded request. The memory of the tensors is not copied, and must not change until it
        is sent.

    Raises
    ------
    EncodeError
        The request has no inputs, exceeds a limit, or contains a tensor, name or parameter that
        cannot be encoded. The attributes of the exception contain the name of the tensor and the
        index of the element.
    TypeError
        An argument, an attribute of the request or an item of its lists has the wrong type.
    ValueError
        ``align`` or ``nonfinite`` is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> request = tw.InferRequest([tw.Tensor("x", np.zeros(4, np.float32))])
    >>> frame = tw.encode_request(request)
    >>> frame.header_length % 64, len(frame) - frame.header_length
    (0, 16)
    """
    cdef list inputs = tensors_of(request)
    cdef list outputs
    cdef dict parameters
    cdef str id, model_name, model_version
    with cython.critical_section(request):  # see messages.pxd
        outputs, parameters = request.outputs, request._parameters
        id = request.id
        model_name, model_version = request.model_name, request.model_version
    if not inputs:
        raise EncodeError("a request has at least one input")
    cdef Draft draft = new_draft("input", nonfinite, limits)
    cdef JsonWriter writer = draft.writer
    write_literal(writer, b'{"inputs":[')
    add_inputs(draft, inputs)
    writer.close(c"]")
    parameters = exact_parameters(parameters)
    default = binary_data_output(parameters)
    write_text_member(writer, b'"id":', id)
    write_text_member(writer, b'"model_name":', model_name)
    write_text_member(writer, b'"model_version":', model_version)
    write_message_parameters(writer, parameters)
    if outputs is not None:
        write_requested(draft, outputs, default)
    return draft.finish(align)


def encode_response(
    InferResponse response not None, InferRequest request=None, *,
    str selection="spec", align=64, str nonfinite="null", Limits limits not None=DEFAULT_LIMITS,
):
    """Encode a response (WIRE.md 1 to 7).

    Parameters
    ----------
    response : InferResponse
        The response.
    request : InferRequest, optional
        The request to which it responds. It determines which outputs are sent: those that it lists,
        or all. It also determines which of them are sent as binary data: this depends on the
        ``binary`` of the requested output; if that is None, on the request's parameter
        ``binary_data_output``; without that, outputs are sent as JSON. The ``id`` of the request is
        used if the response has none. Without a request, the ``binary`` of each tensor is used.
    selection : {"spec", "triton"}, default "spec"
        With "triton", ``binary_data_output`` does not apply to outputs that the request lists
        (WIRE.md 7).
    align, nonfinite, limits
        See ``encode_request``.

    Returns
    -------
    Frame
        The encoded response. The memory of the tensors is not copied, and must not change until it
        is sent.

    Raises
    ------
    EncodeError
        The response exceeds a limit, or contains a tensor, name or parameter that cannot be
        encoded. The ``status`` is 400 if the request lists an unknown output, or if data cannot be
        sent as JSON (FP16, BF16, and BYTES that are not valid UTF-8).
    TypeError
        An argument, an attribute of the messages or an item of their lists has the wrong type.
    ValueError
        ``selection``, ``align`` or ``nonfinite`` is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> response = tw.InferResponse([tw.Tensor("y", np.array([0.5, 1]), binary=False)])
    >>> bytes(tw.encode_response(response))
    b'{"outputs":[{"name":"y","datatype":"FP64","shape":[2],"data":[0.5,1.0]}]}'
    """
    cdef dict parameters
    cdef str id, model_name, model_version
    if selection not in ("spec", "triton"):
        raise ValueError(f"selection must be 'spec' or 'triton', not {format_value(selection)}")
    with cython.critical_section(response):
        parameters, id = response._parameters, response.id
        model_name, model_version = response.model_name, response.model_version
    if id is None and request is not None:
        with cython.critical_section(request):
            id = request.id
    cdef Draft draft = new_draft("output", nonfinite, limits)
    cdef JsonWriter writer = draft.writer
    write_literal(writer, b'{"outputs":[')
    add_outputs(draft, response, request, selection)
    writer.close(c"]")
    write_text_member(writer, b'"model_name":', model_name)
    write_text_member(writer, b'"model_version":', model_version)
    write_text_member(writer, b'"id":', id)
    write_message_parameters(writer, exact_parameters(parameters))
    return draft.finish(align)


def encode_raw_request(array):
    """Encode a raw binary request, whose body is the data of one tensor (WIRE.md 5).

    Parameters
    ----------
    array : array, Tensor, bytes, str or sequence
        A Tensor, or data that ``Tensor`` accepts without a ``datatype``. BYTES must have exactly
        one element, which is sent without its length prefix. ``bytes`` and ``str`` are such an
        element.

    Returns
    -------
    Frame
        A frame whose ``header_length`` is 0. The memory of the tensor is not copied, and must not
        change until it is sent.

    Raises
    ------
    EncodeError
        The data cannot be encoded, is in shared memory, or does not have one BYTES element.
    TypeError
        The data has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> bytes(tw.encode_raw_request("some text"))
    b'some text'
    """
    cdef Tensor tensor
    if isinstance(array, bytes | str | bytearray):
        array = [array]
    tensor = array if isinstance(array, Tensor) else Tensor("raw_input", array)
    try:
        return raw_frame(tensor)
    except (EncodeError, TypeError) as error:
        name_tensor(error, "tensor", name_of(tensor))
        raise


cdef Frame raw_frame(Tensor tensor):
    cdef str datatype = datatype_name(tensor)
    cdef Datatype row = DATATYPES_BY_NAME.get(datatype)
    data = data_of(tensor)
    if data is None:
        raise EncodeError(f"{SUBJECT} is in shared memory, but a raw request contains the data")
    if row is None:
        raise EncodeError(f"{SUBJECT} has an unknown datatype: {format_value(datatype)}")
    wire = wire_of(data, row, shape_to_send(shape_of_tensor(tensor), row))
    if not isinstance(data, BytesTensor):
        return Frame((wire,), 0)
    if data.size != 1:
        raise EncodeError(
            f"a raw request of BYTES has one element, {SUBJECT} has {data.size}",
            expected=1, actual=data.size)
    return Frame((data.view(0).toreadonly(),), 0)


def write_peer_json(tree, str nonfinite not None):
    """Return the JSON text of a message of another package, for its integration.

    ``tree`` consists of str, int, float, bool, None, dict and list. It may also contain arrays of
    numbers and BytesTensors, which are written as flat lists, and ``bytes`` objects with JSON text,
    which is copied unchanged. FP16 and FP32 numbers are converted to FP64, as Python does: 0.1
    becomes 0.10000000149011612. ``nonfinite`` applies to arrays as in ``encode_request``.
    Elsewhere, NaN and infinities are written as null.

    Raises EncodeError for a value that JSON cannot represent, TypeError for an unsupported type.
    """
    cdef JsonWriter writer = JsonWriter.__new__(JsonWriter)
    try:
        write_tree(writer, tree, nonfinite_of(nonfinite), 0)
    except EncodeError as error:
        name_tensor(error, "message", None)
        raise
    return writer.finish(1)


# --- tensors ---------------------------------------------------------------------------------


@cython.final
@cython.freelist(8)
cdef class Draft:
    """A message under construction: the JSON header, and the buffers that follow it."""

    cdef JsonWriter writer
    cdef Py_ssize_t n_tensors
    cdef str first_name
    cdef set names  # the names of all tensors if there are several, or None
    cdef object buffer  # the buffer of the first binary tensor that is not empty, or None
    cdef list more_buffers  # the buffers of the following ones, or None
    cdef Py_ssize_t nbytes  # total size of the buffers
    cdef str kind  # the kind of the tensors: "input" or "output"
    cdef Nonfinite nonfinite
    cdef Limits limits
    cdef object n_elements  # of all tensors so far; only counted if there is a limit

    cdef int add(self, Tensor tensor, bint binary) except -1:
        """Write a tensor's entry, and keep its memory if it is sent as binary data."""
        cdef str name = name_of(tensor)
        check_count(self.n_tensors, self.kind, self.limits)
        self.n_tensors += 1
        try:
            self.write_entry(tensor, name, binary)
        except (EncodeError, TypeError) as error:
            name_tensor(error, self.kind, name)
            if isinstance(error, EncodeError):  # also if the message has no SUBJECT
                error.tensor = name
            raise
        return self.check_unique(name)

    cdef int write_entry(self, Tensor tensor, str name, bint binary) except -1:
        cdef JsonWriter writer = self.writer
        cdef Py_ssize_t nbytes = -1
        cdef bint in_json = False
        cdef Datatype row
        cdef dict parameters
        cdef str datatype
        cdef tuple shape
        # Each attribute is read once, because values of `parameters` may run code that changes it.
        with cython.critical_section(tensor):
            datatype, shape = tensor.datatype, tensor.shape
            parameters, data = tensor._parameters, tensor.data
        row = DATATYPES_BY_NAME.get(datatype)
        if name is None:
            raise EncodeError(f"{SUBJECT} has no name")
        check_name(name, self.limits)
        if row is None:
            raise EncodeError(f"{SUBJECT} has an unknown datatype: {format_value(datatype)}")
        shape = shape_to_send(shape, row)
        self.check_shape(shape)
        parameters = exact_parameters(parameters)
        if data is None:
            check_shared_memory(parameters)
        elif binary:
            wire = wire_of(data, row, shape)
            nbytes = len(wire)
            if nbytes > 0:
                self.nbytes += nbytes
                if self.buffer is None:
                    self.buffer = wire
                elif self.more_buffers is None:
                    self.more_buffers = [wire]
                else:
                    self.more_buffers.append(wire)
        else:
            in_json = True
            check_data(data, row, shape)
            if not row.in_json:
                raise EncodeError(
                    f"{SUBJECT} is {row.name}, which can only be sent as binary data", status=400)
        if data is not None and parameters:
            check_reserved(parameters)
        write_literal(writer, b'{"name":')
        writer.write_string(name)
        write_literal(writer, b'"datatype":')
        writer.write_string(row.name)
        write_literal(writer, b'"shape":')
        writer.write_shape(shape)
        if parameters or nbytes >= 0:
            write_literal(writer, b'"parameters":{')
            if parameters:
                writer.write_parameters(parameters, TENSOR_DEPTH)
            if nbytes >= 0:
                write_literal(writer, b'"binary_data_size":')
                writer.write_int64(nbytes)
            writer.close(c"}")
        if in_json:
            write_literal(writer, b'"data":')
            write_data(writer, data, self.nonfinite)
        return writer.close(c"}")

    cdef int check_unique(self, str name) except -1:
        """Raise EncodeError if a previous tensor has the same name."""
        cdef Py_ssize_t n_before
        if self.first_name is None:
            self.first_name = name
            return 0
        if self.names is None:
            self.names = {self.first_name}
        n_before = PySet_GET_SIZE(self.names)
        PySet_Add(self.names, name)
        if PySet_GET_SIZE(self.names) == n_before:
            raise EncodeError(f"{subject(self.kind, name)} appears twice", tensor=name)
        return 0

    cdef int check_shape(self, tuple shape) except -1:
        """Raise EncodeError if the dimensions of a tensor exceed a limit."""
        cdef Limits limits = self.limits
        cdef Py_ssize_t rank = len(shape)
        if rank > limits.max_rank:
            raise EncodeError(
                f"{SUBJECT} has {plural('dimension', rank)}; the limit is {limits.max_rank}",
                expected=limits.max_rank, actual=rank)
        if limits.max_elements < INT64_MAX:
            self.n_elements += product_of(shape)
            if self.n_elements > limits.max_elements:
                raise EncodeError(
                    f"the message has {number_text(self.n_elements)} elements up to {SUBJECT}; "
                    f"the limit is {limits.max_elements}",
                    expected=limits.max_elements, actual=self.n_elements)
        return 0

    cdef Frame finish(self, align):
        """Return the frame. The header is padded to `align` if binary data follows."""
        cdef bytes text
        if type(align) is not int:
            align = int(index(align))
        if not 1 <= align <= MAX_ALIGN:
            raise ValueError(f"align must be 1 to {MAX_ALIGN}, not {number_text(align)}")
        self.writer.close(c"}")
        text = self.writer.finish(1 if self.buffer is None else align)
        if len(text) > self.limits.max_header_nbytes:
            raise EncodeError(
                f"the JSON header is {plural('byte', len(text))} long; the limit is "
                f"{self.limits.max_header_nbytes}",
                expected=self.limits.max_header_nbytes, actual=len(text))
        if self.buffer is None:
            return new_frame((text,), None, len(text))
        buffers = (text, self.buffer)
        if self.more_buffers is not None:
            buffers += tuple(self.more_buffers)
        return new_frame(buffers, len(text), len(text) + self.nbytes)


cdef Draft new_draft(str kind, str nonfinite, Limits limits):
    cdef Draft draft = Draft.__new__(Draft)
    if limits.max_nesting < TENSOR_DEPTH:
        raise EncodeError(
            f"a message with tensors has {TENSOR_DEPTH} nested lists and objects; the limit is "
            f"{limits.max_nesting}", expected=limits.max_nesting, actual=TENSOR_DEPTH)
    draft.writer = JsonWriter.__new__(JsonWriter)
    draft.writer.max_nesting = limits.max_nesting
    draft.writer.max_values = limits.max_parameters
    draft.kind = kind
    draft.nonfinite = nonfinite_of(nonfinite)
    draft.limits = limits
    draft.n_elements = 0
    return draft


cdef int check_count(Py_ssize_t n_before, str kind, Limits limits) except -1:
    """Raise EncodeError if there are already as many tensors or outputs as the limit allows."""
    if n_before >= limits.max_tensors:
        raise EncodeError(
            f"the message has more than {plural(kind, limits.max_tensors)}, which is the limit",
            expected=limits.max_tensors, actual=n_before + 1)
    return 0


cdef int check_name(str name, Limits limits) except -1:
    """Raise EncodeError for a name with a NUL, or one that is too long in UTF-8."""
    cdef Py_ssize_t nbytes = PyUnicode_GET_LENGTH(name)
    if has_nul(name):
        raise EncodeError(f"the name of {SUBJECT} contains a NUL")
    if not PyUnicode_IS_ASCII(name) and nbytes > limits.max_name_nbytes // 4:
        nbytes = len(name.encode("utf-8", "surrogatepass"))
    if nbytes > limits.max_name_nbytes:
        raise EncodeError(
            f"the name of {SUBJECT} is {plural('byte', nbytes)} long; the limit is "
            f"{limits.max_name_nbytes}", expected=limits.max_name_nbytes, actual=nbytes)
    return 0


cdef Nonfinite nonfinite_of(str nonfinite) except *:
    if nonfinite == "null":
        return AS_NULL
    if nonfinite == "literal":
        return AS_LITERAL
    if nonfinite == "error":
        return AS_ERROR
    raise ValueError(
        f"nonfinite must be 'null', 'literal' or 'error', not {format_value(nonfinite)}")


cdef int write_text_member(JsonWriter writer, const char* name, str value) except -1:
    """Write a string member of the header, unless it is None. `name` has its quotes and colon."""
    if value is None:
        return 0
    write_literal(writer, name)
    return writer.write_string(value)


cdef int write_message_parameters(JsonWriter writer, dict parameters) except -1:
    """Write the parameters of a message, if it has any."""
    if not parameters:
        return 0
    write_literal(writer, b'"parameters":{')
    writer.write_parameters(parameters, MESSAGE_DEPTH)
    return writer.close(c"}")


cdef wire_of(data, Datatype row, tuple shape):
    """Check the data of a tensor, and return its memory as a flat memoryview."""
    check_data(data, row, shape)
    return array_bytes(data) if isinstance(data, cnp.ndarray) else (<BytesTensor>data).wire


cdef int check_data(data, Datatype row, tuple shape) except -1:
    """Check that the data of a tensor still matches its datatype and shape. Users can set it."""
    cdef BytesTensor elements
    if isinstance(data, cnp.ndarray):
        return check_array(data, dtype_of(data, row), shape)
    if not isinstance(data, BytesTensor):
        raise TypeError(f"the data of {SUBJECT} is now {type(data).__name__}")
    elements = data
    if row.itemsize != 0 or elements.shape != shape:
        raise EncodeError(
            f"{SUBJECT} was created as {row.name} {shape_text(shape)}, its data is now BYTES "
            f"{shape_text(elements.shape)}")
    return 0


cdef cnp.dtype dtype_of(cnp.ndarray array, Datatype row):
    """Return the dtype that an array of this datatype must have."""
    if row.dtype is not None:
        return row.dtype
    if row.itemsize == 0:
        raise EncodeError(
            f"{SUBJECT} was created as BYTES, its data is now {format_text(array.descr)}")
    return RAW_BF16 if array.descr == RAW_BF16 else bf16_dtype() or RAW_BF16


cdef int check_shared_memory(dict parameters) except -1:
    """Raise EncodeError for invalid parameters of a tensor without data."""
    if parameters is None or type(parameters.get("shared_memory_region")) is not str:
        raise EncodeError(
            f"{SUBJECT} has no data, and no shared_memory_region among its parameters")
    if "binary_data_size" in parameters:
        raise EncodeError(
            f"{SUBJECT} is in shared memory, and has a binary_data_size among its parameters")
    return 0


cdef int check_reserved(dict parameters) except -1:
    """Raise EncodeError for invalid parameters of a tensor with data."""
    for key in ("binary_data_size", "shared_memory_region"):
        if key in parameters:
            raise EncodeError(f"{SUBJECT} has data, and {key} among its parameters")
    return 0


cdef int write_data(JsonWriter writer, data, Nonfinite nonfinite) except -1:
    """Write the elements of an array or a BytesTensor as a flat list."""
    cdef BytesTensor texts
    cdef Py_ssize_t element
    if isinstance(data, BytesTensor):
        texts = data
        element = writer.write_strings(texts.body, texts.offsets(), texts.end)
        if element >= 0:
            raise EncodeError(
                f"element {element} of {SUBJECT} is not valid UTF-8, and can only be sent as "
                f"binary data", element=element, status=400)
        return 0
    element = writer.write_array(data, nonfinite)
    if element >= 0:
        raise EncodeError(
            f"element {element} of {SUBJECT} is {np.asarray(data).reshape(-1)[element]}, which "
            f"JSON cannot represent", element=element)
    return 0


# --- other packages' messages -------------------------------------------------------------------


cdef int write_tree(JsonWriter writer, tree, Nonfinite nonfinite, int depth) except -1:
    """Write a value, which is nested in `depth` lists and objects, and a comma."""
    if isinstance(tree, cnp.ndarray):
        return write_peer_array(writer, tree, nonfinite)
    if isinstance(tree, BytesTensor):
        return write_data(writer, tree, nonfinite)
    if type(tree) is bytes:
        reserve(writer, len(<bytes>tree) + 1)
        memcpy(writer.cursor.position, PyBytes_AS_STRING(tree), len(<bytes>tree))
        writer.cursor.position += len(<bytes>tree)
        return write_literal(writer, b",")
    if type(tree) is dict:
        if depth < MAX_TREE_DEPTH:
            write_literal(writer, b"{")
            for key, value in (<dict>tree).items():
                if type(key) is not str:
                    raise TypeError(
                        f"the keys of a JSON object must be str, not {type(key).__name__}")
                writer.write_string(key)
                writer.cursor.position[-1] = c":"
                write_tree(writer, value, nonfinite, depth + 1)
            return writer.close(c"}")
    elif type(tree) is list:
        if depth < MAX_TREE_DEPTH:
            write_literal(writer, b"[")
            for value in <list>tree:
                write_tree(writer, value, nonfinite, depth + 1)
            return writer.close(c"]")
    return writer.write_value(tree, depth)


cdef int write_peer_array(JsonWriter writer, cnp.ndarray array, Nonfinite nonfinite) except -1:
    if array.descr.kind == c"f":
        array = np.ascontiguousarray(array, np.float64)
    elif array.descr.kind in (c"b", c"i", c"u"):
        array = np.ascontiguousarray(array)
    else:
        raise TypeError(f"JSON cannot represent an array of {format_text(array.dtype)}")
    return write_data(writer, array, nonfinite)


# --- the lists of a message --------------------------------------------------------------------


cdef int add_inputs(Draft draft, list inputs) except -1:
    cdef Tensor tensor
    cdef Py_ssize_t i = 0
    try:
        while i < len(inputs):  # writing an item may run code that changes the length
            tensor = tensor_at(inputs, i)
            draft.add(tensor, tensor.binary)
            i += 1
    except TypeError as error:
        name_subject(error, "inputs")
        raise
    return 0


cdef binary_data_output(dict parameters):
    """Return binary_data_output among `parameters`, which `exact_parameters` has returned."""
    value = None if parameters is None else parameters.get("binary_data_output")
    if value is not None and not isinstance(value, bool):
        raise EncodeError(
            f"binary_data_output of the request must be True or False, not {format_value(value)}")
    return value


cdef int write_requested(Draft draft, list outputs, default) except -1:
    """Write the requested outputs. `default` is binary_data_output of the request, or None."""
    cdef JsonWriter writer = draft.writer
    cdef Py_ssize_t i = 0
    cdef set names = set()
    write_literal(writer, b'"outputs":[')
    try:
        while i < len(outputs):  # writing an item may run code that changes the length
            check_count(i, "requested output", draft.limits)
            write_requested_output(draft, output_at(outputs, i), names, default)
            i += 1
    except TypeError as error:
        name_subject(error, "outputs")
        raise
    return writer.close(c"]")


cdef int write_requested_output(
    Draft draft, RequestedOutput output, set names, default
) except -1:
    """Write a requested output, and add its name to those of the outputs before it."""
    cdef JsonWriter writer = draft.writer
    cdef dict parameters
    cdef Py_ssize_t n_before = PySet_GET_SIZE(names)
    cdef str name = checked_output_name(output)
    try:
        check_name(name, draft.limits)
    except EncodeError as error:
        name_tensor(error, "output", name)
        raise
    PySet_Add(names, name)
    if PySet_GET_SIZE(names) == n_before:
        raise EncodeError(f"requested output {format_value(name)} appears twice", tensor=name)
    binary = checked_binary(output, default)
    with cython.critical_section(output):
        parameters = output._parameters
    parameters = exact_parameters(parameters)
    if binary is not None:
        parameters = {**(parameters or {}), "binary_data": binary}
    elif parameters:
        sent = parameters.get("binary_data")
        if not isinstance(sent, (bool, type(None))):
            raise EncodeError(
                f"binary_data of requested output {format_value(name)} must be True or False, not "
                f"{type(sent).__name__}")
    write_literal(writer, b'{"name":')
    writer.write_string(name)
    if parameters:
        if "binary_data" in parameters:
            writer.n_values -= 1  # a decoder does not count it
        write_literal(writer, b'"parameters":{')
        writer.write_parameters(parameters, TENSOR_DEPTH)
        writer.close(c"}")
    return writer.close(c"}")


cdef str checked_output_name(RequestedOutput output):
    cdef str name
    with cython.critical_section(output):
        name = output.name
    if name is None or has_nul(name):
        raise EncodeError(
            f"requested output {format_value(name)} has no name, or its name has a NUL")
    return name


cdef checked_binary(RequestedOutput output, default):
    """Return `binary` of a requested output, or the default if that is None."""
    with cython.critical_section(output):
        name, binary = output.name, output.binary
    if binary is not None and not isinstance(binary, bool):
        raise TypeError(
            f"binary of requested output {format_value(name)} must be True, False or None, not "
            f"{type(binary).__name__}")
    return default if binary is None else binary


cdef int add_outputs(
    Draft draft, InferResponse response, InferRequest request, str selection,
) except -1:
    """Add the outputs that the request selects (WIRE.md 7)."""
    cdef list outputs = tensors_of(response)
    cdef list requested = None
    cdef dict listed = None
    cdef dict parameters
    cdef str name
    cdef Tensor tensor
    cdef Py_ssize_t i = 0
    default = None
    if request is not None:
        with cython.critical_section(request):
            requested, parameters = request.outputs, request._parameters
        default = bool(binary_data_output(exact_parameters(parameters)))
        if requested:
            listed = listed_outputs(requested, default if selection == "spec" else False)
    try:
        if listed is not None:
            check_listed(listed, outputs)
        while i < len(outputs):  # writing an item may run code that changes the length
            tensor = tensor_at(outputs, i)
            if listed is None:
                draft.add(tensor, tensor.binary if default is None else default)
            else:
                name = name_of(tensor)
                if name in listed:
                    draft.add(tensor, listed[name])
            i += 1
    except TypeError as error:
        name_subject(error, "outputs")
        raise
    return 0


cdef dict listed_outputs(list outputs, bint default):
    """Return the names of the requested outputs, and whether each is sent as binary data."""
    cdef RequestedOutput output
    cdef dict binary = {}
    cdef Py_ssize_t i
    try:
        for i in range(len(outputs)):
            output = output_at(outputs, i)
            binary[checked_output_name(output)] = checked_binary(output, default)
    except TypeError as error:
        name_subject(error, "the request's outputs")
        raise
    return binary


cdef int check_listed(dict listed, list outputs) except -1:
    """Raise EncodeError unless the response has all outputs that the request lists."""
    cdef Py_ssize_t i
    names = [name_of(tensor_at(outputs, i)) for i in range(len(outputs))]
    missing = listed.keys() - set(names)
    if missing:
        raise EncodeError(
            f"the request asks for output {format_value(min(missing))}, the response has "
            f"{format_names(names)}",
            tensor=min(missing), status=400)
    return 0
