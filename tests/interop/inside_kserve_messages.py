"""KServe's messages with and without the integration: equal values, and lists created on demand.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest
from kserve import InferOutput, InferResponse
from kserve.errors import InvalidInput
from kserve.protocol import infer_type
from kserve.utils import numpy_codec

import tensorwire as tw
from interop.json_requests import installed, outcome
from interop.kserve_bodies import (
    AS_JSON,
    NO_TEXT,
    ONE,
    TEXT,
    WORDS,
    X,
    decoded,
    entry,
    received,
    wire,
)
from support.case_types import Malformed
from support.malformed import MALFORMED
from tensorwire.http import HEADER_LENGTH
from tensorwire.integrations import kserve as integration
from tensorwire.integrations.kserve.convert import ReceivedOutput, write_response

# --- messages that KServe's own code accepts -------------------------------------------------

RAW = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 1, 255], np.uint8),
    "UINT64": np.array([0, 1, 2**64 - 1], np.uint64),
    "INT16": np.array([-(2**15), 0, 5], np.int16),
    "INT64": np.array([-(2**63), 0, 5]),
    "FP16": np.array([1.5, 65504, -0.0], np.float16),
    "FP32": np.array([0.1, 3e38, -0.0], np.float32),
    "FP64": np.array([0.1, 1e300, -0.0]),
}
ACCEPTED: dict[str, tuple[bytes, int]] = {
    name: wire(entry("x", [3], name, array.nbytes), tail=array.tobytes())
    for name, array in RAW.items()
} | {
    "BYTES": TEXT,
    "2-D": ONE,
    "scalar": wire(entry("x", [], "INT32", 4), tail=b"\1\0\0\0"),
    "empty": wire(entry("x", [0, 3], "FP32", 0)),
    "empty BYTES": wire(entry("t", [0], "BYTES", 0)),
    "parameters": wire(
        entry("x", [1], "INT8", 1, a="b", c=1), tail=b"\7", id="1", parameters={"p": True}
    ),
    "JSON": AS_JSON,
    "JSON and binary": wire(
        {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]},
        entry("x", [2], "UINT16", 4),
        {"name": "y", "shape": [1], "datatype": "INT64", "data": [5]},
        tail=b"\1\0\2\0",
    ),
    "outputs": wire(
        entry("x", [1], "INT8", 1),
        tail=b"\7",
        outputs=[{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}],
    ),
    "null data": wire(entry("x", [1], "INT8", 1) | {"data": None}, tail=b"\7"),
}


def seen(request: Any) -> Any:
    """Return everything that a model can see of a request, arrays first.

    Parameters that were not sent are None in some of KServe's messages, and empty in others.
    """
    arrays = [tensor.as_numpy() for tensor in request.inputs]
    return (
        [(array.dtype, array.shape, array.tolist(), array.flags.writeable) for array in arrays],
        [
            (t.name, t.shape, t.datatype, t.parameters or {}, t.data, t._raw_data)
            for t in request.inputs
        ],
        [array.tolist() for array in (tensor.as_numpy() for tensor in request.inputs)],
        request.id,
        request.model_name,
        request.parameters,
        [(output.name, output.parameters or {}) for output in request.request_outputs or ()],
        request.use_binary_outputs,
        outcome(lambda: repr(request.as_dataframe())),
    )


@pytest.mark.parametrize("case", ACCEPTED)
def test_request_has_the_same_values(case: str) -> None:
    assert seen(received(*ACCEPTED[case])) == seen(decoded(*ACCEPTED[case]))


@pytest.mark.parametrize("send", ["to_rest", "to_grpc"])
@pytest.mark.parametrize("case", ACCEPTED)
def test_request_is_forwarded_as_before(case: str, send: str) -> None:
    """A transformer sends the same. Values without a JSON form are rejected."""
    ours, plain = received(*ACCEPTED[case]), decoded(*ACCEPTED[case])
    ours.id = plain.id = "1"
    assert outcome(getattr(ours, send)) == outcome(getattr(plain, send))


class Text(str):
    """A str subclass whose `__str__` differs from its content."""

    __slots__ = ()

    def __str__(self) -> str:
        return "printed"


ODD: dict[str, Any] = {
    "a subclass of str": np.array([Text("held"), b"a"], object),
    "mutable bytes": np.array([bytearray(b"a"), [b"b"]], object),
    "a lone surrogate": np.array(["\udc80", "a"], object),
    "masked BYTES": np.ma.array(np.array([b"a", b"b"], object), mask=[False, True]),
    "masked INT64": np.ma.array([1, 2], mask=[False, True]),
    "gaps between the elements": np.arange(4)[::2],
}


def outputs() -> list[Any]:
    """Return outputs whose data is set in all possible ways."""
    made = []
    for datatype, array in RAW.items():
        for how in ("array", "list", "binary", "JSON"):
            output = InferOutput(f"{datatype} {how}", [3], datatype)
            if how == "array":
                output.data = array
            elif how == "list":
                output.data = array.tolist()
            else:
                output.set_data_from_numpy(array, binary_data=how == "binary")
            made.append(output)
    words = np.array([b"a", "\u20ac", 5, None], object)
    for how in ("array", "list", "binary", "JSON"):
        output = InferOutput(f"BYTES {how}", [2, 2], "BYTES", parameters={"user": 1})
        if how == "array":
            output.data = words.reshape(2, 2)
        elif how == "list":
            output.data = ["a", "b", "c", "d"]
        else:
            output.set_data_from_numpy(words.reshape(2, 2), binary_data=how == "binary")
        made.append(output)
    dates = InferOutput("dates", [2], "BYTES")
    dates.set_data_from_numpy(np.array(["2020-01-01", "2021-02-03"], "datetime64[D]"))
    padded = InferOutput("S", [2], "BYTES")
    padded.set_data_from_numpy(np.array([b"a", b"bcd"]))
    for name, array in ODD.items():
        datatype = "BYTES" if array.dtype == object else "INT64"
        made.append(InferOutput(name, [2], datatype, array))
    return [*made, dates, padded]


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("i", range(len(outputs())))
def test_output_is_encoded_identically(i: int, is_binary: bool) -> None:
    """The same bytes if it is binary, else the same values. A second call returns the same."""
    request = tw.InferRequest({"x": X})

    def response() -> InferResponse:
        made = InferResponse("1", "m", [outputs()[i]], "2", use_binary_outputs=is_binary)
        made.parameters = {"p": 1} if i % 2 else None
        return made

    def expected() -> Any:
        content, length = response().to_rest()
        return (content, length) if length else (json.loads(orjson.dumps(content)), None)

    def written() -> Any:
        content, headers = write_response(ours, request)
        length = headers.get(HEADER_LENGTH)
        return (content, int(length)) if length else (without_nulls(json.loads(content)), None)

    plain = outcome(expected)
    ours = response()
    assert outcome(written) == plain
    assert outcome(written) == plain


def without_nulls(tree: Any) -> Any:
    """Return a JSON response without the nulls that KServe's endpoint adds."""
    for part in (tree, *tree["outputs"]):
        if part["parameters"] is None:
            del part["parameters"]
    return tree


