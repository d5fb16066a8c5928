"""Tables of valid messages, used by the tests of the decoder, the encoder and the fuzz targets.

An id such as A3 or J24 is an exchange observed with a live Triton 2.51; WIRE.md 10 lists those
where tensorwire differs. "KServe" and "OVMS" cases come from the tests and the behaviour of these
servers. Other numbers are sections of WIRE.md.
"""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

from support import reference
from support.case_types import (
    INTEGERS,
    KSERVE_ALL_BINARY,
    KSERVE_REQUEST,
    KSERVE_RESPONSE,
    ExpectedTensor,
    Kind,
    Malformed,
    RawMalformed,
    RawValid,
    Requested,
    Valid,
    from_hex,
    output,
    same,
)
from support.malformed import MALFORMED, RAW_MALFORMED

__all__ = ["MALFORMED", "RAW_MALFORMED", "RAW_VALID", "VALID", "ExpectedTensor"]
__all__ += ["Malformed", "RawMalformed", "RawValid", "Valid", "same"]


def tensor(
    name: str, datatype: str, shape: list[int], values: list[Any] | None, **parameters: Any
) -> ExpectedTensor:
    """Return a binary tensor, or a tensor in shared memory if there are no values."""
    return ExpectedTensor(name, datatype, tuple(shape), values, values is not None, parameters)


def as_json(
    name: str, datatype: str, shape: list[int], values: list[Any], **parameters: Any
) -> ExpectedTensor:
    """Return a tensor with JSON data."""
    return ExpectedTensor(name, datatype, tuple(shape), values, False, parameters)


def valid(
    id: str,
    /,
    *tensors: ExpectedTensor,
    kind: Kind = "request",
    text: str | None = None,
    blob: bytes | None = None,
    align: int = 1,
    indent: int | None = None,
    declare: bool = False,
    encodable: bool = True,
    why: str = "",
    **members: Any,
) -> Valid:
    """Return the message with these tensors and members.

    `text` and `blob` replace the JSON and the binary data literally. `declare` sets the header
    length even if no bytes follow the JSON.
    """
    entries = [
        reference.entry(t.name, t.datatype, t.shape, t.values, t.binary, parameters=t.parameters)
        for t in tensors
    ]
    write = reference.request if kind == "request" else reference.response
    body, length = write(entries, align=align, indent=indent, **members)
    head = body[:length] if text is None else text.encode()
    tail = b"".join(entry.blob for entry in entries) if blob is None else blob
    return Valid(
        id,
        kind,
        head + tail,
        len(head) if tail or declare else None,
        tensors,
        tuple(map(requested, members["outputs"])) if "outputs" in members else None,
        members.get("parameters", {}),
        members.get("id"),
        members.get("model_name"),
        members.get("model_version"),
        encodable,
        why,
    )


def requested(output: dict[str, Any]) -> Requested:
    parameters = dict(output.get("parameters", {}))
    return output["name"], parameters.pop("binary_data", None), parameters


def rounded(*values: float) -> list[float]:
    """Return the nearest FP32 values."""
    return reference.unpack("FP32", reference.pack("FP32", values), len(values))


def json_data(
    id: str, datatype: str, shape: list[int], data: str, values: list[Any], **more: Any
) -> Valid:
    """Return a response of one output whose JSON `data` is given literally."""
    head = json.dumps({"name": "OUT0", "shape": shape, "datatype": datatype})
    text = f'{{"outputs":[{head[:-1]},"data":{data}}}]}}'
    return valid(id, as_json("OUT0", datatype, shape, values), kind="response", text=text, **more)


IN0 = tensor("IN0", "FP32", [2], [1.0, 2.0])
IN1 = tensor("IN1", "FP32", [2], [3.0, 4.0])
ALL_BINARY = {"binary_data_output": True}
REGION = {"shared_memory_region": "in", "shared_memory_byte_size": 8}
SIX = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
JSON_X = '{"name":"x","datatype":"FP32","shape":[1],"data":[1.5]}'
X = as_json("x", "FP32", [1], [1.5])

