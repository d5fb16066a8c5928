"""Messages that must be understood, and messages that must be refused, in one table each.

Decoder and encoder tests share them. An id such as A3 or J24 is a row of the conformance table in
reference/triton.md, section 5; "KServe" and "OVMS" rows come from reference/peers.md, sections 2
and 4; a bare section number is one of design/wire.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import Any, Literal

import wire

Kind = Literal["request", "response"]
Requested = tuple[str, bool | None, dict[str, Any]]

hexed = bytes.fromhex


@dataclass(frozen=True)
class ExpectedTensor:
    """`values` are flat, row-major, plain Python (bytes for BYTES); None lives in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[Any] | None
    binary: bool = True
    parameters: dict[str, Any] = field(default_factory=dict)  # without binary_data_size


@dataclass(frozen=True)
class Valid:
    id: str
    kind: Kind
    body: bytes
    header_length: int | None
    tensors: tuple[ExpectedTensor, ...]
    outputs: tuple[Requested, ...] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)  # binary_data_output stays in it
    message_id: str | None = None
    model_name: str | None = None
    model_version: str | None = None
    encodable: bool = True  # False: the encoder says something else of this, or nothing
    why: str = ""


@dataclass(frozen=True)
class Malformed:
    id: str
    kind: Kind
    body: bytes
    header_length: int | str | bytes | None
    error: str  # "DecodeError" where the rules leave it to the JSON parser which kind is raised
    message: str = ""
    differs: str = ""  # why our verdict is not Triton's


@dataclass(frozen=True)
class RawValid:
    id: str
    body: bytes
    name: str
    datatype: str
    dims: tuple[int, ...]
    batching: bool
    shape: tuple[int, ...]
    values: list[Any]


@dataclass(frozen=True)
class RawMalformed:
    id: str
    body: bytes
    datatype: str
    dims: tuple[int, ...]
    batching: bool
    error: str


def same(left: object, right: object) -> bool:
    """Equal to the bit that matters: NaN is NaN, -0.0 is not 0.0, True is not 1."""
    return repr(left) == repr(right)


# --- valid messages ------------------------------------------------------------------------------


def tensor(
    name: str, datatype: str, shape: list[int], values: list[Any] | None, **parameters: Any
) -> ExpectedTensor:
    """A tensor that travels as bytes, or, without values, in shared memory."""
    return ExpectedTensor(name, datatype, tuple(shape), values, values is not None, parameters)


def spelt(
    name: str, datatype: str, shape: list[int], values: list[Any], **parameters: Any
) -> ExpectedTensor:
    """A tensor that travels as JSON."""
    return ExpectedTensor(name, datatype, tuple(shape), values, False, parameters)


