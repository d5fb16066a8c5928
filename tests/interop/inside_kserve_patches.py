"""KServe: install and uninstall, the data plane without patches, and examples of the pages.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kserve import (
    InferInput,
    InferOutput,
    InferRequest,
    InferResponse,
    Model,
    ModelRepository,
    ModelServer,
)
from kserve.errors import InvalidInput
from kserve.protocol import infer_type
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.infer_type import RequestedOutput
from kserve.protocol.rest.multiprocess.server import RESTServerProcess
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils import numpy_codec, utils

import tensorwire as tw
from interop.kserve_bodies import AS_JSON, ONE, X, decoded
from interop.recorded_sources import check_recorded, replaced, simulate_next_release
from tensorwire.integrations import kserve as integration
from tensorwire.integrations import patching
from tensorwire.integrations.kserve import patches
from tensorwire.integrations.patching import Untested

# --- install and uninstall ---


def state() -> list[Any]:
    modules = (infer_type, numpy_codec, utils)
    classes = (InferInput, InferOutput, InferRequest, InferResponse, DataPlane)
    return [dict(vars(owner)) for owner in (*modules, *classes)]


def test_install_twice_and_uninstall() -> None:
    before = state()
    integration.install()
    once = state()
    assert utils.from_np_dtype is numpy_codec.from_np_dtype is infer_type.from_np_dtype
    assert once != before
    integration.install()
    assert state() == once
    integration.uninstall()
    assert state() == before
    integration.uninstall()
    assert state() == before


def test_concurrent_install_and_uninstall() -> None:
    before = state()

    def work() -> None:
        for _ in range(5):
            integration.install()
            assert decoded(*ONE).inputs[0].data == X.ravel().tolist()
            integration.uninstall()

    failures: list[Any] = []
    hook = threading.excepthook
    threading.excepthook = failures.append
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = hook
    assert not failures
    assert state() == before


@pytest.mark.parametrize("version", ["0.16.9", "0.9"])
def test_older_version_is_rejected(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    before = state()
    monkeypatch.setattr(patching, "version", lambda name: version)
    for attempt in (integration.install, lambda: integration.BinaryDataPlane):
        with pytest.raises(tw.IntegrationError, match=rf"kserve {version}.*0\.17.*0\.21"):
            attempt()
    assert state() == before
    assert not integration.is_installed()


# --- releases that are newer than the tested ones ---


def test_digests_are_recorded() -> None:
    check_recorded(integration)


@pytest.mark.parametrize("untested", ["known", "allow", "error"])
def test_next_release_with_known_sources(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, untested: Untested
) -> None:
    integration.install()
    everything = replaced(integration)
    integration.uninstall()
    before = state()
    simulate_next_release(monkeypatch)
    integration.install(untested=untested)
    assert replaced(integration) == everything
    assert not caplog.records
    # The worker processes of a server install the integration in the same way.
    process = RESTServerProcess([], print)
    assert process._real_target.args[0].keywords["untested"] == untested
    integration.uninstall()
    assert state() == before
    assert issubclass(integration.BinaryDataPlane, DataPlane)


ENDPOINT = "kserve.protocol.rest.v2_endpoints"
TYPES = "kserve.protocol.infer_type"
JSON_FUNCTIONS = {
    "v2_endpoints.register_v2_endpoints",
    "V2Endpoints.infer",
    "InferRequest.from_inference_request",
}


@pytest.mark.parametrize(
    ("module", "old", "new", "left_out"),
    [
        (ENDPOINT, "if isinstance(response, bytes)", "if type(response) is bytes", JSON_FUNCTIONS),
        (
            TYPES,
            "def get_output_by_name(self, name: str)",
            "def get_output_by_name(self, name)",
            {*JSON_FUNCTIONS, "InferResponse.to_rest", "DataPlane.infer"},
        ),
    ],
)
def test_next_release_with_another_source(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: str,
    old: str,
    new: str,
    left_out: set[str],
) -> None:
    integration.install()
    everything = replaced(integration)
    integration.uninstall()
    before = state()
    simulate_next_release(monkeypatch, module, old, new)
    with pytest.raises(tw.IntegrationError, match=r"kserve 99\.0 has functions that differ"):
        integration.install(untested="error")
    if module == ENDPOINT:  # the data plane does not rely on the endpoint
        assert issubclass(integration.BinaryDataPlane, DataPlane)
    else:
        with pytest.raises(tw.IntegrationError, match=r"whose source is not known: kserve"):
            _ = integration.BinaryDataPlane
    assert state() == before
    integration.install()
    assert replaced(integration) == everything - left_out
    [record] = caplog.records
    assert all(f".{name} (" in record.getMessage() for name in left_out)
    integration.uninstall()
    integration.install(untested="allow")
    assert replaced(integration) == everything
    integration.uninstall()
    assert state() == before


def test_next_release_without_a_function(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    simulate_next_release(monkeypatch)
    monkeypatch.delattr(InferResponse, "to_rest")
    with pytest.raises(tw.IntegrationError, match=r"InferResponse\.to_rest \(is missing\)"):
        integration.install(untested="error")
    integration.install()
    assert "InferRequest.to_rest" in replaced(integration)
    assert replaced(integration).isdisjoint({"InferResponse.to_rest", "V2Endpoints.infer"})
    assert len(caplog.records) == 1
    integration.uninstall()


# --- different packages ---


@pytest.mark.parametrize("method", ["from_bytes", "to_rest"])
def test_missing_function_is_rejected(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.delattr(InferResponse, method)
    before = state()
    with pytest.raises(tw.IntegrationError, match=f"InferResponse.{method}"):
        integration.install()
    assert state() == before


def test_missing_module_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, patches.__name__)
    monkeypatch.setitem(sys.modules, "kserve.protocol.rest.multiprocess.server", None)
    with pytest.raises(tw.IntegrationError, match="not laid out as expected"):
        integration.install()


@pytest.mark.parametrize(
    "order",
    [
        "import tensorwire.integrations.kserve as ours; ours.install(); from kserve import *",
        "from kserve import *; import tensorwire.integrations.kserve as ours; ours.install()",
        "from kserve.utils.utils import *; from tensorwire.integrations import kserve as ours;"
        "ours.install(); from kserve import *",
    ],
)
def test_install_before_or_after_imports(order: str) -> None:
    script = (
        f"{order}; import sys; from kserve import InferRequest; from kserve.utils import utils;"
        "body = sys.stdin.buffer.read();"
        f"view = InferRequest.from_bytes(body, {ONE[1]}, 'm').inputs[0].as_numpy();"
        "print(view.flags.owndata,"
        "utils.from_np_dtype.__code__.co_filename.count('tensorwire'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=ONE[0], capture_output=True, check=True
    )
    assert done.stdout == b"False 1\n"


# --- the data plane ---

LENGTH = "inference-header-content-length"


def test_data_plane_patches_nothing() -> None:
    before = vars(InferRequest)["from_bytes"]
    plane = integration.BinaryDataPlane(ModelRepository(), writable=True)
    assert isinstance(plane, DataPlane)
    request, _ = plane.decode(ONE[0], {LENGTH: str(ONE[1])}, "v2", "m")
    array = request.inputs[0].as_numpy()
    array += 1
    output = InferOutput("y", [2, 3], "FP32", data=array)
    wanted = [RequestedOutput("y", {"binary_data": True})]
    response = InferResponse("1", "m", [output], requested_outputs=wanted)
    body, headers = plane.encode("m", response, {}, {})
    found = tw.decode_response(body, headers[LENGTH])
    assert found["y"].as_numpy().tolist() == (X + 1).tolist()
    assert plane.metadata()["extensions"].count("binary_tensor_data") == 1
    text = AS_JSON[0]
    assert plane.decode(text, {}, "v2", "m")[0].inputs[0].data == [[1, 2], [3, 4]]
    with pytest.raises(InvalidInput, match="is Inference-Header-Content-Length missing"):
        plane.decode(ONE[0], {}, "v2", "m")
    with pytest.raises(
        InvalidInput, match="body of 24 bytes is a raw binary request, but model 'm'"
    ):
        plane.decode(bytes(24), {LENGTH: "0"}, "v2", "m")
    for bad in ({LENGTH: "abc"}, {LENGTH: "9999"}, {LENGTH: "-1"}, {}):
        with pytest.raises(InvalidInput):
            plane.decode(ONE[0], bad, "v2", "m")
    assert vars(InferRequest)["from_bytes"] is before
    assert not integration.is_installed()


def test_extension_is_announced_once() -> None:
    """Also if the data plane announces it already."""
    endpoints = V2Endpoints(integration.BinaryDataPlane(ModelRepository()))
    integration.install()
    try:
        metadata = asyncio.run(endpoints.metadata())
        assert metadata.extensions.count("binary_tensor_data") == 1
    finally:
        integration.uninstall()


# --- the documentation ---

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]


def examples(page: str) -> list[Any]:
    """Return the `py` blocks of a page that use KServe. `python` blocks run without KServe."""
    blocks = re.findall(r"```py\n(.*?)```", (REPOSITORY_ROOT / page).read_text(), re.DOTALL)
    return [compile(code, page, "exec") for code in blocks if "kserve" in code]


def test_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    [readme_install] = examples("README.md")
    install, serve = examples("docs/integrations/kserve.md")
    for code in (readme_install, install):
        exec(code, {})
        assert integration.is_installed()
        integration.uninstall()
    planes = []
    monkeypatch.setattr(ModelServer, "start", lambda self, models: planes.append(self.dataplane))
    monkeypatch.setitem(sys.modules, "service", SimpleNamespace(model=Model("m")))
    exec(serve, {})
    assert [type(plane) for plane in planes] == [integration.BinaryDataPlane]
