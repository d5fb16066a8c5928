"""The JSON reader, compared with `json` of the standard library and the reference codec."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorwire as tw
from fuzz.comparison import message_read
from support import reference
from support.case_types import INTEGERS
from support.memory import peak_nbytes
from support.scale import scaled
from tensorwire._codec.json.reader import read_json

SHORT_NBYTES = 128 << 10  # of the JSON reader: longer texts are read again without the GIL
MAX_DATA_DEPTH = 100
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


def read(datatype: str, numbers: list[str]) -> np.ndarray:
    """Return the values of a JSON tensor with these texts as elements."""
    message = decode(body(entry(datatype, f"[{','.join(numbers)}]", len(numbers))))
    return message["x"].as_numpy()


def examples(n: int) -> settings:
    """Return settings that do not depend on how busy the machine is."""
    slow = [HealthCheck.too_slow]
    return settings(max_examples=scaled(n), deadline=None, suppress_health_check=slow)


def words(table: str) -> list[str]:
    """Return the texts of a table that are separated by white space."""
    return table.split()


def place(template: str) -> Callable[[bytes], bytes]:
    """Return a function that inserts a text in a message, where the template has an @."""
    return lambda text: template.encode().replace(b"@", text)


in_unknown = place(body(PLAIN, ',"z":@'))
in_parameter = place(body(PLAIN, ',"parameters":{"p":@}'))
in_entry = place(body(PLAIN[:-1] + ',"z":@}'))
# Data that is validated before its datatype is known:
in_early_data = place('{"inputs":[{"data":[@],"name":"x","shape":[1],"datatype":"BYTES"}]}')
PLACES = {
    "an unknown member": in_unknown,
    "a parameter": in_parameter,
    "an unknown member of an entry": in_entry,
    "data before its datatype": in_early_data,
}


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


def json_accepts(text: bytes) -> bool:
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def compare_with_reference(kind: str, text: bytes, length: int | None = None) -> str:
    """Check that a message is read or rejected as by the reference codec. Return the result."""
    decode_message: Any = tw.decode_request if kind == "request" else tw.decode_response
    found = expected = None
    try:
        found = result = repr(message_read(decode_message(text, length)))
    except tw.DecodeError as error:
        if isinstance(error, tw.HeaderError):
            n = len(text) if length is None else length
            assert error.offset is None or 0 <= error.offset <= n, (text, length)
        result = type(error).__name__ + re.sub(r" \(byte \d+\)", "", str(error))
    with suppress(reference.WireError):
        expected = repr(reference.decode(text, length, kind))
    assert found == expected, (text, length)
    return result


# --- valid and invalid JSON -----------------------------------------------------------------------

# malformed.py has texts that `json` reads and the reader rejects: NaN, duplicate keys, 1e400, ...
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
    assert is_syntax_error(PLACES[place](text)) != json_accepts(text)


TEXT = st.text(st.sampled_from('a"\\\n\0é€\U0001f600'), max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
)
JSON = st.builds(
    lambda value, indent, is_ascii: json.dumps(value, indent=indent, ensure_ascii=is_ascii),
    VALUES,
    st.sampled_from([None, 0, "\t", " \r"]),
    st.booleans(),
)
STRICT = json.JSONDecoder(object_pairs_hook=reference._unique, parse_constant=int)


def check_value(text: bytes) -> None:
    """Check that a text is read as by `json`, without its extensions, or rejected by both."""
    try:
        value = STRICT.decode(text.decode())
        json.dumps(value, ensure_ascii=False).encode()  # fails for lone surrogates
        expected = repr(value)
    except (ValueError, UnicodeError):
        expected = None
    try:
        assert repr(read_json(text, 10)) == expected, text
    except tw.HeaderError as error:
        is_too_large = "out of range" in str(error) and "inf" in (expected or "")
        assert expected is None or is_too_large or "too deeply" in str(error)


@examples(300)
@given(
    text=JSON.map(str.encode),
    byte=st.sampled_from([b"", *(bytes([c]) for c in b'"\\{}[],:0-.eEtfn \x00\x80\xe2u1')]),
)
def test_values_agree_with_json(text: bytes, byte: bytes) -> None:
    """A text is valid, or one byte of it is replaced, removed or added."""
    check_value(text)
    for at in range(len(text)):
        check_value(text[:at] + byte + text[at:])
        check_value(text[:at] + byte + text[at + 1 :])


# --- numbers --------------------------------------------------------------------------------------

VALUE_OF: dict[str, Callable[[str], float]] = {"FP32": reference._nearest_single, "FP64": float}


def check_numbers(texts: list[str]) -> None:
    """Check that each text is read as the FP32 and FP64 value that is nearest to it."""
    for datatype, value_of in VALUE_OF.items():
        values = [value_of(text) for text in texts]
        kept = [i for i, value in enumerate(values) if not math.isinf(value)]
        found = read(datatype, [texts[i] for i in kept])
        expected = np.array([values[i] for i in kept], found.dtype)
        bits = np.dtype(f"u{found.itemsize}")
        wrong = np.flatnonzero(found.view(bits) != expected.view(bits))
        assert not len(wrong), (datatype, texts[kept[wrong[0]]])


SINGLE_EDGES = [0, 1, 2, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001, 0x3F7FFFFF, 0x3F800000, 0x7F7FFFFE]
DOUBLE_EDGES = [0, 1, 2, (1 << 52) - 2, (1 << 52) - 1, 1 << 52, (1 << 52) + 1, 0x7FEFFFFFFFFFFFFE]
DOUBLE_EDGES += [0x3FEFFFFFFFFFFFFF, 0x3FF0000000000000, 0x433FFFFFFFFFFFFF, 0x4340000000000000]


def near_midpoints(chooser: random.Random) -> Iterator[str]:
    """Yield midpoints of adjacent floats, of up to 750 digits, and numbers that hardly differ.

    As a double, a number near the midpoint of two singles is this midpoint: it is rounded once.
    """
    for dtype, edges, n in ((np.uint32, SINGLE_EDGES, 4000), (np.uint64, DOUBLE_EDGES, 1000)):
        low_bits = edges + [chooser.randrange(max(edges)) for _ in range(scaled(n))]
        bits = np.array([low_bits, [bit + 1 for bit in low_bits]], dtype)
        for low, high in bits.view(f"f{bits.itemsize}").T.tolist():
            with localcontext(prec=1200) as context:
                middle = (Decimal(low) + Decimal(high)) / 2
                context.prec = len(middle.as_tuple().digits) + 1
                for number in (middle.next_minus(), middle, middle.next_plus(), -middle):
                    yield f"{number:f}"


def with_all_exponents(chooser: random.Random) -> Iterator[str]:
    doubles = [(e << 52) | chooser.getrandbits(52) for e in range(2047)]
    singles = [(e << 23) | chooser.getrandbits(23) for e in range(255) for _ in range(4)]
    values = np.array(doubles, np.uint64).view(np.float64).tolist()
    values += np.array(singles, np.uint32).view(np.float32).tolist()
    yield from map(repr, values)
    for n in (0, 1, 7, 8, 14, 15, 16, 17, 18, 19, 20, 21, 25, 40):
        yield from (f"{chooser.choice((-1, 1)) * value:.{n}e}" for value in values)


# Most numbers in JSON have a decimal point and no exponent. They are read by a separate function if
# enough text follows, and by the general function near the end of the text.


def decimals(chooser: random.Random) -> Iterator[str]:
    """Yield numbers with integer parts of 1 to 12 digits, fractions of 1 to 30, and both signs."""
    for n_whole, n_fraction in itertools.product(range(1, 13), range(1, 31)):
        digits = "".join(chooser.choices("0123456789", k=n_whole - 1 + n_fraction))
        for first in "07" if n_whole == 1 else "7":
            number = f"{first}{digits[: n_whole - 1]}.{digits[n_whole - 1 :]}"
            yield from (number, "-" + number)


def with_small_exponents(chooser: random.Random) -> Iterator[str]:
    """Yield integers of up to 64 bits times powers of ten, some of them next to midpoints."""
    for exponent, scale in itertools.product(range(-27, 28), range(-60, 60, 2)):
        middle = (2 * chooser.randrange(2**52, 2**53) + 1) * Fraction(2) ** scale
        near = round(middle / Fraction(10) ** exponent) + chooser.choice((-1, 0, 0, 1))
        numbers = (near, chooser.randrange(1, 2 ** chooser.randint(1, 64)), 2**64 - 1 - abs(scale))
        yield from (f"{number}e{exponent}" for number in numbers if 0 < number < 2**64)
    for exponent, shift in itertools.product((0, 1, 3), range(11)):
        for mantissa in range(2**53 - 20, 2**53 + 20):
            yield f"{(2 * mantissa + 1) << shift}e{exponent}"
            yield f"{25 * (2 * mantissa + 1) << shift}e-{exponent + 2}"  # ties for exponent 0


ZEROS, ONES = "0" * 400, "1" * 800


def special_numbers(chooser: random.Random) -> Iterator[str]:
    yield from words("""
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
    """)
    yield from ("9" * n for n in (17, 19, 20, 21, 25))
    yield from (f"0.{'0' * 1000}1e1001", f"0.{ZEROS}1e400", f"0.{ZEROS}1e50", f"1{ZEROS}e-400")
    yield from (f"1{ZEROS}e-800", f"0.{ONES}", f"-0.{ONES}", f"{ONES}e-800", f"{ONES}.{ONES}e-790")
    yield f"0.{'0' * 30}{ONES}"


@pytest.mark.parametrize(
    "make",
    [
        *(near_midpoints, with_all_exponents, decimals, with_small_exponents, special_numbers),
    ],
    ids=lambda make: make.__name__,
)
def test_numbers_are_rounded_to_the_nearest(
    make: Callable[[random.Random], Iterator[str]],
) -> None:
    check_numbers(list(make(random.Random(3))))


def test_decimals_at_all_distances_from_the_end() -> None:
    for number in decimals(random.Random(4)):
        assert read("FP64", [number]).tolist() == [float(number)]
    for n_blanks in range(64):  # more bytes than the separate function needs after a number
        assert read("FP64", ["-3.0625", "0.1" + " " * n_blanks]).tolist() == [-3.0625, 0.1]


TOO_LARGE = [
    *("1e400", "-1e400", "1e309", "1.7976931348623159e308", "1e9999999999"),
    *("1e99999999999999999999", f"1{ZEROS}", ONES, f"0.{ZEROS}1e800", "9" * 5000),
    *("-1e18446744073709551617", f"1{ZEROS}e-50", f"1{ZEROS}.5e-50"),
]
TOO_LARGE_FOR_SINGLES = [
    *("3.40282356779733661638e38", "3402823567797336617e20", "-3410000000000000000e20", "1.7e308"),
]


@pytest.mark.parametrize("text", TOO_LARGE + TOO_LARGE_FOR_SINGLES)
def test_numbers_that_are_too_large_are_rejected(text: str) -> None:
    for datatype in ("FP32", "FP64") if text in TOO_LARGE else ("FP32",):
        with pytest.raises(tw.ElementError, match=f"element 1 of .* range for {datatype} .magnit"):
            read(datatype, ["0", text])
    if text in TOO_LARGE and not text.isdigit():
        with pytest.raises(tw.HeaderError, match="out of range"):
            decode(in_parameter(text.encode()))
    decode(in_unknown(text.encode()))


NO_NUMBERS = [
    *words("""
        01 -01 00 1. .5 -.5 0. -0. 1.e5 1e 1e+ 1e- 0e - --1 +1 1e5.5 0x10 1_0 -a 1a
        01.5 00.5 -01.5 -1. 1.5.5 1.5e 1.5e+ 1.-5 12345678. 123456789. 1.5x 1.12345678x
        1.1234567812345678x --1.5 Inf -Inf nan -NaN NaNN
    """),
    "1 0",
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


def values_in_range(datatype: str, chooser: random.Random) -> list[int]:
    least, most = INTEGERS[datatype]
    values = [least, least + 1, -1, 0, 1, 5, 9, 10, 99, 100, 127, most // 10, most - 1, most]
    values += [10**n + d for n in range(20) for d in (-1, 0)]
    values += [chooser.choice((-1, 1)) * chooser.randrange(10 ** (n % 20)) for n in range(1000)]
    return [value for value in values if least <= value <= most]


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_of_all_lengths(datatype: str) -> None:
    values = values_in_range(datatype, random.Random(8))
    for n_blanks in range(9):  # eight bytes are read at once if eight remain
        assert read(datatype, [f"{' ' * n_blanks}{value}" for value in values]).tolist() == values
        assert [read(datatype, [f"{' ' * n_blanks}{v}"]).item() for v in values[:50]] == values[:50]


def check_integer(datatype: str, text: str) -> None:
    """Check the value or the error of a number, near the end of the text and far from it."""
    exact = reference.integral(text)
    least, most = INTEGERS[datatype]
    for more in ([], ["2"], [" " * 50 + "2"], ["\n\t      2"]):  # short paths need more bytes
        numbers = ["1", text, *more]
        if exact is not None and least <= exact <= most:
            assert read(datatype, numbers).tolist() == [1, exact, *[2] * len(more)], text
            continue
        problem = "must be an integer" if exact is None else f"out of range for .*{least} to {most}"
        with pytest.raises(tw.ElementError, match=f"element 1 of .* {problem}") as caught:
            read(datatype, numbers)
        assert caught.value.element == 1
        assert text[:60] in str(caught.value)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_with_a_point_or_an_exponent(datatype: str) -> None:
    least, most = INTEGERS[datatype]
    # The property below has more notations of integers in the range.
    for text in (
        *("-0", "-0.0", "0.0", "0e0", "-0e5", "0.00e-7", "0e999999999", "-0.0e-99999999999999999"),
        *("0.5", "1e-1", "-1.5", f"{most}.5", f"{most}0.1", f"{most}.{'0' * 40}1", f"{most}e-1"),
        *("12345678901234567890.1", "1234567890123456789.01e1", "1e-999999999", "9" * 30 + ".5"),
        *("9" * 30 + "e-30", f"0.{'0' * 30}1e30", f"0.{'0' * 30}10e30", "10e-99999999999999999999"),
        *map(str, (least - 1, most + 1, -(2**63) - 1, 2**64, -(2**64), 10**19 + 2**64, 10**20)),
        *("9" * 5000, f"{most + 1}.0", f"{least - 1}.00", f"{most + 1}0e-1", f"{most}0.0"),
        *(f"{most}e1", "18446744073709551616.0", "18446744073709551616e0"),
        *("1844674407370955161.6e1", "1234567890123456789012.0", "1234567890123456789010e-1"),
        *("1.8446744073709551616E19", "99999999999999999999.0", "100000000000000000000e0", "1e20"),
        *("1e400", "-1e400", "1e999999999", "1e99999999999999999999", "0.001e999999999"),
        *(f"1{'0' * 10**6}e-1000000", f"0.{'0' * 10**6}1e1000001", f"7.{'0' * 10**6}1"),
    ):
        check_integer(datatype, text)


@examples(1000)
@given(
    datatype=st.sampled_from(list(INTEGERS)),
    sign=st.sampled_from(["", "-"]),
    whole=st.integers(0, 21).flatmap(lambda n_digits: st.integers(0, 10**n_digits)),
    n_zeros=st.sampled_from([0, 0, 1, 5, 25]),
    fraction=st.text("0000059", max_size=25),
    power=st.integers(-25, 20),
)
def test_integers_in_any_notation(
    datatype: str, sign: str, whole: int, n_zeros: int, fraction: str, power: int
) -> None:
    text = f"{sign}{whole * 10**n_zeros}" + (f".{fraction}" if fraction else "")
    check_integer(datatype, text + (f"e{power}" if power else ""))


@pytest.mark.thread_unsafe(reason="it changes the interpreter")
def test_integer_parameter_obeys_pythons_digit_limit() -> None:
    before = sys.get_int_max_str_digits()
    try:
        for limit in (before, 640):
            sys.set_int_max_str_digits(limit)
            with pytest.raises(tw.HeaderError, match="out of range"):
                decode(in_parameter(b"9" * (limit + 1)))
    finally:
        sys.set_int_max_str_digits(before)


def test_nan_is_accepted_only_in_floating_point_data() -> None:
    words = ["NaN", "Infinity", "-Infinity", "null"]
    for datatype in ("FP32", "FP64"):
        early = f'{{"data":[{",".join(words)}],"name":"x","shape":[4],"datatype":"{datatype}"}}'
        for array in (read(datatype, words), decode(body(early))["x"].as_numpy()):
            assert repr(array.tolist()) == "[nan, inf, -inf, nan]"
    for word in words:
        for datatype in ("INT32", "BOOL", "BYTES", "UINT8"):
            with pytest.raises(tw.ElementError, match=f"must be .*, not {word} "):
                read(datatype, [word])
    for word in words[:3]:
        for make in (in_unknown, in_parameter, in_entry):
            assert is_syntax_error(make(word.encode()))
            assert is_syntax_error(make(b"[" + word.encode() + b"]"))
        assert is_syntax_error(in_early_data(b'{"a":' + word.encode() + b"}"))
        with pytest.raises(tw.HeaderError):
            decode(body(entry("FP32", word)))


# --- strings --------------------------------------------------------------------------------------

GOOD_STRINGS = [
    *("", "a", "/", "\x7f", "\x80", "é", "\u07ff", "\u0800", "€", "\u2028", "\ud7ff", "\ue000"),
    *("\uffff", "\U00010000", "\U0001f600", "\U0010ffff", *'"\\/\b\f\n\r\t'),
]
BAD_UTF8 = [
    *(b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2A", b"\xc3\x28", b"\xff"),
    *(b"\xfe\xff", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xe2\x82", b"\xe2\x82A", b"\xe2A\xac"),
    *(b"\xe2\x28\xa1", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf"),
    *(b"\xf0\x9f\x98", b"\xf0\x9f\x98A", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"),
    b"\xf8\x88\x80\x80\x80",
]
BAD_ESCAPES = [rf"\{chr(c)}" for c in range(0x20, 0x7F) if chr(c) not in '"\\/bfnrtu']
BAD_ESCAPES += [*words(r"\u \u1 \u12 \u123 \u123g \ug123 \u+123 \u12\n4"), r"\u 123"]
LONE = words(r"""
    \ud800 \udbff \udc00 \udfff \ud800a \ud800\n \ud800\u0041 \ud800\ud800
    \ude00\ud83d \ud83d\ud83d\ude00 \ud83d\ude00\ude00 \ud83d\uDBFF \ud83d\u
    \ud83d\udg00 \udc00\udc00 \udfff\udfff