# Section 9: the messages of the protocol documents, with their white space
DOCUMENTS = (
    valid("9 Triton request", tensor("input0", "UINT32", [2, 2], [1, 2, 3, 4]),
          tensor("input1", "BOOL", [3], [True, False, True]), indent=2, model_name="mymodel",
          blob=from_hex("01000000 02000000 03000000 04000000 010001"),
          outputs=[output("output0", binary_data=True)]),
    valid("9 Triton response", tensor("output0", "FP32", [3, 2], [0.0, 1.0, -2.0, 0.5, inf, -0.0]),
          kind="response", indent=2, why="the documents' responses have no model_name",
          blob=from_hex("00000000 0000803f 000000c0 0000003f 0000807f 00000080")),
    valid("9 Triton response to the raw request",
          tensor("output0", "FP32", [3, 1], [1.0, 2.0, 3.0]),
          tensor("output1", "FP32", [3, 1], [-1.0, -2.0, -3.0]), kind="response", indent=2,
          blob=from_hex("0000803f 00000040 00004040 000080bf 000000c0 000040c0")),
    valid("9 KServe request, size corrected",
          tensor("input0", "FP16", [2, 2], [1.0, 2.0, 3.0, 4.0]),
          as_json("input1", "UINT32", [2, 2], [1, 2, 3, 4]),
          tensor("input2", "BOOL", [3], [True, False, True]), model_name="mymodel",
          outputs=[output("output0", binary_data=True), output("output1")],
          text=KSERVE_REQUEST % 8, blob=from_hex("003c 0040 0042 0044 010001")),
    valid("9 KServe response, size corrected", tensor("output0", "FP16", [3, 2], SIX),
          as_json("output1", "FP32", [2, 2], rounded(1.203, 5.403, 3.434, 34.234)), kind="response",
          text=KSERVE_RESPONSE % 12, blob=from_hex("003c 0040 0042 0044 0045 0046")),
    valid("9 KServe binary_data_output request, comma corrected",
          as_json("input_tensor", "FP32", [1, 2], rounded(32.045, 399.043)),
          text=KSERVE_ALL_BINARY % "", model_name="my_model", parameters=ALL_BINARY),
    valid("9 KServe binary_data_output response, sizes corrected",
          tensor("output_tensor0", "FP16", [3, 2], SIX),
          tensor("output_tensor1", "FP32", [2, 2], [1.0, 2.0, 3.0, 4.0]), kind="response"),
)  # fmt: skip

# Section 2: the smallest, the largest and special values of every datatype
BINARY = tuple(
    valid(f"{datatype} binary", tensor("x", datatype, [len(values)], values),
          blob=from_hex(literal))
    for datatype, literal, values in (
        ("BOOL", "00 01 01", [False, True, True]),
        ("UINT8", "00 01 ff", [0, 1, 2**8 - 1]),
        ("UINT16", "0000 0100 ffff", [0, 1, 2**16 - 1]),
        ("UINT32", "00000000 01000000 ffffffff", [0, 1, 2**32 - 1]),
        ("UINT64", f"{'00' * 8} 01{'00' * 7} {'ff' * 8}", [0, 1, 2**64 - 1]),
        ("INT8", "80 ff 7f", [-(2**7), -1, 2**7 - 1]),
        ("INT16", "0080 ffff ff7f", [-(2**15), -1, 2**15 - 1]),
        ("INT32", "00000080 ffffffff ffffff7f", [-(2**31), -1, 2**31 - 1]),
        ("INT64", f"{'00' * 7}80 {'ff' * 8} {'ff' * 7}7f", [-(2**63), -1, 2**63 - 1]),
        ("FP16", "0080 00fc 007c ff7b 0100 007e", [-0.0, -inf, inf, 65504.0, 2.0**-24, nan]),
        ("BF16", "803f 80ff 0080 7f7f 0100 c07f",
         [1.0, -inf, -0.0, 255 * 2.0**120, 2.0**-133, nan]),
        ("FP32", "00000080 000080ff 0000807f ffff7f7f 01000000 0000c07f",
         [-0.0, -inf, inf, 2.0**128 - 2.0**104, 2.0**-149, nan]),
        ("FP64", f"{'00' * 7}80 {'00' * 6}f0ff {'ff' * 6}ef7f 01{'00' * 7} {'00' * 6}f87f",
         [-0.0, -inf, 1.7976931348623157e308, 5e-324, nan]),
        ("BYTES", "00000000 01000000 00 03000000 fffe80", [b"", b"\0", b"\xff\xfe\x80"]),
    )
)  # fmt: skip

