"""The Python examples of README.md run and print what README.md says."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path

import pytest

import tensorwire as tw

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
EXAMPLES = EXAMPLE.findall(README)


def run(code: str) -> str:
    """Return what the code prints, and the last line of the error that it ends with.

    The code gets its own `print`: replacing sys.stdout in several threads can crash CPython.
    """
    printed = io.StringIO()
    write = partial(print, file=printed)
    try:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme", "print": write})
    except tw.TensorwireError as error:
        write(f"{type(error).__module__}.{type(error).__name__}: {error}")
    return printed.getvalue()


@pytest.mark.parametrize(
    ("code", "expected"),
    EXAMPLES,
    ids=["first", "answer", "serve", "client", "drop in", "pickle", "BYTES"],
)
def test_example(code: str, expected: str) -> None:
    assert run(code) == expected
