"""``python -m benchmarks.report RESULTS.json``: the measured table, written into README.md.

RESULTS.json is what ``pytest benchmarks/bench_*.py --benchmark-json RESULTS.json`` wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .contenders import DECODERS, ENCODERS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"
DIRECTIONS = {"test_decode": ("decode", DECODERS), "test_encode": ("encode", ENCODERS)}


def table(results: dict[str, Any]) -> str:
    """Medians of one run, and how many times the first contender's each of the others takes."""
    medians: dict[tuple[str, str, str], float] = {}
    for row in results["benchmarks"]:
        info, direction = row["extra_info"], row["name"].split("[")[0]
        medians[direction, info["workload"], info["contender"]] = row["stats"]["median"]
    workloads = list(dict.fromkeys(workload for _, workload, _ in medians))
    lines = []
    for direction, (name, contenders) in DIRECTIONS.items():
        lines += [
            f"| {name} | " + " | ".join(contenders) + " |",
            "|---" * (len(contenders) + 1) + "|",
        ]
        for workload in workloads:
            times = [medians[direction, workload, contender] for contender in contenders]
            cells = [
                time_text(times[0]),
                *(f"{time_text(t)} ({t / times[0]:,.1f}x)" for t in times[1:]),
            ]
            lines.append(f"| {workload} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join([*lines, provenance(results)])


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