# Section 4: the same in JSON, for datatypes with a JSON form
NESTED = "[" * 99 + "7" + "]" * 99
JSON_DATA = (
    json_data("BOOL JSON, J11", "BOOL", [2], "[true,false]", [True, False]),
    json_data("UINT8 JSON, minus zero", "UINT8", [1], "[-0]", [0]),
    json_data("FP32 JSON, minus zero", "FP32", [1], "[-0]", [-0.0]),
    json_data("FP64 JSON, zero with a large exponent", "FP64", [1], "[0e999]", [0.0]),
    *(json_data(f"{datatype} JSON", datatype, [2], f"[{low},{high}]", [low, high])
      for datatype, (low, high) in INTEGERS.items()),
    *(json_data(f"J10 {datatype} JSON, with a point and an exponent", datatype, [8],
                f"[{low}.0,{high}.000,{high}00e-2,{low}E+0,1e2,0.12e3,-0.0,0e999999999]",
                [low, high, high, low, 100, 120, 0, 0],
                why="Triton rejects it; the value is an integer (section 4)")
      for datatype, (low, high) in INTEGERS.items()),
    json_data("J10 INT64 JSON, beyond 2^53 with a point", "INT64", [2],
              "[9007199254740993.0,-9.007199254740993e15]", [2**53 + 1, -(2**53) - 1],
              why="Triton rejects it; the value is an integer (section 4)"),
    json_data("FP32 JSON", "FP32", [4], "[-0.0,1,3.4028234663852886e38,1.401298464324817e-45]",
              [-0.0, 1.0, 2.0**128 - 2.0**104, 2.0**-149]),
    json_data("FP64 JSON", "FP64", [4], "[-0.0,10,1.7976931348623157E+308,5e-324]",
              [-0.0, 10.0, 1.7976931348623157e308, 5e-324]),
    json_data("FP64 JSON, more digits than a double has", "FP64", [2],
              "[9007199254740993,0.1000000000000000055511151231257827]", [9007199254740992.0, 0.1]),
    json_data("Y12 BYTES JSON", "BYTES", [5], r'["a","","\u0000\n","\u00e9","\ud83d\ude00"]',
              [b"a", b"", b"\0\n", b"\xc3\xa9", b"\xf0\x9f\x98\x80"]),
    json_data("J5 bare NaN and infinities", "FP32", [3], "[NaN,Infinity,-Infinity]",
              [nan, inf, -inf],
              encodable=False, why="the encoder's default for both is null, which is read as NaN"),
    json_data("J5 bare NaN, FP64", "FP64", [2], "[ NaN , 1.5 ]", [nan, 1.5]),
    json_data("J6 rounded to FP32", "FP32", [1], "[0.1]", [0.10000000149011612]),
    json_data("J14 null is NaN, FP32", "FP32", [2], "[null,1.5]", [nan, 1.5],
              why="Triton rejects it; other servers write it (section 4)"),
    json_data("J14 null is NaN, FP64", "FP64", [1], "[null]", [nan]),
    json_data("J17 ragged lists", "INT32", [2, 2], "[[1],[2,3,4]]", [1, 2, 3, 4]),
    json_data("Y13 ragged BYTES", "BYTES", [2, 2], '["a",["b",["c"]],"d"]',
              [b"a", b"b", b"c", b"d"]),
    json_data("nested lists like the shape", "INT8", [1, 2, 2], "[[[1,2],[3,4]]]", [1, 2, 3, 4]),
    json_data("flat list for two dimensions", "INT8", [2, 2], "[1,2,3,4]", [1, 2, 3, 4]),
    json_data("X19 99 nested lists", "INT8", [1], NESTED, [7]),
    json_data("rank 0 JSON", "INT8", [], "[5]", [5], why="section 3: one element"),
    json_data("B5 no elements", "FP32", [0], "[]", []),
    json_data("no elements, nested", "BYTES", [2, 0], "[[],[]]", []),
)  # fmt: skip

