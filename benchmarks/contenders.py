"""CONTENDERS: ways to encode a request and to decode a response, by name.

Each takes and returns the same things, so that one check holds for all: arrays by name in, body
and header length out; and back.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .floor import library
from .workloads import Arrays

Prepared = Any
Names = list[str]
Found = list[NDArray[Any]]
NAMES = {"f": "FP32", "O": "BYTES"}


@dataclass(frozen=True)
class Contender:
    """``encode`` and ``decode`` are measured.

    ``prepare`` makes what ``encode`` takes, ``join`` one body and its header length of what it
    returned. ``decode`` takes a body, its header length and the names of the arrays to return.
    """

    prepare: Callable[[Arrays], Prepared]
    encode: Callable[[Prepared], Any]
    join: Callable[[Any], tuple[bytes, int | None]]
    decode: Callable[[bytes, int | None, Names], Found]


# --- tensorwire ---


def our_request(arrays: Arrays) -> tw.InferRequest:
    return tw.InferRequest([tw.Tensor(name, array) for name, array in arrays.items()])


def our_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    response = tw.decode_response(body, header_length)
    return [response[name].as_numpy() for name in names]


OURS = Contender(
    lambda arrays: arrays,
    lambda arrays: tw.encode_request(our_request(arrays)),
    lambda frame: (bytes(frame), frame.header_length),
    our_decode,
)
OURS_PREPARED = Contender(our_request, tw.encode_request, OURS.join, our_decode)


# --- tritonclient ---


@cache
def http() -> Any:
    """The tritonclient package, which may be missing."""
    return import_module("tritonclient.http")


def triton_inputs(arrays: Arrays) -> list[Any]:
    inputs = []
    for name, array in arrays.items():
        tensor = http().InferInput(name, list(array.shape), NAMES[array.dtype.kind])
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def triton_encode(inputs: list[Any]) -> tuple[bytes, int | None]:
    body, header_length = http().InferenceServerClient.generate_request_body(inputs)
    return body, header_length


def triton_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    parse = http().InferenceServerClient.parse_response_body
    result = parse(body, header_length=header_length)
    return [result.as_numpy(name) for name in names]


def as_they_are(encoded: tuple[bytes, int | None]) -> tuple[bytes, int | None]:
    return encoded


TRITONCLIENT = Contender(
    lambda arrays: arrays,
    lambda arrays: triton_encode(triton_inputs(arrays)),
    as_they_are,
    triton_decode,
)
TRITONCLIENT_PREPARED = Contender(triton_inputs, triton_encode, as_they_are, triton_decode)


# --- by hand: a struct loop, tobytes, join, frombuffer ---


def struct_elements(array: NDArray[Any]) -> bytes:
    parts = []
    for element in array.flat:
        parts.append(struct.pack("<I", len(element)))
        parts.append(element)
    return b"".join(parts)


def hand_encode(arrays: Arrays) -> tuple[bytes, int]:
    entries, payload = [], []
    for name, array in arrays.items():
        data = struct_elements(array) if array.dtype.kind == "O" else array.tobytes()
        size = {"binary_data_size": len(data)}
        datatype = NAMES[array.dtype.kind]
        entries.append(
            {"name": name, "datatype": datatype, "shape": array.shape, "parameters": size}
        )
        payload.append(data)
    header = json.dumps({"inputs": entries}).encode()
    return b"".join([header, *payload]), len(header)


def struct_objects(data: bytes) -> NDArray[np.object_]:
    elements, offset = [], 0
    while offset < len(data):
        (nbytes,) = struct.unpack_from("<I", data, offset)
        elements.append(data[offset + 4 : offset + 4 + nbytes])
        offset += 4 + nbytes
    return np.array(elements, object)


def hand_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    assert header_length is not None
    found, offset = {}, header_length
    for entry in json.loads(body[:header_length])["outputs"]:
        end = offset + entry["parameters"]["binary_data_size"]
        data = body[offset:end]
        array = struct_objects(data) if entry["datatype"] == "BYTES" else np.frombuffer(data, "<f4")
        found[entry["name"]] = array.reshape(entry["shape"])
        offset = end
    return [found[name] for name in names]


BY_HAND = Contender(lambda arrays: arrays, hand_encode, as_they_are, hand_decode)

CONTENDERS = {"tensorwire": OURS, "tritonclient": TRITONCLIENT, "by hand": BY_HAND}

# To encode, with the Tensor or InferInput made beforehand.
PREPARED = {"tensorwire": OURS_PREPARED, "tritonclient": TRITONCLIENT_PREPARED}


# --- BYTES on their own ---


@dataclass(frozen=True)
class Elements:
    """The same elements in every form that a step starts from; made before anything is measured."""

    wire: bytes
    objects: NDArray[np.object_]

    @cached_property
    def tensor(self) -> tw.BytesTensor:
        return tw.decode_bytes(self.wire, len(self.objects))

    @cached_property
    def texts(self) -> NDArray[np.object_]:
        return self.tensor.as_strings()

    @cached_property
    def strings(self) -> NDArray[Any]:
        return self.tensor.as_numpy(STRINGS)

    @cached_property
    def fixed(self) -> NDArray[np.bytes_]:
        return self.tensor.as_numpy("S")

    @cached_property
    def arrow(self) -> Any:
        return pyarrow().array(self.tensor)


STRINGS = np.dtypes.StringDType()


@cache
def pyarrow() -> Any:
    """The pyarrow package, which may be missing."""
    return import_module("pyarrow")


def triton_utils() -> Any:
    return import_module("tritonclient.utils")


def c_scan(elements: Elements) -> NDArray[np.int64]:
    memory = np.frombuffer(elements.wire, np.uint8)
    starts = np.empty(len(elements.objects), np.int64)
    found = library().scan(memory.ctypes.data, memory.nbytes, starts.ctypes.data)
    assert found == len(starts)
    return starts


def triton_objects(elements: Elements) -> Any:
    return triton_utils().deserialize_bytes_tensor(elements.wire)


def triton_pack(values: Any) -> Any:
    return triton_utils().serialize_byte_tensor(values).item()


def texts_of(objects: NDArray[np.object_]) -> list[str]:
    return [element.decode() for element in objects.tolist()]


Step = Callable[[Elements], Any]

# Each step: our way, tritonclient's where it has one, the way that a user would go without us, and
# the limit: a C loop over the same bytes, or numpy's own C loop that makes the same objects.
BYTES_STEPS: dict[str, dict[str, Step]] = {
    "scan": {
        "tensorwire": lambda e: tw.decode_bytes(e.wire, len(e.objects)),
        "tritonclient": triton_objects,
        "limit (C loop)": c_scan,
    },
    "scan, number unknown": {
        "tensorwire": lambda e: tw.decode_bytes(e.wire),
        "tritonclient": triton_objects,
        "limit (C loop)": c_scan,
    },
    "to objects": {
        "tensorwire": lambda e: e.tensor.as_numpy(),
        "tritonclient": triton_objects,
        "naive": lambda e: struct_objects(e.wire),
        "limit (S array, tolist)": lambda e: e.fixed.tolist(),
    },
    "to str": {
        "tensorwire": lambda e: e.tensor.as_strings(),
        "tritonclient": lambda e: texts_of(triton_objects(e)),
        "naive": lambda e: texts_of(struct_objects(e.wire)),
    },
    "to StringDType": {
        "tensorwire": lambda e: e.tensor.as_numpy(STRINGS),
        "tritonclient": lambda e: np.array(texts_of(triton_objects(e)), STRINGS),
        "naive": lambda e: np.array(texts_of(e.tensor.as_numpy()), STRINGS),
    },
    "to S": {
        "tensorwire": lambda e: e.tensor.as_numpy("S"),
        "tritonclient": lambda e: triton_objects(e).astype("S"),
        "naive": lambda e: e.tensor.as_numpy().astype("S"),
    },
    "to Arrow": {
        "tensorwire": lambda e: pyarrow().array(e.tensor),
        "tritonclient": lambda e: pyarrow().array(triton_objects(e)),
        "naive": lambda e: pyarrow().array(e.tensor.tolist()),
    },
    "from objects": {
        "tensorwire": lambda e: tw.encode_bytes(e.objects),
        "tritonclient": lambda e: triton_pack(e.objects),
        "naive": lambda e: struct_elements(e.objects),
    },
    "from str": {
        "tensorwire": lambda e: tw.encode_bytes(e.texts),
        "tritonclient": lambda e: triton_pack(e.texts),
        "naive": lambda e: struct_elements(
            np.array([t.encode() for t in e.texts.tolist()], object)
        ),
    },
    "from StringDType": {
        "tensorwire": lambda e: tw.encode_bytes(e.strings),
        "tritonclient": lambda e: triton_pack(e.strings.astype(object)),
        "naive": lambda e: tw.encode_bytes(e.strings.tolist()),
    },
    "from S": {
        "tensorwire": lambda e: tw.encode_bytes(e.fixed),
        "tritonclient": lambda e: triton_pack(e.fixed),
        "naive": lambda e: tw.encode_bytes(e.fixed.tolist()),
    },
    "from Arrow": {
        "tensorwire": lambda e: tw.encode_bytes(e.arrow),
        "tritonclient": lambda e: triton_pack(np.array(e.arrow.to_pylist(), object)),
        "naive": lambda e: tw.encode_bytes(e.arrow.to_pylist()),
    },
}
