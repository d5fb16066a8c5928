"""Ways to read and write JSON: tensorwire, tritonclient, and JSON libraries with numpy.

A library reads a message as a program without tensorwire would: it parses the text to dictionaries
and lists, and numpy makes arrays of them. Nothing of the message is validated then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .contender import DTYPES, Encoded, Found, Names, module, our_tensors
from .contenders import HTTP, our_decode, triton_decode, triton_inputs
from .missing import Unsupported
from .workloads import Message, floats, objects, texts

Array = NDArray[Any]
Values = dict[str, Any]

# --- the messages ---

# The datatypes that JSON can carry.
INTEGERS = [f"{kind}{8 * n}" for kind in ("INT", "UINT") for n in (1, 2, 4, 8)]
JSON_DATATYPES = ["FP32", "FP64", *INTEGERS, "BOOL", "BYTES"]
COUNTS = {"1K": 1000, "100K": 100_000, "1M": 1_000_000}


def elements(datatype: str, n: int) -> Array:
    """Random elements: floats with all their digits, integers of the whole range of the datatype.

    Elements of BYTES are ``str``, as JSON has them.
    """
    rng, dtype = np.random.default_rng(7), DTYPES[datatype]
    if datatype == "BYTES":
        return objects([text.decode() for text in texts(n, 0, 40).tolist()])
    if datatype == "BOOL":
        return rng.integers(0, 2, n).astype(bool)
    if dtype.kind == "f":
        return rng.standard_normal(n).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, n, dtype, endpoint=True)


def json_response(array: Array, datatype: str) -> bytes:
    """A response whose only tensor is JSON."""
    values = array.tolist()
    if datatype == "FP32":  # the shortest digits that give this float, as servers write it
        values = [float(str(value)) for value in array]
    entry = {"name": "x", "datatype": datatype, "shape": [len(array)], "data": values}
    header = {"model_name": "m", "outputs": [entry]}
    return json.dumps(header, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Envelope:
    """What a message has beside its tensors."""

    id: str | None = None
    parameters: Values = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def members(self) -> Values:
        """As a request's JSON has them."""
        found: Values = {}
        if self.id is not None:
            found["id"] = self.id
        if self.parameters:
            found["parameters"] = self.parameters
        if self.outputs:
            found["outputs"] = [
                {"name": name, "parameters": {"binary_data": True}} for name in self.outputs
            ]
        return found


def header_message(n_tensors: int, *, is_full: bool) -> tuple[Message, Envelope]:
    """Binary tensors of 128 bytes; if full, an id, parameters and as many requested outputs."""
    message = Message({f"x{i}": floats(32) for i in range(n_tensors)})
    if not is_full:
        return message, Envelope()
    parameters = {"weight": 2, "temperature": 0.7, "user": "somebody", "stream": False}
    return message, Envelope("request-1234", parameters, [f"y{i}" for i in range(n_tensors)])


# --- JSON libraries ---


@dataclass(frozen=True)
class Library:
    """A JSON library: what parses text, and what writes text, from arrays or from lists."""

    loads: Callable[[bytes], Any]
    dumps: Callable[[Any], bytes]
    takes_arrays: bool = False


def orjson() -> Library:
    library = module("orjson")
    dumps = partial(library.dumps, option=library.OPT_SERIALIZE_NUMPY)
    return Library(library.loads, dumps, takes_arrays=True)


def msgspec() -> Library:
    library = module("msgspec.json")
    return Library(library.decode, library.encode)


def standard_library() -> Library:
    return Library(json.loads, lambda values: json.dumps(values).encode())


# Each raises Missing where the library is not installed.
LIBRARIES: dict[str, Callable[[], Library]] = {
    "orjson": orjson,
    "msgspec": msgspec,
    "json": standard_library,
}
OURS, TRITONCLIENT = "tensorwire", "tritonclient"

# --- a tensor, read and written ---


def reader(contender: str, dtype: np.dtype[Any]) -> Callable[[bytes], Array]:
    """From the text of a response to an array."""
    if contender == OURS:
        return lambda text: tw.decode_response(text)["x"].as_numpy()
    loads = LIBRARIES[contender]().loads
    return lambda text: np.array(loads(text)["outputs"][0]["data"], dtype)


def writer(contender: str, array: Array, datatype: str) -> Callable[[], Any]:
    """From an array to the text of a response."""
    if contender == OURS:
        return lambda: tw.encode_response(
            tw.InferResponse([tw.Tensor("x", array, binary=False)], model_name="m")
        )
    library = LIBRARIES[contender]()
    takes_array = library.takes_arrays and datatype != "BYTES"
    dumps, shape = library.dumps, [len(array)]

    def write() -> bytes:
        data = array if takes_array else array.tolist()
        entry = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
        return dumps({"model_name": "m", "outputs": [entry]})

    return write


