"""The number of requests to a model, and how long they took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class Statistics:
    """Counts the requests to a model that were decoded, processed and encoded, or failed.

    The counters are those of one process, in the form of Triton. ``observe`` is called with the
    duration in nanoseconds and the exception of each request.
    """

    def __init__(self, observe: Callable[[int, BaseException | None], None] | None = None) -> None:
        self._observe = observe
        self._lock = threading.Lock()  # an application may run in several event loops
        self._totals = {"success": {"count": 0, "ns": 0}, "fail": {"count": 0, "ns": 0}}
        self._last_ns: int | None = None

    def add(self, started_ns: int, error: BaseException | None = None) -> None:
        """Count a request that began at a time of ``time.perf_counter_ns``."""
        now_ns = time.perf_counter_ns()
        duration_ns = now_ns - started_ns
        with self._lock:
            self._last_ns = now_ns
            total = self._totals["success" if error is None else "fail"]
            total["count"] += 1
            total["ns"] += duration_ns
        if self._observe is not None:
            self._observe(duration_ns, error)

    def describe(self) -> dict[str, Any]:
        """Return the fields of Triton's ModelStatistics that are known."""
        with self._lock:
            ago_ns = None if self._last_ns is None else time.perf_counter_ns() - self._last_ns
            return {
                # In milliseconds since 1970; 0 if there was none.
                "last_inference": 0 if ago_ns is None else (time.time_ns() - ago_ns) // 1_000_000,
                "inference_count": self._totals["success"]["count"],
                "execution_count": self._totals["success"]["count"],
                "inference_stats": {kind: total.copy() for kind, total in self._totals.items()},
            }
