"""The fuzz targets without a fuzzer: seeds, saved inputs, and random mutations of them."""

from __future__ import annotations

import random

import pytest

from support.requirements import package
from support.scale import scaled

package("pyarrow")
package("tritonclient.grpc")

from fuzz import grpc_judge, mutations, seeds  # noqa: E402 - they import these packages
from fuzz.targets import TARGETS  # noqa: E402

N_MUTATED = scaled(400)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target: str) -> None:
    inputs = seeds.seeds(target)
    assert len(inputs) > 20
    for data in inputs:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_seeds(target: str) -> None:
    inputs, chooser = seeds.seeds(target), random.Random(target)

    def bytewise(data: bytes, max_nbytes: int) -> bytes:
        at = chooser.randrange(len(data) + 1)
        return data[:at] + chooser.randbytes(1) + data[at + chooser.randrange(2) :]

    for seed in range(N_MUTATED):
        data = chooser.choice(inputs)
        TARGETS[target](mutations.mutated(target, data, seeds.MAX_NBYTES, seed, bytewise))


def test_random_grpc_messages() -> None:
    """Protobuf reads them likewise. Each result occurs, so that both readers read each kind."""
    results = grpc_judge.campaign(scaled(5000), seed=0)
    assert min(results.values()) > scaled(50)
    assert set(results) == {
        f"{kind}: {result}"
        for kind in ("request", "response", "stream", "metadata")
        for result in ("malformed", "accepted", "against a rule", "error")
        if (kind, result) != ("metadata", "against a rule")
        if kind == "stream" or result != "error"
    }
