"""Replace functions and classes of another package, and restore them: either all or none.

The *original* is the function, method or class of the other package. The *replacement* is called
instead of it while an integration is installed. All integrations create replacements in the same
way: a factory named ``replace_<name>`` takes the original and returns the replacement, which has
the same name and parameters. A replacement calls the original for all arguments that it does not
handle itself.

Other code, such as instrumentation, may have wrapped an original before. A replacement that does
not always call the original would bypass such a wrapper, so it is not installed.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial, partialmethod, update_wrapper
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
Untested = Literal["known", "allow", "error"]

logger = logging.getLogger("tensorwire.integrations")


class Replacement(NamedTuple):
    """An original, and the factory that creates its replacement.

    Attributes
    ----------
    owner
        The module or class that defines the original. The original of a module is replaced in every
        loaded module that refers to it, under any name. A method is replaced only in its class.
    name
        The name of the original in the namespace of ``owner``.
    factory
        Takes the original and returns the replacement, which must have the same parameters. For a
        classmethod or staticmethod, both are plain functions, and the kind of method is kept.
    inherited
        True if the class inherits the original. The replacement then becomes an attribute of the
        class itself, and uninstalling deletes that attribute.
    calls_original
        True if each call of the replacement calls the original once. The original, a function or a
        method, may then be a wrapper of other code.
    """

    owner: ModuleType | type
    name: str
    factory: Callable[[Any], Any]
    inherited: bool = False
    calls_original: bool = False


TYPE_MODULES = ("typing", "types")
"""The modules of type aliases, which are callable but no functions."""

ABSENT = object()
"""A placeholder for the value of an attribute that the owner does not define itself."""


class Change(NamedTuple):
    """One assignment: ``old`` and ``new`` are values of a name in the namespace of the owner."""

    owner: ModuleType | type
    name: str
    old: Any
    new: Any


class DifferenceError(Exception):
    """An original differs from the tested ones. The message follows its name."""


class MismatchError(DifferenceError):
    """An original is missing, or its replacement has other parameters.

    ``about_package`` completes a sentence about the package.
    """

    def __init__(self, message: str, about_package: str) -> None:
        super().__init__(message)
        self.about_package = about_package


class Patch:
    """The replacements for one distribution, which can be installed and uninstalled.

    All methods are thread-safe and can be called repeatedly.

    Parameters
    ----------
    distribution
        The name of the distribution on PyPI.
    versions
        The first and the last version that were tested. Both, and all versions between them, are
        accepted. ``"2.73"`` as the last version includes every 2.73.x.
    digests
        A JSON file with the known digests of the originals, and of the functions that their
        replacements rely on. ``tests/interop/peer_releases.py`` writes it.
    relies_on
        For the name of an original, the names of other functions of the package on whose source its
        replacement relies. If one of these is replaced as well, the replacement also relies on that
        replacement. For replacements that must be installed together, each relies on the others.
        Names are written as ``package.module:Class.function``.
    """

    def __init__(
        self,
        distribution: str,
        versions: tuple[str, str],
        digests: Path,
        relies_on: Mapping[str, Sequence[str]],
    ) -> None:
        self.distribution = distribution
        self.versions = versions
        self.digests = digests
        self.relies_on = relies_on
        self._changes: list[Change] = []
        self._lock = RLock()

    @property
    def installed(self) -> bool:
        """Return whether the replacements are installed."""
        return bool(self._changes)

    def install(
        self, replacements: Callable[[], Iterable[Replacement]], untested: Untested = "known"
    ) -> None:
        """Install the replacements, unless they are installed already.

        Parameters
        ----------
        replacements
            Returns the replacements. It is called after the version check, and may import the
            modules of the other package.
        untested
            What to do about functions that differ from the tested ones. ``"known"`` installs the
            other replacements, and logs a warning that names those that are left out. ``"error"``
            raises IntegrationError. ``"allow"`` does not compare sources, and otherwise does the
            same as ``"known"``.

        A function differs if its source, or that of a function on which its replacement relies, is
        not a known one. The sources of the package itself are compared if its version is newer than
        the tested ones, and those of other packages always. A function also differs if other code
        has replaced or wrapped it, or one on which its replacement relies. Finally, in a version
        that is newer than the tested ones, it may be missing or have other parameters.

        Raises
        ------
        IntegrationError
            The distribution is missing, its version is older than the tested ones, or it does not
            have the modules and classes that are expected. Also if its version is a tested one and
            a function is missing or has other parameters, and in the cases of
            ``untested="error"``. Nothing was changed.
        ValueError
            ``untested`` has another value.
        """
        if untested not in get_args(Untested):
            values = ", ".join(map(repr, get_args(Untested)))
            raise ValueError(f"untested must be one of {values}, not {untested!r}")
        with self._lock:
            if self._changes:
                return
            is_newer = self._is_newer()
            changes = self._prepare(self._list(replacements), is_newer, untested)
            apply(changes)
            self._changes = changes

    def uninstall(self) -> None:
        """Restore the originals, also in modules that were imported after ``install``.

        A function that other code has replaced since ``install`` is not restored.

        Raises
        ------
        IntegrationError
            Other code has wrapped a replacement since ``install``. It would go on calling the
            replacement, so the wrapper has to be removed first. Nothing was changed.
        """
        with self._lock:
            wrapped = [
                change
                for change in self._changes
                if any(is_wrapped(change.new, value) for value in values_in_use(change))
            ]
            if wrapped:
                names = format_functions(join_name(change.owner, change.name) for change in wrapped)
                raise self._layout_error(
                    f"has functions that other code has wrapped since the integration was "
                    f"installed: {names}. Remove these wrappers first"
                )
            apply([c._replace(old=c.new, new=c.old) for c in self._changes])
            self._changes = []

    def compared(self, replacements: Callable[[], Iterable[Replacement]]) -> list[str]:
        """Return the names of all functions whose sources are compared.

        Raises
        ------
        IntegrationError
            The package does not have the modules and classes that are expected.
        ValueError
            ``relies_on`` has an original that is not replaced.
        """
        defined = {original_name(r): defined_name(r) for r in self._list(replacements)}
        if unknown := self.relies_on.keys() - defined.keys():
            raise ValueError(f"not replaced: {', '.join(sorted(unknown))}")
        names = defined.keys() | set().union(*self.relies_on.values())
        return sorted({defined.get(name, name) for name in names})

    def _is_newer(self) -> bool:
        """Return whether the version is newer than the tested ones. Raises IntegrationError."""
        try:
            found = version(self.distribution)
        except PackageNotFoundError:
            raise self._integration_error(None, f"{self.distribution} is not installed") from None
        first, last = (release(text) for text in self.versions)
        if release(found) < first:
            raise self._integration_error(found, f"{self.distribution} {found} is too old")
        return release(found)[: len(last)] > last

    def _list(self, replacements: Callable[[], Iterable[Replacement]]) -> list[Replacement]:
        """Return the replacements. Raises IntegrationError if a module or class is missing."""
        try:
            return list(replacements())
        except (AttributeError, ImportError) as error:
            raise self._layout_error(f"is not laid out as expected ({error})") from error

    def _prepare(
        self, found: list[Replacement], is_newer: bool, untested: Untested
    ) -> list[Change]:
        """Create the replacements of the functions that do not differ from the tested ones.

        Logs a warning that names the others or, if ``untested`` is "error", raises
        IntegrationError.
        """
        sources = None if untested == "allow" else self._sources(is_newer)
        defined = {original_name(replacement): defined_name(replacement) for replacement in found}
        changes: list[tuple[str, Change]] = []
        reasons: dict[str, str] = {}  # why a replacement is not used, by the name of the original
        for replacement in found:
            name = original_name(replacement)
            current = getattr_static(replacement.owner, replacement.name, ABSENT)
            foreign = foreign_code(current, defined[name])
            is_called = replacement.calls_original and callable(current)
            try:
                if foreign is not None and not is_called:
                    raise DifferenceError(f"is {foreign} now")
                self._check_relied(name, defined)
                changes.append((name, prepare(replacement)))
                if sources is not None:
                    self._check_sources(name, place(current), defined, sources)
            except DifferenceError as difference:
                if isinstance(difference, MismatchError) and not (is_newer or foreign):
                    raise self._layout_error(difference.about_package) from difference
                reasons[name] = str(difference)
        n_reasons = -1
        while n_reasons < len(reasons):  # leave out what relies on a replacement that is left out
            n_reasons = len(reasons)
            for name, _ in changes:
                missing = [n for n in self.relies_on.get(name, ()) if n in reasons]
                if missing and name not in reasons:
                    reasons[name] = f"relies on {format_functions(missing)}"
        if reasons:
            problem = "; ".join(
                f"{format_function(name)} ({reasons[name]})" for name in sorted(reasons)
            )
            if untested == "error":
                raise self._layout_error(f"has functions that differ: {problem}")
            logger.warning(
                "These functions of %s %s differ from those that tensorwire was tested with (%s), "
                "and are not replaced: %s",
                self.distribution,
                version(self.distribution),
                self._tested,
                problem,
            )
        return [change for name, change in changes if name not in reasons]

    def _check_relied(self, name: str, defined: Mapping[str, str]) -> None:
        """Raise DifferenceError if others have replaced a function that a replacement relies on."""
        module = name.partition(":")[0]
        for other in self.relies_on.get(name, ()):
            for value in values_of(other, module) if other != name else ():
                if (foreign := foreign_code(value, defined.get(other, other))) is not None:
                    raise DifferenceError(
                        f"relies on {format_function(other)}, which is {foreign} now"
                    )

    def _check_sources(
        self, name: str, current: str | None, defined: Mapping[str, str], sources: KnownSources
    ) -> None:
        """Raise DifferenceError unless the sources that a replacement relies on are known.

        ``current`` is the place of the original.
        """
        own = defined[name]
        is_elsewhere = current not in (None, own) and package_of(str(current)) == package_of(own)
        if is_elsewhere and sources.compares(own):
            raise DifferenceError(f"is {format_function(str(current))} now")
        if own not in sources:
            raise DifferenceError("its source is not known")
        others = [n for n in self.relies_on.get(name, ()) if defined.get(n, n) not in sources]
        if others:
            raise DifferenceError(
                f"relies on the source of {format_functions(others)}, which is not known"
            )

    def _sources(self, is_newer: bool) -> KnownSources:
        """Return the known sources. Those of a tested version need not be compared."""
        return KnownSources(self.digests, None if is_newer else package_of(self.distribution))

    @property
    def _tested(self) -> str:
        first, last = self.versions
        return first if first == last else f"{first} to {last}"

    def _layout_error(self, problem: str) -> IntegrationError:
        found = version(self.distribution)
        return self._integration_error(found, f"{self.distribution} {found} {problem}")

    def _integration_error(self, found: str | None, problem: str) -> IntegrationError:
        return IntegrationError(
            f"{problem}; tensorwire was tested with {self.distribution} {self._tested}, and has "
            f"changed nothing",
            distribution=self.distribution,
            installed=found,
            tested=self._tested,
        )


class KnownSources:
    """Contains the name of a function if the source of the imported function is a known one.

    Parameters
    ----------
    digests
        The JSON file with the known digests.
    trusted
        The package whose functions are not compared, or None.
    """

    def __init__(self, digests: Path, trusted: str | None) -> None:
        self._file = digests
        self._trusted = trusted
        self._sources = Sources(source_of_imported)

    @cached_property
    def _digests(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = json.loads(self._file.read_text("ascii"))
        return found

    def compares(self, name: str) -> bool:
        """Return whether the source of a function is compared."""
        return package_of(name) != self._trusted

    def __contains__(self, name: str) -> bool:
        return not self.compares(name) or self._sources.digest(name) in self._digests.get(name, ())


def prepare(replacement: Replacement) -> Change:
    """Create the replacement, and check its parameters. Raises MismatchError."""
    owner, name, factory, inherited, _ = replacement
    where = f"{qualified_name(owner)}.{name}"
    old = vars(owner).get(name, ABSENT)
    found = getattr_static(owner, name, ABSENT) if inherited else old
    if found is ABSENT:
        raise MismatchError("is missing", f"has no {where}")
    if inherited and old is not ABSENT:
        message = f"defines {where}, which is expected to be inherited"
        raise MismatchError("is not inherited", message)
    original = unwrapped(found)
    new = factory(original)
    if callable(original):
        existing, expected = parameters(original), parameters(new)
        if existing != expected:
            message = f"{existing}, not {expected}"
            raise MismatchError(f"has the parameters {message}", f"has {where}{message}")
        if not isinstance(new, type):
            update_wrapper(new, original)  # name and docstring, for `help`
    return Change(owner, name, old, new if found is original else type(found)(new))


def unwrapped(found: Any) -> Any:
    """Return the function of a classmethod or staticmethod, and any other object itself."""
    # The type itself: isinstance() is also true for a wrapper that imitates a classmethod.
    return found.__func__ if issubclass(type(found), classmethod | staticmethod) else found


# --- code that others have put in place ----------------------------------------------------------


def foreign_code(value: Any, name: str) -> str | None:
    """Return the name of the code of a function or class, if it is not of the package of ``name``.

    Returns None for the package's own code, and for constants.
    """
    if type(value) is property:
        parts = (value.fget, value.fset, value.fdel)
        return next((code for part in parts if (code := foreign_code(part, name))), None)
    found = place(value)
    if found is None or package_of(found) == package_of(name):
        return None
    return format_function(found)


def place(value: Any) -> str | None:
    """Return where the code of a function, class or other callable is defined, as in the digests.

    Returns None for constants. The attributes of a function are not used: a wrapper made with
    ``functools.wraps`` has those of the function that it wraps.
    """
    value = unwrapped(value)
    kind = type(value)
    if kind is FunctionType:
        return f"{value.__globals__.get('__name__')}:{value.__code__.co_qualname}"
    is_compiled = any("__qualname__" in vars(base) for base in kind.__mro__)
    if issubclass(kind, type) or (is_compiled and not hasattr(value, "__wrapped__")):
        return f"{value.__module__}:{value.__qualname__}"
    if is_function(value) and kind.__module__ not in TYPE_MODULES:
        return f"{kind.__module__}:{kind.__qualname__}"
    return None


def values_of(name: str, used_in: str) -> list[Any]:
    """Return the values that a name in the digests has at present.

    There are two if another module, ``used_in``, has imported the function.
    """
    module, _, path = name.partition(":")
    first, *attributes = path.split(".")
    found = []
    for each in dict.fromkeys((module, used_in)):
        value = vars(sys.modules[each]).get(first, ABSENT) if each in sys.modules else ABSENT
        for attribute in attributes:
            if value is not ABSENT:
                value = getattr_static(value, attribute, ABSENT)
        found.append(value)
    return found


def values_in_use(change: Change) -> list[Any]:
    """Return the values that a name has at present: in the class, or in all loaded modules."""
    owner, name = change.owner, change.name
    if not isinstance(owner, ModuleType):
        return [vars(owner).get(name)]
    loaded = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    return [vars(each)[name] for each in loaded if name in vars(each)]


def is_wrapped(new: Any, current: Any) -> bool:
    """Return whether a value is not the replacement ``new``, but calls it, or is a subclass."""
    new, current = unwrapped(new), unwrapped(current)
    if issubclass(type(current), type):
        return current is not new and new in current.__mro__
    pending = [current] if is_function(current) and current is not new else []
    seen: dict[int, Any] = {}  # the values as well, so that no other value gets the same id
    while pending:
        value = unwrapped(pending.pop())
        if value is new:
            return True
        if id(value) not in seen:
            seen[id(value)] = value
            pending += called_by(value)
    return False


def called_by(wrapper: Any) -> list[Any]:
    """Return the functions that a wrapper may call: what it wraps, or what its closure contains."""
    found = [getattr(wrapper, "__wrapped__", None)]
    if isinstance(wrapper, partial | partialmethod):
        found.append(wrapper.func)
    for cell in getattr(wrapper, "__closure__", None) or ():
        with suppress(ValueError):  # the cell is empty
            found.append(cell.cell_contents)
    return [value for value in found if is_function(value)]


def is_function(value: Any) -> bool:
    """Return whether a value can be called, or becomes a method in a class."""
    return callable(value) or hasattr(type(value), "__get__")


# --- names ---------------------------------------------------------------------------------------


def original_name(replacement: Replacement) -> str:
    """Return the name of the original in its owner, as in ``relies_on``."""
    return join_name(replacement.owner, replacement.name)


def defined_name(replacement: Replacement) -> str:
    """Return the name of the original where it is defined, as in the digests."""
    owner, name = replacement.owner, replacement.name
    if replacement.inherited and isinstance(owner, type):
        owner = next((base for base in owner.__mro__[1:] if name in vars(base)), owner)
    return join_name(owner, name)


def join_name(owner: ModuleType | type, name: str) -> str:
    """Return ``package.module:name`` or ``package.module:Class.name``."""
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}:{name}"
    return f"{owner.__module__}:{owner.__qualname__}.{name}"


def package_of(name: str) -> str:
    """Return the package of a name in the digests, or of a distribution."""
    return name.partition(":")[0].partition(".")[0].replace("-", "_")


def format_function(name: str) -> str:
    """Return a name in the digests as it is written in messages."""
    return name.replace(":", ".")


def format_functions(names: Iterable[str]) -> str:
    """Return names in the digests as a list for a message."""
    return ", ".join(map(format_function, names))


def parameters(function: Any) -> str:
    """Return the parameters that callers depend on: names, kinds and defaults, not annotations."""
    bare = [
        parameter.replace(annotation=Parameter.empty)
        for parameter in signature(function).parameters.values()
    ]
    return str(Signature(bare))


def qualified_name(owner: ModuleType | type) -> str:
    """Return ``package.module`` or ``package.module.Class``."""
    if isinstance(owner, ModuleType):
        return owner.__name__
    return f"{owner.__module__}.{owner.__qualname__}"


def apply(changes: Sequence[Change]) -> None:
    """Apply all changes or none. An attribute whose value is not ``old`` remains unchanged."""
    done: list[Change] = []
    try:
        for change in changes:
            owner, name, old, new = change
            if isinstance(owner, type) and vars(owner).get(name, ABSENT) is old:
                set_attribute(owner, name, new)
                done.append(change)
    except BaseException:
        for change in done:
            set_attribute(change.owner, change.name, change.old)
        raise
    rebind({id(c.old): c.new for c in changes if isinstance(c.owner, ModuleType)})


def set_attribute(owner: ModuleType | type, name: str, value: Any) -> None:
    """Set the attribute of a class, or delete it if the value is ABSENT."""
    if value is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def rebind(new_by_id: Mapping[int, Any]) -> None:
    """Replace the objects that have these ids with the new values, in all loaded modules."""
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        # Use the namespace itself: reading the attributes of a module may import other modules, or
        # emit deprecation warnings.
        namespace = module.__dict__
        if new_by_id.keys().isdisjoint(map(id, list(namespace.values()))):
            continue  # almost all of the loaded modules, which may be thousands
        for name, value in list(namespace.items()):
            if id(value) in new_by_id:
                namespace[name] = new_by_id[id(value)]
