"""The JSON writer, compared with the parsers of the standard library and of msgspec.

The fuzz target "json_writer" has random values, and test_encode.py whole messages.
"""

from __future__ import annotations

import ctypes
import json
import math
import platform
import sysconfig
import tracemalloc
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc
from support.bytes_elements import is_utf8
from support.memory import LIBC, peak_nbytes
from support.requirements import optional
from support.scripts import run_script
from support.threads import repeating

msgspec = optional("msgspec")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, whose keys are unique."""
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


@pytest.mark.parametrize("n_characters", [1, 500, *range(100_000, 100_008)])
def test_text_ends_with_a_null_character(n_characters: int) -> None:
    """As every `bytes` object does, for functions of C. The text is padded to multiples of 8."""
    tensor = tw.Tensor("x", ["a" * n_characters], binary=False)
    text = tw.encode_request(tw.InferRequest([tensor])).buffers[0]
    assert type(text) is bytes
    assert ctypes.c_char_p(text).value == text


def header_of(frame: tw.Frame) -> Any:
    text = bytes(frame.buffers[0])
    assert frame.header_length in (None, len(text))
    return json.loads(text, object_pairs_hook=once)


def sent(tensor: tw.Tensor) -> bytes:
    """Return the body of a request with this tensor."""
    return bytes(tw.encode_request(tw.InferRequest([tensor])))


@pytest.mark.parametrize("n_more", range(0, 600, 7))
def test_texts_of_any_length(n_more: int) -> None:
    """The output buffer grows within a name, a number, a list and the padding."""
    tensors = [tw.Tensor(f"{'n' * n_more}{i}", np.zeros(n_more % 5 + 1, np.int8)) for i in range(3)]
    request = tw.InferRequest(tensors, id="x" * n_more)
    for align in (1, 7, 64, 1 << (n_more % 11)):
        frame = tw.encode_request(request, align=align)
        header = header_of(frame)
        assert [entry["name"] for entry in header["inputs"]] == [tensor.name for tensor in tensors]
        assert header["id"] == "x" * n_more
        text = bytes(frame.buffers[0])
        assert len(text) == -(-len(text.rstrip(b" ")) // align) * align


# --- values without JSON form, in each place ---

X = np.zeros(2, np.float32)
ITSELF: list[Any] = []
ITSELF.append(ITSELF)


PARAMETERS_WITH: dict[str, Callable[[Any], dict[Any, Any]]] = {
    "a value": lambda value: {"k": value},
    "a value within": lambda value: {"k": [{"l": value}]},
    "a key": lambda value: {value: 1},
    "a key within": lambda value: {"k": [{value: 1}]},
}
PLACES = ["a name", "an output's name", "id", "model_name", "model_version"] + [
    f"{where}: {kind}" for where in ("tensor", "output", "message") for kind in PARAMETERS_WITH
]


def request_with(value: Any, place: str) -> tw.InferRequest:
    where, _, kind = place.partition(": ")
    given = {where: PARAMETERS_WITH[kind](value)} if kind else {}
    name = value if place == "a name" else "x"
    output = value if place == "an output's name" else "y"
    texts = {place: value} if place in ("id", "model_name", "model_version") else {}
    return tw.InferRequest(
        [tw.Tensor("fine", X), tw.Tensor(name, X, parameters=given.get("tensor"))],
        [tw.RequestedOutput(output, parameters=given.get("output"))],
        parameters=given.get("message"),
        **texts,
    )


@pytest.mark.parametrize("text", ["\ud800", "plain \udfff", "é\ud83d", "\U0001f600\udc00"])
@pytest.mark.parametrize("place", PLACES)
def test_lone_surrogate_is_rejected(place: str, text: str) -> None:
    with pytest.raises(
        tw.EncodeError, match=r"has a lone surrogate at character \d, which UTF-8"
    ) as caught:
        request_with(text, place)
    expected = {"tensor": "x", "output": "y"}.get(place.partition(":")[0])
    assert caught.value.tensor == expected
    fine = request_with("fine\U0001f600", place)
    assert json.loads(bytes(tw.encode_request(fine).buffers[0]))["inputs"][0]["name"] == "fine"


@pytest.mark.parametrize("place", ["tensor: a value", "output: a value", "message: a value"])
def test_parameter_that_contains_itself_is_rejected(place: str) -> None:
    with pytest.raises(tw.EncodeError, match=r"parameter 'k' of .* is nested too deeply") as caught:
        request_with(ITSELF, place)
    assert (caught.value.expected, caught.value.actual) == (1000, 1001)


# --- JSON tensors ---


def data_text(array: Any, *, kind: str = "input", **options: Any) -> str:
    """Return the text between the brackets of an array's `data`."""
    tensor = tw.Tensor("x", array, binary=False)
    options = {"nonfinite": "null"} | options
    text = bytes(tw.encode_request(tw.InferRequest([tensor]), **options).buffers[0]).decode()
    front, _, data = text.partition(',"data":[')
    assert front.startswith('{"inputs":[{"name":"x","datatype":"')
    assert data.endswith("]}]}")
    return data.removesuffix("]}]}")


