"""Clients of other projects and languages, with generated classes, against the gRPC server."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import tensorwire as tw
from interop.programs import interpreter, run
from support.requirements import package, skip_or_fail

package("grpc")

from support.grpc_served_app import served_app  # noqa: E402
from tensorwire.server import Model, create_app  # noqa: E402

pytestmark = [
    pytest.mark.no_sanitizers(reason="it runs other programs"),
    pytest.mark.thread_unsafe(reason="it runs other programs"),
]

PACKAGES = ("@grpc/grpc-js@1", "@grpc/proto-loader@0.8")
HERE = Path(__file__).parent
X = tw.TensorSpec("x", "FP32", [-1])


def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(request.inputs)


def slow(request: tw.InferRequest) -> tw.InferResponse:
    time.sleep(0.5)
    return echo(request)


MODELS: dict[str, Any] = {
    "echo": Model(echo, in_event_loop=True),
    "thread": echo,
    "declared": Model(echo, [X], [X]),
    "slow": slow,
}


def descriptors() -> bytes:
    """Return the FileDescriptorSet of the service, from the classes of tritonclient."""
    service = package("tritonclient.grpc.service_pb2")
    descriptor_pb2 = package("google.protobuf.descriptor_pb2")
    found = descriptor_pb2.FileDescriptorSet()
    for file in (*service.DESCRIPTOR.dependencies, service.DESCRIPTOR):
        file.CopyToProto(found.file.add())
    return bytes(found.SerializeToString())


@pytest.mark.slow(reason="KServe is imported")
def test_kserve(tmp_path: Path) -> None:
    python = interpreter("kserve")
    with served_app(create_app(MODELS)) as server:
        command = [str(python), str(HERE / "kserve_grpc_client.py"), server.address]
        assert "all calls are as expected" in run(command, tmp_path, 60)


@pytest.mark.nightly(reason="npm installs packages")
def test_node(tmp_path: Path) -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            skip_or_fail("node", f"{program} is not installed")
    run(["npm", "install", "--no-audit", "--no-fund", *PACKAGES], tmp_path, 300)
    (tmp_path / "service.pb").write_bytes(descriptors())
    with served_app(create_app(MODELS)) as server:
        command = ["node", str(HERE / "grpc_client.js"), server.address, "service.pb"]
        assert "all calls are as expected" in run(command, tmp_path, 60)
