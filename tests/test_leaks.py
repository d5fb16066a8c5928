"""Memory and references: 100,000 calls of each entry point."""

from __future__ import annotations

import pytest

from stress import leaks
from support.scripts import run_script

pytestmark = [
    pytest.mark.no_sanitizers(reason="it measures memory"),
    pytest.mark.thread_unsafe(reason="it counts the objects of the process"),
]

SCRIPT = "import warnings; warnings.simplefilter('error'); from stress import leaks; leaks.main()"


@pytest.mark.nightly(reason="it makes 100,000 calls of each entry point")
def test_no_entry_point_leaks() -> None:
    """There must be no error output either, such as an exception in a destructor."""
    done = run_script(SCRIPT, timeout=1200)
    assert (done.stderr, done.returncode) == ("", 0)
    assert len(done.stdout.splitlines()) >= len(leaks.ENTRY_POINTS) - 1  # pyarrow may be missing
