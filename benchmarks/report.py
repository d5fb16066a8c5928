"""Write the results of the benchmarks, and create tables and plots from them.

``merge`` reduces the JSON files of pytest-benchmark to the small `results/SUBJECT.json`. A page has
regions, from ``<!-- begin NAME -->`` to ``<!-- end NAME -->``. ``PAGES`` has the function that
writes each region. A region without results is not changed.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from .contenders import LIMITS, OTHER_FORMATS
from .workloads import BYTES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS, PLOTS = HERE / "results", HERE / "plots"
OURS = "tensorwire"
SERVE = "tensorwire serve"
OURS_HTTP = f"{OURS}, {SERVE}"
LIMIT = "limit"
ECHO, RATES = "HTTP echo", "requests per second"
SMALL, ALONE, ON_TENSORWIRE = "small messages", "alone", "on tensorwire"

Row = dict[str, Any]

# --- results ---


@dataclass
class Results:
    """The results of one subject.

    The keys of ``versions`` are environments; the empty name is the one that ran the benchmarks.
    ``left_out`` has the reasons why contenders are not installed. ``notes`` has the reasons for
    cells without a measurement. ``rows`` has the measured cells: times in seconds, rates with
    latencies and CPU times, or memory.
    """

    command: str
    date: str
    machine: str
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def text(self) -> str:
        """Return JSON with one line per row."""
        members = [f" {json.dumps(k)}: {json_lines(v)}" for k, v in asdict(self).items()]
        return "{\n" + ",\n".join(members) + "\n}\n"


def json_lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value)
    return f"[\n{lines}\n ]"


def read_results(folder: Path = RESULTS) -> dict[str, Results]:
    """Return the stored results by subject."""
    return {p.stem: Results(**json.loads(p.read_text())) for p in sorted(folder.glob("*.json"))}


def merge(outputs: Mapping[str, Any], command: str, left_out: Mapping[str, str]) -> Results:
    """Return the results of one subject from pytest-benchmark's JSON by environment."""
    first = next(iter(outputs.values()))
    machine = first["machine_info"]
    cpu = machine["cpu"]
    model = cpu.get("brand_raw", machine["machine"])
    results = Results(
        command, first["datetime"][:10], f"{model}, {cpu['count']} CPUs, {machine['system']}"
    )
    results.left_out |= left_out
    for environment, output in outputs.items():
        results.versions[environment] = output["versions"]
        for benchmark in output["benchmarks"]:
            results.rows += rows_of(benchmark)
        for note in output["notes"]:
            if note["kind"] == "not installed":
                results.left_out[note["contender"]] = note["text"]
            else:
                results.notes.append(note)
    return results


