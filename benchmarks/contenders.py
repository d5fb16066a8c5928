"""The libraries that encode requests and decode responses.

To add a contender, write two functions, ``encode`` and ``decode``, and add an entry to
``CONTENDERS``. All contenders have the same arguments and results, so that one check applies to
all: a message becomes a body and its header length, and the reverse. ``FORMATS`` has the formats
in which programs send arrays and strings to services of their own.

A contender whose pinned dependencies conflict with ours names its ``environment``, an entry of
``PROGRAMS`` in `tests/interop/environment.py`. It is measured by the interpreter of that
environment.
"""

from __future__ import annotations

import base64
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorwire as tw

from .workloads import DTYPES, Message, Part, Values

Names = list[str]
Found = list[NDArray[Any]]
Encoded = tuple[bytes, int | None]  # the body and its header length


class Missing(Exception):
    """A program or package is not installed; the text names it."""


class Unsupported(Exception):
    """The contender does not support this, or would take too long; the text gives the reason."""


class Unchanged(Unsupported):
    """The integration of this contender replaces nothing that the measured functions call."""


@cache
def module(name: str) -> Any:
    """Import an optional module. Raises Missing."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient without its extra
        raise Missing(f"{name} cannot be imported: {str(error).splitlines()[0]}") from None


@contextmanager
def installed(*integrations: str) -> Iterator[None]:
    """Install an integration in this context. Raises Missing for an unsupported version."""
    if not integrations:
        yield
        return
    (integration,) = map(module, integrations)
    try:
        integration.install()
    except tw.TensorwireError as error:
        raise Missing(str(error)) from None
    try:
        yield
    finally:
        integration.uninstall()


def unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Contender:
    """One way to encode and decode. ``encode`` and ``decode`` are measured.

    ``prepare`` creates the argument of ``encode``; ``join`` converts the result to one body and its
    header length. ``decode`` takes a body, its header length and the names of the arrays to return.
    The body is a response or, if the contender has its own format, the result of ``encode``.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[bytes, int | None, Names], Found]
    prepare: Callable[[Message], Any] = unchanged
    join: Callable[[Any], Encoded] = unchanged
    needs: tuple[str, ...] = ()  # modules
    has_own_format: bool = False
    context: Callable[[], AbstractContextManager[None]] = nullcontext  # in which it is measured
    environment: str = ""  # the environment that it needs; empty for ours
    max_nbytes: int = 1 << 40  # larger messages would take too long

    def require(self, message: Message | None = None) -> None:
        """Raise Missing if a module is missing, and Unsupported if the message is too large."""
        for name in self.needs:
            module(name)
        if message is not None and message.nbytes > self.max_nbytes:
            raise Unsupported(f"not measured above {self.max_nbytes >> 20} MB")

    def body_of(self, message: Message) -> Encoded:
        """Return the body and header length that ``decode`` is measured with."""
        if self.has_own_format:
            return self.join(self.encode(self.prepare(message)))
        return response_of(message)

    def read_back(self, encoded: Encoded, names: Names) -> Found:
        """Decode a body that this contender has encoded."""
        if self.has_own_format:
            return self.decode(*encoded, names)
        request = tw.decode_request(*encoded)
        return [request[name].as_numpy() for name in names]


def parts_of(message: Message) -> list[Part]:
    return message.parts


def our_tensors(parts: list[Part]) -> list[tw.Tensor]:
    return [tw.Tensor(name, array, binary=is_binary) for name, array, _, _, is_binary in parts]


def joined(frame: tw.Frame) -> Encoded:
    return bytes(frame), frame.header_length


@lru_cache(1)
def response_of(message: Message) -> Encoded:
    """Return the response that all contenders decode.

    It is the same object for all of them, because reading 4 to 256 MB takes up to twice as long in
    some pages of memory as in others.
    """
    return joined(tw.encode_response(tw.InferResponse(our_tensors(message.parts), model_name="m")))


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


