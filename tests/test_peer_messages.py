"""The private functions that read and write messages for the KServe and MLServer integrations."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from tensorwire._codec.decoder import read_peer_message
from tensorwire._codec.encoder import write_peer_json


def read(text: bytes, needs_arrays: bool = False) -> Any:
    return read_peer_message(text, len(text), True, tw.Limits(), needs_arrays)


def request(data: str, datatype: str = "FP32", more: str = "") -> bytes:
    entry = f'{{"name":"x","shape":[2],"datatype":"{datatype}","data":{data}{more}}}'
    return f'{{"inputs":[{entry}]}}'.encode()


@pytest.mark.parametrize("needs_arrays", [False, True])
@pytest.mark.parametrize("datatype", ["FP32", "fp32", "Fp32"])
def test_data_is_read_as_an_array(datatype: str, needs_arrays: bool) -> None:
    _, [entry], _ = read(request("[1, [2.5]]", datatype), needs_arrays)
    assert entry.datatype == datatype
    assert entry.tensor.datatype == "FP32"
    assert entry.tensor.as_numpy().tolist() == [1, 2.5]
    assert bytes(entry.text) == b"[1, [2.5]]"


@pytest.mark.parametrize("order", [["data", "shape"], ["shape", "data"]])
@pytest.mark.parametrize("data", [[1, "a"], [1], [1, 2, 3], [1e39, 0], [True, False]])
def test_data_that_cannot_be_an_array(data: list[Any], order: list[str]) -> None:
    members = {"data": data, "shape": [2]}
    entry = {"name": "x", "datatype": "FP32", **{name: members[name] for name in order}}
    text = json.dumps({"inputs": [entry]}).encode()
    _, [found], _ = read(text)
    assert found.tensor is None
    assert json.loads(bytes(found.text)) == data
    with pytest.raises(tw.DecodeError):
        read(text, needs_arrays=True)


def test_no_data() -> None:
    text = b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32"}]}'
    _, [entry], _ = read(text, needs_arrays=True)
    assert (entry.tensor, entry.text) == (None, None)


def test_absent_and_empty_parameters_are_distinguished() -> None:
    for sent, found in (("", None), (',"parameters":null', None), (',"parameters":{}', {})):
        text = request("[1, 2]", more=sent)
        outputs = f',"outputs":[{{"name":"y"{sent}}}]{sent}}}'.encode()
        _, [entry], parameters = read(text[:-1] + outputs)
        assert entry.parameters == found
        assert parameters == [found, found]


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_written_as_lists(dtype: str, order: Any) -> None:
    array = np.asarray(np.arange(-3, 3).reshape(2, 3) / 3, order=order).astype(dtype, order=order)
    found = json.loads(write_peer_json({"data": array, "n": [array[0]]}, "error"))
    assert found == {"data": array.ravel().tolist(), "n": [array[0].tolist()]}
    assert repr(found["data"]) == repr(array.ravel().tolist())


def test_trees_are_written_as_by_json_dumps() -> None:
    tree = {"a": None, "b": [True, 1, 0.1, "\u20ac\n", {}], "c": {"d": [], "": [[[[[[[1]]]]]]]}}
    text = write_peer_json(tree, "error")
    assert text == json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()
    assert write_peer_json([b'{"a":1}', b"2"], "error") == b'[{"a":1},2]'
    for n in (100, 440, 1000, 100_000):  # the writer's own memory has 448 bytes
        long = b'"' + b"x" * n + b'"'
        assert write_peer_json([long, 1, long], "error") == b"[" + long + b",1," + long + b"]"
    assert write_peer_json(tw.decode_bytes(tw.encode_bytes(["a", '"'])), "null") == rb'["a","\""]'


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_nan_and_infinities(dtype: str) -> None:
    array = np.array([1, np.nan, -np.inf], dtype)
    assert write_peer_json([array], "null") == b"[[1.0,null,null]]"
    with pytest.raises(tw.EncodeError, match="element 1 of the message is nan"):
        write_peer_json([array], "error")


@pytest.mark.parametrize(
    "value", [np.array([1j]), np.array(["a"]), {1: 2}, object(), {"a": [object()]}], ids=repr
)
def test_objects_without_json_form_are_rejected(value: Any) -> None:
    with pytest.raises(TypeError):
        write_peer_json(value, "null")
    with pytest.raises(tw.EncodeError, match=r"element 1 .*is not valid UTF-8"):
        write_peer_json([tw.decode_bytes(tw.encode_bytes([b"a", b"\xff"]))], "null")


@pytest.mark.parametrize("kind", [dict, list])
def test_tree_that_contains_itself_is_rejected(kind: type) -> None:
    tree: Any = kind()
    if isinstance(tree, dict):
        tree["a"] = tree
    else:
        tree.append(tree)
    with pytest.raises(tw.EncodeError, match="nested too deep"):
        write_peer_json(tree, "null")


@pytest.mark.parametrize("order", ["data first", "data last"])
@pytest.mark.parametrize("size", ["8", '"text"', "{}", "-1"])
def test_size_next_to_data_is_an_ordinary_parameter(order: str, size: str) -> None:
    members = ['"data":[1, 2]', f'"parameters":{{"binary_data_size":{size},"p":1}}']
    members += ['"name":"x"', '"shape":[2]', '"datatype":"FP32"']
    text = f'{{"inputs":[{{{",".join(members if order == "data first" else members[::-1])}}}]}}'
    _, [entry], _ = read(text.encode())
    assert entry.parameters == {"binary_data_size": json.loads(size), "p": 1}
    assert entry.tensor.as_numpy().tolist() == [1, 2]
    assert bytes(entry.text) == b"[1, 2]"
