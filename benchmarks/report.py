"""Create the tables of the manual from the results of the benchmarks.

A page has regions, from ``<!-- begin NAME -->`` to ``<!-- end NAME -->``. ``PAGES`` has the
function that writes each region: most of them show a `View` of the tables, or several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .contenders import LIMITS, OTHER_FORMATS
from .workloads import BYTES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
OURS = "tensorwire"
SERVE = "tensorwire serve"
OURS_HTTP = f"{OURS}, {SERVE}"
LIMIT = "limit"
ECHO, GRPC_ECHO, RATES = "HTTP echo", "gRPC echo", "requests per second"
SMALL, ALONE, ON_TENSORWIRE = "small messages", "alone", "on tensorwire"

Row = dict[str, Any]

# --- results ---


@dataclass
class Results:
    """The results of one subject.

    The keys of ``versions`` are environments; the empty name is the one that ran the benchmarks.
    ``notes`` has the reasons for cells without a measurement. ``rows`` has the measured cells:
    times in seconds, rates with latencies and CPU times, or memory. ``problems`` are the reasons
    why the results cannot be published.
    """

    command: str
    date: str
    machine: str
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return JSON with one line per row."""
        members = [f" {json.dumps(k)}: {json_lines(v)}" for k, v in asdict(self).items()]
        return "{\n" + ",\n".join(members) + "\n}\n"


def json_lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value)
    return f"[\n{lines}\n ]"


def read_results(folder: Path) -> dict[str, Results]:
    """Return the stored results by subject."""
    return {p.stem: Results(**json.loads(p.read_text())) for p in sorted(folder.glob("*.json"))}


# --- tables ---


@dataclass
class Table:
    """Rows by workload and contender, and notes for cells without a measurement."""

    name: str
    results: list[Results]
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def contenders(self) -> list[str]:
        """Return the measured contenders in the order of the rows, with a limit last."""
        found = dict.fromkeys(contender for row in self.rows.values() for contender in row)
        return sorted(found, key=lambda contender: contender == LIMIT)

    def all_contenders(self) -> list[str]:
        """Return the measured contenders, and then those that have only notes."""
        return list(dict.fromkeys([*self.contenders(), *(n["contender"] for n in self.notes)]))

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

    def beaten_limits(self) -> str:
        """Return a line that names the contenders which are clearly faster than a limit."""
        beaten = [
            f"{contender} ({workload}, {ratio_text(time_ratio(row, limit))})"
            for workload, cells in self.rows.items()
            for limit in cells.values()
            if limit["contender"].startswith(LIMIT)
            for contender, row in cells.items()
            if time_ratio(limit, row) > CLOSE
        ]
        what = "- Faster than the limit, although the limit does less work:"
        return f"{what} {', '.join(beaten)}" if beaten else ""


Tables = Mapping[str, Table]


def tables_of(measured: Mapping[str, Results]) -> dict[str, Table]:
    """Return the tables by name. A table has one column for its limits, with the fastest one."""
    tables: dict[str, Table] = {}
    for results in measured.values():
        for row in results.rows:
            table = tables.setdefault(row["table"], Table(row["table"], [results]))
            cells = table.rows.setdefault(row["workload"], {})
            if not row["contender"].startswith(LIMIT):
                cells[row["contender"]] = row
            elif LIMIT not in cells or row["median"] < cells[LIMIT]["median"]:
                cells[LIMIT] = row
        for note in results.notes:
            if note["table"] in tables:
                tables[note["table"]].notes.append(note)
    return tables


Cell = Callable[[Row, Row | None], str]
MAX_RATIO = 1000  # a greater one says only how large the message is
CLOSE = 1.05  # a smaller advantage does not count as faster


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
    if row.get("is_copied"):
        text += ", copied"
    if base is None or row is base:
        return text
    ratio = time_ratio(row, base)
    if ratio <= MAX_RATIO:
        return f"{text} ({ratio_text(ratio)})"
    # The base is a view, unless its elements are read.
    more = f"over {MAX_RATIO:,}x" if row["table"].endswith("and read") else "grows with the size"
    return f"{text} ({more})"


def time_ratio(row: Row, ours: Row) -> float:
    """Return the ratio of the time of a row to the time of ours.

    If they were measured in turns, it is the median of the ratios of their rounds.
    """
    if "relative_time" in row and "relative_time" in ours:
        return float(row["relative_time"] / ours["relative_time"])
    if "ratio" in ours and "ratio" not in row:
        return float(ours["ratio"])
    return float(row["median"] / ours["median"])


