"""Scaling out: our application as two replicas of Ray Serve, our requests in Ray's store."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from interop import ray_setup
from interop.missing import refuse

DRIVER = Path(__file__).with_name("ray_driver.py")
DRIVER_SECONDS = 200.0  # more than its own alarm
STOP_SECONDS = 20.0


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver saw; without an environment to run it in, a skip, or in CI a failure."""
    folder = Path(os.environ.get("TENSORWIRE_RAY") or ray_setup.DEFAULT_FOLDER).resolve()
    if not ray_setup.is_ready(folder):
        command = shlex.join([sys.executable, ray_setup.__file__, str(folder)])
        refuse("ray", f"Ray is not installed, or with an older tensorwire; to install: {command}")
    work = tmp_path_factory.mktemp("ray")
    run([str(ray_setup.interpreter(folder)), str(DRIVER), str(work / "result.json")], work)
    result: dict[str, Any] = json.loads((work / "result.json").read_text())
    return result


def run(command: list[str], folder: Path) -> None:
    """Run the command to its end; it and its children are gone afterwards."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    log = folder / "log"
    with log.open("w") as output:
        driver = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        driver.wait(DRIVER_SECONDS)
    finally:
        stop(driver)
    assert driver.returncode == 0, log.read_text()


def stop(driver: subprocess.Popen[bytes]) -> None:
    """Let it shut Ray down; then end what is left of its session's group."""
    if driver.poll() is None:
        driver.terminate()
        with suppress(subprocess.TimeoutExpired):
            driver.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(STOP_SECONDS)


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
