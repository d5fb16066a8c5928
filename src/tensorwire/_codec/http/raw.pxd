from ..body cimport Body
from ..datatypes cimport Limits
from ..messages.message cimport InferRequest
from ..messages.tensor cimport TensorSpec


cdef InferRequest raw_request(Body body, TensorSpec spec, Limits limits)
