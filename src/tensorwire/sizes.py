"""Sizes of messages: the default limit, what takes long, and what is sent at once."""

from __future__ import annotations

DEFAULT_MAX_BODY_NBYTES = 2**31 - 1
"""Default limit of a body in bytes, after decompression. It is also Triton's limit."""

# Larger JSON is read and written in a thread, and larger lists are converted there. So are gRPC
# requests with more bytes besides raw contents. Larger messages are read in a thread, because their
# BYTES and BOOL elements are checked one by one. Larger gRPC messages are written in a thread,
# because they are copied. Up to these sizes, reading takes about 1 ms and writing 2 ms.
MAX_QUICK_JSON_NBYTES = 64 << 10
# Of messages with more JSON, or bytes besides raw contents, an event loop reads one in each turn.
MAX_SHARED_JSON_NBYTES = 16 << 10
MAX_QUICK_MESSAGE_NBYTES = 2 << 20

# One send is faster than several for a message up to this size. A larger one is sent in pieces,
# without joining its buffers.
MAX_JOINED_NBYTES = 64 << 10
PIECE_NBYTES = 1 << 20