def test_response_has_the_same_values() -> None:
    """KServe's REST client reads it."""
    text = {
        "model_name": "m",
        "id": "1",
        "parameters": {"p": 1},
        "outputs": [
            entry("x", [2, 3], "FP32", 24),
            {"name": "y", "shape": [1], "datatype": "FP64", "data": [1.5]},
            entry("t", [3], "BYTES", len(WORDS), user=1),
        ],
    }
    header = orjson.dumps(text)
    body = header + X.tobytes() + WORDS
    plain, ours = with_and_without(lambda: InferResponse.from_bytes(body, len(header)))
    assert isinstance(ours.outputs[0], ReceivedOutput)
    for _ in range(2):  # the second time with lists
        for output, expected in zip(ours.outputs, plain.outputs, strict=True):
            array = output.as_numpy()
            assert array.tolist() == expected.as_numpy().tolist()
            assert array.flags.writeable
        assert [output.data for output in ours.outputs] == [o.data for o in plain.outputs]
    assert (ours.id, ours.model_name, ours.parameters) == ("1", "m", {"p": 1})
    assert ours.to_rest() == plain.to_rest()
    _, ours = with_and_without(lambda: InferResponse.from_bytes(body, len(header)))
    wanted = tw.InferRequest({"x": X}, parameters={"binary_data_output": True})
    content, _ = write_response(ours, wanted)  # as in a transformer
    assert content.endswith(X.tobytes() + np.float64(1.5).tobytes() + WORDS)


