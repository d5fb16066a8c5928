"""Sizes of messages: the default limit, what takes long, and the pieces of long ones."""

from __future__ import annotations

DEFAULT_MAX_BODY_NBYTES = 2**31 - 1
"""Default limit of a body in bytes, after decompression. It is also Triton's limit."""

# The next three are of event loops, where reading takes about 1 ms and writing 2 ms at most.
# JSON, or the bytes of a gRPC request besides raw contents: more is read and written in a thread,
# and larger lists are converted there.
MAX_QUICK_JSON_NBYTES = 64 << 10
# The same: of messages with more, one is read in each turn.
MAX_SHARED_JSON_NBYTES = 16 << 10
# All of a message: a larger one is read in a thread, because BYTES and BOOL elements are checked
# one by one. A larger gRPC message is written there, because it is copied.
MAX_QUICK_MESSAGE_NBYTES = 2 << 20

# One send is faster than several for a message up to this size. A larger one is sent in pieces,
# without joining its buffers.
MAX_JOINED_NBYTES = 64 << 10
# The pieces in which a body is received, sent, compressed and decompressed, so that a compressed
# body that expands too much is rejected early.
PIECE_NBYTES = 1 << 20
