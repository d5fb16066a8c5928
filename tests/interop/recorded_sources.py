"""Check that the digests in `sources.json` of an integration are those of the installed release."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import version
from typing import Any

from tensorwire.integrations.digests import Sources, source_of_imported

COMMAND = "python tests/interop/peer_releases.py --record"


def check_recorded(integration: Any) -> None:
    """Fail unless the file has all functions, no others, and their digests."""
    patch = integration._PATCH
    table = json.loads(patch.digests.read_text("ascii"))
    functions = patch.compared(integration._replacements)
    assert sorted(table) == functions, f"run {COMMAND} {patch.distribution}"
    sources = Sources(source_of_imported)
    for function in functions:
        import_module(function.partition(":")[0])
        releases = table[function].get(sources.digest(function))
        assert releases, f"{function} of {version(patch.distribution)}: run {COMMAND}"
