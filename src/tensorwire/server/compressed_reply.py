"""Compressed responses: the coding that a client accepts, and the reply.

Compressed requests are decompressed in ``body``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .._codec.messages.frame import Frame
from ..compression import compress, is_supported
from ..sizes import PIECE_NBYTES
from .framing import frame_headers
from .service import Reply

_ACCEPT_ENCODING = b"accept-encoding"
MIN_NBYTES = 1 << 10  # a smaller response fits in a packet, with its headers
MAX_QUICK_NBYTES = 32 << 10  # gzip takes up to 50 ns per byte
# In the order of preference. zstd is the last one: aiohttp accepts it for tritonclient.http.aio,
# which cannot decode it.
_CODINGS = (b"gzip", b"deflate", b"zstd")
_MAX_CODINGS = 20  # of a request; further ones are ignored
_WEIGHT = re.compile(rb"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")
_VARY = (b"vary", _ACCEPT_ENCODING)


def choose_coding(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the Content-Encoding that the headers of a request ask for (RFC 9110 12.5.3).

    Return None if the client does not name a supported coding, or prefers ``identity``. ``*`` is
    ignored, as in Triton.
    """
    weights: dict[bytes, float] = {}
    accepted = b",".join(value for name, value in headers if name == _ACCEPT_ENCODING)
    for item in accepted.lower().split(b",", _MAX_CODINGS)[:_MAX_CODINGS]:
        coding, _, parameters = item.partition(b";")
        weight = _WEIGHT.fullmatch(parameters.strip() or b"q=1")
        weights[coding.strip()] = float(weight[1]) if weight else 0
    best, best_weight = None, 0.0
    for coding in filter(is_supported, _CODINGS):
        if weights.get(coding, 0) > best_weight:
            best, best_weight = coding.decode(), weights[coding]
    return best if best_weight >= weights.get(b"identity", 0) else None


def is_quick_to_compress(frame: Frame) -> bool:
    """Return whether compressing a frame takes at most about two milliseconds."""
    return len(frame) <= MAX_QUICK_NBYTES


def negotiated_reply(frame: Frame, coding: str | None) -> Reply:
    """Return the reply with a frame, which is compressed unless it is small or coding is None.

    Header length and Content-Type are those of the uncompressed frame (WIRE.md 1).
    """
    if coding is None or len(frame) < MIN_NBYTES:
        return Reply(200, frame, (_VARY,))
    (_, content_type), _, *header_length = frame_headers(frame)
    headers = (*header_length, (b"content-encoding", coding.encode()), _VARY)
    body = compress(frame.chunks(PIECE_NBYTES), coding)
    return Reply(200, body, headers, content_type.decode())
