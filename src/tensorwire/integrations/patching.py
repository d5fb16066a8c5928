"""Replace functions and classes of another package, and restore them: either all or none.

The *original* is the function, method or class of the other package. The *replacement* is called
instead of it while an integration is installed. All integrations create replacements in the same
way: a factory named ``replace_<name>`` takes the original and returns the replacement, which has
the same name and parameters. A replacement calls the original for all arguments that it does not
handle itself.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from importlib.metadata import PackageNotFoundError, version
from inspect import Parameter, Signature, getattr_static, signature
from threading import RLock
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import IntegrationError

Function = Callable[..., Any]


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
    """

    owner: ModuleType | type
    name: str
    factory: Callable[[Any], Any]
    inherited: bool = False


ABSENT = object()
"""A placeholder for the value of an attribute that the owner does not define itself."""


class Change(NamedTuple):
    """One assignment: ``old`` and ``new`` are values of a name in the namespace of the owner."""

    owner: ModuleType | type
    name: str
    old: Any
    new: Any


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
    """

    def __init__(self, distribution: str, versions: tuple[str, str]) -> None:
        self.distribution = distribution
        self.versions = versions
        self._changes: list[Change] = []
        self._lock = RLock()

    @property
    def installed(self) -> bool:
        """Return whether the replacements are installed."""
        return bool(self._changes)

    def install(self, replacements: Callable[[], Iterable[Replacement]]) -> None:
        """Install the replacements, unless they are installed already.

        Parameters
        ----------
        replacements
            Returns the replacements. It is called after the version check, and may import the
            modules of the other package.

        Raises
        ------
        IntegrationError
            The distribution is missing, its version is outside the tested range, or it does not
            have the functions that are to be replaced. Nothing was changed.
        """
        with self._lock:
            if self._changes:
                return
            self.check_version()
            try:
                found = list(replacements())
            except (AttributeError, ImportError) as error:  # a module or class is missing
                raise self._layout_error(f"is not laid out as expected ({error})") from error
            changes = [self._prepare(replacement) for replacement in found]
            apply(changes)
            self._changes = changes

    def uninstall(self) -> None:
        """Restore the originals, also in modules that were imported after ``install``."""
        with self._lock:
            apply([c._replace(old=c.new, new=c.old) for c in self._changes])
            self._changes = []

    def check_version(self) -> None:
        """Raise IntegrationError unless a version in the tested range is installed."""
        try:
            found = version(self.distribution)
        except PackageNotFoundError:
            raise self._error(None, f"{self.distribution} is not installed") from None
        first, last = (release(text) for text in self.versions)
        if not first <= release(found) or release(found)[: len(last)] > last:
            raise self._error(found, f"{self.distribution} {found} is installed")

    def _prepare(self, replacement: Replacement) -> Change:
        """Create the replacement, and check its parameters. Raises IntegrationError."""
        owner, name, factory, inherited = replacement
        where = f"{qualified_name(owner)}.{name}"
        old = vars(owner).get(name, ABSENT)
        found = getattr_static(owner, name, ABSENT) if inherited else old
        if found is ABSENT:
            raise self._layout_error(f"has no {where}")
        if inherited and old is not ABSENT:
            raise self._layout_error(f"defines {where}, which is expected to be inherited")
        is_wrapped = isinstance(found, classmethod | staticmethod)
        original = found.__func__ if is_wrapped else found
        new = factory(original)
        if callable(original):
            existing, expected = parameters(original), parameters(new)
            if existing != expected:
                raise self._layout_error(f"has {where}{existing}, not {expected}")
            if not isinstance(new, type):
                update_wrapper(new, original)  # name and docstring, for `help`
        return Change(owner, name, old, type(found)(new) if is_wrapped else new)

    def _layout_error(self, problem: str) -> IntegrationError:
        found = version(self.distribution)
        return self._error(found, f"{self.distribution} {found} {problem}")

    def _error(self, found: str | None, problem: str) -> IntegrationError:
        first, last = self.versions
        tested = first if first == last else f"{first} to {last}"
        return IntegrationError(
            f"{problem}; tensorwire was tested with {self.distribution} {tested}, and has changed "
            f"nothing",
            distribution=self.distribution,
            installed=found,
            tested=tested,
        )


def release(version_text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: ``2.73.0rc1`` gives (2, 73, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version_text)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


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