def rows_of(benchmark: Mapping[str, Any]) -> list[Row]:
    """Return the row of a benchmark, or several rows if it measured several contenders."""
    info, stats = dict(benchmark["extra_info"]), benchmark["stats"]
    contenders = info.pop("contenders", None)
    if contenders is None:
        rows = [{**{k: stats[k] for k in ("median", "iqr", "rounds")}, **info}]
    else:
        rows = [{**row, **info, "contender": name} for name, row in contenders.items()]
    # No more than four digits are reproducible.
    return [
        {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]


# --- tables ---


@dataclass
class Table:
    """Rows by workload and contender, and notes for cells without a measurement."""

    name: str
    results: Results
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def contenders(self) -> list[str]:
        """Return the measured contenders in the order of the rows, with a limit last."""
        found = dict.fromkeys(contender for row in self.rows.values() for contender in row)
        return sorted(found, key=lambda contender: contender == LIMIT)

    def note(self, workload: str, contender: str) -> str:
        """Return the text of a cell without a measurement."""
        for note in self.notes:
            if (note["workload"], note["contender"]) == (workload, contender):
                return str(note["kind"])
        return ""

    def remarks(self) -> str:
        """Return the reasons of the notes, one line per contender and reason."""
        reasons: dict[tuple[str, str, str], list[str]] = {}
        for note in self.notes:
            key = (note["contender"], note["kind"], note["text"])
            reasons.setdefault(key, []).append(note["workload"])
        return "\n".join(
            f"- {contender}, {kind}: {', '.join(dict.fromkeys(workloads))} ({text})"
            for (contender, kind, text), workloads in reasons.items()
        )

    def chosen(self, name: str, workloads: Mapping[str, str]) -> Table:
        """Return a table with these workloads, under new names."""
        notes = [{**n, "workload": workloads.get(n["workload"], "")} for n in self.notes]
        rows = {new: self.rows[old] for old, new in workloads.items() if old in self.rows}
        return Table(name, self.results, rows, notes)


Tables = Mapping[str, Table]


def tables_of(measured: Mapping[str, Results]) -> dict[str, Table]:
    """Return the tables by name. The limits of a table share one column."""
    tables: dict[str, Table] = {}
    for results in measured.values():
        for row in results.rows:
            table = tables.setdefault(row["table"], Table(row["table"], results))
            contender = LIMIT if row["contender"].startswith(LIMIT) else row["contender"]
            table.rows.setdefault(row["workload"], {})[contender] = row
        for note in results.notes:
            if note["table"] in tables:
                tables[note["table"]].notes.append(note)
    return tables


def cell(row: Row, base: Row | None) -> str:
    """Format a rate, memory, or a time with its spread and its ratio to the base."""
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
    return text if base is None or row is base else f"{text} ({ratio_text(time_ratio(row, base))})"


def time_ratio(row: Row, ours: Row) -> float:
    """Return the ratio of the time of a row to the time of ours.

    If they were measured in turns, it is the median of the ratios of their rounds.
    """
    return float(ours["ratio"] if "ratio" in ours else row["median"] / ours["median"])


def markdown(
    table: Table,
    columns: Sequence[str],
    title: str | None = None,
    cell: Callable[[Row, Row | None], str] = cell,
) -> str:
    """Return the table.

    ``cell`` formats a row of the results. Its second argument is the row of the first of the
    columns that were measured.
    """
    present = [c for c in columns if any(c in row for row in table.rows.values())]
    title = table.name if title is None else title
    lines = [f"| {title} | {' | '.join(present)} |", "|---" * (len(present) + 1) + "|"]
    for workload, row in table.rows.items():
        base = row.get(present[0])
        cells = [
            cell(row[contender], base) if contender in row else table.note(workload, contender)
            for contender in present
        ]
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio_text(ratio: float) -> str:
    """Return two or three significant digits."""
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


MEDIANS = "Medians ± half the interquartile range"
PAIRS = "the median of the ratios of rounds that were measured in turns"
PEAKS = "Peak memory in addition to the arguments"


def provenance(tables: Iterable[Table], of: str = MEDIANS) -> str:
    """Return the command, the date and the machine of the measurements."""
    runs = dict.fromkeys(
        f"`{r.command}`, {r.date}, {r.machine}" for r in (table.results for table in tables)
    )
    return f"{of}. {'; '.join(runs)}."


# --- regions: each function returns the text of a region, or "" if there are no results ---


def complete(*names: str, of: str = MEDIANS) -> Callable[[Tables], str]:
    """Return a function that writes tables, with other formats and limits in separate tables."""

    def text(tables: Tables) -> str:
        found = [tables[name] for name in names if name in tables]
        parts: list[str] = []
        for table in found:
            columns = table.contenders()
            separate = [
                contender for contender in columns if contender in {*OTHER_FORMATS, *LIMITS}
            ]
            parts.append(
                markdown(table, [contender for contender in columns if contender not in separate])
            )
            if separate:
                parts.append("For orientation, other formats and limits:")
                parts.append(markdown(table, [OURS, *separate], f"{table.name} (orientation)"))
            if remarks := table.remarks():
                parts.append(remarks)
        return "\n\n".join([*parts, provenance(found, of)]) if found else ""

    return text


HEADLINE_COLUMNS = (OURS, "tritonclient", "kserve", "by hand")
HEADLINES = {  # table and workload; the last one is measured with a client and a server
    "decode one small tensor": ("decode", "128 B FP32"),
    "decode 100 MB FP32": ("decode", "100 MB FP32"),
    "decode 300,000 strings to objects": ("decode", "BYTES 300k x 0-40 B"),
    "HTTP echo of 16 MB FP32, tensorwire server": (ECHO, "16 MB FP32"),
}


def headline(tables: Tables) -> str:
    rows = {}
    for title, (name, workload) in HEADLINES.items():
        found = tables[name].rows.get(workload, {}) if name in tables else {}
        suffix = f", {SERVE}" if name == ECHO else ""
        row = {
            contender: found[contender + suffix]
            for contender in HEADLINE_COLUMNS
            if contender + suffix in found
        }
        if OURS in row:
            rows[title] = row
    return short_table("", rows, HEADLINE_COLUMNS, tables, "decode", ECHO)


def other_formats(tables: Tables) -> str:
    """Compare the formats that do not implement the protocol."""
    columns = (OURS, *OTHER_FORMATS)
    names = ("decode and read", "encode")
    rows = {
        f"{name}, {workload}": {c: row for c, row in found.items() if c in columns}
        for name in names
        for workload in ("128 B FP32", "100 MB FP32", "BYTES 300k x 0-40 B")
        if name in tables and OURS in (found := tables[name].rows.get(workload, {}))
    }
    return short_table("", rows, columns, tables, *names)


def json_headline(tables: Tables) -> str:
    rows = {}
    for verb in ("read", "write"):
        table = tables.get(f"{verb} a JSON tensor")
        for workload in ("FP32 x 1M", "FP64 x 1M", "INT64 x 1M", "BYTES x 100K"):
            if table is not None and workload in table.rows:
                rows[f"{verb} {workload}"] = table.rows[workload]
    columns = list(dict.fromkeys(contender for row in rows.values() for contender in row))
    names = ("read a JSON tensor", "write a JSON tensor")
    return short_table("JSON, ns per element", rows, columns, tables, *names)


def short_table(
    title: str, rows: dict[str, dict[str, Row]], columns: Sequence[str], tables: Tables, *names: str
) -> str:
    """Return a table of rows that were selected from the tables with these names."""
    sources = [tables[name] for name in names if name in tables]
    if not rows:
        return ""
    table = Table(title, sources[0].results, rows)
    return f"{markdown(table, columns)}\n\n{provenance(sources)}"


ECHO_COLUMNS = {
    OURS_HTTP: OURS_HTTP,
    LIMIT: "raw sockets",
    "tritonclient, Triton": "tritonclient, Triton",
    "kserve, KServe": "kserve, KServe",
}


def echoes(tables: Tables) -> str:
    """Return the echoes of large bodies by our client and server, sockets, and other packages."""
    whole = tables.get(ECHO)
    if whole is None or OURS_HTTP not in whole.contenders():
        return ""
    table = whole.chosen(ECHO, {name: name for name in ("16 MB FP32", "64 MB FP32")})
    table.rows = {
        workload: {
            name: row[contender] for contender, name in ECHO_COLUMNS.items() if contender in row
        }
        for workload, row in table.rows.items()
    }
    return f"{markdown(table, list(ECHO_COLUMNS.values()))}\n\n{provenance([table])}"


GRPC_ECHO = "gRPC echo"
GRPC_ALTERNATIVES = {
    OURS_HTTP: "tensorwire, gRPC",
    f"{OURS} over HTTP": "tensorwire, HTTP",
    "tritonclient, generated classes": "tritonclient, generated classes",
    "Arrow Flight": "Arrow Flight",
    LIMIT: "raw sockets",
}


def grpc_or_http(tables: Tables) -> str:
    """Return the echoes with both sides in Python, over gRPC, HTTP and others."""
    if GRPC_ECHO not in tables:
        return ""
    table = tables[GRPC_ECHO].chosen("echo", {name: name for name in tables[GRPC_ECHO].rows})
    table.rows = {
        workload: {new: row[old] for old, new in GRPC_ALTERNATIVES.items() if old in row}
        for workload, row in table.rows.items()
    }
    return f"{markdown(table, list(GRPC_ALTERNATIVES.values()))}\n\n{provenance([table])}"


OUR_SERVERS = (SERVE, "uvicorn", "granian")
SERVER_TABLES = {  # and the servers in each table; the limit has the empty name
    "HTTP echo, tensorwire server": {*OUR_SERVERS, ""},
    "HTTP echo, Triton": {"Triton"},
    "HTTP echo, KServe": {"KServe"},
}


def echoes_by_server(tables: Tables) -> str:
    """Return one table for our server, one for Triton and one for KServe, all including ours."""
    table = tables.get(ECHO)
    if table is None or OURS_HTTP not in table.contenders():
        return ""
    servers = {
        contender: contender.partition(", ")[2].removesuffix(f" on {OURS}")
        for contender in table.contenders()
    }
    parts = []
    for title, chosen in SERVER_TABLES.items():
        if columns := [contender for contender, server in servers.items() if server in chosen]:
            parts.append(markdown(table, list(dict.fromkeys([OURS_HTTP, *columns])), title))
    remarks = [table.remarks()] if table.notes else []
    return "\n\n".join([*parts, *remarks, provenance([table])])


RATE_PROVENANCE = "Medians; in brackets, the ratio to the bare app"


def rates_headline(tables: Tables) -> str:
    """Return the rates with 8 connections."""
    if RATES not in tables:
        return ""
    names = ("32 floats", "250,000 floats", "16,000,000 floats")
    suffix = ", 8 connections"
    table = tables[RATES].chosen(RATES + suffix, {name + suffix: name for name in names})
    columns = [name for name in table.contenders() if not name.startswith("bare app, granian")]
    return f"{markdown(table, columns)}\n\n{provenance([table], RATE_PROVENANCE)}"


def latency_cell(row: Row, base: Row | None) -> str:
    return " / ".join(time_text(row[f"{name}_seconds"]) for name in ("p50", "p99"))


def cpu_cell(row: Row, base: Row | None) -> str:
    return time_text(row["cpu_seconds"])


RATE_DETAILS = {  # the keys that a row needs, and the function that formats it
    "latency, p50 / p99": ({"p50_seconds", "p99_seconds"}, latency_cell),
    "CPU time per request": ({"cpu_seconds"}, cpu_cell),
}


def rates(tables: Tables) -> str:
    """Return the rates, latencies and CPU times of all loads."""
    if RATES not in tables:
        return ""
    table = tables[RATES]
    parts = [markdown(table, table.contenders())]
    for title, (keys, format_cell) in RATE_DETAILS.items():
        if all(keys <= set(row) for rows in table.rows.values() for row in rows.values()):
            parts.append(markdown(table, table.contenders(), title, format_cell))
    remarks = [table.remarks()] if table.notes else []
    return "\n\n".join([*parts, *remarks, provenance([table], RATE_PROVENANCE)])


# --- the speeds over HTTP that tensorwire should reach ---


@dataclass
class Goal:
    """How fast ``ours`` should be in a workload, relative to ``other``.

    ``bar`` is the lowest acceptable ratio of the speeds, and ``aim`` is the desired one. Both are
    None for a ratio that only explains another one.
    """

    table: str
    workload: str
    ours: str
    other: str
    bar: float | None
    aim: float | None

    def ratio(self, tables: Tables) -> float | None:
        """Return the measured ratio, or None if one of the two was not measured."""
        rows = tables[self.table].rows.get(self.workload, {}) if self.table in tables else {}
        ours, other = rows.get(self.ours), rows.get(self.other)
        if ours is None or other is None:
            return None
        if self.table == RATES:  # both have a ratio to the bare app, unless that was not measured
            return float(ours["ratio"] / other["ratio"]) if "ratio" in ours else None
        return float(other["median"] / ours["median"])

    def line(self, tables: Tables) -> str:
        """Return the line of the table."""
        ratio = self.ratio(tables)
        measured = "" if ratio is None else f"{ratio:.2f}"
        what = f"{self.table}, {self.workload} | {self.ours} | {self.other}"
        return f"| {what} | {self.bar or ''} | {self.aim or ''} | {measured} |"


FEW, MANY = "32 floats, 8 connections", "250,000 floats, 8 connections"
BARE, GRANIAN, TRITONCLIENT = "bare app, uvicorn", f"{OURS}, granian", f"tritonclient, {SERVE}"
GOALS = (
    Goal(RATES, FEW, SERVE, BARE, 1.1, 1.4),
    Goal(RATES, MANY, SERVE, BARE, 1.3, 1.8),
    Goal(RATES, FEW, f"{GRANIAN} RSGI", GRANIAN, 1.4, 1.8),
    Goal(RATES, FEW, "bare app, granian RSGI", "bare app, granian", None, None),
    Goal(ECHO, "128 B FP32", OURS_HTTP, TRITONCLIENT, 1.0, 1.6),
    Goal(ECHO, "1 MB FP32", OURS_HTTP, TRITONCLIENT, 5.0, 8.0),
    Goal(ECHO, "64 MB FP32", OURS_HTTP, TRITONCLIENT, 5.0, 8.0),
    Goal(ECHO, "64 MB FP32", OURS_HTTP, LIMIT, 0.7, 0.85),
)
GOAL_PROVENANCE = "Ratios of the speeds in the tables above"


def http_goals(tables: Tables) -> str:
    """Return the goals with the measured ratios."""
    if all(goal.ratio(tables) is None for goal in GOALS):
        return ""
    lines = ["| HTTP goals | speed of | relative to | bar | aim | measured |"]
    lines += ["|---" * 6 + "|", *(goal.line(tables) for goal in GOALS)]
    sources = [tables[name] for name in (ECHO, RATES) if name in tables]
    return "\n".join([*lines, "", provenance(sources, GOAL_PROVENANCE)])


CALL_SIZES = ("128 B", "64 KB", "1 MB", "4 MB", "64 MB")
JSON_SIZES = ("1 FP32", "50 x 32 FP32", "4 MB FP32", "BYTES 100k x 16 B")
INTEGRATIONS = {
    "tritonclient": [
        "serialize 300k x 0-40 B",
        "serialize 100k x 100-300 B",
        "deserialize 300k x 0-40 B",
        "deserialize 100k x 100-300 B",
        "shared memory 300k x 0-40 B",
        "request body 128 B FP32",
        "request body 40 MB FP32",
        "response 100 MB FP32",
        *(f"infer {size} FP32" for size in CALL_SIZES),
        *(f"aio infer {size} FP32" for size in CALL_SIZES),
        "gRPC request 40 MB FP32",
        "gRPC request BYTES 300k x 0-40 B",
        "gRPC response BYTES 300k x 0-40 B",
    ],
    "kserve": [
        "REST request, binary, 128 B FP32",
        *(f"REST request, binary, {size} FP32" for size in ("4 KB", "64 KB", "1 MB")),
        "REST request, binary, BYTES 100k x 0-40 B",
        *(f"REST request, JSON, {size}" for size in JSON_SIZES),
    ],
    "mlserver": [
        "REST echo, JSON or binary, 1 MB FP32",
        "REST echo, JSON or binary, 4 MB FP32",
        "REST echo, JSON, 4 MB FP32",
        *(f"REST request, JSON, {size}" for size in JSON_SIZES),
        "JSON echo without a network, 4 MB FP32, lists",
        "raw gRPC echo, 4 MB FP32, arrays",
        "raw gRPC echo, 4 MB FP32, lists",
        "raw gRPC echo, BYTES 100k x 16 B, str",
    ],
}


def integration(package: str) -> Callable[[Tables], str]:
    """Return a function that writes selected cases of one package, and all on small messages."""

    def text(tables: Tables) -> str:
        if f"integration: {package}" not in tables:
            return ""
        whole = tables[f"integration: {package}"]
        table = whole.chosen(package, {case: case for case in INTEGRATIONS[package]})
        has_pairs = any("ratio" in row for rows in table.rows.values() for row in rows.values())
        of = f"{MEDIANS}; for short calls over HTTP, {PAIRS}" if has_pairs else MEDIANS
        parts = [markdown(table, whole.contenders()), provenance([table], of)]
        return "\n\n".join([*parts, *speeds_by_size(tables, package)])

    return text


def ratios(tables: Tables, package: str) -> dict[str, float]:
    """Return the relative speeds of the functions of a package on small messages."""
    rows = tables[SMALL].rows if SMALL in tables else {}
    return {
        workload.removeprefix(f"{package}: "): row[ON_TENSORWIRE]["ratio"]
        for workload, row in rows.items()
        if workload.startswith(f"{package}: ") and "ratio" in row.get(ON_TENSORWIRE, {})
    }


# Of `SMALL_MESSAGES`: a function, and the numbers of tensors, bytes or elements.
KINDS = (
    "tensors x bytes of FP32",
    "one tensor of FP32",
    "elements of BYTES",
    "tensors x elements of BYTES",
)
FUNCTION_AND_SIZE = re.compile(
    r"(.+), (?:(\d+ x \d+ K?B)|FP32, (\d+ K?B)|BYTES, (\d+) (?:bytes|str)|(\d+ x \d+ str))"
)


def speeds_by_size(tables: Tables, package: str) -> Iterator[str]:
    """Yield tables of the relative speeds on small messages, one for each kind of message."""
    by_kind: dict[str, dict[str, dict[str, float]]] = {}
    for workload, ratio in ratios(tables, package).items():
        found = FUNCTION_AND_SIZE.fullmatch(workload)
        if found is None:
            raise ValueError(f"the size of {workload!r} is unknown")
        function, *sizes = found.groups()
        [(kind, size)] = [(kind, size) for kind, size in zip(KINDS, sizes, strict=True) if size]
        speeds = by_kind.setdefault(kind, {}).setdefault(function, {})
        speeds[size] = min(ratio, speeds.get(size, ratio))
    for kind, functions in by_kind.items():
        sizes = list(dict.fromkeys(size for speeds in functions.values() for size in speeds))
        yield "\n".join(
            [
                f"| speed on small messages, {kind} | {' | '.join(sizes)} |",
                "|---" * (len(sizes) + 1) + "|",
                *(
                    f"| {function} | "
                    + " | ".join(ratio_text(speeds[s]) if s in speeds else "" for s in sizes)
                    + " |"
                    for function, speeds in functions.items()
                ),
            ]
        )
    if by_kind:
        yield provenance([tables[SMALL]], f"Ratios of speeds: {PAIRS}")


def smallest_ratios(tables: Tables) -> str:
    """Return a sentence about the slowest function of each package on small messages."""
    smallest = {}
    for package in INTEGRATIONS:
        if found := ratios(tables, package):
            workload = min(found, key=found.__getitem__)
            smallest[package] = f"{found[workload]:.2f} ({package}, *{workload}*)"
    if len(smallest) < len(INTEGRATIONS):
        return ""
    *first, last = smallest.values()
    return (
        "On small messages (1 to 50 tensors of 4 B to 4 KB, 1 to 256 elements of BYTES), every "
        "replaced function has at least this speed, relative to the original: "
        f"{', '.join(first)} and {last}."
    )


def paired_cell(row: Row, base: Row | None) -> str:
    """Format a time, and the ratio of the speeds that was measured in pairs."""
    return time_text(row["median"]) + (f" ({row['ratio']:.2f}x)" if "ratio" in row else "")


PAIRED = f"Medians; in brackets, the speed relative to the package alone: {PAIRS}"


def small_messages(tables: Tables) -> str:
    """Return the functions that the integrations replace, on small messages."""
    if SMALL not in tables:
        return ""
    table = tables[SMALL]
    columns = [ALONE, ON_TENSORWIRE]
    remarks = [table.remarks()] if table.notes else []
    parts = [markdown(table, columns, cell=paired_cell), *remarks, provenance([table], PAIRED)]
    return "\n\n".join(parts)


# --- the rows where tensorwire is not faster ---

CLOSE = 1.05  # a smaller advantage does not count as faster


Loss = tuple[float, str, str, str]


def losses(tables: Tables) -> Iterator[Loss]:
    """Yield the ratio, workload, our time and the other time if the other is not clearly slower."""
    for table in tables.values():
        if table.name == RATES or "memory" in table.name:
            continue
        for workload, row in table.rows.items():
            what = f"{table.name.removeprefix('by size: ')}, {workload}"
            for contender, theirs in row.items():
                for name in counterparts(contender, row):
                    ours = row.get(name)
                    if ours and (ratio := time_ratio(theirs, ours)) < CLOSE:
                        yield ratio, what, named_time(name, ours), named_time(contender, theirs)


def named_time(contender: str, row: Row) -> str:
    time = time_text(row["median"])
    return time if contender in (OURS, OURS_HTTP) else f"{contender}: {time}"


def counterparts(contender: str, row: Mapping[str, Row]) -> list[str]:
    """Return the contenders with tensorwire that this one is compared with.

    A package is compared with tensorwire, and with the same package on tensorwire. A server is
    compared with ours, with the same client. Other formats, limits, and contenders that already
    use tensorwire are not compared.
    """
    found = [name for name in row if name != contender and without_tensorwire(name) == contender]
    client, _, server = contender.partition(", ")
    has_tensorwire = client in (OURS, f"{OURS} async", "http.client") or f"on {OURS}" in contender
    if contender == "kserve, KServe":
        return [OURS_HTTP, *found]
    if server in ("Triton", "KServe"):
        return [f"{client}, {SERVE}", *found]
    if has_tensorwire or contender in {*OTHER_FORMATS, *LIMITS} or contender.startswith(LIMIT):
        return found
    return [f"{OURS}, {server}" if server in OUR_SERVERS else OURS, *found]


def without_tensorwire(contender: str) -> str:
    return contender.replace(f", on {OURS}", "").replace(f" on {OURS}", "")


def losses_text(tables: Tables) -> str:
    """Return all losses, the greatest loss first."""
    return losses_table(tables, sorted(losses(tables), key=lambda loss: loss[0]))


N_WORST = 5


def worst_losses(tables: Tables) -> str:
    """Return the greatest loss of each table of the results, for those with the greatest ones."""
    worst: dict[str, Loss] = {}
    for loss in sorted(losses(tables), key=lambda loss: loss[0]):
        worst.setdefault(loss[1].partition(",")[0], loss)
    return losses_table(tables, list(worst.values())[:N_WORST])


def losses_table(tables: Tables, found: Iterable[Loss]) -> str:
    lines = ["| workload | tensorwire | faster, or as fast |", "|---|---|---|"]
    for ratio, what, ours, theirs in found:
        lines.append(f"| {what} | {ours} | {theirs} ({ratio_text(ratio)}) |")
    return "\n".join([*lines, "", provenance(tables.values())]) if tables else ""


def versions_text(tables: Tables) -> str:
    """Return the versions that were measured, and the contenders that are not installed."""
    lines = []
    versions: dict[str, dict[str, str]] = {}
    left_out: dict[str, dict[str, None]] = {}
    for table in tables.values():
        for environment, found in table.results.versions.items():
            versions.setdefault(environment, {}).update(found)
        for name, reason in table.results.left_out.items():
            left_out.setdefault(reason, {})[f"*{name}*"] = None
    for environment, found in versions.items():
        where = f"Environment of {environment}" if environment else "Main environment"
        lines.append(f"- {where}: {', '.join(f'{name} {n}' for name, n in found.items())}.")
    for reason, names in left_out.items():
        lines.append(f"- Not measured: {', '.join(names)}: {reason}.")
    return "\n".join(lines)


# --- pages ---

PAGES: dict[Path, dict[str, Callable[[Tables], str]]] = {
    ROOT / "README.md": {
        "headline": headline,
        "losses": worst_losses,
        "smallest ratios": smallest_ratios,
    },
    **{
        ROOT / "docs" / "integrations" / f"{package}.md": {"what to expect": integration(package)}
        for package in INTEGRATIONS
    },
    HERE.parent / "docs" / "why.md": {"echoes": echoes, "other formats": other_formats},
    ROOT / "docs" / "guide" / "grpc.md": {
        "grpc or http": grpc_or_http,
        "grpc messages": complete("gRPC: encode a request", "gRPC: decode a response and read it"),
        "grpc memory": complete("gRPC: peak memory", of=PEAKS),
        "grpc echoes": complete(GRPC_ECHO),
    },
    ROOT / "docs" / "benchmarks.md": {
        "headline": headline,
        "versions": versions_text,
        "json summary": json_headline,
        "rates summary": rates_headline,
        "echoes": echoes,
        "decode": complete("decode", "decode and read"),
        "encode": complete("encode", "encode prepared tensors"),
        "decode by size": complete("by size: decode", "by size: decode and read"),
        "encode by size": complete("by size: encode"),
        "torch": complete("decode to torch", "encode from torch", "Tensor from torch"),
        "bytes": complete(*BYTES),
        "busy thread": complete("scan with and without another thread"),
        "http": echoes_by_server,
        "rates": rates,
        "http goals": http_goals,
        "integrations": complete(*(f"integration: {package}" for package in INTEGRATIONS)),
        SMALL: small_messages,
        "memory": complete("peak memory: decode", "peak memory: encode", of=PEAKS),
        "receive": complete("receive a body"),
        "json read": complete("read a JSON tensor"),
        "json write": complete("write a JSON tensor"),
        "json headers": complete(
            "read a small response", "read a small request", "write a small request"
        ),
        "json memory": complete("peak memory per byte of JSON", of=PEAKS),
        "losses": losses_text,
    },
}


def rendered(measured: Mapping[str, Results]) -> dict[Path, bytes]:
    """Return the pages and plots of these results."""
    tables = tables_of(measured)
    pages = {page: with_regions(page.read_text(), PAGES[page], tables) for page in PAGES}
    return {page: text.encode() for page, text in pages.items()} | plots(tables)


def with_regions(page: str, regions: Mapping[str, Callable[[Tables], str]], tables: Tables) -> str:
    """Return the page with its regions replaced. Raises ValueError for a missing region."""
    for name, region in regions.items():
        text = region(tables)
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        head, found_begin, rest = page.partition(begin)
        _, found_end, tail = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"the page has no region {name!r}")
        if text:
            page = f"{head}{begin}\n{text}\n{end}{tail}"
    return page


