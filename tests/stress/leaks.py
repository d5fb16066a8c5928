"""Call every entry point, with success and with every error, and check that nothing leaks.

`PYTHONPATH=tests python -m stress.leaks [CALLS]` makes 100,000 calls of each entry point by
default, divided among its cases. It prints a line for each entry point, and any leaks. The exit
code is 1 if there are leaks.
"""

from __future__ import annotations

import gc
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorwire as tw
import tensorwire.grpc
from fuzz.invalid_dlpack import FIELD_CHANGES, producer
from support import cases, grpc_cases, reference
from support.arrow_numbers import NumbersProducer
from support.memory import InUse, in_use
from tensorwire._codec import datatypes, protobuf_reader, protobuf_writer

N_CALLS = 100_000
N_WARM = 30  # calls that fill caches and free lists
Case = tuple[str, Callable[[], Any]]
EXPECTED_ERRORS = (tw.TensorwireError, TypeError, ValueError, BufferError, KeyError, IndexError)


def decoding(kind: str) -> Iterator[Case]:
    function: Callable[..., Any] = tw.decode_request if kind == "request" else tw.decode_response
    every: list[cases.Valid | cases.Malformed] = [*cases.VALID, *cases.MALFORMED]
    for case in every:
        if case.kind == kind:
            yield case.id, partial(function, case.body, case.header_length)
            if case.id.startswith("C"):
                yield case.id, partial(in_a_bytearray, function, case.body, case.header_length)
    for body in (None, "text", 5, np.zeros(8, np.float32), np.zeros(8, "u1")[::2]):
        yield f"a body of {type(body).__name__}", partial(function, body)
    for length in (True, 1.0, [1]):
        yield f"a length of {length}", partial(function, b"{}", length)


def in_a_bytearray(function: Callable[..., Any], body: bytes, header_length: Any) -> Any:
    return function(bytearray(body), header_length)


def raw_decoding() -> Iterator[Case]:
    every: list[cases.RawValid | cases.RawMalformed] = [*cases.RAW_VALID, *cases.RAW_MALFORMED]
    for case in every:
        spec = tw.TensorSpec("x", case.datatype, case.dims, case.batching)
        yield case.id, partial(tw.decode_request, case.body, 0, raw_input=spec)
    yield "no raw_input", partial(tw.decode_request, b"abc", 0)


