"""Replace functions and classes of another package, and restore them: either all or none.

The *original* is the function, method or class of the other package. The *replacement* is called
instead of it while an integration is installed. All integrations create replacements in the same
way: a factory named ``replace_<name>`` takes the original and returns the replacement, which has
the same name and parameters. A replacement calls the original for all arguments that it does not
handle itself.

Other code, such as instrumentation, may have wrapped an original before. A replacement that does
not always call the original would bypass such a wrapper, so it is not installed.

Functions are named ``package.module:Class.function``, as in the digests.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import Parameter, Signature, getattr_static, signature
from pathlib import Path
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any, Literal, NamedTuple, get_args

from ..digests import Sources, source_of_imported
from ..errors import IntegrationError
from ..versions import release

Function = Callable[..., Any]
Owner = ModuleType | type
Untested = Literal["known", "allow", "error"]

logger = logging.getLogger("tensorwire.integrations")


class Replacement(NamedTuple):
    """An original, and the factory that creates its replacement.

    Attributes
    ----------
    owner
        The module that defines the original, or the class that defines or inherits it. The original
        of a module is replaced in every loaded module that refers to it, under any name. A method
        is replaced only in this class.
    name
        The name of the original in the namespace of ``owner``.
    factory
        Takes the original and returns the replacement, which must have the same parameters. For a
        classmethod or staticmethod, both are plain functions, and the kind of method is kept.
    calls_original
        True if each call of the replacement calls the original once. The original, a function or a
        method, may then be a wrapper of other code.
    """

    owner: Owner
    name: str
    factory: Callable[[Any], Any]
    calls_original: bool = False


ABSENT = object()
"""A placeholder for the value of an attribute that the owner does not define itself."""


class Change(NamedTuple):
    """One assignment: ``old`` and ``new`` are values of a name in the namespace of the owner."""

    owner: Owner
    name: str
    old: Any
    new: Any


class DifferenceError(Exception):
    """A function differs from the tested ones. The message has the reason."""


class Patch:
    """The replacements for one package, which can be installed and uninstalled.

    Its methods are the public functions of an integration.

    Parameters
    ----------
    distribution
        The name of the package, and of its distribution on PyPI.
    versions
        The first and the last version that were tested. Both, and all versions between them, are
        accepted. ``"2.73"`` as the last version includes every 2.73.x.
    integration
        The name of a package of tensorwire. Its module ``patches``, which is imported after the
        version check, has the function ``replacements`` and the dict ``RELIES_ON``: for the name of
        an original, the names of other functions on whose source its replacement relies. If one of
        these is replaced as well, the replacement also relies on that replacement. For replacements
        that must be installed together, each relies on the others. The file ``sources.json`` has
        the known digests of all these functions. ``tests/interop/peer_releases.py`` writes it.
    """

    def __init__(self, distribution: str, versions: tuple[str, str], integration: str) -> None:
        self.distribution = distribution
        self.versions = versions
        self.integration = integration
        self.untested: Untested = "known"  # as in the last call of `install`
        self._changes: list[Change] = []
        self._places: list[Change] = []  # all names that have a replacement as their value
        self.lock = RLock()

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
            is_newer = self._is_newer()
            self._changes = self._select(*self.replacements(), is_newer)
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
            names = [
                join_name(place.owner, place.name)
                for place in self._places
                if self._is_taken(place)
            ]
            if names:
                raise self._error(
                    f"has functions that other code has wrapped or replaced since the integration "
                    f"was installed: {', '.join(map(readable, names))}. Undo this first"
                )
            self._restore()

    def is_installed(self) -> bool:
        """Return whether the package uses this codec."""
        return bool(self._changes)

    def _is_newer(self) -> bool:
        """Return whether the version is newer than the tested ones. Raises IntegrationError."""
        found = self._version()
        if found is None:
            raise self._error("is not installed")
        first, last = map(release, self.versions)
        if release(found) < first:
            raise self._error("is too old")
        return release(found)[: len(last)] > last

    def replacements(self) -> tuple[list[Replacement], Mapping[str, Sequence[str]]]:
        """Return the replacements and ``RELIES_ON``.

        Raises IntegrationError if a module or class is missing.
        """
        try:
            patches = import_module(f"{self.integration}.patches")
            return list(patches.replacements()), patches.RELIES_ON
        except (AttributeError, ImportError) as error:
            raise self._error(f"is not laid out as expected ({error})") from error

    def _select(
        self, found: list[Replacement], relies_on: Mapping[str, Sequence[str]], is_newer: bool
    ) -> list[Change]:
        """Create the replacements of the functions that do not differ from the tested ones.

        Logs a warning that names the others or, if ``untested`` is "error", raises
        IntegrationError.
        """
        sources = Sources(source_of_imported)
        digests = json.loads(self.digests.read_text("ascii"))
        trusted = None if is_newer else package_of(self.distribution)

        def is_known(name: str) -> bool:
            is_compared = self.untested != "allow" and package_of(name) != trusted
            return not is_compared or sources.digest(name) in digests.get(name, ())

        changes: dict[str, Change] = {}
        reasons: dict[str, str] = {}  # why a replacement is not used, by the name of the original
        for replacement in found:
            name = join_name(replacement.owner, replacement.name)
            try:
                for each in dict.fromkeys((name, *relies_on.get(name, ()))):
                    check(each, name, replacement.calls_original, is_known)
                changes[name] = create(replacement)
            except DifferenceError as difference:
                reasons[name] = str(difference)
        n_reasons = -1
        while n_reasons < len(reasons):  # leave out what relies on a replacement that is left out
            n_reasons = len(reasons)
            for name in changes.keys() - reasons.keys():
                for each in relies_on.get(name, ()):
                    if each in reasons:
                        reasons[name] = f"{readable(each)} is not replaced"
        if reasons:
            listed = "; ".join(f"{readable(name)} ({reasons[name]})" for name in sorted(reasons))
            if self.untested == "error":
                raise self._error(f"has functions that differ: {listed}")
            logger.warning(
                "These functions of %s %s differ from those that tensorwire was tested with (%s), "
                "and are not replaced: %s",
                self.distribution,
                self._version(),
                self._tested,
                listed,
            )
        return [change for name, change in changes.items() if name not in reasons]

    def _is_taken(self, place: Change) -> bool:
        """Return whether code of another package is in the place of a replacement."""
        value = vars(place.owner).get(place.name)
        return value is not place.new and foreign_code(value, self.distribution) is not None

    def _restore(self) -> None:
        """Restore the originals, except where the value is not the replacement."""
        assign([change._replace(old=change.new, new=change.old) for change in self._changes])
        self._changes, self._places = [], []

    @property
    def digests(self) -> Path:
        """Return the file with the known digests."""
        return Path(str(sys.modules[self.integration].__file__)).with_name("sources.json")

    def _version(self) -> str | None:
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None

    @property
    def _tested(self) -> str:
        return " to ".join(dict.fromkeys(self.versions))

    def _error(self, problem: str) -> IntegrationError:
        found = self._version()
        subject = self.distribution if found is None else f"{self.distribution} {found}"
        return IntegrationError(
            f"{subject} {problem}; tensorwire was tested with {self.distribution} {self._tested}, "
            f"and has changed nothing",
            distribution=self.distribution,
            installed=found,
            tested=self._tested,
        )


def check(name: str, original: str, calls_original: bool, is_known: Callable[[str], bool]) -> None:
    """Raise DifferenceError if a function on which a replacement relies is not the tested one.

    ``original`` and ``calls_original`` are those of the replacement, which also relies on its
    original.
    """
    defined = defined_name(name)
    for value in values_of(name, original):
        is_called = calls_original and name == original and callable(value)
        foreign = None if is_called else foreign_code(value, defined)
        if foreign is not None:
            raise DifferenceError(f"{readable(name)} is {foreign} now")
    if not is_known(defined):
        raise DifferenceError(f"the source of {readable(name)} is not known")


def create(replacement: Replacement) -> Change:
    """Create the replacement, and check its parameters. Raises DifferenceError."""
    owner, name, factory, _ = replacement
    found = getattr_static(owner, name, ABSENT)
    if found is ABSENT:
        raise DifferenceError("is missing")
    original = unwrapped(found)
    new = factory(original)
    if callable(original):
        existing, expected = parameters(original), parameters(new)
        if existing != expected:
            raise DifferenceError(f"has the parameters {existing}, not {expected}")
        if not isinstance(new, type):
            update_wrapper(new, original)  # name and docstring, for `help`
    old = vars(owner).get(name, ABSENT)
    return Change(owner, name, old, new if found is original else type(found)(new))


def unwrapped(found: Any) -> Any:
    """Return the function of a classmethod or staticmethod, and any other object itself."""
    # The type itself: isinstance() is also true for a wrapper that imitates a classmethod.
    return found.__func__ if issubclass(type(found), classmethod | staticmethod) else found


def parameters(function: Any) -> str:
    """Return the parameters that callers depend on: names, kinds and defaults, not annotations."""
    bare = [
        parameter.replace(annotation=Parameter.empty)
        for parameter in signature(function).parameters.values()
    ]
    return str(Signature(bare))


def assign(changes: Sequence[Change]) -> list[Change]:
    """Assign the new values, and return all assignments that were made.

    The values of a module are assigned in all loaded modules, under any name.
    """
    done = []
    for change in changes:
        owner, name, old, new = change
        if isinstance(owner, type) and vars(owner).get(name, ABSENT) is old:
            if new is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, new)
            done.append(change)
    new_by_id = {id(c.old): c.new for c in changes if isinstance(c.owner, ModuleType)}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        # Use the namespace itself: reading the attributes of a module may import other modules, or
        # emit deprecation warnings.
        namespace = vars(module)
        if new_by_id.keys().isdisjoint(map(id, list(namespace.values()))):
            continue  # almost all of the loaded modules, which may be thousands
        for name, value in list(namespace.items()):
            if id(value) in new_by_id:
                namespace[name] = new_by_id[id(value)]
                done.append(Change(module, name, value, namespace[name]))
    return done


# --- the code of a function ----------------------------------------------------------------------


def foreign_code(value: Any, name: str) -> str | None:
    """Return the name of the code of a function or class, if it is not of the package of ``name``.

    Returns None for the package's own code, and for constants.
    """
    parts = (value.fget, value.fset, value.fdel) if type(value) is property else (value,)
    for part in parts:
        found = place(part)
        if found is not None and package_of(found) != package_of(name):
            return readable(found)
    return None


def place(value: Any) -> str | None:
    """Return where the code of a function, class or other callable is defined.

    Returns None for constants. The attributes of a function are not used: a wrapper made with
    ``functools.wraps`` has those of the function that it wraps.
    """
    value = unwrapped(value)
    kind = type(value)
    if kind is FunctionType:
        return f"{value.__globals__.get('__name__')}:{value.__code__.co_qualname}"
    if issubclass(kind, type):
        return f"{value.__module__}:{value.__qualname__}"
    is_function = callable(value) or hasattr(kind, "__get__")  # or becomes a method in a class
    return f"{kind.__module__}:{kind.__qualname__}" if is_function else None


def values_of(name: str, user: str) -> list[Any]:
    """Return the values that a name has at present; None for a missing one.

    There are two if the module of another name, ``user``, has imported the function or class.
    """
    path = name.partition(":")[2].split(".")
    found = []
    for module in dict.fromkeys(each.partition(":")[0] for each in (name, user)):
        value: Any = sys.modules.get(module)
        for attribute in path:
            value = None if value is None else getattr_static(value, attribute, None)
        found.append(value)
    return found


# --- names ---------------------------------------------------------------------------------------


def join_name(owner: Owner, name: str) -> str:
    """Return ``package.module:name`` or ``package.module:Class.name``."""
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}:{name}"
    return f"{owner.__module__}:{owner.__qualname__}.{name}"


def defined_name(name: str) -> str:
    """Return the name of a method in the class that defines it, which may be a base class."""
    kind, _, method = name.rpartition(".")
    bases = getattr(values_of(kind, kind)[0], "__mro__", ()) if ":" in kind else ()
    base = next((base for base in bases if method in vars(base)), None)
    return name if base is None else join_name(base, method)


def package_of(name: str) -> str:
    """Return the package of a function or of a module."""
    return name.partition(":")[0].partition(".")[0].replace("-", "_")


def readable(name: str) -> str:
    """Return a name as it is written in messages."""
    return name.replace(":", ".")
