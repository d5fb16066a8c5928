"""Patch: installs all replacements or none, in every module with the name, and restores them."""

from __future__ import annotations

import ast
import json
import logging
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import distribution
from inspect import signature
from pathlib import Path
from threading import Barrier
from types import ModuleType
from typing import Any

import pytest

import tensorwire as tw
from interop.recorded_sources import check_recorded
from support import tritonclient_comparison
from support.wrappers import WRAPPERS
from tensorwire.digests import Sources, canonical_text, source_of_imported
from tensorwire.integrations import patching, tritonclient
from tensorwire.integrations.patching import Patch, Replacement, Untested

http = tritonclient_comparison.http  # a fixture

pytestmark = [
    pytest.mark.no_sanitizers(reason="it tests Python code"),
    pytest.mark.thread_unsafe(
        reason="ast.parse is not thread-safe before Python 3.11.8 (python/cpython#106905)"
    ),
]

SOURCE = """
def double(x, times=2):
    "Docstring of the peer."
    return x * times

def helper(x):
    return x

class Thing:
    def plain(self, x):
        return ("plain", helper(x))

    @classmethod
    def of(cls, x):
        return (cls, x)

    @staticmethod
    def static(x):
        return ("static", x)

    def inherited(self, x):
        return ("inherited", x)

class Child(Thing):
    limit = 5
"""
# Thing.of and Thing.static are replaced together, and Child.limit only if they and Child.inherited,
# which Thing defines, are replaced.
RELIANCE = {
    "peer:Thing.plain": ["peer:helper"],
    "peer:Thing.of": ["peer:Thing.static"],
    "peer:Thing.static": ["peer:Thing.of"],
    "peer:Child.limit": ["peer:Thing.of", "peer:Child.inherited"],
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "double": lambda peer: peer.double(3),
    "Thing.plain": lambda peer: peer.Thing().plain(1),
    "Thing.of": lambda peer: peer.Thing.of(1),
    "Thing.static": lambda peer: peer.Thing.static(1),
    "Child.inherited": lambda peer: peer.Child().inherited(1),
}
NAMES = {*FUNCTIONS, "Child.limit"}


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for a function, which marks the result."""
    replacements_by_name: dict[str, Callable[..., Any]] = {
        "plain": lambda self, x: ("new", function(self, x)),
        "of": lambda cls, x: ("new", function(cls, x)),
        "static": lambda x: ("new", function(x)),
        "double": lambda x, times=2: ("new", function(x, times)),
        "inherited": lambda self, x: ("new", function(self, x)),
    }
    return replacements_by_name[function.__name__]


def module(name: str, source: str = "", **values: Any) -> ModuleType:
    made = ModuleType(name)
    sys.modules[name] = made
    vars(made).update(values)
    exec(source, vars(made))
    return made


class Peer:
    """A package with one module, and the patch that replaces its functions."""

    def __init__(self, folder: Path, changes: dict[str, str]) -> None:
        source = SOURCE
        for old, new in changes.items():
            assert old in source
            source = source.replace(old, new)
        (folder / "peer.py").write_text(source)
        self.module: Any = import_module("peer")
        self.digests = folder / "sources.json"
        module("integration", __file__=str(folder / "__init__.py"))
        tested = Sources({"peer": SOURCE}.get)
        names = [f"peer:{name}" for name in ("double", "helper", "Thing.inherited")]
        self.known = {name: {tested.digest(name): "1.5"} for name in {*names, *RELIANCE}}
        self.before = self.state()
        self.patch = self.patch_of(RELIANCE)

    def patch_of(
        self,
        relies_on: dict[str, list[str]],
        versions: tuple[str, str] = ("1.4", "1.5"),
        replacements: Callable[[], Any] | None = None,
    ) -> Patch:
        self.digests.write_text(json.dumps(self.known))
        module(
            "integration.patches",
            RELIES_ON=relies_on,
            replacements=replacements or self.replacements,
        )
        return Patch("peer", versions, "integration")

    def replacements(self) -> list[Replacement]:
        found = []
        for name in sorted(NAMES):
            owner, _, method = name.rpartition(".")
            factory: Any = (lambda limit: limit + 1) if method == "limit" else marked
            found.append(Replacement(self.owner(owner), method, factory))
        return found

    def owner(self, name: str) -> Any:
        return getattr(self.module, name) if name else self.module

    def state(self) -> list[dict[str, Any]]:
        module = self.module
        return [dict(vars(owner)) for owner in (module, module.Thing, module.Child)]

    def is_restored(self) -> bool:
        return not self.patch.is_installed() and not self.replaced()

    def replaced(self) -> set[str]:
        """Return the names whose values are other objects than at first."""
        return {
            prefix + name
            for prefix, before, now in zip(
                ("", "Thing.", "Child."), self.before, self.state(), strict=True
            )
            for name in before.keys() | now.keys()
            if before.get(name) is not now.get(name)
        }


MakePeer = Callable[..., Peer]


@pytest.fixture
def make_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePeer]:
    """Import a package with a version and changes of its source."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def make(version: str = "1.5.2", changes: dict[str, str] | None = None) -> Peer:
        monkeypatch.setattr(patching, "version", lambda distribution: version)
        return Peer(tmp_path, changes or {})

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def peer(make_peer: MakePeer) -> Peer:
    return make_peer()


