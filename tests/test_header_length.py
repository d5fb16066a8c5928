"""header_length: the size of the JSON, declared by HTTP headers."""

from __future__ import annotations

from email import message_from_string
from typing import Any

import pytest

import tensorwire as tw

SAGEMAKER = "application/vnd.sagemaker-triton.binary+json"
LENGTH = "Inference-Header-Content-Length"


@pytest.mark.parametrize("headers", [{LENGTH: 17}, message_from_string(f"{LENGTH}: 17\n\n")])
def test_forms_of_headers(headers: Any) -> None:
    """The property `test_header_length` has more."""
    assert tw.header_length(headers) == 17


@pytest.mark.parametrize("value", ["", "9" * 500, "\xff"])
def test_text_of_an_invalid_header_length(value: str) -> None:
    for headers in ({LENGTH: value}, {"Content-Type": f"{SAGEMAKER};json-header-size={value}"}):
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
