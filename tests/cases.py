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

KINDS: tuple[Kind, ...] = ("request", "response")
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
    error: str  # "DecodeError" where the rules leave the kind open
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
    """The FP32 neighbours."""
    return wire.unpack("FP32", wire.pack("FP32", values), len(values))


def output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def read(
    id: str, datatype: str, shape: list[int], data: str, values: list[Any], **more: Any
) -> Valid:
    """A response of one output whose JSON `data` is given literally."""
    head = json.dumps({"name": "OUT0", "shape": shape, "datatype": datatype})
    text = f'{{"outputs":[{head[:-1]},"data":{data}}}]}}'
    return sent(id, spelt("OUT0", datatype, shape, values), kind="response", text=text, **more)


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
    sent(f"{datatype} binary", tensor("x", datatype, [len(values)], values), blob=hexed(literal))
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
INTEGERS = {f"UINT{n}": (0, 2**n - 1) for n in (8, 16, 32, 64)} | {
    f"INT{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)
}
NESTED = "[" * 99 + "7" + "]" * 99
SPELT = (
    read("BOOL JSON, J11", "BOOL", [2], "[true,false]", [True, False]),
    read("UINT8 JSON, minus zero", "UINT8", [1], "[-0]", [0]),
    *(read(f"{datatype} JSON", datatype, [2], f"[{low},{high}]", [low, high])
      for datatype, (low, high) in INTEGERS.items()),
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
    sent("KServe S9 JSON with blanks", tensor("o", "BYTES", [3], [b"cat", b"dog", b"bird"]),
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

HEADER, LAYOUT, ELEMENT, ANY = "HeaderError", "LayoutError", "ElementError", "DecodeError"
BLOB = wire.pack("FP32", [1.0, 2.0])
GOOD, _ = wire.request([wire.entry("IN0", "FP32", [2], [1.0, 2.0])])
N = len(GOOD) - len(BLOB)
BLANK, _ = wire.request([wire.entry("x", "UINT8", [2], b" 1")])


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`...` takes a member away."""
    return {key: value for key, value in (base | changes).items() if value is not ...}


def one(**changes: Any) -> dict[str, Any]:
    """A good JSON tensor, but for the changes."""
    return changed({"name": "x", "shape": [1], "datatype": "INT32", "data": [7]}, changes)


def sized(size: object, **changes: Any) -> dict[str, Any]:
    """A binary tensor of FP32 [2], so 8 is its right size, but for the changes."""
    good = {"shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    return one(data=...) | good | changes


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
    """A message of these JSON tensors and members; the header length is right if bytes follow."""
    header = {"inputs" if kind == "request" else "outputs": tensors}
    whole, header_length = wire.message(changed(header, members), body)
    return Malformed(id, kind, whole, header_length, error, differs=differs)


def text(id: str, error: str, body: str | bytes, differs: str = "") -> Malformed:
    """A request that is JSON alone, literally."""
    whole = body.encode() if isinstance(body, str) else body
    return Malformed(id, "request", whole, None, error, differs=differs)


def data(id: str, error: str, datatype: str, n: int, data: str, *, differs: str = "") -> Malformed:
    """A request of one tensor whose JSON `data` is given literally."""
    head = json.dumps(one(shape=[n], datatype=datatype, data=...))
    return text(id, error, f'{{"inputs":[{head[:-1]},"data":{data}}}]}}', differs)


def held(
    id: str, error: str, datatype: str, shape: list[int], blob: bytes, **more: Any
) -> Malformed:
    """A request of one binary tensor whose declared size is that of its bytes."""
    return said(id, error, sized(len(blob), datatype=datatype, shape=shape), body=blob, **more)


STRICT = "Triton reads the digits in front (section 1)"
RAW = "Triton reads 0 and takes the body for a raw request"
LENGTHS = tuple(
    Malformed(f"{id} header length {value!r:.20}", "request", GOOD, value, HEADER, "", differs)
    for id, differs, values in (
        ("B6", "", (-1, "-1", -(2**63))),
        ("B7", "", (len(GOOD) + 1, str(len(GOOD) + 1))),
        ("HEAD1", "", (2**64 + N, "99999999999", "9" * 5000)),
        ("B8", RAW, ("abc", b"abc")),
        ("B9", STRICT, (f"{N}junk", f"{N}.0", f"{N}, {N}", f"{N}e0")),
        ("B10", STRICT, (f"+{N}", f" {N}", f"{N} ", f"{N}\n", f"{N}\n".encode())),
        ("B11", RAW, ("0x5", "-0")),
        ("B12", RAW, ("", b"")),
        ("B13 B14", "", (N + 1, N - 1)),  # a NUL is no JSON; nor is an object without its end
        ("OVMS", "", ("-15", b"value")),
        # what int() or str.isdigit() would take
        ("lenient", "", (f"{N // 10}_{N % 10}", "".join(chr(0x660 + int(d)) for d in str(N)), "²")),
    )
    for value in values
)

BASE = json.dumps({"inputs": [one()]})
FLOATS = BASE.replace("INT32", "FP32").replace("7", "NaN")  # takes the second parser, if any
PARSED = (
    text("B1 no header length, the bytes begin with NUL", HEADER, GOOD),
    text("B2 no header length, the bytes begin with A", HEADER, GOOD[:N] + b"ABCDEFGH"),
    text("B16 padded with NUL", HEADER, BASE + "\0\0", "RapidJSON stops at a NUL"),
    text("C30 cut short", HEADER, BASE[:-1]),
    *(text(f"C31 root {root}", HEADER, root) for root in ("[]", "1", '"inputs"', "null")),
    text("R7 empty body, no header length", HEADER, "", "Triton: a raw request, by accident"),
    Malformed("header length 0 in a response", "response", GOOD, 0, HEADER),
    text("only white space", HEADER, " \n"),
    text("OVMS empty object", HEADER, "{}"),
    *(text(f"J22 trailing {tail!r}", HEADER, BASE + tail) for tail in ("x", "{}", "//", "\xa0")),
    *(text(f"J23 {encoding}, NaN {'NaN' in body}", HEADER, body.encode(encoding),
           "RapidJSON skips a byte order mark of UTF-8")
      for encoding in ("utf-8-sig", "utf-16", "utf-16-le") for body in (BASE, FLOATS)),
    text("Y17 Latin-1", HEADER, BASE.replace("x", "\xe9").encode("latin-1"), "passed through"),
    text("Y17 Latin-1 in BYTES", HEADER, BASE.replace("INT32", "BYTES").replace("7", '"\xff"')
         .encode("latin-1"), "passed through"),
    text("a control character in a name", HEADER, BASE.replace("x", "\n")),
    text("Y16 a surrogate in a name", ANY, BASE.replace("x", r"\ud800")),
    text("single quotes", HEADER, BASE.replace('"', "'")),
    text("9 KServe trailing comma", HEADER, KSERVE_ALL_BINARY % ","),
    text("HEAD4 nested without end", HEADER, '{"inputs":' + "[" * 100_000),
    data("HEAD4 data nested without end", HEADER, "INT8", 1, "[" * 100_000),
    *(data(f"J5 {token}", HEADER, "FP32", 1, f"[{token}]", differs="RapidJSON takes it")
      for token in ("Inf", "-Inf", "-NaN")),
    *(data(f"no number: {token}", HEADER, "FP32", 1, f"[{token}]")
      for token in ("nan", "01", "+1", ".5", "1.", "0x1", "-")),
)  # fmt: skip

REGION_ONLY = {"shared_memory_region": "in"}
EMPTY = "Triton ignores the data of an empty tensor"
CUT = "Triton cuts the name there"
NO_SIZES: tuple[object, ...] = ("8", 8.0, None, True, "4, 4", [8], {})
NO_SHAPES: tuple[object, ...] = ([1.0], [True], ["1"], [[1]], [None], [nan], "1", {})
NO_LISTS: tuple[object, ...] = ({}, ["o"], [{}], "o", True)
MEMBERS = (
    said("C28 no inputs", HEADER, inputs=...),
    said("C29 inputs empty", HEADER),
    *(said(f"C28 inputs {value}", HEADER, inputs=value) for value in (None, *NO_LISTS)),
    *(said(f"C32-C34 {key} {value}", HEADER, one(**{key: value}))
      for key in ("name", "datatype", "shape") for value in (..., None, 1)),
    *(said(f"C20 C21 {name}", HEADER, one(datatype=name)) for name in ("STRING", "FP8", "int32")),
    said("C39 id 1", HEADER, one(), id=1),
    said("C39 model_name 1", HEADER, one(), model_name=1, differs="Triton does not read it"),
    said("C39 model_version 1", HEADER, one(), model_version=1, differs="Triton does not read it"),
    said("X6 NUL in a name", HEADER, one(name="x\0y"), differs=CUT),
    said("X6 NUL in a requested name", HEADER, one(), outputs=[output("o\0")], differs=CUT),
    said("C23 two inputs of a name", HEADER, one(), one(shape=[1, 1])),
    said("C23 two outputs of a name", HEADER, one(), one(), kind="response"),
    said("C23 binary and JSON of a name", HEADER, one(), sized(8), body=BLOB),
    said("C25 one output asked twice", HEADER, one(), outputs=[output("o"), output("o")],
         differs="Triton before 2026 reads it once"),
    *(said(f"C26 binary_data {value!r}", HEADER, one(), outputs=[output("o", binary_data=value)])
      for value in (1, "true")),
    *(said(f"C27 binary_data_output {value!r}", HEADER, one(),
           parameters={"binary_data_output": value}) for value in (1, "true", "")),
    *(said(f"outputs {value}", HEADER, one(), outputs=value) for value in NO_LISTS),
    said("X3 parameters []", HEADER, one(parameters=[]), differs="Triton takes it for absent"),
    said("X4 parameters [] of the request", HEADER, one(), parameters=[]),
    said("X3 parameters [] of an output", HEADER, one(), outputs=[{"name": "o", "parameters": []}],
         differs="Triton takes it for absent"),
    said("an error reply", HEADER, kind="response", outputs=..., error="no such model"),
    said("outputs null in a response", HEADER, kind="response", outputs=None),
    said("C6 data and size", HEADER, sized(8, data=[1.0, 2.0]), body=BLOB),
    said("C6 data and size 0", HEADER, sized(0, data=[], shape=[0])),
    said("C6 data and region", HEADER, one(parameters=REGION_ONLY)),
    said("C6 size and region", HEADER, sized(8, parameters={"binary_data_size": 8} | REGION_ONLY),
         body=BLOB),
    said("C7 neither", HEADER, one(data=...)),
    said("C7 neither, bytes there", HEADER, one(data=...), body=BLOB[:4]),
    said("C7 neither, data null", HEADER, one(data=None)),
    said("C7 neither in a response", HEADER, one(data=...), kind="response"),
    said("OVMS zero dimension, neither, a request", HEADER, one(data=..., shape=[1, 0])),
    said("region a number", HEADER, one(data=..., parameters={"shared_memory_region": 1})),
    said("J19 data of no elements", HEADER, one(shape=[0], data="x"), differs=EMPTY),
    *(said(f"data {value!r}", HEADER, one(data=value)) for value in (7, "7", True, {"0": 7})),
    *(said(f"J1-J4 {name} as JSON, {kind}", HEADER, one(datatype=name, data=[1.0]), kind=kind)
      for name in ("FP16", "BF16") for kind in KINDS),
    *(said(f"C8-C11 OVMS size {size!r}", HEADER, sized(size), body=BLOB)
      for size in NO_SIZES),
    said("OVMS size true for 1", HEADER, sized(True, datatype="UINT8", shape=[1]), body=b"1"),
    *(said(f"C16 shape {shape}", HEADER, one(shape=shape))
      for shape in NO_SHAPES),
)  # fmt: skip

THIRD = (2**64 + 2) // 3  # times 3 it is 2 in 64 bits
LAYOUTS = (
    said("no header length, size 8", LAYOUT, sized(8)),
    said("C1 short by 3", LAYOUT, sized(8), body=BLOB[:5]),
    said("C2 long by 2", LAYOUT, sized(8), body=BLOB + b"\0\0"),
    said("C2 a tail behind JSON", LAYOUT, one(), body=b" "),
    said("C2 a tail behind an empty tensor", LAYOUT, sized(0, shape=[0]), body=b"\0"),
    said("C2 a tail behind a response", LAYOUT, sized(8), body=BLOB * 2, kind="response"),
    said("OVMS size 8, 2 bytes", LAYOUT, sized(8), body=b"\0\0"),
    said("the second is short", LAYOUT, sized(8), sized(8, name="y"), body=BLOB + BLOB[:7]),
    Malformed("B13 a blank taken for JSON", "request", BLANK, len(BLANK) - 1, LAYOUT),
    *(Malformed(f"9 KServe {kind} as printed", kind, head.encode() + bytes(n), len(head), LAYOUT)
      for kind, head, n in zip(KINDS, (KSERVE_REQUEST % 16, KSERVE_RESPONSE % 16), (19, 16),
                               strict=True)),
    *(said(f"C10 X2 size {size}", LAYOUT, sized(size), body=BLOB)
      for size in (-8, -(2**63), 2**63 - 1, 2**63, 2**64 - 8, 2**64 + 8, 10**30)),
    *(said(f"OVMS the second size {size}", LAYOUT, sized(8), sized(size, name="y"), body=BLOB)
      for size in (-1, 2**64 - 8)),
    *(said(f"size {size} of no elements", LAYOUT, sized(size, shape=[0])) for size in (-1, 2**64)),
    *(said(f"{id} {datatype} {shape}, size {size}", LAYOUT,
           sized(size, datatype=datatype, shape=shape), body=BLOB[:size])
      for id, datatype, size, shape in (
          ("C12", "FP32", 8, [-2]), ("C13", "FP32", 8, [-1]), ("C13", "FP32", 8, [-1, -2]),
          ("C13", "FP32", 0, [0, -1]), ("C14", "FP32", 8, [2**64 - 1]), ("C15", "FP32", 8, [2**63]),
          ("OVMS", "FP32", 8, [65536, 65536]),
          ("count wraps to 0", "FP32", 0, [2**32, 2**32]), ("bytes wrap to 0", "FP32", 0, [2**62]),
          ("count wraps to 2", "FP32", 8, [3, THIRD]), ("bytes wrap to 8", "FP32", 8, [2**62 + 2]),
          ("over 2^63", "FP64", 0, [2**60]))),
    *(said(f"no elements in {datatype} {shape}", LAYOUT, sized(0, datatype=datatype, shape=shape),
           differs="numpy has no such array") for datatype, shape in (
        ("FP32", [0, 2**61]), ("FP32", [2**61, 0]), ("UINT8", [2**32, 0, 2**31]),
        ("UINT8", [2**63, 0]))),
    *(said(f"{id} {shape}, JSON", LAYOUT, one(shape=shape)) for id, shape in (
        ("HEAD2", [16, 2**60 + 2]), ("HEAD3", [4, 2**60 + 2]), ("C12", [-1]), ("C15", [10**30]))),
    *(said(f"{rank} dimensions", LAYOUT, sized(4, shape=[1] * rank), body=BLOB[:4],
           differs="numpy has no such array") for rank in (65, 1000)),
    said("65 dimensions, JSON", LAYOUT, one(shape=[1] * 65), differs="numpy has no such array"),
    said("negative in shared memory", LAYOUT, one(data=..., shape=[-1], parameters=REGION_ONLY)),
    *(held(f"{id} for {datatype} {shape}", LAYOUT, datatype, shape, blob)
      for id, datatype, shape, blob in (
          ("C3 4 bytes", "FP32", [2], BLOB[:4]), ("C4 12 bytes", "FP32", [2], BLOB + BLOB[:4]),
          ("C5 7 bytes", "FP32", [2], BLOB[:7]), ("8 bytes", "FP32", [0], BLOB),
          ("no bytes", "FP32", [], b""), ("2 bytes", "BOOL", [1], b"\1\0"),
          ("9 KServe 32 bytes", "FP32", [2, 2], bytes(32)),
          ("Y2 two", "BYTES", [3], wire.elements([b"ab", b"cd"])),
          ("Y2 two with room", "BYTES", [3], wire.elements([BLOB, BLOB])),
          ("Y3 two", "BYTES", [1], wire.elements([b"ab", b"cd"])),
          ("Y3 two", "BYTES", [], bytes(8)), ("Y10 one", "BYTES", [0], bytes(4)),
          ("Y11 no bytes", "BYTES", [2], b""), ("less than a prefix", "BYTES", [1], bytes(3)),
          ("8 bytes", "BYTES", [2**40], bytes(8)), ("8 bytes", "BYTES", [3, THIRD], bytes(8)))),
    data("J15 too few", LAYOUT, "INT32", 2, "[1]"),
    data("J16 too many", LAYOUT, "INT32", 2, "[1,[2,3]]"),
    data("Y15 too many strings", LAYOUT, "BYTES", 1, '["a","b"]'),
    data("J18 data for no elements", LAYOUT, "INT32", 0, "[1,2,3]", differs=EMPTY),
    data("J15 nested but empty", LAYOUT, "INT32", 1, "[[[],[]]]"),
    said("J15 no data for a scalar", LAYOUT, one(shape=[], data=[])),
)  # fmt: skip

WRAPS = "Triton refuses a negative UINT and wraps the others"
LAST = "Triton leaves the end of the last element to the backend"
ELEMENTS = (
    *(held(id, ELEMENT, "BYTES", [1], blob, differs=LAST) for id, blob in (
        ("Y4 payload cut", b"\5\0\0\0ab"), ("Y6 length 2^32 - 1", b"\xff\xff\xff\xffab"),
        ("length 2^32 - 4", b"\xfc\xff\xff\xff"), ("length 2^31", b"\0\0\0\x80ab"),
        ("length big-endian", b"\0\0\0\2ab"), ("OVMS 0x11111111", b"\x11\x11\x11\x11abcd"),
        ("OVMS length 22 of 4", b"\x16\0\0\0abcd"))),
    held("Y4 last payload cut", ELEMENT, "BYTES", [2], wire.elements([b"a", b"bc"])[:-1],
         differs=LAST),
    held("Y5 prefix cut", ELEMENT, "BYTES", [2], wire.elements([b"abcd"]) + b"\0\0"),
    held("Y3 Y5 a stray byte behind the last", ANY, "BYTES", [1], bytes(5)),
    said("Y4 an element reaches into the next tensor", ELEMENT,
         sized(6, datatype="BYTES", shape=[1]), sized(8, name="y"), body=b"\5\0\0\0ab" + BLOB,
         differs=LAST),
    held("R14 BOOL 2", ELEMENT, "BOOL", [3], b"\0\1\2", differs="passed through"),
    held("R14 BOOL 255 after many", ELEMENT, "BOOL", [100], b"\1" * 99 + b"\xff",
         differs="passed through"),
    data("J8 the last of many", ELEMENT, "INT8", 50, f"[{'0,' * 49}128]"),
    data("FP64 1e400", ANY, "FP64", 1, "[1e400]"),
    data("FP64 10^400 in digits", ANY, "FP64", 1, f"[{10**400}]"),
    data("FP64 -1e400 behind a bare NaN", ANY, "FP64", 2, "[NaN,-1e400]"),
    *(data(f"{id} {datatype} JSON {item:.25}", ELEMENT, datatype, 1, f"[{item}]", differs=differs)
      for id, differs, datatype, items in (
          ("J7", "Triton makes it infinite", "FP32", ("1e39", "-1e39", str(10**39))),
          ("J8", "Triton wraps it to 44", "UINT8", ("300",)),
          *(("J8 J9", WRAPS, datatype, (str(low - 1), str(high + 1)))
            for datatype, (low, high) in INTEGERS.items()),
          ("J10", "", "INT32", ("1.0", "1e2", "true", "null", '"1"', "NaN", "{}")),
          ("J10", "", "UINT64", ("1.8446744073709551615e19", "false")),
          ("J12", "", "BOOL", ("1", "0", "null", '"true"')),
          ("J13", "", "FP32", ("true", '"1.0"', '"NaN"', "{}")),
          ("Y14", "", "BYTES", ("1", "null", "true", "{}")))
      for item in items),
    *(data(f"Y16 lone surrogate {item}", ANY, "BYTES", 1, f'["{item}"]')
      for item in (r"\ud800", r"a\udc00b", r"\ude00\ud83d")),
)  # fmt: skip

MESSAGES: dict[str, str] = {}  # the full text of an error, by the case's id
MALFORMED = tuple(
    replace(case, message=MESSAGES.get(case.id, ""))
    for case in (*LENGTHS, *PARSED, *MEMBERS, *LAYOUTS, *ELEMENTS)
)

# --- raw binary requests (section 5) -------------------------------------------------------------

RAW_VALID = tuple(
    RawValid(id, body, "IN0", datatype, dims, batching, shape, values)
    for id, body, datatype, dims, batching, shape, values in (
        ("9 Triton", wire.pack("INT32", [1, 2, 3, 4]), "INT32", (4,), False, (4,), [1, 2, 3, 4]),
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
        ("R15 FP16", hexed("003c 007e"), "FP16", (-1,), False, (2,), [1.0, nan]),
        ("R16 BF16", hexed("803f 00c0"), "BF16", (-1,), False, (2,), [1.0, -2.0]),
        ("a body that looks like JSON", b"{}", "UINT8", (-1,), False, (2,), [123, 125]),
    )
)

RAW_MALFORMED = tuple(
    RawMalformed(id, body, datatype, dims, batching, error)
    for id, body, datatype, dims, batching, error in (
        ("R4 16 bytes for [-1, 3]", BLOB * 2, "FP32", (-1, 3), False, LAYOUT),
        ("R5 7 bytes for FP32", BLOB[:7], "FP32", (-1,), False, LAYOUT),
        ("R8 two variable", BLOB, "FP32", (-1, -1), False, LAYOUT),
        ("R8 two variable, empty body", b"", "FP32", (-1, -1), True, LAYOUT),
        ("R11 BYTES of variable dims", b"427", "BYTES", (-1,), False, LAYOUT),
        ("R11 BYTES [2]", wire.elements([b"a", b"b"]), "BYTES", (2,), False, LAYOUT),
        ("R11 BYTES [0]", b"", "BYTES", (0,), True, LAYOUT),
        ("R14 BOOL 2", b"\0\1\2", "BOOL", (-1,), False, ELEMENT),
        ("fixed, too short", BLOB[:4], "FP32", (2,), False, LAYOUT),
        ("fixed, too long", BLOB * 2, "FP32", (2,), True, LAYOUT),
        ("fixed, empty body", b"", "FP32", (1,), False, LAYOUT),
        ("fixed zero, 8 bytes", BLOB, "FP32", (0,), False, LAYOUT),
        ("fixed zero beside a variable, 8 bytes", BLOB, "FP32", (-1, 0), False, LAYOUT),
        ("fixed factors wrap to 2", bytes(2), "UINT8", (-1, 3, THIRD), False, LAYOUT),
        ("fixed factors wrap to 0", b"", "UINT8", (-1, 2**32, 2**32), False, LAYOUT),
        ("fixed factors over 2^63 bytes", b"", "FP64", (-1, 2**60), False, LAYOUT),
    )
)