# --- plots: reproducible and transparent, for light and dark backgrounds ---

GREY = "#808890"  # for text and axes: a contrast of 3.5:1 or more on white and on black
COLOURS = ["#d9480f", "#1c7ed6", "#2f9e44", "#9c36b5", "#a88000", "#0c8599", "#e64980", "#7048e8"]
STYLE = {
    **{f"{name}.color": GREY for name in ("text", "xtick", "ytick")},
    **{f"axes.{name}color": GREY for name in ("edge", "label")},
    **{"axes.titlecolor": GREY, "grid.color": GREY, "grid.alpha": 0.25, "axes.grid": True},
    **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False},
    **{"font.size": 9, "font.family": "sans-serif", "axes.titlesize": 10, "legend.fontsize": 8},
    **{"svg.fonttype": "none", "svg.hashsalt": "tensorwire", "path.simplify": False},
}


def plots(tables: Tables) -> dict[Path, bytes]:
    """Return the plots, or none if matplotlib is missing.

    The plot of README.md is PNG, because package indexes do not show every SVG.
    """
    try:
        import_module("matplotlib").use("svg")
        plt: Any = import_module("matplotlib.pyplot")
    except ImportError as error:
        print(f"plots: not drawn: {error}")
        return {}
    found = {}
    with plt.rc_context(STYLE):
        for name, draw in PLOTTED.items():
            figure = draw(plt, tables)
            if figure is not None:
                found[PLOTS / name] = svg(figure) if name.endswith("svg") else png(figure)
                plt.close(figure)
    return found


