"""Functions of another package: their names, whose code they have, and their replacement.

They are named ``package.module:Class.function``, as in the digests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper
from inspect import (
    CO_ASYNC_GENERATOR,
    CO_COROUTINE,
    CO_GENERATOR,
    CO_VARARGS,
    CO_VARKEYWORDS,
    Parameter,
    Signature,
    getattr_static,
    signature,
)
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ..parameters import forwarder


def join_name(owner: ModuleType | type, name: str) -> str:
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}:{name}"
    return f"{owner.__module__}:{owner.__qualname__}.{name}"


def package_of(name: str) -> str:
    """Return the package of a function, of a module or of a distribution."""
    return name.partition(":")[0].partition(".")[0].replace("-", "_")


def readable(name: str) -> str:
    """Return a name as it is written in messages."""
    return name.replace(":", ".")


def defined_name(name: str) -> str:
    """Return the name of a method in the class that defines it, which may be a base class."""
    kind, _, method = name.rpartition(".")
    bases = getattr(current_values(kind, kind)[0], "__mro__", ()) if ":" in kind else ()
    base = next((base for base in bases if method in vars(base)), None)
    return name if base is None else join_name(base, method)


def current_values(name: str, user: str) -> list[Any]:
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


def unwrapped(found: Any) -> Any:
    """Return the function of a classmethod or staticmethod, and any other object itself."""
    # The type itself: isinstance() is also true for a wrapper that imitates a classmethod.
    return found.__func__ if issubclass(type(found), classmethod | staticmethod) else found


def place(value: Any) -> str | None:
    """Return where the code of a function, class or other callable is defined; else None.

    The attributes of a function are not used: a wrapper made with ``functools.wraps`` has those of
    the function that it wraps.
    """
    value = unwrapped(value)
    kind = type(value)
    if kind is FunctionType:
        module = value.__globals__.get("__name__")
        name = value.__code__.co_qualname
        return f"{module}:{name}" if module else "a function without a module, such as a mock,"
    if issubclass(kind, type):
        return f"{value.__module__}:{value.__qualname__}"
    is_function = callable(value) or hasattr(kind, "__get__")  # or becomes a method in a class
    return f"{kind.__module__}:{kind.__qualname__}" if is_function else None


def foreign_code(value: Any, name: str) -> str | None:
    """Return the name of the code of a value, if it is not of the package of ``name``; else None.

    Values that are neither a class nor callable have no code.
    """
    parts = (value.fget, value.fset, value.fdel) if type(value) is property else (value,)
    for part in parts:
        found = place(part)
        if found is not None and package_of(found) != package_of(name):
            return readable(found)
    return None


def parameters(function: Any) -> str:
    """Return the parameters that callers depend on: names, kinds and defaults, not annotations."""
    found = signature(function).parameters.values()
    return str(Signature([each.replace(annotation=Parameter.empty) for each in found]))


KINDS = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def layout(code: CodeType) -> tuple[object, ...]:
    """Return what a code object says about the parameters and the kind of its function."""
    flags, n_named = code.co_flags & KINDS, code.co_argcount + code.co_kwonlyargcount
    n = n_named + bool(flags & CO_VARARGS) + bool(flags & CO_VARKEYWORDS)
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    return code.co_varnames[:n], counts, flags


class DifferenceError(Exception):
    """The reason why a function is not replaced: it differs from the tested one."""


class Change(NamedTuple):
    """One assignment: ``old`` and ``new`` are values of a name in the namespace of the owner."""

    owner: ModuleType | type
    name: str
    old: Any
    new: Any


ABSENT = object()
"""The old value of a method that the class inherits."""


def make_change(owner: ModuleType | type, name: str, factory: Callable[[Any], Any]) -> Change:
    """Create the replacement of a function, and check its parameters. Raises DifferenceError."""
    found = getattr_static(owner, name, ABSENT)
    if found is ABSENT:
        raise DifferenceError("is missing")
    original = unwrapped(found)
    new = factory(original)
    existing, expected = parameters(original), parameters(new)
    if existing != expected:
        raise DifferenceError(f"has the parameters {existing}, not {expected}")
    if not isinstance(new, type):
        # A wrapper of other code that is no function gets the arguments as they were passed.
        if type(original) is FunctionType:
            code = original.__code__
            if layout(code) != layout(new.__code__):
                new = forwarder(new, original, is_async=bool(code.co_flags & CO_COROUTINE))
            new.__defaults__, new.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
        update_wrapper(new, original)  # name and docstring, for `help`
    old = vars(owner).get(name, ABSENT)
    return Change(owner, name, old, new if found is original else type(found)(new))


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
