"""Call every entry point, with success and with every error, and check that nothing leaks.

`PYTHONPATH=tests python -m stress.leaks [CALLS]` makes 100,000 calls of each entry point by
default, divided among its cases, most of which are those of the unit tests. It prints a line for
each entry point, and any leaks. The exit code is 1 if there are leaks.
"""

from __future__ import annotations

import gc
import itertools
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import tensorwire as tw
import tensorwire.grpc
from support import cases, grpc_cases, reference
from support.arrow_numbers import NumbersProducer
from support.memory import N_WARM, call, leak_of, resident_nbytes
from tensorwire._codec import datatypes
from tensorwire._codec.grpc import reader, writer
from test_api_misuse import WRONG
from test_combinations import COPIES, FORMS, ORIGINS, Expected, check_arrow, expected
from test_dlpack import REJECTED, rejected
from test_error_messages import CASES as WRONG_CALLS

N_CALLS = 100_000
HAS_PYARROW = find_spec("pyarrow") is not None
Case = tuple[str, Callable[[], Any]]


def combinations() -> Iterator[Case]:
    """Yield tensors of every origin, copied, and sent in every form."""
    copies = itertools.cycle(COPIES)
    wanted = [expected(datatype, (2, 3)) for datatype in ("BOOL", "FP64", "BYTES")]
    for origin, form in itertools.product(ORIGINS, FORMS):
        for want in [*wanted, expected("BYTES", (1,))]:
            if origin(want) is not None and (HAS_PYARROW or form is not check_arrow):
                name = f"{origin.__name__}, {form.__name__}, {want.datatype}"
                yield name, partial(convert, origin, next(copies), form, want)


def convert(origin: Any, copy: Any, form: Any, want: Expected) -> None:
    form(copy(origin(want)), want)


def wrong_calls() -> Iterator[Case]:
    """Yield calls that raise an error, except those that take long to make their arguments."""
    for id, work in WRONG_CALLS.items():
        is_slow = "dtype" in id or "shape of" in id or id.startswith(("column", "decoded s"))
        if not is_slow:
            yield id, partial(work, "x" * 100)
    yield from ((message, wrong_call) for _, message, wrong_call in WRONG)


def conversions() -> Iterator[Case]:
    """Yield all ways to make and to convert BYTES, or nothing if pyarrow is missing.

    Without a GIL, pyarrow 24 itself crashes if it exports an array of views repeatedly.
    """
    if not HAS_PYARROW or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    from fuzz import exports  # noqa: PLC0415

    index = (slice(None), [1, 0])
    for items in ([b"", b"abc", "\u20ac".encode(), b"x" * 40], [b"a", b"\xff" * 20]):
        for maker, export in itertools.product(exports.MAKERS, exports.EXPORTS):
            shape = len(items) // 2, 2
            work = partial(exports.check_export, items, shape, index, maker, export, b"rest")
            yield f"{maker.__name__}, {export.__name__}", work


def decoding(kind: str) -> Iterator[Case]:
    function: Any = tw.decode_request if kind == "request" else tw.decode_response
    every: list[cases.Valid | cases.Malformed] = [*cases.VALID, *cases.MALFORMED]
    for case in every:
        if case.kind == kind:
            yield case.id, partial(function, case.body, case.header_length)
            if case.id.startswith("C"):
                yield case.id, partial(in_a_bytearray, function, case.body, case.header_length)
    for wrong in (None, np.zeros(8, np.float32)):
        yield f"a body of {type(wrong).__name__}", partial(function, wrong)
    yield "a length that is no number", partial(function, b"{}", True)


def in_a_bytearray(function: Callable[..., Any], body: bytes, *more: Any) -> Any:
    return function(bytearray(body), *more)


def raw_decoding() -> Iterator[Case]:
    every: list[cases.RawValid | cases.RawMalformed] = [*cases.RAW_VALID, *cases.RAW_MALFORMED]
    for case in every:
        spec = tw.TensorSpec("x", case.datatype, case.dims, case.batching)
        yield case.id, partial(tw.decode_request, case.body, 0, raw_input=spec)
    yield "no raw_input", partial(tw.decode_request, b"abc", 0)


