"""Encode HTTP messages: a JSON header, and the buffers that follow it.

Messages and tensors were checked when they were made. What remains are the limits of the receiver,
what only JSON cannot represent, and whether a response has the outputs that a request lists. The
functions that write a tensor raise errors with SUBJECT in place of its name. `write_tensor`
replaces SUBJECT with the name.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_CLEAR, Py_INCREF
from libc.stdint cimport uint64_t

from ..json.writer cimport (
    AS_ERROR, AS_LITERAL, AS_NULL, NAN_AS_NULL, JsonWriter, Nonfinite, begin_writer, close, finish,
    release_writer, write_array, write_int64, write_literal, write_parameters,
    write_raw, write_shape, write_string, write_strings)
from ..limits cimport (
    ENCODING, Limits, add_elements, check_n_entries, check_name_nbytes, check_rank)
from ..messages.frame cimport Frame, new_frame
from ..messages.encoding cimport (
    check_listed, check_options, id_for, is_binary_for, requested_by)
from ..messages.message cimport (
    InferRequest, InferResponse, RequestedOutput, ResponseOptions, binary_data_output)
from ..messages.parameters cimport text_nbytes
from ..messages.tensor cimport Tensor, array_of, is_shared

from operator import index
from typing import Any

from .. import signatures
from ..limits import DEFAULT_LIMITS

from ...errors import (
    SUBJECT, EncodeError, format_count, format_number, format_subject, format_value, name_tensor)

cnp.import_array()

# For annotations: what is declared in C has no name in this module at run time.
globals().update(
    Frame=Frame, InferRequest=InferRequest, InferResponse=InferResponse, Limits=Limits,
    ResponseOptions=ResponseOptions, Nonfinite=signatures.Nonfinite, Selection=signatures.Selection)

cdef struct MessageWriter:
    # The header of a message, and the binary tensors that follow it. The struct owns `json.output`
    # and `binary_tensors`, and borrows the other objects.
    JsonWriter json
    PyObject* kind  # the kind of the tensors: "input" or "output"
    PyObject* tensors  # the tuple of all tensors
    Py_ssize_t n_tensors  # in the header so far
    uint64_t n_elements  # of these
    # The binary tensors that are not empty: a list, or NULL while they are the first `n_binary` of
    # `tensors`, as in most messages.
    PyObject* binary_tensors
    Py_ssize_t n_binary
    Py_ssize_t nbytes  # of the binary tensors


cdef dict NONFINITE = {"null": AS_NULL, "literal": AS_LITERAL, "error": AS_ERROR}

cdef enum:
    # Nesting depth of the parameters of a message, and of those of a tensor or requested output.
    # The shape of a tensor has the same depth as its parameters.
    MESSAGE_DEPTH = 2
    TENSOR_DEPTH = 4
    MAX_ALIGN = 16 << 20  # limits the number of spaces after the header


def encode_request(
    InferRequest request not None: InferRequest, *, align: int = 64,
    str nonfinite: Nonfinite | None = None, Limits limits not None: Limits = DEFAULT_LIMITS,
) -> Frame:
    """Encode a request (WIRE.md 1 to 7).

    Parameters
    ----------
    request : InferRequest
        The request. Its parameter ``binary_data_output`` is also written to each requested output
        whose ``binary`` is None, because servers interpret the parameter differently (WIRE.md 7),
        but not to an output in shared memory, for which Triton rejects it.
    align : int, default 64
        The JSON header is padded with spaces so that the binary data begins at a multiple of this
        number of bytes, from 1 (no padding) to 2^24 (WIRE.md 6).
    nonfinite : {"null", "literal", "error"}, optional
        How to write NaN and infinities in JSON tensors: all as ``null``, or as the literals ``NaN``
        and ``Infinity``, which Triton accepts. With "error", they raise EncodeError (WIRE.md 4). By
        default, NaN is written as ``null``, which is read as NaN, and an infinity raises
        EncodeError, because it would be read as NaN, too. In parameters, "literal" is the same as
        "null". Binary tensors are sent as they are.
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
        The request exceeds a limit, or JSON cannot represent the data of a tensor or a parameter.
        The attributes of the exception contain the name of the tensor and the index of the element.
    TypeError
        An argument has the wrong type.
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
    cdef MessageWriter writer
    begin_message(
        &writer, "input", request.tensors,
        NAN_AS_NULL if nonfinite is None else nonfinite_of(nonfinite), limits)
    try:
        write_request(&writer, request)
        return finished(&writer, align)
    finally:
        release_message(&writer)