# --- install and uninstall ------------------------------------------------------------------------


def test_functions_methods_and_constants_are_replaced(peer: Peer) -> None:
    expected = {name: call(peer.module) for name, call in FUNCTIONS.items()}
    for _ in range(2):
        peer.patch.uninstall()
        peer.patch.install()
        peer.patch.install()
        assert peer.patch.is_installed()
        assert peer.replaced() == NAMES
        for name, call in FUNCTIONS.items():
            assert call(peer.module) == ("new", expected[name])
        thing = peer.module.Thing
        assert thing().of(1) == ("new", (thing, 1))
        assert thing().static(1) == ("new", ("static", 1))
        assert thing().inherited(1) == ("inherited", 1)
        assert peer.module.Child.limit == 6
        assert peer.module.double.__doc__ == "Docstring of the peer."
        peer.patch.uninstall()
        assert peer.is_restored()


def test_every_binding_of_a_function_is_replaced(peer: Peer) -> None:
    """Under any name, in modules imported before the installation or after it."""
    double = peer.module.double
    user = module("user", "from peer import double, double as twice; listed = [double]")
    peer.patch.install()
    late = module("late", "from peer import *")
    assert user.double is user.twice is late.double is peer.module.double is not double
    peer.patch.uninstall()
    assert user.double is user.twice is late.double is peer.module.double is double


def test_class_is_replaced_like_a_function(peer: Peer) -> None:
    thing = peer.module.Thing
    user = module("user", "from peer import Thing")
    replacement = Replacement(peer.module, "Thing", lambda old: type("Thing", (old,), {}))
    patch = peer.patch_of({}, replacements=lambda: [replacement])
    patch.install()
    assert user.Thing is peer.module.Thing is not thing
    assert issubclass(user.Thing, thing)
    patch.uninstall()
    assert user.Thing is peer.module.Thing is thing


@pytest.mark.parametrize(
    ("versions", "is_accepted"),
    [
        (("1.5", "1.5"), True),
        (("1", "1"), True),
        (("1.5.2", "1.5.2"), True),
        (("1.4.9", "1.6"), True),
        (("1.5.3", "1.6"), False),
        (("1.6", "1.10"), False),
        (("0.9", "1.10"), True),
    ],
)
def test_tested_versions(make_peer: MakePeer, versions: tuple[str, str], is_accepted: bool) -> None:
    """A tested version is not compared, so the change of its source is not noticed."""
    peer = make_peer(changes={"x * times": "times * x"})
    peer.patch = peer.patch_of(RELIANCE, versions)
    if is_accepted:
        peer.patch.install(untested="error")
        assert peer.replaced() == NAMES
        peer.patch.uninstall()
    else:
        with pytest.raises(tw.IntegrationError) as caught:
            peer.patch.install()
        assert str(caught.value) == (
            f"peer 1.5.2 is too old; tensorwire was tested with peer {' to '.join(versions)}, "
            f"and has changed nothing"
        )
    assert peer.is_restored()


