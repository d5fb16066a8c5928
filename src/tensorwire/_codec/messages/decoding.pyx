"""What the decoders of HTTP and gRPC messages share: checks, and tensors that are views of a body.

The functions raise errors with SUBJECT in place of the tensor's name.
"""

cimport numpy as cnp
from libc.stdint cimport uint64_t

from ..bytes.array cimport bytes_of_elements
from ..bytes.reader cimport scan_elements
from ..datatypes cimport Datatype, Layout, fill_layout
from ..gil cimport READ_NBYTES, count_or_release_gil, take_gil
from ..held_buffer cimport HeldBuffer
from ..limits cimport DECODING, Limits, add_elements, check_name_nbytes
from ..messages.message cimport InferRequest, Message, binary_data_output, items_by_name
from ..messages.tensor cimport Tensor, new_tensor, use_memory, use_bytes_array

from operator import index

from ..datatypes import DATATYPES, RAW_BF16, bf16_dtype

from ...errors import (
    SUBJECT, DecodeError, ElementError, HeaderError, LayoutError, format_shape, format_value)

cnp.import_array()

cdef enum:
    CHECK_NBYTES = 32 << 10  # size of the blocks in which BOOL elements are checked


def view_tensor(
    buffer, str name not None, str datatype, tuple shape not None, Limits limits not None,
):
    """Return a tensor that is a view of a whole buffer, as in a gRPC message."""
    # Exact ints: other objects may return different numbers when they are converted again.
    shape = tuple(map(index, shape))
    return tensor_of_body(HeldBuffer(buffer), name, datatype, shape, limits)


cdef Tensor tensor_of_body(HeldBuffer body, str name, str datatype, tuple shape, Limits limits):
    cdef Layout layout
    cdef uint64_t n_elements = 0
    cdef Tensor tensor
    cdef Datatype element_type = DATATYPES.get(datatype)
    if element_type is None:
        raise unknown_datatype_error(datatype)
    fill_layout(&layout, shape, element_type, limits.max_rank, DECODING)
    add_elements(&n_elements, layout.n_elements, limits, DECODING)
    tensor = new_tensor(name, element_type, shape, None, True)
    view_body(tensor, &layout, body, 0, body.nbytes, limits)
    return tensor


cdef int view_body(
    Tensor tensor, Layout* layout, HeldBuffer body, Py_ssize_t offset, Py_ssize_t nbytes,
    Limits limits,
) except -1:
    """Use `nbytes` bytes (0 or more) of the body from `offset` as the data of a tensor.

    `layout` has the counts of the tensor's shape and datatype.
    """
    cdef Datatype element_type = tensor.element_type
    cdef cnp.dtype dtype = element_type.dtype
    if element_type.itemsize == 0:
        body.check_range(offset, nbytes)
        elements = scan_elements(body, layout.n_elements, offset, nbytes)
        use_bytes_array(tensor, bytes_of_elements(elements, tensor.shape))
        return 0
    if dtype is None:
        dtype = dtype_of_bf16(limits)
    if <uint64_t>nbytes != layout.nbytes:
        raise LayoutError(
            f"{SUBJECT} does not match its datatype: {element_type.name} "
            f"{format_shape(tensor.shape)} requires {layout.nbytes} bytes, but its binary data has "
            f"{nbytes}",
            expected=layout.nbytes, actual=nbytes)
    body.check_range(offset, nbytes)
    if dtype.type_num == cnp.NPY_BOOL and limits.check_bool:
        check_bool(body, offset, nbytes)
    use_memory(tensor, body, dtype, <char*>body.data + offset, nbytes, body.readonly)
    return 0


cdef int check_bool(HeldBuffer body, Py_ssize_t offset, uint64_t nbytes) except -1:
    """Raise ElementError if any of the `nbytes` bytes from `offset` is neither 0 nor 1."""
    cdef const unsigned char* data = body.data + offset
    cdef unsigned char value = 0  # set if there is one, which gcc does not see
    cdef uint64_t i
    released = count_or_release_gil(nbytes // READ_NBYTES)
    i = find_invalid_bool(data, nbytes, &value)
    take_gil(released)
    if i < nbytes:
        raise ElementError(
            f"element {i} of {SUBJECT} must be 0 or 1 (BOOL), not {value} "
            f"{body.format_position(offset + i)}",
            element=i, offset=offset + i, expected=1, actual=value)
    return 0


cdef unsigned char all_bits(const unsigned char* data, uint64_t nbytes) noexcept nogil:
    cdef unsigned char bits = 0
    cdef uint64_t i
    for i in range(nbytes):  # compilers vectorise this loop
        bits |= data[i]
    return bits


cdef uint64_t find_invalid_bool(
    const unsigned char* data, uint64_t nbytes, unsigned char* value
) noexcept nogil:
    """Return the index of the first byte above 1, or `nbytes`, and set `value` to that byte.

    It is loaded once, because another thread may write to the memory.
    """
    cdef uint64_t begin = 0, end, i
    while begin < nbytes:
        end = min(begin + CHECK_NBYTES, nbytes)
        if all_bits(data + begin, end - begin) > 1:
            for i in range(begin, end):
                value[0] = data[i]
                if value[0] > 1:
                    return i
        begin = end
    return nbytes


cdef dtype_of_bf16(Limits limits):
    dtype = RAW_BF16 if limits.bf16_as_uint16 else bf16_dtype()
    if dtype is None:
        raise DecodeError(
            f"{SUBJECT} is BF16, for which numpy requires the ml_dtypes package; "
            f"Limits(bf16_as_uint16=True) returns it as uint16 without that package")
    return dtype


cdef bint has_shared_memory(dict parameters) except -1:
    """Return whether a tensor is in shared memory. A region that is null is removed.

    Null means a missing region, but `Tensor` does not accept it with data.
    """
    region = parameters.get("shared_memory_region")
    if region is not None and type(region) is not str:
        raise HeaderError(
            f"shared_memory_region of {SUBJECT} must be a string, not {format_value(region)}")
    if region is None:
        parameters.pop("shared_memory_region", None)
    return region is not None


cdef one_place_error(list places, list present):
    return HeaderError(
        f"{SUBJECT} must have exactly one of {', '.join(places[:-1])} and {places[-1]}, but has "
        f"{' and '.join(present) or 'none'}")


# --- messages ---


cdef int set_tensors(Message message, tuple tensors, str kind) except -1:
    """Add the tensors, whose kind is "input" or "output". Raises HeaderError for equal names."""
    message.by_name = items_by_name(tensors, kind, HeaderError)
    message.tensors = tensors
    return 0


cdef int set_requested(Message message, tuple outputs) except -1:
    items_by_name(outputs, "output", HeaderError)
    message.requested = outputs
    return 0


cdef int check_request(InferRequest request) except -1:
    if not request.tensors:
        raise HeaderError("the request has no inputs")
    value = binary_data_output(request)
    if value is not None and type(value) is not bool:
        raise HeaderError(
            f"binary_data_output of the request must be true or false, not {format_value(value)}")
    return 0


# --- checks ---


cdef int check_name(Py_ssize_t nbytes, bint has_nul, Limits limits) except -1:
    if has_nul:
        raise HeaderError(f"the name of {SUBJECT} contains a NUL")
    return check_name_nbytes(nbytes, limits, DECODING)


cdef unknown_datatype_error(str name):
    return HeaderError(f"{SUBJECT} has an unknown datatype: {format_value(name)}")