def encode_response(
    InferResponse response not None: InferResponse,
    request: InferRequest | ResponseOptions | None = None, *,
    str selection: Selection = "spec", align: int = 64, str nonfinite: Nonfinite = "null",
    Limits limits not None: Limits = DEFAULT_LIMITS,
) -> Frame:
    """Encode a response (WIRE.md 1 to 7).

    Parameters
    ----------
    response : InferResponse
        The response.
    request : InferRequest or ResponseOptions, optional
        The request to which it responds, or what it says about the response. It determines which
        outputs are sent: those that it lists, or all. It also determines which of them are sent as
        binary data: this depends on the ``binary`` of the requested output; if that is None, on the
        request's parameter ``binary_data_output``; without that, outputs are sent as JSON. The
        ``id`` of the request is used if the response has none. Without a request, the ``binary`` of
        each tensor is used.
    selection : {"spec", "triton"}, default "spec"
        With "triton", ``binary_data_output`` does not apply to outputs that the request lists
        (WIRE.md 7).
    nonfinite : {"null", "literal", "error"}, default "null"
        How to write NaN and infinities in JSON tensors; see ``encode_request``. By default, all are
        written as ``null``, so that a client receives an infinity as NaN.
    align, limits
        See ``encode_request``.

    Returns
    -------
    Frame
        The encoded response. The memory of the tensors is not copied, and must not change until it
        is sent.

    Raises
    ------
    EncodeError
        The response exceeds a limit, or JSON cannot represent the data of a tensor or a parameter.
        The ``status`` is 400 if the request lists an unknown output, or if a datatype or BYTES that
        are not valid UTF-8 cannot be sent as JSON.
    TypeError
        An argument has the wrong type.
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
    if selection not in ("spec", "triton"):
        raise ValueError(f"selection must be 'spec' or 'triton', not {format_value(selection)}")
    check_options(request)
    cdef MessageWriter writer
    begin_message(&writer, "output", response.tensors, nonfinite_of(nonfinite), limits)
    try:
        write_response(&writer, response, request, selection)
        return finished(&writer, align)
    finally:
        release_message(&writer)


def encode_raw_request(array: Any) -> Frame:
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
    if is_shared(tensor):
        raise EncodeError(
            f"{format_subject('tensor', tensor.name)} is in shared memory, but a raw request "
            f"contains the data", tensor=tensor.name)
    if tensor.bytes_array is None:
        return new_frame(None, (tensor,), 0, tensor.nbytes)
    if tensor.bytes_array.size != 1:
        raise EncodeError(
            f"a raw request of BYTES has one element, but {format_subject('tensor', tensor.name)} "
            f"has {tensor.bytes_array.size}",
            tensor=tensor.name, expected=1, actual=tensor.bytes_array.size)
    return Frame((tensor.bytes_array.element(0).toreadonly(),), 0)


cdef Nonfinite nonfinite_of(str nonfinite) except *:
    if nonfinite not in NONFINITE:
        raise ValueError(
            f"nonfinite must be 'null', 'literal' or 'error', not {format_value(nonfinite)}")
    return NONFINITE[nonfinite]


# --- messages --------------------------------------------------------------------------------


cdef int begin_message(
    MessageWriter* writer, str kind, tuple tensors, Nonfinite nonfinite, Limits limits
) except -1:
    """Prepare for writing a message. `release_message` must be called after this returns."""
    if limits.max_nesting < TENSOR_DEPTH:
        raise EncodeError(
            f"a message with tensors has {TENSOR_DEPTH} nested lists and objects; the limit is "
            f"{limits.max_nesting}", expected=limits.max_nesting, actual=TENSOR_DEPTH)
    begin_writer(&writer.json)
    writer.binary_tensors = NULL
    writer.kind = <PyObject*>kind
    writer.tensors = <PyObject*>tensors
    writer.json.limits = <PyObject*>limits
    writer.json.nonfinite = nonfinite
    writer.n_binary = writer.n_tensors = writer.nbytes = 0
    writer.n_elements = 0
    return 0


cdef void release_message(MessageWriter* writer) noexcept:
    release_writer(&writer.json)
    Py_CLEAR(writer.binary_tensors)


cdef int write_request(MessageWriter* writer, InferRequest request) except -1:
    cdef Tensor tensor
    write_literal(&writer.json, b'{"inputs":[')
    for tensor in request.tensors:
        write_tensor(writer, tensor, tensor.binary)
    close(&writer.json, c"]")
    write_text_member(writer, b'"id":', request.id)
    write_text_member(writer, b'"model_name":', request.model_name)
    write_text_member(writer, b'"model_version":', request.model_version)
    write_message_parameters(writer, request._parameters)
    if request.requested is not None:
        write_requested(writer, request.requested, binary_data_output(request))
    return close(&writer.json, c"}")


cdef int write_response(
    MessageWriter* writer, InferResponse response, options, str selection
) except -1:
    write_literal(&writer.json, b'{"outputs":[')
    add_outputs(writer, response, options, selection)
    close(&writer.json, c"]")
    write_text_member(writer, b'"model_name":', response.model_name)
    write_text_member(writer, b'"model_version":', response.model_version)
    write_text_member(writer, b'"id":', id_for(response, options))
    write_message_parameters(writer, response._parameters)
    return close(&writer.json, c"}")


cdef Frame finished(MessageWriter* writer, align):
    """Return the frame of a message. The header is padded to `align` if binary data follows."""
    cdef int overflow
    cdef long long multiple
    cdef bint is_binary = writer.n_binary > 0
    cdef bytes header
    cdef Py_ssize_t nbytes
    if type(align) is not int:
        align = index(align)
    multiple = PyLong_AsLongLongAndOverflow(align, &overflow)  # -1 if it exceeds 64 bits
    if not 1 <= multiple <= MAX_ALIGN:
        raise ValueError(f"align must be 1 to {MAX_ALIGN}, not {format_number(align)}")
    header = finish(&writer.json, multiple if is_binary else 1)
    nbytes = len(header)
    if nbytes > (<Limits>writer.json.limits).max_header_nbytes:
        raise EncodeError(
            f"the JSON header is {format_count('byte', nbytes)} long; the limit is "
            f"{(<Limits>writer.json.limits).max_header_nbytes}",
            expected=(<Limits>writer.json.limits).max_header_nbytes, actual=nbytes)
    return new_frame(
        header, tensors_of_frame(writer), nbytes if is_binary else None, nbytes + writer.nbytes)


cdef tuple tensors_of_frame(MessageWriter* writer):
    cdef tuple tensors = <tuple>writer.tensors
    if writer.binary_tensors != NULL:
        return tuple(<list>writer.binary_tensors)
    return tensors if writer.n_binary == len(tensors) else tensors[:writer.n_binary]


cdef int add_binary(MessageWriter* writer, Tensor tensor) except -1:
    """Keep the memory of a binary tensor that is not empty."""
    cdef tuple tensors = <tuple>writer.tensors
    writer.nbytes += tensor.nbytes
    if writer.binary_tensors == NULL and tensors[writer.n_binary] is not tensor:  # one was left out
        first = list(tensors[:writer.n_binary])
        Py_INCREF(first)
        writer.binary_tensors = <PyObject*>first
    if writer.binary_tensors != NULL:
        (<list>writer.binary_tensors).append(tensor)
    writer.n_binary += 1
    return 0


# --- tensors ---------------------------------------------------------------------------------


cdef int write_tensor(MessageWriter* writer, Tensor tensor, bint binary) except -1:
    """Write a tensor's entry, and keep its memory if it is sent as binary data."""
    check_n_entries(writer.n_tensors, <str>writer.kind, <Limits>writer.json.limits, ENCODING, 0)
    writer.n_tensors += 1
    try:
        return write_entry(writer, tensor, binary)
    except EncodeError as error:
        name_tensor(error, <str>writer.kind, tensor.name)
        error.tensor = tensor.name  # also if the message has no SUBJECT
        raise


