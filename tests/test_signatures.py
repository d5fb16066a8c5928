"""What dir(), inspect.signature() and help() show of the public names."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef, Literal, get_type_hints

import numpy as np
import pytest

import tensorwire as tw
from support.public_api import MODULES
from support.requirements import package

pytestmark = pytest.mark.thread_unsafe(
    reason="ast.parse is not thread-safe before Python 3.11.8 (python/cpython#106905)"
)

Parameters = list[tuple[str, Any, Any]]  # names, kinds and defaults
KINDS = inspect.Parameter
NO_DEFAULT = inspect.Parameter.empty

COMPILED: dict[str, Any] = {
    name: getattr(tw, name)
    for name in tw.__all__
    if getattr(tw, name).__module__.startswith("tensorwire._codec.")
}
CLASSES = {name: value for name, value in COMPILED.items() if inspect.isclass(value)}


def members(kind: type) -> dict[str, Any]:
    """Return the attributes of a class and of its base classes of this package."""
    bases = [base for base in reversed(kind.__mro__) if base.__module__.startswith("tensorwire.")]
    return {name: value for base in bases for name, value in vars(base).items()}


METHODS = {
    f"{name}.{method}": value
    for name, kind in CLASSES.items()
    for method, value in members(kind).items()
    if callable(value) and (not method.startswith("_") or method.startswith("__dlpack"))
}
FUNCTIONS = {name: value for name, value in COMPILED.items() if name not in CLASSES} | METHODS


def stub_of(value: Any) -> Any:
    """Return the definition of a class, function or method in the stub of its module."""
    module = value.__module__.rpartition(".")[2]
    path = Path(tw.__file__).parent / "_codec" / f"{module}.pyi"
    found = ast.parse(path.read_text())
    for name in value.__qualname__.split("."):
        found = definition(found.body, name)
    return found


def definition(body: list[ast.stmt], name: str) -> Any:
    return next((item for item in body if getattr(item, "name", None) == name), None)


def declared(function: ast.FunctionDef) -> Parameters:
    """Return the parameters of a function of a stub."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    return [
        *(
            (argument.arg, KINDS.POSITIONAL_OR_KEYWORD, literal(default))
            for argument, default in zip(positional, [*missing, *arguments.defaults], strict=True)
        ),
        *(
            (argument.arg, KINDS.KEYWORD_ONLY, literal(default))
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ),
        *((rest.arg, KINDS.VAR_KEYWORD, NO_DEFAULT) for rest in [arguments.kwarg] if rest),
    ]


def literal(default: ast.expr | None) -> Any:
    """Return a default, or "..." for an expression that the stub does not repeat."""
    if default is None:
        return NO_DEFAULT
    return ast.literal_eval(default) if ast.unparse(default) != "..." else "..."


def actual(value: Any) -> Parameters:
    return [(p.name, p.kind, p.default) for p in inspect.signature(value).parameters.values()]


def assert_equal(found: Parameters, expected: Parameters) -> None:
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for (name, _, default), (_, _, other) in zip(found, expected, strict=True):
        assert other == "..." or (default is other or default == other), name


@pytest.mark.parametrize("name", CLASSES)
def test_signature_of_a_class(name: str) -> None:
    """Its parameters, defaults and types are those of the stub."""
    body = stub_of(CLASSES[name]).body
    constructor = definition(body, "__init__") or definition(body, "__new__")
    assert_equal(actual(CLASSES[name]), declared(constructor)[1:])
    arguments = [*constructor.args.args[1:], *constructor.args.kwonlyargs]
    assert [p.annotation for p in inspect.signature(CLASSES[name]).parameters.values()] == [
        ast.unparse(argument.annotation) for argument in arguments if argument.annotation
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature_of_a_function_has_the_types_of_the_stub(name: str) -> None:
    """The annotations in the sources, because Cython does not show the types of C arguments."""
    function = stub_of(FUNCTIONS[name])
    types = {name: str(text) for name, text in FUNCTIONS[name].__annotations__.items()}
    if any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list):
        parameters = inspect.signature(FUNCTIONS[name]).parameters
        assert types.keys() == {*parameters, "return"} - {"self"}
        return
    arguments = function.args
    rest = [arguments.kwarg] if arguments.kwarg else []
    assert types == {"return": ast.unparse(function.returns)} | {
        argument.arg: ast.unparse(argument.annotation)
        for argument in [*arguments.args, *arguments.kwonlyargs, *rest]
        if argument.annotation
    }


def public_callables() -> Iterator[tuple[str, Any]]:
    """Return all public functions and classes, and the public methods of these classes."""
    for module in MODULES:
        for name in set(module.__all__) - {"BinaryDataPlane"}:  # a class of KServe's
            value = getattr(module, name)
            if not callable(value):
                continue
            yield f"{module.__name__}.{name}", value
            for method, member in members(value).items() if inspect.isclass(value) else ():
                if callable(member) and not method.startswith("_"):
                    yield f"{module.__name__}.{name}.{method}", member


CALLABLES = dict(public_callables())


@pytest.mark.parametrize("name", [*CALLABLES, *FUNCTIONS])
def test_annotations_can_be_evaluated(name: str) -> None:
    """Their names are found where the function or class is."""
    value = (CALLABLES | FUNCTIONS)[name]
    if value is tw.Datatype:
        return
    hints = get_type_hints(value)
    signature = inspect.signature(value, eval_str=True)
    if not inspect.isclass(value):
        assert not any(isinstance(hint, str | ForwardRef) for hint in hints.values())
        return
    # The text in the __signature__ of a compiled class remains text.
    scope = vars(sys.modules[value.__module__])
    for parameter in signature.parameters.values():
        if isinstance(parameter.annotation, str):
            eval(parameter.annotation, scope)


def test_evaluated_annotations() -> None:
    class_of_capsule = type(tw.Tensor("x", np.zeros(1)).__dlpack__())
    assert get_type_hints(tw.Tensor.__dlpack__)["return"] is class_of_capsule
    assert get_type_hints(tw.decode_response)["return"] is tw.InferResponse
    hints = get_type_hints(tw.encode_request)
    assert hints["nonfinite"] == Literal["null", "literal", "error"] | None
    assert vars(sys.modules[tw.Tensor.__module__])["Datatype"] is tw.Datatype


def test_pydantic_validates_arguments() -> None:
    """It supports methods, but not compiled functions."""
    pydantic: Any = package("pydantic")
    validate = pydantic.validate_call(
        config={"arbitrary_types_allowed": True}, validate_return=True
    )
    tensor = tw.Tensor("x", np.zeros(3))
    assert validate(tensor.as_numpy)(aligned="yes").shape == (3,)
    with pytest.raises(pydantic.ValidationError, match="valid boolean"):
        validate(tensor.as_numpy)(aligned=[])
    assert validate(tw.InferRequest([tensor]).get)("x") is tensor


@pytest.mark.parametrize("name", CALLABLES)
def test_defaults_in_signatures_are_short(name: str) -> None:
    parameters = inspect.signature(CALLABLES[name]).parameters.values()
    shown = {p.name: repr(p.default) for p in parameters if p.default is not NO_DEFAULT}
    assert {name: text for name, text in shown.items() if len(text) > 30} == {}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_dir_shows_public_names(module: ModuleType) -> None:
    assert {name for name in dir(module) if not name.startswith("__")} == set(module.__all__)
    assert {"__doc__", "__file__", "__name__", "__all__"} <= set(dir(module))
