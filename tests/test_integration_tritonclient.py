"""tritonclient: install and uninstall, repeatedly, concurrently, and after any order of imports."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest

import tensorwire as tw
from interop.samples import NOT_TEXT, TEXTS, bits, bytes_array
from support import tritonclient_comparison
from support.scripts import run_script
from support.tritonclient_comparison import FLOATS, LARGE, body_of, module, parsed, response
from tensorwire.integrations import patching, tritonclient

pytestmark = tritonclient_comparison.MARKS

http, utils = tritonclient_comparison.http, tritonclient_comparison.utils  # fixtures


def functions() -> list[Any]:
    """Return every function that is replaced, from every module that has it."""
    http, utils = module("http", "http"), module("utils", "http")
    return [
        *(utils.serialize_byte_tensor, utils.deserialize_bytes_tensor),
        import_module("tritonclient.http._infer_input").serialize_byte_tensor,
        import_module("tritonclient.http._infer_result").deserialize_bytes_tensor,
        import_module("tritonclient.utils.shared_memory").get_contents_as_numpy,
        http.InferInput.set_data_from_numpy,
        import_module("tritonclient.http.aio")._get_inference_request,
        http.InferResult.__init__,
    ]


def test_uninstall_restores_every_function(http: ModuleType) -> None:
    before = functions()
    for _ in range(2):
        tritonclient.install()
        tritonclient.install()
        assert tritonclient.is_installed()
        changed = functions()
        assert not any(now is then for now, then in zip(changed, before, strict=True))
        assert [f.__doc__ for f in changed] == [f.__doc__ for f in before]
        assert [f.__qualname__ for f in changed] == [f.__qualname__ for f in before]
        tritonclient.uninstall()
        tritonclient.uninstall()
        assert all(now is then for now, then in zip(functions(), before, strict=True))
    assert not tritonclient.is_installed()


def test_objects_created_while_installed_stay_usable(http: ModuleType) -> None:
    body, length = response(FLOATS, bytes_array([b"x", b"\0"] * LARGE))
    tritonclient.install()
    tensor = http.InferInput("x", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)
    result = parsed(http, body, length)
    tritonclient.uninstall()
    sent, sent_length = http.InferenceServerClient.generate_request_body([tensor])
    assert sent[sent_length:] == FLOATS.tobytes()
    assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)
    assert result.as_numpy("OUTPUT1").tolist() == [b"x", b"\0"] * LARGE


def test_install_and_uninstall_while_other_threads_use_the_client(
    http: ModuleType, utils: ModuleType
) -> None:
    words, done = bytes_array([*TEXTS, NOT_TEXT] * 100), Event()
    wire = tw.encode_bytes(words)
    body, length = response(FLOATS, words)

    def work() -> int:
        n_rounds = 0
        while not done.is_set():
            assert utils.serialize_byte_tensor(words).item() == wire
            assert utils.deserialize_bytes_tensor(wire).tolist() == words.tolist()
            sent, sent_length, _ = body_of(http, FLOATS, "FP32")
            assert sent[sent_length:] == FLOATS.tobytes()
            result = parsed(http, body, length)
            assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)
            assert bits(result.as_numpy("OUTPUT1")) == bits(words)
            n_rounds += 1
        return n_rounds

    interval = sys.getswitchinterval()
    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(work) for _ in range(3)]
        sys.setswitchinterval(1e-4)  # the threads interrupt each other more often
        try:
            for _ in range(30):
                tritonclient.install()
                tritonclient.uninstall()
        finally:
            done.set()
            sys.setswitchinterval(interval)
        assert all(worker.result() for worker in workers)


def test_older_version_is_rejected(http: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = functions()
    monkeypatch.setattr(patching, "version", lambda name: "2.59.9")
    with pytest.raises(
        tw.IntegrationError,
        match=r"^tritonclient 2\.59\.9 is too old; tensorwire was tested with tritonclient "
        r"2\.\d+ to 2\.\d+, and has changed nothing$",
    ):
        tritonclient.install()
    assert all(now is then for now, then in zip(functions(), before, strict=True))


def test_missing_function_is_rejected(http: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = functions()
    monkeypatch.delattr(http.InferInput, "set_data_from_numpy")
    with pytest.raises(tw.IntegrationError, match=r"\.set_data_from_numpy \(is missing\);"):
        tritonclient.install(untested="error")
    monkeypatch.undo()
    assert all(now is then for now, then in zip(functions(), before, strict=True))


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "TypeError"])
def test_part_that_cannot_be_imported(
    http: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """protobuf raises a TypeError, and tritonclient a RuntimeError, for an unsupported version."""
    (tmp_path / "failing_part.py").write_text(f"raise {error}('an unsupported version')")
    monkeypatch.syspath_prepend(str(tmp_path))
    patches = import_module("tensorwire.integrations.tritonclient.patches")
    assert patches.import_if_usable("failing_part") is None


ORDERS = {
    "before": "from tensorwire.integrations import tritonclient as t; t.install(); {imports}",
    "after": "{imports}; from tensorwire.integrations import tritonclient as t; t.install()",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "imports",
    [
        "from tritonclient.utils import serialize_byte_tensor as f",
        "import tritonclient.utils; f = tritonclient.utils.serialize_byte_tensor",
        "from tritonclient.http._infer_input import serialize_byte_tensor as f",
        "import tritonclient.http.aio, tritonclient.utils.shared_memory; "
        "from tritonclient.utils import *; f = serialize_byte_tensor",
    ],
)
def test_install_before_or_after_imports(http: ModuleType, order: str, imports: str) -> None:
    """In a new process in which no module of the client is loaded yet."""
    script = ORDERS[order].format(imports=imports) + (
        "; import numpy, tensorwire; a = numpy.array(['a']); r = f(a).item()"
        "; assert r == bytes([1, 0, 0, 0, 97]), r"
        "; t.uninstall(); import tritonclient.utils as u; assert f is u.serialize_byte_tensor"
        "\ntry: f(a)\nexcept u.InferenceServerException as e: print(e)"
    )
    done = run_script(script)
    assert done.stdout == "cannot serialize bytes tensor: invalid datatype\n", done.stderr