def encoding() -> Iterator[Case]:
    x = np.arange(6, dtype=np.float32)
    tensor, nan = tw.Tensor("x", x), tw.Tensor("x", [np.nan], datatype="FP32", binary=False)
    words = tw.Tensor("w", ["a", "\u20ac"])
    yield "request", lambda: bytes(tw.encode_request(tw.InferRequest([tensor, words])))
    yield "JSON", lambda: tw.encode_request(tw.InferRequest([nan]))
    yield "literal", lambda: tw.encode_request(tw.InferRequest([nan]), nonfinite="literal")
    yield "NaN rejected", lambda: tw.encode_request(tw.InferRequest([nan]), nonfinite="error")
    response = tw.InferResponse([tensor, words], model_name="m")
    request = tw.InferRequest([tensor], [tw.RequestedOutput("x", binary=False)])
    missing = tw.InferRequest([tensor], [tw.RequestedOutput("y")])
    yield "response", lambda: list(tw.encode_response(response))
    yield "as requested", lambda: tw.encode_response(response, request)
    yield "as Triton", lambda: tw.encode_response(response, request, selection="triton")
    yield "unknown requested output", lambda: tw.encode_response(response, missing)
    yield "raw", lambda: tw.encode_raw_request(x)
    yield "raw request of two elements", lambda: tw.encode_raw_request(tw.Tensor("w", ["a", "b"]))
    yield "tensor twice", lambda: tw.InferRequest([tensor, tensor])
    yield "no tensors", lambda: tw.InferRequest([])
    yield (
        "mapping",
        lambda: dict(tw.InferRequest({"x": x, "w": ["a"]}, ["x"], parameters={"k": [1]})),
    )
    yield "replace", lambda: request.replace(id="1", inputs=[words, tensor.replace(shape=(2, 3))])
    yield "replaced by an invalid value", lambda: request.replace(inputs=5)
    yield "data", lambda: (tensor.data, tensor.parameters, words.elements, words.as_strings())
    yield "elements of numbers", lambda: tensor.elements
    half = tw.Tensor("h", x.astype("f2"), binary=False)
    yield "FP16 as JSON", lambda: tw.encode_request(tw.InferRequest([half]))
    odd = tw.Tensor("o", [b"\xff"], binary=False)
    yield "invalid UTF-8 as JSON", lambda: tw.encode_request(tw.InferRequest([odd]))
    yield "a surrogate", lambda: tw.InferRequest([tensor], id="\ud800")
    yield "invalid parameters", lambda: tw.Tensor("x", x, parameters={"k": [{"a": object()}]})
    frame = tw.encode_request(tw.InferRequest([tensor, words]))
    yield "chunks", lambda: [bytes(chunk) for chunk in frame.chunks(7)]
    yield "headers", lambda: (frame.headers, len(frame), list(frame))
    for data in (x[::-1], x.astype(">f4"), x.astype("c8"), [[1], [1, 2]], [b"a", 1], ["\ud800"],
                 5, None, np.array([b"a", None]), np.array(["a", "bc"]), np.array([b"x"]),
                 np.array(["a"], np.dtypes.StringDType()), [[["a"]]]):  # fmt: skip
        yield f"Tensor of {data!r:.30}", partial(tw.Tensor, "x", data)
    yield "a NUL in a name", lambda: tw.Tensor("\0", x)
    yield "numbers", lambda: tw.Tensor("x", [1, 300], datatype="UINT8")


def grpc_decoding() -> Iterator[Case]:
    decoders: dict[str, Callable[..., Any]] = {
        "request": tw.grpc.decode_request,
        "response": tw.grpc.decode_response,
        "stream": tw.grpc.decode_stream_response,
    }
    for id, message in grpc_cases.SAME.items():
        yield id, partial(tw.grpc.decode_request, message)
    yield "response", partial(tw.grpc.decode_response, grpc_cases.REQUEST)
    typed = grpc_cases.typed("x", "BYTES", (2,), b"\x42\1a\x42\0")
    yield "typed contents", partial(tw.grpc.decode_request, typed)
    yield "split", partial(protobuf_reader.split_field, grpc_cases.REQUEST, 7)
    kinds = {1: ("model_name", str), 5: ("inputs", [{1: ("name", str), 3: ("shape", [int])}])}
    yield "a dict", partial(protobuf_reader.read_message, grpc_cases.REQUEST, kinds)
    yield "no bytes", partial(decoders["request"], None)

    def decode_a_bytearray(kind: str, message: bytes) -> Any:
        return decoders[kind](bytearray(message))

    for case in grpc_cases.REJECTED:
        yield case.id, partial(decoders[case.kind], case.message)
        yield f"{case.id}, bytearray", partial(decode_a_bytearray, case.kind, case.message)


def grpc_encoding() -> Iterator[Case]:
    request = tw.grpc.decode_request(grpc_cases.REQUEST)
    response = tw.InferResponse(request.inputs, parameters={"a": [1], "b": 2**70})
    yield "request", partial(tw.grpc.encode_request, request)
    yield "response", lambda: tw.grpc.encode_response(tw.InferResponse(request.inputs))
    yield "stream", lambda: tw.grpc.encode_stream_response(tw.InferResponse(request.inputs))
    yield "unknown requested output", partial(tw.grpc.encode_response, response, request)
    yield "a parameter that cannot be sent", partial(tw.grpc.encode_response, response)
    large = tw.InferRequest({"x": np.zeros(2**31, np.uint8)})
    yield "too long", partial(tw.grpc.encode_request, large)
    yield (
        "append",
        partial(protobuf_writer.append_fields, b"head", 7, [b"a", bytearray(9)]),
    )
    kinds = {1: ("name", str), 2: ("items", [{1: ("dims", [int])}])}
    values = {"name": "n", "items": [{"dims": [1, 2]}]}
    yield "a dict", partial(protobuf_writer.write_message, values, kinds)