def encoding() -> Iterator[Case]:
    x = np.arange(6, dtype=np.float32)
    tensor, words = tw.Tensor("x", x), tw.Tensor("w", ["a", "\u20ac"])
    nan = tw.InferRequest([tw.Tensor("x", [np.nan], datatype="FP32", binary=False)])
    not_utf8 = tw.InferRequest([tw.Tensor("x", [b"\xff"], binary=False)])
    request = tw.InferRequest([tensor], [tw.RequestedOutput("x", binary=False)])
    response = tw.InferResponse([tensor, words], model_name="m")
    frame = tw.encode_response(response)
    for nonfinite in ("literal", "error"):
        yield nonfinite, partial(tw.encode_request, nan, nonfinite=nonfinite)
    yield "invalid UTF-8", partial(tw.encode_request, not_utf8)
    yield "as requested", partial(tw.encode_response, response, request)
    yield "raw request of two elements", partial(tw.encode_raw_request, words)
    yield "mapping", lambda: dict(tw.InferRequest({"x": x, "w": ["a"]}, ["x"], id="1"))
    yield "replace", lambda: request.replace(id="1", inputs=[words, tensor.replace(shape=(2, 3))])
    yield "frame", lambda: (frame.headers, list(frame), [bytes(each) for each in frame.chunks(7)])
    for data in (x.astype(">f4"), x.astype("c8"), [[1], [1, 2]], [b"a", 1], ["\ud800"], 5,
                 np.array([b"a", None]), np.array(["a", "bc"]), np.array([b"x"])):  # fmt: skip
        yield f"Tensor of {data!r:.30}", partial(tw.Tensor, "x", data)


def grpc() -> Iterator[Case]:
    decoders: dict[str, Callable[..., Any]] = {
        "request": tw.grpc.decode_request,
        "response": tw.grpc.decode_response,
        "stream": tw.grpc.decode_stream_response,
    }
    for id, message in grpc_cases.SAME.items():
        yield id, partial(tw.grpc.decode_request, message)
    for case in grpc_cases.REJECTED:
        yield case.id, partial(decoders[case.kind], case.message)
        yield f"{case.id}, bytearray", partial(in_a_bytearray, decoders[case.kind], case.message)
    typed = grpc_cases.typed("x", "BYTES", (2,), b"\x42\1a\x42\0")
    yield "typed contents", partial(tw.grpc.decode_request, typed)
    yield "no bytes", partial(tw.grpc.decode_request, None)  # type: ignore[arg-type]
    request = tw.grpc.decode_request(grpc_cases.REQUEST)
    response = tw.InferResponse(request.inputs, parameters={"a": [1], "b": 2**70})
    large = tw.InferRequest({"x": np.zeros(2**31, np.uint8)})
    yield "response", lambda: tw.grpc.encode_response(tw.InferResponse(request.inputs))
    yield "stream", lambda: tw.grpc.encode_stream_response(tw.InferResponse(request.inputs))
    yield "unknown requested output", partial(tw.grpc.encode_response, response, request)
    yield "a parameter that cannot be sent", partial(tw.grpc.encode_response, response)
    yield "too long", partial(tw.grpc.encode_request, large)
    yield "append", partial(writer.append_fields, b"head", 7, [b"a", bytearray(9)])
    yield "split", partial(reader.split_field, grpc_cases.REQUEST, 7)
    kinds = {1: ("name", str), 5: ("inputs", [{1: ("name", str), 3: ("shape", [int])}])}
    values = {"name": "n", "inputs": [{"name": "x", "shape": [1, 2]}]}
    yield "read a dict", partial(reader.read_fields, grpc_cases.REQUEST, kinds)
    yield "write a dict", partial(writer.write_fields, values, kinds)


def elements() -> Iterator[Case]:
    wire = reference.elements([b"", b"abc", "\u20ac".encode(), b"x" * 40])
    tensor, released = tw.decode_bytes(wire), memoryview(b"x")
    released.release()
    for count in (None, 4, 5):
        yield f"decode {count}", partial(tw.decode_bytes, wire, count)
    text = np.dtypes.StringDType(na_object=None)
    for values in ([["a"], []], [released], np.array(["a", None], text)):
        yield f"encode {values!r:.30}", partial(tw.encode_bytes, values)
    yield "items", lambda: (tensor[1], tensor.element(-1), tensor[1:], tensor[::-1], [*tensor])
    yield "shape of another size", lambda: tensor.reshape((3,))


