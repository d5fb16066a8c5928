"""Digests: any change of the code of a function changes them, and its format does not."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from tensorwire.integrations.digests import Sources, canonical_text

pytestmark = [
    pytest.mark.no_sanitizers(reason="it tests Python code"),
    pytest.mark.thread_unsafe(
        reason="ast.parse is not thread-safe before Python 3.11.8 (python/cpython#106905)"
    ),
]


def digest(source: str, name: str = "m:f") -> str | None:
    return Sources({"m": source}.get).digest(name)


FUNCTION = """
def f(x, y=1):
    values = {"a": [x, y], **x}
    def inner(z): return f"{x!r:>{y}} {z}", -1.5, b"", None, False, ...
    return inner if y else [v for v in values]
"""
SAME_FUNCTION = '''
import os  # another module

def f(
    x, y=1,
):
    """A docstring."""

    # A comment.
    values = {'a': [x, (y)],
              **x}
    def inner(z):
        "Another docstring."
        return f'{x!r:>{y}}' " " f'{z}', -1.5, b"", None, False, ...
    return (inner if y
            else [v for v in values])
'''


def test_format_comments_and_docstrings_do_not_change_the_digest() -> None:
    assert digest(FUNCTION) == digest(SAME_FUNCTION)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("y=1", "y=2"), ("y=1", "*, y=1"), ("x, y=1", "x: int, y=1"), ("None", "False")),
        *(("False", "0"), ("-1.5", "1.5"), ('b""', '""'), ("!r", "!s"), (":>", ":<")),
        *(("in values", "in values if v"), ("def inner", "async def inner")),
        *(("**x}", "'x': x}"), ("def f", "@cached\ndef f")),
    ],
)
def test_every_change_of_the_code_changes_the_digest(old: str, new: str) -> None:
    assert old in FUNCTION
    assert digest(FUNCTION.replace(old, new)) not in (digest(FUNCTION), None)


def test_digest_of_constants_in_patterns() -> None:
    """The value of `case None` and `case False` is a field that is None or False."""
    digests = {digest(f"def f(x):\n match x:\n  case {case}: pass") for case in ("None", "False")}
    assert len(digests) == 2


SCOPES = """
if True:
    try:
        def f(): return 1
    except ImportError:
        def f(): return 2
class C:
    constant: int = 3
    @property
    def p(self): return 1
    @p.setter
    def p(self, value): self.value = value
    class Inner:
        def f(self): return 5
"""


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("m:f", "return 1"), ("m:f", "return 2"), ("m:C.constant", "= 3"), ("m:C", "= 3")),
        *(("m:C.p", "return 1"), ("m:C.p", "self.value = value")),
        *(("m:C.Inner.f", "return 5"), ("m:C.Inner", "return 5")),
    ],
)
def test_digest_of_properties_constants_classes_and_conditional_definitions(
    name: str, part: str
) -> None:
    assert digest(SCOPES, name) not in (digest(SCOPES.replace(part, part + "0"), name), None)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        *((SCOPES, name) for name in ("m:g", "m:C.f", "m:C.p.value", "other:f")),
        *((text, "m:f") for text in ("from other import f", "def f(:", "def f(): return 1\0")),
    ],
)
def test_function_without_source_has_no_digest(source: str, name: str) -> None:
    assert digest(source, name) is None


def test_source_that_emits_a_warning_has_a_digest() -> None:
    """In the tests, warnings are errors."""
    assert digest(r"def f(): return '\d'") is not None


def test_digest_is_the_same_in_all_versions_of_python() -> None:
    """Python 3.12 has another tree for the f-string than 3.11."""
    assert digest(FUNCTION) == "27582d4c5a2df6fe"


@pytest.mark.thread_unsafe(reason="it adds a field to a class of the ast module")
def test_fields_that_later_versions_of_python_add_do_not_change_the_text() -> None:
    [function] = ast.parse(FUNCTION).body
    before = canonical_text(function)
    values: list[Any] = [None, [], 0]
    for value in values:
        function.added = value  # type: ignore[attr-defined]
        type(function)._fields += ("added",)
        try:
            assert canonical_text(function) == before
        finally:
            type(function)._fields = type(function)._fields[:-1]
