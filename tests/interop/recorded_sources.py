"""Checks of the functions that an integration replaces or relies on.

These are their digests in `sources.json`, what a program sees of the replacements, a simulated next
release, and wrappers of other code.
"""

from __future__ import annotations

import inspect
import logging
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.metadata import version
from inspect import getattr_static, getfullargspec, signature
from types import FunctionType
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

import tensorwire as tw
from support.wrappers import wrapped
from tensorwire.integrations import patching
from tensorwire.integrations.digests import Sources, source_of_imported
from tensorwire.integrations.functions import (
    defined_name,
    join_name,
    parameters,
    readable,
    unwrapped,
)

NEXT_VERSION = "99.0"


@contextmanager
def installed(integration: Any, **options: Any) -> Iterator[None]:
    """Install an integration for the duration of a ``with`` block."""
    integration.install(**options)
    try:
        yield
    finally:
        integration.uninstall()


def known_digests(integration: Any) -> dict[str, dict[str, str]]:
    """Return the recorded digests of each function, of all groups."""
    groups = integration._PATCH.groups().values()
    return {name: digests for group in groups for name, digests in group.items()}


def compared_functions(integration: Any) -> list[str]:
    """Return the names of all functions whose sources are compared."""
    replacements = integration._PATCH.replacements()
    names = list(replacements)
    for position, name in enumerate(names):
        later = {*names[position + 1 :]}.intersection(replacements[name].relies_on)
        assert not later, f"{later} must come before {name}, which relies on it"
    relies_on = [each.relies_on for each in replacements.values()]
    return sorted({*map(defined_name, {*names}.union(*relies_on))})


def check_recorded(integration: Any) -> None:
    """Fail unless the file has all functions, no others, and the digests of the installed ones."""
    patch = integration._PATCH
    command = f"run python tests/interop/peer_releases.py --record {patch.distribution}"
    table = known_digests(integration)
    functions = compared_functions(integration)
    assert sorted(table) == functions, command
    sources = Sources(source_of_imported)
    for function in functions:
        import_module(function.partition(":")[0])
        found = sources.digest(function)
        assert found in table[function], f"{function} {version(patch.distribution)}: {command}"


ATTRIBUTES = ["module", "name", "qualname", "doc", "defaults", "kwdefaults", "annotations"]
ATTRIBUTES += ["type_params"]  # since Python 3.12
FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
FLAGS |= inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def shown(owner: Any, name: str) -> dict[str, Any]:
    """Return what a program sees of a function, also through a wrapper, a mock and a pickle."""
    value = getattr_static(owner, name)
    function: Any = unwrapped(value)
    if isinstance(function, type):
        return {"parameters": parameters(function)}
    code = function.__code__
    is_own = function.__qualname__.rpartition(".")[0] == getattr(owner, "__qualname__", "")
    attributes = {each: getattr(function, f"__{each}__", None) for each in ATTRIBUTES}
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    return attributes | {
        "kind": (type(value), inspect.iscoroutinefunction(function), code.co_flags & FLAGS),
        "code": (counts, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]),
        "argspec": getfullargspec(function),
        "signature": signature(function),
        "wrapper": signature(wraps(function)(lambda *arguments, **options: None)),
        "mock": signature(create_autospec(function)),
        "source": inspect.getsource(function),
        # The name of an inherited method is that of the original.
        "pickle": is_own and pickle.dumps(getattr(owner, name)),
    }


def check_replacements_are_shown_alike(integration: Any) -> None:
    """Compare what a program sees of each function with and without the integration."""
    replaced = integration._PATCH.replacements()
    before = {name: shown(each.owner, each.name) for name, each in replaced.items()}
    with installed(integration, untested="error"):
        assert {name: shown(each.owner, each.name) for name, each in replaced.items()} == before


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
    """Return the names of the functions that are replaced at present, without their package."""
    names = [join_name(change.owner, change.name) for change in integration._PATCH._changes]
    return {readable(name).partition(".")[2] for name in names}


def check_next_release(
    integration: Any,
    caplog: pytest.LogCaptureFixture,
    changed: tuple[str, str, str],
    left_out: set[str],
) -> None:
    """Check what `install` leaves out in a newer release, in which one source has changed.

    `changed` has the module, and the old and the new text. What relies on it is left out, too.
    """
    caplog.clear()
    logging.disable(logging.NOTSET)  # after the fixture no_logging
    with installed(integration):
        everything = replaced(integration)
    with pytest.MonkeyPatch.context() as monkeypatch:
        simulate_next_release(monkeypatch, *changed)
        with installed(integration):
            assert replaced(integration) == everything - left_out
        named = re.findall(r"(?:: |; )\w+\.(\S+) \(", caplog.text)
        assert sorted(named) == sorted(left_out)
        if left_out:
            with pytest.raises(tw.IntegrationError, match="has functions that differ"):
                integration.install(untested="error")
        assert not integration.is_installed()


# --- wrappers of other code ---


def owner_of(name: str) -> tuple[Any, str]:
    """Return the module or class that defines a function, and the name of the function there."""
    module, _, path = name.partition(":")
    owner: Any = import_module(module)
    *classes, function = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, function


def wrappable_functions(integration: Any, *kinds: type) -> list[str]:
    """Return the recorded functions that are defined as functions or methods, or of these kinds."""
    kinds = (FunctionType, classmethod, staticmethod, *kinds)
    names = known_digests(integration)
    return [name for name in names if type(getattr_static(*owner_of(name))) in kinds]


def check_calls_of_wrapper(
    integration: Any, name: str, wrap: Any, workload: Callable[[], None]
) -> None:
    """Check that a wrapper is called as often as without the integration."""
    count, n_calls = Mock(), []
    with wrapped(*owner_of(name), wrap, count):
        for is_installed in (False, True, False):
            count.reset_mock()
            if is_installed:
                integration.install()
            workload()
            integration.uninstall()
            n_calls.append(count.call_count)
    assert n_calls[0] > 0
    assert n_calls == [n_calls[0]] * 3