def elements() -> Iterator[Case]:
    good = reference.elements([b"", b"abc", "\u20ac".encode(), b"x" * 40])
    odd = tw.decode_bytes(reference.elements([b"a", b"\xff" * 20]))
    tensor, target = tw.decode_bytes(good), bytearray(100)
    buffer: Any
    for buffer in (good, bytearray(good), good[:-1], good[:5], b"", "text", memoryview(good)[::2]):
        yield f"decode {buffer!r:.30}", partial(tw.decode_bytes, buffer)
        yield f"decode 4 of {buffer!r:.30}", partial(tw.decode_bytes, buffer, 4)
    text = np.dtypes.StringDType()
    strings = np.array(["a", "\u20ac" * 30], text)
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    unicode = np.array(["a", "\u20ac\U0001f600"])
    released = memoryview(b"x")
    released.release()
    yield from {
        "encode": lambda: tw.encode_bytes(tensor),
        "encode into": lambda: tw.encode_bytes_into(tensor, target),
        "too small": lambda: tw.encode_bytes_into(tensor, target[:9]),
        "read-only": lambda: tw.encode_bytes_into(tensor, bytes(100)),
        "lists": lambda: tw.encode_bytes([["a", b"b"], [bytearray(b"c"), memoryview(b"d")]]),
        "ragged": lambda: tw.encode_bytes([["a"], []]),
        "None": lambda: tw.encode_bytes(["a", None]),
        "a released view": lambda: tw.encode_bytes([released]),
        "item": lambda: (tensor[1], tensor[-1], tensor.element(1), tensor.element(-1)),
        "index out of range": lambda: tensor[9],
        "slices": lambda: (tensor[1:], tensor[::-1], tensor[[0, 2]], tensor.reshape((2, 2))[1]),
        "shape of another size": lambda: tensor.reshape((3,)),
        "conversion to lists": lambda: (tensor.tolist(), list(tensor), tensor.copy() == tensor),
        "objects": lambda: tensor.as_numpy(object),
        "S": lambda: tensor.as_numpy("S"),
        "StringDType": lambda: tensor.as_numpy(text),
        "StringDType, invalid UTF-8": lambda: odd.as_numpy(text),
        "str": tensor.as_strings,
        "str, invalid UTF-8": odd.as_strings,
        "unsupported dtype": lambda: tensor.as_numpy("f4"),  # type: ignore[call-overload]
        "encode StringDType": lambda: tw.encode_bytes(strings),
        "encode StringDType with None": lambda: tw.encode_bytes(missing),
        "encode U": lambda: tw.encode_bytes(unicode),
        "Arrow capsules": tensor.__arrow_c_array__,
        "pickle": lambda: pickle.loads(pickle.dumps(tensor, 5)),
    }.items()


