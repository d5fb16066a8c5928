"""Configuration of all tests."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collections.

    Many tests and fuzz targets collect garbage. A collection that traverses everything that is
    loaded takes a second in a build with sanitizers.
    """
    gc.collect()
    gc.freeze()