def test_missing_distribution() -> None:
    patch = Patch("no-such-peer", ("1", "2"), "no_such_integration")  # it is not imported
    with pytest.raises(tw.IntegrationError, match=r"^no-such-peer is not installed; tensor") as why:
        patch.install()
    assert isinstance(why.value, ImportError)
    assert (why.value.distribution, why.value.installed) == ("no-such-peer", None)
    again = pickle.loads(pickle.dumps(why.value))
    assert (str(again), again.tested) == (str(why.value), "1 to 2")


@pytest.mark.parametrize("untested", ["known", "allow", "error"])
@pytest.mark.parametrize("version", ["1.5.2", "1.6.0rc1"])
def test_missing_class_or_module(make_peer: MakePeer, version: str, untested: Untested) -> None:
    peer = make_peer(version)
    for problem, missing in (
        ("'Other'", lambda: peer.module.Other),
        ("No module named 'peer.part'", lambda: import_module("peer.part")),
    ):

        def replacements(missing: Callable[[], Any] = missing) -> Iterator[Replacement]:
            yield from peer.replacements()
            yield Replacement(missing(), "double", marked)

        peer.patch = peer.patch_of(RELIANCE, replacements=replacements)
        with pytest.raises(tw.IntegrationError, match=rf"{version} is not laid out .*{problem}"):
            peer.patch.install(untested=untested)
        assert peer.is_restored()


def test_failed_installation_is_rolled_back(peer: Peer) -> None:
    class Locked(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("locked")

    locked = Locked("locked", (), {**vars(peer.module.Thing), "__module__": "peer"})
    peer.patch = peer.patch_of(
        {}, replacements=lambda: [*peer.replacements(), Replacement(locked, "plain", marked)]
    )
    with pytest.raises(TypeError, match="locked"):
        peer.patch.install()
    assert peer.is_restored()


def test_annotations_are_ignored_when_comparing_parameters(peer: Peer) -> None:
    def new(x: int, times: int = 2) -> int:
        return x * times + 1

    patch = peer.patch_of(
        {}, replacements=lambda: [Replacement(peer.module, "double", lambda _: new)]
    )
    patch.install()
    assert peer.module.double(3) == 7
    patch.uninstall()


def test_value_of_untested(peer: Peer) -> None:
    untested: Any = "ignore"
    with pytest.raises(ValueError, match="'known', 'allow', 'error', not 'ignore'"):
        peer.patch.install(untested=untested)
    assert peer.is_restored()


def test_concurrent_install_and_uninstall(peer: Peer) -> None:
    """Concurrent callers get the original or one replacement, never nested ones."""
    n_threads = 8
    start = Barrier(n_threads)

    def work(i: int) -> None:
        start.wait()
        for _ in range(20):
            (peer.patch.install if i % 2 else peer.patch.uninstall)()
            assert peer.module.double(3) in (6, ("new", 6))
            assert peer.module.Thing().plain(1) in (("plain", 1), ("new", ("plain", 1)))

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(work, range(n_threads)))
    peer.patch.uninstall()
    assert peer.is_restored()


# --- code of others -------------------------------------------------------------------------------

with_wrappers = pytest.mark.parametrize("wrap", WRAPPERS)


