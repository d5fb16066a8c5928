"""The examples of a Markdown page: a block of Python, and what it prints."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path

ARRAYS_PAGE = Path(__file__).parents[2] / "docs" / "arrays.md"
SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def examples(page: Path) -> dict[str, tuple[str, str]]:
    """Return the code and the output of the first example of each section, by its heading."""
    _, *parts = SECTION.split(page.read_text())
    found = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        if example := EXAMPLE.search(text):
            found[heading] = (example[1], example[2])
    return found


def run(code: str) -> str:
    """Return what the code prints. It gets its own `print`, so that threads do not interfere."""
    printed = io.StringIO()
    write = partial(print, file=printed)
    exec(compile(code, "example", "exec"), {"__name__": "example", "print": write})
    return printed.getvalue()