def sent(
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
    """The message that says `tensors` and `members`.

    `text` and `blob` are the JSON and the bytes where they are given literally. `declare` states
    the header length even when no bytes follow the JSON.
    """
    entries = [
        wire.entry(t.name, t.datatype, t.shape, t.values, t.binary, parameters=t.parameters)
        for t in tensors
    ]
    write = wire.request if kind == "request" else wire.response
    body, header_length = write(entries, align=align, indent=indent, **members)
    packed = b"".join(entry.blob for entry in entries)
    head = body[: len(body) - len(packed)] if text is None else text.encode()
    tail = packed if blob is None else blob
    return Valid(
        id,
        kind,
        head + tail,
        len(head) if tail or declare else None,
        tensors,
        None if "outputs" not in members else tuple(requested(out) for out in members["outputs"]),
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
    """The FP32 neighbours."""
    return wire.unpack("FP32", wire.pack("FP32", values), len(values))


def output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def read(id: str, datatype: str, shape: list[int], data: str, values: list[Any], **more: Any) -> Valid:
    """A response of one output whose JSON `data` is given literally."""
    head = json.dumps({"name": "OUT0", "shape": shape, "datatype": datatype})
    text = f'{{"model_name":"m","outputs":[{head[:-1]},"data":{data}}}]}}'
    return sent(
        id,
        spelt("OUT0", datatype, shape, values),
        kind="response",
        text=text,
        model_name="m",
        **more,
    )


IN0 = tensor("IN0", "FP32", [2], [1.0, 2.0])
IN1 = tensor("IN1", "FP32", [2], [3.0, 4.0])
ALL_BINARY = {"binary_data_output": True}
REGION = {"shared_memory_region": "in", "shared_memory_byte_size": 8}
SIX = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
KSERVE_REQUEST = """{"model_name": "mymodel", "inputs": [
  {"name": "input0", "shape": [2, 2], "datatype": "FP16", "parameters": {"binary_data_size": %d}},
  {"name": "input1", "shape": [2, 2], "datatype": "UINT32", "data": [[1, 2], [3, 4]]},
  {"name": "input2", "shape": [3], "datatype": "BOOL", "parameters": {"binary_data_size": 3}}],
  "outputs": [{"name": "output0", "parameters": {"binary_data": true}}, {"name": "output1"}]}"""
KSERVE_RESPONSE = """{"outputs": [
  {"name": "output0", "shape": [3, 2], "datatype": "FP16", "parameters": {"binary_data_size": %d}},
  {"name": "output1", "shape": [2, 2], "datatype": "FP32",
   "data": [[1.203, 5.403], [3.434, 34.234]]}]}"""
KSERVE_ALL_BINARY = """{"model_name": "my_model", "inputs": [{"name": "input_tensor",
  "datatype": "FP32", "shape": [1, 2], "data": [[32.045, 399.043]]%s}],
  "parameters": {"binary_data_output": true}}"""
JSON_X = '{"name":"x","datatype":"FP32","shape":[1],"data":[1.5]}'
X = spelt("x", "FP32", [1], [1.5])

# Section 9: the documents' own messages, in their own layout
DOCUMENTS = (
    sent("9 Triton request", tensor("input0", "UINT32", [2, 2], [1, 2, 3, 4]),
         tensor("input1", "BOOL", [3], [True, False, True]), indent=2, model_name="mymodel",
         blob=hexed("01000000 02000000 03000000 04000000 010001"),
         outputs=[output("output0", binary_data=True)]),
    sent("9 Triton response", tensor("output0", "FP32", [3, 2], [0.0, 1.0, -2.0, 0.5, inf, -0.0]),
         kind="response", indent=2, why="the documents' responses have no model_name",
         blob=hexed("00000000 0000803f 000000c0 0000003f 0000807f 00000080")),
    sent("9 Triton response to the raw request", tensor("output0", "FP32", [3, 1], [1.0, 2.0, 3.0]),
         tensor("output1", "FP32", [3, 1], [-1.0, -2.0, -3.0]), kind="response", indent=2,
         blob=hexed("0000803f 00000040 00004040 000080bf 000000c0 000040c0")),
    sent("9 KServe request, size mended", tensor("input0", "FP16", [2, 2], [1.0, 2.0, 3.0, 4.0]),
         spelt("input1", "UINT32", [2, 2], [1, 2, 3, 4]),
         tensor("input2", "BOOL", [3], [True, False, True]), model_name="mymodel",
         outputs=[output("output0", binary_data=True), output("output1")],
         text=KSERVE_REQUEST % 8, blob=hexed("003c 0040 0042 0044 010001")),
    sent("9 KServe response, size mended", tensor("output0", "FP16", [3, 2], SIX),
         spelt("output1", "FP32", [2, 2], rounded(1.203, 5.403, 3.434, 34.234)), kind="response",
         text=KSERVE_RESPONSE % 12, blob=hexed("003c 0040 0042 0044 0045 0046")),
    sent("9 KServe binary_data_output request, comma mended",
         spelt("input_tensor", "FP32", [1, 2], rounded(32.045, 399.043)),
         text=KSERVE_ALL_BINARY % "", model_name="my_model", parameters=ALL_BINARY),
    sent("9 KServe binary_data_output response, sizes mended",
         tensor("output_tensor0", "FP16", [3, 2], SIX),
         tensor("output_tensor1", "FP32", [2, 2], [1.0, 2.0, 3.0, 4.0]), kind="response"),
)  # fmt: skip

# Section 2: the smallest, the largest and the strange of every datatype
BINARY = tuple(
    sent(
        f"{datatype} binary",
        tensor("x", datatype, [len(values)], values),
        blob=hexed(literal),
    )
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

# Section 4: the same in JSON, where a JSON form exists
NESTED = "[" * 99 + "7" + "]" * 99
SPELT = (
    read("BOOL JSON, J11", "BOOL", [2], "[true,false]", [True, False]),
    read("UINT8 JSON", "UINT8", [3], "[0,-0,255]", [0, 0, 2**8 - 1]),
    read("UINT16 JSON", "UINT16", [2], "[0,65535]", [0, 2**16 - 1]),
    read("UINT32 JSON", "UINT32", [2], "[0,4294967295]", [0, 2**32 - 1]),
    read("UINT64 JSON", "UINT64", [2], "[0,18446744073709551615]", [0, 2**64 - 1]),
    read("INT8 JSON", "INT8", [2], "[-128,127]", [-(2**7), 2**7 - 1]),
    read("INT16 JSON", "INT16", [2], "[-32768,32767]", [-(2**15), 2**15 - 1]),
    read("INT32 JSON", "INT32", [2], "[-2147483648,2147483647]", [-(2**31), 2**31 - 1]),
    read("INT64 JSON", "INT64", [2], f"[{-(2**63)},{2**63 - 1}]", [-(2**63), 2**63 - 1]),
    read("FP32 JSON", "FP32", [4], "[-0.0,1,3.4028234663852886e38,1.401298464324817e-45]",
         [-0.0, 1.0, 2.0**128 - 2.0**104, 2.0**-149]),
    read("FP64 JSON", "FP64", [4], "[-0.0,10,1.7976931348623157E+308,5e-324]",
         [-0.0, 10.0, 1.7976931348623157e308, 5e-324]),
    read("FP64 JSON, more digits than a double has", "FP64", [2],
         "[9007199254740993,0.1000000000000000055511151231257827]", [9007199254740992.0, 0.1]),
    read("Y12 BYTES JSON", "BYTES", [5], r'["a","","\u0000\n","\u00e9","\ud83d\ude00"]',
         [b"a", b"", b"\0\n", b"\xc3\xa9", b"\xf0\x9f\x98\x80"]),
    read("J5 bare NaN and infinities", "FP32", [3], "[NaN,Infinity,-Infinity]", [nan, inf, -inf],
         encodable=False, why="the encoder's default for both is null, which is read as NaN"),
    read("J5 bare NaN, FP64", "FP64", [2], "[ NaN , 1.5 ]", [nan, 1.5]),
    read("J6 rounded to FP32", "FP32", [1], "[0.1]", [0.10000000149011612]),
    read("J14 null is NaN, FP32", "FP32", [2], "[null,1.5]", [nan, 1.5],
         why="Triton refuses it; other servers write it (section 4)"),
    read("J14 null is NaN, FP64", "FP64", [1], "[null]", [nan]),
    read("J17 ragged", "INT32", [2, 2], "[[1],[2,3,4]]", [1, 2, 3, 4]),
    read("Y13 ragged BYTES", "BYTES", [2, 2], '["a",["b",["c"]],"d"]', [b"a", b"b", b"c", b"d"]),
    read("nested as the shape", "INT8", [1, 2, 2], "[[[1,2],[3,4]]]", [1, 2, 3, 4]),
    read("flat for two dimensions", "INT8", [2, 2], "[1,2,3,4]", [1, 2, 3, 4]),
    read("X19 99 nested lists", "INT8", [1], NESTED, [7]),
    read("rank 0 JSON", "INT8", [], "[5]", [5], why="section 3: one element"),
    read("B5 no elements", "FP32", [0], "[]", []),
    read("no elements, nested", "BYTES", [2, 0], "[[],[]]", []),
)  # fmt: skip

# What Triton was seen to accept or to send (section 5 of the reference)
TRITON = (
    sent("A1 no outputs", IN0),
    sent("A2 binary_data_output", IN0, parameters=ALL_BINARY),
    sent("A3 binary_data_output, output listed", IN0, parameters=ALL_BINARY,
         outputs=[output("OUT0")], encodable=False,
         why="the encoder writes binary_data on every listed output (section 7)"),
    sent("X10 binary_data overrides", IN0, parameters=ALL_BINARY,
         outputs=[output("OUT0", binary_data=False)]),
    sent("C40 empty outputs", IN0, parameters=ALL_BINARY, outputs=[]),
    sent("A5 outputs in the server's order", tensor("OUT1", "FP32", [2], [3.0, 4.0]),
         tensor("OUT0", "FP32", [1], [1.0]), kind="response", model_name="m", model_version="1"),
    sent("A6 one output of two is binary", tensor("OUT0", "FP32", [2], [1.0, 2.0]),
         spelt("OUT1", "FP32", [2], [3.0, 4.0]), kind="response", model_name="m"),
    sent("A7 JSON before binary", spelt("IN0", "FP32", [2], [1.0, 2.0]), IN1),
    sent("A8 binary in the order of the list", IN1, IN0),
    sent("X1 one output of two is empty", tensor("OUT0", "FP32", [1], [1.0]),
         tensor("OUT1", "FP32", [0], []), kind="response", model_name="m"),
    sent("B3 no header length, nothing but empty", tensor("IN0", "FP32", [0], []),
         tensor("IN1", "BYTES", [2, 0], [])),
    sent("B3 response", tensor("OUT0", "FP32", [0], []), kind="response", model_name="m"),
    sent("B4 header length, nothing but empty", tensor("IN0", "FP32", [0], []), declare=True),
    sent("B15 header padded to 64", IN0, align=64),
    sent("X13 header length of the whole body", spelt("x", "INT8", [1], [1]), declare=True),
    sent("C17 rank 0", tensor("x", "FP32", [], [1.0]), blob=hexed("0000803f"),
         why="section 3: one element; Triton has no scalars"),
    sent("C38 id", IN0, id='é"1'),
    sent("K1 K2 classification asked", IN0, outputs=[
        output("OUT0", classification=2), output("OUT1", classification=2, binary_data=True)]),
    sent("K1 classification", spelt("OUT0", "BYTES", [1, 2], [b"10.000000:2", b"5.000000:0"]),
         kind="response", model_name="m"),
    sent("K2 classification binary", tensor("OUT0", "BYTES", [1, 2], [b"10.000000:2", b"5:0"]),
         kind="response", model_name="m"),
    sent("S1 shared memory input", tensor("IN0", "FP32", [2], None, **REGION)),
    sent("S1 shared memory output asked", IN0, outputs=[output("OUT0", **REGION)]),
    sent("shared memory between bytes", IN0, tensor("s", "BYTES", [3], None, **REGION), IN1),
    sent("shared memory output", tensor("OUT0", "FP32", [2], None, **REGION), kind="response",
         model_name="m"),
    sent("Y1 BYTES with an empty last", tensor("x", "BYTES", [2], [b"ab", b""]),
         blob=hexed("02000000 6162 00000000")),
    sent("Y7 BYTES not text", tensor("x", "BYTES", [2], [b"a\0b", b"\xff\xfe"]),
         blob=hexed("03000000 610062 02000000 fffe")),
    sent("Y9 BYTES of no elements", tensor("x", "BYTES", [0], [])),
    sent("parameters of every type", tensor("x", "INT8", [1], [1], a="s", b=1, c=True, d=0.5),
         parameters={"sequence_id": 7, "s": "t", "f": -1.5, "b": False}),
)  # fmt: skip

# What the tests of KServe and OVMS hold true
PEERS = (
    sent("KServe R1 JSON, BYTES and FP16", spelt("i", "INT32", [3], [1, 2, 3]),
         tensor("b", "BYTES", [1], [b"test"], own="kept"),
         tensor("h", "FP16", [3], [0x4CD * 2.0**-10, 0x466 * 2.0**-9, 0x666 * 2.0**-9]),
         blob=hexed("04000000 74657374 cd3c 6640 6642"), id="4be4e82f", model_name="m",
         outputs=[output("o0", p="q"), output("o1", binary_data=True, n=1)]),
    sent("KServe S3 two binary of three", tensor("o1", "FP16", [1], [1.0]),
         tensor("o2", "INT32", [1], [1]), spelt("o3", "BYTES", [1], [b"test"]), kind="response",
         blob=hexed("003c 01000000"), id="1", model_name="m", model_version="v1"),
    sent("KServe S4 all binary", tensor("o1", "FP16", [1], [1.0]), tensor("o2", "FP16", [1], [1.0]),
         tensor("o3", "BYTES", [1], [b"test"]), kind="response",
         blob=hexed("003c 003c 04000000 74657374"), model_name="m", parameters={"x": 1}),
    sent("KServe S9 JSON with blanks", tensor("o", "BYTES", [4], [b"cat", b"dog", b"bird", b"fish"]),
         kind="response", indent=0, model_name="m"),
    sent("KServe null data beside size 0", tensor("x", "FP32", [0], []),
         text='{"inputs":[{"name":"x","shape":[0],"datatype":"FP32","data":null,'
         '"parameters":{"binary_data_size":0}}]}'),
    sent("OVMS INT8 [1, 4]", tensor("x", "INT8", [1, 4], [0, 1, 4, 2]), blob=hexed("00010402")),
    sent("OVMS two elements in 20 bytes", tensor("x", "BYTES", [2], [b"abcd", b"abcdefgh"])),
    sent("OVMS zero dimension", tensor("x", "INT8", [1, 0], [])),
    sent("OVMS scalar", tensor("x", "INT16", [], [5]), blob=hexed("0500")),
    sent("OVMS white space around the JSON", tensor("x", "BYTES", [1], [b"abcd"]),
         text='\n\t {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1],\r\n'
         '"parameters": {"binary_data_size": 8}}]} \n\n'),
    sent("OVMS empty output in neither form", tensor("o", "FP32", [1, 0], []), kind="response",
         text='{\n    "model_name": "m",\n    "outputs": [{"name": "o", "shape": [1, 0],'
         '\n        "datatype": "FP32"}]\n}', model_name="m", encodable=False,
         why="section 3; an encoder writes binary_data_size 0"),
    sent("OVMS neither form beside bytes", tensor("e", "BYTES", [0], []),
         tensor("f", "INT8", [1], [5]), kind="response", encodable=False,
         text='{"outputs":[{"name":"e","shape":[0],"datatype":"BYTES"},{"name":"f","shape":[1],'
         '"datatype":"INT8","parameters":{"binary_data_size":1}}]}'),
)  # fmt: skip

# Shapes at the edge of what an array can be, and JSON that only looks strange
EDGES = (
    sent("64 dimensions", tensor("x", "UINT8", [1] * 64, [9])),
    sent("five dimensions", tensor("x", "INT16", [1, 2, 1, 3, 1], [1, 2, 3, 4, 5, 6])),
    sent("rank 0 BYTES", tensor("x", "BYTES", [], [b"one"])),
    sent("zero beside the largest FP32 extent", tensor("x", "FP32", [0, 2**61 - 1], [])),
    sent("zero behind the largest UINT8 extent", tensor("x", "UINT8", [2**63 - 1, 0], [])),
    sent("FP16 of no elements", tensor("x", "FP16", [1, 0], [])),
    sent("BF16 of no elements", tensor("x", "BF16", [4, 0], [])),
    sent("a length of two bytes", tensor("x", "BYTES", [1], [b"z" * 300])),
    sent("only empty elements", tensor("x", "BYTES", [2, 2], [b""] * 4)),
    sent("elements that look like prefixes", tensor("x", "BYTES", [2], [b"\1\0\0\0", b"{}"])),
    sent("bytes that look like JSON", tensor("x", "UINT8", [4], list(b' {"}'))),
    sent("every way in one message", tensor("b", "BYTES", [2], [b"odd", b"\xff"], note="kept"),
         spelt("j", "INT64", [1], [-1]), tensor("e", "FP64", [0, 3], []),
         tensor("s", "FP32", [9], None, **REGION), tensor("h", "BF16", [1], [1.5]),
         tensor("f", "FP64", [2], [0.1, nan]), spelt("t", "BYTES", [1], ["é".encode()]),
         align=64, id="mix", model_name="m", model_version="3", parameters={"priority": 1}),
    sent("names beyond ASCII", tensor("ввод", "INT8", [1], [1]), spelt("入力 🙂", "INT8", [1], [2]),
         outputs=[output("sortie é")]),
    sent("an escaped name", tensor("é/\n", "INT8", [1], [1]), blob=b"\1",
         text=r'{"inputs":[{"name":"\u00e9\/\n","shape":[1],"datatype":"INT8",'
         '"parameters":{"binary_data_size":1}}]}'),
    sent("null equals absent", X, text='{"id":null,"model_name":null,"model_version":null,'
         '"parameters":null,"outputs":null,"inputs":[{"name":"x","datatype":"FP32","shape":[1],'
         '"data":[1.5],"parameters":null}]}'),
    sent("null in a requested output", X, outputs=[output("o"), output("p")],
         text=f'{{"inputs":[{JSON_X}],"outputs":[{{"name":"o","parameters":null}},'
         '{"name":"p","parameters":{"binary_data":null}}]}'),
    sent("null size and region beside data", X,
         text='{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.5],"parameters":'
         '{"binary_data_size":null}}]}'),
    sent("unknown members", X, text='{"new":[{"a":[1,null]}],"inputs":[{"unit":"m","name":"x",'
         '"datatype":"FP32","shape":[1],"data":[1.5],"extra":{}}],"error":1}'),
    sent("J24 the last of equal keys", X, text=f'{{"inputs":[],"inputs":[{JSON_X[:-1]},'
         '"data":[2.5],"shape":[9],"data":[1.5],"shape":[1]}]}', why="Triton takes the first"),
    sent("J24 the last of equal sizes", tensor("x", "INT8", [2], [1, 2]), blob=b"\1\2",
         text='{"inputs":[{"name":"x","datatype":"INT8","shape":[2],"parameters":'
         '{"binary_data_size":1,"binary_data_size":2}}]}'),
    sent("a response of nothing", kind="response", model_name="m"),
)  # fmt: skip

VALID = (*DOCUMENTS, *BINARY, *SPELT, *TRITON, *PEERS, *EDGES)

# --- malformed messages --------------------------------------------------------------------------

BLOB = wire.pack("FP32", [1.0, 2.0])
GOOD, GOOD_LENGTH = wire.request([wire.entry("IN0", "FP32", [2], [1.0, 2.0])])
N = GOOD_LENGTH or 0


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`...` takes a member away."""
    return {key: value for key, value in (base | changes).items() if value is not ...}


def one(**changes: Any) -> dict[str, Any]:
    """A good JSON tensor, but for the changes."""
    return changed({"name": "x", "shape": [1], "datatype": "INT32", "data": [7]}, changes)


def sized(size: Any, **changes: Any) -> dict[str, Any]:
    """A good binary tensor of FP32 [2] but for the changes; 8 is its right size."""
    parameters = {"binary_data_size": size}
    return changed(
        {"name": "x", "shape": [2], "datatype": "FP32", "parameters": parameters}, changes
    )


def said(
    id: str,
    error: str,
    /,
    *tensors: object,
    body: bytes = b"",
    kind: Kind = "request",
    differs: str = "",
    **members: Any,
) -> Malformed:
    """A message of these JSON tensors and members, and bytes with their header length."""
    header = {"inputs" if kind == "request" else "outputs": tensors}
    text, _ = wire.message(changed(header, members))
    return Malformed(id, kind, text + body, len(text) if body else None, error, "", differs)


def text(id: str, error: str, body: str | bytes, differs: str = "") -> Malformed:
    """A request that is JSON alone, literally."""
    body = body.encode() if isinstance(body, str) else body
    return Malformed(id, "request", body, None, error, "", differs)


def length(id: str, header_length: int | str | bytes, differs: str = "") -> Malformed:
    """A good request of N bytes of JSON and 8 more, but for what its header length says."""
    return Malformed(id, "request", GOOD, header_length, "HeaderError", "", differs)


def data(
    id: str, error: str, datatype: str, shape: list[int], data: str, differs: str = ""
) -> Malformed:
    """A request of one tensor whose JSON `data` is given literally."""
    head = json.dumps({"name": "x", "shape": shape, "datatype": datatype})
    return text(id, error, f'{{"inputs":[{head[:-1]},"data":{data}}}]}}', differs)


def held(
    id: str, error: str, datatype: str, shape: list[int], blob: bytes, differs: str = ""
) -> Malformed:
    """A request of one binary tensor whose declared size is that of its bytes."""
    item = sized(len(blob), datatype=datatype, shape=shape)
    return said(id, error, item, body=blob, differs=differs)


STRICT = "Triton reads the leading digits; section 1: digits only"
LENGTHS = (
    length("B6 -1", -1),
    length("B6 '-1'", "-1"),
    length("B7 beyond the body", len(GOOD) + 1),
    length("B7 beyond the body, text", str(len(GOOD) + 1)),
    length("B8 abc", "abc", "Triton before 2.70 reads 0, a raw request"),
    length("B9 N and junk", f"{N}junk", STRICT),
    length("B9 N.0", f"{N}.0", STRICT),
    length("B9 N, N", f"{N}, {N}", STRICT),
    length("B10 +N", f"+{N}", STRICT),
    length("B10 blank before N", f" {N}", STRICT),
    length("B10 blank behind N", f"{N} ", STRICT),
    length("B10 newline behind N", f"{N}\n".encode(), STRICT),
    length("B11 0x5", "0x5", "Triton reads 0, a raw request"),
    length("B11 -0", "-0", "Triton reads 0, a raw request"),
    length("B12 empty", ""),
    length("B12 empty bytes", b""),
    length("B13 N + 1, a NUL in the JSON", N + 1),
    length("B14 N - 1", N - 1),
    length("HEAD1 99999999999", "99999999999"),
    length("HEAD1 2^64 + N", 2**64 + N),
    length("HEAD1 more digits than int takes", "9" * 5000),
    length("N with an underscore", f"{N // 10}_{N % 10}"),
    length("N in Arabic digits", "".join(chr(0x660 + int(digit)) for digit in str(N))),
    length("superscript digits", "\u00b2\u00b3"),
    length("OVMS -15", b"-15"),
    length("OVMS value", b"value"),
    replace(length("header length of nothing in a response", 0), kind="response"),
)  # fmt: skip

BASE = json.dumps({"inputs": [one()]})
FLOATS = '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}'
PARSED = (
    text("B1 no header length, the bytes begin with NUL", "HeaderError", GOOD),
    text("B2 no header length, the bytes begin with A", "HeaderError", GOOD[:N] + b"ABCDEFGH"),
    text("B16 padded with NUL", "HeaderError", BASE + "\0\0", "RapidJSON stops at a NUL"),
    text("C30 cut short", "HeaderError", BASE[:-1]),
    text("C31 a list", "HeaderError", "[]"),
    text("a string", "HeaderError", '"inputs"'),
    text("null", "HeaderError", "null"),
    text("R7 empty body, no header length", "HeaderError", "", "Triton: a raw request by accident"),
    text("only white space", "HeaderError", " \n"),
    text("OVMS empty object", "HeaderError", "{}"),
    text("J22 trailing text", "HeaderError", BASE + "x"),
    text("J22 a second object", "HeaderError", BASE + "{}"),
    text("J23 byte order mark", "HeaderError", "\ufeff" + BASE, "RapidJSON skips it"),
    text("J23 byte order mark, bare NaN", "HeaderError", "\ufeff" + FLOATS, "RapidJSON skips it"),
    text("UTF-16", "HeaderError", BASE.encode("utf-16-le")),
    text("UTF-16, bare NaN", "HeaderError", FLOATS.encode("utf-16")),
    text("Latin-1 in a name", "HeaderError", json.dumps({"inputs": [one(name="\xe9")]},
         ensure_ascii=False).encode("latin-1"), "RapidJSON passes bytes through"),
    text("a control character in a name", "HeaderError", BASE.replace("x", "\n")),
    text("a surrogate in a name", "DecodeError", BASE.replace("x", r"\ud800")),
    text("no-break space before", "HeaderError", "\xa0" + BASE),
    text("a comment", "HeaderError", BASE + "//"),
    text("single quotes", "HeaderError", BASE.replace('"', "'")),
    text("9 KServe trailing comma", "HeaderError", KSERVE_ALL_BINARY % ","),
    text("HEAD4 nested without end", "HeaderError", '{"inputs":' + "[" * 100_000),
    data("HEAD4 data nested without end", "HeaderError", "INT8", [1], "[" * 100_000),
    text("Y17 a byte that is no UTF-8", "HeaderError", BASE.replace("7", '"?"').replace(
         "INT32", "BYTES").encode().replace(b"?", b"\xff"), "RapidJSON passes bytes through"),
    data("J5 Inf", "HeaderError", "FP32", [1], "[Inf]", "RapidJSON takes it; section 4 does not"),
    data("J5 nan", "HeaderError", "FP32", [1], "[nan]"),
    data("a leading zero", "HeaderError", "INT8", [1], "[01]"),
    data("a leading plus", "HeaderError", "INT8", [1], "[+1]"),
    data("a leading point", "HeaderError", "FP32", [1], "[.5]"),
)  # fmt: skip

ASKED = {"name": "o", "parameters": {"binary_data": 1}}
REGIONS = {"shared_memory_region": "in"}
MEMBERS = (
    said("C28 no inputs", "HeaderError", inputs=...),
    said("C28 inputs null", "HeaderError", inputs=None),
    said("C29 inputs empty", "HeaderError"),
    said("inputs an object", "HeaderError", inputs=one()),
    said("an input that is no object", "HeaderError", 1),
    said("C32 no name", "HeaderError", one(name=...)),
    said("C33 no datatype", "HeaderError", one(datatype=...)),
    said("C34 no shape", "HeaderError", one(shape=...)),
    said("name a number", "HeaderError", one(name=1)),
    said("name null", "HeaderError", one(name=None)),
    said("datatype a number", "HeaderError", one(datatype=5)),
    said("C20 unknown datatype", "HeaderError", one(datatype="STRING")),
    said("C21 lower-case datatype", "HeaderError", one(datatype="int32")),
    said("X6 NUL in a name", "HeaderError", one(name="x\0y"), differs="Triton cuts the name there"),
    said("X6 NUL in a requested name", "HeaderError", one(), outputs=[output("x\0")],
         differs="Triton cuts the name there"),
    said("C23 two inputs of a name", "HeaderError", one(), one(shape=[1, 1])),
    said("C23 two outputs of a name", "HeaderError", one(), one(), kind="response"),
    said("C23 binary and JSON of a name", "HeaderError", one(), sized(8), body=BLOB),
    said("C25 one output asked twice", "HeaderError", one(), outputs=[output("o"), output("o")],
         differs="Triton before 2026 asks once"),
    said("C26 binary_data 1", "HeaderError", one(), outputs=[ASKED]),
    said("C27 binary_data_output a string", "HeaderError", one(),
         parameters={"binary_data_output": "true"}),
    said("OVMS binary_data_output empty", "HeaderError", one(),
         parameters={"binary_data_output": ""}),
    said("outputs an object", "HeaderError", one(), outputs={"name": "o"}),
    said("a requested output that is no object", "HeaderError", one(), outputs=["o"]),
    said("a requested output without name", "HeaderError", one(), outputs=[{}]),
    said("parameters of a requested output a list", "HeaderError", one(),
         outputs=[{"name": "o", "parameters": []}]),
    said("C39 id a number", "HeaderError", one(), id=1),
    said("model_name a number", "HeaderError", one(), model_name=1),
    said("model_version a number", "HeaderError", one(), model_version=1),
    said("X3 parameters of an input a list", "HeaderError", one(parameters=[])),
    said("X4 parameters a list", "HeaderError", one(), parameters=[]),
    said("an error reply", "HeaderError", kind="response", outputs=..., error="no such model"),
    said("outputs null in a response", "HeaderError", kind="response", outputs=None),
    said("C6 data and size", "HeaderError", sized(8, data=[1.0, 2.0]), body=BLOB),
    said("C6 data and size 0", "HeaderError", sized(0, data=[], shape=[0])),
    said("C7 neither", "HeaderError", one(data=...)),
    said("C7 neither, bytes there", "HeaderError", one(data=...), body=BLOB[:4]),
    said("C7 neither, data null", "HeaderError", one(data=None)),
    said("C7 neither in a response", "HeaderError", one(data=...), kind="response"),
    said("OVMS zero dimension in neither form, a request", "HeaderError",
         one(data=..., shape=[1, 0])),
    said("data and region", "HeaderError", one(parameters=REGIONS)),
    said("size and region", "HeaderError", sized(..., parameters={"binary_data_size": 8} | REGIONS),
         body=BLOB),
    said("region a number", "HeaderError", one(data=..., parameters={"shared_memory_region": 1})),
    said("J19 data a string", "HeaderError", one(shape=[0], data="x"),
         differs="Triton ignores the data of an empty tensor"),
    said("data a number", "HeaderError", one(data=7)),
    said("data an object", "HeaderError", one(data={"0": 7})),
    said("J1 FP16 as JSON", "HeaderError", one(datatype="FP16", data=[1.0])),
    said("J2 BF16 as JSON", "HeaderError", one(datatype="BF16", data=[1.0])),
    said("J3 FP16 as JSON in a response", "HeaderError", one(datatype="FP16"), kind="response"),
    said("C8 size a string", "HeaderError", sized("8"), body=BLOB),
    said("C9 size a float", "HeaderError", sized(8.0), body=BLOB),
    said("C11 size null", "HeaderError", sized(None), body=BLOB),
    said("OVMS size true", "HeaderError", sized(True, datatype="UINT8", shape=[1]), body=b"1"),
    said("OVMS size a list in a string", "HeaderError", sized("4, 4"), body=BLOB),
    said("size a list", "HeaderError", sized([8]), body=BLOB),
    said("C16 shape 2.0", "HeaderError", sized(8, shape=[2.0]), body=BLOB),
    said("shape true", "HeaderError", one(shape=[True])),
    said("shape of strings", "HeaderError", one(shape=["1"])),
    said("shape nested", "HeaderError", one(shape=[[1]])),
    said("shape of null", "HeaderError", one(shape=[None])),
    said("shape a number", "HeaderError", one(shape=1)),
    said("shape NaN", "HeaderError", one(shape=[nan])),
)  # fmt: skip

LAYOUTS = (
    said("no header length, size 8", "LayoutError", sized(8)),
    said("C1 short by 3", "LayoutError", sized(8), body=BLOB[:5]),
    said("C2 long by 2", "LayoutError", sized(8), body=BLOB + b"\0\0"),
    said("a tail behind JSON", "LayoutError", one(), body=b" "),
    said("a tail behind an empty tensor", "LayoutError", sized(0, shape=[0]), body=b"\0"),
    said("a tail behind a response", "LayoutError", sized(8), body=BLOB * 2, kind="response"),
    said("the second is short", "LayoutError", sized(8), sized(8, name="y"), body=BLOB + BLOB[:7]),
    said("OVMS size 8, 2 bytes", "LayoutError", sized(8), body=b"\0\0"),
    replace(said("OVMS N + 1, a blank into the JSON", "LayoutError", one(),
                 sized(2, datatype="UINT8"), body=b" 1"), header_length=142),
    said("C10 size -8", "LayoutError", sized(-8), body=BLOB),
    said("OVMS size -1 of no elements", "LayoutError", sized(-1, shape=[0])),
    said("OVMS the second size -1", "LayoutError", sized(8), sized(-1, name="y"), body=BLOB),
    said("the second size takes the first back", "LayoutError", sized(8),
         sized(2**64 - 8, name="y"), body=BLOB),
    said("X2 size 2^63", "LayoutError", sized(2**63), body=BLOB),
    said("X2 size 2^63 - 1", "LayoutError", sized(2**63 - 1, datatype="UINT8", shape=[2**63 - 1]),
         body=BLOB),
    said("X2 size 2^64 + 8", "LayoutError", sized(2**64 + 8), body=BLOB),
    said("X2 size 2^64 of no elements", "LayoutError", sized(2**64, shape=[0])),
    said("C12 shape -2", "LayoutError", sized(8, shape=[-2]), body=BLOB),
    said("C13 shape -1", "LayoutError", sized(8, shape=[-1]), body=BLOB),
    said("two negative dimensions", "LayoutError", sized(8, shape=[-1, -2]), body=BLOB),
    said("a negative beside a zero", "LayoutError", sized(0, shape=[0, -1])),
    said("C14 shape 2^64 - 1", "LayoutError", sized(8, shape=[2**64 - 1]), body=BLOB),
    said("C15 shape 2^63", "LayoutError", sized(8, shape=[2**63]), body=BLOB),
    said("shape 10^30", "LayoutError", one(shape=[10**30])),
    said("shape -10^30", "LayoutError", one(shape=[-(10**30)])),
    said("HEAD2 count over 2^64, JSON", "LayoutError", one(shape=[16, 2**60 + 2])),
    said("HEAD3 bytes over 2^64, JSON", "LayoutError", one(shape=[4, 2**60 + 2])),
    said("OVMS shape [65536, 65536]", "LayoutError", sized(8, shape=[65536, 65536]), body=BLOB),
    said("count wraps to 0", "LayoutError", sized(0, shape=[2**32, 2**32])),
    said("count wraps to 2", "LayoutError", sized(8, shape=[2, 2**63 + 1]), body=BLOB),
    said("bytes wrap to 0", "LayoutError", sized(0, shape=[2**62])),
    said("bytes wrap to 8", "LayoutError", sized(8, shape=[2**62 + 2]), body=BLOB),
    said("bytes just over 2^63", "LayoutError", sized(0, datatype="FP64", shape=[2**60])),
    said("zero, and the others over 2^63 bytes", "LayoutError", sized(0, shape=[0, 2**61])),
    said("the others over 2^63 bytes, and zero", "LayoutError", sized(0, shape=[2**61, 0])),
    said("zero between two over 2^63", "LayoutError",
         sized(0, datatype="UINT8", shape=[2**32, 0, 2**31])),
    said("a zero dimension does not excuse 2^63", "LayoutError", sized(0, shape=[2**63, 0])),
    said("65 dimensions", "LayoutError", sized(4, shape=[1] * 65), body=BLOB[:4]),
    said("65 dimensions, JSON", "LayoutError", one(shape=[1] * 65)),
    said("shared memory of a negative shape", "LayoutError",
         one(data=..., shape=[-1], parameters=REGIONS)),
    held("C3 size 4 for FP32 [2]", "LayoutError", "FP32", [2], BLOB[:4]),
    held("C4 size 12 for FP32 [2]", "LayoutError", "FP32", [2], BLOB + BLOB[:4]),
    held("C5 size 7 for FP32 [2]", "LayoutError", "FP32", [2], BLOB[:7]),
    held("bytes for no elements", "LayoutError", "FP32", [0], BLOB),
    held("no bytes for a scalar", "LayoutError", "FP32", [], b""),
    held("two bytes for one BOOL", "LayoutError", "BOOL", [1], b"\1\0"),
    held("9 KServe FP16 [2, 2] as 16 bytes", "LayoutError", "FP16", [2, 2], b"\0" * 16),
    held("9 KServe FP16 [3, 2] as 16 bytes", "LayoutError", "FP16", [3, 2], b"\0" * 16),
    held("9 KServe FP32 [2, 2] as 32 bytes", "LayoutError", "FP32", [2, 2], b"\0" * 32),
    held("Y2 BYTES, 2 of 3", "LayoutError", "BYTES", [3], wire.elements([b"ab", b"cd"])),
    held("Y2 BYTES, 2 of 3, room for 3", "LayoutError", "BYTES", [3], wire.elements([BLOB] * 2)),
    held("Y3 BYTES, 2 for 1", "LayoutError", "BYTES", [1], wire.elements([b"ab", b"cd"])),
    held("BYTES, 2 for a scalar", "LayoutError", "BYTES", [], wire.elements([b"", b""])),
    held("Y10 BYTES for no elements", "LayoutError", "BYTES", [0], wire.elements([b""])),
    held("Y11 no bytes for BYTES [2]", "LayoutError", "BYTES", [2], b""),
    held("BYTES, a count that cannot be there", "LayoutError", "BYTES", [2**40], BLOB),
    held("BYTES, a count that wraps", "LayoutError", "BYTES", [2**32, 2**32], b""),
    held("BYTES, less than a prefix", "LayoutError", "BYTES", [1], b"\0\0\0"),
    data("J15 too few", "LayoutError", "INT32", [2], "[1]"),
    data("J16 too many", "LayoutError", "INT32", [2], "[1,2,3]"),
    data("Y15 too many strings", "LayoutError", "BYTES", [1], '["a","b"]'),
    data("J18 data for no elements", "LayoutError", "INT32", [0], "[1,2,3]",
         "Triton ignores the data of an empty tensor"),
    data("no data for a scalar", "LayoutError", "INT32", [], "[]"),
    data("nested but empty", "LayoutError", "INT32", [1], "[[[],[]]]"),
)  # fmt: skip

INTEGERS = tuple(
    data(f"{'J8 ' if value == 300 else ''}{datatype} JSON {value}", "ElementError", datatype, [1],
         f"[{value}]", "Triton wraps around")
    for datatype, values in (
        ("UINT8", (-1, 2**8, 300)), ("UINT16", (-1, 2**16)), ("UINT32", (-1, 2**32)),
        ("UINT64", (-1, 2**64)), ("INT8", (-(2**7) - 1, 2**7)), ("INT16", (-(2**15) - 1, 2**15)),
        ("INT32", (-(2**31) - 1, 2**31)), ("INT64", (-(2**63) - 1, 2**63)),
    )
    for value in values
)  # fmt: skip

ELEMENTS = (
    held("Y4 payload cut", "ElementError", "BYTES", [1], b"\5\0\0\0ab", "seen by the backend only"),
    held("Y4 last payload cut", "ElementError", "BYTES", [2], wire.elements([b"a", b"bc"])[:-1]),
    held("Y5 prefix cut", "ElementError", "BYTES", [2], wire.elements([b"abcd"]) + b"\0\0"),
    held("Y6 length 2^32 - 1", "ElementError", "BYTES", [1], b"\xff\xff\xff\xffab"),
    held("length that wraps to itself", "ElementError", "BYTES", [1], b"\xfc\xff\xff\xff"),
    held("length 2^31", "ElementError", "BYTES", [1], b"\0\0\0\x80ab"),
    held("length big-endian", "ElementError", "BYTES", [1], b"\0\0\0\2ab"),
    held("OVMS length 0x11111111", "ElementError", "BYTES", [1], b"\x11\x11\x11\x11abcd"),
    held("OVMS length 22 of 4", "ElementError", "BYTES", [1], b"\x16\0\0\0abcd"),
    held("3 bytes behind the last element", "DecodeError", "BYTES", [1], b"\0\0\0\0abc"),
    said("an element reaches into the next tensor", "ElementError",
         sized(6, datatype="BYTES", shape=[1]), sized(8, name="y"), body=b"\5\0\0\0ab" + BLOB),
    held("R14 BOOL 2", "ElementError", "BOOL", [3], b"\0\1\2", "Triton passes any byte through"),
    held("R14 BOOL 255 after many", "ElementError", "BOOL", [100], b"\1" * 99 + b"\xff"),
    data("J7 FP32 1e39", "ElementError", "FP32", [1], "[1e39]", "Triton makes it infinite"),
    data("J7 FP32 integer 10^39", "ElementError", "FP32", [1], f"[{10**39}]"),
    data("FP64 integer 10^400", "ElementError", "FP64", [1], f"[{10**400}]"),
    data("FP64 1e400", "DecodeError", "FP64", [1], "[1e400]"),
    data("FP64 1e400 behind a bare NaN", "DecodeError", "FP64", [2], "[NaN,-1e400]"),
    data("J10 1.0 for an integer", "ElementError", "INT32", [1], "[1.0]"),
    data("J10 1e2 for an integer", "ElementError", "INT32", [1], "[1e2]"),
    data("true for an integer", "ElementError", "INT32", [1], "[true]"),
    data("null for an integer", "ElementError", "INT32", [2], "[1,null]"),
    data("string for an integer", "ElementError", "INT32", [1], '["1"]'),
    data("NaN for an integer", "ElementError", "INT32", [1], "[NaN]"),
    data("J12 1 for BOOL", "ElementError", "BOOL", [1], "[1]"),
    data("null for BOOL", "ElementError", "BOOL", [1], "[null]"),
    data("string for BOOL", "ElementError", "BOOL", [1], '["true"]'),
    data("J13 string for FP32", "ElementError", "FP32", [1], '["1.0"]'),
    data("'NaN' for FP64", "ElementError", "FP64", [1], '["NaN"]'),
    data("true for FP32", "ElementError", "FP32", [1], "[true]"),
    data("object for FP64", "ElementError", "FP64", [1], "[{}]"),
    data("Y14 number for BYTES", "ElementError", "BYTES", [1], "[1]"),
    data("null for BYTES", "ElementError", "BYTES", [1], "[null]"),
    data("true for BYTES", "ElementError", "BYTES", [1], "[true]"),
    data("Y16 lone high surrogate", "DecodeError", "BYTES", [1], r'["\ud800"]'),
    data("Y16 lone low surrogate", "DecodeError", "BYTES", [1], r'["a\udc00b"]'),
    data("Y16 surrogates the wrong way round", "DecodeError", "BYTES", [1], r'["\ude00\ud83d"]'),
    data("the last of many", "ElementError", "INT8", [50], f"[{'0,' * 49}128]"),
)  # fmt: skip

MESSAGES: dict[str, str] = {}  # the full text of an error, by the case's id

MALFORMED = tuple(
    replace(case, message=MESSAGES.get(case.id, ""))
    for case in (*LENGTHS, *PARSED, *MEMBERS, *LAYOUTS, *INTEGERS, *ELEMENTS)
)

# --- raw binary requests (section 5) -------------------------------------------------------------

RAW_VALID = tuple(
    RawValid(id, body, "IN0", datatype, dims, batching, shape, values)
    for id, body, datatype, dims, batching, shape, values in (
        ("9 Triton", wire.pack("INT32", [1, 2, 3, 4]), "INT32", (4,), False, (4,), [1, 2, 3, 4]),
        ("R1 one variable", BLOB, "FP32", (-1,), False, (2,), [1.0, 2.0]),
        ("R2 batching", BLOB, "FP32", (-1,), True, (1, 2), [1.0, 2.0]),
        ("R3 a fixed factor", BLOB * 3, "FP32", (-1, 3), False, (2, 3), [1.0, 2.0] * 3),
        ("variable last", BLOB * 3, "FP32", (3, -1), True, (1, 3, 2), [1.0, 2.0] * 3),
        ("all fixed", BLOB, "FP32", (2, 1), False, (2, 1), [1.0, 2.0]),
        ("all fixed, batching", BLOB, "FP32", (2,), True, (1, 2), [1.0, 2.0]),
        ("scalar", BLOB[:4], "FP32", (), False, (), [1.0]),
        ("scalar, batching", BLOB[:4], "FP32", (), True, (1,), [1.0]),
        ("R6 empty body", b"", "FP32", (-1,), False, (0,), []),
        ("empty body, a fixed factor", b"", "INT8", (3, -1), True, (1, 3, 0), []),
        ("fixed zero", b"", "INT8", (2, 0), False, (2, 0), []),
        ("R10 BYTES", b"427", "BYTES", (1,), False, (1,), [b"427"]),
        ("R10 BYTES, batching", b"427", "BYTES", (1,), True, (1, 1), [b"427"]),
        ("BYTES of two ones", b"\xff\0", "BYTES", (1, 1), False, (1, 1), [b"\xff\0"]),
        ("R12 own prefix", b"\1\0\0\0a", "BYTES", (1,), False, (1,), [b"\1\0\0\0a"]),
        ("R13 empty BYTES", b"", "BYTES", (1,), False, (1,), [b""]),
        ("R14 BOOL", b"\0\1", "BOOL", (-1,), False, (2,), [False, True]),
        ("R15 FP16", hexed("003c 007e"), "FP16", (-1,), False, (2,), [1.0, nan]),
        ("R16 BF16", hexed("803f 00c0"), "BF16", (-1,), False, (2,), [1.0, -2.0]),
        ("a body that looks like JSON", b"{}", "UINT8", (-1,), False, (2,), [123, 125]),
    )
)

RAW_MALFORMED = tuple(
    RawMalformed(id, body, datatype, dims, batching, error)
    for id, body, datatype, dims, batching, error in (
        ("R4 16 bytes for [-1, 3]", BLOB * 2, "FP32", (-1, 3), False, "LayoutError"),
        ("R5 7 bytes for FP32", BLOB[:7], "FP32", (-1,), False, "LayoutError"),
        ("R8 two variable", BLOB, "FP32", (-1, -1), False, "LayoutError"),
        ("R8 two variable, empty body", b"", "FP32", (-1, -1), True, "LayoutError"),
        ("R11 BYTES of variable dims", b"427", "BYTES", (-1,), False, "LayoutError"),
        ("BYTES [2]", wire.elements([b"a", b"b"]), "BYTES", (2,), False, "LayoutError"),
        ("BYTES [0]", b"", "BYTES", (0,), True, "LayoutError"),
        ("R14 BOOL 2", b"\0\1\2", "BOOL", (-1,), False, "ElementError"),
        ("fixed, too short", BLOB[:4], "FP32", (2,), False, "LayoutError"),
        ("fixed, too long", BLOB * 2, "FP32", (2,), True, "LayoutError"),
        ("empty body for a fixed shape", b"", "FP32", (1,), False, "LayoutError"),
        ("bytes for a fixed zero", BLOB, "FP32", (0,), False, "LayoutError"),
        ("bytes for a zero beside a variable", BLOB, "FP32", (-1, 0), False, "LayoutError"),
        ("fixed factors wrap to 1", b"\0", "UINT8", (-1, 2**63 + 1, 2), False, "LayoutError"),
        ("fixed factors wrap to 0", b"", "UINT8", (-1, 2**32, 2**32), False, "LayoutError"),
        ("fixed factors over 2^63 bytes", b"", "FP64", (-1, 2**60), False, "LayoutError"),
    )
)
