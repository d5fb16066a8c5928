"""Ray Serve: the application as two replicas, and requests in Ray's object store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interop import programs

DRIVER = Path(__file__).with_name("ray_driver.py")
DRIVER_SECONDS = 200.0  # more than ALARM_SECONDS of the driver


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the driver's observations. If Ray is not installed, skip, or fail in CI."""
    python = programs.interpreter("ray")
    work = tmp_path_factory.mktemp("ray")
    programs.run([str(python), str(DRIVER), str(work / "result.json")], work, DRIVER_SECONDS)
    result: dict[str, Any] = json.loads((work / "result.json").read_text())
    return result


# --- Ray Serve -------------------------------------------------------------------------------


def test_numeric_and_bytes_arrays(seen: dict[str, Any]) -> None:
    served = seen["served"]
    assert served["FP32"] == [[0, 1, 2], [3, 4, 5]]
    assert served["BYTES"] == ["a cat", "ein Hündchen", ""]
    assert served["binary"] == [True, True]


def test_error_responses(seen: dict[str, Any]) -> None:
    """The responses have a status and a message, and no traceback."""
    assert seen["served"]["errors"] == {
        "fail": [500, {"error": "model 'fail' failed"}],
        "who": [400, {"error": "unexpected input 'words': the model takes ['x']"}],
        "nothing": [404, {"error": "model 'nothing' is not known"}],
    }


def test_both_replicas_answer(seen: dict[str, Any]) -> None:
    pids = seen["served"]["pids"]
    assert len(pids) == 2
    assert seen["served"]["own pid"] not in pids


def test_manual_example(seen: dict[str, Any]) -> None:
    assert seen["manual"] == ["ASGIIngressDeployment", 2]


def test_manual_example_with_routes(seen: dict[str, Any]) -> None:
    status, error = seen["routes"]["error"]
    assert (seen["routes"]["equal"], seen["routes"]["binary"], status) == (True, True, 400)
    assert "an input and a parameter with the name 'x'" in error


def test_ray_listens_only_on_the_loopback(seen: dict[str, Any]) -> None:
    """Ray's servers run code for their clients."""
    assert seen["exposed"] == []


# --- the object store ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["task", "actor", "argument"])
def test_request_in_the_object_store_is_not_copied(seen: dict[str, Any], how: str) -> None:
    """Tasks and actors read the shared memory of the store."""
    stored = seen["stored"][how]
    assert all("plasma" in file for file in stored["memory"]), stored["memory"]
    assert stored["writable"] == [False, False]
    assert stored["aligned"]
    assert stored["sum"] == sum(range(1 << 20))
    assert stored["length"] == 1 << 20