def texts_of(array: Any, **options: Any) -> list[str]:
    text = data_text(array, **options)
    return text.split(",") if text else []


def check_doubles(array: Any) -> None:
    """Check that the text is that of `repr`, and that json and msgspec read the same bits."""
    array = np.ascontiguousarray(array, np.float64)
    text = data_text(array)
    assert text.split(",") == [repr(number) for number in array.tolist()]
    for read in (json.loads, msgspec.json.decode):
        assert np.array(read(f"[{text}]")).tobytes() == array.tobytes()


strtof = LIBC.strtof
strtof.argtypes, strtof.restype = [ctypes.c_char_p, ctypes.c_void_p], ctypes.c_float


def check_singles(array: Any) -> None:
    """Check that numpy needs as many digits, and that the text reads as the same bits."""
    array = np.ascontiguousarray(array, np.float32)
    texts = texts_of(array)
    values = json.loads(f"[{','.join(texts)}]")
    assert {type(value) for value in values} <= {float}
    read = np.array(values)
    assert read.astype(np.float32).tobytes() == array.tobytes()
    assert np.array([strtof(t.encode(), None) for t in texts], np.float32).tobytes() == (
        array.tobytes()
    )
    for text, number in zip(texts, array, strict=True):
        if text.lstrip("-") == "7.0385307e-26":
            continue  # see test_shortest_single_that_is_misread_through_a_double
        shortest = np.format_float_scientific(number, unique=True, trim="-")
        value = Decimal(text)
        assert value == Decimal(shortest), (text, shortest)
        # Python's notation: fixed from 1e-4 to 1e16.
        assert ("e" in text) == (number != 0 and not Decimal("1e-4") <= abs(value) < 10**16)


def neighbours(array: Any) -> Any:
    """Return the numbers, their neighbours, and the negatives of all of them."""
    array = np.asarray(array)
    far = array.dtype.type(np.inf)
    with np.errstate(over="ignore"):
        near = np.concatenate([array, np.nextafter(array, far), np.nextafter(array, -far)])
    near = near[np.isfinite(near)]
    return np.concatenate([near, -near])


def random_bits(dtype: Any, n: int) -> Any:
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = np.random.default_rng(7).integers(0, np.iinfo(unsigned).max, n, unsigned, endpoint=True)
    few = bits & ~np.array(2 ** (np.finfo(dtype).nmant - 3) - 1, unsigned)  # of the fraction
    numbers = np.concatenate([bits, few]).view(dtype)
    return numbers[np.isfinite(numbers)]


SPECIAL_NUMBERS = [
    1e23,  # halfway between two doubles
    2.0**-20,
    2.0**-44,  # an irregular interval
    *(1.2345678901234567e-4, 1234567890123456.0, 123456789012345.6, 12345678.5, 1234567.5),
    *(9e15, 9.5e15 + 2, 2.0**25, 1.5e10, 123456.79, 9999999e9, -0.0),
]


