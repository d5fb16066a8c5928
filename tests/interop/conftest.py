"""Fixtures for a live Triton server and for disabled logging, and a marker for all tests here."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("interop.rest_servers", "interop.recorded_sources")

from interop import triton_setup  # noqa: E402
from interop.triton_server import TritonServer, running_triton  # noqa: E402
from support.requirements import skip_or_fail  # noqa: E402


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exclude the tests of this folder from the run with sanitizers."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.no_sanitizers(reason="it tests other programs"))


@pytest.fixture(scope="session")
def triton_folder() -> Path:
    """The folder of Triton. If it is not installed, skip the test, or fail it in CI."""
    folder = triton_setup.folder_in_use()
    if triton_setup.read_marker(folder) is None:
        command = shlex.join([sys.executable, triton_setup.__file__, str(folder)])
        skip_or_fail("triton", f"no Triton server is installed; to install one: {command}")
    return folder


@pytest.fixture(scope="session")
def triton(triton_folder: Path) -> Iterator[TritonServer]:
    """A running Triton."""
    with running_triton(triton_folder) as server:
        yield server


@pytest.fixture
def no_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