TENSORWIRE = Contender(our_encode, our_decode, parts_of, joined)
TENSORWIRE_PREPARED = Contender(tw.encode_request, our_decode, our_request, joined)


# --- tritonclient ---

HTTP, TRITON_INTEGRATION = "tritonclient.http", "tensorwire.integrations.tritonclient"


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


TRITONCLIENT = Contender(
    lambda parts: triton_encode(triton_inputs(parts)), triton_decode, parts_of, needs=(HTTP,)
)
TRITONCLIENT_PREPARED = Contender(
    triton_encode, triton_decode, lambda message: triton_inputs(message.parts), needs=(HTTP,)
)
TRITONCLIENT_ON_TENSORWIRE = Contender(
    TRITONCLIENT.encode,
    triton_decode,
    parts_of,
    needs=(HTTP, TRITON_INTEGRATION),
    context=lambda: installed(TRITON_INTEGRATION),
)


# --- KServe: its requests and responses, with its own JSON library ---

KSERVE, KSERVE_INTEGRATION = "kserve", "tensorwire.integrations.kserve"
# Without tensorwire, KServe and MLServer create lists of Python numbers: 30 bytes or more for each.
LIST_MAX_NBYTES = 128 << 20


def kserve_encode(parts: list[Part]) -> Encoded:
    kserve, inputs = module(KSERVE), []
    for name, array, datatype, shape, is_binary in parts:
        tensor = kserve.InferInput(name, shape, datatype)
        tensor.set_data_from_numpy(array, binary_data=is_binary)
        inputs.append(tensor)
    body, header_length = kserve.InferRequest("m", inputs).to_rest()
    return (module("orjson").dumps(body) if isinstance(body, dict) else body), header_length


def kserve_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    response: Any = module(KSERVE).InferResponse
    if header_length is None:
        found = response.from_rest(module("orjson").loads(body))
    else:
        found = response.from_bytes(body, header_length)
    return [found.get_output_by_name(name).as_numpy() for name in names]


def kserve_bytes_parts(message: Message) -> list[Part]:
    """Return the parts of a message with BYTES. Raises Unchanged for others."""
    if not any(datatype == "BYTES" and is_binary for _, _, datatype, _, is_binary in message.parts):
        raise Unchanged("the integration replaces only what encodes BYTES")
    return message.parts


KSERVE_ALONE = Contender(
    kserve_encode,
    kserve_decode,
    parts_of,
    needs=(KSERVE,),
    environment="kserve",
    max_nbytes=LIST_MAX_NBYTES,
)
KSERVE_ON_TENSORWIRE = Contender(
    kserve_encode,
    kserve_decode,
    kserve_bytes_parts,
    needs=(KSERVE, KSERVE_INTEGRATION),
    context=lambda: installed(KSERVE_INTEGRATION),
    environment="kserve",
)


# --- MLServer: gRPC responses with raw contents, because its REST API is not binary ---

MLSERVER, MLSERVER_INTEGRATION = "mlserver", "tensorwire.integrations.mlserver"


def mlserver_converter() -> Any:
    return module("mlserver.grpc.converters").ModelInferResponseConverter


def mlserver_output(name: str, array: NDArray[Any]) -> Any:
    if array.dtype.kind == "O":  # NumpyCodec would pad the elements to one length
        output = module("mlserver.types").ResponseOutput
        return output(name=name, shape=list(array.shape), datatype="BYTES", data=array.tolist())
    tensor = module("mlserver.codecs").NumpyCodec.encode_output(name, array)
    tensor.shape = list(array.shape)  # NumpyCodec converts a vector to a column
    return tensor


def mlserver_array(tensor: Any) -> NDArray[Any]:
    if tensor.datatype == "BYTES":
        return np.array(list(tensor.data), object).reshape(tensor.shape)
    array: NDArray[Any] = module("mlserver.codecs").NumpyCodec.decode_output(tensor)
    return array


