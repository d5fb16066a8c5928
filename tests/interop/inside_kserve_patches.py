"""KServe: install and uninstall, other releases, worker processes, and examples of the pages.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kserve import InferInput, InferOutput, InferRequest, InferResponse, ModelRepository
from kserve.protocol import infer_type
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.rest.multiprocess.server import RESTServerProcess
from kserve.protocol.rest.server import RESTServer
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils import numpy_codec, utils

import tensorwire as tw
from interop.json_requests import installed
from interop.recorded_sources import check_next_release, check_recorded
from tensorwire.integrations import kserve as integration
from tensorwire.integrations.kserve import patches

# --- install and uninstall ---


def state() -> list[Any]:
    modules = (infer_type, numpy_codec, utils)
    classes = (InferInput, InferOutput, InferRequest, InferResponse, DataPlane, RESTServer)
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


# --- releases that are newer than the tested ones ---


def test_digests_are_recorded() -> None:
    check_recorded(integration)


def test_worker_processes_install_the_integration() -> None:
    """They get the same arguments."""
    options = {"untested": "error", "max_body": 1000}
    with installed(integration, **options):
        process = RESTServerProcess([], print)
    assert process._real_target.args == (options, print)


ENDPOINT = "kserve.protocol.rest.v2_endpoints"
TYPES = "kserve.protocol.infer_type"
ROUTE = "RESTServer._register_endpoints"
GRPC = "grpc_predict_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


@pytest.mark.parametrize(
    ("left_out", "changed"),
    [
        (ROUTE, (ENDPOINT, "if isinstance(response, bytes)", "if type(response) is bytes")),
        (ROUTE, (TYPES, "get_output_by_name(self, name: str)", "get_output_by_name(self, name)")),
        (GRPC, (TYPES, "use_binary_outputs(self) -> bool", "use_binary_outputs(self)")),
        (ROUTE, ("starlette.routing", "return Match.PARTIAL,", "return Match.NONE,")),
    ],
)
def test_next_release_with_another_source(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    left_out: str,
    changed: tuple[str, str, str],
) -> None:
    check_next_release(integration, state, monkeypatch, caplog, changed, {left_out})


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
        f"{order}; import kserve; from kserve.utils import utils;"
        "functions = utils.from_np_dtype, kserve.InferResponse.from_bytes;"
        "print(*[f.__code__.co_filename.count('integrations') for f in functions])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"1 1\n"


# --- the server ---


def test_extension_is_announced_once() -> None:
    """Also if the data plane announces it already."""
    plane = DataPlane(ModelRepository())
    with installed(integration):
        for _ in range(2):
            metadata = asyncio.run(V2Endpoints(plane).metadata())
            assert metadata.extensions == ["model_repository_extension", "binary_tensor_data"]
            plane.metadata = lambda found=metadata: found.model_dump()


# --- the documentation ---

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]


def examples(page: str) -> list[Any]:
    """Return the `py` blocks of a page that use KServe. `python` blocks run without KServe."""
    blocks = re.findall(r"```py\n(.*?)```", (REPOSITORY_ROOT / page).read_text(), re.DOTALL)
    return [compile(code, page, "exec") for code in blocks if "kserve" in code]


def test_examples() -> None:
    [readme_install] = examples("README.md")
    [install] = examples("docs/integrations/kserve.md")
    for code in (readme_install, install):
        exec(code, {})
        assert integration.is_installed()
        integration.uninstall()
