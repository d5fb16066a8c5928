"""The tables of the benchmarks: their text, and that the pages have the stored results."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import report

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")


def row(contender: str, median: float, table: str = "decode") -> dict[str, Any]:
    place = {"table": table, "workload": "w", "contender": contender}
    return {"median": median, "iqr": median / 10, "rounds": 5, **place}


def tables(*rows: dict[str, Any], notes: tuple[dict[str, Any], ...] = ()) -> report.Tables:
    results = report.Results("python -m benchmarks", "2026-01-02", "a CPU")
    results.rows, results.notes = list(rows), list(notes)
    return report.tables_of({"codec": results})


@pytest.mark.parametrize("page", report.PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_pages_have_the_stored_results(page: Any) -> None:
    found = report.tables_of(report.read_results())
    text = page.read_text()
    assert report.with_regions(text, report.PAGES[page], found) == text


def test_cells_have_spread_and_ratio() -> None:
    (table,) = tables(row("tensorwire", 1e-6), row("by hand", 2e-6)).values()
    lines = report.markdown(table, table.contenders()).splitlines()
    assert lines[2] == "| w | 1 us ±5% | 2 us ±5% (2x) |"


def test_wrong_result_has_no_number() -> None:
    place = {"table": "decode", "workload": "w", "contender": "pickle 5"}
    note = {**place, "kind": "wrong result", "text": "array 'x' differs"}
    other = {**row("pickle 5", 1e-6), "workload": "other"}
    (table,) = tables(row("tensorwire", 1e-6), other, notes=(note,)).values()
    assert "| w | 1 us ±5% | wrong result |" in report.markdown(table, table.contenders())
    assert table.remarks() == "- pickle 5, wrong result: w (array 'x' differs)"


def test_rates_have_a_ratio_to_the_bare_app() -> None:
    place = {"table": report.RATES, "workload": "32 floats, 8 connections", "rounds": 3}
    bare = {**place, "contender": "bare app, uvicorn", "rate": 8000.0, "ratio": 1.0}
    ours = {**place, "contender": "tensorwire, uvicorn", "rate": 12.34, "ratio": 0.0015}
    text = report.rates_headline(tables(bare, ours))
    assert "| 32 floats | 8,000 (1.00) | 12.3 (0.00) |" in text


def loss_lines(*rows: dict[str, Any]) -> list[str]:
    lines = report.losses_text()(tables(*rows)).splitlines()
    return lines[2 : lines.index("")]


def test_losses_are_listed() -> None:
    rows = [row("tensorwire", 1e-6), row("tritonclient", 2e-6), row("by hand", 9e-7)]
    assert loss_lines(*rows) == ["| decode, w | 1 us | by hand: 900 ns (0.9x) |"]


def test_losses_of_a_package_on_tensorwire_are_listed() -> None:
    names = {"mlserver, gRPC raw": 3e-6, "mlserver, gRPC raw, on tensorwire": 5e-6}
    echoes = {"kserve, KServe": 0.5, "kserve on tensorwire, KServe on tensorwire": 1.0}
    rows = [row(name, median) for name, median in {"tensorwire": 1e-6, **names}.items()]
    rows += [row(name, median, "HTTP echo") for name, median in echoes.items()]
    assert loss_lines(*rows) == [
        "| HTTP echo, w | kserve on tensorwire, KServe on tensorwire: 1 s "
        "| kserve, KServe: 500 ms (0.5x) |",
        "| decode, w | mlserver, gRPC raw, on tensorwire: 5 us | mlserver, gRPC raw: 3 us (0.6x) |",
    ]


def test_regions_without_results_are_unchanged() -> None:
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\n<!-- begin y -->\nkept\n<!-- end y -->"
    regions = {"x": lambda tables: r"new \1", "y": lambda tables: ""}
    assert report.with_regions(page, regions, {}) == page.replace("old", r"new \1")
    with pytest.raises(ValueError, match="no region 'z'"):
        report.with_regions(page, {"z": regions["x"]}, {})


def test_results_have_the_measurements_of_pytest_benchmark() -> None:
    place = {"table": "t", "workload": "w"}
    stats = {"median": 1.23456e-6, "iqr": 1e-8, "rounds": 7, "mean": 1.0}
    rates = {"a": {"rate": 10.0, "rounds": 3}}
    benchmarks = [
        {"extra_info": {**place, "contender": "a", "nbytes": 8}, "stats": stats},
        {"extra_info": {**place, "contenders": rates}, "stats": stats},
    ]
    cpu = {"brand_raw": "a CPU", "count": 2}
    output = {
        "machine_info": {"cpu": cpu, "machine": "x86_64", "system": "Linux", "node": "secret"},
        "datetime": "2026-01-02T03:04:05+00:00",
        "benchmarks": benchmarks,
        "notes": [{**place, "contender": "b", "kind": "not installed", "text": "b is missing"}],
        "versions": {"numpy": "2"},
    }
    results = report.merge({"": output}, "python -m benchmarks", {})
    assert results.rows == [
        {"median": 1.235e-6, "iqr": 1e-8, "rounds": 7, **place, "contender": "a", "nbytes": 8},
        {"rate": 10.0, "rounds": 3, **place, "contender": "a"},
    ]
    assert results.left_out == {"b": "b is missing"}
    assert (results.date, results.machine) == ("2026-01-02", "a CPU, 2 CPUs, Linux")
    assert "secret" not in results.text()
