"""Replace functions and classes of another package, and restore them: either all or none.

The *original* is the function, method or class of the other package. The *replacement* is called
instead of it while an integration is installed, and calls it for all arguments that it does not
handle itself. If other code, such as instrumentation, has wrapped an original before, a replacement
that does not always call the original would bypass the wrapper, so it is not installed.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

from ..errors import IntegrationError
from .digests import Sources, source_of_imported
from .functions import (
    Change,
    DifferenceError,
    assign,
    current_values,
    defined_name,
    foreign_code,
    join_name,
    make_change,
    package_of,
    readable,
)

Function = Callable[..., Any]
Untested = Literal["known", "allow", "error"]

logger = logging.getLogger("tensorwire.integrations")


class Replacement(NamedTuple):
    """An original, and the factory that creates its replacement.

    The owner is the module that defines the original, or the class that defines or inherits it. The
    original of a module is replaced in every loaded module that refers to it, under any name; a
    method only in this class.

    The factory takes the original and returns the replacement, which must have the same parameters.
    Both are plain functions, also for a classmethod or staticmethod.

    The replacement relies on the source of the functions in ``relies_on``, which names groups of
    the file with the digests or functions, and on the replacements of these functions, which must
    come first. If each call of the replacement calls the original
    once (``calls_original``), the original may be a wrapper of other code.
    """

    owner: ModuleType | type
    name: str
    factory: Callable[[Any], Any]
    relies_on: Sequence[str] = ()
    calls_original: bool = False


class Patch:
    """The replacements for one package. Its methods are the public functions of an integration.

    Parameters
    ----------
    distribution
        The name of the package, and of its distribution on PyPI.
    versions
        The first and the last version that were tested. ``"2.73"`` includes every 2.73.x.
    integration
        The name of a package of tensorwire. Its module ``patches``, which is imported after the
        version check, has the function ``replacements``. Its file ``sources.json`` has groups of
        functions, and their digests, which ``tests/interop/peer_releases.py`` writes.
    """

    def __init__(self, distribution: str, versions: tuple[str, str], integration: str) -> None:
        self.distribution = distribution
        self.versions = versions
        self.tested = " to ".join(dict.fromkeys(versions))
        self.integration = integration
        self.untested: Untested = "known"
        self.installed: str | None = None  # the version
        self.lock = RLock()
        self._changes: list[Change] = []
        self._places: list[Change] = []  # all names that have a replacement as their value

    def install(self, *, untested: Untested = "known") -> None:
        """Replace the functions of the package. See ``integrations.tritonclient.install``."""
        if untested not in get_args(Untested):
            values = ", ".join(map(repr, get_args(Untested)))
            raise ValueError(f"untested must be one of {values}, not {untested!r}")
        with self.lock:
            if self._changes:
                return
            self.untested = untested
            self._changes = self._create()
            try:
                self._places = assign(self._changes)
            except BaseException:
                self._restore()
                raise

    def uninstall(self) -> None:
        """Restore the functions of the package, also in modules that were imported later.

        Existing objects, such as requests and results, remain usable. This function is thread-safe.

        Raises
        ------
        IntegrationError
            Other code has wrapped or replaced a function since ``install``. Its wrapper, which
            would go on calling this codec, has to be removed first. Nothing was changed.
        """
        with self.lock:
            taken = [
                readable(join_name(owner, name))
                for owner, name, _, new in self._places
                if (value := vars(owner).get(name)) is not new
                and foreign_code(value, self.distribution)
            ]
            if taken:
                raise self._error(
                    f"has functions that other code has wrapped or replaced since the integration "
                    f"was installed: {', '.join(taken)}. Undo this first"
                )
            self._restore()

    def is_installed(self) -> bool:
        """Return whether the package uses this codec."""
        return bool(self._changes)

    @property
    def file(self) -> Path:
        """The file with the known digests."""
        return Path(str(sys.modules[self.integration].__file__)).with_name("sources.json")

    def groups(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return the groups of functions, with the releases of each digest of a function."""
        groups: dict[str, dict[str, dict[str, str]]] = json.loads(self.file.read_text("ascii"))
        return groups

    def replacements(self) -> dict[str, Replacement]:
        """Return the replacements by the names of the originals. Raises IntegrationError.

        They rely on functions: those of the groups that they name.
        """
        groups, found = self.groups(), {}
        try:
            for each in import_module(f"{self.integration}.patches").replacements():
                relies_on = [name for key in each.relies_on for name in groups.get(key, (key,))]
                found[join_name(each.owner, each.name)] = each._replace(relies_on=relies_on)
        except (AttributeError, ImportError) as error:
            raise self._error(f"is not laid out as expected ({error})") from error
        return found

    def _create(self) -> list[Change]:
        """Create the replacements of the functions that do not differ from the tested ones.

        Logs a warning or, if ``untested`` is "error", raises IntegrationError for the others.
        """
        trusted = None if self._is_newer() else package_of(self.distribution)
        replacements = self.replacements()
        digests = {name: known for group in self.groups().values() for name, known in group.items()}
        sources = Sources(source_of_imported)

        def check(name: str, replacement: str, may_be_wrapped: bool) -> None:
            defined = defined_name(name)
            for value in current_values(name, replacement):
                foreign = foreign_code(value, defined)
                if foreign and not (may_be_wrapped and name == replacement and callable(value)):
                    raise DifferenceError(f"{readable(name)} is {foreign} now")
            is_compared = self.untested != "allow" and package_of(defined) != trusted
            if is_compared and sources.digest(defined) not in digests.get(defined, ()):
                raise DifferenceError(f"the source of {readable(name)} is not known")

        changes: list[Change] = []
        reasons: dict[str, str] = {}
        for name, replacement in replacements.items():
            try:
                for each in dict.fromkeys((name, *replacement.relies_on)):
                    check(each, name, replacement.calls_original)
                    if each in reasons:
                        raise DifferenceError(f"{readable(each)} is not replaced")
                changes.append(make_change(*replacement[:3]))
            except DifferenceError as difference:
                reasons[name] = str(difference)
        if reasons:
            listed = "; ".join(f"{readable(name)} ({reasons[name]})" for name in sorted(reasons))
            if self.untested == "error":
                raise self._error(f"has functions that differ: {listed}")
            logger.warning(
                f"These functions of {self._subject()} differ from those that tensorwire was "
                f"tested with ({self.tested}), and are not replaced: {listed}"
            )
        return changes

    def _restore(self) -> None:
        """Restore the originals, except where the value is not the replacement."""
        assign([change._replace(old=change.new, new=change.old) for change in self._changes])
        self._changes, self._places = [], []

    def _is_newer(self) -> bool:
        """Return whether the version is newer than the tested ones. Raises IntegrationError."""
        try:
            self.installed = version(self.distribution)
        except PackageNotFoundError:
            raise self._error("is not installed") from None
        first, last = map(release, self.versions)
        if release(self.installed) < first:
            raise self._error("is too old")
        return release(self.installed)[: len(last)] > last

    def _subject(self) -> str:
        return f"{self.distribution} {self.installed or ''}".rstrip()

    def _error(self, problem: str) -> IntegrationError:
        return IntegrationError(
            f"{self._subject()} {problem}; tensorwire was tested with {self.distribution} "
            f"{self.tested}, and has changed nothing",
            distribution=self.distribution,
            installed=self.installed,
            tested=self.tested,
        )


def release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: ``2.73.0rc1`` gives (2, 73, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()