cdef int write_entry(MessageWriter* writer, Tensor tensor, bint binary) except -1:
    cdef bint has_data = not is_shared(tensor)
    cdef bint has_size = binary and has_data
    cdef bytes before_shape = tensor.element_type.before_shape
    check_name_nbytes(text_nbytes(tensor.name), <Limits>writer.json.limits, ENCODING)
    check_rank(len(tensor.shape), (<Limits>writer.json.limits).max_rank, ENCODING)
    if has_size and tensor.nbytes > 0:
        add_binary(writer, tensor)
    write_literal(&writer.json, b'{"name":')
    write_string(&writer.json, tensor.name)
    write_raw(&writer.json, PyBytes_AS_STRING(before_shape), len(before_shape))
    add_elements(
        &writer.n_elements, write_shape(&writer.json, tensor.shape), <Limits>writer.json.limits,
        ENCODING)
    if has_size or tensor._parameters is not None:
        write_literal(&writer.json, b'"parameters":{')
        if tensor._parameters is not None:
            write_parameters(&writer.json, tensor._parameters, TENSOR_DEPTH)
        if has_size:
            write_literal(&writer.json, b'"binary_data_size":')
            write_int64(&writer.json, tensor.nbytes)
        close(&writer.json, c"}")
    if has_data and not binary:
        if not tensor.element_type.in_json:
            raise EncodeError(
                f"{SUBJECT} is {tensor.element_type.name}, which can only be sent as binary data",
                status=400)
        write_literal(&writer.json, b'"data":')
        write_data(writer, tensor)
    return close(&writer.json, c"}")


