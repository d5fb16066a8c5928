"""Checks of the digests in `sources.json` of an integration, and a simulated next release."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest

from tensorwire.digests import Sources, source_of_imported
from tensorwire.integrations import patching
from tensorwire.integrations.patching import defined_name, join_name

NEXT_VERSION = "99.0"


def compared_functions(integration: Any) -> list[str]:
    """Return the names of all functions whose sources are compared."""
    replacements, relies_on = integration._PATCH.replacements()
    originals = {join_name(each.owner, each.name) for each in replacements}
    assert relies_on.keys() <= originals, "not replaced"
    return sorted({*map(defined_name, originals.union(*relies_on.values()))})


def check_recorded(integration: Any) -> None:
    """Fail unless the file has all functions, no others, and the digests of the installed ones."""
    patch = integration._PATCH
    command = f"run python tests/interop/peer_releases.py --record {patch.distribution}"
    table = json.loads(patch.digests.read_text("ascii"))
    functions = compared_functions(integration)
    assert sorted(table) == functions, command
    sources = Sources(source_of_imported)
    for function in functions:
        import_module(function.partition(":")[0])
        found = sources.digest(function)
        assert found in table[function], f"{function} {version(patch.distribution)}: {command}"


def simulate_next_release(
    monkeypatch: pytest.MonkeyPatch, module: str = "", old: str = "", new: str = ""
) -> None:
    """Raise the version, and change the source of one module as `install` reads it."""

    def changed_source(name: str) -> str | None:
        source = source_of_imported(name)
        if name != module:
            return source
        assert source
        assert old in source
        return source.replace(old, new)

    monkeypatch.setattr(patching, "version", lambda name: NEXT_VERSION)
    monkeypatch.setattr(patching, "source_of_imported", changed_source)


def replaced(integration: Any) -> set[str]:
    """Return the names of the functions that are replaced at present, without their modules."""
    return {
        f"{change.owner.__name__.rpartition('.')[2]}.{change.name}"
        for change in integration._PATCH._changes
    }
