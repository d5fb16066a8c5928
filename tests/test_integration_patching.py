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
from zipfile import ZipFile

import pytest

import tensorwire as tw
from interop import peer_releases
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

class Thing:
    def plain(self, x):
        return ("plain", x)

    @classmethod
    def of(cls, x):
        return (cls, x)

    @staticmethod
    def static(x):
        return ("static", x)
"""


NO_DIGESTS = Path("digests are only read for a newer version than the tested ones")


def patch_of(versions: tuple[str, str]) -> Patch:
    return Patch("peer", versions, NO_DIGESTS, {})


def module(name: str, source: str = "") -> ModuleType:
    made = ModuleType(name)
    sys.modules[name] = made
    exec(source, made.__dict__)
    return made


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(patching, "version", lambda distribution: "1.5.2")
    before = set(sys.modules)
    yield module("peer", SOURCE)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for a function of one argument, which marks the result."""
    replacements_by_name: dict[str, Callable[..., Any]] = {
        "plain": lambda self, x: ("new", function(self, x)),
        "of": lambda cls, x: ("new", function(cls, x)),
        "static": lambda x: ("new", function(x)),
        "double": lambda x, times=2: ("new", function(x, times)),
    }
    return replacements_by_name[function.__name__]


def everything(peer: ModuleType) -> list[Replacement]:
    methods = [Replacement(peer.Thing, name, marked) for name in ("plain", "of", "static")]
    return [Replacement(peer, "double", marked), *methods]


def state(peer: ModuleType) -> list[Any]:
    return [peer.double, *vars(peer.Thing).values()]


def test_functions_methods_and_properties_are_replaced(peer: ModuleType) -> None:
    before, patch, thing = state(peer), patch_of(("1.4", "1.5")), peer.Thing()
    patch.install(lambda: everything(peer))
    assert patch.installed
    assert peer.double(3) == ("new", 6)
    assert thing.plain(1) == ("new", ("plain", 1))
    assert peer.Thing.of(1) == thing.of(1) == ("new", (peer.Thing, 1))
    assert peer.Thing.static(1) == thing.static(1) == ("new", ("static", 1))
    assert peer.double.__doc__ == "Docstring of the peer."
    patch.uninstall()
    assert not patch.installed
    assert all(now is then for now, then in zip(state(peer), before, strict=True))


def test_install_and_uninstall_repeatedly(peer: ModuleType) -> None:
    before, patch = state(peer), patch_of(("1.4", "1.5"))
    for _ in range(2):
        patch.uninstall()
        patch.install(lambda: everything(peer))
        patch.install(lambda: everything(peer))
        assert peer.double(3) == ("new", 6)
        patch.uninstall()
    assert state(peer) == before


def test_every_binding_of_a_function_is_replaced(peer: ModuleType) -> None:
    """Under any name, in modules imported before the installation or after it."""
    double, patch = peer.double, patch_of(("1.4", "1.5"))
    user = module("user", "from peer import double, double as twice; listed = [double]")
    patch.install(lambda: everything(peer))
    late = module("late", "from peer import *")
    assert user.double is user.twice is late.double is peer.double is not double
    patch.uninstall()
    assert user.double is user.twice is late.double is peer.double is double


def test_class_is_replaced_like_a_function(peer: ModuleType) -> None:
    thing, patch = peer.Thing, patch_of(("1.4", "1.5"))
    user = module("user", "from peer import Thing")
    patch.install(lambda: [Replacement(peer, "Thing", lambda old: type("Thing", (old,), {}))])
    assert user.Thing is peer.Thing is not thing
    assert issubclass(user.Thing, thing)
    patch.uninstall()
    assert user.Thing is peer.Thing is thing


def test_inherited_method_is_replaced_on_one_class_only(peer: ModuleType) -> None:
    """The base class and its other subclasses keep the original."""
    patch, thing, before = patch_of(("1.4", "1.5")), peer.Thing(), state(peer)
    child: Any = type("Child", (peer.Thing,), {})
    names = ("plain", "of", "static")
    patch.install(lambda: [Replacement(child, name, marked, inherited=True) for name in names])
    assert child().plain(1) == ("new", ("plain", 1))
    assert child.of(1) == child().of(1) == ("new", (child, 1))
    assert child.static(1) == ("new", ("static", 1))
    assert thing.plain(1) == ("plain", 1)
    assert all(now is then for now, then in zip(state(peer), before, strict=True))
    patch.uninstall()
    assert not {*names} & vars(child).keys()
    assert child().plain(1) == ("plain", 1)


