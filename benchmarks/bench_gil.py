"""From how many elements on a scan should let other threads run.

A scan holds the GIL or lets go of it, alone or beside a thread that spins in Python. A scan that
holds it keeps the others waiting for as long as it takes; one that lets go waits for up to a switch
interval (5 ms) to get it back. The number chosen takes about 1 ms.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw
from tensorwire import _elements

from .measure import measuring
from .workloads import texts

SIZES = [1 << 14, 1 << 17, 1 << 19, 1 << 21]
ALWAYS, NEVER = 0, 1 << 62


@pytest.fixture(params=["alone", "beside a busy thread"])
def company(request: pytest.FixtureRequest) -> Iterator[str]:
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            sum(range(100))

    thread = threading.Thread(target=spin)
    if request.param != "alone":
        thread.start()
    yield str(request.param)
    done.set()
    if thread.ident is not None:
        thread.join()


@pytest.mark.parametrize("release_from", [NEVER, ALWAYS], ids=["GIL held", "GIL released"])
@pytest.mark.parametrize("n_elements", SIZES)
def test_scan(
    benchmark: BenchmarkFixture, n_elements: int, release_from: int, company: str
) -> None:
    wire = tw.encode_bytes(texts(n_elements, 0, 40))
    contender = "GIL held" if release_from == NEVER else "GIL released"
    workload = f"{n_elements:,} elements, {company}"
    before = _elements.set_release_gil_from(release_from)
    try:
        with measuring(benchmark, "scan", workload, contender):
            benchmark(tw.decode_bytes, wire, n_elements)
    finally:
        _elements.set_release_gil_from(before)
