"""The harness: what a contender does never stops a run, and a run that stops writes nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments, report, results, servers, suites, table, workloads

ROOT = Path(__file__).parent.parent

BENCH = """
import os, time
import pytest
from benchmarks.measure import measure, measuring
from benchmarks.missing import Missing, Unsupported

pytestmark = pytest.mark.no_sanitizers(reason="it tests the benchmarks")

def missing(): raise Missing("there is none")
def cannot(): raise Unsupported("it has no strings")
def fails(): raise RuntimeError("out of order")
def wrong(): return 2
def crashes(): os.abort()
def hangs(): time.sleep(60)
def good(): return 1

def right(found):
    assert found == 1, "it is not what was sent"

WAYS = [missing, cannot, fails, wrong, crashes, hangs, good]

@pytest.mark.parametrize("contender", [way.__name__ for way in WAYS])
def test_it(benchmark, contender):
    way = next(way for way in WAYS if way.__name__ == contender)
    with measuring(benchmark, "table", "workload", contender):
        measure(benchmark, right, way)
"""


def test_contenders_do_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conftest.py").write_text("from benchmarks.conftest import *\n")
    (tmp_path / "bench_it.py").write_text(BENCH)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    monkeypatch.setitem(suites.SUITES, "it", tmp_path / "bench_it.py")
    monkeypatch.setattr(suites, "STALL_SECONDS", 10.0)
    heard: list[str] = []
    outcome = suites.run_suite(
        "it", environments.HERE, is_quick=True, progress=lambda _, __, what: heard.append(what)
    )
    assert [row["contender"] for row in outcome.rows] == ["good"], outcome
    assert {note["contender"]: note["kind"] for note in outcome.notes} == {
        **{kind: kind for kind in ("missing", "cannot", "fails", "wrong", "crashes")},
        "hangs": "crashes",
    }
    assert not outcome.troubles
    assert "test_it[good]" in heard
    assert outcome.versions["numpy"]


def test_an_interrupted_run_writes_nothing(tmp_path: Path) -> None:
    pages = {page: page.read_text() for page in report.PAGES}
    command = [sys.executable, "-m", "benchmarks", "--quick", "--no-peers", "encode"]
    process = subprocess.Popen(
        [*command, "--results", str(tmp_path / "results")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "[1/1] encode ...\n"
    time.sleep(1)  # into the first measurements, where the machine is fast enough
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "interrupted: nothing was written" in errors
    assert process.returncode == 1
    assert {page: page.read_text() for page in report.PAGES} == pages
    assert not (tmp_path / "results").exists()


def row(contender: str, median: float, **more: Any) -> dict[str, Any]:
    place = {"table": "decode", "workload": "w", "contender": contender}
    return {**place, "median": median, "iqr": median / 10, "rounds": 5, **more}


def measured() -> results.Results:
    found = results.Results("python -m benchmarks", "2026-01-02", "a CPU")
    found.rows = [row("tensorwire", 1e-6), row("tritonclient", 2e-6), row("by hand", 9e-7)]
    note = {"table": "decode", "workload": "w", "contender": "pickle 5", "kind": "wrong"}
    found.notes = [{**note, "text": "y is not what was sent"}]
    found.rows.append({**row("pickle 5", 1e-6), "workload": "other"})
    return found


def test_what_is_wrong_has_no_number() -> None:
    (made,) = table.tables_of(measured())
    lines = table.markdown(made, ["tensorwire", "tritonclient", "pickle 5"]).splitlines()
    assert lines[2] == "| w | 1 us ±5% | 2 us ±5% (2x) | wrong |"
    assert made.remarks() == ["- pickle 5 wrong: w (y is not what was sent)"]


def test_rates_have_their_ratio() -> None:
    found = results.Results("python -m benchmarks throughput", "2026-01-02", "a CPU")
    for n_connections in (1, 8):
        place = {"table": "requests per second", "workload": f"32 floats, {n_connections} at once"}
        base = {"contender": "bare app, uvicorn", "rate": 8000.0, "ratio": 1.0, "rounds": 3}
        ours = {"contender": "tensorwire, uvicorn", "rate": 12.34, "ratio": 0.0015, "rounds": 3}
        found.rows += [{**place, **base}, {**place, **ours}]
    measured = {"throughput": found}
    assert "| 32 floats, 1 at once | 8,000 (1.00) | 12.3 (0.00) |" in report.rates(measured)
    lines = report.rates(measured, report.AT_ONCE).splitlines()
    assert [line.split(" |")[0] for line in lines[2:4]] == ["| 32 floats", ""]
    assert "32 floats" not in report.losses_text(measured)


def echo(contender: str, median: float) -> dict[str, Any]:
    return {**row(contender, median), "table": "HTTP echo", "workload": "64 MB FP32"}


def test_each_server_has_a_table_beside_ours() -> None:
    found = results.Results("python -m benchmarks http", "2026-01-02", "a CPU")
    found.rows = [echo("tensorwire, uvicorn", 0.2), echo("tritonclient, Triton", 0.8)]
    found.rows += [echo("tensorwire, KServe on tensorwire", 0.4), echo("limit (raw)", 0.1)]
    note = {"table": "HTTP echo", "workload": "64 MB FP32", "contender": "kserve, KServe"}
    found.notes = [{**note, "kind": "cannot", "text": "not tried"}]
    text = report.by_server({"http": found})
    assert "| 64 MB FP32 | 200 ms ±5% | 100 ms ±5% (0.5x) |" in text
    assert "| 64 MB FP32 | 200 ms ±5% | 800 ms ±5% (4x) |" in text
    assert "| 64 MB FP32 | 200 ms ±5% | 400 ms ±5% (2x) |" in text
    assert "- kserve, KServe cannot: 64 MB FP32 (not tried)" in text
    echoes = report.echoes({"http": found})
    assert "| 64 MB FP32 | 200 ms ±5% | 100 ms ±5% (0.5x) | 800 ms ±5% (4x) |" in echoes


def test_a_server_that_does_not_start_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def broken() -> Any:
        tries.append(1)
        raise RuntimeError("it did not start")

    monkeypatch.setitem(servers.SERVERS, "broken", broken)
    with servers.Servers() as started:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="did not start"):
                started.port("broken")
    assert len(tries) == 1


def test_losses_are_said() -> None:
    text = report.losses_text({"decode": measured()})
    assert "| decode, w | 1 us | by hand: 900 ns (0.9x) |" in text
    assert "tritonclient" not in text


def test_losses_of_a_package_with_us_in_it_are_said() -> None:
    found = results.Results("python -m benchmarks", "2026-01-02", "a CPU")
    found.rows = [row("tensorwire", 1e-6), row("kserve", 2e-6), row("kserve on tensorwire", 4e-6)]
    found.rows += [row("mlserver, gRPC raw", 3e-6), row("mlserver, gRPC raw, on tensorwire", 5e-6)]
    http = results.Results("python -m benchmarks http", "2026-01-02", "a CPU")
    http.rows = [echo("tensorwire, uvicorn", 0.1), echo("kserve, KServe", 0.5)]
    http.rows += [echo("kserve on tensorwire, KServe on tensorwire", 1.0)]
    lines = report.losses_text({"decode": found, "http": http}).splitlines()
    assert lines[2:5] == [
        "| decode, w | kserve on tensorwire: 4 us | kserve: 2 us (0.5x) |",
        "| HTTP echo, 64 MB FP32 | kserve on tensorwire, KServe on tensorwire: 1 s "
        "| kserve, KServe: 500 ms (0.5x) |",
        "| decode, w | mlserver, gRPC raw, on tensorwire: 5 us | mlserver, gRPC raw: 3 us (0.6x) |",
    ]
    assert lines[5] == ""


def test_regions() -> None:
    page = (
        "a\n<!-- begin one -->\nold\n<!-- end one -->\n<!-- begin two -->\nkept\n<!-- end two -->"
    )
    regions: dict[str, report.Region] = {
        "one": (("decode",), lambda _: r"new \1"),
        "two": (("http",), lambda _: "not measured"),
    }
    found = report.rendered(page, regions, {"decode": measured()})
    assert found == page.replace("old", r"new \1")
    with pytest.raises(ValueError, match="0 regions 'three'"):
        report.rendered(page, {"three": regions["one"]}, {"decode": measured()})


def test_the_pages_have_their_regions() -> None:
    for page, regions in report.PAGES.items():
        named = re.findall(r"<!-- begin (.*?) -->", page.read_text())
        assert sorted(named) == sorted(regions)


def test_results_come_back(tmp_path: Path) -> None:
    (tmp_path / "decode.json").write_text(measured().text())
    assert results.read(tmp_path) == {"decode": measured()}


def test_what_is_committed_names_no_machine() -> None:
    for path in results.FOLDER.glob("*.json"):
        text = path.read_text()
        assert len(text) < 200_000
        assert str(ROOT) not in text


def test_the_quick_workloads_exist() -> None:
    assert {*workloads.WORKLOADS, *workloads.SIZES} >= workloads.QUICK
    assert {"1 KB", "1 GB"} <= {*workloads.SIZES}
    assert [workloads.size_of(name) for name in workloads.SIZES] == [4**n for n in range(5, 16)]
