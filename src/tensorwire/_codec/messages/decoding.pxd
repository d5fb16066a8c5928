from libc.stdint cimport uint64_t

from ..datatypes cimport Datatype, Layout, fill_layout, set_counts
from ..held_buffer cimport HeldBuffer
from ..limits cimport DECODING, Limits, add_elements
from ..messages.message cimport InferRequest, Message
from ..messages.tensor cimport Tensor
from ..wire cimport WIDEST_ITEMSIZE


cdef Tensor tensor_of_body(HeldBuffer body, str name, str datatype, tuple shape, Limits limits)
cdef int view_body(
    Tensor tensor, Layout* layout, HeldBuffer body, Py_ssize_t offset, Py_ssize_t nbytes,
    Limits limits,
) except -1
cdef bint has_shared_memory(dict parameters) except -1
cdef one_place_error(list places, list present)
cdef int set_tensors(Message message, tuple tensors, str kind) except -1
cdef int set_requested(Message message, tuple outputs) except -1
cdef int check_request(InferRequest request) except -1
cdef int check_name(Py_ssize_t nbytes, bint has_nul, Limits limits) except -1
cdef unknown_datatype_error(str name)


cdef inline int measure_layout(
    Layout* layout, tuple shape, Datatype datatype, uint64_t* total, Limits limits
) except -1:
    """Set the counts of a layout, which has all dimensions, and add to the total of the message."""
    if not set_counts(layout, datatype.itemsize or WIDEST_ITEMSIZE):
        fill_layout(layout, shape, datatype, limits.max_rank, DECODING)  # raises the error
    return add_elements(total, layout.n_elements, limits, DECODING)
