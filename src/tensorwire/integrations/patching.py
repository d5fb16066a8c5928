"""Replace functions and classes of another package, and restore them: either all or none.

The *original* is the function, method or class of the other package. The *replacement* is called
instead of it while an integration is installed. A replacement calls the original for all arguments
that it does not handle itself.

Other code, such as instrumentation, may have wrapped an original before. A replacement that does
not always call the original would bypass such a wrapper, so it is not installed.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import getattr_static
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

from ..errors import IntegrationError
from .digests import Sources, source_of_imported
from .functions import (
    ABSENT,
    Change,
    assign,
    defined_name,
    foreign_code,
    join_name,
    package_of,
    parameters,
    readable,
    unwrapped,
    values_of,
)

Function = Callable[..., Any]
Untested = Literal["known", "allow", "error"]

logger = logging.getLogger("tensorwire.integrations")


class Replacement(NamedTuple):
    """An original, and the factory that creates its replacement.

    The owner is the module that defines the original, or the class that defines or inherits it. The
    original of a module is replaced in every loaded module that refers to it, under any name. A
    method is replaced only in this class.

    The factory takes the original and returns the replacement, which must have the same parameters.
    For a classmethod or staticmethod, both are plain functions, and the kind of method is kept.

    The replacement relies on the source of the functions whose names are in ``relies_on``. If one
    of them is replaced as well, it also relies on that replacement, which must come first. If each
    call of the replacement calls the original once (``calls_original``), the original may be a
    wrapper of other code.
    """

    owner: ModuleType | type
    name: str
    factory: Callable[[Any], Any]
    relies_on: Sequence[str] = ()
    calls_original: bool = False


class DifferenceError(Exception):
    """A function differs from the tested ones. The message has the reason."""


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
        version check, has the function ``replacements``. Its file ``sources.json``, which
        ``tests/interop/peer_releases.py`` writes, has the digests of all originals, and of the
        functions on which their replacements rely.
    """

    def __init__(self, distribution: str, versions: tuple[str, str], integration: str) -> None:
        self.distribution = distribution
        self.versions = versions
        self.tested = " to ".join(dict.fromkeys(versions))
        self.integration = integration
        self.untested: Untested = "known"
        self.lock = RLock()
        self._changes: list[Change] = []
        self._places: list[Change] = []  # all names that have a replacement as their value

    def install(self, *, untested: Untested = "known") -> None:
        """Replace the functions of the package. A second call has no effect.

        See ``tensorwire.integrations.tritonclient.install``.
        """
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
            values = [(vars(place.owner).get(place.name), place) for place in self._places]
            taken = [
                readable(join_name(place.owner, place.name))
                for value, place in values
                if value is not place.new and foreign_code(value, self.distribution)
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
    def digests(self) -> Path:
        """Return the file with the known digests."""
        return Path(str(sys.modules[self.integration].__file__)).with_name("sources.json")

    def replacements(self) -> dict[str, Replacement]:
        """Return the replacements by the names of the originals.

        Raises IntegrationError if a module or class is missing.
        """
        try:
            found = import_module(f"{self.integration}.patches").replacements()
            return {join_name(each.owner, each.name): each for each in found}
        except (AttributeError, ImportError) as error:
            raise self._error(f"is not laid out as expected ({error})") from error

    def _create(self) -> list[Change]:
        """Create the replacements of the functions that do not differ from the tested ones.

        Logs a warning that names the others or, if ``untested`` is "error", raises
        IntegrationError.
        """
        trusted = None if self._is_newer() else package_of(self.distribution)
        replacements = self.replacements()
        digests = json.loads(self.digests.read_text("ascii"))
        sources = Sources(source_of_imported)

        def is_known(name: str) -> bool:
            is_compared = self.untested != "allow" and package_of(name) != trusted
            return not is_compared or sources.digest(name) in digests.get(name, ())

        changes: list[Change] = []
        reasons: dict[str, str] = {}  # why a replacement is not used
        for name, replacement in replacements.items():
            try:
                for each in dict.fromkeys((name, *replacement.relies_on)):
                    check(each, name, replacement.calls_original, is_known)
                    if each in reasons:
                        raise DifferenceError(f"{readable(each)} is not replaced")
                changes.append(create(replacement))
            except DifferenceError as difference:
                reasons[name] = str(difference)
        if reasons:
            listed = "; ".join(f"{readable(name)} ({reasons[name]})" for name in sorted(reasons))
            if self.untested == "error":
                raise self._error(f"has functions that differ: {listed}")
            logger.warning(
                "These functions of %s %s differ from those that tensorwire was tested with (%s), "
                "and are not replaced: %s",
                *(self.distribution, self._version(), self.tested, listed),
            )
        return changes

    def _restore(self) -> None:
        """Restore the originals, except where the value is not the replacement."""
        assign([change._replace(old=change.new, new=change.old) for change in self._changes])
        self._changes, self._places = [], []

    def _is_newer(self) -> bool:
        """Return whether the version is newer than the tested ones. Raises IntegrationError."""
        found = self._version()
        if found is None:
            raise self._error("is not installed")
        first, last = map(release, self.versions)
        if release(found) < first:
            raise self._error("is too old")
        return release(found)[: len(last)] > last

    def _version(self) -> str | None:
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None

    def _error(self, problem: str) -> IntegrationError:
        found = self._version()
        subject = self.distribution if found is None else f"{self.distribution} {found}"
        return IntegrationError(
            f"{subject} {problem}; tensorwire was tested with {self.distribution} {self.tested}, "
            f"and has changed nothing",
            distribution=self.distribution,
            installed=found,
            tested=self.tested,
        )


def release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: ``2.73.0rc1`` gives (2, 73, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def check(name: str, original: str, calls_original: bool, is_known: Callable[[str], bool]) -> None:
    """Raise DifferenceError if a function is not the tested one.

    It is the ``original`` of a replacement, which has ``calls_original``, or the replacement relies
    on it.
    """
    defined = defined_name(name)
    for value in values_of(name, original):
        if calls_original and name == original and callable(value):
            continue
        if foreign := foreign_code(value, defined):
            raise DifferenceError(f"{readable(name)} is {foreign} now")
    if not is_known(defined):
        raise DifferenceError(f"the source of {readable(name)} is not known")


def create(replacement: Replacement) -> Change:
    """Create the replacement, and check its parameters. Raises DifferenceError."""
    owner, name, factory = replacement[:3]
    found = getattr_static(owner, name, ABSENT)
    if found is ABSENT:
        raise DifferenceError("is missing")
    original = unwrapped(found)
    new = factory(original)
    existing, expected = parameters(original), parameters(new)
    if existing != expected:
        raise DifferenceError(f"has the parameters {existing}, not {expected}")
    if not isinstance(new, type):
        update_wrapper(new, original)  # name and docstring, for `help`
    old = vars(owner).get(name, ABSENT)
    return Change(owner, name, old, new if found is original else type(found)(new))
