"""``python -m benchmarks.report RESULTS.json``: the measured tables, written into the READMEs.

RESULTS.json is what ``pytest benchmarks/bench_*.py --benchmark-json RESULTS.json`` wrote.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = {
    HERE.parent / "README.md": ("decode", "encode"),
    HERE / "README.md": ("BYTES", "scan", "HTTP echo", "drop in"),
}
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"


def tables_of(results: dict[str, Any], names: tuple[str, ...]) -> str:
    """Medians of one run, and how many times the first contender's each of the others takes."""
    lines: list[str] = []
    tables: dict[str, dict[str, dict[str, float]]] = {}
    units: dict[str, float] = {}
    for row in results["benchmarks"]:
        info = row["extra_info"]
        if not info["table"].startswith(names):
            continue
        units[info["table"]] = info.get("n_elements", 0)
        rows = tables.setdefault(info["table"], {})
        rows.setdefault(info["workload"], {})[info["contender"]] = row["stats"]["median"]
    for name, rows in tables.items():
        contenders = list(dict.fromkeys(contender for row in rows.values() for contender in row))
        limits = [contender for contender in contenders if contender.startswith("limit")]
        others = [contender for contender in contenders if contender not in limits]
        columns = [*others, "limit"] if limits else others
        lines += [f"| {name} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for workload, medians in rows.items():
            limit = next((time for who, time in medians.items() if who in limits), None)
            times = [medians.get(contender) for contender in others] + [limit] * bool(limits)
            lines.append(f"| {workload} | {' | '.join(cells(times, units[name]))} |")
        lines.append("")
    return "\n".join([*lines, provenance(results)])


def cells(times: Sequence[float | None], n_elements: float) -> list[str]:
    """Times, or ns per element, with their ratio to the first."""
    base = times[0]
    assert base is not None
    texts = []
    for time in times:
        if time is None:
            texts.append("")
            continue
        text = f"{time / n_elements * 1e9:.1f} ns" if n_elements else time_text(time)
        texts.append(text if time is base else f"{text} ({ratio_text(time / base)})")
    return texts


def ratio_text(ratio: float) -> str:
    """Three digits, as the machine has no more to say."""
    return f"{ratio:.2g}x" if ratio < 10 else f"{float(f'{ratio:.3g}'):,.0f}x"


def time_text(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def provenance(results: dict[str, Any]) -> str:
    machine = results["machine_info"]
    cpu = machine["cpu"]
    return (
        f"Medians of one run on {results['datetime'][:10]}: {cpu['brand_raw']}, {cpu['count']} "
        f"CPUs, Python {machine['python_version']}. `pytest benchmarks/bench_*.py "
        f"--benchmark-json results.json; python -m benchmarks.report results.json`"
    )


def main(path: str) -> None:
    results = json.loads(Path(path).read_text())
    for page, names in PAGES.items():
        before, rest = page.read_text().split(BEGIN)
        _, after = rest.split(END)
        page.write_text(f"{before}{BEGIN}\n{tables_of(results, names)}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1])