def svg(figure: Any) -> bytes:
    """Return the figure as SVG, without a date and with two decimals."""
    target = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(target, format="svg", transparent=True, bbox_inches="tight", metadata=nothing)
    text = re.sub(r"(\d+\.\d{2})\d+", r"\1", target.getvalue())
    return re.sub(r"\s*\n\s*", "\n", text).encode()


def png(figure: Any) -> bytes:
    """Return the figure as PNG, without the version of matplotlib."""
    target = io.BytesIO()
    nothing = {"Software": None}
    figure.savefig(
        target, format="png", dpi=200, transparent=True, bbox_inches="tight", metadata=nothing
    )
    return target.getvalue()


def plot_lines(axes: Any, table: Table, contenders: list[str], sizes: Mapping[str, int]) -> None:
    """Plot time against size, with one line per contender and logarithmic axes.

    A package on tensorwire has the colour of the package and a dotted line.
    """
    colours: dict[str, str] = {}
    for contender in contenders:
        rows = [
            (sizes[w], row[contender]["median"])
            for w, row in table.rows.items()
            if contender in row
        ]
        rows = [(size, seconds) for size, seconds in rows if size]
        package = without_tensorwire(contender)
        style = "--" if contender in (*LIMITS, LIMIT) else "-" if contender == package else ":"
        colour = GREY if style == "--" else colours.get(package) or COLOURS[len(colours)]
        if style != "--":
            colours[package] = colour
        width = 2.6 if contender.startswith(OURS) else 1.3
        axes.plot(
            *zip(*rows, strict=True), style, color=colour, lw=width, label=contender, marker="."
        )
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(lambda value, _: nbytes_text(int(value)).replace(".0 ", " "))
    axes.yaxis.set_major_formatter(lambda value, _: time_text(value))
    axes.minorticks_off()


