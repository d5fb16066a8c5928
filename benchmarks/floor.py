"""The floor: what plain C does with the same bytes. Compiled when first asked for, with `cc`."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = r"""
#include <stdint.h>
#include <string.h>

/* Walk the prefixes, checked; write where each begins. Returns the elements, or -1. */
int64_t scan(const unsigned char *data, int64_t nbytes, int64_t *starts) {
    int64_t position = 0, n = 0;
    while (position < nbytes) {
        uint32_t length;
        if (nbytes - position < 4) return -1;
        memcpy(&length, data + position, 4);
        if (length > nbytes - position - 4) return -1;
        starts[n++] = position;
        position += 4 + (int64_t)length;
    }
    return n;
}
"""


@cache
def library() -> Any:
    """The compiled functions; OSError or CalledProcessError where there is no compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "floor.c"), Path(folder, "floor.so")
        source.write_text(SOURCE)
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", source, "-o", made], check=True)
        loaded = ctypes.CDLL(str(made))
    loaded.scan.restype = ctypes.c_int64
    loaded.scan.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    return loaded
