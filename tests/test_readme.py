"""README: its examples run and print what it says, its commands and layout are the real ones."""

from __future__ import annotations

import io
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

import tensorwire as tw

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
EXAMPLES = EXAMPLE.findall(README)


def run(code: str) -> str:
    """What the code prints, and the last line of the error that it ends with.

    It has a print of its own: with sys.stdout replaced in several threads, CPython's may crash.
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


def test_the_first_example_is_short() -> None:
    assert len(EXAMPLES[0][0].splitlines()) <= 12


def test_ci_runs_the_readmes_test_command() -> None:
    (command,) = re.findall(r"```sh\n(.*-m pytest)\n```", README)
    script = (ROOT / ".ci/run").read_text()
    function = re.search(r"^readme_command\(\).*?^}", script, re.DOTALL | re.MULTILINE)
    assert function is not None
    assert "$(readme_command 'm pytest')" in script
    printed = subprocess.run(
        ["bash", "-c", f"{function[0]}; readme_command 'm pytest'"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"{command}\n"
