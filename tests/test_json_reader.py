"""The JSON reader, compared with `json` of the standard library, msgspec and exact arithmetic."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from fuzz.comparison import message_read
from support import reference
from support.case_types import INTEGERS
from support.requirements import optional
from support.scale import scaled
from tensorwire._codec.json_reader import read_json

msgspec = optional("msgspec")

SHORT_NBYTES = 128 << 10  # of the JSON reader: longer texts are read again without the GIL
MAX_DATA_DEPTH = 100
MAX_NESTING = 128
DEEPEST = 1000

# --- helpers --------------------------------------------------------------------------------------


def body(tensor: str, more: str = "") -> str:
    return f'{{"inputs":[{tensor}]{more}}}'


def entry(datatype: str, data: str, n: int = 1, name: str = "x") -> str:
    return f'{{"name":"{name}","shape":[{n}],"datatype":"{datatype}","data":{data}}}'


PLAIN = entry("INT8", "[1]")


def decode(text: str | bytes, **limits: Any) -> tw.InferRequest:
    raw = text if isinstance(text, bytes) else text.encode()
    return tw.decode_request(raw, limits=tw.Limits(max_parameters=len(raw), **limits))


def words(table: str) -> list[str]:
    """Return the texts of a table that are separated by white space."""
    return table.split()


def read(datatype: str, numbers: list[str]) -> np.ndarray:
    """Return the values of a JSON tensor with these texts as elements."""
    message = decode(body(entry(datatype, f"[{','.join(numbers)}]", len(numbers))))
    return message["x"].as_numpy()


def elements_of(message: tw.InferRequest) -> list[bytes]:
    data = message["x"].data
    assert isinstance(data, tw.BytesArray)
    elements: list[bytes] = data.tolist()
    return elements


def in_unknown(text: bytes) -> bytes:
    return b'{"inputs":[' + PLAIN.encode() + b'],"z":' + text + b"}"


def in_parameter(text: bytes) -> bytes:
    return b'{"inputs":[' + PLAIN.encode() + b'],"parameters":{"p":' + text + b"}}"


def in_entry(text: bytes) -> bytes:
    return b'{"inputs":[' + PLAIN[:-1].encode() + b',"z":' + text + b"}]}"


def in_early_data(text: bytes) -> bytes:
    """Place the text in data that is validated before its datatype is known."""
    return b'{"inputs":[{"data":[' + text + b'],"name":"x","shape":[1],"datatype":"BYTES"}]}'


def is_syntax_error(text: bytes) -> bool:
    """Return whether a message is rejected for invalid JSON, not for its content."""
    try:
        tw.decode_request(text)
    except (tw.ElementError, tw.LayoutError):
        return False
    except tw.HeaderError as error:
        assert error.offset is not None
        assert 0 <= error.offset <= len(text)
        return "malformed" in str(error) or "UTF-8" in str(error) or "twice" in str(error)
    return False


PLACES: dict[str, Callable[[bytes], bytes]] = {
    "an unknown member": in_unknown,
    "a parameter": in_parameter,
    "an unknown member of an entry": in_entry,
    "data before its datatype": in_early_data,
}


def accepts(place: str, text: bytes) -> bool:
    return not is_syntax_error(PLACES[place](text))


def json_accepts(text: bytes) -> bool:
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def msgspec_accepts(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


# --- valid and invalid JSON ---

# Parameters that the reader accepts or rejects unlike `json` or msgspec, and the reason.
DIFFERENCES: dict[bytes, tuple[bool, bool, bool, str]] = {  # reader, json, msgspec
    b"NaN": (False, True, False, "RFC 8259 has no such number; it is read in FP32 and FP64 data"),
    b"[-Infinity]": (False, True, False, "the same"),
    b'{"a":1,"a":1}': (False, True, True, "two readers could see two messages"),
    b'{"a":1,"\\u0061":1}': (False, True, True, "the same"),
    b'"\\ud800"': (False, True, False, "half of a surrogate pair has no UTF-8"),
    b'"\\udc00\\ud800"': (False, True, False, "the same"),
    b"1e400": (False, True, False, "an infinity would change the value"),
    b"[" * 127 + b"]" * 127: (False, True, True, "two levels are the header's own; max_nesting"),
    b"\xef\xbb\xbf1": (False, False, False, "RFC 8259 does not allow a byte order mark"),
    b"9" * 4300: (True, True, True, "the default limit of Python"),
    b"9" * 4301: (False, False, False, "quadratic time"),
}

SAME_AS_JSON = [
    *words("""
        0 -0 -0.0 1.5e3 1E+2 1e-2 0e5 0.0 10 123456789012345678901
        01 -01 00 - +1 .5 5. 1.e5 1e 1e+ 0x10 1_0 --1 1..2 1e5.5 1ee5 Inf nan 1f e5 -e5 1,
        true True tru truee nul null nulll false falsy undefined
        [] [ ] [1,] [,1] [1,,2] [[] []] {} { }
        {"a":1,} {,"a":1} {"a"} {"a":} {a:1} {1:2}
        /**/1 [1]// #1 (1)
    """),
    *words(r"""
        "" "a "\" "\x41" "\u12" "\u12G4" 'a' "a""b" "\U0041"
        "\ud83d\ude00" "\/\b\f\n\r\t" "\u0000"
    """),
    *("1 2", "\u0661", "[1 2]", '{"a" 1}', '{"a":1 "b":2}', '"\x7f"', " [ 1 , { } ] ", "[\t1\r\n]"),
    *("[\x0b1]", "[\x0c1]", "\x0c1", "[\xa01]", "\0", "1\0"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", [*(text.encode() for text in SAME_AS_JSON), b"[\xa01]"])
def test_accepts_and_rejects_the_same_texts_as_json(place: str, text: bytes) -> None:
    expected = json_accepts(text)
    assert msgspec_accepts(text) == expected
    assert accepts(place, text) == expected


@pytest.mark.parametrize("text", DIFFERENCES)
def test_documented_differences_from_json(text: bytes) -> None:
    *verdicts, why = DIFFERENCES[text]
    assert why
    try:
        decode(in_parameter(text))
        accepted = True
    except tw.HeaderError:
        accepted = False
    assert [accepted, json_accepts(text), msgspec_accepts(text)] == verdicts


def random_json(chooser: random.Random, depth: int = 0) -> str:
    kind = chooser.randrange(9 if depth < 4 else 7)
    blank = chooser.choice(["", "", "", " ", "\n\t\r "])
    if kind == 7:
        items = [random_json(chooser, depth + 1) for _ in range(chooser.randrange(4))]
        return blank + "[" + ",".join(items) + blank + "]"
    if kind == 8:
        keys = [f'{blank}"k{i}"{blank}:' for i in range(chooser.randrange(4))]
        members = [key + random_json(chooser, depth + 1) for key in keys]
        return "{" + ",".join(members) + "}" + blank
    values = ["null", "true", "false", str(chooser.randrange(-(2**70), 2**70))]
    values += [repr(chooser.uniform(-1, 1) * 10.0 ** chooser.randrange(-300, 300))]
    values += [
        json.dumps("".join(chooser.choices('a"\\\n\0é€\U0001f600', k=chooser.randrange(30))))
    ]
    values += [json.dumps("".join(chooser.choices("ab é€\U0001f600", k=9)), ensure_ascii=False)]
    return blank + values[kind] + blank


def test_values_agree_with_json() -> None:
    chooser = random.Random(1)
    for _ in range(scaled(3000)):
        text = random_json(chooser)
        assert repr(read_json(text.encode(), 10)) == repr(json.loads(text))


def test_mutated_texts_are_accepted_or_rejected_as_by_json() -> None:
    """One byte of a valid text is replaced, removed or added."""
    chooser = random.Random(2)
    decoder = json.JSONDecoder(object_pairs_hook=reference._unique, parse_constant=int)
    n_accepted, n_texts = 0, scaled(20_000)
    for _ in range(n_texts):
        text = bytearray(random_json(chooser).encode())
        at = chooser.randrange(len(text))
        text[at : at + chooser.randrange(2)] = chooser.choice(
            b'"\\{}[],:0-.eEtfn \x00\x80\xe2u1'
        ).to_bytes()
        try:
            value = decoder.decode(text.decode())
            json.dumps(value, ensure_ascii=False).encode()
            expected = repr(value)
        except (ValueError, UnicodeError):
            expected = ""
        try:
            found = repr(read_json(bytes(text), 10))
        except tw.HeaderError as error:
            found = ""
            if "out of range" in str(error):
                assert expected == "" or "inf" in expected
                continue
        assert found == expected, text
        n_accepted += found != ""
    assert 0.1 < n_accepted / n_texts < 0.9


@pytest.mark.parametrize("text", ['"', '"abc', '"\\n', '"\\u0041', '"' + "x" * 63, '"' + "é" * 32])
def test_string_without_an_end(text: str) -> None:
    with pytest.raises(tw.HeaderError) as caught:
        read_json(text.encode(), 10)
    n = len(text.encode())
    assert str(caught.value) == (
        f"the JSON header is malformed: expected the end of a string, found its end (byte {n})"
    )


# --- numbers ---


def exact_decimal(value: Fraction) -> str:
    """Return all digits of a number whose denominator is a power of two."""
    n_halves = value.denominator.bit_length() - 1
    digits = str(abs(value.numerator) * 5**n_halves).rjust(n_halves + 1, "0")
    whole, fraction = digits[: len(digits) - n_halves], digits[len(digits) - n_halves :]
    return ("-" if value < 0 else "") + whole + ("." + fraction if fraction else "")


def with_close_decimals(text: str) -> tuple[str, str, str]:
    """Return a decimal, and decimals that differ from it by very little."""
    text = text if "." in text else text + ".0"
    integer = int(text.replace(".", "")) * 10 - 1
    below = str(integer).rjust(len(text), "0")
    n_decimals = len(text) - text.index(".")
    return text, text + "1", below[:-n_decimals] + "." + below[-n_decimals:]


def single_value(bits: int) -> Fraction:
    return Fraction(*np.uint32(bits).view(np.float32).astype(float).item().as_integer_ratio())


def double_value(bits: int) -> Fraction:
    return Fraction(*np.uint64(bits).view(np.float64).item().as_integer_ratio())


def nearest(value: Fraction, bits: int, value_of: Callable[[int], Fraction]) -> int:
    """Return which of a float and its successor is nearer to a number; ties go to the even one."""
    low, high = value - value_of(bits), value_of(bits + 1) - value
    assert low >= 0
    assert high >= 0
    return bits + (high < low or (high == low and bits & 1))


def halfway(bits: int, value_of: Callable[[int], Fraction]) -> Iterator[tuple[str, int]]:
    """Yield the midpoint of two adjacent floats and numbers next to it, with the nearest float."""
    middle = (value_of(bits) + value_of(bits + 1)) / 2
    for text in with_close_decimals(exact_decimal(middle)):
        yield text, nearest(Fraction(text), bits, value_of)


def check_bits(datatype: str, pairs: list[tuple[str, int]]) -> None:
    """Check that the texts are read as floats of these bits."""
    kind = np.uint32 if datatype == "FP32" else np.uint64
    found = read(datatype, [text for text, _ in pairs]).view(kind)
    wrong = np.flatnonzero(found != np.array([bits for _, bits in pairs], kind))
    assert not len(wrong), pairs[wrong[0]]


SINGLE_EDGES = [0, 1, 2, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001, 0x3F7FFFFF, 0x3F800000, 0x7F7FFFFE]
DOUBLE_EDGES = [0, 1, 2, (1 << 52) - 2, (1 << 52) - 1, 1 << 52, (1 << 52) + 1, 0x7FEFFFFFFFFFFFFE]
DOUBLE_EDGES += [0x3FEFFFFFFFFFFFFF, 0x3FF0000000000000, 0x433FFFFFFFFFFFFF, 0x4340000000000000]


@pytest.mark.parametrize(
    ("datatype", "edges", "n", "value_of"),
    [("FP32", SINGLE_EDGES, 4000, single_value), ("FP64", DOUBLE_EDGES, 1000, double_value)],
)
def test_numbers_near_midpoints(
    datatype: str, edges: list[int], n: int, value_of: Callable[[int], Fraction]
) -> None:
    """Some of the texts of doubles have more than 750 digits."""
    chooser = random.Random(3)
    bits = edges + [chooser.randrange(max(edges)) for _ in range(scaled(n))]
    check_bits(datatype, [pair for bit in bits for pair in halfway(bit, value_of)])


def test_single_precision_is_rounded_once() -> None:
    """Each text is close to the midpoint of two floats, which is its nearest double."""
    chooser = random.Random(5)
    pairs = []
    for _ in range(scaled(2000)):
        bits = chooser.randrange(0x30000000, 0x50000000)
        middle = (single_value(bits) + single_value(bits + 1)) / 2
        for sign in (-1, 1):
            text = exact_decimal(middle + sign * middle / 2**60)
            assert float(text) == middle
            twice = int(np.float32(float(text)).view(np.uint32))
            pairs.append((text, bits + (sign > 0)))
            pairs.append(("-" + text, bits + (sign > 0) + (1 << 31)))
            assert twice in (bits, bits + 1)
    check_bits("FP32", pairs)
    naive = np.array([float(text) for text, _ in pairs]).astype(np.float32).view(np.uint32)
    assert (naive != [bits for _, bits in pairs]).mean() > 0.3


def test_numbers_with_all_exponents() -> None:
    chooser = random.Random(7)
    doubles = np.array(
        [(e << 52) | chooser.getrandbits(52) for e in range(2047) for _ in range(2)], np.uint64
    )
    singles = np.array(
        [(e << 23) | chooser.getrandbits(23) for e in range(255) for _ in range(4)], np.uint32
    )
    doubles |= np.array([chooser.getrandbits(1) << 63 for _ in doubles], np.uint64)
    texts = [repr(value) for value in doubles.view(np.float64).tolist()]
    assert np.array_equal(read("FP64", texts).view(np.uint64), doubles)
    texts = [f"{value:.8e}" for value in singles.view(np.float32).tolist()]
    assert np.array_equal(read("FP32", texts).view(np.uint32), singles)
    for n in (0, 1, 7, 14, 15, 16, 17, 18, 19, 20, 21, 25, 40):
        texts = [f"{value:.{n}e}" for value in doubles.view(np.float64).tolist()]
        expected = np.array([float(text) for text in texts])
        finite = np.isfinite(expected)
        found = read(
            "FP64", [text for text, is_finite in zip(texts, finite, strict=True) if is_finite]
        )
        assert np.array_equal(found.view(np.uint64), expected[finite].view(np.uint64))
        texts = [f"{value:.{n}e}" for value in singles.view(np.float32).tolist()]
        values = [reference._nearest_single(text) for text in texts]
        kept = [i for i, value in enumerate(values) if not math.isinf(value)]
        found = read("FP32", [texts[i] for i in kept])
        assert np.array_equal(found, np.array([values[i] for i in kept], np.float32))


# Most numbers in JSON have a decimal point and no exponent. They are read by a separate function if
# enough text follows, and by the general function near the end of the text.


def random_digits(chooser: random.Random, n: int) -> str:
    return "".join(chooser.choices("0123456789", k=n))


def decimals() -> list[str]:
    """Return numbers with integer parts of 1 to 12 digits, fractions of 1 to 30, and both signs."""
    chooser = random.Random(3)
    return [
        f"{sign}{first}{random_digits(chooser, n_whole - 1)}.{random_digits(chooser, n_fraction)}"
        for n_whole in range(1, 13)
        for n_fraction in range(1, 31)
        for sign in ("", "-")
        for first in (["0", "7"] if n_whole == 1 else ["7"])
    ]


def check_as_python(numbers: list[str]) -> None:
    expected = np.array([float(number) for number in numbers])
    assert read("FP64", numbers).tobytes() == expected.tobytes()


def test_decimals_of_all_lengths() -> None:
    check_as_python(decimals())


def test_decimals_at_all_distances_from_the_end() -> None:
    for number in decimals():
        check_as_python([number])
    for n_blanks in range(64):  # more bytes than the separate function needs after a number
        assert read("FP64", ["-3.0625", "0.1" + " " * n_blanks]).tolist() == [-3.0625, 0.1]


def test_quotients_by_all_powers_of_five() -> None:
    """Numbers of 16 to 19 digits, from the smallest to the largest, divided by 10^1 to 10^27."""
    chooser = random.Random(5)
    values = [10**15, 10**15 + 1, 10**19 - 1, (1 << 53) + 1, (1 << 63) - 1, 1 << 63]
    values += [chooser.randrange(10**15, 10**19) for _ in range(200)]
    numbers = []
    for exponent in range(1, 28):
        for value in values:
            text = str(value).rjust(exponent + 1, "0")
            numbers.append(f"{text[:-exponent]}.{text[-exponent:]}")
    check_as_python(numbers)


def test_decimals_halfway_between_two_doubles() -> None:
    """Texts of 17 to 19 digits with a fraction."""
    chooser = random.Random(7)
    odd = [2 * chooser.randrange(1 << 52, 1 << 53) + 1 for _ in range(3000)]
    check_as_python([f"{number // 4}.{25 * (number % 4):02d}" for number in odd])


ZEROS, LONG = "0" * 400, "1" * 800
FINITE = [
    *words("""
        0.00000000 -0.000000000000000000000000
        0 -0 0.0 -0.0 0e99999999999 -0e-99999999999 0.000e5 0E+0 -0.0e0 0e25 -0e-25 0.00e27
        0.0000e-24 5e-324 4.9e-324 2.4703282292062328e-324 2.5e-324 2.2250738585072014e-308
        2.2250738585072011e-308 2.225073858507201e-308 1.7976931348623157e308 1.17549435e-38
        1.1754942e-38 1.4e-45 7.0e-46 7.1e-46 3.4028235e38 3.4028235677973366e38
        3.40282356779733642e38 3.40282356779733661637e38 1e-46 -1e-46 1e-400 -1e-400
        1e-9999999999 -1e-99999999999999999999 9007199254740993 9007199254740993.0000000000001
        9007199254740992.99999999999999999 16777217 16777216.99999999999999999999
        16777217.0000000000000000000001 3402823567797336616e20 1e22 1e23 1e27 1e28
        1234567890123456789 12345678901234567890 123456789012345678901 1e-5 1.5E+5
        0.1234567890123456789 0.12345678901234567890 0.123456789012345678901234567890
        0.1 0.5 1e0005 1e-0005 18446744073709551615e5 18446744073709551616e5
    """),
    *("9" * n for n in (17, 19, 20, 21, 25)),
    *(
        f"0.{'0' * 1000}1e1001",
        f"0.{ZEROS}1e400",
        f"0.{ZEROS}1e50",
        f"1{ZEROS}e-400",
        f"1{ZEROS}e-800",
    ),
    *(f"0.{LONG}", f"-0.{LONG}", f"{LONG}e-800", f"{LONG}.{LONG}e-790", f"0.{'0' * 30}{LONG}"),
]
TOO_LARGE = [
    *words("""
        1e400 -1e400 1e309 1.7976931348623159e308 1e9999999999 1e99999999999999999999
    """),
    *(f"1{ZEROS}", LONG, f"0.{ZEROS}1e800", "9" * 5000, "-1e18446744073709551617"),
    *(f"1{ZEROS}e-50", f"1{ZEROS}.5e-50"),
]


@pytest.mark.parametrize(
    ("datatype", "value_of"), [("FP32", reference._nearest_single), ("FP64", float)]
)
def test_values_of_numbers(datatype: str, value_of: Callable[[str], float]) -> None:
    finite = [text for text in FINITE if not math.isinf(value_of(text))]
    for text, value in zip(finite, read(datatype, finite).tolist(), strict=True):
        assert repr(value) == repr(value_of(text)), text


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("text", TOO_LARGE)
def test_numbers_too_large_for_a_double_are_rejected(datatype: str, text: str) -> None:
    with pytest.raises(
        tw.ElementError, match=r"element 1 of input 'x' .* out of range for FP.. .magnitudes up to"
    ):
        read(datatype, ["0", text])


@pytest.mark.parametrize(
    "text",
    ["3.40282356779733661638e38", "3402823567797336617e20", "-3410000000000000000e20", "1.7e308"],
)
def test_numbers_too_large_for_single_precision_are_rejected(text: str) -> None:
    with pytest.raises(tw.ElementError, match=r"magnitudes up to 3\.40282"):
        read("FP32", [text])


NO_NUMBERS = [
    *words("""
        01 -01 00 1. .5 -.5 0. -0. 1.e5 1e 1e+ 1e- 0e - --1 +1 1e5.5 0x10 1_0 -a 1a
        01.5 00.5 -01.5 -1. 1.5.5 1.5e 1.5e+ 1.-5 12345678. 123456789. 1.5x 1.12345678x
    """),
    *("1.1234567812345678x", "--1.5", "1 0", "Inf", "-Inf", "nan", "-NaN", "NaNN"),
]


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT8", "UINT64", "BOOL", "BYTES"])
@pytest.mark.parametrize("text", NO_NUMBERS)
def test_invalid_numbers_are_rejected(datatype: str, text: str) -> None:
    for padded in (text, text + " ", text + "," + "0" * 9, text + ",0" * 64):
        for message in (body(entry(datatype, f"[{padded}]")), body(entry("FP32", f"[1,{padded}]"))):
            # For integers, "0.5" in "0.5.5" is rejected for its type before the rest is read.
            error = tw.HeaderError if datatype[:2] == "FP" else tw.DecodeError
            with pytest.raises(error):
                decode(message)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_in_and_out_of_range(datatype: str) -> None:
    least, most = INTEGERS[datatype]
    values = [least, least + 1, -1, 0, 1, 9, 10, 99, 100, most - 1, most]
    values += [10**n for n in range(20)] + [10**n - 1 for n in range(20)]
    values = [value for value in values if least <= value <= most]
    for n_blanks in range(9):  # eight bytes are read at once if eight remain
        texts = [f"{' ' * n_blanks}{value}" for value in values]
        assert read(datatype, texts).tolist() == values
        assert [read(datatype, [text]).item() for text in texts] == values
    assert read(datatype, ["-0"]).tolist() == [0]
    beyond = [least - 1, most + 1, -(2**63) - 1, 2**64, -(2**64), 10**19 + 2**64, 10**20]
    for text in (*map(str, beyond), "9" * 5000):
        with pytest.raises(
            tw.ElementError, match=f"element 2 of .* out of range for .*{least} to {most}"
        ):
            read(datatype, ["1", "1", text])


def check_rejected_integer(datatype: str, text: str, problem: str) -> None:
    """Check the error of a number that is the last of the text, and that is far from its end."""
    for i, numbers in ((1, ["1", text]), (0, [text, " " * 50 + "1"])):
        with pytest.raises(tw.ElementError, match=f"element {i} of .* {problem}") as caught:
            read(datatype, numbers)
        assert caught.value.element == i
        assert text[:60] in str(caught.value)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_with_a_point_or_an_exponent(datatype: str) -> None:
    least, most = INTEGERS[datatype]
    values = [1, 5, 10, 100, 127, most // 10, most - 1, most]
    values += [least, *(-value for value in values)] if least < 0 else []
    for value in values:
        tens = f"{value}{'0' * 30}"
        n_digits = len(str(abs(value)))
        for text in (
            *(f"{value}.0", f"{value}.{'0' * 40}", f"{value}e0", f"{value}E+0", f"{value}.0e-0"),
            *(f"{value}00e-2", f"{value}0.0e-1", f"{tens}e-30", f"{tens}.000E-000000030"),
            re.sub(r"(\d)(\d*)$", r"\1.\2", f"{value}0") + f"e{n_digits - 1}",
            f"{'-' if value < 0 else ''}0.{'0' * 25}{abs(value)}e{25 + n_digits}",
        ):
            for tail in ("", " ", "\n\t      ", " " * 50):  # short paths need more bytes after it
                assert read(datatype, ["1", text + tail, "2"]).tolist() == [1, value, 2], text
    for text in ("-0.0", "0.0", "0e0", "-0e5", "0.00e-7", "0e999999999", "-0.0e-99999999999999999"):
        assert read(datatype, [text]).tolist() == [0]
    for text in (
        *("0.5", "1e-1", "-1.5", f"{most}.5", f"{most}0.1", f"{most}.{'0' * 40}1", f"{most}e-1"),
        *("12345678901234567890.1", "1234567890123456789.01e1", "1e-999999999", "9" * 30 + ".5"),
        *("9" * 30 + "e-30", f"0.{'0' * 30}1e30", f"0.{'0' * 30}10e30", "10e-99999999999999999999"),
    ):
        check_rejected_integer(datatype, text, "must be an integer")
    for text in (
        *(f"{most + 1}.0", f"{least - 1}.00", f"{most + 1}0e-1", f"{most}0.0", f"{most}e1"),
        *("18446744073709551616.0", "18446744073709551616e0", "1844674407370955161.6e1"),
        *("1.8446744073709551616E19", "99999999999999999999.0", "100000000000000000000e0", "1e20"),
        *("1e400", "-1e400", "1e999999999", "1e99999999999999999999", "0.001e999999999"),
        *("1234567890123456789010e-1", "1234567890123456789012.0"),
    ):
        check_rejected_integer(datatype, text, "out of range for")


def test_integers_in_any_notation() -> None:
    """The same value, or the same kind of error, as exact arithmetic."""
    chooser = random.Random(32)
    for _ in range(3000):
        digits = str(chooser.randrange(10 ** chooser.choice((1, 3, 18, 19, 20, 21))))
        digits += "0" * chooser.choice((0, 0, 1, 5, 25)) if digits != "0" else ""
        fraction = "".join(chooser.choice("0000059") for _ in range(chooser.choice((0, 1, 3, 25))))
        power = chooser.choice((0, 1, 2, 3, 19, 20, -1, -2, -3, -5, -19, -25))
        text = chooser.choice(("", "-")) + digits + ("." + fraction if fraction else "")
        text += f"e{power}" if power or chooser.random() < 0.5 else ".0" if not fraction else ""
        exact = Fraction(text)
        datatype = chooser.choice(list(INTEGERS))
        least, most = INTEGERS[datatype]
        if exact.denominator == 1 and least <= exact <= most:
            assert read(datatype, [text]).tolist() == [exact], text
            continue
        problem = "must be an integer" if exact.denominator > 1 else "out of range"
        with pytest.raises(tw.ElementError, match=problem):
            read(datatype, [text])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1" + "0" * 10**6 + "e-1000000", 1),
        ("7." + "0" * 10**6, 7),
        ("0." + "0" * (10**6 - 1) + "12e1000001", 12),
        ("1e" + "0" * 10**6 + "2", 100),
        ("0e" + "9" * 10**6, 0),
        ("1e" + "9" * 10**6, "out of range"),
        ("1e-" + "9" * 10**6, "must be an integer"),
        ("9" * 10**6 + ".0", "out of range"),
        ("7." + "0" * 10**6 + "1", "must be an integer"),
        ("0." + "0" * 10**6 + "1e1000000", "must be an integer"),
    ],
    ids=lambda value: f"{value:.20}" if isinstance(value, str) else str(value),
)
def test_integers_of_a_million_digits(text: str, value: int | str) -> None:
    if isinstance(value, int):
        assert read("INT64", [text, "5"]).tolist() == [value, 5]
        return
    with pytest.raises(tw.ElementError, match=value) as caught:
        read("INT64", ["5", text])
    assert caught.value.element == 1
    assert len(str(caught.value)) < 300


def test_integers_of_all_lengths() -> None:
    chooser = random.Random(8)
    values = [chooser.randrange(10 ** (n % 20)) for n in range(20_000)]
    values = [value for value in values if value < 2**64]
    assert read("UINT64", [str(value) for value in values]).tolist() == values
    values = [chooser.choice((-1, 1)) * (value >> 1) for value in values]
    assert read("INT64", [str(value) for value in values]).tolist() == values


@pytest.mark.parametrize("n", [18, 19, 20, 700, 4299, 4300])
def test_long_integers_in_parameters(n: int) -> None:
    for text in ("9" * n, "-" + "9" * n, "1" + "0" * (n - 1)):
        assert decode(in_parameter(text.encode())).parameters == {"p": int(text)}
    for value in (2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 0):
        assert decode(in_parameter(b"%d" % value)).parameters == {"p": value}


@pytest.mark.thread_unsafe(reason="it changes the interpreter")
def test_integer_parameter_obeys_pythons_digit_limit() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        with pytest.raises(tw.HeaderError, match="out of range"):
            decode(in_parameter(b"9" * 641))
    finally:
        sys.set_int_max_str_digits(before)


def test_numbers_out_of_range_outside_data() -> None:
    for text in TOO_LARGE:
        if not text.strip("-").isdigit():
            with pytest.raises(tw.HeaderError, match="out of range"):
                decode(in_parameter(text.encode()))
        decode(in_unknown(text.encode()))


def test_nan_is_accepted_only_in_floating_point_data() -> None:
    words = ["NaN", "Infinity", "-Infinity", "null"]
    for datatype in ("FP32", "FP64"):
        assert repr(read(datatype, words).tolist()) == "[nan, inf, -inf, nan]"
        early = f'{{"data":[{",".join(words)}],"name":"x","shape":[4],"datatype":"{datatype}"}}'
        assert repr(decode(body(early))["x"].as_numpy().tolist()) == "[nan, inf, -inf, nan]"
    for word in words:
        for datatype in ("INT32", "BOOL", "BYTES", "UINT8"):
            with pytest.raises(tw.ElementError, match=f"must be .*, not {word} "):
                read(datatype, [word])
        if word == "null":
            continue
        for place in (in_unknown, in_parameter, in_entry):
            assert is_syntax_error(place(word.encode()))
            assert is_syntax_error(place(b"[" + word.encode() + b"]"))
        assert is_syntax_error(in_early_data(b'{"a":' + word.encode() + b"}"))
        with pytest.raises(tw.HeaderError):
            decode(body(entry("FP32", word)))


# --- strings ---

ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
GOOD_STRINGS = [
    *("", "a", "/", "\x7f", "\x80", "é", "\u07ff", "\u0800", "€", "\u2028", "\ud7ff", "\ue000"),
    *("\uffff", "\U00010000", "\U0001f600", "\U0010ffff"),
]
BAD_UTF8 = [
    *(
        b"\x80",
        b"\xbf",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xc2",
        b"\xc2A",
        b"\xc3\x28",
        b"\xff",
        b"\xfe\xff",
    ),
    *(b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xe2\x82", b"\xe2\x82A", b"\xe2A\xac", b"\xe2\x28\xa1"),
    *(b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf0\x9f\x98"),
    *(b"\xf0\x9f\x98A", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80"),
]
BAD_ESCAPES = [rf"\{chr(c)}" for c in range(0x20, 0x7F) if chr(c) not in ESCAPES and chr(c) != "u"]
BAD_ESCAPES += [*words(r"\u \u1 \u12 \u123 \u123g \ug123 \u+123 \u12\n4"), r"\u 123"]
LONE = [
    *words(r"""
        \ud800 \udbff \udc00 \udfff \ud800a \ud800\n \ud800\u0041 \ud800\ud800
        \ude00\ud83d \ud83d\ud83d\ude00 \ud83d\ude00\ude00 \ud83d\uDBFF \ud83d\u
        \ud83d\udg00 \udc00\udc00 \udfff\udfff
    """),
]


def strings_of(text: bytes) -> list[str]:
    """Read a string literal in every place where a string can be."""
    named = PLAIN.encode().replace(b'"x"', text)
    found = [decode(b'{"inputs":[' + named + b"]}").inputs[0].name]
    found.append(decode(in_parameter(text)).parameters["p"])
    found += decode(in_parameter(b"{" + text + b":1}")).parameters["p"]
    found.append(decode(b'{"inputs":[' + PLAIN.encode() + b'],"id":' + text + b"}").id or "")
    data = b'{"inputs":[' + entry("BYTES", "[@]").encode().replace(b"@", text) + b"]}"
    (element,) = elements_of(decode(data))
    found.append(element.decode())
    shared = PLAIN[:-1] + ',"parameters":{"shared_memory_region":@}}'
    region = decode(body(shared.replace('"data":[1]', '"data":null')).encode().replace(b"@", text))
    found.append(region.inputs[0].parameters["shared_memory_region"])
    outputs = b',"outputs":[{"name":' + text + b"}]}"
    requested = decode(b'{"inputs":[' + PLAIN.encode() + b"]" + outputs).outputs
    found += [output.name for output in requested or ()]
    decode(in_unknown(text))
    decode(in_unknown(b"{" + text + b":1}"))
    return found


@pytest.mark.parametrize("n_before", range(35))
def test_strings_at_all_alignments(n_before: int) -> None:
    """The distances to blocks of 16 bytes, and to the limit of short strings, vary."""
    before = "abcdefgh" * 5
    for good in GOOD_STRINGS:
        for n_after in (0, 1, 8):
            text = before[:n_before] + good + before[:n_after]
            assert set(strings_of(json.dumps(text, ensure_ascii=False).encode())) == {text}
            assert set(strings_of(json.dumps(text).encode())) == {text}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "n_before", [0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 22, 23, 24, 25, 26, 31, 32]
)
def test_invalid_strings_at_all_alignments_are_rejected(n_before: int, place: str) -> None:
    before, make = b"abcdefgh" * 5, PLACES[place]
    bad = [
        *BAD_UTF8,
        *(text.encode() for text in (*BAD_ESCAPES, *LONE)),
        *(bytes([c]) for c in range(32)),
    ]
    for text in bad:
        for after in (b"", b"n", b"zyxwvuts"):
            string = b'"' + before[:n_before] + text + after + b'"'
            assert is_syntax_error(make(string)), string
            assert not json_accepts(string) or text.decode() in LONE


@pytest.mark.parametrize("text", [*BAD_UTF8, b"\n", b"\0", rb"\ud800", rb"\x"])
def test_invalid_strings_as_names_keys_and_data_are_rejected(text: bytes) -> None:
    for before in (b"", b"a" * 23, b"a" * 24, b"\xc3\xa9"):
        string = b'"' + before + text + b'"'
        named = PLAIN.encode().replace(b'"x"', string)
        assert is_syntax_error(b'{"inputs":[' + named + b"]}")
        data = entry("BYTES", "[@]").encode().replace(b"@", string)
        assert is_syntax_error(b'{"inputs":[' + data + b"]}")
        region = b',"parameters":{"shared_memory_region":' + string + b"}}"
        assert is_syntax_error(b'{"inputs":[' + PLAIN[:-1].encode() + region + b"]}")
        for member in (b'"id":@', b'"model_name":@', b'"outputs":[{"name":@}]'):
            more = member.replace(b"@", string)
            assert is_syntax_error(b'{"inputs":[' + PLAIN.encode() + b"]," + more + b"}")
        for make in (in_unknown, in_parameter, in_entry):
            assert is_syntax_error(make(b"{" + string + b":1}"))
        assert is_syntax_error(b"{" + string + b':1,"inputs":[' + PLAIN.encode() + b"]}")


@pytest.mark.parametrize("letter", ESCAPES)
def test_escapes(letter: str) -> None:
    for n in range(30):
        text = "a" * n + "\\" + letter + "b"
        assert set(strings_of(f'"{text}"'.encode())) == {"a" * n + ESCAPES[letter] + "b"}


def test_all_unicode_escapes() -> None:
    """As BYTES data, with hexadecimal digits in both cases."""
    units = [c for c in range(0x10000) if not 0xD800 <= c <= 0xDFFF]
    for template in (r'"\u%04x"', r'"\u%04X"'):
        data = "[" + ",".join(template % c for c in units) + "]"
        message = decode(body(entry("BYTES", data, len(units))))
        assert elements_of(message) == [chr(c).encode() for c in units]


def test_all_surrogate_pairs() -> None:
    points = [*range(0x10000, 0x110000, 61), 0x10FFFF, 0x103FF + 0x10000, 0x1FC00]
    texts = [json.dumps(chr(c)) for c in points]
    message = decode(body(entry("BYTES", f"[{','.join(texts)}]", len(points))))
    assert elements_of(message) == [chr(c).encode() for c in points]


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_bytes_elements_of_all_lengths(n: int) -> None:
    """The memory for the elements grows at any of them."""
    for length in range(150):
        elements = ["x" * length, *["y" * (length % 5)] * (n - 2), "z" * (length // 2)][-n:]
        message = decode(body(entry("BYTES", json.dumps(elements), n)))
        assert elements_of(message) == [element.encode() for element in elements]


def test_string_at_the_end_of_the_text() -> None:
    for n in (*range(40), SHORT_NBYTES):
        for last in ("", *words(r"\ \u \u00 \u004 \ud83d \ud83d\ude0 \ud83d\ é")):
            for before in ('{"inputs":["', '{"'):
                with pytest.raises(tw.HeaderError):
                    decode(before + "a" * n + last)
    whole = in_unknown(b'"' + b"a" * 30 + "é\\n\U0001f600".encode() + b'"')
    for n in range(len(whole)):
        with pytest.raises(tw.HeaderError):
            tw.decode_request(whole[:n])


# --- members ---


def test_tensor_members_in_any_order() -> None:
    members = ['"name":"x"', '"shape":[2]', '"datatype":"FP32"', '"data":[1,2.5]']
    members += ['"parameters":{"a":1}', '"z":{"k":[1,{"data":2}]}']
    for order in itertools.permutations(members):
        tensor = decode(body(f"{{{','.join(order)}}}")).inputs[0]
        assert (tensor.name, tensor.shape, tensor.datatype) == ("x", (2,), "FP32")
        assert tensor.as_numpy().tolist() == [1, 2.5]
        assert tensor.parameters == {"a": 1}


@pytest.mark.parametrize(
    ("datatype", "data"), [("FP32", [3, 4]), ("INT64", [3, 4]), ("BYTES", [b"a", b"b"])]
)
def test_second_tensor_has_its_own_data(datatype: str, data: list[Any]) -> None:
    """Also if its data precedes the members that are needed to parse it."""
    texts = ",".join(f'"{v.decode()}"' if isinstance(v, bytes) else str(v) for v in data)
    first = '{"name":"x","shape":[2],"datatype":"FP32","data":[1,2]}'
    members = ['"name":"y"', '"shape":[2]', f'"datatype":"{datatype}"', f'"data":[{texts}]']
    for order in itertools.permutations(members):
        x, y = decode(body(f"{first},{{{','.join(order)}}}")).inputs
        assert x.as_numpy().tolist() == [1, 2]
        assert (y.datatype, y.as_numpy().tolist()) == (datatype, data)


@pytest.mark.parametrize(
    ("datatype", "data", "error", "message"),
    [
        ("FP32", "[1,2,3]", tw.LayoutError, "requires 2 elements, but its JSON data has 3"),
        ("FP32", "[[1]]", tw.LayoutError, "requires 2 elements, but its JSON data has 1"),
        ("FP32", '[[1,"a"]]', tw.ElementError, "element 1 of input 'x'"),
        ("UINT8", "[1,[256]]", tw.ElementError, "is 256, which is out of range for UINT8 .0 to"),
        ("BYTES", '["a",[1]]', tw.ElementError, "must be a string .BYTES., not 1"),
        ("BOOL", "[true,0]", tw.ElementError, "must be true or false .BOOL., not 0"),
        ("FP16", "[1,2]", tw.HeaderError, "can only be sent as binary data"),
        ("FP32", "7", tw.HeaderError, "must be a list, not 7"),
        ("FP99", "[1,2]", tw.HeaderError, "unknown datatype"),
    ],
)
def test_errors_do_not_depend_on_the_order_of_members(
    datatype: str, data: str, error: type, message: str
) -> None:
    members = ['"name":"x"', '"shape":[2]', f'"datatype":"{datatype}"', f'"data":{data}']
    for order in itertools.permutations(members):
        for more in ("", ',"id":"1"', f',"outputs":[{{"name":"{"y" * 50}"}}]'):
            text = body(f"{{{','.join(order)}}},{PLAIN.replace('x', 'y')}", more)
            with pytest.raises(error, match=message) as caught:
                decode(text)
            assert type(caught.value) is error


def test_request_members_in_any_order() -> None:
    members = [f'"inputs":[{PLAIN}]', '"id":"i"', '"model_name":"m"', '"model_version":"1"']
    members += ['"parameters":{"p":1}']
    members += ['"outputs":[{"parameters":{"binary_data":true,"q":2},"name":"o"}]']
    for order in itertools.permutations(members):
        request = decode(f"{{{','.join(order)}}}")
        assert (request.id, request.model_name, request.model_version) == ("i", "m", "1")
        assert request.parameters == {"p": 1}
        (output,) = request.outputs or []
        assert (output.name, output.binary, output.parameters) == ("o", True, {"q": 2})
        assert request["x"].as_numpy().tolist() == [1]


def test_response_members_in_any_order() -> None:
    members = [f'"outputs":[{PLAIN}]', '"id":"i"', '"model_name":"m"', '"model_version":"1"']
    members += ['"parameters":{"p":1}', '"inputs":[{"name":null}]']
    for order in itertools.permutations(members):
        response = tw.decode_response(f"{{{','.join(order)}}}".encode())
        assert (response.id, response.model_name, response.model_version) == ("i", "m", "1")
        assert response.parameters == {"p": 1}
        assert response["x"].as_numpy().tolist() == [1]


REQUEST = {"inputs": f"[{PLAIN}]", "outputs": '[{"name":"o"}]', "id": '"i"', "model_name": '"m"'}
REQUEST |= {"model_version": '"1"', "parameters": '{"p":1}', "unknown": "[1,2]"}
ENTRY = {"name": '"x"', "shape": "[1]", "datatype": '"INT8"', "data": "[1]"}
ENTRY |= {"parameters": '{"a":1}', "z": "0"}
REQUESTED = {"name": '"o"', "parameters": '{"binary_data":true}', "z": "{}"}


def joined(members: dict[str, str], *more: str) -> str:
    pairs = [f'"{name}":{value}' for name, value in members.items()]
    return "{" + ",".join([*pairs, *more]) + "}"


def escaped(key: str) -> str:
    """Return the same key with its last character escaped."""
    return key[:-1] + f"\\u{ord(key[-1]):04X}" if key else ""


OBJECTS: dict[str, tuple[dict[str, str], str]] = {
    "request": (REQUEST, "@"),
    "input": (ENTRY, body("@")),
    "requested output": (REQUESTED, f'{{"inputs":[{PLAIN}],"outputs":[@]}}'),
    "parameters": ({"p": "1", "q": "{}", "": "1"}, in_parameter(b"@").decode()),
    "skipped object": ({"p": "1", "q": "{}", "": "[]"}, in_unknown(b"@").decode()),
    "object in data": ({"p": "1", "q": "{}", "": "[]"}, in_early_data(b"@").decode()),
}


@pytest.mark.parametrize("place", OBJECTS)
def test_duplicate_member_is_rejected(place: str) -> None:
    members, template = OBJECTS[place]
    if place != "object in data":
        decode(template.replace("@", joined(members)))
    for twice, value in members.items():
        for key in {twice, escaped(twice)}:
            for inner in (value, "null", '{"a":[]}'):
                text = template.replace("@", joined(members, f'"{key}":{inner}'))
                with pytest.raises(tw.HeaderError, match="twice in one object") as caught:
                    decode(text)
                assert caught.value.offset == text.rindex(f',"{key}":{inner}') + 1


def test_duplicate_framing_parameter_is_rejected() -> None:
    for first, second in itertools.product(("1", "null", '"a"', "1e5"), repeat=2):
        sizes = f'{{"binary_data_size":{first},"binary_data_size":{second}}}'
        flags = f'{{"binary_data":{first},"binary_data":{second}}}'
        for text in (
            body(joined(ENTRY | {"data": "null", "parameters": sizes})),
            body(PLAIN, f',"outputs":[{{"name":"o","parameters":{flags}}}]'),
        ):
            with pytest.raises(tw.HeaderError, match="twice"):
                decode(text)


def test_equal_keys_in_different_objects_are_accepted() -> None:
    text = body(
        PLAIN[:-1] + ',"z":{"a":{"a":[{"a":1},{"a":2}]},"b":{"a":1}},"a":1}',
        ',"a":{"a":1},"b":{"a":{"a":{}}}',
    )
    decode(text)
    decode(in_unknown(b'{"a":1,"A":1,"a ":1,"":1," ":1,"aa":1,"\\u00e9":1,"e":1}'))


KEYS = [
    *("", "a", "aa", "b", "\0", "\n", '"', "\\", "/", "é", "€", "\uffff", "\U00010000"),
    *("\U0010ffff", "a\U00010000", "a\uffff"),
]


@pytest.mark.parametrize("seed", range(20))
def test_duplicate_keys_in_skipped_objects(seed: int) -> None:
    """In any order, with and without escapes."""
    chooser = random.Random(seed)
    keys = KEYS + ["k" * n + chooser.choice(KEYS) for n in range(2, 40)]
    chooser.shuffle(keys)
    members = [json.dumps(key, ensure_ascii=chooser.random() < 0.5) + ":0" for key in keys]
    decode(in_unknown(("{" + ",".join(members) + "}").encode()))
    for key in chooser.sample(keys, 20):
        twice = [*members, json.dumps(key, ensure_ascii=chooser.random() < 0.5) + ":1"]
        chooser.shuffle(twice)
        with pytest.raises(tw.HeaderError, match="twice"):
            decode(in_unknown(("{" + ",".join(twice) + "}").encode()))


def test_unknown_members_are_ignored() -> None:
    value = '{"a":[1,"\\u00e9",null,true,{"b":-1.5e3}]}'
    unknown = ",".join(
        f'"{name}":{value}'
        for name in ("z", "Name", "input", "data_", "", "\\u0000", "nam\\u0065s", "inputs\\u0000")
    )
    text = f'{{{unknown},"inputs":[{PLAIN[:-1]},{unknown}}}],"outputs":[{{{unknown},"name":"o"}}]}}'
    request = decode(text)
    assert request.parameters == {}
    assert request["x"].as_numpy().tolist() == [1]


def test_null_means_absent() -> None:
    for member in ("outputs", "id", "model_name", "model_version", "parameters"):
        assert not getattr(decode(joined(REQUEST | {member: "null"})), member)
    with pytest.raises(tw.HeaderError, match='has no "inputs"'):
        decode(joined(REQUEST | {"inputs": "null"}))
    assert decode(body(joined(ENTRY | {"parameters": "null"})))["x"].parameters == {}
    assert decode(body(PLAIN, f',"outputs":[{joined(REQUESTED | {"parameters": "null"})}]')).outputs
    for member in ("name", "shape", "datatype"):
        with pytest.raises(tw.HeaderError, match=member):
            decode(body(joined(ENTRY | {member: "null"})))
    with pytest.raises(tw.HeaderError, match="must have exactly one of"):
        decode(body(joined(ENTRY | {"data": "null"})))
    sized = ENTRY | {"data": "null", "parameters": '{"binary_data_size":1}'}
    text = body(joined(sized)).encode()
    assert tw.decode_request(text + b"\1", len(text))["x"].as_numpy().tolist() == [1]
    framing = '{"binary_data_size":null,"shared_memory_region":null}'
    decode(body(joined(ENTRY | {"parameters": framing})))


# --- nesting depth ---


def nested(n: int, opening: str = "[", closing: str = "]", inner: str = "") -> bytes:
    return (opening * n + inner + closing * n).encode()


@pytest.mark.parametrize("max_nesting", [4, 5, 50, MAX_NESTING, DEEPEST])
def test_nesting_depth(max_nesting: int) -> None:
    kinds = [("[", "]", ""), ('{"":', "}", "0"), ('[{"a":', "}]", "[]"), ('{"a":[1,', "]}", "{}")]
    for opening, closing, inner in kinds:
        per_unit = opening.count("[") + opening.count("{")
        for make, own in ((in_unknown, 1), (in_parameter, 2), (in_entry, 3)):
            n = max_nesting - own
            units, rest = divmod(n - (len(inner) == 2), per_unit)
            text = b"[" * rest + nested(units, opening, closing, inner) + b"]" * rest
            decode(make(text), max_nesting=max_nesting)
            with pytest.raises(tw.HeaderError, match=f"the limit is {max_nesting} levels"):
                decode(make(b"[" + text + b"]"), max_nesting=max_nesting)


@pytest.mark.parametrize("order", ["data first", "data last"])
def test_nesting_depth_of_data(order: str) -> None:
    def text(n: int) -> str:
        if order == "data last":
            return body(entry("INT8", nested(n, inner="1").decode()))
        return body(
            f'{{"data":{nested(n, inner="1").decode()},"name":"x","shape":[1],"datatype":"INT8"}}'
        )

    decode(text(MAX_DATA_DEPTH))
    for n in (MAX_DATA_DEPTH + 1, MAX_DATA_DEPTH + 20):
        with pytest.raises(tw.HeaderError, match="nested too deeply; the limit is 100 lists"):
            decode(text(n))
    with pytest.raises(tw.HeaderError, match="the limit is 128 levels"):
        decode(text(127) if order == "data first" else in_unknown(nested(128)))
    decode(text(7), max_nesting=10)
    with pytest.raises(tw.HeaderError, match="the limit is 10 levels"):
        decode(text(8), max_nesting=10)


def test_smallest_nesting_limits() -> None:
    for max_nesting in range(4):
        with pytest.raises(tw.HeaderError, match=f"the limit is {max_nesting} levels"):
            decode(body(PLAIN), max_nesting=max_nesting)
    decode(body(PLAIN), max_nesting=4)


@pytest.mark.no_sanitizers(reason="their stack frames are several times as large")
def test_deepest_nesting_in_a_thread_with_a_small_stack() -> None:
    """A level takes up to 400 bytes of stack (WIRE.md 11)."""
    failures: list[BaseException] = []
    deepest = DEEPEST - 3
    texts = [
        make(nested(deepest, *kind))
        for make in (in_unknown, in_parameter, in_entry)
        for kind in (("[", "]", ""), ('{"":', "}", "0"))
    ]

    def run() -> None:
        try:
            for text in texts:
                tw.decode_request(text, limits=tw.Limits(max_nesting=DEEPEST))
        except BaseException as error:
            failures.append(error)

    before = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert not failures


# --- long values, which are read without the GIL --------------------------------------------------

# Elements that end or begin around the boundary, and others that are invalid there.
TAILS: dict[str, tuple[str, str, list[str]]] = {
    "numbers": ("FP64", "1.25e-3", ["1.", "01", "1e", "-", "1e999", '"a"', "[", "{}", "\x01"]),
    "long numbers": (
        *("FP64", "0." + "123456789" * 4),
        ["0." + "1" * 30 + "e", "-0." + "1" * 30 + "e400"],
    ),
    "integers": (
        *("INT64", "-1234567890123456789"),
        ["-", "9223372036854775808", "1.5", "12345678901234567890123", "01"],
    ),
    "literals": ("BOOL", "false", ["fals", "truee", "False", "1"]),
    "words": ("FP32", "-Infinity", ["-Infinit", "Inf", "NaNN", "-NaN"]),
    "nulls": ("FP32", "null", ["nul", "nulll", "nil"]),
    "strings": (
        *("BYTES", '"a\\u00e9\\ud83d\\ude00\\n€bcdefghijklmnopqrstuvwxyz"'),
        ['"\\x"', '"\\ud83d"', '"a\x01"', '"\\u12g4"', "1"],
    ),
}


def error_of(text: str) -> tuple[type, str, int, int | None]:
    """Return the class and the beginning of the message of an error, and its two positions."""
    with pytest.raises(tw.DecodeError) as caught:
        decode(text)
    error = caught.value
    assert error.offset is not None
    message = str(error).partition(" (byte")[0].partition("element")[0]
    return type(error), message, error.offset, error.element


def at_edge(datatype: str, unit: str, last: str, shift: int, n_before: int) -> str:
    """Return data whose element `last` begins `shift` bytes before the boundary of a block."""
    n = (n_before - shift - 1) // (len(unit.encode()) + 1)
    blanks = n_before - shift - 1 - n * (len(unit.encode()) + 1)
    elements = (unit + ",") * n + " " * blanks + last + f",{unit}" * 3
    return body(entry(datatype, f"[{elements}]", n + 4))


@pytest.mark.parametrize("kind", TAILS)
def test_data_across_block_boundaries(kind: str) -> None:
    """Elements at a boundary give the same result as at other positions."""
    datatype, unit, faults = TAILS[kind]
    n_own = len(unit.encode()) + 1
    few = 10 * n_own + 60
    for last in (unit, *faults):
        size = len(last.encode())
        for shift in {*range(-2, min(size, 10) + 3), *range(size - 2, size + 3)}:
            long = at_edge(datatype, unit, last, shift, SHORT_NBYTES)
            short = at_edge(datatype, unit, last, shift, few)
            assert len(long.encode()) > SHORT_NBYTES > len(short.encode())
            if last is unit:
                values, expected = (decode(text)["x"].tolist() for text in (long, short))
                assert set(map(repr, values)) == set(map(repr, expected))
                continue
            counts = [(n - shift - 1) // n_own for n in (SHORT_NBYTES, few)]
            found, expected = error_of(long), error_of(short)
            assert found[:2] == expected[:2], (last, shift)
            digits_of_the_shape = len(str(counts[0] + 4)) - len(str(counts[1] + 4))
            assert found[2] == expected[2] + SHORT_NBYTES - few + digits_of_the_shape
            if expected[3] is not None:
                assert found[3] == expected[3] + counts[0] - counts[1]


@pytest.mark.parametrize(
    "make", [in_unknown, in_entry, in_early_data], ids=lambda make: make.__name__
)
def test_skipped_values_across_block_boundaries(make: Callable[[bytes], bytes]) -> None:
    good = [
        b'"' + b"a" * 40 + b'\\n\\ud83d\\ude00\xc3\xa9"',
        *(b"-1.5e-10", b"true", b"null", b'{"a":[1,2],"b":{"c":0}}'),
        b'{"a":{"a":{"a":1,"b":2}}}',  # keys that are on the stack when the text of the block ends
    ]
    bad = [b'"\\ud83d"', b"1e", b"tru", b'{"a":1,"a":1}', b'{"a":1,}', b'"\xc3"']
    bad += [b'{"b":1,"\\u0062":2}']
    for last in (*good, *bad):
        for shift in range(len(last) + 3):
            n = SHORT_NBYTES - shift - 1
            whole = make(b'["' + b"b" * (n - 4) + b'",' + last + b",1]")
            short = make(b'["' + b"b" * 50 + b'",' + last + b",1]")
            assert len(whole) > SHORT_NBYTES
            assert is_syntax_error(whole) == is_syntax_error(short) == (last in bad)


def test_objects_in_long_data_before_its_datatype() -> None:
    """The keys of skipped objects are stored in memory that grows during the scan."""
    objects = ",".join("{" + ",".join(f'"k{i}":1' for i in range(60)) + "}" for _ in range(500))
    tensor = f'{{"y":1,"data":[{objects}],"name":"x","shape":[1],"datatype":"FP32"}}'
    for text in (
        body(tensor),
        '{"z":1,' + body(tensor)[1:],
        '{"z":{"a":1},' + body(tensor + "," + tensor)[1:],
    ):
        assert len(text) > SHORT_NBYTES
        for _ in range(3):
            with pytest.raises(tw.ElementError, match="element 0 of input 'x'"):
                decode(text)


def test_long_values_of_all_types() -> None:
    n = SHORT_NBYTES
    assert elements_of(decode(body(entry("BYTES", '["' + "a" * n + '"]')))) == [b"a" * n]
    assert elements_of(decode(body(entry("BYTES", '["' + "\\n" * n + '"]')))) == [b"\n" * n]
    assert decode(in_parameter(b'"' + "é".encode() * n + b'"')).parameters["p"] == "é" * n
    numbers = decode(in_parameter(b"[" + b"1," * n + b"2]")).parameters["p"]
    assert numbers == (*[1] * n, 2)
    assert read("FP64", ["0"] * n + ["1"]).sum() == 1
    assert read("FP64", [f"{' ' * n}1"]).tolist() == [1]
    assert read("FP64", [f"0.{'1' * n}"]).tolist() == [1 / 9]
    values = [b"1" * n, b"1" * (n + 5), b'"' + b"a" * n + b'"', b"[" + b"1," * n + b"1]"]
    for make, value in itertools.product(
        (in_unknown, in_entry, in_early_data), (*values, b" " * n + b"1")
    ):
        assert not is_syntax_error(make(value))
        assert is_syntax_error(make(value + b"\x01"))


# --- shapes ---------------------------------------------------------------------------------------


INVALID_SHAPES = [
    (tw.HeaderError, "[-1,-]", "expected a digit"),
    (tw.HeaderError, f"[{'1,' * 64}1.]", "expected a digit"),
    (tw.HeaderError, f"[{'1,' * 64}01]", "leading zero"),
    (tw.HeaderError, "[1,]", "a value"),
    (tw.LayoutError, "[9223372036854775807]", "too large to address|requires"),
    (tw.LayoutError, "[9223372036854775808]", "too large to address"),
    (tw.LayoutError, "[-9223372036854775808]", "negative dimension"),
    (tw.LayoutError, f"[{'9' * 4300}]", "too large to address"),
    (tw.LayoutError, f"[{'1,' * 64}1]", "65 dimensions; the limit is 64"),
    (tw.LayoutError, f"[{'1,' * 99_999}1]", "100000 dimensions; the limit is 64"),
]


def test_shape_must_be_a_list_of_integers() -> None:
    """More shapes are in cases.py and malformed.py."""
    for error, shape, message in INVALID_SHAPES:
        with pytest.raises(error, match=message):
            decode(body(joined(ENTRY | {"shape": shape})))
    for shape in ("[1,1,1]", "[ 1 ]", f"[{'1,' * 63}1]", "[]"):
        assert decode(body(joined(ENTRY | {"shape": shape})))["x"].as_numpy().size == 1
    assert decode(body(joined(ENTRY | {"shape": "[-0]", "data": "[]"})))["x"].shape == (0,)


# --- every change of a byte -----------------------------------------------------------------------

SIZED = '{"name":"x","shape":[2],"datatype":"INT16","parameters":{"binary_data_size":4}}'
BOOLS = '{"name":"b","shape":[2],"datatype":"BOOL","data":[true,false]}'
REGION = '"parameters":{"shared_memory_region":"s"}'
TEXTS = [
    ("request", body(SIZED), b"\1\0\2\0"),
    ("request", body('{"data":[1,-2e1,null],"name":"é","datatype":"FP32","shape":[3]}'), b""),
    ("request", body(entry("BYTES", r'["a\n",["\ud83d\ude00"]]', 2, name=r"\u00e9")), b""),
    ("request", body(BOOLS, ',"z":{"a":1,"b":[0.5,{}]}'), b""),
    ("request", body(entry("UINT8", "[255,0]", 2), ',"parameters":{"p":[1.5,"q",null]}'), b""),
    (
        "request",
        '{"id":"1","outputs":[{"name":"o","parameters":{"binary_data":true}}],' + body(SIZED)[1:],
        b"\1\0\2\0",
    ),
    (
        "request",
        f' {{ "inputs" : [ {{"name":"r","shape":[9],"datatype":"FP16",{REGION}}} ] }} ',
        b"",
    ),
    ("response", f'{{"model_name":"m","outputs":[{SIZED}]}}', b"\1\0\2\0"),
    ("response", f'{{"outputs":[{entry("FP64", "[NaN]")}],"model_version":"1"}}', b""),
    (
        "response",
        '{"outputs":[],"parameters":{"a":-0.0,"b":{"c":12345678901234567890}},"id":null}',
        b"",
    ),
]
HEADERS = [
    (kind, text.encode() + blob, len(text.encode()) if blob else None) for kind, text, blob in TEXTS
]


def compared(kind: str, text: bytes, length: int | None) -> None:
    decode_message: Callable[..., Any] = (
        tw.decode_request if kind == "request" else tw.decode_response
    )
    try:
        found: Any = message_read(decode_message(text, length))
    except tw.HeaderError as error:
        n = len(text) if length is None else length
        assert error.offset is None or 0 <= error.offset <= n, (text, length)
        found = None
    except tw.DecodeError:
        found = None
    try:
        expected: Any = reference.decode(text, length, kind)
    except reference.WireError:
        expected = None
    assert repr(found) == repr(expected), (text, length)


@pytest.mark.parametrize("i", range(len(HEADERS)))
def test_all_truncations_agree_with_the_reference(i: int) -> None:
    kind, text, length = HEADERS[i]
    compared(kind, text, length)
    header_nbytes = len(text) if length is None else length
    for n in range(header_nbytes):
        compared(kind, text[:n], None)
        compared(kind, text[:n] + text[header_nbytes:], n)
        compared(kind, text, n)


# The bytes that mean something in JSON, and some at the edges of ranges.
MEANINGFUL = b'{}[]",:\\ \t\n\r0129-+.eEtfnNIu\0\x1f\x7f\x80\xbf\xc3\xff'


@pytest.mark.parametrize("i", range(len(HEADERS)))
def test_all_single_byte_changes_agree_with_the_reference(i: int) -> None:
    kind, text, length = HEADERS[i]
    chooser = random.Random(i)
    for at in range(len(text) if length is None else length):
        for byte in (*chooser.sample(MEANINGFUL, scaled(len(MEANINGFUL))), chooser.randrange(256)):
            compared(kind, text[:at] + bytes([byte]) + text[at + 1 :], length)


@pytest.mark.parametrize("front", ["", "x", "\N{GRINNING FACE}", "\N{EURO SIGN}" * 21])
@pytest.mark.parametrize("end", [b"\xff", b"\x80", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x99"])
def test_position_of_invalid_utf8(front: str, end: bytes) -> None:
    """It is found without a copy of the text, which may be 64 MiB long."""
    for n in (*range(0, 70), 1 << 20):
        header = b'{"a":"' + front.encode() + b"x" * n + end + b'","inputs":[]}'
        with pytest.raises(UnicodeDecodeError) as expected:
            header.decode()
        tracemalloc.start()
        with pytest.raises(tw.HeaderError, match="is not UTF-8") as caught:
            tw.decode_request(header)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert caught.value.offset == expected.value.start
        assert peak < 100_000
