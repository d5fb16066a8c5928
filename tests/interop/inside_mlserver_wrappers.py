"""MLServer with wrappers of other code around its functions.

`test_mlserver_integration.py` runs this file in the environment of MLServer.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any
from unittest.mock import Mock

import pytest
from mlserver import raw
from mlserver.codecs.string import decode_str
from mlserver.grpc import dataplane_pb2_grpc
from mlserver.grpc.servicers import InferenceServicer
from mlserver.types import RequestInput

import tensorwire as tw
import tensorwire.grpc
from interop import grpc_calls
from interop.inside_mlserver_json import Server
from interop.json_requests import READ_AS_ARRAYS, installed
from interop.recorded_sources import check_calls_of_wrapper, wrappable_functions
from support.wrappers import Proxy, functools_wrapper, wrapped
from tensorwire.integrations import mlserver as integration

pytestmark = pytest.mark.usefixtures("no_logging")

NUMBERS = [1.5, 2.5] * 50
TEXTS = [b"a", b"b c"] * 50
GRPC_REQUEST = tw.grpc.encode_request(
    tw.InferRequest([tw.Tensor("x", NUMBERS, datatype="FP32")], model_name="m")
)


NOT_IN_WORKLOAD = {
    "mlserver.codecs.json:decode_from_bytelike_json_to_dict",
    "mlserver.codecs.numpy:convert_nan",
    "mlserver.rest.endpoints:Endpoints.model_metadata",
    "pydantic.root_model:RootModel.__setstate__",
}


def workload() -> None:
    """Call everything that the integration replaces or relies on."""
    server = new_server()
    for case in ("nested", "BYTES", "long"):
        assert server.infer(READ_AS_ARRAYS[case])[0] == 200
    asyncio.run(server.plane.metadata())
    for datatype, values in (("FP32", NUMBERS), ("BYTES", TEXTS)):
        tensor = RequestInput(name="x", shape=[len(values)], datatype=datatype, data=values)
        packed = raw.pack(tensor)
        raw.unpack(tensor, packed)
        raw.inject_raw([RequestInput(name="x", shape=[100], datatype=datatype, data=[])], [packed])
        list(tensor.data)
        tensor.data[0], len(tensor.data)
    decode_str(b"a")
    infer_over_grpc(server)


def new_server() -> Server:
    metrics = import_module("prometheus_client").REGISTRY
    for collector in list(metrics._collector_to_names):
        metrics.unregister(collector)  # each server registers its own
    return Server()


def infer_over_grpc(server: Server) -> None:
    servicer = InferenceServicer(server.plane, None)
    add = dataplane_pb2_grpc.add_GRPCInferenceServiceServicer_to_server
    grpc_calls.infer(add, servicer, GRPC_REQUEST)


CALLED = [name for name in wrappable_functions(integration) if name not in NOT_IN_WORKLOAD]


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize("name", CALLED)
def test_wrapper_is_called_as_often_as_without_the_integration(name: str, wrap: Any) -> None:
    """This holds for each function that the integration replaces or relies on."""
    check_calls_of_wrapper(integration, name, wrap, workload)


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
def test_wrapper_around_the_servicer_that_is_added_later(wrap: Any) -> None:
    """MLServer's own handler then handles gRPC requests."""
    count = Mock()
    with installed(integration), wrapped(InferenceServicer, "ModelInfer", wrap, count):
        infer_over_grpc(new_server())
    assert count.call_count == 1
