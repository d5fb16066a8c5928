"""The examples of the Markdown pages: a block of Python, and what it prints."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import tensorwire as tw

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
IMPORT = re.compile(r"^\s*(?:>>> )?(?:import|from) (\w+(?:\.integrations\.\w+)?)", re.MULTILINE)


class Example(NamedTuple):
    """A block of Python, and the text that it prints."""

    id: str
    code: str
    expected: str

    @property
    def packages(self) -> frozenset[str]:
        """The packages that the code imports."""
        return packages_of(self.code)


def packages_of(code: str) -> frozenset[str]:
    """Return the packages that code imports. Integrations need those that they are for."""
    return frozenset(name.removeprefix("tensorwire.integrations.") for name in IMPORT.findall(code))


def examples() -> list[Example]:
    """Return the examples of all pages. The id has the page, the section and a number."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for number, match in enumerate(EXAMPLE.finditer(text)):
            headings = HEADING.findall(text, 0, match.start())
            section = headings[-1] if headings else "introduction"
            name = page.relative_to(ROOT).with_suffix("")
            found.append(Example(f"{name}, {section} {number}", match[1], match[2] or ""))
    return found


def examples_with(package: str) -> pytest.MarkDecorator:
    """Return the parametrization of a test by the examples that import a package."""
    found = [example for example in examples() if package in example.packages]
    return pytest.mark.parametrize("example", found, ids=lambda example: example.id)


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
