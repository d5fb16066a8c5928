"""Patch: installs all replacements or none, in every module with the name, and restores them."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from threading import Barrier
from types import ModuleType
from typing import Any
from unittest.mock import Mock, patch

import pytest

import tensorwire as tw
from interop.recorded_sources import shown
from support.wrappers import WRAPPERS, wrapped
from tensorwire.integrations import functions, patching
from tensorwire.integrations.digests import Sources, source_of_imported
from tensorwire.integrations.patching import Patch, Replacement, Untested

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
    def own(self, x):
        return ("own", x)
"""
# Thing.of is replaced only if Thing.static is, and Child.own only if Thing.of and Child.inherited,
# which Thing defines, are replaced.
RELIANCE = {
    "peer:Thing.plain": ["peer:helper"],
    "peer:Thing.of": ["peer:Thing.static"],
    "peer:Child.own": ["peer:Thing.of", "peer:Child.inherited"],
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {  # in the order in which they are replaced
    "Thing.static": lambda peer: peer.Thing.static(1),
    "Thing.of": lambda peer: peer.Thing.of(1),
    "Thing.plain": lambda peer: peer.Thing().plain(1),
    "double": lambda peer: peer.double(3),
    "Child.inherited": lambda peer: peer.Child().inherited(1),
    "Child.own": lambda peer: peer.Child().own(1),
}
NAMES = {*FUNCTIONS}


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for a function, which marks the result."""

    def annotated(x: int, times: int = 2) -> Any:  # annotations need not be the same
        return ("new", function(x, times))

    replacements: dict[str, Callable[..., Any]] = {
        "plain": lambda self, x: ("new", function(self, x)),
        "of": lambda cls, x: ("new", function(cls, x)),
        "static": lambda x: ("new", function(x)),
        "double": annotated,
        "inherited": lambda self, x: ("new", function(self, x)),
        "own": lambda self, x: ("new", function(self, x)),
    }
    return replacements[function.__name__]


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
        names = [f"peer:{name}" for name in ("double", "helper", "Thing.static", "Thing.inherited")]
        self.known = {name: {tested.digest(name): "1.5"} for name in {*names, *RELIANCE}}
        self.before = self.state()
        self.patch = self.patch_of(RELIANCE)

    def patch_of(
        self,
        relies_on: dict[str, list[str]],
        versions: tuple[str, str] = ("1.4", "1.5"),
        replacements: Callable[[], Any] | None = None,
    ) -> Patch:
        self.digests.write_text(json.dumps({"all": self.known}))
        self.relies_on = relies_on
        module("integration.patches", replacements=replacements or self.replacements)
        return Patch("peer", versions, "integration")

    def replacements(self) -> list[Replacement]:
        found = []
        for name in FUNCTIONS:
            owner, method = self.place(name)
            found.append(Replacement(owner, method, marked, self.relies_on.get(f"peer:{name}", ())))
        return found

    def place(self, name: str) -> tuple[Any, str]:
        """Return the module or class of a function, and the name of the function there."""
        owner, _, name = name.rpartition(".")
        return (getattr(self.module, owner) if owner else self.module), name

    def state(self) -> list[dict[str, Any]]:
        module = self.module
        return [dict(vars(owner)) for owner in (module, module.Thing, module.Child)]

    @contextmanager
    def installed(self, untested: Untested = "known") -> Iterator[None]:
        self.patch.install(untested=untested)
        yield
        self.patch.uninstall()
        assert self.is_restored()

    def is_restored(self) -> bool:
        return not self.patch.is_installed() and not self.replaced()

    def replaced(self) -> set[str]:
        """Return the names whose values are other objects than at first."""
        prefixes = "", "Thing.", "Child."
        return {
            prefix + name
            for prefix, before, now in zip(prefixes, self.before, self.state(), strict=True)
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


def test_functions_and_methods_are_replaced(peer: Peer) -> None:
    expected = {name: call(peer.module) for name, call in FUNCTIONS.items()}
    for _ in range(2):
        peer.patch.uninstall()
        with peer.installed():
            peer.patch.install()
            assert peer.patch.is_installed()
            assert peer.replaced() == NAMES
            for name, call in FUNCTIONS.items():
                assert call(peer.module) == ("new", expected[name])
            thing = peer.module.Thing
            assert thing().of(1) == ("new", (thing, 1))
            assert thing().static(1) == ("new", ("static", 1))
            assert thing().inherited(1) == ("inherited", 1)
            assert peer.module.double.__doc__ == "Docstring of the peer."


@pytest.mark.parametrize("begin", ["def", "async def"])
def test_replacement_has_the_parameters_of_the_original(make_peer: MakePeer, begin: str) -> None:
    """In its code, too. A replacement with any parameters gets the arguments by their kinds."""
    given: Any = Mock()

    def generic(original: Any) -> Any:
        @wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            given(*arguments, **options)
            return original(*arguments, **options)

        return call

    made = "double(x, y=1, /, times=2, *rest, key, other=[5], **options)"
    peer = make_peer(changes={"def double(x, times=2)": f"{begin} {made}"})
    replacements = lambda: [Replacement(peer.module, "double", generic)]  # noqa: E731
    before, patch = shown(peer.module, "double"), peer.patch_of({}, replacements=replacements)
    patch.install()
    assert shown(peer.module, "double") == before
    found = peer.module.double(3, 4, key=1, times=5, more=2)
    assert (asyncio.run(found) if begin == "async def" else found) == 15
    given.assert_called_once_with(3, 4, 5, key=1, other=[5], more=2)
    patch.uninstall()


def test_every_binding_of_a_function_is_replaced(peer: Peer) -> None:
    """Under any name, in modules imported before the installation or after it."""
    double = peer.module.double
    user = module("user", "from peer import double, double as twice; listed = [double]")
    peer.patch.install()
    late = module("late", "from peer import *")
    assert user.double is user.twice is late.double is peer.module.double is not double
    peer.patch.uninstall()
    assert user.double is user.twice is late.double is peer.module.double is double


@pytest.mark.parametrize(
    ("versions", "is_accepted"),
    [
        *((("1.5", "1.5"), True), (("1", "1"), True), (("1.5.2", "1.5.2"), True)),
        *((("1.4.9", "1.6"), True), (("0.9", "1.10"), True)),
        *((("1.5.3", "1.6"), False), (("1.6", "1.10"), False)),
    ],
)
def test_tested_versions(make_peer: MakePeer, versions: tuple[str, str], is_accepted: bool) -> None:
    """A tested version is not compared, so the change of its source is not noticed."""
    peer = make_peer(changes={"x * times": "times * x"})
    peer.patch = peer.patch_of(RELIANCE, versions)
    if is_accepted:
        with peer.installed(untested="error"):
            assert peer.replaced() == NAMES
        return
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
    expected, count = FUNCTIONS[function](peer.module), Mock()
    with wrapped(*peer.place(function), wrap, count):
        peer.before, peer.patch = peer.state(), peer.patch_of({})
        with pytest.raises(tw.IntegrationError, match=r"1\.5\.2 has functions that differ: peer\."):
            peer.patch.install(untested="error")
        assert peer.is_restored()
        with peer.installed():
            assert peer.replaced() == NAMES - {function}
            assert FUNCTIONS[function](peer.module) == expected
    count.assert_called_once_with()
    reason = rf"not replaced: peer\.{function} \(peer\.{function} is [\w.<>]+ now\)$"
    assert re.search(reason, logged(caplog)), logged(caplog)


@with_wrappers
@pytest.mark.parametrize("function", ["double", "Thing.plain"])
def test_replacement_that_calls_the_original_also_calls_its_wrapper(
    peer: Peer, wrap: Any, function: str
) -> None:
    (owner, method), count = peer.place(function), Mock()
    expected = FUNCTIONS[function](peer.module)

    def around(original: Any) -> Any:
        def new(*arguments: Any, **options: Any) -> Any:
            return ("new", original(*arguments, **options))

        new.__signature__ = signature(original)  # type: ignore[attr-defined]
        return new

    replacement = Replacement(owner, method, around, [f"peer:{function}"], calls_original=True)
    patch = peer.patch_of({}, replacements=lambda: [replacement])
    with wrapped(owner, method, wrap, count):
        is_replaced = callable(vars(owner)[method])  # a partialmethod cannot be called
        patch.install()
        assert FUNCTIONS[function](peer.module) == (("new", expected) if is_replaced else expected)
        patch.uninstall()
    count.assert_called_once_with()


def test_replacement_has_the_defaults_of_a_wrapper(peer: Peer) -> None:
    double = peer.module.double
    peer.module.double = wraps(double)(lambda x, times=5: double(x, times))
    replacement = Replacement(peer.module, "double", marked, calls_original=True)
    patch = peer.patch_of({}, replacements=lambda: [replacement])
    patch.install()
    assert peer.module.double(3) == ("new", 15)
    patch.uninstall()


@with_wrappers
@pytest.mark.parametrize("function", [*WRAPPED, "user.double"])
def test_function_that_is_wrapped_later(peer: Peer, wrap: Any, function: str) -> None:
    """The wrapper is called. It has to be removed before the integration is."""
    user, count = module("user", "from peer import double"), Mock()
    is_user = function == "user.double"
    owner, method = (user, "double") if is_user else peer.place(function)
    name = re.escape(function if is_user else f"peer.{function}")
    peer.patch.install()
    with wrapped(owner, method, wrap, count):
        found = user.double(3) if is_user else FUNCTIONS[function](peer.module)
        assert found[0] == "new"
        installed = peer.state()
        with pytest.raises(tw.IntegrationError, match=rf"was installed: {name}\. Undo"):
            peer.patch.uninstall()
        assert peer.patch.is_installed()
        assert peer.state() == installed
    count.assert_called_once_with()
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


def test_class_is_replaced_like_a_function(peer: Peer) -> None:
    """A subclass of it that other code uses has to be removed before the integration is."""
    thing = peer.module.Thing
    user = module("user", "from peer import Thing")
    replacement = Replacement(peer.module, "Thing", lambda old: type("Thing", (old,), {}))
    patch = peer.patch_of({}, replacements=lambda: [replacement])
    patch.install()
    new = peer.module.Thing
    assert user.Thing is new is not thing
    peer.module.Thing = type("Thing", (new,), {})
    with pytest.raises(tw.IntegrationError, match=r"was installed: peer\.Thing\. Undo"):
        patch.uninstall()
    peer.module.Thing = new
    patch.uninstall()
    assert user.Thing is peer.module.Thing is thing


@pytest.mark.parametrize("accessor", ["fget", "fset", "fdel"])
def test_property_with_an_accessor_of_other_code(peer: Peer, accessor: str) -> None:
    own: dict[str, Any] = dict.fromkeys(("fget", "fset", "fdel"), peer.module.Thing.plain)
    assert functions.foreign_code(property(**own), "peer:Thing.x") is None
    replaced = property(**{**own, accessor: marked})
    assert functions.foreign_code(replaced, "peer:Thing.x") == f"{__name__}.marked"


def test_mocked_function_is_named(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    """A function that ``autospec`` makes has no module."""
    with patch.object(peer.module, "double", autospec=True):
        peer.before = peer.state()
        with peer.installed():
            assert peer.replaced() == NAMES - {"double"}
    reason = r"peer\.double is a function without a module, such as a mock, now\)$"
    assert re.search(reason, logged(caplog)), logged(caplog)


def test_compiled_function_is_foreign() -> None:
    """It has the names of what it wraps, if it is a wrapper."""
    assert not isinstance(tw.decode_bytes, type(marked))
    assert functions.foreign_code(tw.decode_bytes, "peer:double") is not None


@pytest.mark.parametrize("imported", [False, True])
@with_wrappers
def test_wrapped_function_that_a_replacement_relies_on(
    peer: Peer, caplog: pytest.LogCaptureFixture, wrap: Any, imported: bool
) -> None:
    """A wrapper in the module that has imported the function counts as well.

    ``double`` relies on the function indirectly.
    """
    parts: Any = module("peer.parts", "def part(x): return x")
    exec("from peer.parts import part", vars(peer.module))
    (peer.module if imported else parts).part = wrap(parts.part, Mock())
    peer.before = peer.state()
    peer.patch = peer.patch_of(
        {
            "peer:double": ["peer:Thing.plain"],
            "peer:Thing.plain": ["peer:Thing.of"],
            "peer:Thing.of": ["peer.parts:part"],
        },
        replacements=lambda: [r._replace(calls_original=True) for r in peer.replacements()],
    )
    with peer.installed():
        assert peer.replaced() == {"Thing.static", "Child.inherited", "Child.own"}
    reasons = (
        r"peer\.Thing\.of \(peer\.parts\.part is [\w.<>]+ now\); "
        r"peer\.Thing\.plain \(peer\.Thing\.of is not replaced\); "
        r"peer\.double \(peer\.Thing\.plain is not replaced\)$"
    )
    assert re.search(reasons, logged(caplog)), logged(caplog)


def test_functions_of_other_packages_are_compared_in_tested_versions(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """The source of `json.loads` differs from the recorded one, that of `json.dumps` does not."""
    dumps = Sources(source_of_imported).digest("json:dumps")
    peer.known |= {"json:dumps": {dumps: "1"}, "json:loads": {"0": "1"}}
    peer.patch = peer.patch_of({"peer:double": ["json:dumps"], "peer:Thing.of": ["json:loads"]})
    with peer.installed():
        assert peer.replaced() == NAMES - {"Thing.of"}
    assert "peer.Thing.of (the source of json.loads is not known)" in logged(caplog)
    with peer.installed(untested="allow"):
        assert peer.replaced() == NAMES


# --- releases that are newer than the tested ones -------------------------------------------------


# For each change: the functions that are not replaced, and why; then those that "allow" leaves out.
STATIC_DIFFERS = {
    "Thing.static": "the source of peer.Thing.static is not known",
    "Thing.of": "the source of peer.Thing.static is not known",
    "Child.own": "peer.Thing.of is not replaced",
}
INHERITED_DIFFERS = {
    "Child.inherited": "the source of peer.Child.inherited is not known",
    "Child.own": "the source of peer.Child.inherited is not known",
}
DOUBLE_DIFFERS = {"double": "the source of peer.double is not known"}
DIFFERENCES: list[tuple[dict[str, str], dict[str, str], dict[str, str]]] = [
    ({}, {}, {}),
    ({"x * times": "(x\n        * times)  # comment"}, {}, {}),
    ({'"Docstring of the peer."': '"""Other."""'}, {}, {}),
    ({"class Thing": "added = 1\n\nclass Thing"}, {}, {}),
    ({"x * times": "times * x"}, DOUBLE_DIFFERS, {}),
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
            "Child.own": "peer.Thing.of is not replaced",
        },
    ),
    (
        {"def double(x, times=2)": "def double(x, times=3)"},
        DOUBLE_DIFFERS,
        {"double": "has the parameters (x, times=3), not (x, times=2)"},
    ),
    ({"    def own(": "    def inherited(self, x): 1\n    def own("}, INHERITED_DIFFERS, {}),
    ({'("inherited", x)': '["inherited", x]'}, INHERITED_DIFFERS, {}),
]


@pytest.mark.parametrize(
    ("changes", "differences", "left_out_by_allow"), DIFFERENCES, ids=lambda value: str(value)[:40]
)
def test_newer_version(
    make_peer: MakePeer, caplog: Any, changes: Any, differences: Any, left_out_by_allow: Any
) -> None:
    """One warning or exception names the functions that differ; the others are replaced."""
    peer = make_peer("1.6.0rc1", changes)
    cases: list[tuple[Untested, dict[str, str]]]
    cases = [("known", differences), ("allow", left_out_by_allow)]
    if not differences:
        cases.append(("error", {}))
    for untested, reasons in cases:
        caplog.clear()
        with peer.installed(untested):
            assert peer.replaced() == NAMES - reasons.keys()
            peer.patch.install(untested=untested)  # is installed already
        listed = "; ".join(f"peer.{name} ({reasons[name]})" for name in sorted(reasons))
        assert len(caplog.records) == bool(reasons)
        if reasons:
            assert logged(caplog) == (
                "These functions of peer 1.6.0rc1 differ from those that tensorwire was tested "
                f"with (1.4 to 1.5), and are not replaced: {listed}"
            )
            [record] = caplog.records
            assert (record.name, record.levelno) == ("tensorwire.integrations", logging.WARNING)
    if not differences:
        return
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