@pytest.mark.parametrize(("dtype", "check"), [("f4", check_singles), ("f8", check_doubles)])
def test_numbers_that_are_hard_to_write(dtype: str, check: Callable[[Any], None]) -> None:
    info = np.finfo(dtype)
    smallest = float(info.smallest_subnormal)
    least, most = round(math.log2(smallest)), info.maxexp
    check(neighbours(np.array([2.0**e for e in range(least, most)], dtype)))
    tens = [float(f"1e{e}") for e in range(-400, 400)]
    check(neighbours(np.array([x for x in tens if smallest <= x <= float(info.max)], dtype)))
    check(neighbours(np.array([0, smallest, info.tiny, info.max, info.eps, 1 / 3], dtype)))
    check(neighbours(np.arange(0, 70_000, 37).astype(dtype)))
    check(np.arange(0, 1000, dtype=dtype) * np.dtype(dtype).type(smallest))
    # Whole numbers near 2^24, 2^53, 10^15 and 10^16, and numbers of few digits.
    for base in (2**24, 2**53, 10**15, 10**16, 10**17, 2**63):
        check(neighbours(np.array([base + i for i in range(-50, 50)], dtype)))
    check(np.array([i / 100 for i in range(-2000, 2000)], dtype))
    limits = (np.arange(-50, 50) + np.array([[10**6], [10**15]])).reshape(-1)
    for scale in (1000, 1_000_000):  # up to where other decimals are as short
        for bits in (10, 20, 30, 50):
            integers = np.random.default_rng(7).integers(0, 2**bits, 500)
            check(neighbours((integers / scale).astype(dtype)))
        check(neighbours((limits / scale).astype(dtype)))
    check(np.array([float(f"{m}e{e}") for m in (1, 15, 123456) for e in range(-8, 20)], dtype))
    check(np.array([number for number in SPECIAL_NUMBERS if number <= info.max], dtype))
    # Each number of digits before and after the point.
    check(np.concatenate([np.random.default_rng(7).random(50) * 10.0**e for e in range(-7, 18)]))
    check(random_bits(dtype, 10_000))


def test_shortest_single_that_is_misread_through_a_double() -> None:
    """7.038531e-26 is the shortest text; as a double it is halfway to the next single."""
    number = np.array([0x15AE43FD], np.uint32).view(np.float32)
    assert strtof(b"7.038531e-26", None) == number[0]
    assert np.float32(float("7.038531e-26")) != number[0]
    assert data_text(number) == "7.0385307e-26"
    check_singles(neighbours(number))


INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str) -> None:
    info = np.iinfo(dtype)
    numbers = [sign * 10**e + d for e in range(20) for d in (-1, 0, 1) for sign in (-1, 1)]
    numbers += [2**e + d for e in range(65) for d in (-1, 0, 1)]
    numbers += [info.min, info.min + 1, info.max - 1, info.max, *range(300), *range(9_990, 10_010)]
    inside = [number for number in numbers if info.min <= number <= info.max]
    if info.bits <= 16:
        chosen = np.arange(info.min, info.max + 1).astype(dtype)
    else:
        chosen = np.random.default_rng(3).integers(info.min, info.max, 10_000, dtype, endpoint=True)
    array = np.concatenate([np.array(inside, dtype), chosen])
    assert texts_of(array) == [str(number) for number in array.tolist()]


NUMERIC = ["?", *INTEGERS, "f4", "f8"]


@pytest.mark.parametrize("dtype", NUMERIC)
def test_arrays_of_any_layout(dtype: str) -> None:
    flat = np.array([1, 0, 3, 1, 5, 6], dtype)
    expected = texts_of(flat)
    assert texts_of(flat.reshape(1, 2, 3)) == expected
    assert texts_of(flat.reshape(2, 3).T) == [expected[i] for i in (0, 3, 1, 4, 2, 5)]
    assert texts_of(np.repeat(flat, 2)[::2]) == expected
    assert texts_of(flat.astype(np.dtype(dtype).newbyteorder(">"))) == expected
    assert texts_of(np.array(7, dtype)) == texts_of(np.array([7], dtype))
    for shape in ((0,), (3, 0), (0, 2**40)):
        assert data_text(np.zeros(shape, dtype)) == ""
    memory = np.zeros(flat.nbytes + 1, np.uint8)
    misaligned = memory[1:].view(dtype)
    misaligned[:] = flat
    assert texts_of(misaligned) == expected
    misaligned.flags.writeable = False
    assert texts_of(misaligned) == expected


