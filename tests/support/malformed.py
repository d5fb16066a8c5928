"""Tables of malformed messages, with the expected class of error."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from typing import Any

from support import reference
from support.case_types import (
    INTEGERS,
    KINDS,
    KSERVE_ALL_BINARY,
    KSERVE_REQUEST,
    KSERVE_RESPONSE,
    Kind,
    Malformed,
    RawMalformed,
    output,
)
from support.error_messages import MESSAGES

HEADER, LAYOUT, ELEMENT, ANY = "HeaderError", "LayoutError", "ElementError", "DecodeError"
BLOB = reference.pack("FP32", [1.0, 2.0])
GOOD, _ = reference.request([reference.entry("IN0", "FP32", [2], [1.0, 2.0])])
N = len(GOOD) - len(BLOB)
BLANK, _ = reference.request([reference.entry("x", "UINT8", [2], b" 1")])


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the header with changed members; `...` removes a member."""
    return {key: value for key, value in (base | changes).items() if value is not ...}


def one(**changes: Any) -> dict[str, Any]:
    """Return a valid JSON tensor with these changes."""
    return changed({"name": "x", "shape": [1], "datatype": "INT32", "data": [7]}, changes)


def sized(size: object, **changes: Any) -> dict[str, Any]:
    """Return a binary tensor FP32 [2], whose correct size is 8, with these changes."""
    good = {"shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    return one(data=...) | good | changes


def case(
    id: str,
    error: str,
    /,
    *tensors: object,
    body: bytes = b"",
    kind: Kind = "request",
    differs: str = "",
    **members: Any,
) -> Malformed:
    """Return a message with these JSON tensors and members. The header length is correct."""
    header = {"inputs" if kind == "request" else "outputs": tensors}
    whole, header_length = reference.message(changed(header, members), body)
    return Malformed(id, kind, whole, header_length, error, differs=differs)


def text(id: str, error: str, body: str | bytes, differs: str = "") -> Malformed:
    """Return a request with this JSON text and no binary data."""
    whole = body.encode() if isinstance(body, str) else body
    return Malformed(id, "request", whole, None, error, differs=differs)


def data(id: str, error: str, datatype: str, n: int, data: str, *, differs: str = "") -> Malformed:
    """Return a request of one tensor whose JSON `data` is given literally."""
    head = json.dumps(one(shape=[n], datatype=datatype, data=...))
    return text(id, error, f'{{"inputs":[{head[:-1]},"data":{data}}}]}}', differs)


def binary(
    id: str, error: str, datatype: str, shape: list[int], blob: bytes, **more: Any
) -> Malformed:
    """Return a request of one binary tensor whose declared size is that of its bytes."""
    return case(id, error, sized(len(blob), datatype=datatype, shape=shape), body=blob, **more)


STRICT = "Triton reads the leading digits (section 1)"
RAW = "Triton reads 0 and treats the body as a raw request"
LENGTHS = tuple(
    Malformed(f"{id} header length {value!r:.20}", "request", GOOD, value, HEADER, "", differs)
    for id, differs, values in (
        ("B6", "", (-1, "-1", -(2**63))),
        ("B7", "", (len(GOOD) + 1, str(len(GOOD) + 1))),
        ("HEAD1", "", (2**64 + N, "99999999999", "9" * 5000)),
        ("21 digits", "Triton reads the number", (f"{N:021}",)),
        ("B8", RAW, ("abc", b"abc")),
        ("B9", STRICT, (f"{N}junk", f"{N}.0", f"{N}, {N}, x", f"{N}e0")),
        ("B10", STRICT, (f"+{N}", f"\v{N}", f"{N}\n", f"{N}\n".encode())),
        ("B11", RAW, ("0x5", "-0")),
        ("B12", RAW, ("", b"")),
        ("B13 B14", "", (N + 1, N - 1)),  # neither a NUL nor an incomplete object is valid JSON
        ("OVMS", "", ("-15", b"value")),
        # texts that int() or str.isdigit() accepts
        ("lenient", "", (f"{N // 10}_{N % 10}", "".join(chr(0x660 + int(d)) for d in str(N)), "²")),
    )
    for value in values
)

TWICE = "Triton uses the first"
BASE = json.dumps({"inputs": [one()]})
FLOATS = BASE.replace("INT32", "FP32").replace("7", "NaN")  # with a NaN, which is not JSON
DEEP = "[" * 128 + "]" * 128  # in a member of the root, which is the first level
UNBOUNDED = "Triton limits only the nesting of data"
PARSED = (
    text("B1 no header length, the bytes begin with NUL", HEADER, GOOD),
    text("B2 no header length, the bytes begin with A", HEADER, GOOD[:N] + b"ABCDEFGH"),
    text("B16 padded with NUL", HEADER, BASE + "\0\0", "RapidJSON stops at a NUL"),
    text("C30 truncated JSON", HEADER, BASE[:-1]),
    *(text(f"C31 root {root}", HEADER, root) for root in ("[]", "1", '"inputs"', "null")),
    text("R7 empty body, no header length", HEADER, "", "Triton treats it as a raw request"),
    Malformed("header length 0 in a response", "response", GOOD, 0, HEADER),
    text("only white space", HEADER, " \n"),
    *(text(f"multipart {start!r}", HEADER, f"{start}b\r\nContent-Disposition: form-data\r\n\r\n")
      for start in ("--", "\r\n--")),
    text("two hyphens", HEADER, "--"),
    text("OVMS empty object", HEADER, "{}"),
    *(text(f"J22 trailing {tail!r}", HEADER, BASE + tail)
      for tail in ("x", "{}", "//", "\xa0", "       x", "        x")),
    *(text(f"J23 {encoding}, NaN {'NaN' in body}", HEADER, body.encode(encoding),
           "RapidJSON skips a byte order mark of UTF-8")
      for encoding in ("utf-8-sig", "utf-16", "utf-16-le") for body in (BASE, FLOATS)),
    text("Y17 Latin-1", HEADER, BASE.replace("x", "\xe9").encode("latin-1"), "passed through"),
    text("Y17 Latin-1 in BYTES", HEADER, BASE.replace("INT32", "BYTES").replace("7", '"\xff"')
         .encode("latin-1"), "passed through"),
    text("a control character in a name", HEADER, BASE.replace("x", "\n")),
    text("Y16 a surrogate in a name", ANY, BASE.replace("x", r"\ud800")),
    *(text(f"J24 {member} twice", HEADER, body, TWICE) for member, body in (
        ("inputs", BASE.replace("{", '{"inputs":[],', 1)),
        ("name", BASE.replace('"name"', '"name":"x","name"')),
        ("shape", BASE.replace('"data"', '"shape":[1],"data"')),
        ("data", BASE.replace('"data"', '"data":[7],"data"')),
        ("escaped name", BASE.replace('"name"', r'"name":"x","n\u0061me"')),
        *((member, BASE.replace('"data"', f'"{member}":null,"{member}":null,"data"'))
          for member in ("datatype", "parameters")),
        *((f"{member} of the request", BASE[:-1] + f',"{member}":null,"{member}":null}}')
          for member in ("model_name", "model_version", "parameters", "outputs")),
        ("a null id", BASE[:-1] + ',"id":null,"id":null}'),
        ("an unknown member", BASE[:-1] + ',"z":1,"y":2,"z":3}'),
        ("a member of an unknown member", BASE[:-1] + r',"z":[{"a":1,"b":2,"\u0061":3}]}'),
        ("a parameter", BASE[:-1] + ',"parameters":{"p":1,"p":1}}'),
        ("a member of a parameter", BASE[:-1] + ',"parameters":{"p":{"q":1,"q":1}}}'),
        ("a requested name", BASE[:-1] + ',"outputs":[{"name":"o","name":"o"}]}'),
        ("parameters of an output", BASE[:-1] + ',"outputs":[{"name":"o","parameters":null,'
         '"parameters":null}]}'),
        ("region", BASE.replace('"data"', '"parameters":{"shared_memory_region":null,'
         '"shared_memory_region":null},"data"')),
        ("object in data", '{"inputs":[{"data":[{"p":1,"q":2,"p":3}]}]}'),
        ("binary_data", BASE[:-1] + ',"outputs":[{"name":"o","parameters":'
         '{"binary_data":true,"binary_data":true}}]}'),
    )),
    Malformed("J24 binary_data_size twice", "request",
              b'{"inputs":[{"name":"x","datatype":"INT8","shape":[2],"parameters":'
              b'{"binary_data_size":2,"binary_data_size":2}}]}12', 111, HEADER, differs=TWICE),
    *(text(f"NaN in {place}", HEADER, body, "RapidJSON accepts it") for place, body in (
        ("an unknown member", BASE[:-1] + ',"z":NaN}'),
        ("a parameter", BASE[:-1] + ',"parameters":{"p":NaN}}'),
        ("a shape", BASE.replace("[1]", "[NaN]")),
    )),
    text("single quotes", HEADER, BASE.replace('"', "'")),
    text("9 KServe trailing comma", HEADER, KSERVE_ALL_BINARY % ","),
    text("HEAD4 nested without end", HEADER, '{"inputs":' + "[" * 100_000),
    data("X19 101 nested lists", HEADER, "INT8", 1, f"{'[' * 101}7{']' * 101}"),
    data("HEAD4 data nested without end", HEADER, "INT8", 1, "[" * 100_000),
    text("129 levels in an unknown member", HEADER, BASE[:-1] + f',"z":{DEEP}}}', UNBOUNDED),
    text("129 levels in parameters", HEADER, BASE[:-1] + f',"parameters":{{"p":{DEEP[1:-1]}}}}}',
         UNBOUNDED),
    text("129 levels, a bare NaN", HEADER, FLOATS[:-1] + f',"z":{DEEP}}}', UNBOUNDED),
    *(data(f"J5 {token}", HEADER, "FP32", 1, f"[{token}]", differs="RapidJSON accepts it")
      for token in ("Inf", "-Inf", "-NaN")),
    *(data(f"invalid number: {token}", HEADER, "FP32", 1, f"[{token}]")
      for token in ("nan", "01", "+1", ".5", "1.", "0x1", "-")),
)  # fmt: skip

REGION_ONLY = {"shared_memory_region": "in"}
EMPTY = "Triton ignores the data of an empty tensor"
LONG = "Triton compares it with the model's"
CUT = "Triton truncates the name there"
NO_SIZES: tuple[object, ...] = ("8", 8.0, None, True, "4, 4", [8], {})
NO_SHAPES: tuple[object, ...] = ([1.0], [True], ["1"], [[1]], [None], [nan], "1", {})
NO_LISTS: tuple[object, ...] = ({}, ["o"], [{}], "o", True)
MEMBERS = (
    case("C28 no inputs", HEADER, inputs=...),
    case("C29 inputs empty", HEADER),
    *(case(f"C28 inputs {value}", HEADER, inputs=value) for value in (None, *NO_LISTS)),
    *(case(f"C32-C34 {key} {value}", HEADER, one(**{key: value}))
      for key in ("name", "datatype", "shape") for value in (..., None, 1)),
    *(case(f"C20 C21 {name}", HEADER, one(datatype=name))
      for name in ("STRING", "FP8", "int32", "COMPLEX8", "COMPLEX64", "COMPLEX128")),
    case("C39 id 1", HEADER, one(), id=1),
    case("C39 model_name 1", HEADER, one(), model_name=1, differs="Triton does not read it"),
    case("C39 model_version 1", HEADER, one(), model_version=1, differs="Triton does not read it"),
    case("X6 NUL in a name", HEADER, one(name="x\0y"), differs=CUT),
    case("X6 NUL in a requested name", HEADER, one(), outputs=[output("o\0")], differs=CUT),
    case("a name of 4097 bytes", HEADER, one(name="x" * 4097), differs=LONG),
    case("a name of 1366 letters, 4098 bytes", HEADER, one(name="\u20ac" * 1366), differs=LONG),
    case("a name of 4097 bytes, binary", HEADER, sized(8, name="x" * 4097), body=BLOB,
         differs=LONG),
    case("requested name of 4097 bytes", HEADER, one(), outputs=[output("o" * 4097)],
         differs=LONG),
    case("a name of 4097 bytes in a response", HEADER, one(name="x" * 4097), kind="response"),
    case("C23 two inputs with the same name", HEADER, one(), one(shape=[1, 1])),
    case("C23 two outputs with the same name", HEADER, one(), one(), kind="response"),
    case("C23 binary and JSON input with the same name", HEADER, one(), sized(8), body=BLOB),
    case("C25 output requested twice", HEADER, one(), outputs=[output("o"), output("o")],
         differs="Triton before 2026 reads it once"),
    *(case(f"C26 binary_data {value!r}", HEADER, one(), outputs=[output("o", binary_data=value)])
      for value in (1, "true")),
    *(case(f"C27 binary_data_output {value!r}", HEADER, one(),
           parameters={"binary_data_output": value}) for value in (1, "true", "")),
    *(case(f"outputs {value}", HEADER, one(), outputs=value) for value in NO_LISTS),
    case("X3 parameters []", HEADER, one(parameters=[]), differs="Triton treats it as absent"),
    case("X4 parameters [] of the request", HEADER, one(), parameters=[]),
    case("X3 parameters [] of an output", HEADER, one(), outputs=[{"name": "o", "parameters": []}],
         differs="Triton treats it as absent"),
    case("error response", "ErrorResponseError", kind="response", outputs=...,
         error="no such model"),
    case("error of a requested output", HEADER, inputs=..., outputs=[{"name": "o", "error": "no"}]),
    text("C20 C21 FP8 before malformed JSON", HEADER,
         '{"inputs":[{"name":"x","shape":[1],"datatype":"FP8","data":[7]},{"name":}]}'),
    case("outputs null in a response", HEADER, kind="response", outputs=None),
    case("C6 data and size", HEADER, sized(8, data=[1.0, 2.0]), body=BLOB),
    case("C6 data and size 0", HEADER, sized(0, data=[], shape=[0])),
    case("C6 data and region", HEADER, one(parameters=REGION_ONLY)),
    case("C6 size and region", HEADER, sized(8, parameters={"binary_data_size": 8} | REGION_ONLY),
         body=BLOB),
    case("C7 neither", HEADER, one(data=...)),
    case("C7 no data, but bytes follow", HEADER, one(data=...), body=BLOB[:4]),
    case("C7 data null", HEADER, one(data=None)),
    case("C7 no data in a response", HEADER, one(data=...), kind="response"),
    case("OVMS dimension 0 without data in a request", HEADER, one(data=..., shape=[1, 0])),
    case("region a number", HEADER, one(data=..., parameters={"shared_memory_region": 1})),
    case("J19 string as data of an empty tensor", HEADER, one(shape=[0], data="x"), differs=EMPTY),
    *(case(f"data {value!r}", HEADER, one(data=value)) for value in (7, "7", True, {"0": 7})),
    *(case(f"J1-J4 {name} as JSON, {kind}", HEADER, one(datatype=name, data=[1.0]), kind=kind)
      for name in ("FP16", "BF16") for kind in KINDS),
    *(case(f"C8-C11 OVMS size {size!r}", HEADER, sized(size), body=BLOB)
      for size in NO_SIZES),
    case("OVMS size true for 1", HEADER, sized(True, datatype="UINT8", shape=[1]), body=b"1"),
    *(case(f"C16 shape {shape}", HEADER, one(shape=shape))
      for shape in NO_SHAPES),
)  # fmt: skip

THIRD = (2**64 + 2) // 3  # 3 * THIRD is 2 modulo 2^64
LAYOUTS = (
    case("no header length, size 8", LAYOUT, sized(8)),
    case("C1 body too short by 3 bytes", LAYOUT, sized(8), body=BLOB[:5]),
    case("C1 BYTES too short by 3 bytes", LAYOUT, sized(8, datatype="BYTES", shape=[1]),
         body=reference.elements([b"a"])),
    case("C2 body too long by 2 bytes", LAYOUT, sized(8), body=BLOB + b"\0\0"),
    case("C2 bytes after JSON data", LAYOUT, one(), body=b" "),
    case("C2 bytes after an empty tensor", LAYOUT, sized(0, shape=[0]), body=b"\0"),
    case("C2 bytes after a response", LAYOUT, sized(8), body=BLOB * 2, kind="response"),
    case("OVMS size 8, 2 bytes", LAYOUT, sized(8), body=b"\0\0"),
    case("second tensor too short", LAYOUT, sized(8), sized(8, name="y"), body=BLOB + BLOB[:7]),
    Malformed("B13 header length one too large, over a blank", "request", BLANK, len(BLANK) - 1,
              LAYOUT),
    *(Malformed(f"9 KServe {kind} as printed", kind, head.encode() + bytes(n), len(head), LAYOUT)
      for kind, head, n in zip(KINDS, (KSERVE_REQUEST % 16, KSERVE_RESPONSE % 16), (19, 16),
                               strict=True)),
    *(case(f"C10 X2 size {size}", LAYOUT, sized(size), body=BLOB)
      for size in (-8, -(2**63), 2**63 - 1, 2**63, 2**64 - 8, 2**64 + 8, 10**30)),
    *(case(f"OVMS second size {size}", LAYOUT, sized(8), sized(size, name="y"), body=BLOB)
      for size in (-1, 2**64 - 8)),
    *(case(f"size {size} of an empty tensor", LAYOUT, sized(size, shape=[0]))
      for size in (-1, 2**64)),
    *(case(f"{id} {datatype} {shape}, size {size}", LAYOUT,
           sized(size, datatype=datatype, shape=shape), body=BLOB[:size])
      for id, datatype, size, shape in (
          ("C12", "FP32", 8, [-2]), ("C13", "FP32", 8, [-1]), ("C13", "FP32", 8, [-1, -2]),
          ("C13", "FP32", 0, [0, -1]), ("C14", "FP32", 8, [2**64 - 1]), ("C15", "FP32", 8, [2**63]),
          ("OVMS", "FP32", 8, [65536, 65536]),
          ("count wraps to 0", "FP32", 0, [2**32, 2**32]), ("bytes wrap to 0", "FP32", 0, [2**62]),
          ("count wraps to 2", "FP32", 8, [3, THIRD]), ("bytes wrap to 8", "FP32", 8, [2**62 + 2]),
          ("over 2^63", "FP64", 0, [2**60]))),
    *(case(f"no elements in {datatype} {shape}", LAYOUT, sized(0, datatype=datatype, shape=shape),
           differs="numpy has no such array") for datatype, shape in (
        ("FP32", [0, 2**61]), ("FP32", [2**61, 0]), ("UINT8", [2**32, 0, 2**31]),
        ("UINT8", [2**63, 0]), ("BYTES", [0, 2**60]))),
    *(case(f"{id} {shape}, JSON", LAYOUT, one(shape=shape)) for id, shape in (
        ("HEAD2", [16, 2**60 + 2]), ("HEAD3", [4, 2**60 + 2]), ("C12", [-1]), ("C15", [10**30]))),
    *(case(f"{rank} dimensions", LAYOUT, sized(4, shape=[1] * rank), body=BLOB[:4],
           differs="numpy has no such array") for rank in (65, 1000)),
    case("65 dimensions, JSON", LAYOUT, one(shape=[1] * 65), differs="numpy has no such array"),
    case("negative dimension in shared memory", LAYOUT,
         one(data=..., shape=[-1], parameters=REGION_ONLY)),
    *(binary(f"{id} for {datatype} {shape}", LAYOUT, datatype, shape, blob)
      for id, datatype, shape, blob in (
          ("C3 4 bytes", "FP32", [2], BLOB[:4]), ("C4 12 bytes", "FP32", [2], BLOB + BLOB[:4]),
          ("C5 7 bytes", "FP32", [2], BLOB[:7]), ("8 bytes", "FP32", [0], BLOB),
          ("no bytes", "FP32", [], b""), ("2 bytes", "BOOL", [1], b"\1\0"),
          ("9 KServe 32 bytes", "FP32", [2, 2], bytes(32)),
          ("Y2 two", "BYTES", [3], reference.elements([b"ab", b"cd"])),
          ("Y2 two with room", "BYTES", [3], reference.elements([BLOB, BLOB])),
          ("Y3 two", "BYTES", [1], reference.elements([b"ab", b"cd"])),
          ("Y3 two", "BYTES", [], bytes(8)), ("Y10 one", "BYTES", [0], bytes(4)),
          ("Y11 no bytes", "BYTES", [2], b""),
          ("Y2 one with room", "BYTES", [2], reference.elements([BLOB])),
          ("less than a length prefix", "BYTES", [1], bytes(3)),
          ("8 bytes", "BYTES", [2**40], bytes(8)), ("8 bytes", "BYTES", [3, THIRD], bytes(8)))),
    data("J15 too few values", LAYOUT, "INT32", 2, "[1]"),
    data("J16 too many values", LAYOUT, "INT32", 2, "[1,[2,3]]"),
    data("Y15 too many strings", LAYOUT, "BYTES", 1, '["a","b"]'),
    data("J18 data for no elements", LAYOUT, "INT32", 0, "[1,2,3]", differs=EMPTY),
    data("J15 nested but empty", LAYOUT, "INT32", 1, "[[[],[]]]"),
    case("J15 no data for a scalar", LAYOUT, one(shape=[], data=[])),
)  # fmt: skip

WRAPS = "Triton rejects a negative UINT and wraps the others"
LAST = "Triton leaves the end of the last element to the backend"
ELEMENTS = (
    *(binary(id, ELEMENT, "BYTES", [1], blob, differs=LAST) for id, blob in (
        ("Y4 truncated element", b"\5\0\0\0ab"), ("Y6 length 2^32 - 1", b"\xff\xff\xff\xffab"),
        ("length 2^32 - 4", b"\xfc\xff\xff\xff"), ("length 2^31", b"\0\0\0\x80ab"),
        ("length big-endian", b"\0\0\0\2ab"), ("OVMS 0x11111111", b"\x11\x11\x11\x11abcd"),
        ("OVMS length 22 of 4", b"\x16\0\0\0abcd"))),
    binary("Y4 truncated last element", ELEMENT, "BYTES", [2],
           reference.elements([b"a", b"bc"])[:-1],
         differs=LAST),
    binary("Y5 truncated length prefix", ELEMENT, "BYTES", [2],
           reference.elements([b"abcd"]) + b"\0\0"),
    binary("Y3 Y5 one byte after the last element", ANY, "BYTES", [1], bytes(5)),
    case("Y4 an element reaches into the next tensor", ELEMENT,
         sized(6, datatype="BYTES", shape=[1]), sized(8, name="y"), body=b"\5\0\0\0ab" + BLOB,
         differs=LAST),
    binary("R14 BOOL 2", ELEMENT, "BOOL", [3], b"\0\1\2", differs="passed through"),
    binary("R14 BOOL 255 after many", ELEMENT, "BOOL", [100], b"\1" * 99 + b"\xff",
         differs="passed through"),
    data("J8 the last of many", ELEMENT, "INT8", 50, f"[{'0,' * 49}128]"),
    data("FP64 1e400", ANY, "FP64", 1, "[1e400]"),
    data("FP64 10^400 in digits", ANY, "FP64", 1, f"[{10**400}]"),
    data("FP64 -1e400 after a bare NaN", ANY, "FP64", 2, "[NaN,-1e400]"),
    *(data(f"{id} {datatype} JSON {item:.25}", ELEMENT, datatype, 1, f"[{item}]", differs=differs)
      for id, differs, datatype, items in (
          ("J7", "Triton makes it infinite", "FP32", ("1e39", "-1e39", str(10**39))),
          ("J8", "Triton wraps it to 44", "UINT8", ("300",)),
          *(("J8 J9", WRAPS, datatype, (str(low - 1), str(high + 1)))
            for datatype, (low, high) in INTEGERS.items()),
          ("J10", "", "INT32", ("1.5", "1e-1", "-0.5", "1.00000000000000000000001", "12e-99999")),
          ("J10", "", "INT32", ("2147483648.0", "1e400", "-1e999999999", "true", "null", '"1"')),
          ("J10", "", "INT32", ("NaN", "{}")),
          ("J10", "", "UINT64", ("1.8446744073709551616e19", "-1.0", "1e20", "false")),
          ("J12", "", "BOOL", ("1", "0", "null", '"true"')),
          ("J13", "", "FP32", ("true", '"1.0"', '"NaN"', "{}")),
          ("Y14", "", "BYTES", ("1", "null", "true", "{}")))
      for item in items),
    *(data(f"Y16 lone surrogate {item}", ANY, "BYTES", 1, f'["{item}"]')
      for item in (r"\ud800", r"a\udc00b", r"\ude00\ud83d")),
)  # fmt: skip

ROWS = {row.id: row for row in (*LENGTHS, *PARSED, *MEMBERS, *LAYOUTS, *ELEMENTS)}
assert MESSAGES.keys() <= ROWS.keys()
MALFORMED = tuple(replace(row, message=MESSAGES.get(id, "")) for id, row in ROWS.items())

RAW_MALFORMED = tuple(
    RawMalformed(id, body, datatype, dims, batching, error)
    for id, body, datatype, dims, batching, error in (
        ("R4 16 bytes for [-1, 3]", BLOB * 2, "FP32", (-1, 3), False, LAYOUT),
        ("R5 7 bytes for FP32", BLOB[:7], "FP32", (-1,), False, LAYOUT),
        ("R8 two variable", BLOB, "FP32", (-1, -1), False, LAYOUT),
        ("R8 two variable, empty body", b"", "FP32", (-1, -1), True, LAYOUT),
        ("R11 BYTES of variable dims", b"427", "BYTES", (-1,), False, LAYOUT),
        ("R11 BYTES [2]", reference.elements([b"a", b"b"]), "BYTES", (2,), False, LAYOUT),
        ("R11 BYTES [0]", b"", "BYTES", (0,), True, LAYOUT),
        ("R14 BOOL 2", b"\0\1\2", "BOOL", (-1,), False, ELEMENT),
        ("fixed, too short", BLOB[:4], "FP32", (2,), False, LAYOUT),
        ("fixed, too long", BLOB * 2, "FP32", (2,), True, LAYOUT),
        ("fixed, empty body", b"", "FP32", (1,), False, LAYOUT),
        ("fixed zero, 8 bytes", BLOB, "FP32", (0,), False, LAYOUT),
        ("fixed zero and a variable, 8 bytes", BLOB, "FP32", (-1, 0), False, LAYOUT),
        ("fixed factors wrap to 2", bytes(2), "UINT8", (-1, 3, THIRD), False, LAYOUT),
        ("fixed factors wrap to 0", b"", "UINT8", (-1, 2**32, 2**32), False, LAYOUT),
        ("fixed factors over 2^63 bytes", b"", "FP64", (-1, 2**60), False, LAYOUT),
    )
)
