"""The tables of the benchmarks, that the pages have the stored results, and rates over HTTP."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from benchmarks import report, wrk
from benchmarks.servers import Server, cpu_seconds

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


def test_headline_plot_has_few_measured_lines_and_a_transparent_background() -> None:
    table = report.tables_of(report.read_results())["by size: decode"]
    assert len(report.HEADLINE_LINES) <= 5
    assert set(report.HEADLINE_LINES) <= set(table.contenders())
    picture = (report.PLOTS / "headline.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture[25] == 6  # the colour type in IHDR: RGB with alpha


def test_cells_have_spread_and_ratio() -> None:
    (table,) = tables(row("tensorwire", 1e-6), row("by hand", 2e-6)).values()
    lines = report.markdown(table, table.contenders()).splitlines()
    assert lines[2] == "| w | 1 us ±5% | 2 us ±5% (2x) |"


def pair(ratio: float) -> list[dict[str, Any]]:
    """Return the rows of a workload that was measured in turns."""
    names = {"kserve on tensorwire": 2e-6, "kserve": 1e-6}
    ours, alone = (row(name, median, "integration: kserve") for name, median in names.items())
    return [{**ours, "ratio": ratio}, alone]


def test_cells_have_the_ratio_that_was_measured_in_turns() -> None:
    (table,) = tables(*pair(1.5)).values()
    lines = report.markdown(table, table.contenders()).splitlines()
    assert lines[2] == "| w | 2 us ±5% | 1 us ±5% (1.5x) |"


def test_losses_have_the_ratio_that_was_measured_in_turns() -> None:
    assert loss_lines(*pair(1.5)) == []
    assert loss_lines(*pair(0.75)) == [
        "| integration: kserve, w | kserve on tensorwire: 2 us | kserve: 1 us (0.75x) |"
    ]


def small(workload: str, ratio: float) -> tuple[dict[str, Any], dict[str, Any]]:
    alone, ours = (row(name, 1e-6, report.SMALL) for name in ("alone", "on tensorwire"))
    return {**alone, "workload": workload}, {**ours, "workload": workload, "ratio": ratio}


def test_small_messages_have_a_paired_ratio_and_the_smallest_is_stated() -> None:
    rows = [*small("kserve: request", 0.5), *small("mlserver: a", 1.5), *small("mlserver: b", 0.97)]
    found = tables(*rows)
    assert "| mlserver: b | 1 us | 1 us (0.97x) |" in report.small_messages(found)
    assert not list(report.losses(found))
    assert report.smallest_ratios(found) == ""
    text = report.smallest_ratios(tables(*rows, *small("tritonclient: c", 1.25)))
    expected = "1.25 (tritonclient, *c*), 0.50 (kserve, *request*) and 0.97 (mlserver, *b*)."
    assert text.endswith(f": {expected}")


def test_speeds_on_small_messages_are_a_table_for_each_kind() -> None:
    found = tables(
        *small("kserve: read, data, 1 x 4 B", 0.97),
        *small("kserve: read, data, 1 x 4 KB", 1.25),
        *small("kserve: write, 1 x 4 KB", 12.0),
        *small("kserve: read, data, BYTES, 16 bytes", 2.0),
    )
    first, second, source = report.speeds_by_size(found, "kserve")
    assert first.splitlines() == [
        "| speed on small messages, tensors x bytes of FP32 | 1 x 4 B | 1 x 4 KB |",
        "|---|---|---|",
        "| read, data | 0.97x | 1.2x |",
        "| write |  | 12x |",
    ]
    assert second.splitlines()[2:] == ["| read, data | 2x |"]
    assert "python -m benchmarks" in source
    with pytest.raises(ValueError, match="size of 'read' is unknown"):
        list(report.speeds_by_size(tables(*small("kserve: read", 1.0)), "kserve"))


def test_wrong_result_has_no_number() -> None:
    place = {"table": "decode", "workload": "w", "contender": "pickle 5"}
    note = {**place, "kind": "wrong result", "text": "array 'x' differs"}
    other = {**row("pickle 5", 1e-6), "workload": "other"}
    (table,) = tables(row("tensorwire", 1e-6), other, notes=(note,)).values()
    assert "| w | 1 us ±5% | wrong result |" in report.markdown(table, table.contenders())
    assert table.remarks() == "- pickle 5, wrong result: w (array 'x' differs)"


def test_rates_have_a_ratio_to_the_bare_app() -> None:
    bare = rate_row("bare app, uvicorn", 8000.0, 1.0)
    ours = rate_row("tensorwire, uvicorn", 12.34, 0.0015)
    text = report.rates_headline(tables(bare, ours))
    assert "| 32 floats | 8,000 (1.00) | 12.3 (0.00) |" in text


def rate_row(contender: str, rate: float, ratio: float, **other: float) -> dict[str, Any]:
    place = {"table": report.RATES, "workload": "32 floats, 8 connections", "rounds": 3}
    return {**place, "contender": contender, "rate": rate, "ratio": ratio, **other}


def test_rates_have_latencies_and_cpu_times() -> None:
    measured = {"p50_seconds": 2.5e-4, "p99_seconds": 1.25e-3, "cpu_seconds": 3.1e-5}
    text = report.rates(tables(rate_row("tensorwire serve", 20000.0, 1.5, **measured)))
    assert [line for line in text.splitlines() if "32 floats" in line] == [
        "| 32 floats, 8 connections | 20,000 (1.50) |",
        "| 32 floats, 8 connections | 250 us / 1.25 ms |",
        "| 32 floats, 8 connections | 31 us |",
    ]
    assert "| latency, p50 / p99 | tensorwire serve |" in text
    assert "| CPU time per request | tensorwire serve |" in text


def test_rates_without_latencies_are_one_table() -> None:
    text = report.rates(tables(rate_row("tensorwire serve", 20000.0, 1.5)))
    assert "20,000 (1.50)" in text
    assert "latency" not in text
    assert "CPU time" not in text


def goal_lines(*rows: dict[str, Any]) -> list[str]:
    lines = report.http_goals(tables(*rows)).splitlines()
    return [line for line in lines if not line.endswith("|  |")][2:-2]


def test_goals_for_servers_are_ratios_of_rates() -> None:
    rows = [
        rate_row("bare app, uvicorn", 9000.0, 1.0),
        rate_row("tensorwire serve", 12000.0, 1.3),
        rate_row("tensorwire, granian", 3000.0, 0.4),
        rate_row("tensorwire, granian RSGI", 6000.0, 0.6),
    ]
    place = "requests per second, 32 floats, 8 connections"
    assert goal_lines(*rows) == [
        f"| {place} | tensorwire serve | bare app, uvicorn | 1.1 | 1.4 | 1.30 |",
        f"| {place} | tensorwire, granian RSGI | tensorwire, granian | 1.4 | 1.8 | 1.50 |",
    ]


def test_goals_for_clients_are_ratios_of_speeds() -> None:
    medians = {report.OURS_HTTP: 0.05, "tritonclient, tensorwire serve": 0.3, "limit (x)": 0.04}
    rows = [
        {**row(name, median, "HTTP echo"), "workload": "64 MB FP32"}
        for name, median in medians.items()
    ]
    ours, place = report.OURS_HTTP, "HTTP echo, 64 MB FP32"
    assert goal_lines(*rows) == [
        f"| {place} | {ours} | tritonclient, tensorwire serve | 5.0 | 8.0 | 6.00 |",
        f"| {place} | {ours} | limit | 0.7 | 0.85 | 0.80 |",
    ]


def test_http_regions_without_results_of_our_server_are_empty() -> None:
    found = tables(row("tensorwire, uvicorn", 1e-3, "HTTP echo"), row("tensorwire", 1e-6))
    assert report.http_goals(found) == ""
    assert report.echoes(found) == ""
    assert report.echoes_by_server(found) == ""
    assert report.plot_http(None, found) is None


def test_headline_has_the_echo_of_tensorwire_serve() -> None:
    for server, is_shown in (("tensorwire serve", True), ("uvicorn", False)):
        echo = row(f"tensorwire, {server}", 0.02, "HTTP echo")
        text = report.headline(tables(row("tensorwire", 1e-6), {**echo, "workload": "16 MB FP32"}))
        assert ("| HTTP echo of 16 MB FP32, tensorwire server | 20 ms ±5% |" in text) is is_shown


def test_servers_are_compared_with_ours_by_the_same_client() -> None:
    medians = {
        report.OURS_HTTP: 4e-3,
        "tritonclient, tensorwire serve": 3e-3,
        "tensorwire, uvicorn": 1e-3,
        "tensorwire, Triton": 2e-3,
        "tritonclient, Triton": 2.5e-3,
    }
    rows = [row(name, median, "HTTP echo") for name, median in medians.items()]
    assert loss_lines(*rows) == [
        "| HTTP echo, w | 4 ms | tensorwire, Triton: 2 ms (0.5x) |",
        "| HTTP echo, w | 4 ms | tritonclient, tensorwire serve: 3 ms (0.75x) |",
        "| HTTP echo, w | tritonclient, tensorwire serve: 3 ms | tritonclient, Triton: 2.5 ms "
        "(0.83x) |",
    ]


def loss_lines(*rows: dict[str, Any]) -> list[str]:
    return rows_of(report.losses_text(tables(*rows)))


def rows_of(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[2 : lines.index("")]


WRK = """\
Running 2s test @ http://127.0.0.1:1/v2/models/identity_fp32/infer
  1 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   914.51ms  256.61ms   1.37s    72.73%
    Req/Sec    16.00     27.40    57.00     75.00%
  Latency Distribution
     50%  778.19ms
     75%    1.16s 
     90%    1.24s 
     99%    1.37s 
  10 requests in 2.04s, 857.86MB read
{error}Requests/sec:      5.38
Transfer/sec:    419.53MB
"""  # noqa: W291 - wrk pads its units


def test_output_of_wrk_is_parsed() -> None:
    turn = wrk.finished_turn(WRK.format(error=""), 0.5)
    assert turn == pytest.approx((5.38, 0.77819, 1.37, 0.05))


@pytest.mark.parametrize(
    "error",
    [
        "  Non-2xx or 3xx responses: 3\n",
        "  Socket errors: connect 0, read 1, write 0, timeout 0\n",
    ],
    ids=["status", "socket"],
)
def test_failed_requests_have_no_rate(error: str) -> None:
    with pytest.raises(wrk.WrongResponse, match=error.strip()):
        wrk.finished_turn(WRK.format(error=error), 0.5)


# The child uses CPU time until the parent's input ends. Both stay alive until the test ends them.
BUSY_CHILD = """\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


def test_cpu_time_includes_child_processes() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        server = Server(0, process.pid)
        start = cpu_seconds(server)
        deadline = time.monotonic() + 60
        while cpu_seconds(server) < start + 0.3 and time.monotonic() < deadline:
            time.sleep(0.02)
        used = cpu_seconds(server) - start
        process.stdin.close()
    assert used >= 0.3
    assert cpu_seconds(Server(0, process.pid)) == 0


def test_losses_are_listed() -> None:
    rows = [row("tensorwire", 1e-6), row("tritonclient", 2e-6), row("by hand", 9e-7)]
    assert loss_lines(*rows) == ["| decode, w | 1 us | by hand: 900 ns (0.9x) |"]


def test_short_list_of_losses_has_one_row_of_each_table() -> None:
    rows = [
        row(contender, median, table)
        for table in ("decode", "encode")
        for contender, median in (("tensorwire", 1e-6), ("by hand", 9e-7), ("kserve", 8e-7))
    ]
    assert rows_of(report.worst_losses(tables(*rows))) == [
        "| decode, w | 1 us | kserve: 800 ns (0.8x) |",
        "| encode, w | 1 us | kserve: 800 ns (0.8x) |",
    ]


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
