"""The types of the cases in cases.py and malformed.py, and messages that both use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["request", "response"]
Requested = tuple[str, bool | None, dict[str, Any]]

KINDS: tuple[Kind, ...] = ("request", "response")
from_hex = bytes.fromhex


@dataclass(frozen=True)
class ExpectedTensor:
    """`values` are flat, row-major Python values (bytes for BYTES), or None in shared memory."""

    name: str
    datatype: Any
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
    parameters: dict[str, Any] = field(default_factory=dict)  # including binary_data_output
    message_id: str | None = None
    model_name: str | None = None
    model_version: str | None = None
    encodable: bool = True  # False: the encoder writes this differently or rejects it
    why: str = ""


@dataclass(frozen=True)
class Malformed:
    id: str
    kind: Kind
    body: bytes
    header_length: int | str | bytes | None
    error: str  # "DecodeError" if the rules do not determine the class
    message: str = ""
    differs: str = ""  # why our result differs from Triton's


@dataclass(frozen=True)
class RawValid:
    id: str
    body: bytes
    name: str
    datatype: Any
    dims: tuple[int, ...]
    batching: bool
    shape: tuple[int, ...]
    values: list[Any]


@dataclass(frozen=True)
class RawMalformed:
    id: str
    body: bytes
    datatype: Any
    dims: tuple[int, ...]
    batching: bool
    error: str


def same(left: object, right: object) -> bool:
    """Return whether values are equal. NaN equals NaN; -0.0 and 0.0, True and 1 differ."""
    return repr(left) == repr(right)


def output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


INTEGERS = {f"UINT{n}": (0, 2**n - 1) for n in (8, 16, 32, 64)} | {
    f"INT{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)
}

# The messages of the protocol documents (section 9), with placeholders for their wrong sizes
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
