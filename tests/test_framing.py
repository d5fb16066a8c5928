"""What the HTTP headers of a request say about its body, and the memory for that body."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from tensorwire.server.body import RequestBody
from tensorwire.server.framing import AmbiguousLengthError, Framing, frame_headers

LENGTH = b"inference-header-content-length"
GATEWAY = b"application/vnd.vertex-ai-triton.binary+json"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"0", 0),
        (b"5", 5),
        (b" 5\t", 5),
        (b"005", 5),
        *((b"9" * n, 10**n - 1) for n in (17, 18, 19, 20)),
        *((value, None) for value in (b"", b" ", b"+5", b"-5", b"5.0", b"0x5", b"5 5", b"5,5")),
        *((value, None) for value in (b"/", b"5/", b":", b"5:", b"1" * 21, b"5" * 18 + b"/")),
        *((b"5" + blank, None) for blank in (b"\n", b"\x0b", b"\x0c", b"\r", b"\0", b"\xa0")),
        *((value, None) for value in (b"\x0b5", "\u0665".encode(), b"\xb2")),
    ],
)
def test_content_length(value: bytes, expected: int | None) -> None:
    if expected is not None:
        assert Framing([(b"content-length", value)]).content_length == expected
        return
    with pytest.raises(AmbiguousLengthError, match="Content-Length is not a number"):
        Framing([(b"content-length", value)])


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(LENGTH, b"0")], 0),
        ([(LENGTH, b" 17 ")], 17),
        ([(b"content-type", GATEWAY + b"; json-header-size=17")], 17),
        ([(b"content-type", GATEWAY)], None),
        ([(b"content-type", b"multipart/form-data; boundary=a")], ...),
        ([(b"content-type", b"application/octet-stream"), (LENGTH, b"17")], 17),
        *(([(LENGTH, value)], ...) for value in (b"x", b"1" * 21)),
        ([(LENGTH, b"17"), (LENGTH, b"18")], ...),
    ],
)
def test_header_length(headers: Any, expected: Any) -> None:
    if expected is not ...:
        assert Framing(headers).header_length == expected
        return
    with pytest.raises(tw.HeaderError):
        Framing(headers)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], b""),
        ([b""], b""),
        ([b"Identity"], b""),
        ([b" GZip "], b"gzip"),
        ([b"gzip", b"identity"], b"gzip"),
        ([b"gzip", b"deflate"], b"gzip, deflate"),
    ],
)
def test_encoding(values: list[bytes], expected: bytes) -> None:
    assert Framing([(b"content-encoding", value) for value in values]).encoding == expected


def test_long_encoding_is_cut_in_the_message() -> None:
    headers = [(b"content-encoding", b"x" * 41)]
    with pytest.raises(tw.DecodeError, match=f"^Content-Encoding '{'x' * 40}' is not supported$"):
        RequestBody(headers, 1 << 30)


@pytest.mark.parametrize("values", [(b"5", b"5"), (b"5", b"6"), (b"5", b" 005 "), (b"0", b"5")])
def test_content_length_twice(values: tuple[bytes, bytes]) -> None:
    """Equal values are one. Of different values, none is right."""
    headers = [(b"content-length", value) for value in values]
    first, second = map(int, values)
    if first == second:
        assert Framing(headers).content_length == first
        return
    with pytest.raises(AmbiguousLengthError, match=f"Content-Length, {first} and {second}$") as e:
        Framing(headers)
    assert (e.value.expected, e.value.actual, e.value.status) == (first, second, 400)
    assert not isinstance(e.value, tw.HeaderError)  # that is about the header of the message


def test_content_length_and_transfer_encoding_exclude_each_other() -> None:
    chunked = (b"transfer-encoding", b"chunked")
    assert Framing([chunked]).content_length is None
    for headers in ([chunked, (b"content-length", b"0")], [(b"content-length", b"5"), chunked]):
        with pytest.raises(AmbiguousLengthError, match="both Content-Length and Transfer-Encoding"):
            Framing(headers)


@pytest.mark.parametrize("frame", [tw.Frame((b"{}",), None), tw.Frame((b"{}", b"abc"), 2)])
def test_headers_of_a_reply(frame: tw.Frame) -> None:
    expected = {name.lower(): value for name, value in frame.headers.items()}
    assert {name.decode(): value.decode() for name, value in frame_headers(frame)} == expected


ARRAY = np.arange(100, dtype=np.float64)


@pytest.mark.parametrize("n_name", range(1, 20))
@pytest.mark.parametrize("kind", ["announced", "chunked", "compressed"])
def test_first_binary_tensor_is_aligned(kind: str, n_name: int) -> None:
    """The JSON header has any length: it is not padded."""
    name = "x" * n_name
    frame = tw.encode_request(tw.InferRequest([tw.Tensor(name, ARRAY)]), align=1)
    sent, headers = bytes(frame), [(LENGTH, b"%d" % (frame.header_length or 0))]
    if kind == "compressed":
        sent = zlib.compress(sent)
        headers.append((b"content-encoding", b"deflate"))
    if kind != "chunked":
        headers.append((b"content-length", b"%d" % len(sent)))
    body = RequestBody(headers, 10_000)
    body.buffer.write(sent)
    found = body.decode(tw.Limits())[name].as_numpy()
    assert found.ctypes.data % 64 == 0
    assert np.array_equal(found, ARRAY)