LONGEST = {"?": 0, "f4": -1.1754943508e-38, "f8": -2.2250738585072014e-308}
LONGEST |= {dtype: np.iinfo(dtype).min or np.iinfo(dtype).max for dtype in INTEGERS}
SIZES = [1, 2, 17, 18, 1023, 1024, 1025, 2048, 2049, 5000, 49_999, 50_000, 50_001, 70_000]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", NUMERIC)
def test_arrays_of_any_size(dtype: str, n: int) -> None:
    """The sizes are near the ends of batches and where the output buffer grows."""
    array = np.full(n, LONGEST[dtype], dtype)
    longest = data_text(array[:1])
    assert len(longest) <= 24
    assert data_text(array) == ",".join([longest] * n)
    array[:1500] = 1
    n_ones = min(n, 1500)
    assert texts_of(array) == texts_of(array[:1]) * n_ones + [longest] * (n - n_ones)


@pytest.mark.thread_unsafe(reason="it measures the process")
def test_memory_for_a_long_array() -> None:
    """The output is written once, and the buffer grows by a bounded factor."""
    array = np.random.default_rng(0).standard_normal(300_000)
    request = tw.InferRequest([tw.Tensor("x", array, binary=False)])
    frame = tw.encode_request(request)
    assert len(frame) > 5_000_000
    assert peak_nbytes(lambda: tw.encode_request(request)) < 1.3 * len(frame)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [5, 60_000])
def test_nan_and_infinities(dtype: str, n: int) -> None:
    array = np.arange(n, dtype=dtype) + np.dtype(dtype).type(0.5)
    array[[-4, -3, -1]] = np.nan, np.inf, -np.inf
    finite, last = texts_of(array[:-4]), f"{n - 2}.5"
    assert texts_of(array) == [*finite, "null", "null", last, "null"]
    assert texts_of(array, nonfinite="literal") == [*finite, "NaN", "Infinity", last, "-Infinity"]
    advice = (
        ": pass nonfinite='literal' to send a literal, which Triton reads, or nonfinite='null' to "
        "send null, which is read as NaN"
    )
    for element, value, nonfinite, end in (
        *((n - 4, np.nan, "error", ""), (n - 3, np.inf, None, advice)),
        (n - 1, -np.inf, None, advice),
    ):
        with pytest.raises(tw.EncodeError) as caught:
            data_text(array, nonfinite=nonfinite)
        assert str(caught.value) == (
            f"element {element} of input 'x' is {value}, which JSON cannot represent{end}"
        )
        assert (caught.value.tensor, caught.value.element) == ("x", element)
        if nonfinite is None:
            array[element] = np.nan
    response = tw.InferResponse([tw.Tensor("x", array, binary=False)])
    assert header_of(tw.encode_response(response))["outputs"][0]["data"][-4:-1] == [
        *(None, None, n - 1.5)
    ]
    with pytest.raises(tw.EncodeError, match=rf"^element {n - 4} of output 'x' is nan, .*t$"):
        tw.encode_response(response, nonfinite="error")


def test_values_modified_while_they_are_written() -> None:
    array = np.zeros(200_000, np.int64)

    def change() -> None:
        array[:] = -(2**63)
        array[:] = 1

    with repeating(change):
        for _ in range(5):
            found = set(json.loads(f"[{data_text(array)}]"))
            assert found <= {0, 1, -(2**63)}


# --- BYTES as JSON ---


def forms(elements: list[bytes]) -> Iterator[Any]:
    """Return BYTES in each form that the writer reads."""
    yield elements
    yield tw.Tensor("x", elements, datatype="BYTES").data  # just encoded, without offsets
    yield tw.decode_bytes(tw.encode_bytes(elements))
    if all(is_utf8(element) for element in elements):
        yield [element.decode() for element in elements]


def strings(elements: list[bytes]) -> None:
    for data in forms(elements):
        text = sent(tw.Tensor("x", data, datatype="BYTES", binary=False))
        for read in (json.loads, msgspec.json.decode):
            (entry,) = read(text)["inputs"]
            assert entry["data"] == [element.decode() for element in elements]


