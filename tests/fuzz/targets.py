"""The fuzz targets: functions of bytes that raise an exception if a property does not hold.

Those of RAW read their bytes directly, so that each execution takes little time and libFuzzer
changes the message itself. The others are the properties of test_properties.py, whose inputs are
the choices that hypothesis makes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import test_properties
from fuzz import grpc_judge
from fuzz.headers import check_header_length
from fuzz.messages import check_elements, check_message, check_raw_request
from support.grpc_strategies import KINDS
from support.strategies import SPECS

SPLIT = b"\xfe\xff"  # between the JSON of a message and its binary data
RAW_FORM = 7
LENGTHS: tuple[Callable[[int], Any], ...] = (  # the forms of a header length
    lambda n: n,
    str,
    lambda n: str(n).encode(),
    lambda n: f"{n:020}",
    lambda n: f"+{n}",
    lambda n: f"{n}, {n}",
    lambda n: -n,
    lambda n: "0",
)


def message(kind: str, data: bytes) -> None:
    """Check a message: the form of its length and options, a specification, JSON, binary data."""
    front, body = data[:2].ljust(2, b"\0"), data[2:]
    text, split, blob = body.partition(SPLIT)
    form, options = front[0] % 8, front[0] >> 3
    if form == RAW_FORM and kind == "request":
        check_raw_request(SPECS[front[1] % len(SPECS)], body, "0", options)
        return
    length = LENGTHS[form](len(text)) if split or form else None
    check_message(kind, text + blob, length, options)


def decode_bytes(data: bytes) -> None:
    """Check elements: a byte for the form of their number, two for the number, the elements."""
    choices, count = data[:1].ljust(1, b"\0")[0], int.from_bytes(data[1:3], "little")
    check_elements(data[3:], None if choices & 1 else count << 40 if choices & 2 else count)


def header_length(data: bytes) -> None:
    """Check HTTP headers: a byte for their form, and lines of `name:value`."""
    pairs = [line.partition(b":")[::2] for line in data[1:].split(b"\n") if line]
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
    check_header_length(fields, data[0] % 4 if data else 0)


def grpc(data: bytes) -> None:
    """Check a gRPC message: a byte for its kind and options, and the message."""
    choices = data[:1].ljust(1, b"\0")[0]
    grpc_judge.compare(KINDS[choices % 4], data[1:], choices >> 2)


RAW: dict[str, Callable[[bytes], None]] = {
    "request": partial(message, "request"),
    "response": partial(message, "response"),
    **{target.__name__: target for target in (decode_bytes, header_length, grpc)},
}
PROPERTIES: dict[str, Callable[[bytes], Any]] = {
    name.removeprefix("test_") + "_property": test.hypothesis.fuzz_one_input
    for name, test in vars(test_properties).items()
    if hasattr(test, "hypothesis")
}
TARGETS = {**RAW, **PROPERTIES}
