"""CONTENDERS: ways to encode a request and to decode a response, by name. To add one, add an entry.

`formats.py` has other formats and limits, `peers.py` what lives in environments of its own.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .contender import (
    DTYPES,
    Contender,
    Encoded,
    Found,
    Names,
    installed,
    joined,
    module,
    our_tensors,
    parts_of,
)
from .formats import LIMITS, OTHER_FORMATS
from .peers import PEERS
from .workloads import Message, Part

# --- tensorwire ---


def our_encode(parts: list[Part]) -> tw.Frame:
    tensors = []
    for name, array, _, _, is_binary in parts:
        tensors.append(tw.Tensor(name, array, binary=is_binary))
    return tw.encode_request(tw.InferRequest(tensors))


def our_request(message: Message) -> tw.InferRequest:
    return tw.InferRequest(our_tensors(message.parts))


def our_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    response, found = tw.decode_response(body, header_length), []
    for name in names:
        found.append(response[name].as_numpy())
    return found


OURS = Contender(our_encode, our_decode, parts_of, joined)
OURS_PREPARED = Contender(tw.encode_request, our_decode, our_request, joined)


# --- tritonclient ---

HTTP = "tritonclient.http"


def triton_inputs(parts: list[Part]) -> list[Any]:
    inputs, http = [], module(HTTP)
    for name, array, datatype, shape, is_binary in parts:
        tensor = http.InferInput(name, shape, datatype)
        tensor.set_data_from_numpy(array, binary_data=is_binary)
        inputs.append(tensor)
    return inputs


def triton_encode(inputs: list[Any]) -> Encoded:
    body, header_length = module(HTTP).InferenceServerClient.generate_request_body(inputs)
    return body, header_length


def triton_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    parse, found = module(HTTP).InferenceServerClient.parse_response_body, []
    result = parse(body, header_length=header_length)
    for name in names:
        found.append(result.as_numpy(name))
    return found


TRITON_BACKEND = "tensorwire.integrations.tritonclient"
TRITONCLIENT = Contender(
    lambda parts: triton_encode(triton_inputs(parts)), triton_decode, parts_of, needs=(HTTP,)
)
TRITONCLIENT_PREPARED = Contender(
    triton_encode, triton_decode, lambda message: triton_inputs(message.parts), needs=(HTTP,)
)
TRITONCLIENT_ON_OURS = Contender(
    TRITONCLIENT.encode,
    triton_decode,
    parts_of,
    needs=(HTTP, TRITON_BACKEND),
    setting=lambda: installed(TRITON_BACKEND),
)


# --- by hand: tobytes and join, frombuffer with an offset; for BYTES a struct loop ---


def struct_elements(array: NDArray[Any]) -> bytes:
    parts = []
    for element in array.flat:
        parts.append(struct.pack("<I", len(element)))
        parts.append(element)
    return b"".join(parts)


def hand_encode(parts: list[Part]) -> Encoded:
    entries, payload = [], []
    for name, array, datatype, shape, is_binary in parts:
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if not is_binary:
            values = array.ravel().tolist()
            entry["data"] = [v.decode() for v in values] if datatype == "BYTES" else values
        else:
            payload.append(struct_elements(array) if datatype == "BYTES" else array.tobytes())
            entry["parameters"] = {"binary_data_size": len(payload[-1])}
        entries.append(entry)
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
    found, offset = {}, len(body) if header_length is None else header_length
    for entry in json.loads(body[:offset])["outputs"]:
        dtype, shape = DTYPES[entry["datatype"]], entry["shape"]
        if "data" in entry:
            values = entry["data"]
            if entry["datatype"] == "BYTES":
                values = [text.encode() for text in values]
            found[entry["name"]] = np.array(values, dtype).reshape(shape)
            continue
        nbytes = entry["parameters"]["binary_data_size"]
        if entry["datatype"] == "BYTES":
            array: NDArray[Any] = struct_objects(body[offset : offset + nbytes])
        else:
            array = np.frombuffer(body, dtype, nbytes // dtype.itemsize, offset)
        found[entry["name"]] = array.reshape(shape)
        offset += nbytes
    return [found[name] for name in names]


BY_HAND = Contender(hand_encode, hand_decode, parts_of)


# --- the table; the order is that of the columns ---


CONTENDERS = {
    "tensorwire": OURS,
    "tritonclient": TRITONCLIENT,
    "tritonclient on tensorwire": TRITONCLIENT_ON_OURS,
    **PEERS,
    "by hand": BY_HAND,
    **OTHER_FORMATS,
    **LIMITS,
}

# To encode, with the Tensor or InferInput made beforehand.
PREPARED = {"tensorwire": OURS_PREPARED, "tritonclient": TRITONCLIENT_PREPARED}
