"""Digests of the source of functions and classes, which show whether another package has changed.

A digest is computed from the syntax tree of the source, so that formatting, comments and docstrings
do not matter. All supported versions of Python compute the same digest: the tree is written as text
by ``canonical_text``, because the output of ``ast.dump`` and ``ast.unparse`` differs between them.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import sha256
from typing import Any

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
N_DIGITS = 16


class Sources:
    """The sources of modules, which ``read`` returns by their names. Each is parsed once."""

    def __init__(self, read: Callable[[str], str | bytes | None]) -> None:
        self._tree = cache(lambda module: parse(read(module)))

    def digest(self, name: str) -> str | None:
        """Return the digest of a function or class, or None if it or its source is not found."""
        module, _, path = name.partition(":")
        tree = self._tree(module)
        found = definitions(tree, path) if tree else []
        if not found:
            return None
        text = "\n".join(map(canonical_text, found))
        return sha256(text.encode()).hexdigest()[:N_DIGITS]


def source_of_imported(module: str) -> str | None:
    """Return the source of an imported module. Returns None for a module without Python source."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    try:
        source: str | None = spec.loader.get_source(module)  # type: ignore[union-attr]
    except (AttributeError, ImportError, SyntaxError, UnicodeError):
        return None  # no module, no loader with this method, no file, or an unknown encoding
    return source


def parse(source: str | bytes | None) -> ast.Module | None:
    """Return the syntax tree of a module; None for no source, and for source with an error."""
    if source is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unknown escape sequences, for example
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def definitions(tree: ast.Module, path: str) -> list[ast.stmt]:
    """Return all definitions of ``Class.function`` in a module.

    There are several for a property with a setter, or if the definition depends on a condition.
    """
    scopes: list[ast.Module | ast.stmt] = [tree]
    found: list[ast.stmt] = []
    for name in path.split("."):
        found = [
            statement
            for scope in scopes
            for statement in statements_of(getattr(scope, "body", []))
            if name in defined_names(statement)
        ]
        scopes = [statement for statement in found if isinstance(statement, ast.ClassDef)]
    return found


def statements_of(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Return the statements of a scope, including those inside ``if`` and ``try`` statements."""
    for node in body:
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.stmt | ast.excepthandler) and not isinstance(node, SCOPES):
            yield from statements_of(ast.iter_child_nodes(node))


def defined_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines. Imports define none."""
    if isinstance(statement, SCOPES):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def canonical_text(value: object) -> str:
    """Return a syntax tree as ASCII text, without positions and docstrings.

    A field that is empty, None or 0 is left out. A version of Python that adds a field sets it to
    one of these values for syntax that the earlier versions have.
    """
    if isinstance(value, list):
        return f"[{','.join(map(canonical_text, value))}]"
    if not isinstance(value, ast.AST):
        return ascii(value)
    kind = type(value).__name__
    if isinstance(value, ast.Constant | ast.MatchSingleton):
        return f"{kind}({value.value!a})"
    found = []
    for name in value._fields:
        field: Any = getattr(value, name, None)
        if name == "body" and isinstance(value, SCOPES):
            has_docstring = ast.get_docstring(value, clean=False) is not None
            field = field[has_docstring:]
        elif isinstance(value, ast.JoinedStr):
            # Python 3.12 adds empty texts to format specifications.
            field = [v for v in field if getattr(v, "value", v) != ""]
        if field and name != "ctx":  # the position determines the context
            found.append(f"{name}={canonical_text(field)}")
    return f"{kind}({','.join(found)})"
