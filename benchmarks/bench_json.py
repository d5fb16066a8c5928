"""JSON: read and write tensors of every datatype and small headers; the memory that reading needs.

A JSON library is used as a program without tensorwire would use it: the library parses the text to
dictionaries and lists, and numpy converts these to arrays. The message is not validated.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .contenders import (
    HTTP,
    Encoded,
    Found,
    Names,
    Unsupported,
    joined,
    module,
    our_decode,
    our_tensors,
    triton_decode,
    triton_inputs,
)
from .measure import (
    OURS,
    as_bytes,
    check_arrays,
    is_same_array,
    marked,
    measure,
    measure_turns,
    measure_with_new,
    measuring,
)
from .workloads import (
    DTYPES,
    JSON_DATATYPES,
    VOCABULARIES,
    Envelope,
    Message,
    header_message,
    json_elements,
    json_response,
    objects,
    strings,
)

Array = NDArray[Any]
TRITONCLIENT = "tritonclient"


# --- JSON libraries ---


@dataclass(frozen=True)
class Library:
    """A JSON library. ``takes_arrays`` is True if it writes numpy arrays without a list."""

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


# Each function raises Missing if the library is not installed.
LIBRARIES: dict[str, Callable[[], Library]] = {
    "orjson": orjson,
    "msgspec": msgspec,
    "json": standard_library,
}
every_library = pytest.mark.parametrize("contender", [OURS, *LIBRARIES])


# --- tensors ---

COUNTS = {"1K": 1000, "100K": 100_000, "1M": 1_000_000}
TENSORS = {f"{d} x {count}": (d, n) for count, n in COUNTS.items() for d in JSON_DATATYPES}
QUICK_TENSORS = {f"{d} x {count}" for d in ("FP32", "FP64", "INT64") for count in ("1K", "1M")}
QUICK_TENSORS |= {"BYTES x 100K", "BOOL x 100K"}
every_tensor = pytest.mark.parametrize("workload", marked(TENSORS, quick=QUICK_TENSORS))


def tensor_reader(contender: str, dtype: np.dtype[Any]) -> Callable[[bytes], Array]:
    """Return a function that converts the text of a response to an array."""
    if contender == OURS:
        return lambda text: tw.decode_response(text)["x"].as_numpy()
    loads = LIBRARIES[contender]().loads
    return lambda text: np.array(loads(text)["outputs"][0]["data"], dtype)


def tensor_writer(contender: str, array: Array, datatype: str) -> Callable[[], Any]:
    """Return a function that converts the array to the text of a response."""
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


@every_library
@every_tensor
def test_read_tensor(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    datatype, n = TENSORS[workload]
    with measuring(benchmark, "read a JSON tensor", workload, contender, n_elements=n):
        read, expected = tensor_reader(contender, DTYPES[datatype]), json_elements(datatype, n)
        text = json_response(expected, datatype)

        def check(found: Any) -> None:
            assert is_same_array(found, expected)

        measure(benchmark, check, read, text)


@every_library
@every_tensor
def test_write_tensor(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    datatype, n = TENSORS[workload]
    with measuring(benchmark, "write a JSON tensor", workload, contender, n_elements=n):
        array = json_elements(datatype, n)

        def check(found: Any) -> None:
            assert is_same_array(tw.decode_response(bytes(found))["x"].as_numpy(), array)

        measure(benchmark, check, tensor_writer(contender, array, datatype))


# --- strings ---

SIZES = {"8 B": (8, 100_000), "40 B": (40, 100_000), "2 KB": (2048, 10_000)}
STRINGS = {
    f"{count // 1000}K x {size}, {kind}": (kind, nbytes, count)
    for size, (nbytes, count) in SIZES.items()
    for kind in VOCABULARIES
}
QUICK_STRINGS = {"100K x 40 B, ASCII", "100K x 40 B, Chinese"}
every_string = pytest.mark.parametrize("workload", marked(STRINGS, quick=QUICK_STRINGS))
# What tensorwire reads strings to, other than a BytesArray, and writes strings from, other than a
# list of str.
TO_STR = f"{OURS}, as_strings()"
FROM_BYTES, FROM_BYTES_ARRAY = f"{OURS}, bytes", f"{OURS}, BytesArray"


def string_reader(contender: str) -> Callable[[bytes], Any]:
    """Return a function that converts the text of a response to a BytesArray or an object array."""
    if contender == OURS:
        return lambda text: tw.decode_response(text)["x"].elements
    if contender == TO_STR:
        return lambda text: tw.decode_response(text)["x"].as_strings()
    return tensor_reader(contender, np.dtype(object))


def string_writer(contender: str, n: int) -> Callable[[Any], Any]:
    """Return a function that converts strings to the text of a response."""
    if contender.startswith(OURS):
        return lambda data: tw.encode_response(
            tw.InferResponse([tw.Tensor("x", data, binary=False)], model_name="m")
        )
    dumps = LIBRARIES[contender]().dumps

    def write(data: list[str]) -> bytes:
        entry = {"name": "x", "datatype": "BYTES", "shape": [n], "data": data}
        return dumps({"model_name": "m", "outputs": [entry]})

    return write


@pytest.mark.parametrize("contender", [OURS, TO_STR, *LIBRARIES])
@every_string
def test_read_strings(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    with measuring(benchmark, "read JSON strings", workload, contender):
        read, texts = string_reader(contender), strings(*STRINGS[workload])
        text = json_response(objects(texts), "BYTES")

        def check(found: Any) -> None:
            assert as_bytes(np.asarray(found)) == as_bytes(objects(texts))

        measure(benchmark, check, read, text)


@pytest.mark.parametrize("contender", [OURS, FROM_BYTES, FROM_BYTES_ARRAY, *LIBRARIES])
@every_string
def test_write_strings(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    """Write new objects in each round, as a server does: a `str` may store its UTF-8."""
    with measuring(benchmark, "write JSON strings", workload, contender):
        texts = strings(*STRINGS[workload])
        elements = [text.encode() for text in texts]

        def make() -> Any:
            if contender == FROM_BYTES:
                return objects([bytes(bytearray(element)) for element in elements])
            if contender == FROM_BYTES_ARRAY:
                return tw.decode_bytes(tw.encode_bytes(elements))
            return [element.decode() for element in elements]

        def check(found: Any) -> None:
            assert json.loads(bytes(found))["outputs"][0]["data"] == texts

        measure_with_new(benchmark, check, string_writer(contender, len(texts)), make)


# --- small headers ---

HEADERS = {
    f"{n} tensor{'s' * (n > 1)}{', all fields' * has_all_fields}": (n, has_all_fields)
    for n in (1, 3, 50)
    for has_all_fields in (False, True)
}
every_header = pytest.mark.parametrize("workload", marked(HEADERS, quick=HEADERS))

RequestReader = Callable[[bytes, int, Names], tuple[Found, Envelope]]


def requested(names: list[str]) -> list[tw.RequestedOutput] | None:
    return [tw.RequestedOutput(name, binary=True) for name in names] or None


def response_body(message: Message, envelope: Envelope) -> Encoded:
    response = tw.InferResponse(our_tensors(message.parts), model_name="m", **envelope.fields())
    return joined(tw.encode_response(response))


def request_body(message: Message, envelope: Envelope) -> Encoded:
    outputs = requested(envelope.outputs)
    request = tw.InferRequest(our_tensors(message.parts), outputs, **envelope.fields())
    return joined(tw.encode_request(request))


def arrays_by_hand(header: Any, body: bytes, offset: int, key: str) -> dict[str, Array]:
    found = {}
    for entry in header[key]:
        dtype, nbytes = DTYPES[entry["datatype"]], entry["parameters"]["binary_data_size"]
        array = np.frombuffer(body, dtype, nbytes // dtype.itemsize, offset)
        found[entry["name"]] = array.reshape(entry["shape"])
        offset += nbytes
    return found


def response_reader(contender: str) -> Callable[[bytes, int | None, Names], Found]:
    """Return a function that converts the body of a response to arrays."""
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


def request_reader(contender: str) -> RequestReader:
    """Return a function that converts the body of a request to arrays and an Envelope."""
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
    return found, Envelope(request.id, dict(request.parameters), outputs)


def request_writer(contender: str, message: Message, envelope: Envelope) -> Callable[[], Any]:
    """Return a function that converts the arrays to the body, or the buffers, of a request."""
    parts, names, fields = message.parts, envelope.outputs, envelope.fields()
    if contender == OURS:

        def ours() -> tw.Frame:
            tensors = []
            for name, array, _, _, _ in parts:
                tensors.append(tw.Tensor(name, array))
            outputs = [tw.RequestedOutput(name, binary=True) for name in names] if names else None
            return tw.encode_request(tw.InferRequest(tensors, outputs, **fields))

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
        entries, buffers = [], []
        for name, array, datatype, shape, _ in parts:
            buffers.append(array.tobytes())
            size = {"binary_data_size": len(buffers[-1])}
            entries.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        header = {**fields, "inputs": entries}
        if names:
            header["outputs"] = [
                {"name": name, "parameters": {"binary_data": True}} for name in names
            ]
        text = dumps(header)
        return b"".join([text, *buffers]), len(text)

    return by_hand


def in_turns(function: Callable[[str], Callable[[], Any]]) -> dict[str, Any]:
    """Return the contenders of a row, of which ``function(contender)`` is measured."""
    return {
        contender: lambda contender=contender: nullcontext(function(contender))
        for contender in (OURS, TRITONCLIENT, *LIBRARIES)
    }


@every_header
def test_read_response(benchmark: BenchmarkFixture, workload: str) -> None:
    n_tensors, has_all_fields = HEADERS[workload]
    message, envelope = header_message(n_tensors, has_all_fields=has_all_fields)
    body, header_length = response_body(message, envelope)
    names = list(message.arrays)

    def function(contender: str) -> Callable[[], Any]:
        return partial(response_reader(contender), body, header_length, names)

    check = partial(check_arrays, message=message)
    measure_turns(benchmark, "read a small response", workload, in_turns(function), check)


@every_header
def test_read_request(benchmark: BenchmarkFixture, workload: str) -> None:
    n_tensors, has_all_fields = HEADERS[workload]
    message, envelope = header_message(n_tensors, has_all_fields=has_all_fields)
    body, header_length = request_body(message, envelope)
    assert header_length is not None
    names = list(message.arrays)

    def function(contender: str) -> Callable[[], Any]:
        return partial(request_reader(contender), body, header_length, names)

    def check(found: Any) -> None:
        check_arrays(found[0], message)
        assert found[1] == envelope

    measure_turns(benchmark, "read a small request", workload, in_turns(function), check)


@every_header
def test_write_request(benchmark: BenchmarkFixture, workload: str) -> None:
    n_tensors, has_all_fields = HEADERS[workload]
    message, envelope = header_message(n_tensors, has_all_fields=has_all_fields)

    def check(found: Any) -> None:
        body, header_length = joined(found) if isinstance(found, tw.Frame) else found
        request = tw.decode_request(body, header_length)
        check_arrays([request[name].as_numpy() for name in message.arrays], message)
        parameters = dict(request.parameters)
        parameters.pop("binary_data_output", None)  # tritonclient adds it without outputs
        assert (request.id or None, parameters) == (envelope.id, envelope.parameters)
        assert [output.name for output in request.outputs or ()] == envelope.outputs

    contenders = in_turns(partial(request_writer, message=message, envelope=envelope))
    measure_turns(benchmark, "write a small request", workload, contenders, check)


# --- memory: texts that need much memory in relation to their length ---

N = 200_000  # elements
N_EMPTY_TENSORS = 4000  # below the default of Limits.max_tensors


def response_text(*, extra: str = "", outputs: str = "") -> bytes:
    return f'{{"model_name":"m",{extra}"outputs":[{outputs}]}}'.encode()


def repeated(datatype: str, element: str) -> bytes:
    data = ",".join([element] * N)
    output = f'{{"name":"x","datatype":"{datatype}","shape":[{N}],"data":[{data}]}}'
    return response_text(outputs=output)


def empty_tensors() -> bytes:
    entries = [
        f'{{"name":"{i}","datatype":"INT8","shape":[0],"data":[]}}' for i in range(N_EMPTY_TENSORS)
    ]
    return response_text(outputs=",".join(entries))


KEYS = ",".join(f'"{i}":0' for i in range(N))
LISTS = ",".join(["[]"] * N)

# The tensor `x` is converted to an array, if there is one.
TEXTS: dict[str, Callable[[], bytes]] = {
    "FP64, all digits": lambda: json_response(json_elements("FP64", N), "FP64"),
    "FP64, one digit": lambda: repeated("FP64", "0"),
    "INT64, one digit": lambda: repeated("INT64", "0"),
    "INT8, one digit": lambda: repeated("INT8", "0"),
    "BYTES, 0-40 characters": lambda: json_response(json_elements("BYTES", N), "BYTES"),
    "BYTES, empty": lambda: repeated("BYTES", '""'),
    "BYTES, one character": lambda: repeated("BYTES", '"a"'),
    "unknown field: a list of lists": lambda: response_text(extra=f'"more":[{LISTS}],'),
    "unknown field: an object": lambda: response_text(extra=f'"more":{{{KEYS}}},'),
    "parameters: a list of lists": lambda: response_text(extra=f'"parameters":{{"p":[{LISTS}]}},'),
    "4,000 empty tensors": empty_tensors,
}


ALL_PARAMETERS = tw.Limits(max_parameters=2**63 - 1)


def text_reader(contender: str, workload: str, text: bytes) -> Callable[[], Any]:
    """Return a function that reads the text and returns all objects that it has created."""
    dtype = workload.partition(",")[0].replace("FP", "float").replace("INT", "int")
    dtype = "object" if dtype == "BYTES" else dtype
    has_array = workload.startswith(("FP", "INT", "BYTES"))
    if contender == OURS:

        def ours() -> Any:
            found = tw.decode_response(text, limits=ALL_PARAMETERS)
            is_numeric = has_array and dtype != "object"
            return (found, found["x"].as_numpy()) if is_numeric else found

        return ours
    loads = LIBRARIES[contender]().loads

    def theirs() -> Any:
        found = loads(text)
        return np.array(found["outputs"][0]["data"], dtype) if has_array else found

    return theirs


@every_library
@pytest.mark.parametrize("workload", marked(TEXTS, quick=TEXTS))
def test_memory(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    """Measure the peak of Python's allocators while the text is read, including the result."""
    with measuring(benchmark, "peak memory per byte of JSON", workload, contender):
        text = TEXTS[workload]()
        read = text_reader(contender, workload, text)
        read()  # imports and caches of the first call are not counted
        tracemalloc.start()
        try:
            kept = benchmark.pedantic(read)  # type: ignore[no-untyped-call]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        del kept
        benchmark.extra_info["per_byte"] = peak / len(text)