def test_declared_inheritance_is_checked(peer: ModuleType) -> None:
    patch = patch_of(("1.4", "1.5"))
    with pytest.raises(
        tw.IntegrationError, match=r"defines peer\.Thing\.plain, which is expected to be inherited"
    ):
        patch.install(lambda: [Replacement(peer.Thing, "plain", marked, inherited=True)])
    with pytest.raises(tw.IntegrationError, match=r"has no peer\.Thing\.nothing"):
        patch.install(lambda: [Replacement(peer.Thing, "nothing", marked, inherited=True)])


def test_failing_import_of_a_peer_module(peer: ModuleType) -> None:
    """Replacements come from modules of the peer, which may be missing."""

    def replacements() -> list[Replacement]:
        from peer import nothing  # type: ignore[import-not-found]  # noqa: PLC0415

        return [nothing]

    patch = patch_of(("1.4", "1.5"))
    with pytest.raises(tw.IntegrationError, match=r"peer 1.5.2 is not laid out .*'nothing'.*1.4"):
        patch.install(replacements)
    assert not patch.installed


def test_replacements_by_others_are_kept(peer: ModuleType) -> None:
    patch = patch_of(("1.4", "1.5"))
    patch.install(lambda: everything(peer))
    vars(peer)["double"] = peer.Thing.plain = len
    patch.uninstall()
    assert peer.double is peer.Thing.plain is len


@pytest.mark.parametrize(
    ("versions", "is_known"),
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
def test_tested_versions(peer: ModuleType, versions: tuple[str, str], is_known: bool) -> None:
    before, patch = state(peer), patch_of(versions)
    if is_known:
        patch.install(lambda: everything(peer))
        patch.uninstall()
    else:
        with pytest.raises(tw.IntegrationError) as caught:
            patch.install(lambda: pytest.fail("called before the version was checked"))
        assert str(caught.value) == (
            f"peer 1.5.2 is too old; tensorwire was tested with peer {' to '.join(versions)}, "
            f"and has changed nothing"
        )
    assert state(peer) == before


def test_missing_distribution() -> None:
    with pytest.raises(tw.IntegrationError, match=r"^no-such-peer is not installed; tensor") as why:
        Patch("no-such-peer", ("1", "2"), NO_DIGESTS, {}).install(list)
    assert isinstance(why.value, ImportError)
    assert (why.value.distribution, why.value.installed) == ("no-such-peer", None)
    again = pickle.loads(pickle.dumps(why.value))
    assert (str(again), again.tested) == (str(why.value), "1 to 2")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("del double", r"peer 1\.5\.2 has no peer\.double; tensorwire was tested with peer 1 to 2"),
        ("del Thing.of", r"has no peer\.Thing\.of"),
        (
            "def of(cls, x, y): ...\nThing.of = classmethod(of)",
            r"has peer\.Thing\.of\(cls, x, y\), not \(cls, x\)",
        ),
        ("def double(x, times=3): ...", r"has peer\.double\(x, times=3\), not \(x, times=2\)"),
        ("Thing = type('Thing', (Thing,), {})", r"has no peer\.Thing\.plain"),
    ],
)
def test_different_signature_is_rejected(peer: ModuleType, source: str, problem: str) -> None:
    """The last replacement is rejected, and those before it are not installed."""
    exec(source, peer.__dict__)
    before, patch = state(peer) if "del double" not in source else [], patch_of(("1", "2"))
    with pytest.raises(tw.IntegrationError, match=problem) as caught:
        patch.install(lambda: sorted(everything(peer), key=lambda r: r.name in source))
    assert (caught.value.installed, caught.value.tested) == ("1.5.2", "1 to 2")
    assert not patch.installed
    assert not before or state(peer) == before