HEADLINE_LINES = (OURS, "tritonclient", "kserve", "by hand", "memcpy")


def plot_headline(plt: Any, tables: Tables) -> Any:
    """Plot the time of decoding one FP32 tensor, with the name of each contender at its line."""
    table = tables.get("by size: decode")
    if table is None:
        return None
    figure, axes = plt.subplots(figsize=(7, 3.4))
    contenders = [name for name in HEADLINE_LINES if name in table.contenders()]
    plot_lines(axes, table, contenders, row_sizes(table))
    for line in axes.lines:
        axes.annotate(
            line.get_label(),
            (line.get_xdata()[-1], line.get_ydata()[-1]),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
        )
    axes.set(title="Time to decode a response with one FP32 tensor", xlabel="size of the tensor")
    return figure


def row_sizes(table: Table) -> dict[str, int]:
    """Return the number of bytes of each workload."""
    return {w: next(iter(row.values()))["nbytes"] for w, row in table.rows.items()}


def plot_sizes(plt: Any, tables: Tables) -> Any:
    """Plot decode, decode and read, and encode, for one FP32 tensor of 1 KB to 1 GB."""
    panels = {
        "by size: decode": "decode",
        "by size: decode and read": "decode and read every element",
        "by size: encode": "encode",
    }
    if not set(panels) <= set(tables):
        return None
    # All panels use this order, so that a contender has the same colour in all of them.
    contenders = list(
        dict.fromkeys(contender for name in panels for contender in tables[name].contenders())
    )
    figure, subplots = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True)
    for axes, (name, title) in zip(subplots, panels.items(), strict=True):
        table = tables[name]
        plot_lines(axes, table, contenders, row_sizes(table))
        axes.set_title(title)
    handles, labels = subplots[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=6, bbox_to_anchor=(0.5, 0))
    return figure


