"""Publish what `python -m benchmarks` has measured: in benchmarks/results, the pages and the plots.

Results of quick runs, and of a machine or checkout that is not fit for it, are rejected. Without
new results, the pages and plots are created again from benchmarks/results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from . import plots, report
from .__main__ import MEASURED


def rejections(measured: Mapping[str, report.Results]) -> list[str]:
    """Return why these results cannot be published."""
    return [
        f"{subject}: {problem}"
        for subject, results in measured.items()
        for problem in results.problems
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.publish",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    measured = report.read_results(MEASURED)
    if found := rejections(measured):
        sys.exit("\n".join(["nothing is published, because of these problems:", *found]))
    tables = report.tables_of({**report.read_results(report.RESULTS), **measured})
    files = {path: text.encode() for path, text in report.rendered(tables).items()}
    files |= plots.drawn(tables)
    for subject, results in measured.items():
        files[report.RESULTS / f"{subject}.json"] = results.text().encode()
    for path, content in files.items():
        path.write_bytes(content)
    for subject in measured:
        (MEASURED / f"{subject}.json").unlink()
    for table in tables.values():
        if beaten := table.beaten_limits():
            print(f"{table.name}\n{beaten}")


if __name__ == "__main__":
    main()