def test_missing_class_or_module(peer: ModuleType) -> None:
    def replacements() -> Iterator[Replacement]:
        yield Replacement(peer, "double", marked)
        yield Replacement(peer.Other, "double", marked)

    before, patch = state(peer), patch_of(("1", "2"))
    with pytest.raises(tw.IntegrationError, match=r"1\.5\.2 is not laid out .* 'Other'\); tensorw"):
        patch.install(replacements)
    with pytest.raises(tw.IntegrationError, match=r"\(No module named 'peer\.part'"):
        patch.install(lambda: [Replacement(import_module("peer.part"), "double", marked)])
    assert state(peer) == before


def test_failed_installation_is_rolled_back(peer: ModuleType) -> None:
    class Locked(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("locked")

    locked = Locked("locked", (), {**vars(peer.Thing), "__module__": "peer"})
    before, patch = state(peer), patch_of(("1", "2"))
    with pytest.raises(TypeError, match="locked"):
        patch.install(lambda: [*everything(peer), Replacement(locked, "plain", marked)])
    assert state(peer) == before
    assert not patch.installed


def test_annotations_are_ignored_when_comparing_signatures(peer: ModuleType) -> None:
    def new(x: int, times: int = 2) -> int:
        return x * times + 1

    patch = patch_of(("1", "2"))
    patch.install(lambda: [Replacement(peer, "double", lambda old: new)])
    assert peer.double(3) == 7
    patch.uninstall()


def test_concurrent_install_and_uninstall(peer: ModuleType) -> None:
    """Concurrent callers get the original or one replacement, never nested ones."""
    before, patch, n_threads = state(peer), patch_of(("1", "2")), 8
    start = Barrier(n_threads)

    def work(i: int) -> None:
        start.wait()
        for _ in range(50):
            (patch.install if i % 2 else lambda _: patch.uninstall())(lambda: everything(peer))
            assert peer.double(3) in (6, ("new", 6))
            assert peer.Thing().plain(1) in (("plain", 1), ("new", ("plain", 1)))

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(work, range(n_threads)))
    patch.uninstall()
    assert state(peer) == before


# --- code of others -----------------------------------------------------------------------------


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "double": lambda peer: peer.double(3),
    "Thing.plain": lambda peer: peer.Thing().plain(1),
    "Thing.of": lambda peer: peer.Thing.of(1),
    "Thing.static": lambda peer: peer.Thing.static(1),
}
with_wrappers = pytest.mark.parametrize("wrap", WRAPPERS)
with_functions = pytest.mark.parametrize("function", FUNCTIONS)


class Wrapped:
    """A function of the peer that other code has wrapped."""

    def __init__(self, peer: Any, function: str, wrap: Any) -> None:
        owner, _, self.name = function.rpartition(".")
        self.owner = getattr(peer, owner) if owner else peer
        self.before = vars(self.owner)[self.name]
        self.n_calls = 0
        self.wrapper = wrap(self.before, self.count)
        setattr(self.owner, self.name, self.wrapper)

    def count(self) -> None:
        self.n_calls += 1

    def remove(self) -> None:
        setattr(self.owner, self.name, self.before)


@with_wrappers
@with_functions
def test_wrapped_function_is_not_replaced(
    peer: ModuleType, caplog: pytest.LogCaptureFixture, wrap: Any, function: str
) -> None:
    """The wrapper is called as before, and one warning names the function."""
    expected = FUNCTIONS[function](peer)
    wrapped, patch = Wrapped(peer, function, wrap), patch_of(("1.4", "1.5"))
    before = state(peer)
    with pytest.raises(
        tw.IntegrationError, match=rf"1\.5\.2 has functions that differ: .*{function}"
    ):
        patch.install(lambda: everything(peer), untested="error")
    assert all(now is then for now, then in zip(state(peer), before, strict=True))
    patch.install(lambda: everything(peer))
    assert vars(wrapped.owner)[wrapped.name] is wrapped.wrapper
    assert FUNCTIONS[function](peer) == expected
    assert wrapped.n_calls == 1
    for other in FUNCTIONS.keys() - {function}:
        assert FUNCTIONS[other](peer)[0] == "new"
    [record] = caplog.records
    assert re.search(
        rf"not replaced: peer\.{function} \(is [\w.<>]+ now\)$", record.getMessage()
    ), record.getMessage()
    patch.uninstall()
    assert all(now is then for now, then in zip(state(peer), before, strict=True))


