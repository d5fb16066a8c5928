"""Metrics for Prometheus, with the package prometheus_client."""

from __future__ import annotations

import asyncio
import mmap
import os
from types import SimpleNamespace

try:
    import prometheus_client
    from prometheus_client import mmap_dict
    from prometheus_client.multiprocess import MultiProcessCollector
except ModuleNotFoundError:
    raise ImportError(
        "metrics require prometheus_client: pip install 'tensorwire[metrics]'"
    ) from None

from ..errors import TensorwireError
from .errors import log


class ReservedMap(mmap.mmap):
    """Memory of a file that is on the disk. Otherwise, a full disk ends the process by SIGBUS.

    Raises OSError.
    """

    def __new__(cls, file: int, nbytes: int, access: int = mmap.ACCESS_DEFAULT) -> ReservedMap:
        if access != mmap.ACCESS_READ and hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(file, 0, nbytes)
        return super().__new__(cls, file, nbytes, access=access)


# With several processes, prometheus_client has its values in files. It has no option for them.
if getattr(mmap_dict, "mmap", None) is mmap:
    mmap_dict.mmap = SimpleNamespace(**{**vars(mmap), "mmap": ReservedMap})
else:
    log.warning("with this version of prometheus_client, a full disk may end a process (SIGBUS)")

# In the registry of the process, where a program can add its own metrics, and which a second
# application of the process shares.
DURATION = prometheus_client.Histogram(
    "tensorwire_request_duration_seconds",
    "Time from the arrival of a request to a model until its response is ready.",
    ["model", "status"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)

REJECTED = prometheus_client.Counter(
    "tensorwire_rejected_requests",
    "Requests that a limit has rejected, by the option with the limit.",
    ["limit"],
)


_reported: set[str] = set()


def _report(problem: str) -> None:
    """Log the exception that is handled, but once: otherwise, each request would be logged."""
    if problem not in _reported:
        _reported.add(problem)
        log.exception("%s (this is logged once)", problem)


def add_model(name: str) -> None:
    """Make the metrics show a model before its first request. Raises no exceptions."""
    try:
        DURATION.labels(name, "200")
    except Exception:  # see observe
        _report("a model is missing in the metrics")


def observe(name: str, duration_ns: int, error: BaseException | None) -> None:
    """Observe the duration of a request to a model.

    Raises no exceptions: a request does not fail because it cannot be counted.
    """
    try:
        DURATION.labels(name, str(status_of(error))).observe(duration_ns / 1e9)
    except Exception:  # with several processes: the folder was deleted, or the disk is full
        _report("a request is missing in the metrics")


def count_rejection(limit: str) -> None:
    """Count a request that a limit has rejected. Raises no exceptions."""
    try:
        REJECTED.labels(limit).inc()
    except Exception:
        _report("a rejected request is missing in the metrics")


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status of a response; 499 if the client or the server has cancelled it."""
    if error is None:
        return 200
    if isinstance(error, asyncio.CancelledError):
        return 499
    return error.status if isinstance(error, TensorwireError) else 500


def exposition() -> tuple[bytes, str]:
    registry = prometheus_client.REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        registry = prometheus_client.CollectorRegistry()
        MultiProcessCollector(registry)
    return prometheus_client.generate_latest(registry), prometheus_client.CONTENT_TYPE_LATEST
