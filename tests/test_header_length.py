"""header_length: the size of the JSON, declared by HTTP headers."""

from __future__ import annotations

from email import message_from_string
from typing import Any

import pytest

import tensorwire as tw

SAGEMAKER = "application/vnd.sagemaker-triton.binary+json"
LENGTH = "Inference-Header-Content-Length"


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        *(({}, None), ([], None), ({b"content-type": b"\xff"}, None)),
        ({"content-type": f"{SAGEMAKER}\xa0;json-header-size=17"}, None),
        ({"content-type": f"x; {SAGEMAKER};json-header-size=17"}, None),
        *(({LENGTH: value}, 17) for value in (17, b"17 ", b"17, 17", ", ".join(["17"] * 9))),
        ([(b"inference-header-content-length", b"17"), (b"host", b"\xff")], 17),
        (message_from_string(f"{LENGTH}: 17\n\n"), 17),
        ({"content-type": f'{SAGEMAKER}; json-header-size = "17"\t;q=1'}, 17),
    ],
)
def test_header_length(headers: Any, length: int | None) -> None:
    """The property `test_header_length` has more."""
    assert tw.header_length(headers) == length


INVALID = [
    *("", " ", "abc", "-1", "+1", "0x5", "1.0", "9" * 30, "٣", ",", "1,", "1 1", ",1"),
    *("0" * 21, "9" * 41, "9" * 500, "1\v", "\xff"),
]
INVALID_IN_A_MEDIA_TYPE = ["\xa017", "\x1c17", "17\x85", '"17', '17"', '"', '""', '" 17"']


@pytest.mark.parametrize(
    "headers",
    [
        *({LENGTH: value} for value in INVALID),
        *({LENGTH: value.encode()} for value in INVALID),
        *(
            {"Content-Type": f"{SAGEMAKER};json-header-size={value}"}
            for value in (*INVALID, *INVALID_IN_A_MEDIA_TYPE)
            if value.strip(" \v") == value
        ),
    ],
)
def test_invalid_header_length_is_rejected(headers: Any) -> None:
    with pytest.raises(tw.HeaderError, match=f"{LENGTH} is not a number") as caught:
        tw.header_length(headers)
    assert len(str(caught.value)) < 150


def test_multipart_body_is_rejected() -> None:
    headers = {"Content-Type": "Multipart/form-data; boundary=a"}
    with pytest.raises(tw.HeaderError, match="the body is multipart, which is no message"):
        tw.header_length(headers)
    assert tw.header_length(headers | {LENGTH: "17"}) == 17


@pytest.mark.parametrize(("one", "other"), [(17, 18), (0, 17), (17, 0)])
def test_contradicting_lengths_are_rejected(one: int, other: int) -> None:
    for headers in (
        [(LENGTH, str(one)), (LENGTH, str(other))],
        {LENGTH: str(one), "Content-Type": f"{SAGEMAKER};json-header-size={other}"},
        {"Content-Type": f"{SAGEMAKER};json-header-size={one};json-header-size={other}"},
        {LENGTH: f"{one}, {other}"},
    ):
        with pytest.raises(tw.HeaderError) as caught:
            tw.header_length(headers)
        assert str(caught.value) == f"the headers declare two header lengths, {one} and {other}"
        assert (caught.value.expected, caught.value.actual) == (one, other)


def test_header_length_beyond_the_body() -> None:
    with pytest.raises(tw.HeaderError, match="but the body has 2 bytes") as caught:
        tw.decode_request(b"{}", 3)
    assert (caught.value.expected, caught.value.actual) == (3, 2)
