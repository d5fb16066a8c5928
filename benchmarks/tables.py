"""`python -m benchmarks.tables`: write the tables of the manual and the plots from `results.json`.

A table is written between the markers ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` of a page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PAGES = [HERE.parent / "README.md", *(HERE.parent / "docs").rglob("*.md")]
OURS = "tensorwire"
AS_FAST = 1.05  # times up to this multiple are as fast

Rows = dict[str, dict[str, float]]  # by contender: median, and perhaps copied and peak
Groups = dict[str, Rows]
Table = Callable[[Groups], str]


# --- reading ---


def merged(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the content of files of pytest-benchmark as one, without what no table needs."""
    rows: dict[str, Any] = {}
    machine: dict[str, Any] = {"packages": {}}
    for path in paths:
        found = json.loads(path.read_text())
        packages = machine["packages"]
        machine = {name: found["machine_info"][name] for name in ("system", "is_virtual")}
        machine["cpu"] = {k: found["machine_info"]["cpu"][k] for k in ("brand_raw", "count")}
        python = {"Python": found["machine_info"].get("python_version")}
        machine["packages"] = {**packages, **python, **found["machine_info"]["packages"]}
        for each in found["benchmarks"]:
            stats = {name: float(f"{each['stats'][name]:.4g}") for name in ("median", "iqr")}
            info = each["extra_info"]
            row = {"group": each["group"], "extra_info": info, "stats": stats}
            rows[f"{each['group']}, {info.get('contender', each.get('name'))}"] = row
    return {"machine_info": machine, "benchmarks": list(rows.values())}


def groups_of(results: dict[str, Any]) -> Groups:
    found: Groups = {}
    for each in results["benchmarks"]:
        info = dict(each["extra_info"])
        if "contender" in info:
            median = each["stats"]["median"] / info.pop("calls", 1)
            rows = found.setdefault(each["group"], {})
            rows[info["contender"]] = {"median": float(f"{median:.3g}"), **info}
    for name, row in found.get("memory: HTTP call", {}).items():  # counted apart from the times
        found.get("call: 64 MB", {}).get(name, {})["copied"] = row["copied"]
    return found


# --- cells ---


def duration(seconds: float) -> str:
    factors = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}
    unit = next((unit for unit, factor in factors.items() if seconds * factor >= 1), "ns")
    number = seconds * factors[unit]
    return f"{number:,.0f} {unit}" if number >= 99.95 else f"{number:.3g} {unit}"


def cell(rows: Rows, contender: str, base: str) -> str:
    """Return the median, its ratio to that of ``base``, if it says something, and the copies."""
    row = rows.get(contender, {})
    if "peak" in row:
        return f"{row['peak']:.1f}"
    if "median" not in row:
        return ""
    notes = []
    if contender != base and base in rows:
        notes += ratio(row, rows[base])
    if "copied" in row:
        notes.append(f"{row['copied']:.1f} copied")
    return duration(row["median"]) + (f" ({', '.join(notes)})" if notes else "")


def ratio(row: dict[str, float], base: dict[str, float]) -> list[str]:
    multiple = float(f"{row['median'] / base['median']:.2g}")
    return [f"{multiple:g}x"] if 0.001 <= multiple <= 1000 else []


# --- tables ---


def lines(rows: Iterable[Iterable[str]]) -> str:
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *rest])


def by_contender(prefix: str, names: Iterable[str], base: str = OURS) -> Table:
    """Return a table with a row for each contender, and a column for each of these groups."""

    def table(groups: Groups) -> str:
        columns = {name: groups.get(f"{prefix}: {name}", {}) for name in names}
        contenders = list(dict.fromkeys(name for rows in columns.values() for name in rows))
        contenders.sort(key=lambda name: ": " in name)  # those with servers of others are last
        body = [
            [each, *(cell(rows, each, base) for rows in columns.values())] for each in contenders
        ]
        return lines([["", *columns], *body])

    return table


def by_workload(labels: dict[str, str], contenders: Iterable[str] = ()) -> Table:
    """Return a table with a row for each label and group, or for each group of the prefix ""."""

    def table(groups: Groups) -> str:
        prefix = labels.get("", "no group")
        rows = {label: groups.get(group, {}) for label, group in labels.items() if label}
        rows |= {g.removeprefix(prefix): r for g, r in groups.items() if g.startswith(prefix)}
        names = list(contenders or dict.fromkeys(name for row in rows.values() for name in row))
        body = [[label, *(cell(r, name, names[0]) for name in names)] for label, r in rows.items()]
        return lines([["", *names], *body])

    return table


