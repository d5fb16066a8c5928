"""The tables of mutants, and their texts."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "tables"
FIELDS = {"in", "file", "old", "new", "breaks", "equivalent", "survives", "sanitizers"}


class TableError(Exception):
    """A table does not match the source code."""


@dataclass(frozen=True)
class Mutant:
    """One small bug: a text of a source file and the text that replaces it."""

    name: str  # table/id
    area: str  # the folder of the table; its tables share their tests
    file: str
    tests: tuple[str, ...]  # the most specific one first
    old: str
    new: str
    breaks: str  # what goes wrong with the bug
    function: str | None = None  # the function that contains `old`, such as "Body.__cinit__"
    equivalent: str | None = None  # why no test can notice the bug
    survives: str | None = None  # why no test notices it, although one could
    sanitizers: bool = False  # only a build with the sanitizers notices it
    environment: str | None = None  # the program in whose environment the tests run

    @property
    def explained(self) -> str | None:
        """How the table explains that no test fails; None if one must."""
        return "equivalent" if self.equivalent else "explained" if self.survives else None

    def apply(self, text: str) -> str:
        """Return the text of the file with the bug. Raises TableError if `old` is not unique."""
        begin, end = 0, len(text)
        for name in self.function.split(".") if self.function else ():
            begin, end = self._block(text, name, begin, end)
        block = text[begin:end]
        n = block.count(self.old)
        if n != 1:
            where = f" in {self.function}" if self.function else ""
            raise TableError(f"{self.name}: `old` occurs {n} times in {self.file}{where}")
        return text[:begin] + block.replace(self.old, self.new) + text[end:]

    def _block(self, text: str, name: str, begin: int, end: int) -> tuple[int, int]:
        """Return where the definition of a function or class begins and ends.

        It ends before a line that is not indented more than its first line.
        """
        words = "async|cdef|cpdef|def|class|static"
        definition = re.compile(rf"^( *)(?:{words}) [^=(\n]*\b{name}\s*[(:].*$", re.MULTILINE)
        found = list(definition.finditer(text, begin, end))
        if len(found) != 1:
            raise TableError(f"{self.name}: {self.file} has {len(found)} definitions of {name}")
        following = re.compile(rf"^ {{0,{len(found[0][1])}}}[^ \n)}}]", re.MULTILINE)
        stop = following.search(text, found[0].end(), end)
        return found[0].start(), stop.start() if stop else end


def read_tables() -> dict[str, list[Mutant]]:
    """Return the mutants of each table. Raises TableError."""
    tables = {}
    for path in sorted(TABLES.glob("*/*.toml")):
        table = tomllib.loads(path.read_text())
        common = {"area": path.parent.name, "file": table["file"], "tests": tuple(table["tests"])}
        common["environment"] = table.get("environment")
        tables[path.stem] = [
            _mutant(f"{path.stem}/{key}", row, common) for key, row in table["mutants"].items()
        ]
    return tables


def _mutant(name: str, row: dict[str, Any], common: dict[str, Any]) -> Mutant:
    if unknown := row.keys() - FIELDS:
        raise TableError(f"{name}: unknown {', '.join(sorted(unknown))}")
    fields = {("function" if key == "in" else key): value for key, value in row.items()}
    return Mutant(name, **{**common, **fields})
