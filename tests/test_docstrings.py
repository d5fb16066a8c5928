"""The docstrings of public names: present, in one convention, with examples that run."""

from __future__ import annotations

import doctest
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import tensorwire as tw
from support.examples import packages_of
from support.requirements import package
from tensorwire import client, grpc, server

pytestmark = pytest.mark.thread_unsafe(reason="doctest replaces sys.stdout")


def public_objects() -> Iterator[tuple[str, Any]]:
    """Return the public functions, classes, methods and properties, with their names."""
    for module in (tw, client, grpc, server):
        for name in module.__all__:
            value = getattr(module, name)
            yield f"{module.__name__}.{name}", value
            for attribute, member in vars(value).items() if inspect.isclass(value) else ():
                has_docstring = callable(member) or inspect.isdatadescriptor(member)
                if not attribute.startswith("_") and has_docstring:
                    yield f"{module.__name__}.{name}.{attribute}", member


package("grpc")
OBJECTS = dict(public_objects())
FUNCTIONS = {name: value for name, value in OBJECTS.items() if inspect.isroutine(value)}
EXAMPLES = {
    name: value for name, value in OBJECTS.items() if ">>>" in (inspect.getdoc(value) or "")
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_has_a_docstring(name: str) -> None:
    lines = (inspect.getdoc(FUNCTIONS[name]) or "").splitlines()
    assert lines and lines[0]
    for line, underline in itertools.pairwise(lines):
        if line in ("Parameters", "Returns", "Raises", "Examples"):
            assert underline == "-" * len(line)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name.count(".") == 1])
def test_module_level_function_has_an_example(name: str) -> None:
    assert name in EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    text = inspect.getdoc(EXAMPLES[name]) or ""
    for imported in packages_of(text) | ({"pandas"} if '"pandas"' in text else set()):
        package(imported)
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    output: list[str] = []
    runner.run(test, out=output.append)
    assert runner.failures == 0, "".join(output)
