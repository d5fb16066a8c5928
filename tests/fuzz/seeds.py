"""The seeds of each target: the case tables, recorded exchanges with Triton, and saved inputs."""

from __future__ import annotations

import random
import struct
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz import grpc_messages
from fuzz.api import OPERATIONS
from fuzz.targets import LENGTHS, SPECS
from support import cases, grpc_cases, reference

MAX_NBYTES = 4096  # of an input; the unit tests cover larger cases of the tables
SAVED = Path(__file__).parent / "saved"
TEXTS = [b"", b"a", b"\0", b"na\xc3\xafve", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80"]
TEXTS += [b"\xff\xfe", b"eleven char", b"twelve chars", b"thirteen char", b"z" * 40, b"\xc2"]


def seeds(target: str) -> list[bytes]:
    """Return the seeds of a target: those from the tables, and the saved inputs."""
    made = [data for data in MAKERS[target]() if len(data) <= MAX_NBYTES]
    return list(dict.fromkeys([*made, *kept(target)]))


def kept(target: str) -> list[bytes]:
    """Return the saved inputs: findings, and inputs that reach other code than the tables."""
    path = SAVED / f"{target}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [b64decode(line) for line in lines if not line.startswith("#")]


def keep(target: str, folder: Path) -> int:
    """Save the files of a folder that are not seeds yet, and return their number."""
    known = set(seeds(target))
    files = sorted(path.read_bytes() for path in folder.iterdir())
    new = [b64encode(data).decode() + "\n" for data in files if data not in known]
    SAVED.mkdir(exist_ok=True)
    with (SAVED / f"{target}.txt").open("a") as saved:
        saved.writelines(new)
    return len(new)


def with_choices(choices: int, length: int, spec: int, body: bytes) -> bytes:
    return bytes([choices]) + length.to_bytes(2, "little") + bytes([spec]) + body


CASES: tuple[cases.Valid | cases.Malformed, ...] = (*cases.VALID, *cases.MALFORMED)
RAW: tuple[cases.RawValid | cases.RawMalformed, ...] = (*cases.RAW_VALID, *cases.RAW_MALFORMED)


def messages(kind: str) -> Iterator[bytes]:
    """Yield the messages of one kind, with the header length in different forms."""
    for case in CASES:
        length = case.header_length
        if case.kind != kind:  # requests have "inputs", responses have "outputs"
            body = case.body.replace(b'"inputs"', b'"outputs"', 1)
            if kind == "response" and isinstance(length, int) and 0 < length < 2**15:
                yield with_choices(9, length + len(body) - len(case.body), 0, body)
        elif length is None:
            yield with_choices(0, 0, 0, case.body)
        elif isinstance(length, int) and length >= 0:
            yield with_choices(1, min(length, 2**16 - 1), 0, case.body)
        else:
            yield from (with_choices(form, 93, 0, case.body) for form in range(len(LENGTHS)))


def requests() -> Iterator[bytes]:
    yield from messages("request")
    specs = {(spec.datatype, spec.dims, spec.batching): i for i, spec in enumerate(SPECS)}
    for case in RAW:
        i = specs.get((case.datatype, case.dims, case.batching))
        if i is not None and i < 256:
            yield with_choices(1, 0, i, case.body)
    yield from (with_choices(form, 0, form, b"\0\1\0\1") for form in range(len(LENGTHS)))


def elements() -> Iterator[bytes]:
    for n in range(len(TEXTS)):
        whole = reference.elements(TEXTS[:n])
        yield b"\1\0\0" + whole
        yield b"\0" + n.to_bytes(2, "little") + whole
        yield b"\2" + n.to_bytes(2, "little") + whole[:-1]
    for case in CASES:
        if b'"BYTES"' in case.body and isinstance(case.header_length, int):
            yield b"\1\0\0" + case.body[case.header_length :]


def exports() -> Iterator[bytes]:
    for export in range(12):
        for maker in range(7):
            texts = TEXTS[maker : maker + export]
            front = bytes([export, maker, maker, len(texts), *map(len, texts)])
            yield front + b"".join(texts) + b"\2\1\3\1\0\1\2\3"


def headers() -> Iterator[bytes]:
    for choices in (b"\0", b"\1", b"\2", b"\4"):
        for value in (b"93", b"+93", b"0x5", b"", b"0", b"9" * 21, b"\xb2", b" 93", b"93, 93"):
            yield choices + b"Inference-Header-Content-Length:" + value
        for gateway in (b"sagemaker", b"vertex-ai"):
            media_type = b"application/vnd." + gateway + b"-triton.binary+json"
            for parameter in (
                b"; json-header-size=93",
                b';json-header-size="7"; q=1',
                b"",
                b";a=b",
            ):
                yield choices + b"Content-Type:" + media_type + parameter
        yield choices + b"INFERENCE-HEADER-CONTENT-LENGTH:5\ninference-header-content-length:6"


def buffers() -> Iterator[bytes]:
    chooser = random.Random(0)
    for front in range(8):
        for _ in range(4):
            numbers = bytes(chooser.choice((0, 60, 100, 128, 132, 200, 255)) for _ in range(3))
            yield bytes([front]) + numbers + chooser.randbytes(2 * chooser.randrange(8))


def written() -> Iterator[bytes]:
    """Yield inputs for the JSON writer: numbers of each datatype, texts and parameters."""
    powers = b"".join((2**e).to_bytes(8, "little") for e in range(0, 64, 5))
    singles = struct.pack("<8f", 0.1, -0.0, 1e-45, 3.4e38, 1 / 3, 16777216, 1e10, float("nan"))
    doubles = struct.pack("<8d", 0.1, -0.0, 5e-324, 1.7e308, 1 / 3, 2.0**53, 1e16, float("-inf"))
    for dtype in range(11):
        for options in (0, 1, 6, 255):
            yield bytes([dtype, options]) + powers
            yield bytes([dtype, options]) + singles + doubles
    texts = [*TEXTS, b'"', b"\\", b"\n\t\x1f\x7f", b"12345678" * 4]
    for options in (0, 1, 255):
        yield bytes([11, options]) + b"".join(bytes([len(text)]) + text for text in texts)
        yield from (bytes([11, options, len(text)]) + text for text in texts)
    for options in range(8):
        yield from (bytes([13, options]) + text for text in texts)
        yield bytes([13, options]) + "é€\ud800x".encode("utf-16-le", "surrogatepass")
    chooser = random.Random(1)
    for options in (0, 0, 0, 125, 127, 129, 249):
        yield bytes([15, options]) + chooser.randbytes(60)
        yield bytes([15, options, 7, 3, 97, 4]) + doubles


def grpc() -> Iterator[bytes]:
    """Yield a byte of choices, and a gRPC message."""
    for message in grpc_cases.SAME.values():
        yield b"\x40" + message
    for case in grpc_cases.REJECTED:
        yield bytes([grpc_messages.KINDS.index(case.kind)]) + case.message
    for choices in range(256):
        kind = grpc_messages.KINDS[choices % 4]
        fields = grpc_messages.generated(kind, random.Random(choices))
        yield bytes([choices]) + grpc_messages.written(fields)


def programs() -> Iterator[bytes]:
    """Yield random episodes, each beginning with a different operation."""
    for i in range(len(OPERATIONS)):
        yield bytes([i]) + random.Random(i).randbytes(150)


def kernels() -> Iterator[bytes]:
    """Yield a byte that selects the kernel, and its input."""
    for n in range(len(TEXTS)):
        yield b"\0\xff\2" + reference.elements(TEXTS[:n])
        yield b"\1" + b"".join(TEXTS[n:])
        text = b"".join(TEXTS[:n]).decode(errors="replace")
        yield b"\2" + text.encode("latin-1", "replace")
        yield b"\3" + text.encode("utf-16-le")
        yield b"\4" + text.encode("utf-32-le")
        yield b"\5" + (2**n).to_bytes(8, "little") + (2**63 - n).to_bytes(8, "little")


NUMBERS = b"""
0 -0 -0.0 1.5 0.1 1e5 1E+05 1e-5 123456789012345678901 18446744073709551615
-9223372036854775808 9007199254740993 127 -128 3.4028235677973366e38 1e400 1e-400
0e99999999999 1.17549435e-38 16777217.0000000000000000000001 2.4703282292062327208299e-324
18446744073709551616 184467440737095516150 16777217.00000000001 1e27 18446744073709551615.0
1844674407370955161.60e1 100e-2 0e99999999999 12800e-2 0.0000000000000000000000000012e28
9007199254740993e0 9007199254740993e1 10000000000000000011e-1 1e23 01 1. .5 +1 1e - --1 1e+
0x1 1_0
""".split()
NUMBERS += [b"0." + b"0" * 30, b"1" + b"0" * 25 + b".000e-25", b"7" * 25]
STRINGS = [b'"%s"' % text for text in TEXTS]
STRINGS += [
    *(rb'"\u00e9\n"', rb'"\ud83d\ude00"', rb'"\ud83d"', rb'"\ude00"', rb'"\"\\\/\b\f\n\r\t"'),
    *(rb'"\x"', rb'"a\u0000"', b'"a\nb"', b'"\x7f"', b'"a', b'"\\'),
    b'"abcdefgh\xf0\x9f\x98\x80ijklmnopqrstuv"',
]
OTHERS = [
    *(b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity", b"nul", b"{}", b"[]"),
    *(b'{"a":1,"b":[2,{"c":null}]}', rb'{"a":1,"\u0061":2}', b'{"a":1,}', b"[1,]", b"[,1]"),
    b" [ 1 , 2 ] ",
]


def json_kernels() -> Iterator[bytes]:
    """Yield a byte that selects the check, a byte of options, and JSON text."""
    for text in (*NUMBERS, *STRINGS, *OTHERS):
        yield b"\0\x0f" + text
        yield b"\0\xff[" + text + b" , {" + (text if text[:1] == b'"' else b'"k"') + b":0}]"
    for text in STRINGS:
        yield b"\1a" + text + text
        yield b"\1\0" + text + b'"b"'
    for text in NUMBERS:
        yield b"\2\0" + text
        yield b"\2\0" + text + b" "
    for kind in range(13):
        front = b"\3" + bytes([kind]) + b"\7\x0d"
        texts = STRINGS if kind == 11 else NUMBERS
        yield front + b"[[1,2],[3,[4]],[]]"
        yield front + b"[true,false]"
        for text in (*texts, *OTHERS):
            yield front + b"[" + text + b"," + text + b"]"


MAKERS: dict[str, Callable[[], Any]] = {
    "request": requests,
    "response": lambda: messages("response"),
    "decode_bytes": elements,
    "exports": exports,
    "header_length": headers,
    "bodybuffer": buffers,
    "json_writer": written,
    "grpc": grpc,
    "api": programs,
    "kernels": kernels,
    "json_kernels": json_kernels,
}


def main() -> None:
    """Write the seeds to FOLDER, or with TARGET FOLDER save the new inputs in the folder."""
    if len(sys.argv) == 3:
        print(keep(sys.argv[1], Path(sys.argv[2])), "inputs were saved")
        return
    for target in MAKERS:
        folder = Path(sys.argv[1], target)
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(seeds(target)):
            (folder / f"{i:04}").write_bytes(data)


if __name__ == "__main__":
    main()