class Wrapped:
    """A function that other code has wrapped."""

    def __init__(self, owner: Any, name: str, wrap: Any) -> None:
        self.owner, self.name = owner, name
        self.before = vars(owner)[name]
        self.n_calls = 0
        self.wrapper = wrap(self.before, self.count)
        setattr(owner, name, self.wrapper)

    @classmethod
    def of(cls, peer: Peer, function: str, wrap: Any) -> Wrapped:
        owner, _, name = function.rpartition(".")
        return cls(peer.owner(owner), name, wrap)

    def count(self) -> None:
        self.n_calls += 1

    def remove(self) -> None:
        setattr(self.owner, self.name, self.before)


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Return the only message."""
    [record] = caplog.records
    return record.getMessage()


WRAPPED = ["double", "Thing.plain", "Thing.of", "Thing.static"]


@with_wrappers
@pytest.mark.parametrize("function", WRAPPED)
def test_wrapped_function_is_not_replaced(
    peer: Peer, caplog: pytest.LogCaptureFixture, wrap: Any, function: str
) -> None:
    """The wrapper is called as before, and one warning names the function."""
    expected = FUNCTIONS[function](peer.module)
    wrapped = Wrapped.of(peer, function, wrap)
    peer.before, peer.patch = peer.state(), peer.patch_of({})
    with pytest.raises(tw.IntegrationError, match=r"1\.5\.2 has functions that differ: peer\."):
        peer.patch.install(untested="error")
    assert peer.is_restored()
    peer.patch.install()
    assert peer.replaced() == NAMES - {function}
    assert FUNCTIONS[function](peer.module) == expected
    assert wrapped.n_calls == 1
    assert re.search(
        rf"not replaced: peer\.{function} \(peer\.{function} is [\w.<>]+ now\)$", logged(caplog)
    ), logged(caplog)
    peer.patch.uninstall()
    assert peer.is_restored()


@with_wrappers
@pytest.mark.parametrize("function", ["double", "Thing.plain"])
def test_replacement_that_calls_the_original_also_calls_its_wrapper(
    peer: Peer, wrap: Any, function: str
) -> None:
    expected = FUNCTIONS[function](peer.module)
    wrapped = Wrapped.of(peer, function, wrap)

    def around(original: Any) -> Any:
        def new(*arguments: Any, **options: Any) -> Any:
            return ("new", original(*arguments, **options))

        new.__signature__ = signature(original)  # type: ignore[attr-defined]
        return new

    replacement = Replacement(wrapped.owner, wrapped.name, around, calls_original=True)
    name = f"peer:{function}"
    patch = peer.patch_of({name: [name]}, replacements=lambda: [replacement])
    patch.install()
    is_replaced = callable(wrapped.wrapper)  # a partialmethod cannot be called
    assert FUNCTIONS[function](peer.module) == (("new", expected) if is_replaced else expected)
    assert wrapped.n_calls == 1
    patch.uninstall()
    assert vars(wrapped.owner)[wrapped.name] is wrapped.wrapper


@with_wrappers
@pytest.mark.parametrize("function", [*WRAPPED, "user"])
def test_function_that_is_wrapped_later(peer: Peer, wrap: Any, function: str) -> None:
    """The wrapper is called. It has to be removed before the integration is."""
    user = module("user", "from peer import double")
    peer.patch.install()
    name = "user.double" if function == "user" else f"peer.{function}"
    if function == "user":
        wrapped = Wrapped(user, "double", wrap)
        assert user.double(3)[0] == "new"
    else:
        wrapped = Wrapped.of(peer, function, wrap)
        assert FUNCTIONS[function](peer.module)[0] == "new"
    assert wrapped.n_calls == 1
    installed = peer.state()
    with pytest.raises(tw.IntegrationError, match=rf"was installed: {re.escape(name)}\. Undo"):
        peer.patch.uninstall()
    assert peer.patch.is_installed()
    assert peer.state() == installed
    wrapped.remove()
    peer.patch.uninstall()
    assert peer.is_restored()
    assert user.double is peer.module.double


def test_values_that_are_no_wrappers_are_kept(peer: Peer) -> None:
    """They are functions of the package itself, or no functions."""
    peer.patch.install()
    vars(peer.module)["double"] = 5
    peer.module.Thing.plain = peer.module.helper
    del peer.module.Child.inherited
    peer.patch.uninstall()
    assert peer.replaced() == {"double", "Thing.plain"}
    assert peer.module.double == 5
    assert peer.module.Thing.plain is peer.module.helper


def test_replaced_class_of_which_other_code_uses_a_subclass(peer: Peer) -> None:
    """The subclass has to be removed before the integration is."""
    replacement = Replacement(peer.module, "Thing", lambda old: type("Thing", (old,), {}))
    patch = peer.patch_of({}, replacements=lambda: [replacement])
    patch.install()
    new = peer.module.Thing
    peer.module.Thing = type("Thing", (new,), {})
    with pytest.raises(tw.IntegrationError, match=r"was installed: peer\.Thing\. Undo"):
        patch.uninstall()
    peer.module.Thing = new
    patch.uninstall()
    assert peer.is_restored()


@pytest.mark.parametrize("accessor", ["fget", "fset", "fdel"])
def test_property_with_an_accessor_of_other_code(peer: Peer, accessor: str) -> None:
    own: dict[str, Any] = dict.fromkeys(("fget", "fset", "fdel"), peer.module.Thing.plain)
    assert patching.foreign_code(property(**own), "peer:Thing.x") is None
    replaced = property(**{**own, accessor: marked})
    assert patching.foreign_code(replaced, "peer:Thing.x") == f"{__name__}.marked"


def test_compiled_function_is_foreign() -> None:
    """It has the names of what it wraps, if it is a wrapper."""
    assert not isinstance(tw.decode_bytes, type(marked))
    assert patching.foreign_code(tw.decode_bytes, "peer:double") is not None


@pytest.mark.parametrize("imported", [False, True])
@with_wrappers
def test_wrapped_function_that_a_replacement_relies_on(
    peer: Peer, caplog: pytest.LogCaptureFixture, wrap: Any, imported: bool
) -> None:
    """A wrapper in the module that has imported the function counts as well.

    ``double`` comes before the replacements that it relies on indirectly.
    """
    parts = module("peer.parts", "def part(x): return x")
    exec("from peer.parts import part", vars(peer.module))
    Wrapped(peer.module if imported else parts, "part", wrap)
    peer.before = peer.state()
    peer.patch = peer.patch_of(
        {
            "peer:double": ["peer:Thing.plain"],
            "peer:Thing.plain": ["peer:Thing.of"],
            "peer:Thing.of": ["peer.parts:part"],
        },
        replacements=lambda: [r._replace(calls_original=True) for r in peer.replacements()],
    )
    peer.patch.install()
    assert peer.replaced() == {"Thing.static", "Child.inherited", "Child.limit"}
    assert re.search(
        r"peer\.Thing\.of \(peer\.parts\.part is [\w.<>]+ now\); "
        r"peer\.Thing\.plain \(peer\.Thing\.of is not replaced\); "
        r"peer\.double \(peer\.Thing\.plain is not replaced\)$",
        logged(caplog),
    ), logged(caplog)
    peer.patch.uninstall()
    assert peer.is_restored()


def test_functions_of_other_packages_are_compared_in_tested_versions(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """The source of `json.loads` differs from the recorded one, that of `json.dumps` does not."""
    dumps = Sources(source_of_imported).digest("json:dumps")
    peer.known |= {"json:dumps": {dumps: "1"}, "json:loads": {"0": "1"}}
    patch = peer.patch_of({"peer:double": ["json:dumps"], "peer:Thing.of": ["json:loads"]})
    patch.install()
    assert peer.replaced() == NAMES - {"Thing.of"}
    assert "peer.Thing.of (the source of json.loads is not known)" in logged(caplog)
    patch.uninstall()
    patch.install(untested="allow")
    assert peer.replaced() == NAMES
    patch.uninstall()


# --- digests ---


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
        ("y=1", "y=2"),
        ("y=1", "*, y=1"),
        ("x, y=1", "x: int, y=1"),
        ("None", "False"),
        ("False", "0"),
        ("-1.5", "1.5"),
        ('b""', '""'),
        ("!r", "!s"),
        (":>", ":<"),
        ("in values", "in values if v"),
        ("def inner", "async def inner"),
        ("**x}", "'x': x}"),
        ("def f", "@cached\ndef f"),
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
        ("m:f", "return 1"),
        ("m:f", "return 2"),
        ("m:C.constant", "= 3"),
        ("m:C.p", "return 1"),
        ("m:C.p", "self.value = value"),
        ("m:C.Inner.f", "return 5"),
        ("m:C.Inner", "return 5"),
        ("m:C", "= 3"),
    ],
)
def test_digest_of_properties_constants_classes_and_conditional_definitions(
    name: str, part: str
) -> None:
    assert digest(SCOPES, name) not in (digest(SCOPES.replace(part, part + "0"), name), None)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (SCOPES, "m:g"),
        (SCOPES, "m:C.f"),
        (SCOPES, "m:C.p.value"),
        (SCOPES, "other:f"),
        ("from other import f", "m:f"),
        ("def f(:", "m:f"),
        ("def f(): return 1\0", "m:f"),
    ],
)
def test_function_without_source_has_no_digest(source: str, name: str) -> None:
    assert digest(source, name) is None


def test_source_that_emits_a_warning_has_a_digest() -> None:
    """In the tests, warnings are errors."""
    assert digest(r"def f(): return '\d'") is not None


def test_digest_is_the_same_in_all_versions_of_python() -> None:
    """It was computed with Python 3.11, 3.12 and 3.13. 3.12 has another tree for the f-string."""
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


# --- releases that are newer than the tested ones -------------------------------------------------


@pytest.mark.parametrize("untested", ["known", "allow", "error"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"x * times": "(x\n        * times)  # comment"},
        {'"Docstring of the peer."': '"""Other."""'},
        {"class Thing": "added = 1\n\nclass Thing"},
    ],
)
def test_newer_version_with_known_sources(
    make_peer: MakePeer,
    caplog: pytest.LogCaptureFixture,
    untested: Untested,
    changes: dict[str, str],
) -> None:
    peer = make_peer("1.6.0rc1", changes)
    peer.patch.install(untested=untested)
    assert peer.replaced() == NAMES
    assert not caplog.records
    peer.patch.uninstall()
    assert peer.is_restored()


# For each change: the functions that are not replaced, and why; then those that "allow" leaves out.
STATIC_DIFFERS = {
    "Thing.static": "the source of peer.Thing.static is not known",
    "Thing.of": "the source of peer.Thing.static is not known",
    "Child.limit": "peer.Thing.of is not replaced",
}
INHERITED_DIFFERS = {
    "Child.inherited": "the source of peer.Child.inherited is not known",
    "Child.limit": "the source of peer.Child.inherited is not known",
}
DIFFERENCES: list[tuple[dict[str, str], dict[str, str], dict[str, str]]] = [
    (
        {"x * times": "times * x"},
        {"double": "the source of peer.double is not known"},
        {},
    ),
    (
        {"    return x\n": "    return -x\n"},
        {"Thing.plain": "the source of peer.helper is not known"},
        {},
    ),
    ({'("static", x)': '["static", x]'}, STATIC_DIFFERS, {}),
    (
        {"    @staticmethod\n    def static(": "    @staticmethod\n    def renamed("},
        STATIC_DIFFERS,
        {
            "Thing.static": "is missing",
            "Thing.of": "peer.Thing.static is not replaced",
            "Child.limit": "peer.Thing.of is not replaced",
        },
    ),
    (
        {"def double(x, times=2)": "def double(x, times=3)"},
        {"double": "the source of peer.double is not known"},
        {"double": "has the parameters (x, times=3), not (x, times=2)"},
    ),
    ({"    limit = 5": "    limit = 5\n    def inherited(self, x): 1"}, INHERITED_DIFFERS, {}),
    ({'("inherited", x)': '["inherited", x]'}, INHERITED_DIFFERS, {}),
]


@pytest.mark.parametrize(
    ("changes", "differences", "left_out_by_allow"), DIFFERENCES, ids=lambda value: str(value)[:40]
)
def test_newer_version_that_differs(
    make_peer: MakePeer,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, str],
    differences: dict[str, str],
    left_out_by_allow: dict[str, str],
) -> None:
    """The rest is replaced, and one warning names the functions that are not, or an exception."""
    peer = make_peer("1.6.0rc1", changes)
    cases: list[tuple[Untested, dict[str, str]]]
    cases = [("known", differences), ("allow", left_out_by_allow)]
    for untested, reasons in cases:
        caplog.clear()
        peer.patch.install(untested=untested)
        assert peer.replaced() == NAMES - reasons.keys()
        listed = "; ".join(f"peer.{name} ({reasons[name]})" for name in sorted(reasons))
        if reasons:
            assert logged(caplog) == (
                "These functions of peer 1.6.0rc1 differ from those that tensorwire was tested "
                f"with (1.4 to 1.5), and are not replaced: {listed}"
            )
            [record] = caplog.records
            assert (record.name, record.levelno) == ("tensorwire.integrations", logging.WARNING)
        peer.patch.install(untested=untested)  # is installed already
        assert len(caplog.records) == bool(reasons)
        peer.patch.uninstall()
        assert peer.is_restored()
    caplog.clear()
    with pytest.raises(tw.IntegrationError) as caught:
        peer.patch.install(untested="error")
    for name, reason in differences.items():
        assert f"peer.{name} ({reason})" in str(caught.value)
    assert (caught.value.installed, caught.value.tested) == ("1.6.0rc1", "1.4 to 1.5")
    assert not caplog.records
    assert peer.is_restored()


def test_package_without_python_source(
    make_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    """No source is known if the file is missing, as in a package of compiled modules."""
    peer = make_peer("1.6.0rc1")
    assert source_of_imported("peer") == SOURCE
    Path(peer.module.__file__).unlink()
    assert source_of_imported("peer") is None
    peer.patch.install()
    assert peer.is_restored()
    assert len(caplog.records) == 1


# --- tritonclient ---


def test_digests_of_tritonclient_are_recorded(http: ModuleType) -> None:
    check_recorded(tritonclient)


INSTALL = """
import json, logging, sys
messages = []
logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s %(message)s")
from tensorwire import IntegrationError
from tensorwire.integrations import patching, tritonclient
import tritonclient as peer
try:
    tritonclient.install(untested=sys.argv[1])