# --- small headers, read and written ---


def body_of(message: Message, envelope: Envelope, *, is_request: bool) -> Encoded:
    tensors, given = our_tensors(message.parts), envelope.members()
    given.pop("outputs", None)
    if not is_request:
        frame = tw.encode_response(tw.InferResponse(tensors, model_name="m", **given))
    else:
        outputs = [tw.RequestedOutput(name, binary=True) for name in envelope.outputs] or None
        frame = tw.encode_request(tw.InferRequest(tensors, outputs, **given))
    return bytes(frame), frame.header_length


def arrays_by_hand(header: Any, body: bytes, offset: int, key: str) -> dict[str, Array]:
    found = {}
    for entry in header[key]:
        dtype, nbytes = DTYPES[entry["datatype"]], entry["parameters"]["binary_data_size"]
        array = np.frombuffer(body, dtype, nbytes // dtype.itemsize, offset)
        found[entry["name"]] = array.reshape(entry["shape"])
        offset += nbytes
    return found


Read = Callable[[bytes, int, Names], tuple[Found, Envelope]]


def response_reader(contender: str) -> Callable[[bytes, int | None, Names], Found]:
    """From a response's body to the arrays of the names."""
    if contender == OURS:
        return our_decode
    if contender == TRITONCLIENT:
        module(HTTP)
        return triton_decode
    loads = LIBRARIES[contender]().loads

    def read(body: bytes, header_length: int | None, names: Names) -> Found:
        assert header_length is not None
        found = arrays_by_hand(loads(body[:header_length]), body, header_length, "outputs")
        return [found[name] for name in names]

    return read


def request_reader(contender: str) -> Read:
    """From a request's body to the arrays of the names, and to what else it has."""
    if contender == TRITONCLIENT:
        raise Unsupported("tritonclient does not read requests")
    if contender == OURS:
        return our_request_reader
    loads = LIBRARIES[contender]().loads

    def read(body: bytes, header_length: int, names: Names) -> tuple[Found, Envelope]:
        header = loads(body[:header_length])
        found = arrays_by_hand(header, body, header_length, "inputs")
        outputs = [output["name"] for output in header.get("outputs", ())]
        envelope = Envelope(header.get("id"), header.get("parameters", {}), outputs)
        return [found[name] for name in names], envelope

    return read


def our_request_reader(body: bytes, header_length: int, names: Names) -> tuple[Found, Envelope]:
    request, found = tw.decode_request(body, header_length), []
    for name in names:
        found.append(request[name].as_numpy())
    outputs = [output.name for output in request.outputs or ()]
    return found, Envelope(request.id, request.parameters, outputs)


def request_writer(contender: str, message: Message, envelope: Envelope) -> Callable[[], Any]:
    """From arrays to a request's body, or to its buffers."""
    parts, names, given = message.parts, envelope.outputs, envelope.members()
    given.pop("outputs", None)
    if contender == OURS:

        def ours() -> tw.Frame:
            tensors = []
            for name, array, _, _, _ in parts:
                tensors.append(tw.Tensor(name, array))
            outputs = [tw.RequestedOutput(name, binary=True) for name in names] if names else None
            return tw.encode_request(tw.InferRequest(tensors, outputs, **given))

        return ours
    if contender == TRITONCLIENT:
        http = module(HTTP)
        generate = http.InferenceServerClient.generate_request_body
        request_id, parameters = envelope.id or "", envelope.parameters or None

        def theirs() -> Encoded:
            outputs = None
            if names:
                outputs = [http.InferRequestedOutput(name, binary_data=True) for name in names]
            inputs = triton_inputs(parts)
            body, header_length = generate(
                inputs, outputs, request_id=request_id, parameters=parameters
            )
            return body, header_length

        return theirs
    dumps = LIBRARIES[contender]().dumps

    def by_hand() -> Encoded:
        entries, payload = [], []
        for name, array, datatype, shape, _ in parts:
            payload.append(array.tobytes())
            size = {"binary_data_size": len(payload[-1])}
            entries.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        header = {**given, "inputs": entries}
        if names:
            header["outputs"] = [
                {"name": name, "parameters": {"binary_data": True}} for name in names
            ]
        text = dumps(header)
        return b"".join([text, *payload]), len(text)

    return by_hand
