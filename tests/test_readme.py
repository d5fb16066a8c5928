"""The Python examples of README.md and docs/*.md run and print what the pages say."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tensorwire as tw

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
README_NAMES = ["first", "answer", "serve", "client", "drop in", "pickle", "BYTES"]


def examples() -> list[Any]:
    """Return the code and the expected output of each example."""
    found = []
    for page in PAGES:
        texts = EXAMPLE.findall(page.read_text())
        is_readme = page.name == "README.md"
        names = README_NAMES if is_readme else [f"{page.stem} {i}" for i in range(len(texts))]
        found += [pytest.param(*text, id=name) for text, name in zip(texts, names, strict=True)]
    return found


def run(code: str) -> str:
    """Return what the code prints, and the last line of the error that it ends with.

    The code gets its own `print`: replacing sys.stdout in several threads can crash CPython.
    """
    printed = io.StringIO()
    write = partial(print, file=printed)
    try:
        exec(compile(code, "example", "exec"), {"__name__": "example", "print": write})
    except tw.TensorwireError as error:
        write(f"{type(error).__module__}.{type(error).__name__}: {error}")
    return printed.getvalue()


@pytest.mark.parametrize(("code", "expected"), examples())
def test_example(code: str, expected: str) -> None:
    assert run(code) == expected