def arrow() -> Iterator[Case]:
    """Yield conversions from and to Arrow, or nothing if pyarrow is missing."""
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ImportError:
        return
    tensor = tw.decode_bytes(reference.elements([b"abc", b"\xff" * 20]))
    yield "out", lambda: pa.array(tensor)
    for wanted in (pa.string(), pa.large_binary()):
        yield f"out as {wanted}", partial(tensor.__arrow_c_array__, wanted.__arrow_c_schema__())
    kinds = [pa.string(), pa.large_binary(), pa.binary_view(), pa.int32(), pa.binary(2)]
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        # There, pyarrow 24 itself crashes if it exports such an array repeatedly.
        kinds.remove(pa.binary_view())
    for kind in kinds:
        values = pa.array([1, 2] if kind == pa.int32() else ["ab", "cd"]).cast(kind)
        yield f"in from {kind}", partial(tw.encode_bytes, values)
        yield f"a stream of {kind}", partial(tw.encode_bytes, pa.chunked_array([values, values]))
    yield "a null", partial(tw.encode_bytes, pa.array(["a", None]))
    matrix = tw.Tensor("x", np.arange(6, dtype=np.int32).reshape(2, 3))
    flags = tw.Tensor("x", np.array([True, False, True]))
    for exported in (matrix, flags):
        yield f"{exported.datatype} capsules", exported.__arrow_c_array__
        yield f"{exported.datatype} schema", exported.__arrow_c_schema__
        values = pa.array(exported)
        yield f"{exported.datatype} out", partial(pa.array, exported)
        yield f"{exported.datatype} in", partial(tw.Tensor, "x", values)
        yield (
            f"a stream of {exported.datatype}",
            partial(tw.Tensor, "x", pa.chunked_array([values, values])),
        )
    bf16 = tw.Tensor("x", np.zeros(2, np.uint16), datatype="BF16")
    yield "BF16 out", bf16.__arrow_c_array__
    yield "a null number", partial(tw.Tensor, "x", pa.array([1, None]))
    yield "an unsupported type", partial(tw.Tensor, "x", pa.array([1], pa.timestamp("s")))
    lists = NumbersProducer(array_changes={1: {"length": 5}})
    yield "consumed lists", partial(tw.Tensor, "x", lists)


