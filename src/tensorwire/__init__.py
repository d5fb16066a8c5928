"""Zero-copy codec for the binary tensor data extension of the Open Inference Protocol.

Bytes in, views out; messages in, buffers out; no I/O. See README.md, and WIRE.md for the rules.
"""

import sys

if sys.byteorder != "little" or sys.maxsize < 2**32:
    raise ImportError(
        "tensorwire needs a 64-bit little-endian machine: its views are the wire bytes"
    )

from ._bodybuffer import BodyBuffer
from ._decode import decode_request, decode_response
from ._encode import encode_raw_request, encode_request, encode_response
from ._frame import Frame
from ._limits import Limits
from ._messages import InferRequest, InferResponse, RequestedOutput, Tensor, TensorSpec
from .bytes_tensor import BytesTensor, decode_bytes, encode_bytes, encode_bytes_into
from .errors import (
    DecodeError,
    ElementError,
    EncodeError,
    HeaderError,
    IntegrationError,
    LayoutError,
    TensorwireError,
)
from .http import header_length

__version__ = "0.1.0"

__all__ = [
    "BodyBuffer",
    "BytesTensor",
    "DecodeError",
    "ElementError",
    "EncodeError",
    "Frame",
    "HeaderError",
    "InferRequest",
    "InferResponse",
    "IntegrationError",
    "LayoutError",
    "Limits",
    "RequestedOutput",
    "Tensor",
    "TensorSpec",
    "TensorwireError",
    "decode_bytes",
    "decode_request",
    "decode_response",
    "encode_bytes",
    "encode_bytes_into",
    "encode_raw_request",
    "encode_request",
    "encode_response",
    "header_length",
]
