"""Functions of another package exchanged, and put back: all of them or none."""

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


class Replacement(NamedTuple):
    """``owner.name``, a function, method or class, becomes ``make(what it was)``.

    What a module owns is exchanged in every loaded module that has it, under any name; what a class
    owns, in the class. Of a classmethod or staticmethod ``make`` gets the plain function, and the
    kind is kept. A function that it returns takes the parameters of the one that it was given.
    ``inherited``: the class has it from a base, and gets one of its own until that is taken away.
    """

    owner: ModuleType | type
    name: str
    make: Callable[[Any], Any]
    inherited: bool = False


INHERITED = object()
"""Stands for what a class has no entry of its own for."""


class Change(NamedTuple):
    """One replacement made ready: ``old`` and ``new`` as they stand in the owner's namespace."""

    owner: ModuleType | type
    name: str
    old: Any
    new: Any


class Patch:
    """The replacements in one distribution, in or out.

    ``versions``: the first and the last release that were tested, both included; ``"2.73"`` stands
    for every 2.73.x. All methods may be called from any thread, any number of times.
    """

    def __init__(self, distribution: str, versions: tuple[str, str]) -> None:
        self.distribution = distribution
        self.versions = versions
        self._changes: list[Change] = []
        self._lock = RLock()

    @property
    def installed(self) -> bool:
        """Whether the replacements are in."""
        return bool(self._changes)

    def install(self, replacements: Callable[[], Iterable[Replacement]]) -> None:
        """Put the replacements in, unless they are.

        ``replacements`` is called once the version is known to be right, and may import what it
        needs. Raises IntegrationError, with nothing changed, when the distribution is missing, of
        another version, or not laid out as the replacements expect.
        """
        with self._lock:
            if self._changes:
                return
            self._check_version()
            try:
                wanted = list(replacements())
            except (ImportError, AttributeError) as error:
                raise self._layout(f"is not laid out as expected: {error}") from error
            changes = [self._prepared(replacement) for replacement in wanted]
            exchange(changes)
            self._changes = changes

    def uninstall(self) -> None:
        """Put everything back, also in modules that were imported in the meantime."""
        with self._lock:
            exchange([c._replace(old=c.new, new=c.old) for c in self._changes])
            self._changes = []

    # --- what is refused ---

    def _check_version(self) -> None:
        try:
            found = version(self.distribution)
        except PackageNotFoundError:
            raise self._refusal(None, f"{self.distribution} is not installed") from None
        first, last = (release(text) for text in self.versions)
        if not first <= release(found) or release(found)[: len(last)] > last:
            raise self._refusal(found, f"{self.distribution} {found} is installed")

    def _prepared(self, replacement: Replacement) -> Change:
        owner, name, make, inherited = replacement
        where = f"{title(owner)}.{name}"
        old = vars(owner).get(name, INHERITED)
        found = getattr_static(owner, name, INHERITED) if inherited else old
        if found is INHERITED:
            raise self._layout(f"has no {where}")
        if inherited and old is not INHERITED:
            raise self._layout(f"has a {where} of its own")
        is_wrapped = isinstance(found, classmethod | staticmethod)
        function = found.__func__ if is_wrapped else found
        new = make(function)
        if callable(function):
            there, here = parameters(function), parameters(new)
            if there != here:
                raise self._layout(f"has {where}{there}, not {here}")
            if not isinstance(new, type):
                update_wrapper(new, function)  # the name, and the help that users read
        return Change(owner, name, old, type(found)(new) if is_wrapped else new)

    def _layout(self, problem: str) -> IntegrationError:
        found = version(self.distribution)
        return self._refusal(found, f"{self.distribution} {found} {problem}")

    def _refusal(self, found: str | None, problem: str) -> IntegrationError:
        first, last = self.versions
        tested = first if first == last else f"{first} to {last}"
        return IntegrationError(
            f"{problem}; tensorwire was tested with {self.distribution} {tested}, and has changed "
            f"nothing",
            distribution=self.distribution,
            installed=found,
            tested=tested,
        )


def release(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``2.73.0rc1`` is (2, 73, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def parameters(function: Any) -> str:
    """Names, kinds and defaults, which callers depend on; not the annotations."""
    bare = [
        parameter.replace(annotation=Parameter.empty)
        for parameter in signature(function).parameters.values()
    ]
    return str(Signature(bare))


def title(owner: ModuleType | type) -> str:
    """``package.module`` or ``package.module.Class``."""
    if isinstance(owner, ModuleType):
        return owner.__name__
    return f"{owner.__module__}.{owner.__qualname__}"


def exchange(changes: Sequence[Change]) -> None:
    """Each ``old`` becomes its ``new``, all or none; what others have put there since, stays."""
    done: list[Change] = []
    try:
        for change in changes:
            owner, name, old, new = change
            if isinstance(owner, type) and vars(owner).get(name, INHERITED) is old:
                put(owner, name, new)
                done.append(change)
    except BaseException:
        for change in done:
            put(change.owner, change.name, change.old)
        raise
    rebind({id(c.old): c.new for c in changes if isinstance(c.owner, ModuleType)})


def put(owner: ModuleType | type, name: str, value: Any) -> None:
    """An entry of the class's own, or none where the value is INHERITED."""
    if value is INHERITED:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def rebind(by_id: Mapping[int, Any]) -> None:
    """In every loaded module, the objects of these ids give way to the values."""
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        # The namespace itself: attributes of a lazy module import, and deprecated ones warn.
        namespace = module.__dict__
        for name, value in list(namespace.items()):
            if id(value) in by_id:
                namespace[name] = by_id[id(value)]
