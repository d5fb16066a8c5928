"""`results/*.json`: what was measured, a file per suite, small enough to be committed."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"
NUMBERS = ("median", "iqr", "rate", "ratio", "per_byte")


@dataclass
class Results:
    """One suite. ``versions`` by environment, the empty name is the interpreter that ran it."""

    command: str
    date: str
    machine: str
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        """JSON with a line per row."""
        members = [f" {json.dumps(name)}: {lines(value)}" for name, value in asdict(self).items()]
        return "{\n" + ",\n".join(members) + "\n}\n"


def lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    rows = [{k: rounded(k, v) for k, v in row.items()} for row in value]
    return "[\n" + ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows) + "\n ]"


def rounded(name: str, value: Any) -> Any:
    """Four digits: a machine has no more to say."""
    return float(f"{value:.4g}") if name in NUMBERS else value


def empty(command: str) -> Results:
    """Of here and today."""
    return Results(command, datetime.now(UTC).date().isoformat(), machine())


def machine() -> str:
    """The CPU's model and number; nothing that tells one machine from another of its kind."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()}"


def read(folder: Path) -> dict[str, Results]:
    """The suites that were measured before, by name."""
    return {p.stem: Results(**json.loads(p.read_text())) for p in sorted(folder.glob("*.json"))}
