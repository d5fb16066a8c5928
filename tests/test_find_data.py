"""`find_data`, which finds the JSON text of data for the integrations of KServe and MLServer."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tensorwire as tw
from tensorwire._codec.json_reader import find_data

DATA = ["[1, [2.5]]", "[]", '["a]", "\\"["]', "[NaN, -Infinity, null]", "[[[1], [{}]], 2 ]"]


def texts(header: str, member: bytes = b"inputs") -> list[bytes | None]:
    return [None if t is None else bytes(t) for t in find_data(header.encode(), member, 10)]


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
@pytest.mark.parametrize("is_first", [True, False])
def test_text_of_each_tensor(blank: str, is_first: bool) -> None:
    others = '"name":"data","parameters":{"data":[0],"inputs":[{"data":[9]}]},"shape":[8]'
    entries = [
        f'"data":{blank}{data}{blank},{others}' if is_first else f'{others},"data":{blank}{data}'
        for data in DATA
    ]
    tensors = f"{blank},{blank}".join(f"{{{blank}{entry}{blank}}}" for entry in entries)
    header = f'{blank}{{"id":"inputs","parameters":{{"inputs":[1]}},"inputs":[{tensors}]{blank}}}'
    assert texts(header) == [data.encode() for data in DATA]


def test_tensors_without_a_list_of_data() -> None:
    header = '{"inputs":[{"name":"x"},{"data":null},{"data":[1]}],"outputs":[{"name":"y"}]}'
    assert texts(header) == [None, None, b"[1]"]
    assert texts(header, b"outputs") == [None]
    assert texts('{"inputs":null}') == texts("{}") == []


def test_escaped_names() -> None:
    assert texts('{"inp\\u0075ts":[{"d\\u0061ta":[1]}]}') == [b"[1]"]


def test_texts_are_views_of_the_header() -> None:
    header = b'{"inputs":[{"data":[1]}]}'
    [text] = find_data(header, b"inputs", 10)
    assert text is not None
    assert text.obj is header
    assert text.readonly


@pytest.mark.parametrize(
    "header",
    ["", "[]", "1", "{", '{"inputs":[', '{"inputs":[{"data":[1', '{"inputs":[1]}'],
    ids=repr,
)
def test_malformed_header(header: str) -> None:
    with pytest.raises(tw.HeaderError):
        texts(header)


def test_nesting_is_limited() -> None:
    def header(depth: int) -> str:
        value: Any = []
        for _ in range(depth - 1):
            value = [value]
        return json.dumps({"inputs": [{"data": value}]})

    assert texts(header(7)) != [None]
    with pytest.raises(tw.HeaderError, match="nested too deeply"):
        texts(header(8))