# Messages that Triton was observed to accept or send (section 5 of the reference)
TRITON = (
    valid("A1 no outputs", IN0),
    valid("A2 binary_data_output", IN0, parameters=ALL_BINARY),
    valid("A3 binary_data_output, output listed", IN0, parameters=ALL_BINARY,
          outputs=[output("OUT0")], encodable=False,
          why="the encoder writes binary_data on every listed output (section 7)"),
    valid("X10 binary_data overrides binary_data_output", IN0, parameters=ALL_BINARY,
          outputs=[output("OUT0", binary_data=False)]),
    valid("C40 empty outputs", IN0, parameters=ALL_BINARY, outputs=[]),
    valid("A5 outputs in the server's order", tensor("OUT1", "FP32", [2], [3.0, 4.0]),
          tensor("OUT0", "FP32", [1], [1.0]), kind="response", model_name="m", model_version="1"),
    valid("A6 one output of two is binary", tensor("OUT0", "FP32", [2], [1.0, 2.0]),
          as_json("OUT1", "FP32", [2], [3.0, 4.0]), kind="response", model_name="m"),
    valid("A7 JSON before binary", as_json("IN0", "FP32", [2], [1.0, 2.0]), IN1),
    valid("A8 binary in the order of the list", IN1, IN0),
    valid("X1 one output of two is empty", tensor("OUT0", "FP32", [1], [1.0]),
          tensor("OUT1", "FP32", [0], []), kind="response", model_name="m"),
    valid("B3 no header length, only empty tensors", tensor("IN0", "FP32", [0], []),
          tensor("IN1", "BYTES", [2, 0], [])),
    valid("B3 response", tensor("OUT0", "FP32", [0], []), kind="response", model_name="m"),
    valid("B4 header length, only empty tensors", tensor("IN0", "FP32", [0], []), declare=True),
    valid("B15 header padded to 64", IN0, align=64),
    valid("X13 header length of the whole body", as_json("x", "INT8", [1], [1]), declare=True),
    valid("C17 rank 0", tensor("x", "FP32", [], [1.0]), blob=from_hex("0000803f"),
          why="section 3: one element; Triton has no scalars"),
    valid("C38 id", IN0, id='é"1'),
    valid("K1 K2 classification requested", IN0, outputs=[
        output("OUT0", classification=2), output("OUT1", classification=2, binary_data=True)]),
    valid("K1 classification", as_json("OUT0", "BYTES", [1, 2], [b"10.000000:2", b"5.000000:0"]),
          kind="response", model_name="m"),
    valid("K2 classification binary", tensor("OUT0", "BYTES", [1, 2], [b"10.000000:2", b"5:0"]),
          kind="response", model_name="m"),
    valid("S1 shared memory input", tensor("IN0", "FP32", [2], None, **REGION)),
    valid("S1 shared memory output requested", IN0, outputs=[output("OUT0", **REGION)]),
    valid("shared memory between binary tensors", IN0, tensor("s", "BYTES", [3], None, **REGION),
          IN1),
    valid("shared memory output", tensor("OUT0", "FP32", [2], None, **REGION), kind="response",
          model_name="m"),
    valid("Y1 BYTES, last element empty", tensor("x", "BYTES", [2], [b"ab", b""]),
          blob=from_hex("02000000 6162 00000000")),
    valid("Y7 BYTES that are not UTF-8", tensor("x", "BYTES", [2], [b"a\0b", b"\xff\xfe"]),
          blob=from_hex("03000000 610062 02000000 fffe")),
    valid("Y9 BYTES without elements", tensor("x", "BYTES", [0], [])),
    valid("parameters of every type", tensor("x", "INT8", [1], [1], a="s", b=1, c=True, d=0.5),
          parameters={"sequence_id": 7, "s": "t", "f": -1.5, "b": False}),
)  # fmt: skip