def arrow() -> Iterator[Case]:
    """Yield conversions from and to Arrow, or nothing if pyarrow is missing."""
    if not HAS_PYARROW:
        return
    import pyarrow as pa  # noqa: PLC0415

    words = tw.decode_bytes(reference.elements([b"abc", b"\xff" * 20]))
    matrix = tw.Tensor("x", np.arange(6, dtype=np.int32).reshape(2, 3))
    yield "out as text", partial(words.__arrow_c_array__, pa.string().__arrow_c_schema__())
    yield "schema", matrix.__arrow_c_schema__
    yield "BF16 out", tw.Tensor("x", np.zeros(2, "u2"), datatype="BF16").__arrow_c_array__
    given = [pa.array(["ab", "cd"]), pa.array([1, 2]), pa.array([True, False]), pa.array(matrix)]
    for values in (*given, pa.array([b"ab", b"cd"], pa.binary(2))):
        for data in (values, pa.chunked_array([values, values])):
            yield f"Tensor of {data.type}", partial(tw.Tensor, "x", data)
    yield "numbers as BYTES", partial(tw.encode_bytes, given[1])
    yield "lists as BYTES", partial(tw.encode_bytes, given[3])
    yield "a null", partial(tw.encode_bytes, pa.array(["a", None]))
    yield "a null number", partial(tw.Tensor, "x", pa.array([1, None]))
    consumed = NumbersProducer(array_changes={1: {"length": 5}})
    yield "consumed lists", partial(tw.Tensor, "x", consumed)


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
    writable, words = tw.Tensor("x", np.arange(6.0)), tw.Tensor("w", ["a"])
    versioned = partial(tensor.__dlpack__, max_version=(1, 0))
    yield "unused capsules", lambda: (versioned(), writable.__dlpack__())
    yield "read-only", tensor.__dlpack__
    yield "BYTES", words.__dlpack__
    yield "device", partial(writable.__dlpack__, dl_device=(2, 0))
    yield "__array__", lambda: (np.asarray(tensor), np.asarray(words), np.asarray(tensor, "f4"))
    yield "in, unversioned", lambda: tw.Tensor("y", Capsule(writable.__dlpack__()))
    yield "in, strided", lambda: tw.Tensor("y", Capsule(np.arange(12.0)[::2].__dlpack__()))
    yield "in, of another datatype", lambda: tw.Tensor("y", Capsule(versioned()), datatype="FP32")
    for message in REJECTED:
        yield f"in: {message}", partial(tw.Tensor, "y", rejected(message))


def filled(content_length: int | None, *chunks: Any, **more: Any) -> Any:
    buffer = tw.BodyBuffer(content_length, 7, **more)
    for chunk in chunks:
        buffer.write(chunk)
    return buffer, bytes(buffer), buffer.remaining()


def grow_with_view() -> None:
    buffer = tw.BodyBuffer(None)
    buffer.write(b"1")
    with memoryview(buffer):
        buffer.write(bytes(1 << 17))


def buffers() -> Iterator[Case]:
    yield "known", partial(filled, 8, b"1234", b"5678")
    yield "growing", partial(filled, None, b"1234", bytes(70_000))
    yield "longer", partial(filled, 5, b"1234", b"5678")
    yield "too long", partial(filled, None, b"12345", max_nbytes=4)
    yield "no memory", partial(filled, 2**62)
    yield "negative", partial(filled, -1)
    yield "advance", lambda: tw.BodyBuffer(5).advance(6)
    yield "grow with a view", grow_with_view


def lengths() -> Iterator[Case]:
    of_type = "application/vnd.vertex-ai-triton.binary+json;json-header-size=5"
    headers: Any
    for headers in ({"Inference-Header-Content-Length": "5"}, {1: 2}, {"Content-Type": of_type}):
        yield f"{headers}", partial(tw.header_length, headers)
    yield "Limits", partial(tw.Limits, check_bool=1)  # type: ignore[arg-type]


ENTRY_POINTS: dict[str, Iterable[Case]] = {
    "decode_request": decoding("request"),
    "decode_response": decoding("response"),
    "decode_request, raw": raw_decoding(),
    "encode": encoding(),
    "gRPC": grpc(),
    "BytesArray": elements(),
    "Arrow": arrow(),
    "DLPack": dlpack(),
    "BodyBuffer": buffers(),
    "header_length, Limits": lengths(),
    "combinations": itertools.chain(combinations(), conversions()),
    "wrong calls": wrong_calls(),
}


def check(name: str, found: list[Case], n_calls: int) -> list[str]:
    """Return the leaks in the cases of an entry point."""
    each = max(100, n_calls // len(found))
    for _, work in found:
        call(work, N_WARM)
    gc.collect()
    resident, dtypes = resident_nbytes(), dtype_references()
    leaks = [f"{name}, {id}: {leak}" for id, work in found if (leak := leak_of(work, each))]
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