class Capsule:
    """A producer that returns the same capsule each time."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def dlpack() -> Iterator[Case]:
    body = tw.encode_response(tw.InferResponse([tw.Tensor("x", np.arange(6.0).reshape(2, 3))]))
    tensor = tw.decode_response(bytes(body), body.header_length)["x"]
    writable = tw.Tensor("x", np.arange(6.0))
    words = tw.Tensor("w", ["a"])
    versioned = partial(tensor.__dlpack__, max_version=(1, 0))
    yield "unused capsules", lambda: (versioned(), writable.__dlpack__())
    yield "a copy", partial(tensor.__dlpack__, copy=True)
    yield "numpy", lambda: np.from_dlpack(tensor)
    yield "read-only", tensor.__dlpack__
    yield "BYTES", words.__dlpack__
    yield "device", partial(writable.__dlpack__, dl_device=(2, 0))
    yield "__array__", lambda: (np.asarray(tensor), np.asarray(words), np.asarray(tensor, "f4"))
    yield "no copy", partial(np.asarray, tensor, "f4", copy=False)
    yield "in", lambda: tw.Tensor("y", Capsule(versioned()))
    yield "in, unversioned", lambda: tw.Tensor("y", Capsule(writable.__dlpack__()))
    yield "in, strided", lambda: tw.Tensor("y", Capsule(np.arange(12.0)[::2].__dlpack__()))
    yield "in, of another datatype", lambda: tw.Tensor("y", Capsule(versioned()), datatype="FP32")
    used = Capsule(versioned())
    kept = tw.Tensor("y", used)
    yield "in, used", lambda: tw.Tensor(kept.name, used)
    invalid = [producer(change, is_cached=True) for change in range(len(FIELD_CHANGES))]
    for change, made in zip(FIELD_CHANGES, invalid, strict=True):
        yield f"in, {change}", partial(tw.Tensor, "y", made)


def buffers() -> Iterator[Case]:
    def filled(content_length: int | None, *chunks: Any, **more: Any) -> Any:
        buffer = tw.BodyBuffer(content_length, 7, **more)
        for chunk in chunks:
            buffer.write(chunk)
        return buffer, bytes(buffer), buffer.remaining()

    yield "known", partial(filled, 8, b"1234", b"5678")
    yield "growing", partial(filled, None, b"1234", bytes(70_000))
    yield "longer", partial(filled, 5, b"1234", b"5678")
    yield "too long", partial(filled, None, b"12345", max_nbytes=4)
    yield "announced too long", partial(filled, 5, max_nbytes=4)
    yield "no memory", partial(filled, 2**62)
    yield "negative", partial(filled, -1)
    yield "no bytes", partial(filled, 5, "text")
    yield "advance", lambda: tw.BodyBuffer(5).advance(6)

    def grow_with_view() -> None:
        buffer = tw.BodyBuffer(None)
        buffer.write(b"1")
        view = memoryview(buffer)
        buffer.write(bytes(1 << 17))
        del view

    yield "grow with a view", grow_with_view


def lengths() -> Iterator[Case]:
    name = "Inference-Header-Content-Length"
    for headers in ({name: "5"}, {name: "x"}, {name: "5", name.lower(): "6"}, {1: 2}, None,
                    {"Content-Type": "application/vnd.vertex-ai-triton.binary+json;"
                                     "json-header-size=5"}):  # fmt: skip
        yield f"{headers}", partial(tw.header_length, headers)  # type: ignore[arg-type]
    wrong: Any = {"check_bool": 1}
    for bounds in ({}, {"max_rank": 3}, {"max_rank": 65}, wrong):
        yield f"Limits {bounds}", partial(tw.Limits, **bounds)


ENTRY_POINTS: dict[str, Iterable[Case]] = {
    "decode_request": decoding("request"),
    "decode_response": decoding("response"),
    "decode_request, raw": raw_decoding(),
    "encode": encoding(),
    "gRPC, decode": grpc_decoding(),
    "gRPC, encode": grpc_encoding(),
    "BytesArray": elements(),
    "Arrow": arrow(),
    "DLPack": dlpack(),
    "BodyBuffer": buffers(),
    "header_length, Limits": lengths(),
}


def leaked(before: InUse, n_calls: int) -> str:
    """Describe how much more is in use, if it is at least half a block per call."""
    after = in_use()
    n_blocks = after.n_blocks - before.n_blocks
    nbytes = after.malloc_nbytes - before.malloc_nbytes
    if n_blocks > n_calls // 2:
        return f"{n_blocks} blocks in {n_calls} calls"
    if nbytes > 64 * n_calls + 20_000:
        return f"{nbytes} bytes of malloc in {n_calls} calls"
    return ""


def resident_nbytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except FileNotFoundError:
        return 0


def call(work: Callable[[], Any], n_calls: int) -> None:
    for _ in range(n_calls):
        with suppress(*EXPECTED_ERRORS):
            work()


def leak_of(work: Callable[[], Any], n_calls: int) -> str:
    """Describe what calls leak repeatedly; a cache that grows once is not a leak."""
    leak = ""
    for _ in range(3):
        call(work, N_WARM)
        before = in_use()
        call(work, n_calls)
        leak = leaked(before, n_calls)
        if not leak:
            break
    return leak


def check(name: str, found: list[Case], n_calls: int) -> list[str]:
    """Return the leaks in the cases of an entry point."""
    each = max(100, n_calls // len(found))
    for _, work in found:
        call(work, N_WARM)
    gc.collect()
    resident, dtypes = resident_nbytes(), dtype_references()
    leaks = []
    for id, work in found:
        if leak := leak_of(work, each):
            leaks.append(f"{name}, {id}: {leak}")
    grown = resident_nbytes() - resident
    if grown > 4 << 20:
        leaks.append(f"{name}: the process has grown by {grown} bytes")
    for dtype, n_before in dtypes.items():
        n_after = dtype_references()[dtype]
        if abs(n_after - n_before) > 50:
            leaks.append(f"{name}: {n_before} references to {dtype}, then {n_after}")
    print(f"{name}: {len(found)} cases, {each} calls each, {grown >> 10} KiB more", flush=True)
    return leaks


def dtype_references() -> dict[str, int]:
    rows = datatypes.DATATYPES.values()
    return {row.name: sys.getrefcount(row.dtype) for row in rows if row.dtype is not None}


def main() -> None:
    n_calls = int(sys.argv[1]) if len(sys.argv) > 1 else N_CALLS
    leaks = []
    for name, found in ENTRY_POINTS.items():
        if listed := list(found):
            leaks += check(name, listed, n_calls)
    sys.exit("\n".join(leaks) or None)


if __name__ == "__main__":
    main()
