"""The JSON header as it is written: any message, read back by the standard library's parser."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorwire as tw

# Characters that JSON escapes, that it need not, and of each width that Python keeps text in.
CHARACTERS = st.one_of(
    st.sampled_from('"\\/\0\x01\x1f \x7f\x80\xffĀ\u2028\uffff\U0001f600{}[],:'),
    st.characters(exclude_categories=["Cs"]),
)
TEXT = st.text(CHARACTERS, max_size=12)
NAMES = TEXT.map(lambda text: text.replace("\0", ""))
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FRAMING = ("binary_data_size", "shared_memory_region", "binary_data", "binary_data_output")
PARAMETERS = st.dictionaries(TEXT.filter(lambda key: key not in FRAMING), VALUES, max_size=4)
DIMS = st.integers(0, 2**63 - 1) | st.sampled_from([0, 1, 9, 10, 99, 100, 2**63 - 1])
# Of INT8, whose elements are less than 2^63 together.
SHAPES = (st.lists(DIMS, max_size=1) | st.lists(st.integers(0, 100), max_size=5)).map(tuple)
SOMETIMES = st.none() | TEXT


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different."""
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


def header_of(frame: tw.Frame) -> Any:
    text = bytes(frame.buffers[0])
    assert frame.header_length in (None, len(text))
    return json.loads(text, object_pairs_hook=once)


def without_none(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}


@st.composite
def tensors(draw: st.DrawFn) -> list[tuple[tw.Tensor, dict[str, Any]]]:
    """Tensors of every kind, each with the entry that it must have."""
    made = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        parameters = draw(PARAMETERS)
        how = draw(st.sampled_from(["binary", "JSON", "text", "elsewhere"]))
        own: dict[str, Any] = {}
        more: dict[str, Any] = {}
        if how == "elsewhere":
            shape = draw(SHAPES)
            own = {"shared_memory_region": draw(TEXT)}
            parameters |= own
            tensor = tw.Tensor(name, None, datatype="INT8", shape=shape, parameters=parameters)
        elif how == "text":
            texts = draw(st.lists(TEXT, max_size=3))
            shape, more = (len(texts),), {"data": texts}
            tensor = tw.Tensor(name, texts, datatype="BYTES", binary=False, parameters=parameters)
        else:
            array = np.arange(draw(st.integers(0, 12)), dtype=np.int8)
            shape = (1, len(array))
            if how == "binary":
                own = {"binary_data_size": len(array)}
            else:
                more = {"data": array.tolist()}
            tensor = tw.Tensor(
                name, array, shape=shape, binary=how == "binary", parameters=parameters
            )
        entry = {"name": name, "datatype": tensor.datatype, "shape": list(shape), **more}
        if parameters or own:
            entry["parameters"] = parameters | own
        made.append((tensor, entry))
    return made


@settings(max_examples=150, deadline=None)
@given(tensors(), SOMETIMES, SOMETIMES, SOMETIMES, PARAMETERS, st.data())
def test_any_message(
    made: Any, id: Any, model: Any, version: Any, parameters: Any, data: st.DataObject
) -> None:
    entries = [entry for _, entry in made]
    about = {"id": id, "model_name": model, "model_version": version}
    said = {**about, "parameters": parameters or None}
    response = tw.InferResponse([tensor for tensor, _ in made], **about, parameters=parameters)
    assert header_of(tw.encode_response(response)) == without_none(outputs=entries, **said)

    names = data.draw(st.none() | st.lists(NAMES, max_size=3, unique=True))
    outputs, expected = None, None
    if names is not None:
        asked = [
            (name, data.draw(st.none() | st.booleans()), data.draw(PARAMETERS)) for name in names
        ]
        outputs = [tw.RequestedOutput(n, binary=b, parameters=p) for n, b, p in asked]
        expected = [
            without_none(name=n, parameters={**p, **without_none(binary_data=b)} or None)
            for n, b, p in asked
        ]
    request = tw.InferRequest(
        [tensor for tensor, _ in made], outputs, **about, parameters=parameters
    )
    assert header_of(tw.encode_request(request)) == without_none(
        inputs=entries, outputs=expected, **said
    )


@pytest.mark.parametrize(
    "character", [*map(chr, range(1, 0x100)), "\u2028", "\uffff", "\U0001f600"]
)
def test_each_character(character: str) -> None:
    for text in (character, f"ab{character}cd", character * 100):
        about: dict[str, Any] = {
            "id": text,
            "model_name": text,
            "model_version": text,
            "parameters": {text: text},
        }
        tensor = tw.Tensor(text, np.zeros(1, np.int8), parameters={text: text})
        header = header_of(tw.encode_response(tw.InferResponse([tensor], **about)))
        (entry,) = header.pop("outputs")
        assert (header, entry["name"]) == (about, text)
        assert entry["parameters"] == {text: text, "binary_data_size": 1}


