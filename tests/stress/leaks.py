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
from support import cases, grpc_cases
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


def body(content_length: int | None, *chunks: bytes, max_nbytes: int | None = None) -> Any:
    buffer = tw.BodyBuffer(content_length, 7, max_nbytes=max_nbytes)
    for chunk in chunks:
        buffer.write(chunk)
    return buffer.remaining()


def grow_with_view() -> None:
    buffer = tw.BodyBuffer()
    buffer.write(b"1")
    with memoryview(buffer):
        buffer.write(bytes(1 << 17))


def calls() -> Iterator[Case]:
    """Yield calls with arguments that the API state machine does not have."""
    released, text = memoryview(b"x"), np.dtypes.StringDType(na_object=None)
    released.release()
    x, length = tw.Tensor("x", np.arange(6.0)), "Inference-Header-Content-Length"
    response = tw.InferResponse([x, x.replace(name="y")])
    words = tw.Tensor("words", ["a"])
    request = tw.InferRequest([x, words], [tw.RequestedOutput("x", binary=False)])
    nan = tw.InferRequest([tw.Tensor("x", [np.nan], datatype="FP32", binary=False)])
    frame = tw.encode_request(request)
    received = tw.decode_request(bytes(frame), frame.header_length)["x"]
    of_type = {"Content-Type": "application/vnd.vertex-ai-triton.binary+json;json-header-size=5"}
    works: tuple[Callable[[], object], ...] = (
        *(lambda: body(8, b"1234", b"5678"), lambda: body(5, b"123456"), lambda: body(-1)),
        *(lambda: body(None, b"12345", max_nbytes=4), lambda: body(None, b"1", bytes(1 << 17))),
        *(partial(tw.header_length, each) for each in ({length: "5"}, of_type)),
        *(partial(tw.encode_request, nan, nonfinite=each) for each in ("error", "literal")),
        partial(tw.encode_response, response, request),
        lambda: [bytes(each) for each in (*frame, *frame.chunks(7))],
        *(x.__arrow_c_schema__, received.__dlpack__, lambda: x.__dlpack__(max_version=(1, 0))),
        tw.Tensor("x", np.zeros(2, "u2"), datatype="BF16").__arrow_c_array__,
        *(partial(tw.encode_bytes, each) for each in ([b"a", None], [released])),
        *(partial(tw.encode_bytes, np.array(each)) for each in (["a", "bc"], ["a"] * 2)),
        partial(tw.encode_bytes, np.array(["a", None], text)),
        *(partial(np.asarray, words), partial(tw.Tensor, "y", x, datatype="FP32")),
        grow_with_view,
        partial(tw.Tensor, "x", NumbersProducer(array_changes={1: {"length": 5}})),
        *(partial(tw.Tensor, "y", rejected(message)) for message in REJECTED),
    )
    yield from ((f"call {i}", work) for i, work in enumerate(works))


def api() -> Iterator[Case]:
    """Yield the calls of the API state machine, each with new objects; nothing without pyarrow."""
    if not HAS_PYARROW:
        return
    import test_api_state_machine as machine  # noqa: PLC0415

    program = machine.Api()
    gc.enable()

    def use(function: Any, kind: Any, argument: Any) -> None:
        program.pool.clear()
        program.bodies.clear()
        item = machine.FIRST[kind](program)
        program.call(machine.attempt, function, item, program.made(argument))

    for kind, uses in (*machine.USES.items(), *((each, machine.OF_ALL) for each in machine.PUBLIC)):
        for i, argument in itertools.product(range(len(uses)), (None, 0, "y", [-1], (1, 0))):
            yield f"{kind} {i}, {argument}", partial(use, uses[i], kind, argument)
    for i, kind in itertools.product(range(len(machine.FUNCTIONS)), machine.FIRST):
        yield f"{i}, {kind}", partial(use, lambda o, _, i=i: machine.FUNCTIONS[i](o), kind, None)
    wrong = [machine.invalid_struct(k, i) for i in range(250) for k in (i % 12, i * 7 % 12, 19)]
    for producer in (*(make() for make in machine.ARROW), *wrong):
        yield repr(producer), partial(program.call, tw.Tensor, "x", producer)
    for dtype, layout in itertools.product(machine.DTYPES, machine.LAYOUTS):
        array = machine.made_array(dtype, (2, 3), layout)
        for binary in (True, False):
            yield f"{dtype}", partial(program.call, tw.Tensor, "x", array, binary=binary)


ENTRY_POINTS: dict[str, Iterable[Case]] = {
    "decode_request": decoding("request"),
    "decode_response": decoding("response"),
    "decode_request, raw": raw_decoding(),
    "gRPC": grpc(),
    "API": itertools.chain(api(), calls()),
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
