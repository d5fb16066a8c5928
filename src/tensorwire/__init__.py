"""Zero-copy codec for the tensors of the Open Inference Protocol (KServe v2, Triton).

It decodes bytes to messages whose tensors are views of these bytes, and encodes messages to buffers
that refer to the memory of the tensors. It performs no I/O. README.md is an introduction, and
WIRE.md describes the wire format.
"""

import sys

if sys.byteorder != "little" or sys.maxsize < 2**32:
    raise ImportError(
        "tensorwire requires a 64-bit little-endian machine: its arrays are views of the wire bytes"
    )

from ._codec.body_buffer import BodyBuffer
from ._codec.bytes.array import BytesArray, decode_bytes
from ._codec.http.decoder import decode_request, decode_response
from ._codec.http.encoder import encode_raw_request, encode_request, encode_response
from ._codec.limits import Limits
from ._codec.messages.convert import encode_bytes
from ._codec.messages.frame import Frame
from ._codec.messages.message import InferRequest, InferResponse, RequestedOutput, ResponseOptions
from ._codec.messages.tensor import Tensor, TensorSpec
from ._codec.signatures import Datatype
from .dataframes import dataframe_from_tensors, tensors_from_dataframe
from .errors import (
    BodyTooLargeError,
    DatatypeError,
    DecodeError,
    DecompressionError,
    ElementError,
    EncodeError,
    ErrorResponseError,
    HeaderError,
    IntegrationError,
    LayoutError,
    TensorNotFoundError,
    TensorwireError,
)
from .http import header_length

__version__ = "0.1.0"

__all__ = [
    "BodyBuffer",
    "BodyTooLargeError",
    "BytesArray",
    "Datatype",
    "DatatypeError",
    "DecodeError",
    "DecompressionError",
    "ElementError",
    "EncodeError",
    "ErrorResponseError",
    "Frame",
    "HeaderError",
    "InferRequest",
    "InferResponse",
    "IntegrationError",
    "LayoutError",
    "Limits",
    "RequestedOutput",
    "ResponseOptions",
    "Tensor",
    "TensorNotFoundError",
    "TensorSpec",
    "TensorwireError",
    "dataframe_from_tensors",
    "decode_bytes",
    "decode_request",
    "decode_response",
    "encode_bytes",
    "encode_raw_request",
    "encode_request",
    "encode_response",
    "header_length",
    "tensors_from_dataframe",
]


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
