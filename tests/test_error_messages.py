"""The length of error messages does not depend on names, values, shapes or their number."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire
import tensorwire.server
from support.asgi_requests import ask
from tensorwire._codec.limits import UNLIMITED
from tensorwire.errors import (
    MAX_ITEMS,
    format_count,
    format_names,
    format_seconds,
    format_shape,
    format_subject,
    format_value,
)
from tensorwire.server.model import as_tensor, check_inputs, check_outputs

tw: Any = tensorwire  # untyped, because many calls here violate the types
server: Any = tensorwire.server

MAX_MESSAGE = 2000  # characters; errors.py promises it
ZERO = np.zeros(1, np.int8)
WIDE_DTYPE = np.dtype([(f"field{i}", "<i4") for i in range(2000)])
DEEP_SHAPE = (2**62,) + (1,) * 63

# A long name as it may be in a message, and one whose repr() is ten times as long.
NAMES = ["n" * 100_000, "\U000e0001" * 100_000, "'\"\\" * 50_000]


def names(name: str) -> list[str]:
    return [f"{i}{name}" for i in range(200)]


def tensors(name: str) -> list[Any]:
    return [tw.Tensor(one, ZERO) for one in names(name)]


def request(name: str) -> Any:
    return tw.InferRequest(tensors(name))


def in_shared_memory(name: str) -> Any:
    region = {"shared_memory_region": "r"}
    return tw.Tensor(name, None, datatype="FP32", shape=[1], parameters=region)


def decode_request(header: Any) -> Any:
    return tw.decode_request(json.dumps(header).encode(), limits=UNLIMITED)


def encode(tensor: Any, **members: Any) -> Any:
    return tw.encode_request(tw.InferRequest([tensor], **members), limits=UNLIMITED)


def encode_zero(**members: Any) -> Any:
    return encode(tw.Tensor("x", ZERO), **members)


def entry(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "INT8", "shape": [1], "data": [0], **members}


def decode_entry(name: str, **members: Any) -> Any:
    return decode_request({"inputs": [entry(name, **members)]})


def spec(name: str) -> Any:
    return tw.TensorSpec(name, "FP32", DEEP_SHAPE)


def specs(name: str) -> dict[str, Any]:
    return {one: spec(one) for one in names(name)}


def surrogate(name: str) -> str:
    return f"{name}\ud800"


def columns(name: Any, **values: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    return tw.tensors_from_dataframe(pandas.DataFrame({name: values.get("column", [0])}))


def frame_of(*given: Any) -> Any:
    pytest.importorskip("pandas")
    return tw.dataframe_from_tensors(given, "pandas")


class Text(str):
    """Equal texts that are two keys of a dict."""

    __slots__ = ()
    __hash__ = object.__hash__


class Failing:
    """An object whose buffer, array or iteration raises an error with a long text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __index__(self) -> int:
        raise TypeError(self.text)

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError(self.text)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def model(_: Any) -> None:
    """Not a builtin function, of which `inspect` makes a signature each time."""