def losses(groups: Groups) -> str:
    """Return a table of the cases in which another contender is as fast as ours, or faster."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for group, rows in groups.items():
        kind, _, case = group.partition(": ")
        for name, row in rows.items():
            for ours in [] if kind == "memory" else counterparts(name, rows):
                if row["median"] <= AS_FAST * rows[ours]["median"]:
                    cases = found.setdefault((kind, ours, name), [])
                    cases.append(" ".join([f"{case}:", *ratio(row, rows[ours])]))
    body = sorted(([*key, "; ".join(cases)] for key, cases in found.items()), key=itemgetter(0))
    return lines([["workload", "on tensorwire", "faster, or as fast", "cases"], *body])


def counterparts(name: str, rows: Rows) -> list[str]:
    """Return the contenders of ours that this one is compared with."""
    if OURS in name or "drop-in" in name:
        return []
    server, _, client = name.rpartition(": ")
    candidates = [f"{name}, drop-in", f"{server}, drop-in: {client}", f"{server}: {OURS}"]
    candidates += [] if server else [OURS, "tensorwire serve"]
    return [candidate for candidate in candidates if candidate in rows]


KINDS = ["FP32", "FP32, few digits", "FP32, 4 elements", "FP64", "INT64", "str, ASCII"]
KINDS += ["str, UTF-8"]
CALLED, STRINGS = ["128 B", "1 MB", "16 MB"], "300k x 0-40 B"
SIZES, WAYS = ["128 B", "50 x 128 B", "1 MB", "64 MB"], ("decode", "encode")
LOADS = ["128 B, 1 connection", "128 B, 8 connections", "1 MB, 1 connection"]
LOADS += ["1 MB, 8 connections", "16 MB, 1 connection"]
HEADLINE = {
    "HTTP call, 1 MB FP32": "call: 1 MB",
    "HTTP call, 16 MB FP32": "call: 16 MB",
    "HTTP call, 200,000 strings": "call: 200k x 0-40 B",
    "decode 300,000 strings": f"BYTES: decode {STRINGS}",
    "read 100,000 FP32 as JSON": "JSON: read FP32",
    "write 100,000 strings as JSON": "JSON: write str, ASCII",
    "decode 64 MB FP32": "decode: 64 MB",
}
BYTES = [f"{way} {kind}" for kind in (STRINGS, "100k x 100-300 B") for way in WAYS]
TRITON = ["Triton: tensorwire", "Triton: tritonclient"]
PEAKS = ["decode", "encode", "decode BYTES", "HTTP call", "gRPC: encode", "gRPC: decode"]
TABLES: dict[str, Table] = {
    "headline": by_workload(
        HEADLINE, [OURS, "tritonclient", "tritonclient, drop-in", "kserve", "orjson", "by hand"]
    ),
    "decode": by_contender("decode", [*SIZES, "64 MB, read", "16 MB BOOL"]),
    "encode": by_contender("encode", [*SIZES, "16 MB BOOL"]),
    "BYTES": by_contender("BYTES", BYTES),
    "JSON": by_workload({f"{w} {k}": f"JSON: {w} {k}" for w in ("read", "write") for k in KINDS}),
    "lists": by_workload({kind: f"list: {kind}" for kind in ("FP32", "FP64", "INT64")}),
    "calls": by_contender("call", [*CALLED, "64 MB", "200k x 0-40 B"]),
    "servers": by_contender("servers", LOADS, base="bare ASGI application"),
    "gRPC": by_contender(
        "gRPC", [*(f"{w} 64 MB" for w in WAYS), *(f"call {s}" for s in [*CALLED, "64 MB"])]
    ),
    "memory": by_contender("memory", PEAKS),
    "losses": losses,
    **{
        f"drop-in {name}": by_workload({"": f"drop-in {name}: "})
        for name in ("tritonclient", "KServe", "MLServer")
    },
}


def machine_of(info: dict[str, Any]) -> str:
    kind = "virtual machine" if info["is_virtual"] else "machine"
    return (
        f"a {kind} with {info['cpu']['count']} CPUs ({info['cpu']['brand_raw']}, {info['system']})"
    )


# --- plots ---

PLOTS = {
    "decode.png": ("decode: ", "Time to decode a response with one FP32 tensor"),
    "calls.png": ("call: ", "Time of a call over HTTP on one machine, one FP32 tensor"),
}
# At most six of them are in a plot.
DRAWN = [OURS, "tritonclient", "kserve", "mlserver", "by hand", "memcpy", "raw sockets", *TRITON]
DRAWN += ["KServe: kserve"]
UNITS = {"B": 1, "KB": 1e3, "MB": 1e6}


def plot(groups: Groups, name: str) -> None:
    prefix, title = PLOTS[name]
    sizes = {group: re.fullmatch(rf"{prefix}(\d+) (\w+)", group) for group in groups}
    nbytes = {group: int(size[1]) * UNITS[size[2]] for group, size in sizes.items() if size}
    rows = {nbytes[group]: groups[group] for group in sorted(nbytes, key=nbytes.__getitem__)}
    figure, axes = plt.subplots(figsize=(7, 4.4), dpi=110)
    for contender in DRAWN:
        found = {n: row[contender]["median"] for n, row in rows.items() if contender in row}
        if found:
            axes.plot(list(found), list(found.values()), marker=".", label=contender)
    axes.set(xscale="log", yscale="log", title=title, xlabel="bytes", ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)
    figure.savefig(HERE / name, bbox_inches="tight", metadata={"Software": None})


def publish(paths: Iterable[Path]) -> None:
    """Store files of pytest-benchmark in `results.json`, and write what is made of them.

    The rows of later files replace those of earlier ones.
    """
    results = merged(paths)
    rows = ",\n".join(json.dumps(row) for row in results["benchmarks"])
    machine = json.dumps(results["machine_info"])
    RESULTS.write_text(f'{{"machine_info": {machine},\n"benchmarks": [\n{rows}\n]}}\n')
    groups, packages = groups_of(results), results["machine_info"]["packages"]
    texts = {name: table(groups) for name, table in TABLES.items()}
    texts["machine"] = f"The times are from {machine_of(results['machine_info'])}."
    texts["versions"] = ", ".join(" ".join(each) for each in packages.items()) + "."
    for page in PAGES:
        content = page.read_text()
        for name, text in texts.items():
            before, begin, rest = content.partition(f"<!-- begin {name} -->\n")
            if begin:
                _, end, rest = rest.partition(f"<!-- end {name} -->")
                content = f"{before}{begin}{text}\n{end}{rest}"
        page.write_text(content)
    for name in PLOTS:
        plot(groups, name)


if __name__ == "__main__":
    publish([RESULTS])