@with_wrappers
@pytest.mark.parametrize("function", ["double", "Thing.plain"])
def test_replacement_that_calls_the_original_also_calls_its_wrapper(
    peer: ModuleType, wrap: Any, function: str
) -> None:
    expected = FUNCTIONS[function](peer)
    wrapped, name = Wrapped(peer, function, wrap), f"peer:{function}"
    patch = Patch("peer", ("1.4", "1.5"), NO_DIGESTS, {name: [name]})  # as several of tritonclient
    before = state(peer)

    def around(original: Any) -> Any:
        def new(*arguments: Any, **options: Any) -> Any:
            return ("new", original(*arguments, **options))

        new.__signature__ = signature(original)  # type: ignore[attr-defined]
        return new

    patch.install(lambda: [Replacement(wrapped.owner, wrapped.name, around, calls_original=True)])
    is_replaced = callable(wrapped.wrapper)  # a partialmethod cannot be called
    assert FUNCTIONS[function](peer) == (("new", expected) if is_replaced else expected)
    assert wrapped.n_calls == 1
    patch.uninstall()
    assert all(now is then for now, then in zip(state(peer), before, strict=True))


@with_wrappers
@with_functions
def test_function_that_is_wrapped_later(peer: ModuleType, wrap: Any, function: str) -> None:
    """The wrapper is called. It has to be removed before the integration is."""
    before, patch = state(peer), patch_of(("1.4", "1.5"))
    patch.install(lambda: everything(peer))
    wrapped = Wrapped(peer, function, wrap)
    installed = state(peer)
    assert FUNCTIONS[function](peer)[0] == "new"
    assert wrapped.n_calls == 1
    with pytest.raises(tw.IntegrationError, match=rf"wrapped since .*: peer\.{function}\. Remove"):
        patch.uninstall()
    assert patch.installed
    assert all(now is then for now, then in zip(state(peer), installed, strict=True))
    wrapped.remove()
    patch.uninstall()
    assert all(now is then for now, then in zip(state(peer), before, strict=True))


@with_wrappers
def test_function_that_is_wrapped_later_in_another_module(peer: ModuleType, wrap: Any) -> None:
    before, patch = state(peer), patch_of(("1.4", "1.5"))
    user = module("user", "from peer import double as double")
    patch.install(lambda: everything(peer))
    wrapped = Wrapped(user, "double", wrap)
    assert user.double(3) == ("new", 6)
    assert wrapped.n_calls == 1
    with pytest.raises(tw.IntegrationError, match=r"wrapped since .*: peer\.double\. Remove"):
        patch.uninstall()
    wrapped.remove()
    patch.uninstall()
    assert user.double is peer.double
    assert state(peer) == before


def test_replaced_class_of_which_other_code_uses_a_subclass(peer: ModuleType) -> None:
    """The subclass has to be removed before the integration is."""
    thing, patch = peer.Thing, patch_of(("1.4", "1.5"))
    patch.install(lambda: [Replacement(peer, "Thing", lambda old: type("Thing", (old,), {}))])
    new = peer.Thing
    vars(peer)["Thing"] = type("Thing", (new,), {})
    with pytest.raises(tw.IntegrationError, match=r"wrapped since .*: peer\.Thing\. Remove"):
        patch.uninstall()
    vars(peer)["Thing"] = new
    patch.uninstall()
    assert peer.Thing is thing


@pytest.mark.parametrize("accessor", ["fget", "fset", "fdel"])
def test_property_with_an_accessor_of_other_code(peer: ModuleType, accessor: str) -> None:
    own: dict[str, Any] = dict.fromkeys(("fget", "fset", "fdel"), peer.Thing.plain)
    assert patching.foreign_code(property(**own), "peer:Thing.x") is None
    replaced = property(**{**own, accessor: marked})
    assert patching.foreign_code(replaced, "peer:Thing.x") == f"{__name__}.marked"


