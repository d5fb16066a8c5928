"""Messages that are expensive to decode: time must be linear, and memory within a multiple.

The multiples are those of WIRE.md, sections 11 and 12. In addition to the body, decoding may take 4
times the bytes of the JSON, 64 times the bytes of JSON that becomes Python objects (parameters, and
the entries of tensors and requested outputs), and twice the bytes of BYTES tensors. Of gRPC
messages, the memory of arrays counts, but raw contents do not: they are views. The multiples are
compared with the memory that Python and numpy allocate (tracemalloc), and with the resident set
size.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tensorwire as tw
import tensorwire.grpc
from support import grpc_cases, reference
from support.memory import cpu_seconds, peak_nbytes, status_nbytes
from support.protobuf_wire import delimited, group, integer, nested_groups
from tensorwire.server import read_request

pytestmark = pytest.mark.thread_unsafe(reason="it measures the process")

JSON_MULTIPLE, OBJECTS_MULTIPLE, BYTES_MULTIPLE = 4, 64, 2
VIEWS, ARRAYS, TEXT = 0, 8, 4  # multiples of gRPC messages
SLACK_NBYTES = 64 << 10
RSS_SLACK_NBYTES = 4 << 20  # allocators request and keep whole arenas

GENEROUS = tw.Limits(max_tensors=1 << 40, max_name_nbytes=1 << 40)
Message = tuple[bytes, int | None]

ONE = '{"name":"x","shape":[1],"datatype":"%s","data":[%s]}'
NONE = '{"name":"x","shape":[0],"datatype":"FP32","data":[%s]}'


def text(json_text: str) -> Message:
    return json_text.encode(), None


def request(tensor: str, more: str = "") -> Message:
    return text(f'{{"inputs":[{tensor}]{more}}}')


def repeated(unit: str, nbytes: int) -> str:
    """Return `unit` repeated with commas in between, about `nbytes` long."""
    return ",".join([unit] * (nbytes // (len(unit.encode()) + 1)))


def data(unit: str, nbytes: int) -> Message:
    return request(NONE % repeated(unit, nbytes))


def parameter(unit: str, nbytes: int) -> Message:
    return request(NONE % "", f',"parameters":{{"p":[{repeated(unit, nbytes)}]}}')


def keys(key: str, nbytes: int) -> Message:
    return request(NONE % "", f',"parameters":{{{repeated(key, nbytes)}}}')


def different_parameters(nbytes: int) -> Message:
    members = ",".join(f'"{i:06d}":{i}' for i in range(nbytes // 16))
    return request(NONE % "", f',"parameters":{{{members}}}')


def outputs(nbytes: int) -> Message:
    entries = ",".join(f'{{"name":"{i:06d}"}}' for i in range(nbytes // 18))
    return request(ONE % ("INT8", 1), f',"outputs":[{entries}]')


def empty_tensors(nbytes: int) -> Message:
    entry = '{"name":"%07d","shape":[0],"datatype":"FP32","parameters":{"binary_data_size":0}}'
    return request(",".join(entry % i for i in range(nbytes // 84)))


def overflowing(nbytes: int) -> Message:
    """Return a shape in shared memory whose product exceeds 2^63 at each step."""
    region = '"parameters":{"shared_memory_region":"r"}'
    shape = repeated(str(2**62), 1260)
    return request(f'{{"name":"x","shape":[{shape}],"datatype":"FP64",{region}}}', " " * nbytes)


def long_shape(nbytes: int) -> Message:
    shape = repeated(str(2**62), nbytes)
    return request(f'{{"name":"x","shape":[{shape}],"datatype":"FP32","data":[]}}')


def elements(nbytes: int, last: bytes = b"") -> Message:
    n = nbytes // 4
    size = {"binary_data_size": 4 * n}
    tensor = {"name": "x", "shape": [n], "datatype": "BYTES", "parameters": size}
    return reference.message({"inputs": [tensor]}, bytes(4 * n - len(last)) + last)


def filled(datatype: str, unit: str, is_early: bool = False) -> Callable[[int], Message]:
    """Return a function that makes a tensor of about `nbytes` whose data fits its shape.

    The data is the first member of its entry if `is_early`.
    """

    def make(nbytes: int) -> Message:
        data = f'"data":[{repeated(unit, nbytes - 200)}]'
        head = f'"name":"x","shape":[{data.count(",") + 1}],"datatype":"{datatype}"'
        return request(f"{{{data},{head}}}" if is_early else f"{{{head},{data}}}")

    return make


def unknown(unit: str) -> Callable[[int], Message]:
    return lambda nbytes: request(ONE % ("INT8", 1), f',"z":[{repeated(unit, nbytes - 200)}]')


def unknown_members(key: str, nbytes_each: int) -> Callable[[int], Message]:
    """Return an object of distinct keys, in an order that is neither sorted nor reversed."""

    def make(nbytes: int) -> Message:
        n = (nbytes - 200) // nbytes_each
        while n % 7919 == 0:
            n -= 1
        members = ",".join([f'"{key}{i * 7919 % n:07d}":0' for i in range(n)])
        return request(ONE % ("INT8", 1), f',"z":{{{members}}}')

    return make


def deep(opening: str) -> Callable[[int], Message]:
    return lambda nbytes: text(opening * (nbytes // len(opening)))


def number(datatype: str, digits: Callable[[int], str]) -> Callable[[int], Message]:
    return lambda nbytes: request(ONE % (datatype, digits(nbytes)))


MB = 1_000_000
OBJECTS = 400_000  # size of messages with an object every few bytes
NESTED_LISTS = "[" * 100 + "]" * 100
NESTED_OBJECTS = '{"":' * 100 + "0" + "}" * 100
# Messages whose parameters or entries become Python objects.
OBJECTS_MADE = (
    *("100,000 empty tensors", "requested outputs", "different parameters"),
    *("nested lists, parameters", "nested objects", "objects of one member"),
    *("numbers in parameters", "strings in parameters", "integers of 4000 digits, parameters"),
)
# name: a function that creates a message of n bytes, and n
HOSTILE: dict[str, tuple[Callable[[int], Message], int]] = {
    "2 MB of [": (deep("["), 2 * MB),
    '2 MB of {"":': (deep('{"":'), 2 * MB),
    "2 MB of [ as inputs": (lambda n: text('{"inputs":' + "[" * n), 2 * MB),
    "2 MB of [ in an unknown member": (lambda n: text('{"z":' + "[" * n), 2 * MB),
    "2 MB of [ after the end": (lambda n: request(ONE % ("INT8", 1), "}" + "[" * n), 2 * MB),
    "100,000 empty tensors": (empty_tensors, 84 * 100_000),
    "10,000,000 empty elements": (elements, 40 * MB),
    "10,000,000 elements, the last truncated": (lambda n: elements(n, b"\1\0\0\0"), 40 * MB),
    "products that overflow": (overflowing, 2 * MB),
    "a shape of 100,000 dimensions": (long_shape, 2 * MB),
    "1,000,000 equal keys": (lambda n: text("{" + repeated('"a":1', n) + "}"), 6 * MB),
    "1,000,000 equal parameters": (lambda n: keys('"a":1', n), 6 * MB),
    "1,000,000 members inputs": (lambda n: text("{" + repeated('"inputs":[]', n) + "}"), 12 * MB),
    "different parameters": (different_parameters, OBJECTS),
    **{f"1,000,000 digits, {name} {datatype}": (number(datatype, digits), MB)
       for datatype in ("FP64", "INT64")
       for name, digits in (
           ("integer", lambda n: "9" * n), ("negative", lambda n: "-" + "9" * n),
           ("fraction", lambda n: "0." + "9" * n), ("exponent", lambda n: "1e" + "9" * n),
           ("zeros", lambda n: "0." + "0" * n + "1"))},
    "1,000,000 digits, a dimension": (lambda n: request(
        f'{{"name":"x","shape":[{"9" * n}],"datatype":"INT8","data":[]}}'), MB),
    "1,000,000 digits, a size": (lambda n: request(
        '{"name":"x","shape":[1],"datatype":"INT8","parameters":{"binary_data_size":%s}}'
        % ("9" * n)), MB),
    "integers of 4000 digits": (lambda n: data("9" * 4000, n), OBJECTS),
    "empty lists": (lambda n: data("[]", n), OBJECTS),
    "lists of one item": (lambda n: data("[0]", n), OBJECTS),
    "nested lists": (lambda n: data(NESTED_LISTS[2:-2], n), OBJECTS),
    "nested lists, parameters": (lambda n: parameter(NESTED_LISTS, n), OBJECTS),
    "nested objects": (lambda n: parameter(NESTED_OBJECTS, n), OBJECTS),
    "objects of one member": (lambda n: parameter('{"":0}', n), OBJECTS),
    "numbers in parameters": (lambda n: parameter("300", n), OBJECTS),
    "strings in parameters": (lambda n: parameter('"ab"', n), OBJECTS),
    "integers of 4000 digits, parameters": (lambda n: parameter("9" * 4000, n), OBJECTS),
    "NaN": (lambda n: data("NaN", n), OBJECTS),
    "floats": (lambda n: data("1.5", n), OBJECTS),
    "integers": (lambda n: data("300", n), OBJECTS),
    "strings": (lambda n: request(NONE.replace("FP32", "BYTES") % repeated('"a\u20ac"', n)),
                OBJECTS),
    "a name of escapes": (lambda n: request(
        (ONE % ("INT8", 1)).replace('"x"', '"' + r"\u0041" * (n // 6) + '"')), 2 * MB),
    "a long string": (lambda n: request(ONE % ("BYTES", '"' + "a" * n + '"')), 2 * MB),
    "a string without end": (lambda n: text('{"inputs":["' + "a" * n), 2 * MB),
    "white space": (lambda n: request(ONE % ("INT8", 1), " " * n), 2 * MB),
    "long error response": (lambda n: text('{"error":"%s"}' % ("e" * n)), 2 * MB),
    "requested outputs": (outputs, 2 * MB),
    "an unknown datatype": (lambda n: request(ONE % ("A" * n, 1)), 2 * MB),
    "numbers of one digit": (filled("FP64", "0"), OBJECTS),
    "numbers of one digit before the datatype": (filled("FP64", "0", is_early=True), OBJECTS),
    "numbers of 25 digits": (filled("FP32", "0.5431234567890123456789012"), OBJECTS),
    "strings with escapes": (filled("BYTES", r'"\n\u20ac"'), OBJECTS),
    "empty strings": (filled("BYTES", '""'), OBJECTS),
    "skipped numbers": (unknown("0"), OBJECTS),
    "skipped nested lists": (unknown(NESTED_LISTS), OBJECTS),
    "skipped nested objects": (unknown(NESTED_OBJECTS), OBJECTS),
    "different keys": (unknown_members("", 12), MB),
    "keys of a long common prefix": (unknown_members("k" * 1000, 1012), 8 * MB),
    "escaped keys": (unknown_members("\\u0061", 18), MB),
    "a name of wide characters": (lambda n: request(
        (ONE % ("INT8", 1)).replace('"x"', '"' + "a" * (n - 300) + r'\ud83d\ude00"')), 2 * MB),
    "an error of wide characters": (lambda n: text(
        '{"error":"' + "a" * (n - 300) + '\U0001f600"}'), 2 * MB),
}  # fmt: skip


# --- gRPC messages ---


def typed(datatype: str, field: bytes, n_elements: int) -> Callable[[int], bytes]:
    """Return a function that makes typed contents of one field, repeated."""

    def make(nbytes: int) -> bytes:
        n = nbytes // len(field)
        return grpc_cases.typed("x", datatype, (n * n_elements,), field * n)

    return make


def empty(*more: bytes, name: str = "x") -> bytes:
    """Return a tensor without elements, with more fields."""
    return grpc_cases.tensor(name, "INT8", (0,), *more)


KEY = grpc_cases.KEY
# name: a function that makes a message of n bytes, and the multiple
GRPC: dict[str, tuple[Callable[[int], bytes], int]] = {
    "unknown fields": (lambda n: integer(9, 0) * (n // 2), VIEWS),
    "unknown fields of an input": (lambda n: empty(integer(9, 0) * (n // 2)), VIEWS),
    "groups": (lambda n: nested_groups(99) * (n // 198), VIEWS),
    "starts of groups": (lambda n: b"\x4b" * n, VIEWS),
    "small groups": (lambda n: group(9) * (n // 2), VIEWS),
    "empty contents": (lambda n: empty(delimited(5) * (n // 2)), VIEWS),
    "a shape of 400,000 dimensions": (
        lambda n: grpc_cases.tensor("x", "INT8", (), delimited(3, b"\1" * n)), VIEWS),
    "names of one tensor": (lambda n: empty(delimited(1, "y") * (n // 3)), VIEWS),
    "a long name": (lambda n: empty(name="x" * n), TEXT),
    "a long name of wide letters": (lambda n: empty(name="x" * n + "\U0001f600"), 2 * TEXT),
    "a long datatype": (lambda n: grpc_cases.tensor("x", "A" * n), TEXT),
    "parameters": (lambda n: KEY * (n // len(KEY)), OBJECTS_MULTIPLE),
    "empty entries of parameters": (lambda n: delimited(4) * (n // 2), OBJECTS_MULTIPLE),
    "raw contents": (lambda n: delimited(7) * (n // 2), OBJECTS_MULTIPLE),
    "empty tensors": (
        lambda n: b"".join(empty(name=f"{i:07d}") for i in range(n // 21)), OBJECTS_MULTIPLE),
    "requested outputs": (
        lambda n: empty() + b"".join(
            delimited(6, delimited(1, f"{i:07d}")) for i in range(n // 11)),
        OBJECTS_MULTIPLE),
    "integers": (typed("INT64", delimited(3, b"\1" * 100), 100), ARRAYS),
    "integers that are not packed": (typed("INT64", integer(3, 1), 1), ARRAYS),
    "empty texts": (typed("BYTES", delimited(8), 1), ARRAYS),
    "fewer elements than the shape": (
        lambda n: grpc_cases.typed("x", "INT64", (n + 1,), delimited(3, b"\1" * n)), ARRAYS),
    "fewer bytes than the shape has elements": (
        lambda n: grpc_cases.typed("x", "INT64", (n + 9,), delimited(3, b"\1" * n)), VIEWS),
    "a text and unknown fields": (
        lambda n: grpc_cases.typed("x", "BYTES", (1,), integer(9, 0) * (n // 2), delimited(8)), 2),
    "the last element out of range": (
        lambda n: grpc_cases.typed("x", "INT8", (n + 1,), delimited(2, b"\1" * n, b"\x80\1")), 1),
}  # fmt: skip


def decode(message: Message) -> str:
    """Return the text of a DecodeError, or ""."""
    try:
        tw.decode_request(*message, limits=GENEROUS)
    except tw.DecodeError as error:
        return str(error)
    return ""


def decode_grpc(message: bytes) -> str:
    """Return the text of a DecodeError, or "". The views of a message are scanned, too."""
    try:
        for tensor in tw.grpc.decode_request(message, limits=GENEROUS).inputs:
            if isinstance(tensor.data, tw.BytesArray) and tensor.data.size:
                tensor.data.element(0)
    except tw.DecodeError as error:
        return str(error)
    return ""


def allowed_nbytes(message: Message, multiple: int = JSON_MULTIPLE) -> int:
    body, length = message
    header_nbytes = len(body) if length is None else length
    return multiple * header_nbytes + BYTES_MULTIPLE * (len(body) - header_nbytes)


def check_time_and_memory(decode: Callable[[Any], str], sizes: Any, allowed: int) -> float:
    """Decode a quarter of a message and the whole message, and return the time of the second."""
    quarter, whole = sizes
    decode(quarter)
    assert peak_nbytes(lambda: decode(whole)) <= allowed + SLACK_NBYTES
    assert len(decode(whole)) < 700  # the message does not repeat the input
    gc.collect()
    seconds = [cpu_seconds(partial(decode, body), 3) for body in (quarter, whole)]
    assert seconds[1] < 4 * 2.5 * seconds[0] + 2e-3
    return seconds[1]


@pytest.mark.parametrize("name", HOSTILE)
def test_decoding_time_is_linear_and_memory_bounded(name: str) -> None:
    make, nbytes = HOSTILE[name]
    multiple = OBJECTS_MULTIPLE if name in OBJECTS_MADE else JSON_MULTIPLE
    whole = make(nbytes)
    check_time_and_memory(decode, (make(nbytes // 4), whole), allowed_nbytes(whole, multiple))
    with_resident_peak(whole, multiple)


@pytest.mark.no_sanitizers(reason="it measures time and memory")
@pytest.mark.parametrize(("make", "multiple"), GRPC.values(), ids=GRPC)
def test_grpc_decoding_is_linear_and_memory_bounded(
    make: Callable[[int], bytes], multiple: int
) -> None:
    whole = make(OBJECTS)
    sizes = make(OBJECTS // 4), whole
    seconds = check_time_and_memory(decode_grpc, sizes, multiple * len(whole))
    assert seconds < 100e-9 * len(whole)


def with_resident_peak(message: Message, multiple: int) -> None:
    """Check the peak resident set size of the process as well, on Linux."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists() or "libasan" in os.environ.get("LD_PRELOAD", ""):
        return  # ASan has its own allocator
    before = status_nbytes("VmRSS")
    reset.write_text("5")  # resets VmHWM
    decode(message)
    allowed = allowed_nbytes(message, multiple)
    assert status_nbytes("VmHWM") - before <= allowed + RSS_SLACK_NBYTES


def test_raw_requests_and_responses() -> None:
    spec = tw.TensorSpec("x", "BOOL", [-1])
    body, deep = bytes(20 * MB) + b"\2", b'{"outputs":' + b"[" * MB

    def work() -> None:
        with pytest.raises(tw.ElementError, match="element 20000000 of input 'x'"):
            tw.decode_request(body, 0, raw_input=spec)
        with pytest.raises(tw.HeaderError):
            tw.decode_response(deep)

    assert peak_nbytes(work) < len(deep) + SLACK_NBYTES


def test_compressed_body_in_one_chunk() -> None:
    """Some servers deliver it in one chunk; decompression must not copy the rest at each step."""

    def seconds(nbytes: int) -> float:
        body = zlib.compress(bytes(nbytes), 0)
        scope = {"headers": [(b"content-encoding", b"deflate")]}
        scope["headers"].append((b"inference-header-content-length", b"0"))
        spec = tw.TensorSpec("x", "UINT8", [-1])

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        before = time.thread_time()
        asyncio.run(read_request(scope, receive, raw_input=spec))
        return time.thread_time() - before

    assert min(seconds(64 << 20) for _ in range(2)) < 8 * 3 * seconds(8 << 20) + 0.01