""")

REGION = '{"name":"x","shape":[1],"datatype":"INT8","parameters":{"shared_memory_region":@}}'
# The places of a string in a message, and what the message has there.
STRINGS: list[tuple[Callable[[bytes], bytes], Callable[[Any], Any] | None]] = [
    (place(body(PLAIN.replace('"x"', "@"))), lambda message: message.inputs[0].name),
    (place(body(REGION)), lambda message: message["x"].parameters["shared_memory_region"]),
    (place(body(entry("BYTES", "[@]"))), lambda message: message["x"].elements[0].decode()),
    (place(body(PLAIN, ',"id":@')), lambda message: message.id),
    (place(body(PLAIN, ',"model_name":@')), lambda message: message.model_name),
    (place(body(PLAIN, ',"outputs":[{"name":@}]')), lambda message: message.outputs[0].name),
    (in_parameter, lambda message: message.parameters["p"]),
    (place(body(PLAIN, ',"parameters":{@:1}')), lambda message: next(iter(message.parameters))),
    (place(body(PLAIN, ',"parameters":{"p":{@:1}}')),
     lambda message: next(iter(message.parameters["p"]))),
    *((place(body(PLAIN, f',"z":{text}')), None) for text in ("@", "{@:1}")),
    *((place(body(PLAIN[:-1] + f',"z":{text}}}')), None) for text in ("@", "{@:1}")),
    (place("{@:1," + body(PLAIN)[1:]), None),
]  # fmt: skip


def check_string(literal: str, expected: str) -> None:
    """Check that a string is read alike in every place."""
    for make, found in STRINGS:
        message = decode(make(literal.encode()))
        assert found is None or found(message) == expected, literal


@pytest.mark.parametrize("n_before", range(35))
def test_strings_at_all_alignments(n_before: int) -> None:
    """The distances to blocks of 16 bytes, and to the limit of short strings, vary."""
    before = "abcdefgh" * 5
    for good, n_after in itertools.product(GOOD_STRINGS, (0, 1, 8)):
        text = before[:n_before] + good + before[:n_after]
        check_string(json.dumps(text, ensure_ascii=False), text)
        check_string(json.dumps(text).replace("/", r"\/"), text)


@pytest.mark.parametrize("n_before", [*range(9), 15, 16, *range(22, 27), 31, 32])
def test_invalid_strings_at_all_alignments_are_rejected(n_before: int) -> None:
    before = b"abcdefgh" * 5
    bad = [*BAD_UTF8, *(text.encode() for text in (*BAD_ESCAPES, *LONE))]
    for text in (*bad, *(bytes([c]) for c in range(32))):
        for after in (b"", b"n", b"zyxwvuts"):
            string = b'"' + before[:n_before] + text + after + b'"'
            assert all(is_syntax_error(make(string)) for make in PLACES.values()), string
            assert not json_accepts(string) or text.decode() in LONE
        assert all(is_syntax_error(make(string)) for make, _ in STRINGS), string


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"a', "the JSON is malformed: expected the end of a string, found its end (byte 2)"),
        (b'{"a": 1, "a": 2}', 'the member "a" appears twice in one object of the JSON (byte 9)'),
        (b'"\xff"', "the JSON is not UTF-8 (byte 1)"),
    ],
)
def test_errors_of_json_that_is_not_a_header(text: bytes, expected: str) -> None:
    with pytest.raises(tw.HeaderError) as caught:
        read_json(text, 10)
    assert str(caught.value) == expected


def test_string_without_an_end() -> None:
    for n in (*range(40), 63, SHORT_NBYTES):
        for last in ("", *words(r"\ \u \u00 \u004 \n \u0041 \ud83d \ud83d\ude0 \ud83d\ é")):
            for before in ('{"inputs":["', '{"'):
                with pytest.raises(tw.HeaderError):
                    decode(before + "a" * n + last)


@pytest.mark.parametrize("front", ["", "x", "\N{GRINNING FACE}", "\N{EURO SIGN}" * 21])
@pytest.mark.parametrize("end", [b"\xff", b"\x80", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x99"])
def test_position_of_invalid_utf8(front: str, end: bytes) -> None:
    """It is found without a copy of the text, which may be 64 MiB long."""

    def check(header: bytes) -> None:
        with pytest.raises(tw.HeaderError, match="is not UTF-8") as caught:
            tw.decode_request(header)
        assert caught.value.offset == len(header) - len(end + b'","inputs":[]}')

    for n in (*range(0, 70), 1 << 20):
        header = b'{"a":"' + front.encode() + b"x" * n + end + b'","inputs":[]}'
        check(header)
    assert peak_nbytes(lambda: check(header)) < 100_000


# --- members --------------------------------------------------------------------------------------

INPUT = ['"name":"x"', '"shape":[2]']
AFTER_X = body('{"name":"w","shape":[2],"datatype":"FP32","data":[1,2]},{@}')
MEMBERS = ['"id":"i"', '"model_name":"m"', '"model_version":"1"', '"parameters":{"p":1}']
OUTPUTS = '"outputs":[{"parameters":{"binary_data":true,"q":2},"name":"o"}]'
# Members of an object whose order does not matter, and the message that contains the object.
ORDERS: list[tuple[str, str, list[str]]] = [
    ("request", "{@}", [f'"inputs":[{PLAIN}]', *MEMBERS, OUTPUTS]),
    ("response", "{@}", [f'"outputs":[{PLAIN}]', *MEMBERS, '"inputs":[{"name":null}]']),
    *(
        ("request", template, [*INPUT, f'"datatype":"{datatype}"', f'"data":{data}', *more])
        for template, datatype, data, more in (
            (body("{@}"), "FP32", "[1,2.5]", ['"parameters":{"a":1}', '"z":{"k":[1,{"data":2}]}']),
            # The second tensor has its own data, also if these are read before the other members.
            *((AFTER_X, t, d, []) for t, d in (("FP32", "[3,4]"), ("INT64", "[3,4]"))),
            (AFTER_X, "BYTES", '["a","b"]', []),
            *(
                (body(f"{{@}},{PLAIN.replace('x', 'y')}", more), datatype, data, [])
                for more in ("", ',"id":"1"', f',"outputs":[{{"name":"{"y" * 50}"}}]')
                for datatype, data in (
                    *(("FP32", "[1,2,3]"), ("FP32", "[[1]]"), ("FP32", '[[1,"a"]]'), ("FP32", "7")),
                    *(("UINT8", "[1,[256]]"), ("BYTES", '["a",[1]]'), ("BOOL", "[true,0]")),
                    *(("FP16", "[1,2]"), ("FP99", "[1,2]")),
                )
            ),
        )
    ),
]


@pytest.mark.parametrize(("kind", "template", "members"), ORDERS)
def test_members_in_any_order(kind: str, template: str, members: list[str]) -> None:
    """The result is that of the reference, and an error has the same class and text."""
    results = {
        compare_with_reference(kind, template.replace("@", ",".join(order)).encode())
        for order in itertools.permutations(members)
    }
    assert len(results) == 1


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


# --- nesting depth --------------------------------------------------------------------------------


def nested(n: int, opening: str = "[", closing: str = "]", inner: str = "") -> bytes:
    return (opening * n + inner + closing * n).encode()


@pytest.mark.parametrize(
    "template", [entry("INT8", "@"), '{"data":@,"name":"x","shape":[1],"datatype":"INT8"}']
)
def test_nesting_depth_of_data(template: str) -> None:
    def text(n: int) -> str:
        return body(template.replace("@", nested(n, inner="1").decode()))

    decode(text(MAX_DATA_DEPTH))
    for n in (MAX_DATA_DEPTH + 1, MAX_DATA_DEPTH + 20):
        with pytest.raises(tw.HeaderError, match="nested too deeply; the limit is 100 lists"):
            decode(text(n))
    if template.startswith('{"data"'):
        with pytest.raises(tw.HeaderError, match="the limit is 128 levels"):
            decode(text(127))
    decode(text(7), max_nesting=10)
    with pytest.raises(tw.HeaderError, match="the limit is 10 levels"):
        decode(text(8), max_nesting=10)
    for max_nesting in range(4):
        with pytest.raises(tw.HeaderError, match=f"the limit is {max_nesting} levels"):
            decode(text(1), max_nesting=max_nesting)


@pytest.mark.no_sanitizers(reason="their stack frames are several times as large")
def test_deepest_nesting_in_a_thread_with_a_small_stack() -> None:
    """A level takes up to 400 bytes of stack (WIRE.md 11)."""
    kinds = (("[", "]", ""), ('{"":', "}", "0"))
    n_read = 0

    def run() -> None:
        nonlocal n_read
        for make, kind in itertools.product((in_unknown, in_parameter, in_entry), kinds):
            decode(make(nested(DEEPEST - 3, *kind)), max_nesting=DEEPEST)
            n_read += 1

    before = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert n_read == 6


# --- long values, which are read without the GIL --------------------------------------------------

# Elements that end or begin around the boundary, and others that are invalid there.
TAILS: dict[str, tuple[str, str, list[str]]] = {
    "numbers": ("FP64", "1.25e-3", ["1.", "01", "1e", "-", "1e999", '"a"', "[", "{}", "\x01"]),
    "long numbers": ("FP64", "0." + "123456789" * 4, [f"0.{'1' * 30}e", f"-0.{'1' * 30}e400"]),
    "integers": ("INT64", "-1234567890123456789",
                 ["-", "9223372036854775808", "1.5", "12345678901234567890123", "01"]),
    "literals": ("BOOL", "false", ["fals", "truee", "False", "1"]),
    "words": ("FP32", "-Infinity", ["-Infinit", "Inf", "NaNN", "-NaN"]),
    "nulls": ("FP32", "null", ["nul", "nulll", "nil"]),
    "strings": ("BYTES", '"a\\u00e9\\ud83d\\ude00\\n€bcdefghijklmnopqrstuvwxyz"',
                ['"\\x"', '"\\ud83d"', '"a\x01"', '"\\u12g4"', "1"]),
}  # fmt: skip


def result_at(datatype: str, unit: str, last: str, position: int) -> Any:
    """Decode data whose element `last` begins at this position.

    Return the different values, or the error with its positions relative to this element.
    """
    n, n_blanks = divmod(position - 1, len(unit.encode()) + 1)
    elements = (unit + ",") * n + " " * n_blanks + last + f",{unit}" * 3
    text = body(entry(datatype, f"[{elements}]", n + 4))
    try:
        return set(map(repr, decode(text)["x"].tolist()))
    except tw.DecodeError as error:
        assert error.offset is not None
        offset = error.offset - len(text.partition("[" + unit)[0].encode()) - position
        element = None if error.element is None else error.element - n
        return type(error), re.split(" .byte|element", str(error))[0], offset, element


@pytest.mark.parametrize(("datatype", "unit", "faults"), TAILS.values(), ids=TAILS)
def test_data_across_block_boundaries(datatype: str, unit: str, faults: list[str]) -> None:
    """Elements at a boundary give the same result as at other positions."""
    few = 10 * (len(unit.encode()) + 1) + 60
    for last in (unit, *faults):
        size = len(last.encode())
        for shift in {*range(-2, min(size, 10) + 3), *range(size - 2, size + 3)}:
            found = result_at(datatype, unit, last, SHORT_NBYTES - shift)
            assert found == result_at(datatype, unit, last, few - shift), (last, shift)
            assert isinstance(found, tuple) == (last is not unit)


@pytest.mark.parametrize("place", ["an unknown member of an entry", *list(PLACES)[::3]])
def test_skipped_values_across_block_boundaries(place: str) -> None:
    make = PLACES[place]
    good = [
        b'"' + b"a" * 40 + b'\\n\\ud83d\\ude00\xc3\xa9"',
        *(b"-1.5e-10", b"true", b"null", b'{"a":[1,2],"b":{"c":0}}'),
        b'{"a":{"a":{"a":1,"b":2}}}',  # keys that are on the stack when the text of the block ends
    ]
    bad = [b'"\\ud83d"', b"1e", b"tru", b'{"a":1,"a":1}', b'{"a":1,}', b'"\xc3"']
    bad += [b'{"b":1,"\\u0062":2}']
    for last in (*good, *bad):
        for shift in range(len(last) + 3):
            for n in (SHORT_NBYTES - shift - 5, 50):
                text = make(b'["' + b"b" * n + b'",' + last + b",1]")
                assert is_syntax_error(text) == (last in bad)


def test_long_values_of_all_types() -> None:
    n = SHORT_NBYTES
    for literal, element in (("a", b"a"), ("\\n", b"\n")):
        assert decode(body(entry("BYTES", f'["{literal * n}"]')))["x"].tolist() == [element * n]
    for text in ("é" * n, "ab" * n, 'a"' * n):
        literal = json.dumps(text, ensure_ascii=False)
        assert decode(in_parameter(literal.encode())).parameters["p"] == text
    assert decode(in_parameter(b"[" + b"1," * n + b"2]")).parameters["p"] == [1] * n + [2]
    assert read("FP64", ["0"] * n + ["1"]).sum() == 1
    assert read("FP64", [f"{' ' * n}1", f"0.{'1' * n}"]).tolist() == [1, 1 / 9]
    values = [b"1" * n, b"1" * (n + 5), b'"' + b"a" * n + b'"', b"[" + b"1," * n + b"1]"]
    values.append(b" " * n + b"1")
    for make, value in itertools.product((in_unknown, in_entry, in_early_data), values):
        assert not is_syntax_error(make(value))
        assert is_syntax_error(make(value + b"\x01"))


# --- every change of a byte -----------------------------------------------------------------------

SIZED = '{"name":"x","shape":[2],"datatype":"INT16","parameters":{"binary_data_size":4}}'
BOOLS = '{"name":"b","shape":[2],"datatype":"BOOL","data":[true,false]}'
SHARED = REGION.replace("[1]", "[9]").replace("INT8", "FP16").replace("@", '"s"')
TEXTS = [
    ("request", body(SIZED), b"\1\0\2\0"),
    ("request",
     body('{"data":[1,-2e1,null],"n\\u0061m":0,"name":"é","datatype":"FP32","shape":[3]}'), b""),
    ("request", body(entry("BYTES", r'["a\n",["\ud83d\ude00"]]', 2, name=r"\u00e9")), b""),
    ("request", body(BOOLS, ',"input\\u0073_":{"a":1,"b":[0.5,{}]}'), b""),
    ("request", body(entry("UINT8", "[255,0]", 2), ',"parameters":{"p":[1.5,"q",null]}'), b""),
    ("request", '{"id":"1","outputs":[{"nam\\u0065":"o","parameters":{"binary_dat\\u0061":true}}],'
     + body(SIZED)[1:], b"\1\0\2\0"),
    ("request", f' {{ "inputs" : [ {SHARED} ] }} ', b""),
    ("response", f'{{"model_name":"m","outputs":[{SIZED}]}}', b"\1\0\2\0"),
    ("response", f'{{"outputs":[{entry("FP64", "[NaN]")}],"model_version":"1"}}', b""),
    ("response",
     '{"outputs":[],"parameters":{"a":-0.0,"b":{"c":12345678901234567890}},"id":null}', b""),
]  # fmt: skip
HEADERS = [
    (kind, text.encode() + blob, len(text.encode()) if blob else None) for kind, text, blob in TEXTS
]


# The bytes that mean something in JSON, and some at the edges of ranges.
MEANINGFUL = b'{}[]",:\\ \t\n\r0129-+.eEtfnNIu\0\x1f\x7f\x80\xbf\xc3\xff'


@pytest.mark.parametrize(("kind", "text", "length"), HEADERS, ids=range(len(HEADERS)))
def test_all_truncations_and_changes_of_a_byte_agree_with_the_reference(
    kind: str, text: bytes, length: Any
) -> None:
    chooser = random.Random(len(text))
    compare_with_reference(kind, text, length)
    header_nbytes = len(text) if length is None else length
    for n in range(header_nbytes):
        compare_with_reference(kind, text[:n], None)
        compare_with_reference(kind, text[:n] + text[header_nbytes:], n)
        compare_with_reference(kind, text, n)
        for byte in (*chooser.sample(MEANINGFUL, scaled(len(MEANINGFUL))), chooser.randrange(256)):
            compare_with_reference(kind, text[:n] + bytes([byte]) + text[n + 1 :], length)
