"""The types that stubs, signatures and annotations show: they agree, and can be evaluated.

check_types.py checks the types of examples and of the public names with mypy and pyright.
"""

from __future__ import annotations

import ast
import importlib.machinery
import inspect
import subprocess
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

PACKAGE = Path(tw.__file__).parent
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
COMPILED = sorted(
    ".".join(path.relative_to(PACKAGE).parts).removesuffix(SUFFIX)
    for path in PACKAGE.rglob(f"*{SUFFIX}")
)
WITHOUT_PYTHON_NAMES = {
    f"_codec.{name}"
    for name in (
        *("exports", "gil"),
        *("http.entries", "http.members", "http.names", "http.raw"),
        "capsules.arrow",
        "capsules.dlpack",
        "json.writer",
        *("messages.encoding", "messages.parameters"),
    )
}


def stub(module: str) -> Path:
    return PACKAGE / f"{module.replace('.', '/')}.pyi"


# --- stubs ---


@pytest.mark.no_sanitizers(reason="it reads the repository")
def test_each_compiled_module_has_a_stub() -> None:
    assert {"_codec.http.decoder", "server.framing"} < set(COMPILED)
    missing = {name for name in COMPILED if not stub(name).exists()}
    assert missing == WITHOUT_PYTHON_NAMES
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.no_sanitizers(reason="it runs another program")
def test_stubs_agree_with_the_run_time(tmp_path: Path) -> None:
    package("mypy")
    modules = [f"tensorwire.{name}" for name in COMPILED if name not in WITHOUT_PYTHON_NAMES]
    allowed = Path(__file__).parent / "support" / "stubtest_allowlist.txt"
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-unused-allowlist"]
    done = subprocess.run(
        [*command, "--allowlist", str(allowed), *modules],
        cwd=tmp_path,  # outside the sources, to test the installed package
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- signatures of compiled classes, functions and methods ---

OF_CODEC: dict[str, Any] = {
    name: getattr(tw, name)
    for name in tw.__all__
    if getattr(tw, name).__module__.startswith("tensorwire._codec.")
}


def members(kind: type) -> dict[str, Any]:
    """Return the attributes of a class and of its base classes of this package."""
    bases = [base for base in reversed(kind.__mro__) if base.__module__.startswith("tensorwire.")]
    return {name: value for base in bases for name, value in vars(base).items()}


METHODS = {
    f"{name}.{method}": value
    for name, kind in OF_CODEC.items()
    if inspect.isclass(kind)
    for method, value in members(kind).items()
    if callable(value) and (not method.startswith("_") or method.startswith("__dlpack"))
    if method != "replace"  # its stubs have the arguments of the constructors
}


def definition(body: list[ast.stmt], name: str) -> Any:
    return next((item for item in body if getattr(item, "name", None) == name), None)


def in_stub(value: Any) -> Any:
    """Return the definition of a function, method or constructor in the stub of its module."""
    found = ast.parse(stub(value.__module__.removeprefix("tensorwire.")).read_text())
    for name in value.__qualname__.split("."):
        found = definition(found.body, name)
    if inspect.isclass(value):
        found = definition(found.body, "__init__") or definition(found.body, "__new__")
        del found.args.args[0]
        found.returns = None
    return found


@pytest.mark.parametrize("name", [*OF_CODEC, *METHODS])
def test_signature_is_that_of_the_stub(name: str) -> None:
    """Names, kinds, types and defaults agree. The stub has "..." for defaults without a literal."""
    value = (OF_CODEC | METHODS)[name]
    declared, signature = in_stub(value), inspect.signature(value)
    if any(ast.unparse(decorator) == "overload" for decorator in declared.decorator_list):
        assert value.__annotations__.keys() == {*signature.parameters, "return"} - {"self"}
        return
    found: Any = ast.parse(f"def function{signature}: ...").body[0]
    for defaults, others in (
        (declared.args.defaults, found.args.defaults),
        (declared.args.kw_defaults, found.args.kw_defaults),
    ):
        for i, default in enumerate(defaults):
            if default is not None and ast.unparse(default) == "...":
                others[i] = default
    assert without_quotes(found.args) == without_quotes(declared.args)
    assert without_quotes(found.returns) == without_quotes(declared.returns)


@pytest.mark.parametrize("name", ["Tensor", "RequestedOutput", "InferRequest", "InferResponse"])
def test_replace_has_the_types_of_the_constructor(name: str) -> None:
    def types(arguments: ast.arguments) -> dict[str, str]:
        named = arguments.args + arguments.kwonlyargs
        return {a.arg: ast.unparse(a.annotation) for a in named if a.annotation is not None}

    kind = getattr(tw, name)
    module = ast.parse(stub(kind.__module__.removeprefix("tensorwire.")).read_text())
    replace = definition(definition(module.body, name).body, "replace").args
    assert types(replace) == types(in_stub(kind).args)
    assert {ast.unparse(default) for default in replace.kw_defaults} == {"..."}


def without_quotes(node: ast.AST | None) -> str:
    """Return the text of types, which are strings at run time."""
    return "" if node is None else ast.unparse(node).replace("'", "")


# --- annotations and signatures of all public names ---


def public_callables() -> Iterator[tuple[str, Any]]:
    """Return all public functions and classes, and the public methods of these classes."""
    for module in MODULES:
        # A class of KServe's, and an alias of a type.
        for name in set(module.__all__) - {"BinaryDataPlane", "Models"}:
            value = getattr(module, name)
            if not callable(value):
                continue
            yield f"{module.__name__}.{name}", value
            for method, member in members(value).items() if inspect.isclass(value) else ():
                if callable(member) and not method.startswith("_"):
                    yield f"{module.__name__}.{name}.{method}", member


package("grpc")
CALLABLES = dict(public_callables())


@pytest.mark.parametrize("name", [*CALLABLES, *METHODS])
def test_annotations_can_be_evaluated(name: str) -> None:
    """Their names are found where the function or class is."""
    value = (CALLABLES | METHODS)[name]
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
    config = {"arbitrary_types_allowed": True}
    validate = pydantic.validate_call(config=config, validate_return=True)
    tensor = tw.Tensor("x", np.zeros(3))
    assert validate(tensor.as_numpy)(aligned="yes").shape == (3,)
    with pytest.raises(pydantic.ValidationError, match="valid boolean"):
        validate(tensor.as_numpy)(aligned=[])
    assert validate(tw.InferRequest([tensor]).get)("x") is tensor


@pytest.mark.parametrize("name", CALLABLES)
def test_defaults_in_signatures_are_short(name: str) -> None:
    for parameter in inspect.signature(CALLABLES[name]).parameters.values():
        assert parameter.default is parameter.empty or len(repr(parameter.default)) <= 30


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_dir_shows_public_names(module: ModuleType) -> None:
    assert {name for name in dir(module) if not name.startswith("__")} == set(module.__all__)
    assert {"__doc__", "__file__", "__name__", "__all__"} <= set(dir(module))
