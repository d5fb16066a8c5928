"""Encode gRPC messages (WIRE.md 12).

The size of a message is computed first, so that it is written once, to memory of that size. Nothing
that is written can change in between: messages and tensors are values. The functions that measure
the parameters of a tensor raise errors with SUBJECT in place of its name.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from ..gil cimport write_memory
from ..grpc.protobuf cimport (
    FIXED64, MAX_MESSAGE_NBYTES, VARINT, begin_field, field_nbytes, varint_nbytes, write_tag,
    write_varint)
from ..held_buffer cimport HeldBuffer
from ..messages.encoding cimport check_listed, check_options, id_for, requested_by
from ..messages.message cimport (
    InferRequest, InferResponse, Message, RequestedOutput, ResponseOptions)
from ..messages.parameters cimport text_nbytes
from ..messages.tensor cimport Tensor, is_shared, copy_data

from ...errors import SUBJECT, EncodeError, format_value, name_subject, name_tensor

# For annotations: what is declared in C has no name in this module at run time.
globals().update(
    InferRequest=InferRequest, InferResponse=InferResponse, ResponseOptions=ResponseOptions)


def encode_request(InferRequest request not None: InferRequest) -> bytes:
    """Encode a request as a ``ModelInferRequest`` (WIRE.md 12).

    Parameters
    ----------
    request : InferRequest
        The request. The data of all inputs is sent in ``raw_input_contents``, whatever their
        ``binary`` is.

    Returns
    -------
    bytes
        The serialized message, with a copy of the data. It can be sent any number of times.

    Raises
    ------
    EncodeError
        A parameter is a list, an object, or an integer that has more than 64 bits; or the message
        exceeds 2^31 - 1 bytes.
    TypeError
        The argument has the wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> import tensorwire.grpc
    >>> tw.grpc.encode_request(tw.InferRequest({"x": np.array([1, 2], np.uint8)}))
    b'*\\r\\n\\x01x\\x12\\x05UINT8\\x1a\\x01\\x02:\\x02\\x01\\x02'
    """
    return encoded(request, request.tensors, request.id, 0)


def encode_response(
    InferResponse response not None: InferResponse,
    request: InferRequest | ResponseOptions | None = None,
) -> bytes:
    """Encode a response as a ``ModelInferResponse`` (WIRE.md 12).

    Parameters
    ----------
    response : InferResponse
        The response. The data of all outputs is sent in ``raw_output_contents``, whatever their
        ``binary`` is.
    request : InferRequest or ResponseOptions, optional
        The request to which it responds, or what it says about the response. It determines which
        outputs are sent: those that it lists, or all. The ``id`` of the request is used if the
        response has none.

    Returns
    -------
    bytes
        The serialized message, with a copy of the data.

    Raises
    ------
    EncodeError
        A parameter is a list, an object, or an integer that has more than 64 bits; or the message
        exceeds 2^31 - 1 bytes. The ``status`` is 400 if the request lists an unknown output.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> import tensorwire.grpc
    >>> tw.grpc.encode_response(tw.InferResponse({"y": np.array([7], np.uint8)}, id="1"))
    b'\\x1a\\x011*\\r\\n\\x01y\\x12\\x05UINT8\\x1a\\x01\\x012\\x01\\x07'
    """
    return encoded(response, selected(response, request), id_for(response, request), 0)


def encode_stream_response(
    InferResponse response not None: InferResponse,
    request: InferRequest | ResponseOptions | None = None,
) -> bytes:
    """Encode a response as a ``ModelStreamInferResponse`` (WIRE.md 12).

    Parameters
    ----------
    response, request
        See ``encode_response``.

    Returns
    -------
    bytes
        The serialized message, with a copy of the data.

    Raises
    ------
    EncodeError, TypeError
        See ``encode_response``.

    Examples
    --------
    >>> import tensorwire as tw
    >>> import tensorwire.grpc
    >>> tw.grpc.encode_stream_response(tw.InferResponse([], id="7"))
    b'\\x12\\x03\\x1a\\x017'
    """
    return encoded(response, selected(response, request), id_for(response, request), 2)


cdef tuple selected(InferResponse response, options):
    """Return the outputs that a request selects (WIRE.md 7), in the order of the response."""
    cdef dict listed = {}
    cdef RequestedOutput output
    cdef Tensor tensor
    check_options(options)
    cdef tuple requested = requested_by(options)
    if not requested:
        return response.tensors
    for output in requested:
        listed[output.name] = None
    check_listed(listed, response)
    return tuple(filter(lambda tensor: tensor.name in listed, response.tensors))


# --- messages ------------------------------------------------------------------------------------


cdef bytes encoded(Message message, tuple tensors, str id, unsigned char number):
    """Return the serialized message, as the value of field `number` unless that is 0."""
    cdef uint64_t nbytes = message_nbytes(message, id, tensors)
    cdef uint64_t total = nbytes if number == 0 else field_nbytes(nbytes)
    cdef bytes result = checked_bytes(total)
    cdef unsigned char* target = <unsigned char*>PyBytes_AS_STRING(result)
    if number > 0:
        target = begin_field(target, number, nbytes)
    target = write_message_fields(target, message, id, tensors)
    assert target == <unsigned char*>PyBytes_AS_STRING(result) + total
    return result


cdef bytes checked_bytes(uint64_t nbytes):
    if nbytes > MAX_MESSAGE_NBYTES:
        raise EncodeError(
            f"the gRPC message is {nbytes} bytes long; the limit is {MAX_MESSAGE_NBYTES}",
            expected=MAX_MESSAGE_NBYTES, actual=nbytes)
    return PyBytes_FromStringAndSize(NULL, nbytes)


cdef uint64_t message_nbytes(Message message, str id, tuple tensors) except? 0:
    """Return the size of a message, or at least 2^63 if it is larger.

    It does not overflow: no tensor, text or map of parameters has 2^63 bytes, and the sum is cut to
    2^63 before the next one is added. Many tensors can be views of the same memory.
    """
    cdef Tensor tensor
    cdef RequestedOutput output
    cdef str kind = "input" if type(message) is InferRequest else "output"
    cdef uint64_t nbytes = (
        text_field_nbytes(message.model_name) + text_field_nbytes(message.model_version)
        + text_field_nbytes(id))
    try:
        nbytes += parameters_nbytes(message._parameters)
    except EncodeError as error:
        name_subject(error, "the request" if kind == "input" else "the response")
        raise
    for tensor in tensors:
        try:
            nbytes += field_nbytes(entry_nbytes(tensor))
        except EncodeError as error:
            name_tensor(error, kind, tensor.name)
            raise
        if not is_shared(tensor):
            nbytes = min(nbytes, <uint64_t>1 << 63) + field_nbytes(tensor.nbytes)
        elif kind == "output":
            nbytes += field_nbytes(0)
    if message.requested is not None:
        for output in message.requested:
            try:
                nbytes += field_nbytes(output_nbytes(output))
            except EncodeError as error:
                name_tensor(error, "output", output.name)
                raise
    return nbytes


cdef unsigned char* write_message_fields(
    unsigned char* target, Message message, str id, tuple tensors
) except NULL:
    cdef Tensor tensor
    cdef RequestedOutput output
    cdef unsigned char raw_number = 7 if type(message) is InferRequest else 6
    target = write_text_field(target, 1, message.model_name)
    target = write_text_field(target, 2, message.model_version)
    target = write_text_field(target, 3, id)
    target = write_parameters(target, 4, message._parameters)
    for tensor in tensors:
        target = begin_field(target, 5, entry_nbytes(tensor))
        target = write_text_field(target, 1, tensor.name)
        target = write_text_field(target, 2, tensor.element_type.name)
        target = write_shape(target, tensor.shape)
        target = write_parameters(target, 4, tensor._parameters)
    if message.requested is not None:
        for output in message.requested:
            target = begin_field(target, 6, output_nbytes(output))
            target = write_text_field(target, 1, output.name)
            target = write_parameters(target, 2, output._parameters)
    for tensor in tensors:
        if not is_shared(tensor):
            target = copy_data(begin_field(target, raw_number, tensor.nbytes), tensor)
        elif raw_number == 6:  # clients count the contents of outputs
            target = begin_field(target, raw_number, 0)
    return target


# --- entries of tensors and requested outputs ---


cdef uint64_t entry_nbytes(Tensor tensor) except? 0:
    cdef uint64_t nbytes = text_field_nbytes(tensor.name)
    nbytes += text_field_nbytes(tensor.element_type.name)
    if tensor.shape:
        nbytes += field_nbytes(shape_nbytes(tensor.shape))
    return nbytes + parameters_nbytes(tensor._parameters)


cdef uint64_t output_nbytes(RequestedOutput output) except? 0:
    return text_field_nbytes(output.name) + parameters_nbytes(output._parameters)


cdef uint64_t shape_nbytes(tuple shape) except? 0:
    cdef uint64_t nbytes = 0
    for dim in shape:
        nbytes += varint_nbytes(<uint64_t>dim)
    return nbytes


cdef unsigned char* write_shape(unsigned char* target, tuple shape) except NULL:
    if shape:
        target = begin_field(target, 3, shape_nbytes(shape))
        for dim in shape:
            target = write_varint(target, <uint64_t>dim)
    return target


# --- text and parameters ---


cdef inline uint64_t text_field_nbytes(str text) except? 0:
    """Return the size of a field with text. Fields that are empty or None are not written."""
    return field_nbytes(text_nbytes(text)) if text else 0


cdef unsigned char* write_text_field(
    unsigned char* target, unsigned char number, str text
) except NULL:
    return write_any_text_field(target, number, text) if text else target


cdef unsigned char* write_any_text_field(
    unsigned char* target, unsigned char number, str text
) except NULL:
    cdef Py_ssize_t nbytes = 0
    cdef const char* data = PyUnicode_AsUTF8AndSize(text, &nbytes)
    target = begin_field(target, number, nbytes)
    memcpy(target, data, nbytes)
    return target + nbytes


cdef uint64_t parameters_nbytes(dict parameters) except? 0:
    """Return the size of a map of parameters, which may be None."""
    cdef uint64_t nbytes = 0
    cdef Py_ssize_t position = 0
    cdef PyObject* key
    cdef PyObject* value
    while parameters is not None and PyDict_Next(parameters, &position, &key, &value):
        nbytes += field_nbytes(
            parameter_nbytes(<str>key, parameter_value_nbytes(<str>key, <object>value)))
    return nbytes


cdef unsigned char* write_parameters(
    unsigned char* target, unsigned char number, dict parameters
) except NULL:
    cdef uint64_t nbytes
    cdef Py_ssize_t position = 0
    cdef PyObject* key
    cdef PyObject* value
    while parameters is not None and PyDict_Next(parameters, &position, &key, &value):
        nbytes = parameter_value_nbytes(<str>key, <object>value)
        target = begin_field(target, number, parameter_nbytes(<str>key, nbytes))
        target = write_any_text_field(target, 1, <str>key)
        target = begin_field(target, 2, nbytes)
        target = write_value(target, <object>value)
    return target


cdef uint64_t parameter_nbytes(str key, uint64_t nbytes) except? 0:
    """Return the size of an entry of a map of parameters whose value has `nbytes` bytes."""
    return field_nbytes(text_nbytes(key)) + field_nbytes(nbytes)


cdef uint64_t parameter_value_nbytes(str key, value) except? 0:
    """Return the size of an InferParameter. None is one without a value."""
    kind = type(value)
    if value is None:
        return 0
    if kind is bool:
        return 2
    if kind is int:
        if value >= 0:
            if value < 1 << 64:
                return 1 + varint_nbytes(<uint64_t>value)
        elif value >= -(1 << 63):
            return 1 + varint_nbytes(<uint64_t><int64_t>value)
        raise EncodeError(
            f"parameter {format_value(key)} of {SUBJECT} is an integer of {value.bit_length()} "
            f"bits; gRPC messages have integers of 64 bits")
    if kind is float:
        return 9
    if kind is str:
        return field_nbytes(text_nbytes(<str>value))
    name = "an object" if kind is dict else "a list"
    raise EncodeError(
        f"parameter {format_value(key)} of {SUBJECT} is {name}, which gRPC messages "
        f"cannot contain")


cdef unsigned char* write_value(unsigned char* target, value) except NULL:
    """Write an InferParameter. `parameter_value_nbytes` has checked the value."""
    cdef double number
    kind = type(value)
    if value is None:
        return target
    if kind is bool:
        return write_varint(write_tag(target, 1, VARINT), 1 if value else 0)
    if kind is int:
        if value >= 1 << 63:
            return write_varint(write_tag(target, 5, VARINT), <uint64_t>value)
        return write_varint(write_tag(target, 2, VARINT), <uint64_t><int64_t>value)
    if kind is float:
        number = value
        target = write_tag(target, 4, FIXED64)
        memcpy(target, &number, 8)
        return target + 8
    return write_any_text_field(target, 3, <str>value)


# --- the other messages of the service -----------------------------------------------------------


def write_fields(dict values not None, dict kinds not None):
    """Return a message with the fields that `read_fields` of the reader returns.

    `kinds` is its argument. Fields of the kind ``int`` are written even if they are 0.
    """
    cdef list parts = []
    for number, (name, kind) in kinds.items():
        parts.append(field_bytes(number, values[name], kind))
    return b"".join(parts)


cdef bytes field_bytes(unsigned char number, value, kind):
    """Return the fields of a value. Values that are empty, False or None are not written."""
    cdef list parts = []
    if kind is int and value is not None:
        return varint_bytes(number << 3 | VARINT) + varint_bytes(<uint64_t><int64_t>value)
    if not value:
        return b""
    if kind is str:
        return delimited(number, (<str>value).encode())
    if kind is bool:
        return varint_bytes(number << 3 | VARINT) + varint_bytes(1)
    if kind == [str]:
        for item in value:
            parts.append(delimited(number, (<str>item).encode()))
        return b"".join(parts)
    if kind == [int]:
        for item in value:
            parts.append(varint_bytes(<uint64_t><int64_t>item))
        packed = b"".join(parts)
        return delimited(number, packed)
    for item in value:
        parts.append(delimited(number, write_fields(item, kind[0])))
    return b"".join(parts)


cdef bytes delimited(unsigned char number, bytes data):
    cdef bytes field = checked_bytes(field_nbytes(len(data)))
    target = begin_field(<unsigned char*>PyBytes_AS_STRING(field), number, len(data))
    memcpy(target, PyBytes_AS_STRING(data), len(data))
    return field


cdef bytes varint_bytes(uint64_t value):
    cdef bytes written = checked_bytes(varint_nbytes(value))
    write_varint(<unsigned char*>PyBytes_AS_STRING(written), value)
    return written


def append_fields(head, unsigned char number, contents):
    """Return a message with more fields of bytes, such as raw contents, after its other ones.

    `number` is that of the fields, 1 to 15. Raises EncodeError if the message exceeds 2^31 - 1
    bytes.
    """
    cdef list buffers = list(map(HeldBuffer, contents))
    cdef HeldBuffer first = HeldBuffer(head)
    cdef HeldBuffer buffer
    cdef uint64_t nbytes = first.nbytes
    cdef bytes message
    cdef unsigned char* target
    for buffer in buffers:  # no overflow, as in `message_nbytes`
        nbytes = min(nbytes, <uint64_t>1 << 63) + field_nbytes(buffer.nbytes)
    message = checked_bytes(nbytes)
    target = write_memory(
        <unsigned char*>PyBytes_AS_STRING(message), first.data, first.nbytes)
    for buffer in buffers:
        target = begin_field(target, number, buffer.nbytes)
        target = write_memory(target, buffer.data, buffer.nbytes)
    return message
