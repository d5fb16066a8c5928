"""A plugin of pytest for mutants: it bounds the memory, and ends a test that takes too long."""

from __future__ import annotations

import faulthandler
import os
import resource

SECONDS = 60  # of one test; it takes a few seconds without a bug
MAX_NBYTES = 12 << 30  # of address space: a mutant may allocate without an end

if "LD_PRELOAD" not in os.environ:  # AddressSanitizer reserves more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_NBYTES, hard))


def pytest_runtest_logstart() -> None:
    # Its thread ends the process even if the test is in an endless loop that holds the GIL.
    faulthandler.dump_traceback_later(SECONDS, exit=True)


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()
