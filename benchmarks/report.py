"""``python -m benchmarks.report RESULTS.json``: the measured table, written into README.md.

RESULTS.json is what ``pytest benchmarks/bench_*.py --benchmark-json RESULTS.json`` wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"


def table(results: dict[str, Any]) -> str:
    """Medians of one run, and how many times the first contender's each of the others takes."""
    lines: list[str] = []
    tables: dict[str, dict[str, dict[str, float]]] = {}
    for row in results["benchmarks"]:
        info = row["extra_info"]
        rows = tables.setdefault(info["table"], {})
        rows.setdefault(info["workload"], {})[info["contender"]] = row["stats"]["median"]
    for name, rows in tables.items():
        contenders = list(next(iter(rows.values())))
        lines += [f"| {name} | {' | '.join(contenders)} |", "|---" * (len(contenders) + 1) + "|"]
        lines += [
            f"| {workload} | {' | '.join(cells(medians))} |" for workload, medians in rows.items()
        ]
        lines.append("")
    return "\n".join([*lines, provenance(results)])


def cells(medians: dict[str, float]) -> list[str]:
    base, *others = medians.values()
    return [time_text(base), *(f"{time_text(t)} ({t / base:,.1f}x)" for t in others)]


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
        f"CPUs, Python {machine['python_version']}. `pytest benchmarks/bench_decode.py "
        f"benchmarks/bench_encode.py --benchmark-json results.json; python -m benchmarks.report "
        f"results.json`"
    )


def main(path: str) -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    made = table(json.loads(Path(path).read_text()))
    README.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1])