CASES: dict[str, Callable[[str], Any]] = {
    # tensors and messages
    "NUL": lambda name: tw.Tensor(f"{name}\0", ZERO),
    "datatype": lambda name: tw.Tensor("x", ZERO, datatype=name),
    "datatype of a spec": lambda name: tw.TensorSpec("x", name, [1]),
    "huge datatype": lambda name: tw.Tensor(name, ZERO, datatype=10**5000),
    "shape": lambda name: tw.Tensor(name, ZERO, shape=DEEP_SHAPE),
    "shape of text": lambda name: tw.Tensor(name, [name], shape=[10**6000]),
    "dimension": lambda name: tw.Tensor(name, ZERO, shape=[Failing(name)]),
    "ragged": lambda name: tw.Tensor(name, [[["a"]] * 9, [["a"]] * 8]),
    "value": lambda name: tw.Tensor(name, [name], datatype="INT8"),
    "huge value": lambda name: tw.Tensor(name, [10**6000], datatype="INT8"),
    "dtype": lambda name: tw.Tensor(name, np.zeros(1, WIDE_DTYPE)),
    "dlpack": lambda name: tw.Tensor(name, Failing(name)),
    "shared memory": lambda name: in_shared_memory(name).as_numpy(),
    "tensor of shared memory": lambda name: tw.Tensor("x", in_shared_memory(name)),
    "no region": lambda name: tw.Tensor(name, None, datatype="FP32", shape=[1]),
    "elements of numbers": lambda name: tw.Tensor(name, ZERO).elements,
    "reserved parameter": lambda name: tw.Tensor(name, ZERO, parameters={"binary_data_size": 1}),
    "length of a scalar": lambda name: len(tw.Tensor(name, np.float32(1))),
    "text by dlpack": lambda name: tw.Tensor(name, [name]).__dlpack__(),
    "missing tensor": lambda name: request(name)["absent" + name],
    "missing output": lambda name: tw.InferResponse(tensors(name))["absent"],
    # encoding
    "tensor twice": lambda name: tw.InferRequest([tw.Tensor(name, ZERO)] * 2),
    "too long": lambda name: tw.encode_request(request(name)),
    "surrogate": lambda name: encode(tw.Tensor(surrogate(name), ZERO)),
    "surrogate in a parameter": lambda name: encode_zero(parameters={name: surrogate(name)}),
    "parameter": lambda name: encode_zero(parameters={name: {1}}),
    "parameter twice": lambda name: encode_zero(parameters={name: {Text(name): 1, name: 2}}),
    "number of a parameter": lambda name: encode_zero(parameters={name: 1 << 10**6}),
    "key of a parameter": lambda name: encode_zero(parameters={name: {1: 2}}),
    "depth of a parameter": lambda name: tw.encode_request(
        tw.InferRequest([tw.Tensor("x", ZERO)], parameters={name: [[[[[[]]]]]]}),
        limits=tw.Limits(max_nesting=4),
    ),
    "binary_data_output": lambda name: encode_zero(parameters={"binary_data_output": name}),
    "requested twice": lambda name: encode_zero(outputs=[tw.RequestedOutput(name)] * 2),
    "requested NUL": lambda name: tw.RequestedOutput(f"{name}\0"),
    "requested binary_data": lambda name: encode_zero(
        outputs=[tw.RequestedOutput(name, parameters={"binary_data": name})]
    ),
    "requested unknown output": lambda name: tw.encode_response(
        tw.InferResponse(tensors(name)),
        tw.InferRequest([tw.Tensor("x", ZERO)], ["absent" + name]),
    ),
    "selection": lambda name: tw.encode_response(tw.InferResponse([]), selection=name),
    "nonfinite": lambda name: tw.encode_response(tw.InferResponse([]), nonfinite=name),
    # decoding
    "two header lengths": lambda name: tw.header_length(
        [("Inference-Header-Content-Length", 10**5000), ("Inference-Header-Content-Length", 1)]
    ),
    "header length": lambda name: tw.decode_request(b"{}", name),
    "decoded twice": lambda name: decode_request({"inputs": [entry(name)] * 2}),
    "decoded name": lambda name: tw.decode_request(json.dumps({"inputs": [entry(name)]}).encode()),
    "decoded datatype": lambda name: decode_entry(name, datatype=name),
    "decoded shape": lambda name: decode_entry(name, shape=[10**4000] * 60),
    "decoded rank": lambda name: decode_entry(name, shape=[1] * 10_000),
    "decoded size": lambda name: decode_entry(
        name, data=None, parameters={"binary_data_size": 10**4000}
    ),
    "decoded data": lambda name: decode_entry(name, data=name),
    "decoded element": lambda name: decode_entry(name, data=[name]),
    "decoded number": lambda name: tw.decode_request(
        json.dumps({"inputs": [entry(name)]}).replace("[0]", f"[{'9' * 10_000}]").encode(),
        limits=UNLIMITED,
    ),
    "decoded region": lambda name: decode_entry(
        name, data=None, parameters={"shared_memory_region": [name] * 100}
    ),
    "decoded binary_data_output": lambda name: decode_request(
        {"inputs": [entry(name)], "parameters": {"binary_data_output": {name: name}}}
    ),
    "decoded member twice": lambda name: tw.decode_request(
        json.dumps({"inputs": [], name: 1})[:-1].encode() + f",{json.dumps(name)}:2}}".encode()
    ),
    "decoded error": lambda name: tw.decode_response(json.dumps({"error": name}).encode()),
    # BYTES
    "name of a dtype": lambda name: tw.decode_bytes(b"").as_numpy(name),
    "dtype of BYTES": lambda name: tw.decode_bytes(b"").as_numpy(WIDE_DTYPE),
    "shape of BYTES": lambda name: tw.decode_bytes(b"").reshape([10**6000] * 64),
    "count of BYTES": lambda name: tw.decode_bytes(b"", -(10**6000)),
    "index of BYTES": lambda name: tw.decode_bytes(b"")[10**6000],
    "indices of BYTES": lambda name: tw.decode_bytes(b"")[(1,) * 10_000],
    "encoded dtype": lambda name: tw.encode_bytes(np.zeros(1, WIDE_DTYPE)),
    # data frames
    "column name": lambda name: columns((name, name)),
    "column dtype": lambda name: columns(name, column=np.zeros(1, "M8[s]")),
    "column rows": lambda name: columns(
        name, column=[np.zeros((1,) * 60), np.zeros(1, WIDE_DTYPE)]
    ),
    "column missing": lambda name: columns(name, column=[None, "a"]),
    "column tensor": frame_of,
    "column twice": lambda name: frame_of(tw.Tensor(name, ZERO), tw.Tensor(name, ZERO)),
    "column of different length": lambda name: frame_of(
        tw.Tensor(name, ZERO), tw.Tensor(f"{name}2", [1, 2], datatype="INT8")
    ),
    "column without dimensions": lambda name: frame_of(tw.Tensor(name, np.float32(1))),
    "library": lambda name: tw.dataframe_from_tensors([], name),
    # server
    "unexpected input": lambda name: check_inputs([tw.Tensor("x", ZERO)], specs(name)),
    "wrong input": lambda name: check_inputs([tw.Tensor(name, ZERO)], {name: spec(name)}),
    "missing input": lambda name: check_inputs([], {name: spec(name)}),
    "unexpected output": lambda name: check_outputs([tw.Tensor(name, ZERO)], specs(name)),
    "wrong output": lambda name: check_outputs([tw.Tensor(name, ZERO)], {name: spec(name)}),
    "None as output": lambda name: as_tensor(name, None, {}),
    "declared twice": lambda name: server.Model(model, [spec(name)] * 2),
    "model name": lambda name: server.create_app({f"/{name}": model}),
    "ambiguous model": lambda name: server.create_app({name: model, f"{name}/ready": model}),
    "server selection": lambda name: server.create_app({}, selection=name),
    "server nonfinite": lambda name: server.create_app({}, nonfinite=name),
}


