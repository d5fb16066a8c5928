"""Read JSON tensors to arrays and write them from arrays; make tensors of lists of numbers.

A JSON library is used as a program without tensorwire would use it: the library parses the text to
dictionaries and lists, and numpy converts these to arrays. The message is not validated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .arrays import (
    DTYPES,
    Array,
    check,
    datatype_of,
    few_digits,
    json_response,
    numbers,
    objects,
    texts,
)
from .measuring import OURS, copies, module, row

N_ELEMENTS = 100_000


def strings(n: int) -> Array:
    """Return ``n`` strings of 0 to 40 letters."""
    return objects([element.decode() for element in texts(n, 0, 40)])


def sentences(n: int) -> Array:
    """Return ``n`` strings of 1 to 12 words, with characters of 1 to 4 bytes of UTF-8."""
    words = ["the", "quick", "brown", "Füchse", "прыгают", "über", "東京", "🙂", "café", "ελληνικά"]
    rng = np.random.default_rng(7)
    counts = rng.integers(1, 13, n).tolist()
    picks = rng.integers(0, len(words), (n, 12)).tolist()
    return objects(
        [" ".join([words[i] for i in p[:m]]) for p, m in zip(picks, counts, strict=True)]
    )


ELEMENTS: dict[str, Callable[[int], Array]] = {
    **{datatype: partial(numbers, datatype) for datatype in ("FP32", "FP64", "INT64")},
    "FP32, few digits": few_digits,
    "FP32, 4 elements": lambda n: numbers("FP32", 4),
    "str, ASCII": strings,
    "str, UTF-8": sentences,
}


def dumper(contender: str) -> Callable[[Any], bytes]:
    if contender == "json":
        return lambda values: json.dumps(values, ensure_ascii=False).encode()
    if contender == "msgspec":
        dumps: Callable[[Any], bytes] = module("msgspec.json").encode
        return dumps
    library = module("orjson")
    return partial(library.dumps, option=library.OPT_SERIALIZE_NUMPY)


def loader(contender: str) -> Callable[[bytes], Any]:
    if contender == "json":
        return json.loads
    loads: Callable[[bytes], Any] = (
        module("msgspec.json").decode if contender == "msgspec" else module("orjson").loads
    )
    return loads


@contextmanager
def reading(contender: str, array: Array) -> Iterator[Callable[[], Array]]:
    text, dtype = json_response(array), DTYPES[datatype_of(array)]

    def read() -> Array:
        return tw.decode_response(text)["x"].as_numpy()

    if contender != OURS:
        loads = loader(contender)

        def read() -> Array:
            return np.array(loads(text)["outputs"][0]["data"], dtype)

    yield read


@contextmanager
def writing(contender: str, array: Array) -> Iterator[Callable[[], Any]]:
    if contender == OURS:
        yield lambda: tw.encode_response(
            tw.InferResponse([tw.Tensor("x", array, binary=False)], model_name="m")
        )
        return
    dumps, datatype, shape = dumper(contender), datatype_of(array), [len(array)]
    takes_arrays = contender == "orjson" and datatype != "BYTES"

    def write() -> bytes:
        data = array if takes_arrays else array.tolist()
        entry = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
        return dumps({"model_name": "m", "outputs": [entry]})

    yield write


OPERATIONS = {"read": reading, "write": writing}
# The bytes for each byte of FP32 that reading and writing put into new memory. A text with all
# digits has 2.7 bytes for each.
CONTENDERS = {OURS: (1, 2.7), "orjson": (17.6, 2.7), "msgspec": (11.1, 14.9), "json": (13.7, 45)}


def count_copies(benchmark: BenchmarkFixture, operation: str, contender: str) -> None:
    expected = CONTENDERS[contender][operation == "write"]
    n = copies(contender, "bench_json", operation, expected, "JSON FP32")
    benchmark.extra_info["copied"] = n


every_contender = pytest.mark.parametrize("contender", CONTENDERS)
every_kind = pytest.mark.parametrize("kind", ELEMENTS)


@every_contender
@every_kind
def test_read(benchmark: BenchmarkFixture, kind: str, contender: str) -> None:
    array = ELEMENTS[kind](N_ELEMENTS)
    if kind == "FP32" and benchmark.enabled:
        count_copies(benchmark, "read", contender)
    with row(benchmark, f"JSON: read {kind}", contender), reading(contender, array) as read:
        check(read(), array)
        benchmark(read)


@every_contender
@every_kind
def test_write(benchmark: BenchmarkFixture, kind: str, contender: str) -> None:
    """Strings are new objects in each round, as in a server: a `str` may store its UTF-8."""
    array = ELEMENTS[kind](N_ELEMENTS)
    if kind == "FP32" and benchmark.enabled:
        count_copies(benchmark, "write", contender)
    with row(benchmark, f"JSON: write {kind}", contender), writing(contender, array) as write:
        received = tw.decode_response(bytes(write()))["x"].as_numpy()
        check(received, array)
        if not kind.startswith("str"):
            benchmark(write)
            return
    encoded = [element.encode() for element in array]

    def new_objects() -> tuple[tuple[Callable[[], Any]], dict[str, Any]]:
        with writing(contender, objects([element.decode() for element in encoded])) as write:
            return (write,), {}

    benchmark.pedantic(lambda write: write(), setup=new_objects, rounds=20)  # type: ignore[no-untyped-call]


# --- lists of numbers ---

LISTS: dict[str, Callable[[list[Any], Any], Array]] = {
    OURS: lambda values, datatype: tw.Tensor("x", values, datatype=datatype).as_numpy(),
    "numpy": lambda values, datatype: np.array(values, DTYPES[datatype]),
}


@pytest.mark.parametrize("contender", LISTS)
@pytest.mark.parametrize("kind", ["FP32", "FP64", "INT64"])
def test_list(benchmark: BenchmarkFixture, kind: str, contender: str) -> None:
    array = numbers(kind, N_ELEMENTS)
    with row(benchmark, f"list: {kind}", contender):
        check(LISTS[contender](array.tolist(), kind), array)
        benchmark(LISTS[contender], array.tolist(), kind)