def with_and_without(function: Callable[[], Any]) -> tuple[Any, Any]:
    """Call a function without and with the integration; return the results or error types."""
    plain = outcome(function)
    with installed(integration):
        return plain, outcome(function)


DATATYPE_NAMES = [*RAW, "UINT16", "UINT32", "INT8", "INT32", "BYTES", "FP8", "fp32", "", None]
DTYPES = [
    *(np.dtype(code) for code in "?bhilqBHILQefdgFDOSV"),
    *(np.dtype(text) for text in (">f4", ">i8", "S5", "M8[D]", "M8[ns]", "m8[s]", "f4,i4")),
    *(np.float32, np.bool_),
    np.dtypes.StringDType(),
]
CONTENTS = infer_type.InferTensorContents(
    bool_contents=[True], int_contents=[1], int64_contents=[2], uint_contents=[3],
    uint64_contents=[4], fp32_contents=[5.5], fp64_contents=[6.5], bytes_contents=[b"7"],
)  # fmt: skip


def test_datatypes_of_kserve_are_the_same() -> None:
    """The functions that are replaced for BF16."""

    def datatypes() -> list[Any]:
        responses = [
            InferResponse(
                "1", "m", [InferOutput("x", [1], "INT8"), InferOutput("y", [1], datatype)]
            )
            for datatype in ("FP16", "FP32", "BYTES")
        ]
        return [
            *(outcome(partial(numpy_codec.to_np_dtype, name)) for name in DATATYPE_NAMES),
            *(outcome(partial(numpy_codec.from_np_dtype, dtype)) for dtype in DTYPES),
            *(outcome(partial(infer_type.get_content, name, CONTENTS)) for name in DATATYPE_NAMES),
            *(infer_type._contains_fp16_datatype(response) for response in responses),
        ]

    plain, ours = with_and_without(datatypes)
    assert plain == ours
    assert plain[-3:] == [True, False, False]


ELEMENTS: list[Any] = [b"a", "\u20ac", b"", 5, None, np.bytes_(b"b\0"), np.str_("c"), True, 1.5]


@pytest.mark.parametrize("n_elements", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("first", range(len(ELEMENTS)))
def test_few_bytes_elements_are_serialized_identically(first: int, n_elements: int) -> None:
    array = np.empty(n_elements, object)
    array[:] = [ELEMENTS[(first + i) % len(ELEMENTS)] for i in range(n_elements)]
    masked = np.ma.masked_array(array, True)
    for view in (array, array[::-1], array.reshape(1, n_elements), masked):
        plain, ours = with_and_without(partial(serialized, view))
        assert plain == ours


def serialized(array: Any) -> Any:
    found: Any = infer_type.serialize_byte_tensor(array)
    return found.item() if found.size else found.shape


def test_unpaired_surrogate_is_not_serialized() -> None:
    array = np.array(["\ud800"], object)
    assert with_and_without(lambda: serialized(array)) == (UnicodeEncodeError, UnicodeEncodeError)


def test_response_without_binary_data() -> None:
    """KServe's own function reads it."""
    text = b'{"model_name":"m","outputs":[{"name":"y","shape":[1],"datatype":"INT8","data":[5]}]}'
    plain, ours = with_and_without(lambda: InferResponse.from_bytes(text, len(text)))
    assert plain == ours
    assert type(ours.outputs[0]) is InferOutput


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in MALFORMED
        if row.kind == "response"
        and isinstance(row.header_length, int)
        and row.header_length < len(row.body)
    ],
    ids=lambda row: row.id,
)
def test_malformed_response(row: Malformed) -> None:
    with pytest.raises(tw.DecodeError) as expected:
        tw.decode_response(row.body, row.header_length)
    with installed(integration), pytest.raises(InvalidInput) as caught:
        InferResponse.from_bytes(row.body, row.header_length)
    assert str(caught.value) == str(expected.value)