@pytest.mark.parametrize("name", NAMES, ids=["long", "escapes", "quotes"])
@pytest.mark.parametrize("case", CASES)
def test_messages_are_short(case: str, name: str) -> None:
    with pytest.raises(Exception) as caught:
        CASES[case](name)
    documented = (tw.TensorwireError, TypeError, ValueError, LookupError, BufferError)
    assert isinstance(caught.value, documented)
    assert 10 < len(str(caught.value)) <= MAX_MESSAGE
    assert "Exceeds the limit" not in str(caught.value)


@pytest.mark.parametrize("path", ["{}", "v2/models/{}", "v2/models/echo/versions/{}", "v2"])
@pytest.mark.parametrize("name", NAMES[:1])
def test_bodies_of_error_responses_are_short(path: str, name: str) -> None:
    app = server.create_app({"echo": lambda request: {}})
    answer = ask(app, "/" + path.format(name), name if path == "v2" else "GET")
    assert answer.status in (404, 405)
    assert len(answer.body) <= MAX_MESSAGE


def test_request_with_many_long_names() -> None:
    """An error of status 400 is not longer than the request that causes it."""
    entries = [entry(f"{i:04096}") for i in range(4096)]
    app = server.create_app({"m": server.Model(lambda request: {"y": request["absent"]})})
    answer = ask(app, "/v2/models/m/infer", "POST", [json.dumps({"inputs": entries}).encode()])
    assert (answer.status, len(answer.body) <= MAX_MESSAGE) == (400, True)
    assert "4096 names" in answer.body.decode()


MOST = ", ".join(["'a'"] * MAX_ITEMS)
PARTS = [
    (format_value("image"), "'image'"),
    (format_value("a\0\n'"), '"a\\x00\\n\'"'),
    (format_value("n" * 80), f"'{'n' * 80}'"),
    (format_value("n" * 81), f"'{'n' * 80}'..."),
    (format_value("\0" * 81), "'" + "\\x00" * 20 + "'..."),
    *((format_value(value), str(value)) for value in (None, True, 0.5, 2**64 - 1)),
    (format_value([1]), "list"),
    (format_value(2**64), "more than 2^64"),
    (format_value(-(2**70)), "less than -2^64"),
    (format_names([]), "[]"),
    (format_names(["a"]), "['a']"),
    (format_names(["a"] * MAX_ITEMS), f"[{MOST}]"),
    (format_names(["a"] * (MAX_ITEMS + 1)), f"[{MOST}, ... {MAX_ITEMS + 1} names]"),
    (format_names(["a"] * 1000), f"[{MOST}, ... 1000 names]"),
    (format_shape(range(8)), "[0, 1, 2, 3, 4, 5, 6, 7]"),
    (format_shape(range(9)), "[0, 1, 2, 3, 4, 5, 6, 7, ... 9 dimensions]"),
    (format_shape([2**64]), "[more than 2^64]"),
    (format_subject("input", "x" * 80), f"input '{'x' * 80}'"),
    (format_subject("input", "x" * 81), f"input '{'x' * 80}'..."),
    (format_subject("input", None), "the input"),
    *((format_count("byte", n), text) for n, text in ((0, "0 bytes"), (1, "1 byte"))),
    *((format_seconds(n), f"{n:g} seconds") for n in (60.0, 0.5)),
    *((format_seconds(n), "1 second") for n in (1, 1.0)),
]


@pytest.mark.parametrize(("found", "expected"), PARTS, ids=range(len(PARTS)))
def test_parts_of_messages(found: str, expected: str) -> None:
    assert found == expected
