"""Rows of results as Markdown: workload x contender, with spread, and ratio to the first column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .results import Results

Row = dict[str, Any]
LIMIT = "limit"


@dataclass
class Table:
    """``rows``: workload, contender, what was measured. ``notes``: what was not, and why."""

    name: str
    rows: dict[str, dict[str, Row]]
    notes: list[dict[str, Any]]

    def contenders(self) -> list[str]:
        """Those that were measured at least once, in the order of the rows; a limit comes last."""
        found = dict.fromkeys(who for row in self.rows.values() for who in row)
        return sorted(found, key=lambda who: who == LIMIT)

    def note(self, workload: str, contender: str) -> str:
        """What stands in place of a number: cannot, wrong, fails, crashes."""
        for note in self.notes:
            if (note["workload"], note["contender"]) == (workload, contender):
                return str(note["kind"])
        return ""

    def remarks(self) -> list[str]:
        """The reasons, one line per contender and reason."""
        reasons: dict[tuple[str, str, str], list[str]] = {}
        for note in self.notes:
            key = (note["contender"], note["kind"], note["text"])
            reasons.setdefault(key, []).append(note["workload"])
        return [
            f"- {contender} {kind}: {', '.join(dict.fromkeys(workloads))} ({text})"
            for (contender, kind, text), workloads in reasons.items()
        ]


def tables_of(results: Results) -> list[Table]:
    """In the order in which they were measured. A step's several limits share one column."""
    tables: dict[str, Table] = {}
    for row in results.rows:
        table = tables.setdefault(row["table"], Table(row["table"], {}, []))
        who = LIMIT if row["contender"].startswith(LIMIT) else row["contender"]
        table.rows.setdefault(row["workload"], {})[who] = row
    for note in results.notes:
        if note["table"] in tables and note["kind"] != "missing":
            tables[note["table"]].notes.append(note)
    return list(tables.values())


def markdown(table: Table, columns: Sequence[str], title: str | None = None) -> str:
    """The rows that the first column has."""
    present = [c for c in columns if any(c in row for row in table.rows.values())]
    title = table.name if title is None else title
    lines = [f"| {title} | {' | '.join(present)} |", "|---" * (len(present) + 1) + "|"]
    for workload, row in table.rows.items():
        base = row.get(present[0])
        cells = [
            cell(row[who], base) if who in row else table.note(workload, who) for who in present
        ]
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: Row, base: Row | None) -> str:
    """A rate, memory, or a time (of one of many elements) with its spread; and its ratio."""
    if "rate" in row:
        rate = f"{row['rate']:,.0f}" if row["rate"] >= 100 else f"{row['rate']:.3g}"
        return f"{rate} ({row['ratio']:.2f})" if "ratio" in row else rate
    if "per_byte" in row:
        return f"{row['per_byte']:.2f}"
    if "peak_nbytes" in row:
        return nbytes_text(row["peak_nbytes"])
    n_elements = row.get("n_elements", 0)
    time = row["median"]
    text = f"{1e9 * time / n_elements:.1f} ns" if n_elements else time_text(time)
    if row["rounds"] > 1:
        text += f" ±{100 * row['iqr'] / 2 / time:.0f}%"
    return text if base is None or row is base else f"{text} ({ratio_text(time / base['median'])})"


def ratio_text(ratio: float) -> str:
    """Three digits, as the machine has no more to say."""
    return f"{ratio:.2g}x" if ratio < 10 else f"{float(f'{ratio:.3g}'):,.0f}x"


def time_text(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def nbytes_text(nbytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}"
    return f"{nbytes} B"