def markdown(table: Table, cell: Cell = cell) -> str:
    """Return the table. Each cell is compared with the first one of its row."""
    columns = table.contenders()
    lines = [f"| {table.name} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for workload, row in table.rows.items():
        base = row.get(columns[0])
        cells = [cell(row[c], base) if c in row else table.note(workload, c) for c in columns]
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
OF_RATES = "Medians; in brackets, the ratio to the bare app"
OF_PROCESSES = "Medians; in brackets, the ratio to one process of tensorwire serve"
PEAKS = "Peak memory in addition to the arguments"
MULTIPLES = "Peak memory per byte of the tensor, which is included"
RESIDENT = "Growth of the resident memory of the server"


def provenance(tables: Iterable[Table], of: str = MEDIANS) -> str:
    """Return the command, the date and the machine of the measurements."""
    runs = dict.fromkeys(
        f"`{run.command}`, {run.date}, {run.machine}" for table in tables for run in table.results
    )
    return f"{of}. {'; '.join(runs)}."


# --- views ---

Region = Callable[[Tables], str]


@dataclass(frozen=True)
class View:
    """Rows and columns of the tables.

    ``rows`` is the name of a table, or has the table and the workload of each row by its new name.
    ``columns`` has the new names of contenders; several may have the same one. None means all.
    """

    title: str
    rows: str | Mapping[str, tuple[str, str]]
    columns: Mapping[str, str] | None = None
    left_out: Collection[str] = ()  # contenders
    cell: Cell = cell
    has_remarks: bool = True  # about the cells that were not measured
    of: str = MEDIANS

    def table(self, tables: Tables) -> Table:
        rows = self.rows
        if isinstance(rows, str):
            rows = {w: (rows, w) for w in (tables[rows].rows if rows in tables else ())}
        found = Table(self.title, [])
        for new, (name, workload) in rows.items():
            if name not in tables or workload not in tables[name].rows:
                continue
            cells = tables[name].rows[workload]
            columns = self.columns or {c: c for c in tables[name].all_contenders()}
            columns = {old: c for old, c in columns.items() if old not in self.left_out}
            found.rows[new] = {columns[c]: cells[c] for c in columns if c in cells}
            found.results += tables[name].results
            found.notes += [
                {**note, "workload": new, "contender": columns[note["contender"]]}
                for note in tables[name].notes
                if note["workload"] == workload and note["contender"] in columns
            ]
        return found


def text_of(views: Iterable[View], tables: Tables) -> str:
    """Return the tables, and where their measurements are from."""
    parts: list[str] = []
    found: dict[str, list[Table]] = {}
    for view in views:
        table = view.table(tables)
        if not table.rows:
            continue
        found.setdefault(view.of, []).append(table)
        remarks = [table.remarks()] if view.has_remarks else []
        parts += filter(None, [markdown(table, view.cell), *remarks, table.beaten_limits()])
    return "\n\n".join([*parts, *(provenance(shown, of) for of, shown in found.items())])


def whole(*names: str, of: str = MEDIANS) -> list[View]:
    return [View(name, name, of=of) for name in names]


def with_other_formats(*names: str, of: str = MEDIANS) -> list[View]:
    """Return two views of each table: of the protocol, and of other formats."""
    found = []
    for name in names:
        found.append(View(name, name, left_out={*OTHER_FORMATS, *LIMITS}, of=of))
        found.append(View(f"{name}, for orientation", name, ORIENTATION, of=of))
    return found


def named(*contenders: str) -> dict[str, str]:
    return {contender: contender for contender in contenders}


ORIENTATION = named(OURS, *OTHER_FORMATS, *LIMITS)
HEADLINE = View(
    "",
    {
        "decode one small tensor": ("decode", "128 B FP32"),
        "decode 100 MB FP32": ("decode", "100 MB FP32"),
        "decode 300,000 strings to objects": ("decode", "BYTES 300k x 0-40 B"),
        "HTTP echo of 16 MB FP32, tensorwire server": (ECHO, "16 MB FP32"),
    },
    {
        **named(OURS, "tritonclient", "kserve", "by hand"),
        **{f"{name}, {SERVE}": name for name in (OURS, "tritonclient")},
    },
    has_remarks=False,
)
OTHERS = View(
    "",
    {
        f"{name}, {workload}": (name, workload)
        for name in ("decode and read", "encode")
        for workload in ("128 B FP32", "100 MB FP32", "BYTES 300k x 0-40 B")
    },
    named(OURS, *OTHER_FORMATS),
    has_remarks=False,
)
JSON_HEADLINE = View(
    "JSON, ns per element",
    {
        f"{verb} {workload}": (f"{verb} a JSON tensor", workload)
        for verb in ("read", "write")
        for workload in ("FP32 x 1M", "FP64 x 1M", "INT64 x 1M", "BYTES x 100K")
    },
)
ECHOES = View(
    ECHO,
    {size: (ECHO, size) for size in ("16 MB FP32", "64 MB FP32")},
    {**named(OURS_HTTP), LIMIT: "raw sockets", **named("tritonclient, Triton", "kserve, KServe")},
    has_remarks=False,
)
CLIENTS = (OURS, f"{OURS} async", "http.client", "tritonclient")
ECHOES_BY_SERVER = {
    f"{OURS} server": [
        *(f"{client}, {SERVE}" for client in CLIENTS),
        *(f"{OURS}, {server}" for server in ("uvicorn", "granian")),
        LIMIT,
    ],
    "Triton": [OURS_HTTP, f"{OURS}, Triton", "tritonclient, Triton"],
    "KServe": [
        OURS_HTTP,
        f"{OURS}, KServe on {OURS}",
        "kserve, KServe",
        f"kserve on {OURS}, KServe on {OURS}",
    ],
}
GRPC_OR_HTTP = View(
    "echo",
    GRPC_ECHO,
    {
        OURS_HTTP: f"{OURS}, gRPC",
        f"{OURS} over HTTP": f"{OURS}, HTTP",
        **named("tritonclient, generated classes", "Arrow Flight"),
        LIMIT: "raw sockets",
    },
    has_remarks=False,
)


# --- requests per second ---


def latency_cell(row: Row, base: Row | None) -> str:
    return " / ".join(time_text(row[f"{name}_seconds"]) for name in ("p50", "p99"))


def cpu_cell(row: Row, base: Row | None) -> str:
    return time_text(row["cpu_seconds"])


RATES_HEADLINE = View(
    f"{RATES}, 8 connections",
    {
        floats: (RATES, f"{floats}, 8 connections")
        for floats in ("32 floats", "250,000 floats", "16,000,000 floats")
    },
    left_out=("bare app, granian", "bare app, granian RSGI"),
    has_remarks=False,
    of=OF_RATES,
)
RATE_VIEWS = (
    View(RATES, RATES, has_remarks=False, of=OF_RATES),
    View("latency, p50 / p99", RATES, cell=latency_cell, has_remarks=False, of=OF_RATES),
    View("CPU time per request", RATES, cell=cpu_cell, of=OF_RATES),
)


def rates_and_latencies(name: str, of: str = OF_RATES) -> list[View]:
    latencies = View(f"{name}: latency, p50 / p99", name, cell=latency_cell, of=of)
    return [View(f"{name}: {RATES}", name, has_remarks=False, of=of), latencies]


# --- integrations ---

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


def integration(package: str) -> Region:
    """Return a function that writes selected cases of one package, and all on small messages."""
    name = f"integration: {package}"
    rows = {case: (name, case) for case in INTEGRATIONS[package]}
    cases = View(package, rows, of=OF_CASES)
    return lambda tables: "\n\n".join([text_of([cases], tables), *speeds_by_size(tables, package)])


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


OF_CASES = f"{MEDIANS}; for calls over HTTP, {PAIRS}"
OF_PAIRS = f"Medians; in brackets, the speed relative to the package alone: {PAIRS}"


# --- the rows where tensorwire is not faster ---

Loss = tuple[float, str, str, str]


def losses(tables: Tables) -> list[Loss]:
    """Return the ratio, workload, our time and the other time if the other is not clearly slower.

    The greatest loss is first.
    """
    found = []
    for table in tables.values():
        for workload, row in table.rows.items():
            what = f"{table.name.removeprefix('by size: ')}, {workload}"
            for contender, theirs in row.items():
                for name in counterparts(contender, row):
                    ours = row.get(name)
                    if ours is None or "median" not in ours or is_memory(ours):
                        continue
                    if (ratio := time_ratio(theirs, ours)) < CLOSE:
                        times = (named_time(name, ours), named_time(contender, theirs))
                        found.append((ratio, what, *times))
    return sorted(found)


def is_memory(row: Row) -> bool:
    return "peak_nbytes" in row or "per_byte" in row


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
    return [f"{OURS}, {server}" if server in (SERVE, "uvicorn", "granian") else OURS, *found]


def without_tensorwire(contender: str) -> str:
    return contender.replace(f", on {OURS}", "").replace(f" on {OURS}", "")


N_WORST = 5


def worst_losses(tables: Tables) -> str:
    """Return the greatest loss of each table of the results, for those with the greatest ones."""
    worst: dict[str, Loss] = {}
    for loss in losses(tables):
        worst.setdefault(loss[1].partition(",")[0], loss)
    return losses_table(tables, list(worst.values())[:N_WORST])


def all_losses(tables: Tables) -> str:
    return losses_table(tables, losses(tables))


def losses_table(tables: Tables, found: Iterable[Loss]) -> str:
    lines = ["| workload | tensorwire | faster, or as fast |", "|---|---|---|"]
    for ratio, what, ours, theirs in found:
        lines.append(f"| {what} | {ours} | {theirs} ({ratio_text(ratio)}) |")
    return "\n".join([*lines, "", provenance(tables.values())])


def versions_text(tables: Tables) -> str:
    """Return the versions that were measured."""
    versions: dict[str, dict[str, str]] = {}
    for table in tables.values():
        for run in table.results:
            for environment, found in run.versions.items():
                versions.setdefault(environment, {}).update(found)
    lines = []
    for environment, found in versions.items():
        where = f"Environment of {environment}" if environment else "Main environment"
        lines.append(f"- {where}: {', '.join(f'{name} {n}' for name, n in found.items())}.")
    return "\n".join(lines)


# --- pages ---

PAGES: dict[str, dict[str, Sequence[View] | Region]] = {
    "README.md": {
        "headline": [HEADLINE],
        "losses": worst_losses,
        "smallest ratios": smallest_ratios,
    },
    **{
        f"docs/integrations/{package}.md": {"what to expect": integration(package)}
        for package in INTEGRATIONS
    },
    "docs/guide/alternatives.md": {
        "measurements": whole(
            *(f"alternatives: {what}" for what in ("HTTP call", "encode", "decode and read"))
        ),
    },
    "docs/why.md": {"echoes": [ECHOES], "other formats": [OTHERS]},
    "docs/guide/grpc.md": {
        "grpc or http": [GRPC_OR_HTTP],
        "grpc messages": whole("gRPC: encode a request", "gRPC: decode a response and read it"),
        "grpc memory": whole("gRPC: peak memory", of=PEAKS),
        "grpc echoes": whole(GRPC_ECHO),
    },
    "docs/benchmarks.md": {
        "headline": [HEADLINE],
        "versions": versions_text,
        "json summary": [JSON_HEADLINE],
        "rates summary": [RATES_HEADLINE],
        "echoes": [ECHOES],
        "decode": with_other_formats("decode", "decode and read"),
        "encode": [*with_other_formats("encode"), *whole("encode prepared tensors")],
        "decode by size": with_other_formats("by size: decode", "by size: decode and read"),
        "encode by size": with_other_formats("by size: encode"),
        "torch": whole("decode to torch", "encode from torch", "Tensor from torch"),
        "bytes": whole(*BYTES),
        "busy thread": whole("scan with and without another thread"),
        "http": [View(f"{ECHO}, {t}", ECHO, named(*c)) for t, c in ECHOES_BY_SERVER.items()],
        "rates": RATE_VIEWS,
        "integrations": whole(*(f"integration: {package}" for package in INTEGRATIONS)),
        SMALL: [View(SMALL, SMALL, named(ALONE, ON_TENSORWIRE), cell=paired_cell, of=OF_PAIRS)],
        "memory": with_other_formats("peak memory: decode", "peak memory: encode", of=PEAKS),
        "transfers": whole("peak memory over HTTP", of=MULTIPLES),
        "receive": whole("receive a body"),
        "kinds of models": rates_and_latencies("kinds of models"),
        "idle connections": [
            *whole("memory per idle connection", of=RESIDENT),
            *rates_and_latencies("idle connections"),
        ],
        "active connections": rates_and_latencies("active connections"),
        "processes": rates_and_latencies("processes", OF_PROCESSES),
        "json read": whole("read a JSON tensor"),
        "json write": whole("write a JSON tensor"),
        "json headers": whole(
            "read a small response", "read a small request", "write a small request"
        ),
        "json memory": whole("peak memory per byte of JSON", of=PEAKS),
        "losses": all_losses,
    },
}


def rendered(tables: Tables) -> dict[Path, str]:
    """Return the pages with the tables of these results."""
    return {
        ROOT / name: with_regions((ROOT / name).read_text(), regions, tables)
        for name, regions in PAGES.items()
    }


def with_regions(page: str, regions: Mapping[str, Sequence[View] | Region], tables: Tables) -> str:
    """Return the page with its regions replaced. Raises ValueError for a missing region."""
    for name, content in regions.items():
        text = content(tables) if callable(content) else text_of(content, tables)
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        head, found_begin, rest = page.partition(begin)
        _, found_end, tail = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"the page has no region {name!r}")
        page = f"{head}{begin}\n{text}\n{end}{tail}"
    return page