def test_no_more_spaces_than_are_needed() -> None:
    for n in range(200):
        tensor = tw.Tensor("x" * n, np.zeros(1, np.int8))
        for align in (1, 7, 64):
            text = tw.encode_request(tw.InferRequest([tensor]), align=align).buffers[0]
            bare = bytes(text).rstrip(b" ")
            assert len(text) == -(-len(bare) // align) * align


@pytest.mark.parametrize("n_more", range(0, 600, 7))
def test_texts_of_any_length(n_more: int) -> None:
    """Where the memory grows: in a name, a number, a list, the padding."""
    tensors = [tw.Tensor(f"{'n' * n_more}{i}", np.zeros(n_more % 5 + 1, np.int8)) for i in range(3)]
    frame = tw.encode_request(tw.InferRequest(tensors, id="x" * n_more), align=1 << (n_more % 11))
    header = header_of(frame)
    assert [entry["name"] for entry in header["inputs"]] == [tensor.name for tensor in tensors]
    assert (header["id"], len(frame.buffers[0]) % (1 << (n_more % 11))) == ("x" * n_more, 0)


# --- what has no form, in each of the places ---

X = np.zeros(2, np.float32)
ITSELF: list[Any] = []
ITSELF.append(ITSELF)


PARAMETERS_WITH: dict[str, Callable[[Any], dict[Any, Any]]] = {
    "a value": lambda value: {"k": value},
    "a value within": lambda value: {"k": [{"l": value}]},
    "a key": lambda value: {value: 1},
    "a key within": lambda value: {"k": [{value: 1}]},
}
PLACES = ["a name", "an output's name", "id", "model_name", "model_version"] + [
    f"{where}: {kind}" for where in ("tensor", "output", "message") for kind in PARAMETERS_WITH
]


def request_with(value: Any, place: str) -> tw.InferRequest:
    where, _, kind = place.partition(": ")
    parameters = PARAMETERS_WITH[kind](value) if kind else None
    return tw.InferRequest(
        [
            tw.Tensor("fine", X),
            tw.Tensor(
                value if place == "a name" else "x",
                X,
                parameters=parameters if where == "tensor" else None,
            ),
        ],
        [
            tw.RequestedOutput(
                value if place == "an output's name" else "y",
                parameters=parameters if where == "output" else None,
            )
        ],
        parameters=parameters if where == "message" else None,
        **({place: value} if place in ("id", "model_name", "model_version") else {}),
    )


@pytest.mark.parametrize("text", ["\ud800", "plain \udfff", "é\ud83d", "\U0001f600\udc00"])
@pytest.mark.parametrize("place", PLACES)
def test_a_lone_surrogate(place: str, text: str) -> None:
    request = request_with(text, place)
    for _ in range(2):  # nothing of the first attempt is left
        with pytest.raises(tw.EncodeError, match="a lone surrogate at character") as caught:
            tw.encode_request(request)
        expected = text if place == "a name" else "x" if place.startswith("tensor") else None
        assert caught.value.tensor == expected
    fine = request_with("fine\U0001f600", place)
    assert json.loads(bytes(tw.encode_request(fine).buffers[0]))["inputs"][0]["name"] == "fine"


@pytest.mark.parametrize("place", ["tensor: a value", "output: a value", "message: a value"])
def test_a_parameter_that_contains_itself(place: str) -> None:
    with pytest.raises(tw.EncodeError, match="nested too deep"):
        tw.encode_request(request_with(ITSELF, place))


@pytest.mark.parametrize("value", [object(), 1j, {1, 2}.__iter__()])
@pytest.mark.parametrize("place", ["tensor: a value", "output: a value", "message: a value"])
def test_a_parameter_that_json_has_no_type_for(place: str, value: Any) -> None:
    with pytest.raises(TypeError):
        tw.encode_request(request_with(value, place))


@pytest.mark.parametrize(
    ("dim", "message"),
    [
        (-1, "'x' has a negative dimension: \\[2, -1\\]"),
        (2**60, "'x' is too large to address: FP32 \\[2, 1152921504606846976\\] passes 2\\^63"),
        (2**63, "'x' is too large to address"),
        (2**70, "'x' is too large to address: FP32 \\[2, more than 2\\^64\\]"),
    ],
)
def test_dimensions_without_data(dim: int, message: str) -> None:
    where = {"shared_memory_region": "r"}
    tensor = tw.Tensor("x", None, datatype="FP32", shape=[1], parameters=where)
    tensor.shape = (2, dim)
    with pytest.raises(tw.EncodeError, match=message):
        tw.encode_request(tw.InferRequest([tensor]))


def test_an_output_that_has_lost_its_name_or_parameters() -> None:
    output = tw.RequestedOutput("y", binary=True)
    request = tw.InferRequest([tw.Tensor("x", X)], [output])
    output.parameters = None  # type: ignore[assignment]
    assert header_of(tw.encode_request(request))["outputs"] == [
        {"name": "y", "parameters": {"binary_data": True}}
    ]
    for name in (None, "y\0"):
        output.name = name  # type: ignore[assignment]
        with pytest.raises(tw.EncodeError, match="has no name, or one with a NUL"):
            tw.encode_request(request)
