"""The fuzz targets without a fuzzer: their seeds, every input that was kept, and some changes."""

from __future__ import annotations

import random

import pytest

import tensorwire as tw
from fuzz import mutations, seeds
from fuzz.targets import TARGETS
from support import reference

N_MUTATED = 400


@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target: str) -> None:
    inputs = seeds.seeds(target)
    assert len(inputs) > 20
    for data in inputs:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_seeds(target: str) -> None:
    inputs, chooser = seeds.seeds(target), random.Random(target)

    def bytewise(data: bytes, max_nbytes: int) -> bytes:
        at = chooser.randrange(len(data) + 1)
        return data[:at] + chooser.randbytes(1) + data[at + chooser.randrange(2) :]

    for seed in range(N_MUTATED):
        data = chooser.choice(inputs)
        TARGETS[target](mutations.mutated(target, data, seeds.MAX_NBYTES, seed, bytewise))


def refused(*_: object) -> None:
    raise reference.HeaderError("nothing is understood")


@pytest.mark.parametrize(
    ("target", "judge"),
    [("request", "decode"), ("response", "decode"), ("decode_bytes", "unpack")],
)
def test_a_disagreement_is_found(target: str, judge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, judge, refused)
    with pytest.raises(AssertionError):
        for data in seeds.seeds(target):
            TARGETS[target](data)


def test_a_body_that_is_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, decode = [], tw.decode_response

    def keeping(*arguments: object, **options: object) -> tw.InferResponse:
        message: tw.InferResponse = decode(*arguments, **options)  # type: ignore[arg-type]
        kept.append(message)
        return message

    monkeypatch.setattr(tw, "decode_response", keeping)
    with pytest.raises(BufferError):
        for data in seeds.seeds("response"):
            TARGETS["response"](data)
