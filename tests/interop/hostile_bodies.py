"""Bodies that a REST server must reject, sent to a running server on one connection.

After each of them, the server must answer a valid request.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import tensorwire as tw
from support.malformed import MALFORMED
from support.requirements import optional

urllib3 = optional("urllib3")

MAX_BODY = 1 << 22
"""The limit with which kserve_server.py and mlserver_runtime.py install the integrations."""

GOOD = tw.encode_request(tw.InferRequest({"x": np.ones(3, np.float32)}))
BINARY = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}
GZIP = {"Content-Encoding": "gzip"}
LENGTH = "Inference-Header-Content-Length"


def is_sendable(header_length: Any) -> bool:
    """Return whether a client of HTTP sends this header length as it is."""
    text = header_length.decode("latin-1") if isinstance(header_length, bytes) else header_length
    return header_length is not None and str(text).isascii() and str(text).isprintable()


def malformed() -> Iterator[tuple[bytes, dict[str, str]]]:
    """Yield the malformed binary requests that can be sent over HTTP, with their headers."""
    for row in MALFORMED:
        if row.kind == "request" and is_sendable(row.header_length):
            length = row.header_length
            text = length.decode() if isinstance(length, bytes) else str(length)
            yield row.body, {**BINARY, LENGTH: text}


def too_long() -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield bodies that are longer than MAX_BODY: with Content-Length, and in chunks."""
    body = bytes(MAX_BODY + 1)
    for headers in (JSON, {**JSON, "Content-Encoding": "br"}, {**BINARY, LENGTH: "9"}):
        yield body, headers
        yield iter([body[:99], body[99:]]), headers


def gzip_bombs() -> Iterator[tuple[bytes, dict[str, str]]]:
    """Yield bodies that are longer than MAX_BODY after decompression."""
    bomb = gzip.compress(bytes(16 * MAX_BODY))
    for headers in (JSON, {"Content-Type": "text/plain"}, {**BINARY, LENGTH: "9"}):
        yield bomb, {**headers, **GZIP}
        yield bomb[:-5] + b"12345", {**headers, **GZIP}  # a wrong checksum


@contextmanager
def sender(url: str) -> Iterator[Any]:
    """Yield a function that sends a request, and returns its status and the text of the error."""
    with urllib3.PoolManager(retries=False, maxsize=1, block=True) as pool:

        def send(body: Any, headers: dict[str, str]) -> tuple[int, str]:
            answer = pool.request("POST", url, body=body, headers=headers, timeout=30)
            found = answer.status, json.loads(answer.data).get("error", "")
            answer = pool.request("POST", url, body=bytes(GOOD), headers=GOOD.headers, timeout=30)
            assert answer.status == 200, answer.data
            return found

        yield send
