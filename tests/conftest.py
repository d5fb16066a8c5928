"""Configuration of all tests."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Generator, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import pytest

from support.requirements import fail_if_unexpected, list_skipped, package

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
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_unexpected(report)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    list_skipped(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    list_skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_unexpected(report)
    return report


@pytest.fixture(scope="module", autouse=True)
def frozen_modules() -> None:
    """Exclude everything that is already loaded from the garbage collections of a test module.

    Many tests and fuzz targets collect garbage. A collection that traverses all imported modules
    and collected tests takes a second in a build with sanitizers.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def unfreeze_at_end() -> Iterator[None]:
    """Let the interpreter clean up at exit as usual."""
    yield
    gc.unfreeze()