def test_compiled_function_of_the_package_is_its_own(
    peer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package may be compiled, by Cython or Nuitka for example."""
    compiled = tw.decode_bytes
    assert not isinstance(compiled, type(marked))
    assert patching.foreign_code(compiled, "tensorwire:decode_bytes") is None
    assert patching.foreign_code(compiled, "peer:double") == (
        "tensorwire._codec.bytes_array.decode_bytes"
    )
    for wrap in WRAPPERS:
        wrapper = wrap(compiled, lambda: None)
        assert patching.foreign_code(wrapper, "tensorwire:decode_bytes") is not None
    # A compiled wrapper that functools.wraps has changed has the name of what it wraps.
    monkeypatch.setattr(compiled, "__wrapped__", marked, raising=False)
    assert patching.foreign_code(compiled, "tensorwire:decode_bytes") is not None


@pytest.mark.parametrize("imported", [False, True])
@with_wrappers
def test_wrapped_function_that_a_replacement_relies_on(
    peer: ModuleType, caplog: pytest.LogCaptureFixture, wrap: Any, imported: bool
) -> None:
    """A wrapper in the module that has imported the function counts as well."""
    module("peer.parts", "def helper(x): return x")
    exec("from peer.parts import helper", peer.__dict__)
    Wrapped(peer if imported else sys.modules["peer.parts"], "helper", wrap)
    relies_on = {"peer:double": ["peer:Thing.of"], "peer:Thing.of": ["peer.parts:helper"]}
    patch = Patch("peer", ("1.4", "1.5"), NO_DIGESTS, relies_on)
    before = state(peer)
    patch.install(lambda: everything(peer))
    assert peer.double(3) == 6
    assert peer.Thing.of(1) == (peer.Thing, 1)
    assert peer.Thing.static(1) == ("new", ("static", 1))
    [record] = caplog.records
    assert re.search(
        r"peer\.Thing\.of \(relies on peer\.parts\.helper, which is [\w.<>]+ now\); "
        r"peer\.double \(relies on peer\.Thing\.of\)$",
        record.getMessage(),
    ), record.getMessage()
    patch.uninstall()
    assert all(now is then for now, then in zip(state(peer), before, strict=True))


@with_wrappers
def test_replacement_that_relies_indirectly_on_one_that_is_left_out(
    peer: ModuleType, caplog: pytest.LogCaptureFixture, wrap: Any
) -> None:
    """`double` comes before the replacements that it relies on."""
    Wrapped(peer, "Thing.of", wrap)
    relies_on = {
        "peer:double": ["peer:Thing.plain"],
        "peer:Thing.plain": ["peer:Thing.static"],
        "peer:Thing.static": ["peer:Thing.of"],
    }
    patch, before = Patch("peer", ("1.4", "1.5"), NO_DIGESTS, relies_on), state(peer)
    patch.install(lambda: everything(peer))
    assert all(now is then for now, then in zip(state(peer), before, strict=True))
    [record] = caplog.records
    assert record.getMessage().endswith("; peer.double (relies on peer.Thing.plain)")


def test_functions_of_other_packages_are_compared_in_tested_versions(
    peer: ModuleType, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The source of `json.loads` differs from the recorded one, that of `json.dumps` does not."""
    known = {"json:dumps": {Sources(source_of_imported).digest("json:dumps"): "1"}}
    (tmp_path / "sources.json").write_text(json.dumps({**known, "json:loads": {"0": "1"}}))
    relies_on = {"peer:double": ["json:dumps"], "peer:Thing.of": ["json:loads"]}
    patch = Patch("peer", ("1.4", "1.5"), tmp_path / "sources.json", relies_on)
    patch.install(lambda: everything(peer))
    assert peer.double(3) == ("new", 6)
    assert peer.Thing.of(1) == (peer.Thing, 1)
    [record] = caplog.records
    assert "peer.Thing.of (relies on the source of json.loads, which" in record.getMessage()
    patch.uninstall()
    patch.install(lambda: everything(peer), untested="allow")
    assert peer.Thing.of(1) == ("new", (peer.Thing, 1))
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


# --- releases that are newer than the tested ones ---

RELEASE = """
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
    "next_peer:Thing.plain": ["next_peer:helper"],
    "next_peer:Thing.of": ["next_peer:Thing.static"],
    "next_peer:Thing.static": ["next_peer:Thing.of"],
    "next_peer:Child.limit": ["next_peer:Thing.of", "next_peer:Child.inherited"],
}
NAMES = {"double", "plain", "of", "static", "inherited", "limit"}


class NextRelease:
    """A release of a package that is newer than the tested one, with changes of its source."""

    def __init__(self, folder: Path, changes: dict[str, str]) -> None:
        source = RELEASE
        for old, new in changes.items():
            assert old in source
            source = source.replace(old, new)
        (folder / "next_peer.py").write_text(source)
        self.peer: Any = import_module("next_peer")
        tested = Sources({"next_peer": RELEASE}.get)
        self.patch = Patch("next-peer", ("1.4", "1.5"), folder / "sources.json", RELIANCE)
        names = [f"next_peer:{name}" for name in ("double", "helper", "Thing.inherited")]
        known = {name: {tested.digest(name): "1.5"} for name in {*names, *RELIANCE}}
        self.patch.digests.write_text(json.dumps(known))
        self.before = self.state()

    def state(self) -> list[dict[str, Any]]:
        return [dict(vars(owner)) for owner in (self.peer, self.peer.Thing, self.peer.Child)]

    def replacements(self) -> list[Replacement]:
        thing, child = self.peer.Thing, self.peer.Child
        methods = [Replacement(thing, name, marked) for name in ("plain", "of", "static")]
        return [
            Replacement(self.peer, "double", marked),
            *methods,
            Replacement(child, "inherited", lambda _: lambda self, x: "new", inherited=True),
            Replacement(child, "limit", lambda limit: limit + 1),
        ]

    def install(self, untested: Untested) -> None:
        self.patch.install(self.replacements, untested)

    def replaced(self) -> set[str]:
        return {
            name
            for before, now in zip(self.before, self.state(), strict=True)
            for name in before.keys() | now.keys()
            if before.get(name) is not now.get(name)
        }


@pytest.fixture
def next_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., NextRelease]]:
    monkeypatch.setattr(patching, "version", lambda distribution: "1.6.0rc1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield lambda changes: NextRelease(tmp_path, changes)
    sys.modules.pop("next_peer", None)


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
    next_release: Callable[..., NextRelease],
    caplog: pytest.LogCaptureFixture,
    untested: Untested,
    changes: dict[str, str],
) -> None:
    release = next_release(changes)
    release.install(untested)
    assert release.replaced() == NAMES
    assert not caplog.records
    assert release.peer.double(3) == ("new", 6)
    assert release.peer.Child().inherited(1) == "new"
    release.patch.uninstall()
    assert release.state() == release.before


# For each change: the functions that are not replaced, and why; then those that "allow" leaves out.
DIFFERENCES: list[tuple[dict[str, str], dict[str, str], set[str]]] = [
    ({"x * times": "times * x"}, {"double": "its source is not known"}, set()),
    (
        {"    return x\n": "    return -x\n"},
        {"Thing.plain": "relies on the source of next_peer.helper, which is not known"},
        set(),
    ),
    (
        {"def helper": "def renamed", "helper(x)": "renamed(x)"},
        {"Thing.plain": "its source is not known"},
        set(),
    ),
    (
        {'("static", x)': '["static", x]'},
        {
            "Thing.static": "its source is not known",
            "Thing.of": "relies on the source of next_peer.Thing.static, which is not known",
            "Child.limit": "relies on next_peer.Thing.of",
        },
        set(),
    ),
    (
        {"    @staticmethod\n    def static(": "    @staticmethod\n    def renamed("},
        {
            "Thing.static": "is missing",
            "Thing.of": "relies on the source of next_peer.Thing.static, which is not known",
            "Child.limit": "relies on next_peer.Thing.of",
        },
        {"static", "of", "limit"},
    ),
    (
        {"def double(x, times=2)": "def double(x, times=3)"},
        {"double": "has the parameters (x, times=3), not (x, times=2)"},
        {"double"},
    ),
    (
        {"    limit = 5": "    limit = 5\n    def inherited(self, x): return 1"},
        {
            "Child.inherited": "is not inherited",
            "Child.limit": "relies on next_peer.Child.inherited",
        },
        {"inherited", "limit"},
    ),
    (
        {'("inherited", x)': '["inherited", x]'},
        {
            "Child.inherited": "its source is not known",
            "Child.limit": "relies on the source of next_peer.Child.inherited, which is not known",
        },
        set(),
    ),
    (
        {"class Child": "def plain(self, x): ...\nThing.plain = plain\nclass Child"},
        {"Thing.plain": "is next_peer.plain now"},
        set(),
    ),
]
with_differences = pytest.mark.parametrize(
    ("changes", "reasons", "left_out_by_allow"), DIFFERENCES, ids=lambda value: str(value)[:40]
)


@with_differences
def test_newer_version_that_differs(
    next_release: Callable[..., NextRelease],
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, str],
    reasons: dict[str, str],
    left_out_by_allow: set[str],
) -> None:
    """The rest is replaced, and one warning names the functions that are not."""
    release = next_release(changes)
    release.install("known")
    left_out = {name.rpartition(".")[2] for name in reasons}
    assert release.replaced() == NAMES - left_out
    [record] = caplog.records
    assert (record.name, record.levelno) == ("tensorwire.integrations", logging.WARNING)
    listed = "; ".join(f"next_peer.{name} ({reasons[name]})" for name in sorted(reasons))
    assert record.getMessage() == (
        "These functions of next-peer 1.6.0rc1 differ from those that tensorwire was tested with "
        f"(1.4 to 1.5), and are not replaced: {listed}"
    )
    release.install("known")  # is installed already
    assert len(caplog.records) == 1
    release.patch.uninstall()
    assert release.state() == release.before


@with_differences
def test_newer_version_that_differs_is_rejected(
    next_release: Callable[..., NextRelease],
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, str],
    reasons: dict[str, str],
    left_out_by_allow: set[str],
) -> None:
    release = next_release(changes)
    with pytest.raises(tw.IntegrationError) as caught:
        release.install("error")
    for name, reason in reasons.items():
        assert f"next_peer.{name} ({reason})" in str(caught.value)
    assert (caught.value.installed, caught.value.tested) == ("1.6.0rc1", "1.4 to 1.5")
    assert not caplog.records
    assert not release.patch.installed
    assert release.state() == release.before


@with_differences
def test_newer_version_that_differs_is_allowed(
    next_release: Callable[..., NextRelease],
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, str],
    reasons: dict[str, str],
    left_out_by_allow: set[str],
) -> None:
    """Only functions that are missing or have other parameters, and their group, are left out."""
    release = next_release(changes)
    release.install("allow")
    assert release.replaced() == NAMES - left_out_by_allow
    assert len(caplog.records) == bool(left_out_by_allow)
    release.patch.uninstall()
    assert release.state() == release.before


@pytest.mark.parametrize("has_source", [True, False])
def test_package_without_python_source(
    next_release: Callable[..., NextRelease], caplog: pytest.LogCaptureFixture, has_source: bool
) -> None:
    """No source is known if the file is missing, as in a package of compiled modules."""
    release = next_release({})
    if not has_source:
        Path(release.peer.__file__).unlink()
    assert (source_of_imported("next_peer") is None) is not has_source
    release.install("known")
    assert release.replaced() == (NAMES if has_source else set())
    assert len(caplog.records) == (not has_source)
    assert release.patch.installed is has_source


@pytest.mark.parametrize("untested", ["known", "allow", "error"])
def test_newer_version_without_a_module_or_class(
    next_release: Callable[..., NextRelease], untested: Untested
) -> None:
    release = next_release({})
    del release.peer.Child
    with pytest.raises(tw.IntegrationError, match=r"1\.6\.0rc1 is not laid out as expected"):
        release.install(untested)


def test_value_of_untested(next_release: Callable[..., NextRelease]) -> None:
    release = next_release({})
    untested: Any = "ignore"
    with pytest.raises(ValueError, match="'known', 'allow', 'error', not 'ignore'"):
        release.install(untested)
    assert release.state() == release.before


def test_names_in_relies_on_are_replaced(next_release: Callable[..., NextRelease]) -> None:
    release = next_release({})
    found = release.patch.compared(release.replacements)
    assert found == sorted(json.loads(release.patch.digests.read_text()))
    with pytest.raises(ValueError, match=r"not replaced: next_peer:Thing\.plain"):
        release.patch.compared(lambda: [r for r in release.replacements() if r.name != "plain"])


# --- the program that records digests ---


def test_releases_are_compared_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wheels have the modules `peer` and, in another folder, `peer.part`."""
    f, g = "def f(): return 1", "def g(): return 2"
    sources = {
        "1.4": (f, g),
        "1.5": (f"{f} + 1", g),
        "1.5.1": (f"{f}  # a comment", g),
        "1.10": (f"{f} + 2", "def other(): return 2"),
    }
    for version, (init, part) in sources.items():
        with ZipFile(tmp_path / f"peer-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("peer/__init__.py", init)
            wheel.writestr(f"peer-{version}.data/purelib/peer/part.py", part)
    monkeypatch.setattr(peer_releases, "WHEELS", tmp_path)
    monkeypatch.setattr(peer_releases, "releases_of", lambda name: ["1.3", *sources])
    package = peer_releases.Package("peer", ("1.4", "1.5"))
    peer_releases.examine(package, ["peer:f", "peer.part:g"], is_peer=True)
    assert [*peer_releases.report(package)] == [
        "peer: 4 releases, 1.4 to 1.10; tested: 1.4 to 1.5",
        "  peer.part:g: missing in 1.10",
        "  peer:f: changed in 1.5",
        "  peer:f: changed in 1.5.1",
        "  peer:f: changed in 1.10",
        "  the other functions (0 of 2) are the same in all",
        "  1.10 has sources that no tested release has: peer:f, peer.part:g",
        "  newer than the tested releases: 1.10",
    ]
    for message in ("wrote", "is up to date"):
        peer_releases.record(tmp_path / "sources.json", ["peer:f", "peer.part:g"], [package])
        assert message in capsys.readouterr().out
    assert json.loads((tmp_path / "sources.json").read_text()) == {
        "peer:f": {
            digest(f): "1.4, 1.5.1",
            digest(f"{f} + 1"): "1.5",
        },
        "peer.part:g": {digest(g, "m:g"): "1.4 to 1.5.1"},
    }
    package.digests["peer:f"]["1.5.1"] = None
    with pytest.raises(SystemExit, match=r"peer:f is not defined in peer 1\.5\.1"):
        peer_releases.record(tmp_path / "sources.json", ["peer:f", "peer.part:g"], [package])
    releases = ["1.3", "1.4", "1.5", "1.5.1", "1.6", "1.10"]  # there is no wheel of 1.6
    monkeypatch.setattr(peer_releases, "releases_of", lambda name: releases)
    peer_releases.examine(package, ["peer:f"], is_peer=False)
    assert package.releases == ["1.4", "1.5", "1.5.1", "1.10"]


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
names = [f"{patching.qualified_name(c.owner)}.{c.name}" for c in changes]
print(json.dumps([peer.__file__, sorted(names)]))
"""
UTILS, HTTP, GRPC = (f"tritonclient.{name}" for name in ("utils", "http", "grpc"))
BYTES = {f"{UTILS}.serialize_byte_tensor", f"{UTILS}.deserialize_bytes_tensor"}
MEMORY = {f"{UTILS}.shared_memory.get_contents_as_numpy"}
GRPC_INPUT = {f"{GRPC}._infer_input.InferInput.set_data_from_numpy"}
GRPC_CONTENT = {f"{GRPC}._infer_input.InferInput._get_content"}
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
GRPC_INPUTS = GRPC_INPUT | GRPC_CONTENT | GRPC_REQUEST
GRPC_ALL = GRPC_INPUTS | GRPC_START | GRPC_STREAM | GRPC_QUEUE | GRPC_CALLS | GRPC_RESULT
HTTP_INPUTS = {
    f"{HTTP}._infer_input.InferInput.set_data_from_numpy",
    f"{HTTP}._infer_input.InferInput._get_binary_data",
    f"{HTTP}._utils._get_inference_request",
    f"{HTTP}._client.InferenceServerClient.infer",
    f"{HTTP}.aio.InferenceServerClient.infer",
}
RESULT = f"{HTTP}._infer_result.InferResult"
RESULTS = {f"{RESULT}.__init__", f"{RESULT}.from_response_body"}
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
            {f"{UTILS}.serialize_byte_tensor", *HTTP_INPUTS, *GRPC_INPUT},
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
            {f"{RESULT}.from_response_body"},
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
