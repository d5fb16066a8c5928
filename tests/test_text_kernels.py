"""The headers utf8.h and json/text.h, compiled in each of their versions, compared with Python.

A program reads the cases from its input and writes the results. The text of a case ends with its
memory block, which has only as many bytes before the text as can be read. Results are written to
blocks of exactly the size that the header asks for. AddressSanitizer therefore detects accesses out
of bounds.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from support.bytes_elements import is_utf8, utf8_sequences
from support.scale import scaled

HEADERS = Path(__file__).parents[1] / "src" / "tensorwire" / "_codec"
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include "json/text.h"

static unsigned char *memory(size_t nbytes) {
    unsigned char *block = (unsigned char *)malloc(nbytes ? nbytes : 1);
    if (block == NULL) abort();
    return block;
}

int main(void) {
    uint32_t sizes[2];
    int kind;
    while ((kind = getchar()) != EOF) {
        if (fread(sizes, 4, 2, stdin) != 2) return 1;
        ptrdiff_t nbytes = sizes[0], n_before = sizes[1];
        size_t n_readable = (size_t)(n_before + nbytes);
        unsigned char *readable = memory(n_readable), *block = readable + n_before;
        if (fread(readable, 1, n_readable, stdin) != n_readable) return 1;
        unsigned char *result = memory((size_t)(6 * nbytes + 31)), *end = result;
        const unsigned char *position = block;
        int32_t status = 0;
        uint32_t character = 0;
        if (kind == 'v') {
            status = is_utf8(block, nbytes);
        } else if (kind == 'e' || kind == 'w') {  /* any text, or text that is known to be UTF-8 */
            result = (unsigned char *)realloc(result, (size_t)(6 * nbytes + BLOCK_NBYTES));
            end = escape_text(result, block, nbytes, n_before, kind == 'w');
            status = end == NULL ? -1 : (int32_t)(end - result);
        } else if (kind == 's') {
            status = short_string(block, block + nbytes);
        } else if (kind == 'u' || kind == 'p') {  /* copy or pass */
            result = (unsigned char *)realloc(result, (size_t)(nbytes ? nbytes : 1));
            end = result;
            status = unescape_text(kind == 'u' ? &end : NULL, &position, block + nbytes);
        } else if (kind == 'x') {
            status = read_unicode_escape(block, nbytes, &character);
            if (status > 0) end = write_character(result, character);
        } else if (kind == '1') {
            while (block + nbytes - position >= 8) position += write_up_to_eight(&end, position);
            while (position < block + nbytes) end = write_one(end, *position++);
            for (ptrdiff_t i = 0; i + 8 <= nbytes; i += 8) status += n_two_bytes(block + i);
        }
        uint32_t size = status < 0 && kind != 's' ? 0 : (uint32_t)(end - result);
        uint32_t passed = (uint32_t)(position - block);
        fwrite(&status, 4, 1, stdout);
        fwrite(&passed, 4, 1, stdout);
        fwrite(&size, 4, 1, stdout);
        fwrite(result, 1, size, stdout);
        free(readable);
        free(result);
    }
    return 0;
}
"""
STRICT = ["-O2", "-Wall", "-Wextra", "-Wconversion", "-Wno-unused", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
AS_C = ["-x", "c", "-std=gnu11"]
# The compiler, its flags, and the program that runs the result.
VERSIONS = {
    "gcc": (["gcc", *STRICT, *AS_C], []),
    "g++, sanitizers": (["g++", *STRICT, *SANITIZERS, "-x", "c++", "-std=c++17"], []),
    "gcc, no SIMD": (["gcc", *STRICT, *SANITIZERS, *AS_C, "-DTENSORWIRE_NO_SIMD"], []),
    "clang, sanitizers": (["clang", *STRICT, *SANITIZERS, *AS_C], []),
    "aarch64": (["aarch64-linux-gnu-gcc", *STRICT, "-static", *AS_C], ["qemu-aarch64"]),
}

pytestmark = [
    pytest.mark.skipif(not (HEADERS / "utf8.h").exists(), reason="this checkout has no sources"),
    pytest.mark.no_sanitizers(reason="its programs have sanitizers of their own"),
]

Case = tuple[str, bytes, int]  # kind, text, and how many other bytes are before the text
Result = tuple[int, int, bytes]


# AddressSanitizer needs the address space, also when mutants are tested (watch.py). This is not a
# `preexec_fn`: subprocess would then call fork, in which the handlers of grpcio may abort.
WITHOUT_SOFT_LIMIT = ["sh", "-c", 'ulimit -S -v "$(ulimit -H -v)" && exec "$@"', "sh"]


class Kernels:
    """A version of the kernels."""

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def results(self, cases: Iterable[Case]) -> list[Result]:
        """Return the status, the number of bytes that were read and what was written."""
        parts = []
        for kind, text, n_before in cases:
            parts.append(kind.encode() + struct.pack("<II", len(text), n_before))
            parts.append((b'"\x80\xe2' * n_before)[:n_before] + text)
        done = subprocess.run(
            [*WITHOUT_SOFT_LIMIT, *self.command],
            input=b"".join(parts),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        found, at, output = [], 0, done.stdout
        while at < len(output):
            status, n_read, nbytes = struct.unpack_from("<iII", output, at)
            at += 12 + nbytes
            found.append((status, n_read, output[at - nbytes : at]))
        return found


SLOW = pytest.mark.slow(reason="it compiles and runs a slow program")


@pytest.fixture(
    scope="module",
    params=["gcc", *(pytest.param(name, marks=SLOW) for name in VERSIONS if name != "gcc")],
)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    compiler, runner = VERSIONS[request.param]
    for program in (compiler[0], *runner):
        if shutil.which(program) is None:
            pytest.skip(f"this machine has no {program}")
    folder = tmp_path_factory.mktemp("kernels")
    source, made = folder / "kernels.c", folder / "kernels"
    source.write_text(SOURCE)
    subprocess.run([*compiler, f"-I{HEADERS}", source, "-o", made], check=True)
    return Kernels([*runner, str(made)])


# --- the same in Python ---


def escaped(text: bytes) -> Result:
    if not is_utf8(text):
        return -1, 0, b""
    found = json.dumps(text.decode(), ensure_ascii=False)[1:-1].encode()
    return len(found), 0, found


SIMPLE = rb'\\["\\/bfnrt]'


def unescaped(text: bytes) -> Result:
    passed = re.match(rb'(?s:[^"\\\x00-\x1f]|' + SIMPLE + rb")*", text)
    assert passed is not None
    found = passed.group()
    if not is_utf8(found):
        return -1, 0, b""
    plain = re.sub(SIMPLE, lambda escape: json.loads(b'"' + escape.group() + b'"').encode(), found)
    status = (not found.isascii()) | (plain != found) << 1
    return status, len(found), plain


def passed(text: bytes) -> Result:
    return *unescaped(text)[:2], b""


def short(text: bytes) -> Result:
    """Only strings that are plain, short and far enough from the end are read at once."""
    head, quote, _ = text.partition(b'"')
    is_plain = bool(quote) and head.isascii() and unescaped(head)[1] == len(head)
    is_short = len(head) < 32 and len(text) >= 16 * (len(head) // 16 + 1)
    return len(head) if is_plain and is_short and b"\\" not in head else -1, 0, b""


def unicode_escape(text: bytes) -> Result:
    pair = re.match(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..", text)
    unit = re.match(rb"\\u[0-9a-fA-F]{4}", text)
    if pair is None and (unit is None or 0xD8 <= int(text[2:4], 16) <= 0xDF):
        return 0 if unit is None else -1, 0, b""
    escape = (pair or unit).group()  # type: ignore[union-attr]
    return len(escape), 0, json.loads(b'"' + escape + b'"').encode()


def latin_1(text: bytes) -> Result:
    n_two = sum(c >= 0x80 for c in text[: len(text) // 8 * 8])
    return n_two, len(text), text.decode("latin-1").encode()


SAME = {
    "v": lambda text: (is_utf8(text), 0, b""),
    "e": escaped,
    "w": escaped,
    "u": unescaped,
    "p": passed,
    "s": short,
}
SAME |= {"x": unicode_escape, "1": latin_1}


# --- cases ---

# Positions at the beginning of a text, and around the ends of one and two blocks and of a window.
OFFSETS = [0, 1, *range(12, 18), *range(28, 34), *range(60, 66)]
SPECIAL = ['"', "\\", "\0", "\x1f", "\n", "\t", "\x7f", "é", "€", "\U0001f600", "/"]


def utf8_at_the_borders_of_blocks(chooser: random.Random) -> Iterator[bytes]:
    for sequence in utf8_sequences():
        for offset in chooser.sample(OFFSETS, 2):
            front = chooser.choice(["a", "é", "€", "🙂"]).encode() * offset
            front = b"a" * max(0, offset - len(front)) + front[len(front) - offset :]
            yield front + sequence + b"z" * chooser.choice([0, 1, 3, 17, 70])


def special_characters_at_all_positions(chooser: random.Random) -> Iterator[bytes]:
    lengths = itertools.product(SPECIAL, range(35), (1, 2, 16), (0, 1, 14, 15, 16, 33, 70))
    for character, n, k, m in lengths:
        text = "x" * n + character * k + "y" * m
        escape = json.dumps(text, ensure_ascii=False)[1:-1]
        yield from (t.encode() for t in (text, escape, escape + '"' + escape))
    for character, n, m in itertools.product(SPECIAL, range(35), range(17)):
        yield ("x" * n + character + "y" * m + chooser.choice(('"', ""))).encode()
    yield from (bytes([c]) * n for c in (0, 0x7F, 0x80, 0xBF, 0xC0, 0xFF) for n in range(20))


def random_text(chooser: random.Random) -> Iterator[bytes]:
    pieces = [rb"\n", rb"\"", rb"\\", rb"\u00e9", rb"\x", b"a", b"word", b'"', b"\\"]
    pieces += [b"\n", b"\x01"]
    pieces += [text.encode() for text in ("é", "€", "天气", "🙂")]
    for _ in range(scaled(3000)):
        weights = [chooser.choice([0, 1, 8]) for _ in pieces]
        made = chooser.choices(pieces, [w + 0.01 for w in weights], k=chooser.randrange(60))
        if chooser.random() < 0.3 and made:
            broken = chooser.choice([b"\xe2\x82", b"\xf0\x9f\x99", b"\x80", b"\xff"])
            made[chooser.randrange(len(made))] = broken
        yield b"".join(made)


def unicode_escapes(chooser: random.Random) -> Iterator[bytes]:
    """Yield all hexadecimal digits, all bytes that are not digits, and pairs of surrogates."""
    units = [f"\\u{unit:04x}" for unit in (*range(0, 0x10000, 7), *range(0xD7F0, 0xE010))]
    units += [unit.upper().replace("U", "u") for unit in units[::11]]
    texts = [unit.encode() for unit in units]
    texts += [b"\\u" + b"0" * i + bytes([c]) + b"0" * (3 - i) for c in range(256) for i in range(4)]
    texts += [texts[1][:n] for n in range(1, 6)]
    pairs = [0x10000, 0x103FF, 0x10400, 0x1F600, 0xFFFFF, 0x10FC00, 0x10FFFF]
    texts += [json.dumps(chr(point))[1:-1].encode() for point in pairs]
    texts += [b"\\ud83d" + text for text in (*texts[::97], b"\\u", b"\\ude0", b"x", b"\\ude00")]
    texts += [b"\\ude00\\ude00", b"\\ude00\\ud83d"]
    yield from (*texts, *(text + b"\\u0041" for text in texts[::5]))


MAKERS = (utf8_at_the_borders_of_blocks, special_characters_at_all_positions, random_text)


@pytest.mark.parametrize("make", [*MAKERS, unicode_escapes], ids=lambda make: make.__name__)
def test_kernels_agree_with_python(
    kernels: Kernels, make: Callable[[random.Random], Iterator[bytes]]
) -> None:
    chooser = random.Random(1)
    texts = list(make(chooser))
    cases = [(kind, text, 0) for text in texts for kind in "veups1"]
    cases += [("e", text, chooser.choice((1, 3, 7))) for text in texts]
    cases += [("w", text, 0) for text in texts if is_utf8(text)]
    cases += [("x", text, 0) for text in texts if text.startswith(b"\\u")]
    for (kind, text, _), result in zip(cases, kernels.results(cases), strict=True):
        expected = SAME[kind](text)
        if kind in "up" and expected[0] == -1:  # the position is that of a block before the error
            with pytest.raises(UnicodeDecodeError) as caught:
                text.decode()
            assert -3 <= caught.value.start - result[1] < 64, text
            expected = -1, result[1], b""
        assert result == expected, (kind, text)
