"""The codec for the messages of ``inference.GRPCInferenceService`` (WIRE.md 12).

It reads and writes serialized protobuf messages, and requires neither protobuf nor grpcio. Programs
that use grpcio pass the functions as serializers, or pass the ``bytes`` without a serializer.
"""

from ._codec.grpc.reader import decode_request, decode_response, decode_stream_response
from ._codec.grpc.writer import encode_request, encode_response, encode_stream_response

__all__ = [
    "decode_request",
    "decode_response",
    "decode_stream_response",
    "encode_request",
    "encode_response",
    "encode_stream_response",
]