def mlserver_encode(message: Message) -> bytes:
    if message.as_json:
        raise Unsupported("gRPC has no JSON tensors")
    outputs = [mlserver_output(name, array) for name, array in message.arrays.items()]
    response = module("mlserver.types").InferenceResponse(model_name="m", outputs=outputs)
    body: bytes = mlserver_converter().from_types(response, use_raw=True).SerializeToString()
    return body


def mlserver_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    response = module("mlserver.grpc.dataplane_pb2").ModelInferResponse.FromString(body)
    found = {t.name: mlserver_array(t) for t in mlserver_converter().to_types(response).outputs}
    return [found[name] for name in names]


def mlserver(*integrations: str) -> Contender:
    return Contender(
        mlserver_encode,
        mlserver_decode,
        join=lambda body: (body, None),
        needs=(MLSERVER, *integrations),
        has_own_format=True,
        context=lambda: installed(*integrations),
        environment="mlserver",
        max_nbytes=LIST_MAX_NBYTES,
    )


# --- by hand: tobytes and join; frombuffer at an offset; a struct loop for BYTES ---


def struct_elements(array: NDArray[Any]) -> bytes:
    parts = []
    for element in array.flat:
        parts.append(struct.pack("<I", len(element)))
        parts.append(element)
    return b"".join(parts)


def hand_encode(parts: list[Part]) -> Encoded:
    entries, buffers = [], []
    for name, array, datatype, shape, is_binary in parts:
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if not is_binary:
            values = array.ravel().tolist()
            entry["data"] = [v.decode() for v in values] if datatype == "BYTES" else values
        else:
            buffers.append(struct_elements(array) if datatype == "BYTES" else array.tobytes())
            entry["parameters"] = {"binary_data_size": len(buffers[-1])}
        entries.append(entry)
    header = json.dumps({"inputs": entries}).encode()
    return b"".join([header, *buffers]), len(header)


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


# --- safetensors ---

SAFETENSORS = "safetensors.numpy"


def safetensors_encode(message: Message) -> Encoded:
    if any(array.dtype.kind == "O" for array in message.arrays.values()):
        raise Unsupported("safetensors has no strings")
    return module(SAFETENSORS).save(message.arrays), None


def safetensors_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    found = module(SAFETENSORS).load(body)
    return [found[name] for name in names]


# --- Arrow IPC: one batch; a tensor is a flat column with its shape in the metadata ---

ARROW = "pyarrow"


def arrow_batch(values: Values) -> Any:
    pa = module(ARROW)
    fields, lists = [], []
    for name, value in values.items():
        column = pa.array(value if isinstance(value, list) else value.ravel())
        shape = getattr(value, "shape", (len(value),))
        fields.append(pa.field(name, pa.large_list(column.type), metadata={"shape": repr(shape)}))
        offsets = pa.array([0, len(column)], pa.int64())
        lists.append(pa.LargeListArray.from_arrays(offsets, column))
    return pa.record_batch(lists, schema=pa.schema(fields))


def arrow_encode(values: Values) -> Any:
    pa = module(ARROW)
    sink, batch = pa.BufferOutputStream(), arrow_batch(values)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def arrow_arrays(batch: Any, names: Names) -> Found:
    pa, found = module(ARROW), []
    for name in names:
        column = batch.column(name).values
        shape = [int(n) for n in batch.field(name).metadata[b"shape"][1:-1].split(b",") if n]
        is_copied = column.type in (pa.binary(), pa.string(), pa.bool_())
        found.append(column.to_numpy(zero_copy_only=not is_copied).reshape(shape))
    return found


def arrow_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    return arrow_arrays(module(ARROW).ipc.open_stream(body).read_next_batch(), names)


def arrow_values(batch: Any) -> Values:
    names = batch.schema.names
    return dict(zip(names, arrow_arrays(batch, names), strict=True))


# --- pickle, protocol 5, followed by its out-of-band buffers ---