@pytest.mark.parametrize("n_before", [0, 1, 255, 256, 700, 1000])
def test_elements_that_are_not_utf8_have_no_json_form(n_before: int) -> None:
    for data in forms([b"fine"] * n_before + [b"\xff\xfe", b"fine"]):
        with pytest.raises(tw.EncodeError) as caught:
            sent(tw.Tensor("x", data, binary=False))
        assert str(caught.value) == (
            f"element {n_before} of input 'x' is not valid UTF-8, and can only be sent as binary "
            "data"
        )
        assert (caught.value.element, caught.value.status) == (n_before, 400)


@pytest.mark.parametrize(
    "elements",
    [
        *(
            [text, b"", text]
            for text in (b"x" * 3_000_000, b'"' * 1_500_000, b"\x01\xc3\xa9" * 500_000)
        ),
        *([], [b"%d" % i for i in range(300_000)]),
        # The escapes fill the memory to different degrees before plain text.
        *(
            [b"\x01" * n_escapes, *[b"x" * n_characters] * 400]
            for n_characters in (0, 1, 15, 16, 63)
            for n_escapes in range(3_000, 3_012)
        ),
    ],
    ids=lambda elements: f"{len(elements)} elements",
)
def test_long_elements_and_many_elements(elements: list[bytes]) -> None:
    strings(elements)


# Characters that take 1, 2 or 4 bytes in a str, and up to 4 bytes of UTF-8.
WIDTHS = ["a", "é", "天", "\U0001f600"]


@pytest.mark.parametrize("widest", WIDTHS)
def test_str_of_each_width(widest: str) -> None:
    """Also around the sizes in which a str is written piece by piece."""
    lengths = [*range(70), *range(250, 265), *range(505, 520), *range(1015, 1035), 2500]
    for other in ["x", "é", '"', "\\", "\0", "\x7f"]:
        if other <= widest:
            strings([f"{other * n}{widest}".encode() for n in lengths])
            strings([f"{widest}{other * n}{widest * (n % 7)}".encode() for n in lengths])


def test_values_that_are_kept_cannot_change() -> None:
    values: list[Any] = ["a", "b"]
    array = np.array(values, object)
    buffer = bytearray(b"b")  # it can change, and is therefore copied
    tensors = [tw.Tensor("x", data, binary=False) for data in (values, array, ["a", buffer])]
    values[0] = array[0] = "c"
    buffer[:] = b"longer"
    for tensor in tensors:
        assert json.loads(sent(tensor))["inputs"][0]["data"] == ["a", "b"]


# --- parameters ---


class Text(str):
    pass


class Whole(int):
    def __repr__(self) -> str:
        return "not this"


class Real(float):
    def __repr__(self) -> str:
        return "not this"


class Level(IntEnum):
    HIGH = 3


class Color(Enum):
    RED = 1


REORDERED = OrderedDict(a=1, b=2)
REORDERED.move_to_end("a")  # the dict itself keeps its order


def parameter_text(value: Any) -> str:
    x, parameters = tw.Tensor("x", X), {"k": value}
    requests = [
        tw.InferRequest([x], parameters=parameters),
        tw.InferRequest([x.replace(parameters=parameters)]),
        tw.InferRequest([x], [tw.RequestedOutput("y", parameters=parameters)]),
    ]
    frames = [tw.encode_request(request, nonfinite="null") for request in requests]
    texts = [bytes(frame.buffers[0]).decode().partition('{"k":')[2] for frame in frames]
    ends = ["}}", ',"binary_data_size":8}}]}', "}}]}"]
    (found,) = {text.rstrip(" ").removesuffix(end) for text, end in zip(texts, ends, strict=True)}
    return found


AS_JSON: list[Any] = [
    *(10**4000, 5e-324, 1.7976931348623157e308, "".join(map(chr, range(0x100))), "é" * 2000),
    *((), (1, "2")),
    *(OrderedDict(a=1, b=2), defaultdict(list, a=[1]), Text("t"), Level.HIGH),
]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(
            (value, json.dumps(value, ensure_ascii=False, separators=(",", ":")))
            for value in AS_JSON
        ),
        *((math.nan, "null"), (math.inf, "null"), (-math.inf, "null")),
        *((np.float64(0.1), "0.1"), (np.float32(0.5), "0.5"), (np.float16(2), "2.0")),
        *((np.int64(-3), "-3"), (np.uint64(2**64 - 1), "18446744073709551615")),
        *((np.bool_(True), "true"), (np.str_("é"), '"é"'), (np.float32("nan"), "null")),
        *((Whole(7), "7"), (Whole(2**70), str(2**70)), (Real(1.5), "1.5")),
        ({Text("k"): [Text("v")]}, '{"k":["v"]}'),
        (REORDERED, '{"b":2,"a":1}'),
    ],
)
def test_parameters(value: Any, text: str) -> None:
    assert parameter_text(value) == text