cdef int write_text_member(MessageWriter* writer, const char* name, str value) except -1:
    """Write a string member of the header, unless it is None. `name` has its quotes and colon."""
    if value is not None:
        write_literal(&writer.json, name)
        write_string(&writer.json, value)
    return 0


cdef int write_message_parameters(MessageWriter* writer, dict parameters) except -1:
    if parameters is not None:
        write_literal(&writer.json, b'"parameters":{')
        write_parameters(&writer.json, parameters, MESSAGE_DEPTH)
        close(&writer.json, c"}")
    return 0


cdef int write_data(MessageWriter* writer, Tensor tensor) except -1:
    cdef Py_ssize_t element
    cdef cnp.ndarray array
    if tensor.bytes_array is not None:
        element = write_strings(&writer.json, tensor.bytes_array)
        if element >= 0:
            raise EncodeError(
                f"element {element} of {SUBJECT} is not valid UTF-8, and can only be sent as "
                f"binary data", element=element, status=400)
        return 0
    array = array_of(tensor)
    element = write_array(&writer.json, array)
    if element >= 0:
        hint = "" if writer.json.nonfinite != NAN_AS_NULL else (
            ": pass nonfinite='literal' to send a literal, which Triton reads, or nonfinite='null' "
            "to send null, which is read as NaN")
        raise EncodeError(
            f"element {element} of {SUBJECT} is {array.reshape(-1)[element]}, which "
            f"JSON cannot represent{hint}", element=element)
    return 0


# --- requested outputs -------------------------------------------------------------------------


cdef int write_requested(MessageWriter* writer, tuple outputs, default) except -1:
    """Write the requested outputs. `default` is binary_data_output of the request, or None."""
    cdef RequestedOutput output
    cdef Py_ssize_t n_before = 0
    write_literal(&writer.json, b'"outputs":[')
    for output in outputs:
        check_n_entries(n_before, "requested output", <Limits>writer.json.limits, ENCODING, 0)
        n_before += 1
        write_requested_output(writer, output, default)
    return close(&writer.json, c"]")


cdef int write_requested_output(MessageWriter* writer, RequestedOutput output, default) except -1:
    binary = default if output.binary is None else output.binary
    if (output.binary is None and output._parameters is not None
            and "shared_memory_region" in output._parameters):
        binary = None  # Triton rejects an output with both
    try:
        check_name_nbytes(text_nbytes(output.name), <Limits>writer.json.limits, ENCODING)
        write_literal(&writer.json, b'{"name":')
        write_string(&writer.json, output.name)
        if output._parameters is not None or binary is not None:
            write_literal(&writer.json, b'"parameters":{')
            if output._parameters is not None:
                write_parameters(&writer.json, output._parameters, TENSOR_DEPTH)
            if binary is not None:
                write_literal(&writer.json, b'"binary_data":')
                write_literal(&writer.json, b"true," if binary else b"false,")
            close(&writer.json, c"}")
        return close(&writer.json, c"}")
    except EncodeError as error:
        name_tensor(error, "output", output.name)
        error.tensor = output.name  # also if the message has no SUBJECT
        raise


cdef int add_outputs(
    MessageWriter* writer, InferResponse response, options, str selection,
) except -1:
    """Add the outputs that the request selects (WIRE.md 7)."""
    cdef dict listed = None
    cdef Tensor tensor
    cdef RequestedOutput output
    cdef bint default = is_binary_for(options)
    cdef tuple requested = requested_by(options)
    if requested:
        listed = {}
        for output in requested:
            if output.binary is None:
                listed[output.name] = default and selection == "spec"
            else:
                listed[output.name] = output.binary
        check_listed(listed, response)
    for tensor in response.tensors:
        if listed is None:
            write_tensor(writer, tensor, tensor.binary if options is None else default)
        elif tensor.name in listed:
            write_tensor(writer, tensor, listed[tensor.name])
    return 0
