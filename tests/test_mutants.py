"""The tables of mutants match the source code and the tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mutation.run import select
from mutation.table import Mutant, TableError, read_tables

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.no_sanitizers(reason="it reads the repository"),
    pytest.mark.skipif(
        not (ROOT / "src" / "tensorwire").exists(), reason="this checkout has no source code"
    ),
]
TABLES = read_tables()


@pytest.mark.parametrize("table", TABLES)
def test_texts_are_found_once(table: str) -> None:
    for mutant in TABLES[table]:
        text = (ROOT / mutant.file).read_text()
        assert mutant.apply(text) != text, mutant.name
        assert mutant.breaks.endswith("."), mutant.name
        assert not (mutant.equivalent and mutant.survives), mutant.name
        for test in mutant.tests:
            assert (ROOT / "tests" / test).exists(), test


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("body/none", "there is no mutant body/none; the mutants of body are: header-length, "),
        ("none", "there is no table none; the tables are: "),
        ("none/complete", "there is no table none; the tables are: "),
    ],
)
def test_unknown_names_are_rejected(name: str, message: str) -> None:
    with pytest.raises(SystemExit, match=f"^{message}"):
        select(TABLES, [name])
    assert [mutant.name for mutant in select(TABLES, ["body/complete"])] == ["body/complete"]


SOURCE = """
cdef class First:
    def value(
        self, number
    ):
        return number + 1

    def other(self):
        return 1


class Second:
    def value(self): return 1

    value = value(1)
"""


def mutant(old: str, function: str | None = None) -> Mutant:
    return Mutant("table/id", "codec", "file.py", (), old, "2", "It is wrong.", function)


@pytest.mark.parametrize(
    ("function", "n"), [("First.value", 1), ("Second.value", 1), ("First", 2), ("First.other", 1)]
)
def test_text_is_searched_in_the_function(function: str, n: int) -> None:
    if n > 1:
        with pytest.raises(TableError, match=r"`old` occurs 2 times in file\.py in First"):
            mutant("1", function).apply(SOURCE)
        return
    found = mutant("1", function).apply(SOURCE)
    changed = [line for line in found.splitlines() if line not in SOURCE.splitlines()]
    assert len(changed) == 1
    assert "2" in changed[0]


@pytest.mark.parametrize("function", ["value", "missing", "First.missing", "Second.other"])
def test_function_that_is_not_found_once_is_an_error(function: str) -> None:
    with pytest.raises(TableError, match="definitions of"):
        mutant("1", function).apply(SOURCE)
    with pytest.raises(TableError, match="occurs 0 times"):
        replace(mutant("3"), function=None).apply(SOURCE)
