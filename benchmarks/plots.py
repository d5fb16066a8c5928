"""Draw the plots of the manual, with a transparent background.

They are the same for the same results. The plot of README.md is PNG, because package indexes do not
show every SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from .contenders import LIMITS
from .report import (
    ECHO,
    LIMIT,
    OURS,
    SERVE,
    Table,
    Tables,
    nbytes_text,
    time_text,
    without_tensorwire,
)

PLOTS = Path(__file__).resolve().parent / "plots"
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


def drawn(tables: Tables) -> dict[Path, bytes]:
    """Return the files of the plots."""
    import_module("matplotlib").use("svg")
    plt: Any = import_module("matplotlib.pyplot")
    found = {}
    with plt.rc_context(STYLE):
        for name, draw in PLOTTED.items():
            figure = draw(plt, tables)
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
        x, y = [size for size, _ in rows], [seconds for _, seconds in rows]
        axes.plot(x, y, style, color=colour, lw=width, label=contender, marker=".")
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(lambda value, _: nbytes_text(int(value)).replace(".0 ", " "))
    axes.yaxis.set_major_formatter(lambda value, _: time_text(value))
    axes.minorticks_off()


HEADLINE_LINES = (OURS, "tritonclient", "kserve", "by hand", "memcpy")


def plot_headline(plt: Any, tables: Tables) -> Any:
    """Plot the time of decoding one FP32 tensor, with the name of each contender at its line."""
    table = tables["by size: decode"]
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


PLOTTED_ECHOES = {
    f"{client}, {server}" for client in (OURS, "tritonclient") for server in (SERVE, "Triton")
} | {LIMIT}
UNITS = {"B": 1, "KB": 1e3, "MB": 1e6}


def plot_http(plt: Any, tables: Tables) -> Any:
    """Plot the time of an HTTP echo against the size of the body."""
    table = tables[ECHO]
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
    "http.svg": plot_http,
}
