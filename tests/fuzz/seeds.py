"""The seeds of each target: the case tables, saved inputs, examples of strategies, or random bytes.

`python -m fuzz.seeds FOLDER` writes them, with a dictionary for libFuzzer.
"""

from __future__ import annotations

import random
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import given

from fuzz.targets import LENGTHS, PROPERTIES, RAW_FORM, SPLIT
from support import cases, grpc_cases, grpc_strategies, reference, strategies
from support.grpc_strategies import KINDS
from support.strategies import (
    HEADER_NAMES,
    KEYS,
    NOT_UTF8,
    PARAMETERS,
    SPECS,
    TEXTS,
    TOKENS,
    TYPES,
    lengths,
)

MAX_NBYTES = 4096  # of an input; the unit tests cover larger cases of the tables
SAVED = Path(__file__).parent / "saved"
CASES: tuple[cases.Valid | cases.Malformed, ...] = (*cases.VALID, *cases.MALFORMED)
RAW_CASES: tuple[cases.RawValid | cases.RawMalformed, ...] = (
    *cases.RAW_VALID,
    *cases.RAW_MALFORMED,
)


def seeds(target: str) -> list[bytes]:
    made = [data for data in MAKERS[target]() if len(data) <= MAX_NBYTES]
    return list(dict.fromkeys([*made, *saved(target)]))


def saved(target: str) -> list[bytes]:
    """Return the saved inputs, which reach other code than the tables."""
    path = SAVED / f"{target}.txt"
    return [b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []


def drawn(strategy: strategies.Strategy, n: int = 150) -> list[Any]:
    """Return `n` examples of a strategy."""
    made: list[Any] = []

    @given(strategy)
    def keep(value: Any) -> None:
        made.append(value)

    strategies.run_examples(keep, n, seed=0)
    return made


def messages(kind: str) -> Iterator[bytes]:
    """Yield the messages of one kind, and requests as responses."""
    for case in CASES:
        text, n, blob = case.body, case.header_length, b""
        if isinstance(n, int) and n >= 0:
            text, blob = text[:n], SPLIT + text[n:]
        if case.kind != kind:
            text = text.replace(b'"inputs"', b'"outputs"', 1)
        if kind in (case.kind, "response"):
            yield b"\0\0" + text + blob
    for body in drawn(strategies.requests if kind == "request" else strategies.responses):
        yield b"\0\0" + body.text + (SPLIT + body.blob if body.blob else b"")
    yield from (bytes([form, 0]) + CASES[0].body + SPLIT for form in range(len(LENGTHS)))
    specs = {(spec.datatype, spec.dims, spec.batching): i for i, spec in enumerate(SPECS)}
    for raw in RAW_CASES if kind == "request" else ():
        i = specs.get((raw.datatype, raw.dims, raw.batching), 256)
        if i < 256:
            yield bytes([RAW_FORM, i]) + raw.body


def elements() -> Iterator[bytes]:
    texts = [*TEXTS, *NOT_UTF8]
    for n in range(len(texts)):
        whole = reference.elements(texts[:n])
        yield b"\1\0\0" + whole
        yield b"\0" + n.to_bytes(2, "little") + whole
        yield b"\2" + n.to_bytes(2, "little") + whole[:-1]


def headers() -> Iterator[bytes]:
    for form in (b"\0", b"\1", b"\2", b"\3"):
        for value in lengths(93, 100):
            yield form + f"{HEADER_NAMES[0]}:{value}".encode("latin-1")
        for media_type in TYPES:
            for parameter in PARAMETERS:
                yield form + f"content-type:{media_type}{parameter.format(93)}".encode()
        yield form + b"INFERENCE-HEADER-CONTENT-LENGTH:5\ninference-header-content-length:6"


def grpc() -> Iterator[bytes]:
    yield from (b"\x08" + message for message in grpc_cases.SAME.values())
    for case in grpc_cases.REJECTED:
        yield bytes([KINDS.index(case.kind)]) + case.message
    for kind, message in drawn(grpc_strategies.messages):
        yield bytes([KINDS.index(kind) | 8]) + message


def random_choices() -> list[bytes]:
    """Return inputs of several sizes for a property. From shorter ones libFuzzer learns little."""
    chooser = random.Random(0)
    return [chooser.randbytes(n) for n in (200, 500, 1000, 2000) for _ in range(16)]


MAKERS: dict[str, Callable[[], Any]] = {
    "request": partial(messages, "request"),
    "response": partial(messages, "response"),
    "decode_bytes": elements,
    "header_length": headers,
    "grpc": grpc,
    **dict.fromkeys(PROPERTIES, random_choices),
}


def main() -> None:
    folder = Path(sys.argv[1])
    for target in MAKERS:
        (folder / target).mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(seeds(target)):
            (folder / target / f"{i:04}").write_bytes(data)
    words = [*TOKENS, *(f'"{key}"'.encode() for key in (*KEYS, *reference.DATATYPES)), SPLIT]
    lines = ["".join(f"\\x{byte:02x}" for byte in word[:64]) for word in words]
    (folder / "dictionary").write_text("".join(f'"{line}"\n' for line in lines))


if __name__ == "__main__":
    main()
