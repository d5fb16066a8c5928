"""The tables of results/*.json, written into the two READMEs.

A page has regions, ``<!-- begin NAME -->`` to ``<!-- end NAME -->``; PAGES says what goes where. A
region for which nothing was measured stays as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .formats import LIMITS, OTHER_FORMATS
from .results import Results
from .table import Row, Table, markdown, ratio_text, tables_of, time_text
from .workloads import BYTES

HERE = Path(__file__).resolve().parent
OURS = "tensorwire"
ORIENTATION = {*OTHER_FORMATS, *LIMITS}
Measured = Mapping[str, Results]
Region = tuple[tuple[str, ...], Callable[[Measured], str]]  # the suites it needs, its text

# --- the few rows of the first page ---

OURS_HTTP = "tensorwire, uvicorn"
HTTP = {OURS: OURS_HTTP, "tritonclient": "tritonclient, uvicorn"}
PLAIN = {name: name for name in (OURS, "tritonclient", "kserve", "by hand")}
HEADLINES = [
    ("decode", "128 B FP32", "decode one small tensor", PLAIN),
    ("decode", "100 MB FP32", "decode 100 MB FP32", PLAIN),
    ("decode", "BYTES 300k x 0-40 B", "decode 300,000 strings to objects", PLAIN),
    ("HTTP echo", "16 MB FP32", "HTTP echo of 16 MB FP32, our server", HTTP),
]


def headline(measured: Measured) -> str:
    """One table out of several."""
    table, tables = Table("", {}, []), all_tables(measured)
    for name, workload, title, columns in HEADLINES:
        found = tables[name].rows.get(workload, {}) if name in tables else {}
        row = {column: found[who] for column, who in columns.items() if who in found}
        if OURS in row:
            table.rows[title] = row
    return f"{markdown(table, list(PLAIN))}\n\n{provenance(measured, 'decode', 'http')}"


# --- the first page: JSON ---

JSON_ROWS = [
    *(("read", f"{datatype} x 1M") for datatype in ("FP32", "FP64", "INT64")),
    ("read", "BYTES x 100K"),
    *(("write", f"{datatype} x 1M") for datatype in ("FP32", "FP64", "INT64")),
    ("write", "BYTES x 100K"),
]


def json_headline(measured: Measured) -> str:
    """A few tensors, read and written, in ns per element."""
    table, tables = Table("JSON, ns per element", {}, []), all_tables(measured)
    for what, workload in JSON_ROWS:
        name = f"{what} a JSON tensor"
        if name in tables and workload in tables[name].rows:
            table.rows[f"{what} {workload}"] = tables[name].rows[workload]
    return f"{markdown(table, table.contenders())}\n\n{provenance(measured, 'json')}"


# --- the first page: servers side by side ---

ECHOES = {
    OURS_HTTP: OURS_HTTP,
    "limit": "raw sockets",
    "tritonclient, Triton": "tritonclient, Triton",
    "kserve, KServe": "kserve, KServe",
}
AT_ONCE = re.compile(r"(.*), 8 at once")


def echoes(measured: Measured) -> str:
    """Large bodies, there and back: ours, the limit, the peers' clients with their servers."""
    (table,), apart = tables_of(measured["http"]), Table("HTTP echo", {}, [])
    for workload in ("16 MB FP32", "64 MB FP32"):
        found = table.rows.get(workload, {})
        apart.rows[workload] = {name: found[who] for who, name in ECHOES.items() if who in found}
        apart.notes += [
            {**note, "contender": ECHOES[note["contender"]]}
            for note in table.notes
            if note["workload"] == workload and note["contender"] in ECHOES
        ]
    apart.rows = {workload: row for workload, row in apart.rows.items() if OURS_HTTP in row}
    return f"{markdown(apart, list(ECHOES.values()))}\n\n{provenance(measured, 'http')}"


def rates(measured: Measured, wanted: re.Pattern[str] | None = None) -> str:
    """Requests per second; with ``wanted``, of the workloads that it matches, by its group."""
    (table,) = tables_of(measured["throughput"])
    remarks = table.remarks()
    if wanted is not None:
        names = {name: found[1] for name in table.rows if (found := wanted.fullmatch(name))}
        notes = [{**note, "workload": names.get(note["workload"], "")} for note in table.notes]
        rows = {new: table.rows[name] for name, new in names.items()}
        table, remarks = Table(f"{table.name}, 8 at once", rows, notes), []
    said = provenance(measured, "throughput", of="Medians; in brackets, the ratio to the bare app")
    parts = [markdown(table, table.contenders()), *(["\n".join(remarks)] if remarks else []), said]
    return "\n\n".join(parts)


# --- the first page: a package without us, and with us in it ---

