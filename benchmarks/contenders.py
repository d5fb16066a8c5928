"""The ways to encode requests and to decode responses.

To add one, write two functions and an entry in ``CODECS``. A contender whose requirements conflict
with ours is measured by the interpreter of its environment (`tests/interop/environment.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw

from .arrays import DTYPES, Array, Arrays, datatype_of, objects
from .measuring import installed, module

Names = list[str]
Encoded = tuple[Any, int | None]  # the body and its header length
Part = tuple[str, Array, str, list[int]]  # name, array, datatype and shape of a tensor


def parts_of(arrays: Arrays) -> list[Part]:
    return [(name, a, datatype_of(a), list(a.shape)) for name, a in arrays.items()]


def unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Codec:
    """A contender. ``encode`` and ``decode`` are measured.

    ``prepare`` makes the argument of ``encode`` from the arrays: a program has names, datatypes and
    shapes as literals. ``join`` converts the result of ``encode`` to a body and its header length.
    ``decode`` takes these, and the names of the arrays to return. ``copies`` is the number of bytes
    that ``decode`` and ``encode`` write to new memory for each byte of an FP32 tensor.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any, int | None, Names], list[Array]]
    copies: tuple[float, float]
    prepare: Callable[[Arrays], Any] = parts_of
    join: Callable[[Any], Encoded] = unchanged
    has_own_format: bool = False  # else the body is one of the protocol
    context: Callable[[], AbstractContextManager[None]] = nullcontext  # in which it is measured

    def body_of(self, arrays: Arrays) -> Encoded:
        """Return what ``decode`` is measured with."""
        if self.has_own_format:
            return self.join(self.encode(self.prepare(arrays)))
        return joined(tw.encode_response(tw.InferResponse(arrays, model_name="m")))

    def read_back(self, encoded: Any, names: Names) -> list[Array]:
        """Decode what ``encode`` has returned."""
        body, header_length = self.join(encoded)
        if self.has_own_format:
            return self.decode(body, header_length, names)
        request = tw.decode_request(body, header_length)
        return [request[name].as_numpy() for name in names]


# --- tensorwire ---


def joined(frame: tw.Frame) -> tuple[bytes, int | None]:
    return bytes(frame), frame.header_length


def our_encode(arrays: Arrays) -> tw.Frame:
    tensors = []
    for name, array in arrays.items():
        tensors.append(tw.Tensor(name, array))
    return tw.encode_request(tw.InferRequest(tensors))


def our_decode(body: bytes, header_length: int | None, names: Names) -> list[Array]:
    response, found = tw.decode_response(body, header_length), []
    for name in names:
        found.append(response[name].as_numpy())
    return found


# --- tritonclient ---


