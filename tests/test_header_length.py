"""header_length, and the options of Limits for BOOL and BF16."""

from __future__ import annotations

import sys
from email.message import Message
from typing import Any

import pytest

import tensorwire as tw
from support import reference
from tensorwire._codec import datatypes

SAGEMAKER = "application/vnd.sagemaker-triton.binary+json"
VERTEX = "application/vnd.vertex-ai-triton.binary+json"
LENGTH = "Inference-Header-Content-Length"


def as_message(**headers: str) -> Message:
    message = Message()
    for key, value in headers.items():
        message[key] = value
    return message


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ([], None),
        ({"Content-Type": "application/octet-stream"}, None),
        ({LENGTH: "17"}, 17),
        ({LENGTH: "0"}, 0),
        ({LENGTH: "007"}, 7),
        ({LENGTH: f"{17:020}"}, 17),
        ({LENGTH: f"{17:020}".encode()}, 17),
        ({LENGTH: "17", "content-type": "application/json"}, 17),
        ({b"content-type": b"\xff"}, None),
        ({LENGTH.lower(): "17"}, 17),
        ({LENGTH.upper().encode(): b"17"}, 17),
        ([(b"inference-header-content-length", b"17"), (b"host", b"\xff")], 17),
        ({LENGTH: 17}, 17),
        ([(LENGTH, "17"), (LENGTH.lower(), "017")], 17),
        (as_message(**{LENGTH: "17"}), 17),
        ({"Content-Type": f"{SAGEMAKER};json-header-size=17"}, 17),
        ({"content-type": f"{VERTEX}; charset=x; JSON-Header-Size=17"}, 17),
        ({"content-type": SAGEMAKER.upper() + ";json-header-size=17"}, 17),
        ({"content-type": f'{SAGEMAKER}; json-header-size = "17"\t;q=1'}, 17),
        ({"content-type": SAGEMAKER}, None),
        ({"content-type": f"{SAGEMAKER};json-header-sizes=17"}, None),
        ({"content-type": f"{SAGEMAKER}\xa0;json-header-size=17"}, None),
        ({"content-type": f"x; {SAGEMAKER};json-header-size=17"}, None),
        ({"content-type": f"{SAGEMAKER};json-header-size=17", LENGTH: "17"}, 17),
        ({"content-type": "application/json; json-header-size=17"}, None),
    ],
)
def test_header_length(headers: Any, expected: int | None) -> None:
    assert tw.header_length(headers) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "abc", "-1", "+1", "0x5", "1.0", "9" * 30, "٣", ",", "1,", "1 1", ",1"),
        *("0" * 21, "9" * 41, "9" * 500, "1\v", "\xff"),
    ],
)
def test_invalid_header_length_is_rejected(value: str) -> None:
    places: list[Any] = [{LENGTH: value}, {LENGTH: value.encode()}]
    if value == value.strip():
        places.append({"Content-Type": f"{SAGEMAKER};json-header-size={value}"})
    for headers in places:
        with pytest.raises(tw.HeaderError, match=f"{LENGTH} is not a number") as caught:
            tw.header_length(headers)
        assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    "value",
    [" 17", "17\t", " \t17 ", "17,17", "17, 017 ,17", b"17 ", b"17, 17", ", ".join(["17"] * 9)],
)
def test_blanks_and_equal_items_of_a_list_are_accepted(value: str | bytes) -> None:
    assert tw.header_length([(LENGTH, value)]) == 17


@pytest.mark.parametrize("value", ["17, 18", ", ".join(["17"] * 10), ",".join(["17"] * 99)])
def test_different_or_too_many_items_of_a_list_are_rejected(value: str) -> None:
    with pytest.raises(tw.HeaderError, match=r"two header lengths|is not a number"):
        tw.header_length({LENGTH: value})


@pytest.mark.parametrize("value", ["\xa017", "\x1c17", "17\x85", '"17', '17"', '"', '""', '" 17"'])
def test_invalid_header_length_in_the_media_type_is_rejected(value: str) -> None:
    with pytest.raises(tw.HeaderError, match=f"{LENGTH} is not a number"):
        tw.header_length({"Content-Type": f"{SAGEMAKER};json-header-size={value}"})


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


@pytest.mark.parametrize("headers", [{1: "x"}, {"Content-Type": 5}, None, 5])
def test_headers_of_wrong_type_are_rejected(headers: Any) -> None:
    with pytest.raises(TypeError):
        tw.header_length(headers)


# --- Limits: check_bool and bf16_as_uint16 ---

BODY, LENGTH_OF_BODY = reference.request(
    [
        reference.entry("a", "BOOL", [2, 1, 1], [True, False]),
        reference.entry("b", "BF16", [1], [1.0]),
    ]
)
assert LENGTH_OF_BODY is not None
N = LENGTH_OF_BODY


def test_check_bool_false_accepts_any_byte() -> None:
    body, n = reference.request([reference.entry("x", "UINT8", [3], [0, 2, 1])])
    body = body.replace(b"UINT8", b"BOOL ").replace(b'BOOL "', b'BOOL" ')
    with pytest.raises(tw.ElementError):
        tw.decode_request(body, n)
    array = tw.decode_request(body, n, limits=tw.Limits(check_bool=False))["x"].as_numpy()
    assert array.view("u1").tolist() == [0, 2, 1]


def test_bf16_as_uint16() -> None:
    tensor = tw.decode_request(BODY, N, limits=tw.Limits(bf16_as_uint16=True))["b"]
    words = tensor.as_numpy()
    assert (tensor.datatype, words.dtype.str, words.tolist()) == ("BF16", "<u2", [0x3F80])
    again = tw.Tensor("b", tensor.as_numpy(), datatype="BF16")
    assert bytes(tw.encode_raw_request(again)) == b"\x80\x3f"


def test_bf16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    datatypes.bf16_dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    try:
        with pytest.raises(tw.HeaderError, match="requires the ml_dtypes package") as caught:
            tw.decode_request(BODY, N)
    finally:
        datatypes.bf16_dtype.cache_clear()
    assert caught.value.tensor == "b"