DROP_INS = {
    "tritonclient": [
        "serialize 300k x 0-40 B",
        "serialize 100k x 100-300 B",
        "deserialize 300k x 0-40 B",
        "deserialize 100k x 100-300 B",
        "shared memory 300k x 0-40 B",
        "request body 128 B FP32",
        "request body 40 MB FP32",
        "response 100 MB FP32",
    ],
    "kserve": [
        "request, as_numpy, 4 MB FP32",
        "request, as_numpy, BYTES 100k x 0-40 B",
        "request, data, BYTES 100k x 0-40 B",
        "response, 4 MB FP32",
        "response, BYTES 100k x 0-40 B",
    ],
    "mlserver": [
        "REST JSON; binary, 4 MB FP32",
        "REST JSON, 4 MB FP32",
        "NumpyCodec.encode_output, 4 MB FP32",
        "raw gRPC contents to an array, 4 MB FP32",
        "raw gRPC contents to str, BYTES 100k x 16 B",
        "str to raw gRPC contents, BYTES 100k x 16 B",
    ],
}


def drop_in(package: str) -> Region:
    """The chosen steps of one package, before and after."""

    def text(measured: Measured) -> str:
        tables = {table.name: table for table in tables_of(measured["integrations"])}
        found = tables.get(f"drop in: {package}", Table("", {}, []))
        rows = {step: found.rows[step] for step in DROP_INS[package] if step in found.rows}
        chosen = Table(package, rows, [])
        return f"{markdown(chosen, found.contenders())}\n\n{provenance(measured, 'integrations')}"

    return ("integrations",), text


# --- where we do not win ---

CLOSE = 1.05  # a lead that is smaller is none
NO_RACE = {"scan", "requests per second"}  # the second says itself who is faster


def losses(measured: Measured) -> Iterator[tuple[float, str, str, str]]:
    """Every row where another way takes no longer than ours: ratio, what, ours, theirs."""
    for table in all_tables(measured).values():
        if table.name in NO_RACE or table.name.startswith("memory"):
            continue
        for workload, row in table.rows.items():
            what = f"{table.name.removeprefix('by size: ')}, {workload}"
            for who, theirs in row.items():
                for name in (rival(who), *with_us(who, row)):
                    ours = row.get(name)
                    if ours and theirs["median"] < CLOSE * ours["median"]:
                        ratio = theirs["median"] / ours["median"]
                        yield ratio, what, said_of(name, ours), said_of(who, theirs)


def said_of(who: str, row: Row) -> str:
    time = time_text(row["median"])
    return time if who in (OURS, OURS_HTTP) else f"{who}: {time}"


def with_us(who: str, row: Mapping[str, Row]) -> Iterator[str]:
    """The same package with our codec in it, and client and server alike."""
    for name in row:
        if name != who and name.replace(f", on {OURS}", "").replace(f" on {OURS}", "") == who:
            yield name


def rival(who: str) -> str:
    """Whom of ours it is compared with; nobody, when it is ours, a limit or another format."""
    client, _, server = who.partition(", ")
    if who == "kserve, KServe":
        return OURS_HTTP
    if server in ("Triton", "KServe"):  # its server against ours, with the same client
        return f"{client}, uvicorn"
    is_ours = client in (OURS, f"{OURS} async", "http.client") or f"on {OURS}" in who
    if is_ours or who in ORIENTATION or who.startswith("limit"):
        return ""
    return f"{OURS}, {server}" if server in ("uvicorn", "granian") else OURS


def losses_text(measured: Measured, most: int | None = None) -> str:
    """A table, the worst first."""
    found = sorted(losses(measured), key=lambda loss: loss[0])
    lines = ["| where we do not win | tensorwire | faster, or as fast |", "|---|---|---|"]
    for ratio, what, ours, theirs in found[:most]:
        lines.append(f"| {what} | {ours} | {theirs} ({ratio_text(ratio)}) |")
    return "\n".join([*lines, "", provenance(measured, *measured)])


# --- the tables ---


def all_tables(measured: Measured) -> dict[str, Table]:
    return {t.name: t for results in measured.values() for t in tables_of(results)}


def some(suite: str, wanted: Callable[[str], bool]) -> Callable[[Measured], str]:
    """The region of these tables of one suite; other formats and limits apart."""

    def text(measured: Measured) -> str:
        parts: list[str] = []
        for table in tables_of(measured[suite]):
            if not wanted(table.name):
                continue
            columns = table.contenders()
            apart = [who for who in columns if who in ORIENTATION]
            parts.append(markdown(table, [who for who in columns if who not in apart]))
            if apart:
                parts.append("For orientation, other formats and limits:")
                parts.append(markdown(table, [OURS, *apart], f"{table.name} (orientation)"))
            if remarks := table.remarks():
                parts.append("\n".join(remarks))
        return "\n\n".join([*parts, provenance(measured, suite)])

    return text


