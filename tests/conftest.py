"""Configuration of all tests."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Generator
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import pytest

from support.requirements import Report, fail_if_unexpected, list_skipped, package

# A shell that runs the tests in the background ignores SIGINT for them. The processes that they
# start, and interrupt, would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# If a process has had several event loops with gRPC, as these tests have, grpcio logs a
# BlockingIOError of its own poller from time to time (grpc/grpc#25364). It has no effect.
logging.getLogger("asyncio").addFilter(
    lambda record: "PollerCompletionQueue" not in record.getMessage()
)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Run an asynchronous test in an event loop of its own."""
    if isinstance(item, pytest.Function) and iscoroutinefunction(test := item.obj):

        @wraps(test)
        def run(**arguments: Any) -> None:
            asyncio.run(test(**arguments))

        item.obj = run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip or fail a test of BF16 if ml_dtypes, which has no wheel for musl, is not installed."""
    try:
        return (yield)
    except Exception as error:
        if "requires the ml_dtypes package" in str(error):
            package("ml_dtypes")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Report, Report]:
    report = yield
    fail_if_unexpected(report)
    return report


pytest_make_collect_report = pytest_runtest_makereport
pytest_runtest_logreport = pytest_collectreport = list_skipped


@pytest.fixture(scope="module", autouse=True)
def frozen_modules() -> None:
    """Exclude everything that is already loaded from the garbage collections of a test module.

    Many tests and fuzz targets collect garbage. A collection that traverses all imported modules
    and collected tests takes a second in a build with sanitizers.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the interpreter clean up at exit as usual."""
    gc.unfreeze()
