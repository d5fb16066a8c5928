"""Patch: installs all replacements or none, in every module with the name, and restores them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import Barrier
from types import ModuleType
from typing import Any

import pytest

import tensorwire as tw
from tensorwire.integrations import patching
from tensorwire.integrations.patching import Patch, Replacement

pytestmark = pytest.mark.no_sanitizers(reason="it tests Python code")

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
    before, patch, thing = state(peer), Patch("peer", ("1.4", "1.5")), peer.Thing()
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
    before, patch = state(peer), Patch("peer", ("1.4", "1.5"))
    for _ in range(2):
        patch.uninstall()
        patch.install(lambda: everything(peer))
        patch.install(lambda: everything(peer))
        assert peer.double(3) == ("new", 6)
        patch.uninstall()
    assert state(peer) == before


def test_every_binding_of_a_function_is_replaced(peer: ModuleType) -> None:
    """Under any name, in modules imported before the installation or after it."""
    double, patch = peer.double, Patch("peer", ("1.4", "1.5"))
    user = module("user", "from peer import double, double as twice; listed = [double]")
    patch.install(lambda: everything(peer))
    late = module("late", "from peer import *")
    assert user.double is user.twice is late.double is peer.double is not double
    patch.uninstall()
    assert user.double is user.twice is late.double is peer.double is double


def test_class_is_replaced_like_a_function(peer: ModuleType) -> None:
    thing, patch = peer.Thing, Patch("peer", ("1.4", "1.5"))
    user = module("user", "from peer import Thing")
    patch.install(lambda: [Replacement(peer, "Thing", lambda old: type("Thing", (old,), {}))])
    assert user.Thing is peer.Thing is not thing
    assert issubclass(user.Thing, thing)
    patch.uninstall()
    assert user.Thing is peer.Thing is thing


def test_inherited_method_is_replaced_on_one_class_only(peer: ModuleType) -> None:
    """The base class and its other subclasses keep the original."""
    patch, thing, before = Patch("peer", ("1.4", "1.5")), peer.Thing(), state(peer)
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
    patch = Patch("peer", ("1.4", "1.5"))
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

    patch = Patch("peer", ("1.4", "1.5"))
    with pytest.raises(tw.IntegrationError, match=r"peer 1.5.2 is not laid out .*'nothing'.*1.4"):
        patch.install(replacements)
    assert not patch.installed


def test_replacements_by_others_are_kept(peer: ModuleType) -> None:
    patch = Patch("peer", ("1.4", "1.5"))
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
        (("1.2", "1.4"), False),
        (("1.2", "1.5.1"), False),
        (("0.9", "1.10"), True),
    ],
)
def test_tested_versions(peer: ModuleType, versions: tuple[str, str], is_known: bool) -> None:
    before, patch = state(peer), Patch("peer", versions)
    if is_known:
        patch.install(lambda: everything(peer))
        patch.uninstall()
    else:
        with pytest.raises(tw.IntegrationError) as caught:
            patch.install(lambda: pytest.fail("called before the version was checked"))
        tested = versions[0] if versions[0] == versions[1] else " to ".join(versions)
        assert str(caught.value) == (
            f"peer 1.5.2 is installed; tensorwire was tested with peer {tested}, and has changed "
            f"nothing"
        )
    assert state(peer) == before


def test_missing_distribution() -> None:
    with pytest.raises(tw.IntegrationError, match=r"^no-such-peer is not installed; tensor") as why:
        Patch("no-such-peer", ("1", "2")).install(list)
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
    before, patch = state(peer) if "del double" not in source else [], Patch("peer", ("1", "2"))
    with pytest.raises(tw.IntegrationError, match=problem) as caught:
        patch.install(lambda: sorted(everything(peer), key=lambda r: r.name in source))
    assert (caught.value.installed, caught.value.tested) == ("1.5.2", "1 to 2")
    assert not patch.installed
    assert not before or state(peer) == before


def test_missing_class_or_module(peer: ModuleType) -> None:
    def replacements() -> Iterator[Replacement]:
        yield Replacement(peer, "double", marked)
        yield Replacement(peer.Other, "double", marked)

    before, patch = state(peer), Patch("peer", ("1", "2"))
    with pytest.raises(tw.IntegrationError, match=r"1\.5\.2 is not laid out .* 'Other'\); tensorw"):
        patch.install(replacements)
    with pytest.raises(tw.IntegrationError, match=r"\(No module named 'peer\.part'"):
        patch.install(lambda: [Replacement(import_module("peer.part"), "double", marked)])
    assert state(peer) == before


def test_failed_installation_is_rolled_back(peer: ModuleType) -> None:
    class Locked(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("locked")

    locked = Locked("locked", (), {"plain": vars(peer.Thing)["plain"]})
    before, patch = state(peer), Patch("peer", ("1", "2"))
    with pytest.raises(TypeError, match="locked"):
        patch.install(lambda: [*everything(peer), Replacement(locked, "plain", marked)])
    assert state(peer) == before
    assert not patch.installed


def test_annotations_are_ignored_when_comparing_signatures(peer: ModuleType) -> None:
    def new(x: int, times: int = 2) -> int:
        return x * times + 1

    patch = Patch("peer", ("1", "2"))
    patch.install(lambda: [Replacement(peer, "double", lambda old: new)])
    assert peer.double(3) == 7
    patch.uninstall()


def test_concurrent_install_and_uninstall(peer: ModuleType) -> None:
    """Concurrent callers get the original or one replacement, never nested ones."""
    before, patch, n_threads = state(peer), Patch("peer", ("1", "2")), 8
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