def triton_inputs(parts: list[Part], api: str = "http") -> list[Any]:
    inputs, make = [], module(f"tritonclient.{api}").InferInput
    for name, array, datatype, shape in parts:
        tensor = make(name, shape, datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def triton_encode(parts: list[Part]) -> Encoded:
    client = module("tritonclient.http").InferenceServerClient
    body, header_length = client.generate_request_body(triton_inputs(parts))
    return body, header_length


def triton_decode(body: bytes, header_length: int | None, names: Names) -> list[Array]:
    parse, found = module("tritonclient.http").InferenceServerClient.parse_response_body, []
    result = parse(body, header_length=header_length)
    for name in names:
        found.append(result.as_numpy(name))
    return found


# --- KServe ---


def kserve_encode(parts: list[Part]) -> Encoded:
    kserve, inputs = module("kserve"), []
    for name, array, datatype, shape in parts:
        tensor = kserve.InferInput(name, shape, datatype)
        tensor.set_data_from_numpy(array, binary_data=True)
        inputs.append(tensor)
    body, header_length = kserve.InferRequest("m", inputs).to_rest()
    return body, header_length


def kserve_decode(body: bytes, header_length: int | None, names: Names) -> list[Array]:
    found = module("kserve").InferResponse.from_bytes(body, header_length)
    return [found.get_output_by_name(name).as_numpy() for name in names]


# --- MLServer: gRPC responses with raw contents, because its REST API is not binary ---


def mlserver_converter() -> Any:
    return module("mlserver.grpc.converters").ModelInferResponseConverter


def mlserver_output(name: str, array: Array) -> Any:
    if array.dtype.kind == "O":  # NumpyCodec would pad the elements to one length
        output = module("mlserver.types").ResponseOutput
        return output(name=name, shape=list(array.shape), datatype="BYTES", data=array.tolist())
    tensor = module("mlserver.codecs").NumpyCodec.encode_output(name, array)
    tensor.shape = list(array.shape)  # NumpyCodec converts a vector to a column
    return tensor


def mlserver_array(tensor: Any) -> Array:
    if tensor.datatype == "BYTES":
        return objects(list(tensor.data))
    array: Array = module("mlserver.codecs").NumpyCodec.decode_output(tensor)
    return array


def mlserver_encode(arrays: Arrays) -> bytes:
    outputs = [mlserver_output(name, array) for name, array in arrays.items()]
    response = module("mlserver.types").InferenceResponse(model_name="m", outputs=outputs)
    body: bytes = mlserver_converter().from_types(response, use_raw=True).SerializeToString()
    return body


def mlserver_decode(body: bytes, header_length: int | None, names: Names) -> list[Array]:
    response = module("mlserver.grpc.dataplane_pb2").ModelInferResponse.FromString(body)
    found = {t.name: mlserver_array(t) for t in mlserver_converter().to_types(response).outputs}
    return [found[name] for name in names]


# --- by hand: tobytes and join; frombuffer at an offset; a struct loop for BYTES ---


def struct_elements(array: Array) -> bytes:
    parts = []
    for element in array.flat:
        parts.append(struct.pack("<I", len(element)))
        parts.append(element)
    return b"".join(parts)


def struct_objects(data: bytes) -> Array:
    elements, offset = [], 0
    while offset < len(data):
        (nbytes,) = struct.unpack_from("<I", data, offset)
        elements.append(data[offset + 4 : offset + 4 + nbytes])
        offset += 4 + nbytes
    return objects(elements)


def hand_encode(parts: list[Part]) -> Encoded:
    entries, buffers = [], []
    for name, array, datatype, shape in parts:
        buffers.append(struct_elements(array) if datatype == "BYTES" else array.tobytes())
        parameters = {"binary_data_size": len(buffers[-1])}
        entries.append(
            {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}
        )
    header = json.dumps({"inputs": entries}).encode()
    return b"".join([header, *buffers]), len(header)


def hand_decode(body: bytes, header_length: int | None, names: Names) -> list[Array]:
    assert header_length is not None
    found, offset = {}, header_length
    for entry in json.loads(body[:offset])["outputs"]:
        dtype, nbytes = DTYPES[entry["datatype"]], entry["parameters"]["binary_data_size"]
        if entry["datatype"] == "BYTES":
            array = struct_objects(body[offset : offset + nbytes])
        else:
            array = np.frombuffer(body, dtype, nbytes // dtype.itemsize, offset)
        found[entry["name"]] = array.reshape(entry["shape"])
        offset += nbytes
    return [found[name] for name in names]


# --- formats that are not those of the protocol ---


def safetensors_encode(arrays: Arrays) -> bytes:
    if any(array.dtype.kind == "O" for array in arrays.values()):
        pytest.skip("safetensors has no strings")
    body: bytes = module("safetensors.numpy").save(arrays)
    return body


def safetensors_decode(body: bytes, header_length: int | None, names: Names) -> list[Array]:
    found = module("safetensors.numpy").load(body)
    return [found[name] for name in names]


def arrow_encode(arrays: Arrays) -> Any:
    """Write one batch, in which a tensor is a list in a column of its own."""
    pa, columns = module("pyarrow"), {}
    for name, array in arrays.items():
        values = pa.array(array)
        columns[name] = pa.LargeListArray.from_arrays(
            pa.array([0, len(values)], pa.int64()), values
        )
    batch, sink = pa.record_batch(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def arrow_decode(body: bytes, header_length: int | None, names: Names) -> list[Array]:
    pa = module("pyarrow")
    batch, found = pa.ipc.open_stream(body).read_next_batch(), []
    for name in names:
        column = batch.column(name).values
        found.append(column.to_numpy(zero_copy_only=column.type != pa.binary()))
    return found


class Memcpy:
    """One copy of the bytes, to memory that was written before."""

    target: Array

    @classmethod
    def prepare(cls, arrays: Arrays) -> Array:
        (array, *more) = arrays.values()
        if more or array.dtype.kind == "O":
            pytest.skip("memcpy is measured for one array of numbers")
        cls.target = np.ones_like(array)
        return array

    @classmethod
    def encode(cls, array: Array) -> Array:
        np.copyto(cls.target, array)
        return cls.target

    @staticmethod
    def join(array: Array) -> Encoded:
        return array.copy(), None

    @classmethod
    def decode(cls, body: Any, header_length: int | None, names: Names) -> list[Array]:
        return [cls.encode(body)]


def body_only(body: Any) -> Encoded:
    return body, None


TRITONCLIENT = partial(Codec, triton_encode, triton_decode)
KSERVE = partial(Codec, kserve_encode, kserve_decode)
OWN = partial(Codec, prepare=unchanged, join=body_only, has_own_format=True)
MLSERVER = partial(OWN, mlserver_encode, mlserver_decode)
CODECS: dict[str, Codec] = {
    "tensorwire": Codec(our_encode, our_decode, (0, 0), prepare=unchanged, join=joined),
    "tritonclient": TRITONCLIENT((1, 2)),
    "tritonclient, drop-in": TRITONCLIENT((0, 2), context=partial(installed, "tritonclient")),
    "kserve": KSERVE((13, 2)),
    "kserve, drop-in": KSERVE((1, 2), context=partial(installed, "kserve")),
    "mlserver": MLSERVER((16, 21.3)),
    "mlserver, drop-in": MLSERVER((3, 4), context=partial(installed, "mlserver")),
    "by hand": Codec(hand_encode, hand_decode, (0, 2)),
    "safetensors": OWN(safetensors_encode, safetensors_decode, (1, 2)),
    "Arrow IPC": OWN(arrow_encode, arrow_decode, (0, 0.9)),
    "memcpy": OWN(Memcpy.encode, Memcpy.decode, (0, 0), prepare=Memcpy.prepare, join=Memcpy.join),
}