@pytest.mark.parametrize(
    "value",
    [
        *(object(), 1j, iter([1]), {1}, b"bytes", bytearray(b"b"), Color.RED, Decimal(1)),
        *(np.zeros(2), np.longdouble(1), np.zeros(1, np.complex64)[0], np.datetime64(0, "s")),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [{"l": (value,)}]])
@pytest.mark.parametrize("place", ["tensor: a value", "output: a value", "message: a value"])
def test_parameter_of_unsupported_type_is_rejected(place: str, wrap: Any, value: Any) -> None:
    message = f"parameter 'k' of .* contains an object of type {type(value).__name__}, which JSON"
    with pytest.raises(TypeError, match=message):
        request_with(wrap(value), place)


@pytest.mark.parametrize("key", [1, 1.5, None, True, (), b"b"])
def test_key_that_is_not_a_str_is_rejected(key: Any) -> None:
    for place in ("tensor", "output", "message"):
        with pytest.raises(TypeError, match=r"the names of the parameters of .* must be str, not"):
            request_with(key, f"{place}: a key")
        with pytest.raises(TypeError, match=r"the keys in parameter 'k' of .* must be str, not"):
            request_with(key, f"{place}: a key within")


@pytest.mark.parametrize(("place", "around"), [("message", 2), ("tensor", 4), ("output", 4)])
def test_nesting_up_to_the_limit_of_the_decoder(place: str, around: int) -> None:
    most = tw.Limits().max_nesting
    for nest in (lambda value: [value], lambda value: {"l": value}, lambda value: (value,)):
        value: Any = 1
        for _ in range(most - around):
            value = nest(value)
        frame = tw.encode_request(request_with(value, f"{place}: a value"))
        tw.decode_request(bytes(frame), frame.header_length)
        with pytest.raises(tw.EncodeError) as caught:
            tw.encode_request(request_with(nest(value), f"{place}: a value"))
        assert (caught.value.expected, caught.value.actual) == (most, most + 1)
        assert str(caught.value) == (
            "the header is nested too deeply: parameter 'k' contains lists or objects on level "
            "129; the limit is 128"
        )
        assert caught.value.tensor == {"tensor": "x", "output": "y"}.get(place)


# --- the memory of a text ---


PAGE_FAULTS = """
import resource, sys
import tensorwire as tw

words = ["%06d\\n" % i * 90 for i in range(10_000)]
request = tw.InferRequest([tw.Tensor("x", words, binary=False)])
text = bytes(tw.encode_request(request))
call = {"write": lambda: tw.encode_request(request), "read": lambda: tw.decode_request(text)}
for i in range(7):
    if i == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call[sys.argv[1]]()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 5)
"""


@pytest.mark.no_sanitizers(reason="they replace malloc")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries return all memory")
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="this Python does not use malloc"
)
@pytest.mark.parametrize("function", ["write", "read"])
def test_json_texts_reuse_the_memory_of_the_last_one(function: str) -> None:
    """A text of 6 MB has 1,465 pages. The kernel would have to provide all of them each time."""
    done = run_script(PAGE_FAULTS, function)
    assert float(done.stdout) < 100, done.stderr


@pytest.mark.thread_unsafe(reason="it measures memory")
def test_text_that_becomes_much_shorter_is_shrunk() -> None:
    """Room for the longest possible text is only kept while it is written."""
    n = 1_000_000
    texts = '"%s"' % ("\\u0061" * n)
    tensor = f'{{"name":"x","shape":[1],"datatype":"BYTES","data":[{texts}]}}'
    body = f'{{"inputs":[{tensor}]}}'.encode()
    tracemalloc.start()
    decoded = tw.decode_request(body)
    nbytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n < nbytes < 1.1 * n
    assert decoded["x"].elements.element(0) == b"a" * n