# From the tests of KServe and OVMS
PEERS = (
    valid("KServe R1 JSON, BYTES and FP16", as_json("i", "INT32", [3], [1, 2, 3]),
          tensor("b", "BYTES", [1], [b"test"], own="kept"),
          tensor("h", "FP16", [3], [0x4CD * 2.0**-10, 0x466 * 2.0**-9, 0x666 * 2.0**-9]),
          blob=from_hex("04000000 74657374 cd3c 6640 6642"), id="4be4e82f", model_name="m",
          outputs=[output("o0", p="q"), output("o1", binary_data=True, n=1)]),
    valid("KServe S3 two binary of three", tensor("o1", "FP16", [1], [1.0]),
          tensor("o2", "INT32", [1], [1]), as_json("o3", "BYTES", [1], [b"test"]), kind="response",
          blob=from_hex("003c 01000000"), id="1", model_name="m", model_version="v1"),
    valid("KServe S4 all binary", tensor("o1", "FP16", [1], [1.0]),
          tensor("o2", "FP16", [1], [1.0]), tensor("o3", "BYTES", [1], [b"test"]), kind="response",
          blob=from_hex("003c 003c 04000000 74657374"), model_name="m", parameters={"x": 1}),
    valid("KServe S9 JSON with blanks", tensor("o", "BYTES", [3], [b"cat", b"dog", b"bird"]),
          kind="response", indent=0, model_name="m"),
    valid("KServe null data with size 0", tensor("x", "FP32", [0], []),
          text='{"inputs":[{"name":"x","shape":[0],"datatype":"FP32","data":null,'
          '"parameters":{"binary_data_size":0}}]}'),
    valid("OVMS INT8 [1, 4]", tensor("x", "INT8", [1, 4], [0, 1, 4, 2]), blob=from_hex("00010402")),
    valid("OVMS two elements in 20 bytes", tensor("x", "BYTES", [2], [b"abcd", b"abcdefgh"])),
    valid("OVMS zero dimension", tensor("x", "INT8", [1, 0], [])),
    valid("OVMS scalar", tensor("x", "INT16", [], [5]), blob=from_hex("0500")),
    valid("OVMS white space around the JSON", tensor("x", "BYTES", [1], [b"abcd"]),
          text='\n\t {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1],\r\n'
          '"parameters": {"binary_data_size": 8}}]} \n\n'),
    valid("OVMS empty output without data", tensor("o", "FP32", [1, 0], []), kind="response",
          text='{\n    "model_name": "m",\n    "outputs": [{"name": "o", "shape": [1, 0],'
          '\n        "datatype": "FP32"}]\n}', model_name="m", encodable=False,
          why="section 3; an encoder writes binary_data_size 0"),
    valid("OVMS empty outputs without data, around a binary output", tensor("e", "BYTES", [0], []),
          tensor("f", "INT8", [1], [5]), tensor("g", "INT8", [0], []), kind="response",
          encodable=False, text='{"outputs":[{"name":"e","shape":[0],"datatype":"BYTES"},'
          '{"name":"f","shape":[1],"datatype":"INT\\u0038","parameters":{"binary_data_size":1}},'
          '{"name":"g","shape":[0],"datatype":"INT8"}]}'),
)  # fmt: skip

# Shapes at the limits of arrays, and unusual JSON
EDGES = (
    valid("64 dimensions", tensor("x", "UINT8", [1] * 64, [9])),
    valid("five dimensions", tensor("x", "INT16", [1, 2, 1, 3, 1], [1, 2, 3, 4, 5, 6])),
    valid("rank 0 BYTES", tensor("x", "BYTES", [], [b"one"])),
    valid("dimension 0 before the largest FP32 dimension", tensor("x", "FP32", [0, 2**61 - 1], [])),
    valid("dimension 0 after the largest UINT8 dimension",
          tensor("x", "UINT8", [2**63 - 1, 0], [])),
    valid("empty FP16", tensor("x", "FP16", [1, 0], [])),
    valid("empty BF16", tensor("x", "BF16", [4, 0], [])),
    valid("a length of two bytes", tensor("x", "BYTES", [1], [b"z" * 300])),
    valid("only empty elements", tensor("x", "BYTES", [2, 2], [b""] * 4)),
    valid("elements that look like prefixes", tensor("x", "BYTES", [2], [b"\1\0\0\0", b"{}"])),
    valid("bytes that look like JSON", tensor("x", "UINT8", [4], list(b' {"}'))),
    valid("binary, JSON and shared memory in one message",
          tensor("b", "BYTES", [2], [b"odd", b"\xff"], note="kept"),
          as_json("j", "INT64", [1], [-1]), tensor("e", "FP64", [0, 3], []),
          tensor("s", "FP32", [9], None, **REGION), tensor("h", "BF16", [1], [1.5]),
          tensor("f", "FP64", [2], [0.1, nan]), as_json("t", "BYTES", [1], ["é".encode()]),
          align=64, id="mix", model_name="m", model_version="3", parameters={"priority": 1}),
    valid("names beyond ASCII", tensor("ввод", "INT8", [1], [1]),
          as_json("入力 🙂", "INT8", [1], [2]),
          outputs=[output("sortie é")]),
    valid("escaped name", tensor("é/\n", "INT8", [1], [1]), blob=b"\1",
          text=r'{"inputs":[{"name":"\u00e9\/\n","shape":[1],"datatype":"INT8",'
          '"parameters":{"binary_data_size":1}}]}'),
    valid("null equals absent", X, text='{"id":null,"model_name":null,"model_version":null,'
          '"parameters":null,"outputs":null,"inputs":[{"name":"x","datatype":"FP32","shape":[1],'
          '"data":[1.5],"parameters":null}]}'),
    valid("null in a requested output", X, outputs=[output("o"), output("p")],
          text=f'{{"inputs":[{JSON_X}],"outputs":[{{"name":"o","parameters":null}},'
          '{"name":"p","parameters":{"binary_data":null}}]}'),
    valid("null size and region with data", X,
          text='{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.5],"parameters":'
          '{"binary_data_size":null}}]}'),
    valid("unknown members", X, text='{"new":[{"a":[1,null]}],"inputs":[{"unit":"m","name":"x",'
          '"datatype":"FP32","shape":[1],"data":[1.5],"extra":{}}],"error":1}'),
    valid("response without outputs", kind="response", model_name="m"),
)  # fmt: skip

