"""The header json/numbers.h with strtod, for C++ libraries without <charconv>.

test_json_reader.py has more numbers, with what the compiled module uses.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HEADER = Path(__file__).parents[1] / "src" / "tensorwire" / "_codec" / "json" / "numbers.h"
SOURCE = """
#include "numbers.h"

extern "C" {
unsigned long long reciprocal(int n) { return RECIPROCALS_OF_5[n]; }
int parse_double(const char *text, int nbytes, double *value) {
    const unsigned char *first = (const unsigned char *)text;
    return parse_float(first, first + nbytes, value);
}
int parse_single(const char *text, int nbytes, float *value) {
    const unsigned char *first = (const unsigned char *)text;
    return parse_float(first, first + nbytes, value);
}
}
"""

pytestmark = [
    pytest.mark.skipif(not HEADER.exists(), reason="this checkout has no sources"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="this machine has no C++ compiler"),
    pytest.mark.no_sanitizers(reason="it loads a library without sanitizers"),
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the functions of the header."""
    folder = tmp_path_factory.mktemp("kernels")
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text(SOURCE)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-DTENSORWIRE_NO_CHARCONV"]
    subprocess.run([*command, f"-I{HEADER.parent}", "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.reciprocal.restype = ctypes.c_ulonglong
    return loaded


def test_reciprocals(kernels: Any) -> None:
    for n in range(1, 28):
        power = 5**n
        assert kernels.reciprocal(n) == 2**127 // (power << (64 - power.bit_length()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1.0),
        ("-0.1", -0.1),
        ("17976931348623157e292", 1.7976931348623157e308),
        ("2.2250738585072011e-308", 2.2250738585072011e-308),
        ("5e-324", 5e-324),
        ("1" + "0" * 400 + "e-400", 1.0),
        ("1." + "0" * 800 + "1", 1.0),
        ("9007199254740993." + "0" * 800 + "1", 9007199254740994.0),
        *((text, None) for text in ("1e400", "-1e999999999", "1e-400", "-1e-99999")),
    ],
    ids=lambda value: str(value)[:24],
)
def test_any_number(kernels: Any, text: str, expected: float | None) -> None:
    """`expected` is None if the C library reports that the number is out of range."""
    double, single = ctypes.c_double(), ctypes.c_float()
    arguments = text.encode(), len(text)
    is_in_range = expected is not None
    assert kernels.parse_double(*arguments, ctypes.byref(double)) == is_in_range
    assert not is_in_range or double.value == expected
    if expected is None or 1e-37 < abs(expected) < 1e38:
        assert kernels.parse_single(*arguments, ctypes.byref(single)) == is_in_range
        assert not is_in_range or single.value == np.float32(text)


def test_header_is_also_c() -> None:
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused", "-Werror", "-fsyntax-only"]
    subprocess.run([*command, "-x", "c", HEADER], check=True)
