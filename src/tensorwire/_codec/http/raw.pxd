from ..held_buffer cimport HeldBuffer
from ..limits cimport Limits
from ..messages.message cimport InferRequest
from ..messages.tensor cimport TensorSpec


cdef InferRequest raw_request(HeldBuffer body, TensorSpec spec, Limits limits)