def plot_bytes(plt: Any, tables: Tables) -> Any:
    """Plot ns per element of each step of the first BYTES workload."""
    table = tables.get(next(iter(BYTES)))
    if table is None:
        return None
    contenders = table.contenders()
    figure, axes = plt.subplots(figsize=(8, 4.2))
    height = 0.8 / len(contenders)
    for number, contender in enumerate(contenders):
        bars = [
            (place + number * height, 1e9 * row[contender]["median"] / row[contender]["n_elements"])
            for place, row in enumerate(table.rows.values())
            if contender in row
        ]
        colour = GREY if contender == LIMIT else COLOURS[number]
        places, values = zip(*bars, strict=True)
        axes.barh(places, values, height, color=colour, label=contender, align="edge")
    axes.set(xscale="log", title=f"{table.name}, ns per element")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    axes.set_yticks([place + 0.4 for place in range(len(table.rows))], list(table.rows))
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


PLOTTED_ECHOES = {
    f"{client}, {server}" for client in (OURS, "tritonclient") for server in (SERVE, "Triton")
} | {LIMIT}
UNITS = {"B": 1, "KB": 1e3, "MB": 1e6}


def plot_http(plt: Any, tables: Tables) -> Any:
    """Plot the time of an HTTP echo against the size of the body."""
    table = tables.get(ECHO)
    if table is None or OURS_HTTP not in table.contenders():
        return None
    sizes = {}
    for workload in table.rows:
        number, unit, kind = [*workload.split(), ""][:3]
        sizes[workload] = int(float(number) * UNITS[unit]) if kind == "FP32" else 0
    figure, axes = plt.subplots(figsize=(6, 3.6))
    contenders = [contender for contender in table.contenders() if contender in PLOTTED_ECHOES]
    plot_lines(axes, table, contenders, sizes)
    axes.set(title="HTTP echo over the loopback interface, FP32: client, server")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


PLOTTED: dict[str, Callable[[Any, Tables], Any]] = {
    "headline.png": plot_headline,
    "size.svg": plot_sizes,
    "bytes.svg": plot_bytes,
    "http.svg": plot_http,
}