VALID = (*DOCUMENTS, *BINARY, *JSON_DATA, *TRITON, *PEERS, *EDGES)

BLOB, FOUR = reference.pack("FP32", [1.0, 2.0]), [1, 2, 3, 4]
RAW_VALID = tuple(
    RawValid(id, body, "IN0", datatype, dims, batching, shape, values)
    for id, body, datatype, dims, batching, shape, values in (
        ("9 Triton", reference.pack("INT32", FOUR), "INT32", (4,), False, (4,), FOUR),
        ("R1 one variable", BLOB, "FP32", (-1,), False, (2,), [1.0, 2.0]),
        ("R2 batching", BLOB, "FP32", (-1,), True, (1, 2), [1.0, 2.0]),
        ("R3 a fixed factor", BLOB * 3, "FP32", (-1, 3), False, (2, 3), [1.0, 2.0] * 3),
        ("R3 variable last", BLOB * 3, "FP32", (3, -1), True, (1, 3, 2), [1.0, 2.0] * 3),
        ("all fixed", BLOB, "FP32", (2, 1), False, (2, 1), [1.0, 2.0]),
        ("all fixed, batching", BLOB, "FP32", (2,), True, (1, 2), [1.0, 2.0]),
        ("scalar", BLOB[:4], "FP32", (), False, (), [1.0]),
        ("scalar, batching", BLOB[:4], "FP32", (), True, (1,), [1.0]),
        ("R6 empty body", b"", "FP32", (-1,), False, (0,), []),
        ("R6 empty body, a fixed factor", b"", "INT8", (3, -1), True, (1, 3, 0), []),
        ("fixed zero", b"", "INT8", (2, 0), False, (2, 0), []),
        ("R10 BYTES", b"427", "BYTES", (1,), False, (1,), [b"427"]),
        ("R10 BYTES, batching", b"427", "BYTES", (1,), True, (1, 1), [b"427"]),
        ("R10 BYTES of two ones", b"\xff\0", "BYTES", (1, 1), False, (1, 1), [b"\xff\0"]),
        ("R12 own prefix", b"\1\0\0\0a", "BYTES", (1,), False, (1,), [b"\1\0\0\0a"]),
        ("R13 empty BYTES", b"", "BYTES", (1,), False, (1,), [b""]),
        ("R14 BOOL", b"\0\1", "BOOL", (-1,), False, (2,), [False, True]),
        ("R15 FP16", from_hex("003c 007e"), "FP16", (-1,), False, (2,), [1.0, nan]),
        ("R16 BF16", from_hex("803f 00c0"), "BF16", (-1,), False, (2,), [1.0, -2.0]),
        ("a body that looks like JSON", b"{}", "UINT8", (-1,), False, (2,), [123, 125]),
    )
)
