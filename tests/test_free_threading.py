"""Objects that threads share: the scenarios of stress/threads.py, for a short time each.

They are most useful in a free-threaded Python, in which threads run at the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest

from stress import threads
from support.scale import scaled

pytestmark = pytest.mark.thread_unsafe(reason="it starts threads")


@pytest.mark.parametrize("name", threads.SCENARIOS)
def test_threads_share_objects(name: str) -> None:
    assert threads.run(threads.SCENARIOS[name], scaled(100) / 1000) > 0


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL"
)
def test_import_does_not_enable_the_gil() -> None:
    program = """
    import sys, tensorwire, tensorwire.server.framing
    assert not sys._is_gil_enabled()
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHON_GIL"}
    command = [sys.executable, "-W", "error", "-c", "\n".join(map(str.strip, program.split("\n")))]
    subprocess.run(command, env=environment, check=True)