def pickle_encode(message: Message) -> list[Any]:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(dict(message.arrays), protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    return [pickle.dumps((data, [view.nbytes for view in views])), *views]


def pickle_join(buffers: list[Any]) -> Encoded:
    return b"".join(buffers), len(buffers[0])


def pickle_decode(body: bytes, header_length: int | None, names: Names) -> Found:
    assert header_length is not None
    view, offset, buffers = memoryview(body), header_length, []
    data, sizes = pickle.loads(view[:header_length])
    for nbytes in sizes:
        buffers.append(view[offset : offset + nbytes])
        offset += nbytes
    found = pickle.loads(data, buffers=buffers)
    return [found[name] for name in names]


# --- memcpy: copy the array's bytes once, to memory that is already mapped ---


class Memcpy:
    target: NDArray[Any]

    @classmethod
    def prepare(cls, message: Message) -> NDArray[Any]:
        (array, *more) = message.arrays.values()
        if more or array.dtype.kind == "O" or message.as_json:
            raise Unsupported("measured for one numeric array only")
        cls.target = np.zeros_like(array)
        cls.target.fill(1)
        return array

    @classmethod
    def encode(cls, array: NDArray[Any]) -> NDArray[Any]:
        np.copyto(cls.target, array)
        return cls.target

    @classmethod
    def decode(cls, body: bytes, header_length: int | None, names: Names) -> Found:
        np.copyto(cls.target.reshape(-1).view(np.uint8), np.frombuffer(body, np.uint8))
        return [cls.target]


# --- the contenders, in the order of the columns ---

# These formats do not implement the protocol. They are included for orientation.
OTHER_FORMATS = {
    "safetensors": Contender(
        safetensors_encode, safetensors_decode, needs=(SAFETENSORS,), has_own_format=True
    ),
    "Arrow IPC": Contender(
        arrow_encode,
        arrow_decode,
        lambda message: message.arrays,
        join=lambda buffer: (buffer.to_pybytes(), None),
        needs=(ARROW,),
        has_own_format=True,
    ),
    "pickle 5": Contender(pickle_encode, pickle_decode, join=pickle_join, has_own_format=True),
}
LIMITS = {
    "memcpy": Contender(
        Memcpy.encode,
        Memcpy.decode,
        Memcpy.prepare,
        lambda array: (array.tobytes(), None),
        has_own_format=True,
    ),
}
CONTENDERS = {
    "tensorwire": TENSORWIRE,
    "tritonclient": TRITONCLIENT,
    "tritonclient on tensorwire": TRITONCLIENT_ON_TENSORWIRE,
    "kserve": KSERVE_ALONE,
    "kserve on tensorwire": KSERVE_ON_TENSORWIRE,
    "mlserver, gRPC raw": mlserver(),
    "mlserver, gRPC raw, on tensorwire": mlserver(MLSERVER_INTEGRATION),
    "by hand": Contender(hand_encode, hand_decode, parts_of),
    **OTHER_FORMATS,
    **LIMITS,
}

# Only the encoding of the message is measured: the Tensor or InferInput objects exist already.
PREPARED = {"tensorwire": TENSORWIRE_PREPARED, "tritonclient": TRITONCLIENT_PREPARED}

ENVIRONMENTS = ("kserve", "mlserver", "torch")


def contenders_in(environment: str) -> set[str]:
    """Return the names of the contenders that need this environment."""
    return {name for name, c in CONTENDERS.items() if c.environment == environment}


# --- formats of arrays and strings, which are sent by name ---


@dataclass(frozen=True)
class Format:
    """A way to send arrays and lists of strings in a body.

    ``encode`` returns the body or a frame, and the header length, which only the protocol has.
    ``decode`` takes both, and returns strings in a list or in an array of objects.
    """

    encode: Callable[[Values], tuple[Any, int | None]]
    decode: Callable[[Any, int | None], Values]
    needs: tuple[str, ...] = ()  # modules

    def require(self) -> None:
        """Raise Missing if a module is missing."""
        for name in self.needs:
            module(name)


def frame_of(values: Values) -> tuple[tw.Frame, int | None]:
    frame = tw.encode_request(tw.InferRequest(values))
    return frame, frame.header_length


def values_of_request(body: Any, header_length: int | None) -> Values:
    request = tw.decode_request(body, header_length)
    return {
        name: tensor.as_strings() if tensor.datatype == "BYTES" else tensor.as_numpy()
        for name, tensor in request.items()
    }


MSGPACK = "msgpack_numpy"


STRINGS = "strings: "  # before their names


def tenso_encode(values: Values) -> tuple[Any, None]:
    """Encode a dict of arrays. Strings are a packet in it, because it can have only arrays."""
    tenso, arrays = module("tenso"), {}
    for name, value in values.items():
        if isinstance(value, list):
            packet = tenso.StringTensor(value).dumps()
            arrays[STRINGS + name] = np.frombuffer(packet, np.uint8)
        else:
            arrays[name] = value
    return tenso.dumps(arrays), None


def tenso_decode(body: Any, header_length: int | None) -> Values:
    tenso, found = module("tenso"), {}
    for name, value in tenso.loads(body).items():
        if name.startswith(STRINGS):
            found[name.removeprefix(STRINGS)] = tenso.StringTensor.loads(value).to_list()
        else:
            found[name] = value
    return found


MULTIPART, JSON_TYPE = ("multipart", "urllib3", "orjson"), "application/json"
BOUNDARY, MAX_NBYTES = "boundary-of-the-parts", 1 << 40


def multipart_encode(values: Values) -> tuple[bytes, None]:
    parts = {}
    for name, value in values.items():
        if isinstance(value, list):
            parts[name] = (name, module("orjson").dumps(value), JSON_TYPE)
        else:
            file = BytesIO()
            np.save(file, value, allow_pickle=False)
            parts[name] = (name, file.getvalue(), "application/octet-stream")
    body, _ = module("urllib3").encode_multipart_formdata(parts, BOUNDARY)
    return body, None


def multipart_decode(body: Any, header_length: int | None) -> Values:
    """Decode with the fastest one of the parsers that Litestar, Flask and Starlette use."""
    limits = {"spool_limit": MAX_NBYTES, "memory_limit": MAX_NBYTES}
    found = {}
    for part in module("multipart").MultipartParser(BytesIO(body), BOUNDARY, **limits):
        if part.content_type == JSON_TYPE:
            found[part.name] = module("orjson").loads(part.raw)
        else:
            found[part.name] = np.load(part.file, allow_pickle=False)
    return found


def base64_encode(values: Values) -> tuple[bytes, None]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            found[name] = value
        else:
            data = base64.b64encode(value.data).decode()
            found[name] = {"dtype": value.dtype.str, "shape": value.shape, "data": data}
    return module("orjson").dumps(found), None


def base64_decode(body: Any, header_length: int | None) -> Values:
    found: dict[str, Any] = module("orjson").loads(body)
    for name, value in found.items():
        if isinstance(value, dict):
            array = np.frombuffer(base64.b64decode(value["data"]), value["dtype"])
            found[name] = array.reshape(value["shape"])
    return found


ONE_BODY = "tensorwire, one body"
FORMATS = {
    "tensorwire": Format(frame_of, values_of_request),
    ONE_BODY: Format(lambda values: joined(frame_of(values)[0]), values_of_request),
    "msgpack-numpy": Format(
        lambda values: (module(MSGPACK).packb(dict(values)), None),
        lambda body, _: module(MSGPACK).unpackb(body),
        needs=(MSGPACK,),
    ),
    "tenso": Format(tenso_encode, tenso_decode, needs=("tenso",)),
    "Arrow IPC stream": Format(
        lambda values: (memoryview(arrow_encode(values)), None),
        lambda body, _: arrow_values(module(ARROW).ipc.open_stream(body).read_next_batch()),
        needs=(ARROW,),
    ),
    "pickle 5, in-band": Format(
        lambda values: (pickle.dumps(dict(values), protocol=5), None),
        lambda body, _: pickle.loads(body),
    ),
    "multipart, np.save": Format(multipart_encode, multipart_decode, needs=MULTIPART),
    "base64 in JSON": Format(base64_encode, base64_decode, needs=("orjson",)),
}