# --- lazy data ---


class TestLazyData:
    def test_as_numpy_is_a_writable_view(self) -> None:
        """Every call returns the same memory."""
        tensor = received(*ONE).inputs[0]
        array = tensor.as_numpy()
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0
        array += 1
        assert tensor.as_numpy().tolist() == (X + 1).tolist()
        assert tensor.data == (X + 1).ravel().tolist()

    def test_misaligned_tensors_are_copied(self) -> None:
        body, json_length = wire(
            entry("a", [1], "INT8", 1), entry("x", [6], "FP32", 24), tail=b"\1" + X.tobytes()
        )
        array = received(body, json_length).inputs[1].as_numpy()
        assert array.flags.aligned
        assert array.flags.writeable
        assert array.tolist() == X.ravel().tolist()

    def test_modified_list_becomes_the_data(self) -> None:
        tensor = received(*ONE).inputs[0]
        tensor.data[0] = 7
        assert tensor.data == [7, 1, 2, 3, 4, 5]
        assert tensor.as_numpy().tolist() == [[7, 1, 2], [3, 4, 5]]

    def test_list_of_json_data_has_what_was_sent(self) -> None:
        """Numbers and nesting, also if the array was changed."""
        body = b'{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":[[1],[2.5,NaN]]}]}'
        tensor = received(body, None).inputs[0]
        tensor.as_numpy()[:] = 0
        assert repr(tensor.data) == "[[1], [2.5, nan]]"

    def test_assigned_data_replaces_the_body(self) -> None:
        tensor = received(*ONE).inputs[0]
        tensor.data = [1, 2, 3, 4, 5, 6]
        assert tensor.as_numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
        tensor = received(*ONE).inputs[0]
        tensor.set_data_from_numpy(X + 1)
        assert tensor.data is None
        assert tensor.as_numpy().tolist() == (X + 1).tolist()
        assert tensor.parameters == {"binary_data_size": 24}

    def test_assigned_shape_is_used(self) -> None:
        tensor = received(*ONE).inputs[0]
        tensor.shape = [3, 2]
        assert tensor.as_numpy().shape == (3, 2)

    @pytest.mark.parametrize(
        "message", [ONE, TEXT, NO_TEXT], ids=["FP32", "BYTES", "BYTES that are not UTF-8"]
    )
    @pytest.mark.parametrize("is_listed", [False, True])
    def test_pickle_and_copy(self, message: tuple[bytes, int], is_listed: bool) -> None:
        request = received(*message)
        if is_listed:
            assert request.inputs[0].data
        copies = [
            copy.copy(request),
            copy.deepcopy(request),
            *(pickle.loads(pickle.dumps(request, n)) for n in range(2, 6)),
        ]
        expected = request.inputs[0].as_numpy().tolist()
        for made in copies:
            assert made.inputs[0].as_numpy().tolist() == expected
            assert made == request

    def test_pickle_contains_only_the_tensors_own_bytes(self) -> None:
        body, json_length = wire(
            entry("x", [1 << 20], "UINT8", 1 << 20), entry("y", [1], "INT8", 1), tail=bytes(1 << 20)
        )
        request = received(body + b"\7", json_length)
        assert len(pickle.dumps(request.inputs[1])) < 1000

    def test_pickle_loads_without_the_integration(self) -> None:
        script = (
            "import pickle, sys; request = pickle.load(sys.stdin.buffer);"
            "print(request.inputs[0].as_numpy().tolist(), request.inputs[0].data)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=pickle.dumps(received(*ONE)),
            capture_output=True,
            check=True,
        )
        assert done.stdout == f"{X.tolist()} {X.ravel().tolist()}\n".encode()

    def test_threads_read_the_same_data(self) -> None:
        body, json_length = wire(entry("x", [1 << 16], "UINT8", 1 << 16), tail=bytes(1 << 16))
        tensor = received(body, json_length).inputs[0]
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(tensor.data)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(data == [0] * (1 << 16) for data in found)
        assert len(found) == 8
