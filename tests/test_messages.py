"""Messages and tensors: lookup by name, copies, repr and pickle; error classes; TensorSpec."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest

import tensorwire as tw
from support.memory import peak_nbytes
from tensorwire._codec.bytes.array import values_to_encode
from tensorwire.client import InferenceServerError, Progress, Timeout

X = tw.Tensor("x", np.arange(6, dtype=np.int16).reshape(2, 3), parameters={"k": 1})
WORDS = tw.Tensor("words", ["a", "b"])
REGION = tw.Tensor("r", None, datatype="BYTES", shape=[2], parameters={"shared_memory_region": "m"})
REQUEST = tw.InferRequest(
    [X, WORDS],
    [tw.RequestedOutput("y", binary=True, parameters={"classification": 2})],
    id="7",
    model_name="m",
    model_version="1",
    parameters={"priority": 1},
)


@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.parametrize("make", ["InferRequest", "InferResponse", "decode_request"])
def test_messages_are_mappings(make: str, n: int) -> None:
    tensors = [tw.Tensor(f"t{i}", np.full(2, i)) for i in range(n)]
    message: Any = tw.InferResponse(tensors) if "Resp" in make else tw.InferRequest(tensors)
    if make == "decode_request":
        frame = tw.encode_request(message)
        message = tw.decode_request(bytes(frame), frame.header_length)
    names = [tensor.name for tensor in tensors]
    found = message.outputs if make == "InferResponse" else message.inputs
    assert isinstance(message, Mapping)
    match message:
        case {"t0": first, **rest}:
            assert (first is message["t0"], len(rest)) == (True, n - 1)
        case _:
            pytest.fail("a message does not match the pattern of a mapping")
    with pytest.raises(TypeError):
        reversed(message)
    assert isinstance(found, tuple)
    assert (list(message), len(message), list(message.keys())) == (names, n, names)
    assert dict(message) == dict(zip(names, found, strict=True))
    assert [message[name] for name in reversed(names)] == list(reversed(found))
    assert message.get("t0") is found[0]
    assert (message.get("z"), message.get("z", 5)) == (None, 5)
    assert "t0" in message and "z" not in message and 5 not in message
    for name, text in (("z", "'z'"), (np.str_("z"), "'z'"), (0, "0")):
        with pytest.raises(tw.TensorNotFoundError, match=f"no tensor {text}: there") as caught:
            message[name]
        assert (caught.value.tensor, caught.value.tensors) == (name or None, found)
        loaded = pickle.loads(pickle.dumps(caught.value))
        assert (str(loaded), loaded.tensors) == (str(caught.value), None)


@pytest.mark.parametrize("n", [1, 2])
def test_views_do_not_give_access_to_a_message(n: int) -> None:
    class Clearing:
        def __eq__(self, other: Any) -> bool:
            other.clear()
            return True

        __hash__ = None  # type: ignore[assignment]

    message = tw.InferRequest({f"t{i}": np.full(2, i) for i in range(n)})
    view: Any = message.items()
    assert view.mapping == Clearing()
    assert list(message.items()) == [(f"t{i}", message.inputs[i]) for i in range(n)]


def test_empty_response() -> None:
    response = tw.InferResponse([])
    assert (list(response), len(response), response.get("x"), response.outputs) == ([], 0, None, ())
    with pytest.raises(tw.TensorNotFoundError, match=r"no tensor 'x': there are \[\]"):
        response["x"]


def test_messages_made_from_mappings() -> None:
    array = np.zeros((2, 3), np.float32)
    request = tw.InferRequest({"x": array, "words": ["a"], "t": X}, ["y", tw.RequestedOutput("z")])
    assert [(t.name, t.datatype) for t in request.inputs] == [
        ("x", "FP32"), ("words", "BYTES"), ("t", "INT16"),
    ]  # fmt: skip
    assert np.shares_memory(request["x"].as_numpy(), array)
    assert [output.name for output in request.outputs or ()] == ["y", "z"]
    assert tw.InferResponse(request).outputs == request.inputs
    with pytest.raises(tw.EncodeError, match="tensor 'x' is an array of complex64"):
        tw.InferRequest({"x": array.astype(np.complex64)})


def test_replace() -> None:
    renamed = X.replace(name="y", shape=(3, 2), parameters=None, binary=False)
    found = (renamed.name, renamed.shape, renamed.parameters, renamed.binary)
    assert found == ("y", (3, 2), {}, False)
    assert np.shares_memory(renamed.data, X.data)
    assert same(X.replace(), X)
    assert X.replace(data=["a"]).datatype == "BYTES"
    assert (REGION.replace(shape=[4]).shape, REGION.replace(name="y").data) == ((4,), None)
    request = REQUEST.replace(id=None, inputs=[WORDS])
    assert (request.id, request.model_name, request.inputs) == (None, "m", (WORDS,))
    assert request.outputs is not None and request.outputs[0].parameters == {"classification": 2}
    output = request.outputs[0].replace(binary=None)
    assert (output.name, output.binary, output.parameters) == ("y", None, {"classification": 2})
    response = tw.InferResponse([X], model_name="m", id="7", parameters={"a": 1})
    assert response.replace(parameters={}).id == "7"
    assert response.replace(outputs={"q": WORDS}).outputs[0].name == "q"
    changes: tuple[dict[str, Any], ...] = ({"unknown": 1}, {"name": 1, "id": "7"})
    for value in (X, request, response, output):
        for change in changes:
            with pytest.raises(TypeError):
                value.replace(**change)
        if sys.version_info >= (3, 13):
            assert type(copy.replace(value)) is type(value)


@pytest.mark.parametrize("member", ["id", "model_name", "model_version"])
def test_replace_a_text_of_a_message(member: str) -> None:
    """The other fields are not checked again."""
    for message in (REQUEST, tw.InferResponse([X, WORDS], model_name="m", parameters={"a": 1})):
        changed = message.replace(**cast("Any", {member: Text("new")}))
        assert type(getattr(changed, member)) is str
        assert changed.parameters == message.parameters
        assert changed.outputs == message.outputs
        assert changed["words"] is message["words"]
        assert tuple(changed.values()) == tuple(message.values())
        for other in {"id", "model_name", "model_version"} - {member}:
            assert getattr(changed, other) == getattr(message, other)
        back = changed.replace(**{member: getattr(message, member)})
        assert repr(pickle.dumps(back)) == repr(pickle.dumps(message))
        with pytest.raises(TypeError, match=f"{member} must be a str or None, not int"):
            message.replace(**cast("Any", {member: 1}))


def test_replacing_a_text_copies_no_tensors() -> None:
    message = tw.InferRequest({str(i): X.data for i in range(1000)})
    assert peak_nbytes(lambda: message.replace(id="1")) < 4096


class Text(str):
    __slots__ = ()


def test_copies() -> None:
    for value in (X, WORDS, REQUEST, tw.InferResponse([X]), tw.RequestedOutput("y")):
        assert copy.copy(value) is value
    deep = copy.deepcopy(REQUEST)
    assert all(same(*pair) for pair in zip(deep.inputs, REQUEST.inputs, strict=True))
    assert not np.shares_memory(deep["x"].data, REQUEST["x"].data)


def test_access_to_bytes_and_numbers() -> None:
    assert WORDS.elements == tw.decode_bytes(tw.encode_bytes(["a", "b"]))
    assert WORDS.as_strings().tolist() == ["a", "b"]
    assert (WORDS.tolist(), X.tolist()) == ([b"a", b"b"], [[0, 1, 2], [3, 4, 5]])
    assert (WORDS.nbytes, X.nbytes, REGION.nbytes) == (10, 12, 0)
    of_bytes: list[Any] = [lambda tensor: tensor.elements, tw.Tensor.as_strings]
    for access in of_bytes:
        with pytest.raises(tw.DatatypeError, match="tensor 'x' is INT16, not BYTES") as caught:
            access(X)
        assert isinstance(caught.value, TypeError)
        assert (caught.value.status, caught.value.tensor) == (400, "x")
    for access in (*of_bytes, tw.Tensor.as_numpy, tw.Tensor.tolist, np.asarray):
        with pytest.raises(tw.TensorwireError, match="tensor 'r' is in shared memory") as missing:
            access(REGION)
        assert (missing.value.status, missing.value.tensor) == (400, "r")
    with pytest.raises(tw.ElementError, match="element 0") as invalid:
        tw.Tensor("b", [b"\xff"]).as_strings()
    assert invalid.value.tensor == "b"


def test_repr() -> None:
    assert repr(X) == "<Tensor 'x' INT16 [2, 3]>"
    assert repr(tw.InferResponse([X])) == "<InferResponse [<Tensor 'x' INT16 [2, 3]>]>"
    assert repr(REQUEST) == "<InferRequest [<Tensor 'x' INT16 [2, 3]>, <Tensor 'words' BYTES [2]>]>"


CHANGED = bytearray(tw.encode_bytes(["a", "b"]))
FORGED = tw.Tensor("x", tw.decode_bytes(CHANGED))
CHANGED[:4] = b"\xff" * 4


@pytest.mark.parametrize(
    ("tensor", "values"),
    [
        (tw.Tensor("x", np.array([[0.1, np.nan]], np.float32)), "0.1, nan"),
        (tw.Tensor("x", np.arange(9, dtype="f2")), "0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, ..."),
        (tw.Tensor("x", np.array([0x3F80], "u2"), datatype="BF16"), "1.0"),
        (tw.Tensor("x", np.zeros((0, 5), bool)), ""),
        (tw.Tensor("x", ["<b>&", "ä" * 30]), f"'&lt;b&gt;&amp;', '{'ä' * 20}'..."),
        (tw.Tensor("x", ["\u202e", b"\xff"]), r"'\u202e', b'\xff'"),
        (tw.Tensor("x", ["<b>", "a" * 50], binary=False), f"'&lt;b&gt;', '{'a' * 40}'..."),
        (FORGED, "'a', 'b'"),
        (REGION, "in shared memory"),
    ],
)  # fmt: skip
def test_html(tensor: tw.Tensor, values: str) -> None:
    """Notebooks show it. Text is escaped, and nothing is encoded, converted or checked for it."""
    html: Any = tensor
    name, datatype, shape = tensor.name, tensor.datatype, list(tensor.shape)
    row = f"<tr><td>'{name}'</td><td>{datatype}</td><td>{shape}</td><td>{values}</td></tr>"
    assert html._repr_html_().endswith(f"{row}</table>")


def test_html_of_large_messages() -> None:
    """It is limited, and a list of strings is not encoded for it."""
    words = tw.Tensor("<" * 4096, ["&" * 10_000] * 10_000, binary=False)
    message: Any = tw.InferResponse([words.replace(name=f"{i}{words.name}") for i in range(100)])
    html = message._repr_html_()
    assert f"<td>'0{'&lt;' * 79}'...</td>" in html
    assert "<td>... 100 tensors</td>" in html
    assert len(html) < 100_000
    assert isinstance(values_to_encode(message.outputs[0].elements), tuple)


def same(one: tw.Tensor, other: tw.Tensor) -> bool:
    return (
        (one.name, one.datatype, one.shape, one.parameters, one.binary)
        == (other.name, other.datatype, other.shape, other.parameters, other.binary)
    ) and np.array_equal(one.as_numpy(), other.as_numpy())


BY_IDENTITY: list[Callable[[], Any]] = [
    lambda: tw.Tensor("x", [1, 2], datatype="INT8"),
    lambda: tw.Tensor("x", ["a"]),
    lambda: tw.RequestedOutput("y"),
    lambda: tw.InferRequest([X, WORDS], ["y"], id="7"),
    lambda: tw.InferResponse([X]),
    lambda: tw.encode_request(REQUEST),
    lambda: tw.Frame((b"abc",), 3),
    lambda: tw.BodyBuffer(0),
]
BY_VALUE: list[Callable[[], Any]] = [
    lambda: tw.TensorSpec("x", "FP32", [-1, 3]),
    lambda: tw.Limits(max_rank=3),
    lambda: Timeout(total=3),
    lambda: Progress(1, 2, 3, None),
]


@pytest.mark.parametrize("make", [*BY_IDENTITY, *BY_VALUE], ids=lambda make: type(make()).__name__)
def test_equality(make: Callable[[], Any]) -> None:
    """What has the memory of arrays compares by identity, and is a key of a dict all the same."""
    one, other = make(), make()
    is_equal = make in BY_VALUE
    assert (one == other, one != other) == (is_equal, not is_equal)
    assert len({one, other, one}) == (1 if is_equal else 2)
    assert one != object()


def test_parameters_are_plain_values_that_do_not_change_the_message() -> None:
    plain: Any = {"list": [1, {"a": [None]}], "object": {"b": []}, "": 1.5}
    output = tw.RequestedOutput("y", parameters=plain)
    tensor = X.replace(parameters=plain)
    request = tw.InferRequest([tensor], [output], parameters=plain)
    frame = tw.encode_request(request)
    decoded = tw.decode_request(bytes(frame), frame.header_length)
    for owner in (request, decoded, tensor, decoded["x"], output):
        found: Any = owner.parameters
        assert found == plain and json.dumps(dict(found)) == json.dumps(plain)
        for change in (found["list"].clear, found["object"].clear, found["list"][1].clear):
            change()
        with pytest.raises(TypeError):
            found[""] = 2
        assert owner.parameters == plain != found


def test_tensor_spec() -> None:
    spec = tw.TensorSpec("x", "FP32", [-1, 3], batching=True)
    assert (spec.name, spec.datatype, spec.dims, spec.batching) == ("x", "FP32", (-1, 3), True)
    assert repr(spec) == "TensorSpec('x', 'FP32', [-1, 3], batching=True)"
    assert len(tw.TensorSpec("x", "FP32", [1] * 64).dims) == 64
    same_spec = tw.TensorSpec("x", "FP32", (-1, 3), batching=True)
    assert (spec == same_spec, hash(spec) == hash(same_spec)) == (True, True)
    for other in (
        tw.TensorSpec("y", "FP32", [-1, 3], batching=True),
        tw.TensorSpec("x", "FP64", [-1, 3], batching=True),
        tw.TensorSpec("x", "FP32", [-1, 4], batching=True),
        *(tw.TensorSpec("x", "FP32", [-1, 3]), "x"),
    ):
        assert spec != other


ERROR = {"tensor": "x", "element": 3, "offset": 1048, "expected": 4096, "actual": 12}


@pytest.mark.parametrize(
    ("kind", "bases", "status"),
    [
        (tw.TensorwireError, (Exception,), 500),
        (tw.DecodeError, (tw.TensorwireError, ValueError), 400),
        (tw.HeaderError, (tw.DecodeError,), 400),
        (tw.LayoutError, (tw.DecodeError,), 400),
        (tw.ElementError, (tw.DecodeError,), 400),
        (tw.BodyTooLargeError, (tw.DecodeError,), 413),
        (tw.DecompressionError, (tw.DecodeError,), 400),
        (tw.ErrorResponseError, (tw.DecodeError, InferenceServerError), 400),
        (InferenceServerError, (tw.TensorwireError,), 500),
        (tw.EncodeError, (tw.TensorwireError, ValueError), 500),
        (tw.DatatypeError, (tw.TensorwireError, TypeError), 400),
        (tw.TensorNotFoundError, (tw.TensorwireError, KeyError), 400),
    ],
)
def test_error_classes(kind: Any, bases: tuple[type, ...], status: int) -> None:
    assert all(issubclass(kind, base) for base in bases)
    without_attributes = kind("text")
    assert [getattr(without_attributes, name) for name in ERROR] == [None] * 5
    assert without_attributes.status == status
    error = pickle.loads(pickle.dumps(kind("text", **ERROR, status=418)))
    assert (type(error), str(error), error.status) == (kind, "text", 418)
    assert {name: getattr(error, name) for name in ERROR} == ERROR


# The dimensions of a model, whether it supports batching, and a shape that it accepts and another.
DIMS: list[tuple[list[int], bool, tuple[int, ...], tuple[int, ...]]] = [
    ([], False, (), (1,)),
    ([], True, (5,), ()),
    ([0], False, (0,), (1,)),
    ([0], True, (5, 0), (5, 1)),
    ([2], False, (2,), (3,)),
    ([3], False, (3,), (3, 1)),
    ([3], True, (5, 3), (5, 4)),
    ([3], True, (5, 3), (3,)),
    ([3, 1], False, (3, 1), (3,)),
    ([-1], False, (3,), ()),
    ([-1], False, (0,), ()),
    ([2, 3], False, (2, 3), (3, 2)),
    ([2, 3], True, (5, 2, 3), (5, 3, 2)),
    ([-1, 3], False, (2, 3), (3, 2)),
]


@pytest.mark.parametrize(("dims", "batching", "accepted", "rejected"), DIMS)
def test_tensor_spec_accepts(dims: Any, batching: bool, accepted: Any, rejected: Any) -> None:
    spec = tw.TensorSpec("x", "FP32", dims, batching)
    assert spec.shape == ((-1, *dims) if batching else tuple(dims))
    tensor = tw.Tensor("x", np.zeros(accepted, np.float32))
    assert spec.accepts(tensor)
    assert not spec.accepts(tw.Tensor("x", np.zeros(rejected, np.float32)))
    assert not tw.TensorSpec("x", "FP64", dims, batching).accepts(tensor)
