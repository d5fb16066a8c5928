"""Scaling out: our application as two replicas of Ray Serve, our requests in Ray's store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interop import programs

DRIVER = Path(__file__).with_name("ray_driver.py")
DRIVER_SECONDS = 200.0  # more than its own alarm


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver saw; without an environment to run it in, a skip, or in CI a failure."""
    python = programs.interpreter("ray")
    work = tmp_path_factory.mktemp("ray")
    programs.run([str(python), str(DRIVER), str(work / "result.json")], work, DRIVER_SECONDS)
    result: dict[str, Any] = json.loads((work / "result.json").read_text())
    return result


# --- Ray Serve -------------------------------------------------------------------------------


def test_numbers_and_bytes_come_back(seen: dict[str, Any]) -> None:
    served = seen["served"]
    assert served["FP32"] == [[0, 1, 2], [3, 4, 5]]
    assert served["BYTES"] == ["a cat", "ein Hündchen", ""]
    assert served["binary"] == [True, True]


def test_errors_come_back(seen: dict[str, Any]) -> None:
    """With their status and text, and without a trace of the exception."""
    assert seen["served"]["errors"] == {
        "fail": [500, {"error": "model 'fail' failed"}],
        "who": [400, {"error": "unexpected input 'words': the model takes ['x']"}],
        "nothing": [404, {"error": "model 'nothing' is not known"}],
    }


def test_both_replicas_answer(seen: dict[str, Any]) -> None:
    pids = seen["served"]["pids"]
    assert len(pids) == 2
    assert seen["served"]["own pid"] not in pids


def test_the_readmes_example(seen: dict[str, Any]) -> None:
    assert seen["README"] == [["ASGIIngressDeployment", 2]]


def test_nobody_else_can_reach_it(seen: dict[str, Any]) -> None:
    """Ray's servers run code for those who ask: none listens outside the loopback."""
    assert seen["exposed"] == []


# --- the object store ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["task", "actor", "argument"])
def test_a_decoded_request_is_read_where_it_is_stored(seen: dict[str, Any], how: str) -> None:
    """Whoever gets it reads the store's shared memory: nothing was copied out of it."""
    there = seen["stored"][how]
    assert all("plasma" in file for file in there["memory"]), there["memory"]
    assert there["writable"] == [False, False]
    assert there["aligned"]
    assert there["sum"] == sum(range(1 << 20))
    assert there["length"] == 1 << 20