except IntegrationError as error:
    print("IntegrationError:", error, file=sys.stderr)
changes = tritonclient._PATCH._changes
tritonclient.uninstall()
names = [patching.readable(patching.join_name(c.owner, c.name)) for c in changes]
print(json.dumps([peer.__file__, sorted(names)]))
"""
UTILS, HTTP, GRPC = (f"tritonclient.{name}" for name in ("utils", "http", "grpc"))
BYTES = {f"{UTILS}.serialize_byte_tensor", f"{UTILS}.deserialize_bytes_tensor"}
MEMORY = {f"{UTILS}.shared_memory.get_contents_as_numpy"}
GRPC_INPUT = {f"{GRPC}._infer_input.InferInput.set_data_from_numpy"}
GRPC_REQUEST = {f"{GRPC}._utils._get_inference_request"}
GRPC_START = {f"{GRPC}._client.InferenceServerClient.start_stream"}
GRPC_STREAM = {f"{GRPC}._client.InferenceServerClient.async_stream_infer"}
GRPC_QUEUE = {f"{GRPC}._infer_stream._InferStream._enqueue_request"}
GRPC_CALLS = {
    f"{GRPC}._client.InferenceServerClient.infer",
    f"{GRPC}._client.InferenceServerClient.async_infer",
    f"{GRPC}.aio.InferenceServerClient.infer",
    f"{GRPC}.aio.InferenceServerClient.stream_infer",
}
GRPC_RESULT = {
    f"{GRPC}._infer_result.InferResult.as_numpy",
    f"{GRPC}._infer_result.InferResult.get_response",
}
GRPC_INPUTS = GRPC_INPUT | GRPC_REQUEST
GRPC_ALL = GRPC_INPUTS | GRPC_START | GRPC_STREAM | GRPC_QUEUE | GRPC_CALLS | GRPC_RESULT
HTTP_INPUTS = {
    f"{HTTP}._infer_input.InferInput.set_data_from_numpy",
    f"{HTTP}._utils._get_inference_request",
    f"{HTTP}._client.InferenceServerClient.infer",
    f"{HTTP}._client.InferenceServerClient.async_infer",
    f"{HTTP}.aio.InferenceServerClient.infer",
}
RESULT = f"{HTTP}._infer_result.InferResult"
RESULTS = {f"{RESULT}.__init__"}
ALL = BYTES | MEMORY | GRPC_ALL | HTTP_INPUTS | RESULTS


@pytest.fixture(scope="module")
def tritonclient_3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of tritonclient and a higher version."""
    tritonclient_comparison.module("http", "http")
    folder = tmp_path_factory.mktemp("tritonclient_3")
    installed = Path(str(distribution("tritonclient").locate_file("tritonclient")))
    shutil.copytree(installed, folder / "tritonclient")
    metadata = folder / "tritonclient-3.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: tritonclient\nVersion: 3.0.0\n")
    return folder


