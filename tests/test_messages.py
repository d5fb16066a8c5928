"""Messages and tensors: lookup by name, repr and pickle; error classes; TensorSpec."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from tensorwire import errors

X = tw.Tensor("x", np.arange(6, dtype=np.int16).reshape(2, 3), parameters={"k": 1})
WORDS = tw.Tensor("words", ["a", "b"])
REQUEST = tw.InferRequest(
    [X, WORDS],
    [tw.RequestedOutput("y", binary=True, parameters={"classification": 2})],
    id="7",
    model_name="m",
    model_version="1",
    parameters={"priority": 1},
)


def test_lookup_by_name() -> None:
    assert REQUEST["x"] is X
    assert tw.InferResponse([X])["x"] is X
    with pytest.raises(errors.TensorNotFoundError) as caught:
        REQUEST["z"]
    assert isinstance(caught.value, KeyError)
    assert str(caught.value) == "no tensor 'z': there are ['x', 'words']"
    assert (caught.value.status, caught.value.tensor) == (400, "z")
    assert caught.value.tensors == [X, WORDS]
    loaded = pickle.loads(pickle.dumps(caught.value))
    assert (str(loaded), loaded.tensor, loaded.tensors) == (str(caught.value), "z", None)


def test_messages_are_collections_of_tensors() -> None:
    request = tw.InferRequest([X, WORDS])
    assert list(request) == [X, WORDS]
    assert "x" in request
    assert "z" not in request
    assert list(tw.InferResponse([WORDS])) == [WORDS]


def test_lookup_in_a_modified_list() -> None:
    names = [f"t{n}" for n in range(9)]
    response = tw.InferResponse([tw.Tensor(name, np.zeros(1)) for name in names])
    for name in [*names, *reversed(names), *names[::2], *names[::3]]:
        assert response[name].name == name
    assert response["t8"].name == "t8"
    del response.outputs[4:]
    assert [response[name].name for name in names[:4]] == names[:4]
    assert "t3" in response and "t8" not in response
    with pytest.raises(KeyError, match="no tensor 't8'"):
        response["t8"]
    response.outputs.clear()
    with pytest.raises(KeyError, match="no tensor 't0'"):
        response["t0"]


def test_names_become_plain_str() -> None:
    """The JSON writer needs objects whose type is exactly `str`."""
    tensor = tw.Tensor(np.str_("x"), np.zeros(1))
    output = tw.RequestedOutput(np.str_("y"))
    assert (type(tensor.name), type(output.name)) == (str, str)
    request = tw.InferRequest([tensor], [output])
    assert request[np.str_("x")] is tensor
    assert np.str_("x") in request
    assert b'"name":"y"' in bytes(tw.encode_request(request))


def test_repr() -> None:
    assert repr(X) == "<Tensor 'x' INT16 [2, 3]>"
    assert repr(tw.InferResponse([X])) == "<InferResponse [<Tensor 'x' INT16 [2, 3]>]>"
    assert repr(REQUEST) == "<InferRequest [<Tensor 'x' INT16 [2, 3]>, <Tensor 'words' BYTES [2]>]>"


def same(one: tw.Tensor, other: tw.Tensor) -> bool:
    return (
        (one.name, one.datatype, one.shape, one.parameters, one.binary)
        == (other.name, other.datatype, other.shape, other.parameters, other.binary)
    ) and np.array_equal(one.as_numpy(), other.as_numpy())


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    frame = tw.encode_request(REQUEST)
    for request in (REQUEST, tw.decode_request(bytes(frame), frame.header_length)):
        loaded = pickle.loads(pickle.dumps(request, protocol))
        assert len(loaded.inputs) == 2
        assert all(same(*pair) for pair in zip(loaded.inputs, request.inputs, strict=True))
        assert (loaded.id, loaded.model_name, loaded.model_version) == ("7", "m", "1")
        assert loaded.parameters == {"priority": 1}
        (output,) = loaded.outputs
        assert (output.name, output.binary, output.parameters) == ("y", True, {"classification": 2})


def test_arguments_are_not_shared() -> None:
    parameters: dict[str, Any] = {}
    tensors = [X]
    request = tw.InferRequest(tensors, parameters=parameters)
    request.inputs.append(WORDS)
    request.parameters["a"] = 1
    assert (tensors, parameters) == ([X], {})


@pytest.mark.parametrize(
    "make",
    [
        lambda: tw.Tensor(5, [1]),  # type: ignore[arg-type]
        lambda: tw.RequestedOutput(b"y"),  # type: ignore[arg-type]
        lambda: tw.InferRequest([X], id=5),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_wrong_types(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


def test_tensor_spec() -> None:
    spec = tw.TensorSpec("x", "FP32", [-1, 3], batching=True)
    assert (spec.name, spec.datatype, spec.dims, spec.batching) == ("x", "FP32", (-1, 3), True)
    assert repr(spec) == "TensorSpec('x', 'FP32', [-1, 3], True)"
    with pytest.raises(ValueError, match="unknown datatype 'FLOAT'"):
        tw.TensorSpec("x", "FLOAT", [1])
    with pytest.raises(ValueError, match="dims must be 0 or more, or -1"):
        tw.TensorSpec("x", "FP32", [-2])
    with pytest.raises(ValueError, match="dims must have at most 64 dimensions"):
        tw.TensorSpec("x", "FP32", itertools.repeat(1))
    with pytest.raises(ValueError, match="at most 64 dimensions"):
        tw.TensorSpec("x", "FP32", [1] * 65)
    assert len(tw.TensorSpec("x", "FP32", [1] * 64).dims) == 64


ERROR = {"tensor": "x", "element": 3, "offset": 1048, "expected": 4096, "actual": 12}


@pytest.mark.parametrize(
    ("kind", "bases", "status"),
    [
        (tw.TensorwireError, (Exception,), 500),
        (tw.DecodeError, (tw.TensorwireError, ValueError), 400),
        (tw.HeaderError, (tw.DecodeError,), 400),
        (tw.LayoutError, (tw.DecodeError,), 400),
        (tw.ElementError, (tw.DecodeError,), 400),
        (tw.EncodeError, (tw.TensorwireError, ValueError), 500),
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


@pytest.mark.parametrize(
    ("shape", "dims", "batching", "fits"),
    [
        ((), [], False, True),
        ((3,), [3], False, True),
        ((3,), [-1], False, True),
        ((0,), [-1], False, True),
        ((0,), [0], False, True),
        ((1,), [0], False, False),
        ((5, 1), [0], True, False),
        ((2, 3), [2, 3], False, True),
        ((3, 2), [2, 3], False, False),
        ((2, 3), [-1, 3], False, True),
        ((5, 2, 3), [2, 3], True, True),
        ((5, 3, 2), [2, 3], True, False),
        ((3,), [2], False, False),
        ((3,), [3, 1], False, False),
        ((3, 1), [3], False, False),
        ((5, 3), [3], True, True),
        ((5, 4), [3], True, False),
        ((3,), [3], True, False),
        ((5,), [], True, True),
    ],
)
def test_tensor_spec_accepts(
    shape: tuple[int, ...], dims: list[int], batching: bool, fits: bool
) -> None:
    tensor = tw.Tensor("x", np.zeros(shape, np.float32))
    spec = tw.TensorSpec("x", "FP32", dims, batching)
    assert spec.accepts(tensor) is fits
    assert spec.shape == ((-1, *dims) if batching else tuple(dims))
    assert not tw.TensorSpec("x", "FP64", dims, batching).accepts(tensor)


# --- parts of messages ---


@pytest.mark.parametrize(("n", "text"), [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes")])
def test_plural(n: int, text: str) -> None:
    assert errors.plural("byte", n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1 second"), (1.0, "1 second"), (60.0, "60 seconds"), (0.5, "0.5 seconds")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert errors.seconds_text(seconds) == text


def test_texts_of_untrusted_values_are_abbreviated() -> None:
    assert errors.shape_text(range(8)) == "[0, 1, 2, 3, 4, 5, 6, 7]"
    assert errors.shape_text(range(9)) == "[0, 1, 2, 3, 4, 5, 6, 7, ... 9 dimensions]"
    assert errors.shape_text([2**64]) == "[more than 2^64]"
    assert errors.number_text(2**64 - 1) == "18446744073709551615"
    assert errors.subject("input", "x" * 80) == f"input '{'x' * 80}'"
    assert errors.subject("input", "x" * 81) == f"input '{'x' * 80}'..."
    assert errors.subject("input", None) == "the input"
