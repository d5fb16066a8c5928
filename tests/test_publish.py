"""Which results of the benchmarks are published."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.requirements import package

package("pytest_benchmark")

from benchmarks import machine, measure, publish, report  # noqa: E402

pytestmark = pytest.mark.no_sanitizers(reason="it tests Python code")


def test_results_with_a_problem_are_rejected_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = tmp_path / "measured"
    measured.mkdir()
    good = report.Results("python -m benchmarks", "2026-01-01", "a machine")
    (measured / "codec.json").write_text(good.text())
    good.problems.append("it is a quick run")
    (measured / "json.json").write_text(good.text())
    monkeypatch.setattr(publish, "MEASURED", measured)
    monkeypatch.setattr(sys, "argv", ["publish"])
    monkeypatch.setattr(Path, "write_bytes", lambda path, _: pytest.fail(f"{path} is written"))
    with pytest.raises(SystemExit, match="json: it is a quick run"):
        publish.main()
    assert {path.name for path in measured.iterdir()} == {"codec.json", "json.json"}


def test_a_busy_process_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BUSY_SECONDS", 0.2)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        found = machine.busy_process()
        busy.kill()
    assert "of a CPU" in found


def test_a_change_that_is_not_committed_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # it may be in a checkout
    assert machine.uncommitted_changes() == f"{tmp_path} is not a git checkout"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    source = tmp_path / "src" / "codec.pyx"
    source.parent.mkdir()
    source.write_text("one")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    (tmp_path / "README.md").write_text("a table")
    assert machine.uncommitted_changes() == ""
    source.write_text("two")
    assert "src/codec.pyx" in machine.uncommitted_changes()


def test_decoding_that_copies_an_array_is_marked() -> None:
    body = bytes(64)
    view = np.frombuffer(body, np.float32, 8, 32).reshape(2, 4)
    assert not measure.has_copies([view, np.array(["one", "two"], object)], body)
    assert measure.has_copies([view, view.copy()], body)
    row = {"table": "decode", "median": 2e-3, "iqr": 4e-5, "rounds": 3}
    assert report.cell({**row, "is_copied": False}, None) == "2 ms ±1%"
    assert report.cell({**row, "is_copied": True}, None) == "2 ms ±1%, copied"


def test_losses_of_time_do_not_include_those_of_memory() -> None:
    slower = {"median": 2e-3, "iqr": 0.0, "rounds": 1}
    faster = {**slower, "median": 1e-3}
    rows: dict[str, dict[str, report.Row]] = {
        "time": {"tensorwire": slower, "orjson": faster},
        "per byte": {
            "tensorwire": {**slower, "per_byte": 1.0},
            "orjson": {**faster, "per_byte": 2},
        },
        "bytes": {
            "tensorwire": {**slower, "peak_nbytes": 1},
            "orjson": {**faster, "peak_nbytes": 2},
        },
    }
    table = report.Table("read", [], rows)
    assert report.losses({"read": table}) == [(0.5, "read, time", "2 ms", "orjson: 1 ms")]
