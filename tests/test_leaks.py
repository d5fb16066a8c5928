"""Memory and references: 100,000 calls of each entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tensorwire as tw
from stress import leaks

pytestmark = [
    pytest.mark.no_sanitizers(reason="it measures memory"),
    pytest.mark.thread_unsafe(reason="it counts the objects of the process"),
]


@pytest.mark.slow(reason="it makes 100,000 calls of each entry point")
def test_no_entry_point_leaks() -> None:
    """There must be no error output either, such as an exception in a destructor."""
    path = [str(Path(tw.__file__).parent.parent), *sys.path]
    script = f"import sys; sys.path[:0] = {path!r}; sys.argv[1:] = []\n"
    script += "from stress import leaks; leaks.main()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= len(leaks.ENTRY_POINTS) - 1  # pyarrow may be missing
