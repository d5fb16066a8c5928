"""Raw binary requests: the body is the data of one tensor, which the caller declares."""

from libc.stdint cimport uint64_t

from ..bytes.array cimport bytes_of_wire
from ..bytes.writer cimport pack, source_of
from ..datatypes cimport Datatype, Layout, fill_layout
from ..held_buffer cimport HeldBuffer
from ..limits cimport DECODING, Limits, add_elements
from ..messages.decoding cimport tensor_of_body
from ..messages.message cimport InferRequest, Message, new_message
from ..messages.tensor cimport Tensor, TensorSpec, new_tensor, use_bytes_array

from ..datatypes import DATATYPES

from ...errors import (
    SUBJECT, DecodeError, LayoutError, format_count, format_number, format_shape, name_tensor)
from ...http import HEADER_LENGTH


cdef InferRequest raw_request(HeldBuffer body, TensorSpec spec, Limits limits):
    """Return a raw binary request. Its body is the data of the declared input (WIRE.md 5)."""
    cdef Message request
    if spec is None:
        raise LayoutError(
            f"{HEADER_LENGTH} is 0, which means a raw binary request, but no raw_input is declared")
    try:
        tensor = raw_tensor(body, spec, limits)
    except DecodeError as error:
        name_tensor(error, "input", spec.name)
        raise
    request = new_message(True)
    request.tensors = (tensor,)
    # The client of a raw request expects binary outputs, and has no way to request them.
    request._parameters = {"binary_data_output": True}
    return request


cdef Tensor raw_tensor(HeldBuffer body, TensorSpec spec, Limits limits):
    cdef Layout layout
    cdef uint64_t n_elements = 0
    cdef Datatype datatype = DATATYPES[spec.datatype]
    cdef Tensor tensor
    cdef tuple batch = (1,) if spec.batching else ()
    cdef tuple shape
    if datatype.itemsize > 0:
        shape = batch + deduced_dims(body.nbytes, datatype, spec)
        return tensor_of_body(body, spec.name, spec.datatype, shape, limits)
    shape = batch + spec.dims
    if shape.count(1) != len(shape):
        raise LayoutError(
            f"a raw request of BYTES has one element, but {SUBJECT} is declared as "
            f"{format_shape(spec.dims)}, not [1]")
    if body.nbytes >= 1 << 32:
        raise LayoutError(
            f"{SUBJECT} is one BYTES element of {body.nbytes} bytes; the limit is 2^32 - 1",
            expected=(1 << 32) - 1, actual=body.nbytes)
    fill_layout(&layout, shape, datatype, limits.max_rank, DECODING)
    add_elements(&n_elements, layout.n_elements, limits, DECODING)
    tensor = new_tensor(spec.name, datatype, shape, None, True)
    wire = pack(source_of("O", [body.view(0, body.nbytes)], shape))  # with a length prefix
    use_bytes_array(tensor, bytes_of_wire(wire, shape))
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
