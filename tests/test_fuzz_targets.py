"""The fuzz targets without a fuzzer: seeds, saved inputs, and random bytes."""

from __future__ import annotations

import random

import pytest

from support.requirements import package
from support.scale import scaled

package("pyarrow")
package("tritonclient.grpc")

from fuzz.seeds import seeds  # noqa: E402 - it imports these packages
from fuzz.targets import PROPERTIES, RAW  # noqa: E402


@pytest.mark.parametrize("target", RAW)
def test_seeds(target: str) -> None:
    inputs, chooser = seeds(target), random.Random(target)
    assert len(inputs) > 20
    for data in inputs:
        RAW[target](data)
    for _ in range(scaled(300)):
        data = chooser.choice(inputs)
        at = chooser.randrange(len(data) + 1)
        RAW[target](data[:at] + chooser.randbytes(1) + data[at + chooser.randrange(2) :])


@pytest.mark.parametrize("target", PROPERTIES)
def test_random_choices(target: str) -> None:
    """They differ more than the examples that hypothesis chooses for the same property."""
    chooser = random.Random(target)
    for _ in range(scaled(400)):
        PROPERTIES[target](chooser.randbytes(4000))
