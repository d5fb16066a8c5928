"""The plots, as SVG that is the same for the same results, and readable on light and on dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from .missing import Missing
from .results import Results
from .table import LIMIT, Table, nbytes_text, tables_of, time_text

FOLDER = Path(__file__).resolve().parent / "plots"
GREY = "#808890"  # of text and axes: 3.5:1 and more on white and on black
# Of about the same lightness; ours stands out by its width.
COLOURS = ["#d9480f", "#1c7ed6", "#2f9e44", "#9c36b5", "#a88000", "#0c8599", "#e64980", "#7048e8"]
OURS = "tensorwire"
STYLE = {
    **{f"{name}.color": GREY for name in ("text", "xtick", "ytick")},
    **{f"axes.{name}color": GREY for name in ("edge", "label")},
    **{"axes.titlecolor": GREY, "grid.color": GREY, "grid.alpha": 0.25, "axes.grid": True},
    **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False},
    **{"font.size": 9, "font.family": "sans-serif", "axes.titlesize": 10, "legend.fontsize": 8},
    **{"svg.fonttype": "none", "svg.hashsalt": "tensorwire", "path.simplify": False},
}


def pyplot() -> Any:
    """matplotlib, without a screen. Raises Missing."""
    try:
        import_module("matplotlib").use("svg")
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise Missing(f"the plots need matplotlib: {error}") from None


def drawn(measured: Mapping[str, Results]) -> dict[Path, str]:
    """The plots of what was measured. Raises Missing."""
    plt = pyplot()
    tables = {t.name: t for results in measured.values() for t in tables_of(results)}
    found = {}
    with plt.rc_context(STYLE):
        for name, draw in (("size", by_size), ("bytes", by_step), ("http", by_body)):
            figure = draw(plt, tables)
            if figure is not None:
                found[FOLDER / f"{name}.svg"] = svg(figure)
                plt.close(figure)
    return found


def svg(figure: Any) -> str:
    """Without a date, and with two decimals."""
    target = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(target, format="svg", transparent=True, bbox_inches="tight", metadata=nothing)
    text = re.sub(r"(\d+\.\d{2})\d+", r"\1", target.getvalue())
    return re.sub(r"\s*\n\s*", "\n", text)


def lines(axes: Any, table: Table, contenders: list[str], nbytes: dict[str, int]) -> None:
    """Time against size, a line per contender, both logarithmic.

    A package with our codec in it has the package's colour, dotted.
    """
    colours: dict[str, str] = {}
    for who in contenders:
        rows = [(nbytes[w], row[who]["median"]) for w, row in table.rows.items() if who in row]
        rows = [(size, seconds) for size, seconds in rows if size]
        package = who.replace(f", on {OURS}", "").replace(f" on {OURS}", "")
        style = "--" if who in ("memcpy", LIMIT) else "-" if who == package else ":"
        colour = GREY if style == "--" else colours.get(package) or COLOURS[len(colours)]
        if style != "--":
            colours[package] = colour
        width = 2.6 if who.startswith(OURS) else 1.3
        axes.plot(*zip(*rows, strict=True), style, color=colour, lw=width, label=who, marker=".")
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(lambda value, _: nbytes_text(int(value)).replace(".0 ", " "))
    axes.yaxis.set_major_formatter(lambda value, _: time_text(value))
    axes.minorticks_off()


def by_size(plt: Any, tables: Mapping[str, Table]) -> Any:
    """Decode, decode and read, encode; one FP32 tensor of 1 KB to 1 GB."""
    names = ["by size: decode", "by size: decode + touch", "by size: encode"]
    if not set(names) <= set(tables):
        return None
    # The order of the first, so that a contender has one colour in all.
    contenders = list(dict.fromkeys(who for name in names for who in tables[name].contenders()))
    titles = ("decode", "decode, and read every element", "encode")
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True)
    for axes, name, title in zip(panels, names, titles, strict=True):
        table = tables[name]
        sizes = {w: next(iter(row.values()))["nbytes"] for w, row in table.rows.items()}
        lines(axes, table, contenders, sizes)
        axes.set_title(title)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=6, bbox_to_anchor=(0.5, 0))
    return figure


def by_step(plt: Any, tables: Mapping[str, Table]) -> Any:
    """ns per element of each step with BYTES."""
    table = tables.get("BYTES 300k x 0-40 B")
    if table is None:
        return None
    contenders = table.contenders()
    figure, axes = plt.subplots(figsize=(8, 4.2))
    height = 0.8 / len(contenders)
    for number, who in enumerate(contenders):
        bars = [
            (place + number * height, 1e9 * row[who]["median"] / row[who]["n_elements"])
            for place, row in enumerate(table.rows.values())
            if who in row
        ]
        colour = GREY if who == LIMIT else COLOURS[number]
        places, values = zip(*bars, strict=True)
        axes.barh(places, values, height, color=colour, label=who, align="edge")
    axes.set(xscale="log", title=f"{table.name}, ns per element")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    axes.set_yticks([place + 0.4 for place in range(len(table.rows))], list(table.rows))
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


ECHOES = {
    f"{client}, {server}"
    for client in (OURS, "tritonclient", f"tritonclient on {OURS}")
    for server in ("uvicorn", "Triton")
} | {LIMIT}
UNITS = {"KB": 1e3, "MB": 1e6}


def by_body(plt: Any, tables: Mapping[str, Table]) -> Any:
    """HTTP echo against the size of the body."""
    table = tables.get("HTTP echo")
    if table is None:
        return None
    sizes = {}
    for workload in table.rows:
        number, unit, kind = [*workload.split(), ""][:3]
        sizes[workload] = int(float(number) * UNITS[unit]) if kind == "FP32" else 0
    figure, axes = plt.subplots(figsize=(6, 3.6))
    lines(axes, table, [who for who in table.contenders() if who in ECHOES], sizes)
    axes.set(title="HTTP echo on the loopback, FP32: client, server")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