HTTP_TABLES = {  # the servers of each, a limit is on none
    "HTTP echo, our server": {"uvicorn", "granian", ""},
    "HTTP echo, Triton": {"Triton"},
    "HTTP echo, KServe": {"KServe"},
}


def by_server(measured: Measured) -> str:
    """The HTTP echoes: our server; then Triton's and KServe's, beside ours."""
    (table,) = tables_of(measured["http"])
    servers = {
        who: who.partition(", ")[2].removesuffix(f" on {OURS}") for who in table.contenders()
    }
    parts = []
    for title, chosen in HTTP_TABLES.items():
        who = [who for who, server in servers.items() if server in chosen]
        if who:
            parts.append(markdown(table, list(dict.fromkeys([OURS_HTTP, *who])), title))
    remarks = ["\n".join(table.remarks())] if table.notes else []
    return "\n\n".join([*parts, *remarks, provenance(measured, "http")])


def provenance(
    measured: Measured, *suites: str, of: str = "Medians ± half the interquartile range"
) -> str:
    """When, on what, and the command."""
    chosen = [measured[suite] for suite in suites if suite in measured]
    said = dict.fromkeys(f"`{r.command}`, {r.date}, {r.machine}" for r in chosen)
    return f"{of}. {'; '.join(said)}."


def run_text(measured: Measured) -> str:
    """What was measured with what, and what was left out."""
    lines = []
    versions: dict[str, dict[str, str]] = {}
    left_out: dict[str, list[str]] = {}
    for results in measured.values():
        for environment, found in results.versions.items():
            versions.setdefault(environment, {}).update(found)
        for name, reason in results.left_out.items():
            left_out.setdefault(reason, []).append(f"*{name}*")
    for environment, found in versions.items():
        where = f"In {environment}'s environment" if environment else "Here"
        lines.append(f"- {where}: {', '.join(f'{name} {n}' for name, n in found.items())}.")
    for reason, names in left_out.items():
        lines.append(f"- Left out: {', '.join(dict.fromkeys(names))}: {reason}.")
    return "\n".join(lines)


PAGES: dict[Path, dict[str, Region]] = {
    HERE.parent / "README.md": {
        "headline": (("decode",), headline),
        "json": (("json",), json_headline),
        "losses": (("decode", "encode"), lambda measured: losses_text(measured, 8)),
        "echoes": (("http",), echoes),
        "rates": (("throughput",), lambda measured: rates(measured, AT_ONCE)),
        **{f"drop in {package}": drop_in(package) for package in DROP_INS},
    },
    HERE / "README.md": {
        "run": ((), run_text),
        "decode": (("decode",), some("decode", lambda name: name.startswith("decode"))),
        "encode": (("encode",), some("encode", lambda name: name.startswith("encode"))),
        "decode by size": (("decode",), some("decode", lambda name: name.startswith("by size"))),
        "encode by size": (("encode",), some("encode", lambda name: name.startswith("by size"))),
        "bytes": (("bytes",), some("bytes", lambda name: name in BYTES)),
        "http": (("http",), by_server),
        "throughput": (("throughput",), rates),
        "integrations": (("integrations",), some("integrations", lambda name: True)),
        "memory": (("memory",), some("memory", lambda name: True)),
        "body": (("body",), some("body", lambda name: True)),
        "json read": (("json",), some("json", lambda name: name.startswith("read a JSON"))),
        "json write": (("json",), some("json", lambda name: name.startswith("write a JSON"))),
        "json headers": (("json",), some("json", lambda name: " a small " in name)),
        "json memory": (("json",), some("json", lambda name: name.startswith("memory"))),
        "gil": (("gil",), some("gil", lambda name: True)),
        "losses": (("decode", "encode"), losses_text),
    },
}


def rendered(page: str, regions: Mapping[str, Region], measured: Measured) -> str:
    """The page with its regions written anew. ValueError for a region that is not there."""
    for name, (suites, text) in regions.items():
        if not set(suites) <= set(measured):
            continue
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        replacement = f"{begin}\n{text(measured)}\n{end}"
        page, n = pattern.subn(lambda _, new=replacement: new, page)  # type: ignore[misc]
        if n != 1:
            raise ValueError(f"a page has {n} regions {name!r}, not one")
    return page


def written(measured: Measured) -> dict[Path, str]:
    """The pages as they shall be."""
    return {p: rendered(p.read_text(), regions, measured) for p, regions in PAGES.items()}


def replace(texts: Mapping[Path, str]) -> None:
    """Each file as a whole, or not at all; all are written before the first is replaced."""
    made = {path: path.with_name(f".{path.name}.new") for path in texts}
    try:
        for path, new in made.items():
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(texts[path])
        for path, new in made.items():
            os.replace(new, path)
    finally:
        for new in made.values():
            new.unlink(missing_ok=True)