@pytest.mark.thread_unsafe(reason="it changes files")
@pytest.mark.parametrize(
    ("file", "old", "new", "left_out"),
    [
        ("http/_utils.py", "infer_request = {}", "infer_request = {}", set()),
        ("http/_utils.py", "infer_request = {}", "infer_request = {  }  # empty", set()),
        (
            "utils/__init__.py",
            "def serialize_byte_tensor(input_tensor):",
            "def serialize_byte_tensor(input_tensor):\n    1",
            {f"{UTILS}.serialize_byte_tensor"},
        ),
        (
            "http/_infer_result.py",
            "def as_numpy(self, name):",
            "def as_numpy(self, name):\n        1",
            RESULTS,
        ),
        (
            "http/_infer_result.py",
            "def from_response_body(",
            "def renamed(",
            RESULTS,
        ),
        (
            "http/_infer_input.py",
            "def _get_tensor(self):",
            "def _get_tensor(self, x=1):",
            HTTP_INPUTS,
        ),
        (
            "grpc/_infer_result.py",
            "def get_output(self,",
            "def get_output(self, /,",
            GRPC_CALLS | GRPC_START,
        ),
        ("grpc/_infer_stream.py", "self._stream = stream", "self._stream = (stream)", set()),
        (
            "grpc/_infer_stream.py",
            "self._stream = stream",
            "self._stream = [stream]",
            GRPC_QUEUE | GRPC_STREAM,
        ),
        (
            "grpc/_utils.py",
            "request.model_name = model_name",
            "request.model_name = str(model_name)",
            GRPC_REQUEST | GRPC_CALLS | GRPC_START | GRPC_STREAM,
        ),
    ],
)
def test_next_release_of_tritonclient(
    tritonclient_3: Path, file: str, old: str, new: str, left_out: set[str]
) -> None:
    """The copy has the same sources, apart from one change."""
    path = tritonclient_3 / "tritonclient" / file
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new, 1))
    try:
        done = {
            untested: subprocess.run(
                [sys.executable, "-B", "-c", INSTALL, untested],
                env={"PYTHONPATH": f"{tritonclient_3}:{':'.join(sys.path)}"},
                capture_output=True,
                text=True,
                check=True,
            )
            for untested in ("known", "error")
        }
    finally:
        path.write_text(source)
    origin, replaced = json.loads(done["known"].stdout)
    assert Path(origin).is_relative_to(tritonclient_3)
    assert {*replaced} == ALL - left_out
    warning, error = done["known"].stderr, done["error"].stderr
    replaced_or_error = json.loads(done["error"].stdout)[1]
    if not left_out:
        assert warning == error == ""
        assert {*replaced_or_error} == ALL
        return
    assert warning.startswith("tensorwire.integrations These functions of tritonclient 3.0.0 ")
    assert error.startswith("IntegrationError: tritonclient 3.0.0 has functions that differ")
    names = re.findall(r"(?:: |; )(tritonclient\.\S+) \(", warning)
    assert (len(names), {*names}) == (len(left_out), left_out)
    assert replaced_or_error == []
