"""KServe's gRPC server with the integration: the same messages, whose raw contents are not copied.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model, ModelRepository
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc
from kserve.protocol.grpc.interceptors import ExceptionToStatusInterceptor
from kserve.protocol.grpc.servicer import InferenceServicer

from interop.json_requests import installed
from tensorwire.integrations import kserve as integration

pytestmark = pytest.mark.usefixtures("no_logging")

ARRAYS: dict[str, Any] = {
    "FP32": np.array([[1.5, 2.5, -3]], np.float32),
    "FP16": np.array([1.5, 2.5], np.float16),
    "INT64": np.array([-1, 2**62]),
    "BOOL": np.array([True, False]),
    "BYTES": np.array([b"a", b"", b"\xff\x00"], object),
    "FP64": np.zeros((2, 0)),
}
Stub = grpc_predict_v2_pb2_grpc.GRPCInferenceServiceStub


@pytest.fixture(params=["plain", "installed"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with installed(integration) if request.param == "installed" else nullcontext():
        yield request.param


def serve(answer: Callable[[InferRequest], Any], steps: Callable[[Any], Awaitable[None]]) -> None:
    """Run a server with one model, and the steps of a client with its stub."""
    model = Model("m")
    model.ready = True
    model.predict = lambda payload, headers=None: answer(payload)
    registry = ModelRepository()
    registry.update(model)

    async def run() -> None:
        server = grpc.aio.server(interceptors=[ExceptionToStatusInterceptor()])
        servicer = InferenceServicer(DataPlane(registry), SimpleNamespace(load=None, unload=None))
        grpc_predict_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await steps(Stub(channel))
        finally:
            await server.stop(0)

    asyncio.run(run())


def request_of(**arrays: Any) -> Any:
    inputs = []
    for name, array in arrays.items():
        tensor = InferInput(name, list(array.shape), name)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return InferRequest("m", inputs, "7", parameters={"p": 5, "q": "text"}).to_grpc()


def echo(request: InferRequest) -> InferResponse:
    """Return the inputs as arrays, after a check that a program sees the types of KServe."""
    assert isinstance(request, InferRequest)
    assert request.from_grpc
    assert request.parameters["p"].int64_param == 5
    outputs = []
    for tensor in request.inputs:
        output = InferOutput(tensor.name, tensor.shape, tensor.datatype, parameters={"o": 1})
        output.set_data_from_numpy(tensor.as_numpy())
        outputs.append(output)
    return InferResponse("7", "m", outputs, parameters={"done": True})


def test_raw_contents_are_the_same(mode: str) -> None:
    """Also the parameters, the id and the model."""

    async def steps(stub: Any) -> None:
        for _ in range(2):
            found = await stub.ModelInfer(request_of(**ARRAYS))
            assert (found.id, found.model_name) == ("7", "m")
            assert found.parameters["done"].bool_param
            assert list(found.raw_output_contents) == list(request_of(**ARRAYS).raw_input_contents)
            for output, (name, array) in zip(found.outputs, ARRAYS.items(), strict=True):
                assert (output.name, output.datatype) == (name, name)
                assert tuple(output.shape) == array.shape
                assert set(output.parameters) == {"o", "binary_data_size"}
                assert not output.HasField("contents")

    serve(echo, steps)


def test_typed_contents_are_the_same(mode: str) -> None:
    """The response to typed contents has typed contents, and raw ones if FP16 requires them."""
    request = InferRequest("m", [InferInput("x", [2], "FP32", [1.5, 2.5])], "1").to_grpc()

    def answer(payload: InferRequest) -> InferResponse:
        assert payload.inputs[0].data == [1.5, 2.5]
        return InferResponse("1", "m", [InferOutput("y", [2], "INT32", [1, 2])])

    async def steps(stub: Any) -> None:
        found = await stub.ModelInfer(request)
        assert list(found.outputs[0].contents.int_contents) == [1, 2]
        assert not found.raw_output_contents

    serve(answer, steps)

    def half(payload: InferRequest) -> InferResponse:
        return InferResponse("1", "m", [InferOutput("y", [2], "FP16", [1.5, 2.5])])

    async def half_steps(stub: Any) -> None:
        found = await stub.ModelInfer(request)
        assert list(found.raw_output_contents) == [ARRAYS["FP16"].tobytes()]

    serve(half, half_steps)


def test_generated_responses_and_dicts_are_sent(mode: str) -> None:
    message = pb.ModelInferResponse(model_name="m", id="9", raw_output_contents=[b"1234"])
    message.outputs.add(name="y", datatype="FP32", shape=[1])
    contents = pb.InferTensorContents(int_contents=[3])
    output = {"name": "y", "datatype": "INT32", "shape": [1], "contents": contents}
    tree = {"id": "9", "model_name": "m", "outputs": [output]}

    async def steps(stub: Any) -> None:
        assert await stub.ModelInfer(request_of(FP32=ARRAYS["FP32"])) == message

    serve(lambda payload: message, steps)

    async def tree_steps(stub: Any) -> None:
        found = await stub.ModelInfer(request_of(FP32=ARRAYS["FP32"]))
        assert list(found.outputs[0].contents.int_contents) == [3]

    serve(lambda payload: tree, tree_steps)


def test_invalid_requests_are_rejected(mode: str) -> None:
    """The next request is answered."""
    too_few = request_of(FP32=ARRAYS["FP32"], INT64=ARRAYS["INT64"])
    del too_few.raw_input_contents[1:]
    both = request_of(FP32=ARRAYS["FP32"])
    both.inputs[0].contents.fp32_contents.append(1)

    async def steps(stub: Any) -> None:
        for wrong, message in ((too_few, "number of inputs"), (both, "contents field must not")):
            with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
                await stub.ModelInfer(wrong)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        found = await stub.ModelInfer(request_of(**ARRAYS))
        assert len(found.raw_output_contents) == len(ARRAYS)

    serve(echo, steps)


WRONG: dict[str, tuple[str, bytes, list[int], str]] = {
    "too short": ("FP32", bytes(7), [2], "requires 8 bytes, but its binary data has 7"),
    "too long": ("FP32", bytes(9), [2], "requires 8 bytes, but its binary data has 9"),
    "BOOL of 2": ("BOOL", b"\2", [1], "element 0"),
    "BYTES truncated": ("BYTES", b"\3\0\0\0ab", [1], "element 0"),
    "BYTES one too many": ("BYTES", bytes(8), [1], "1 element"),
    "negative shape": ("FP32", bytes(8), [-1], "has a negative dimension"),
}


def test_malformed_raw_contents_are_rejected() -> None:
    """The model does not get them. The next request is answered."""

    async def steps(stub: Any) -> None:
        for datatype, raw, shape, message in WRONG.values():
            request = pb.ModelInferRequest(model_name="m", raw_input_contents=[raw])
            request.inputs.add(name="x", datatype=datatype, shape=shape)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ModelInfer(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "input 'x'" in caught.value.details()
            assert message in caught.value.details()
        found = await stub.ModelInfer(request_of(**ARRAYS))
        assert len(found.raw_output_contents) == len(ARRAYS)

    with installed(integration):
        serve(echo, steps)


def test_arrays_are_views_of_the_message() -> None:
    """The memory of a request is that of the received message; of a response, that of the model."""
    kept: list[Any] = []

    def answer(payload: InferRequest) -> InferResponse:
        kept.append(payload.inputs[0].as_numpy())
        assert isinstance(payload.inputs[0]._raw_data, memoryview)
        return InferResponse("1", "m", [InferOutput("y", [3], "FP32", np.arange(3, dtype="f4"))])

    async def steps(stub: Any) -> None:
        found = await stub.ModelInfer(request_of(FP32=ARRAYS["FP32"]))
        assert np.frombuffer(found.raw_output_contents[0], np.float32).tolist() == [0, 1, 2]
        assert found.outputs[0].parameters["binary_data_size"].int64_param == 12  # as in KServe

    with installed(integration):
        serve(answer, steps)
    assert kept[0].tolist() == ARRAYS["FP32"].tolist()  # it keeps the message alive


def test_response_has_the_format_of_the_request() -> None:
    """To raw contents, a list is sent as raw contents. The request's id is used if there is none.

    A response of the model is not changed, because a model may return the same one several times.
    """
    kept = InferResponse("", "m", [InferOutput("y", [2], "FP32", [1.5, 2.5])])
    typed = InferRequest("m", [InferInput("x", [2], "FP32", [1.5, 2.5])], "8").to_grpc()

    def answer(payload: InferRequest) -> InferResponse:
        payload.id = "changed"
        return kept

    async def steps(stub: Any) -> None:
        for _ in range(2):
            found = await stub.ModelInfer(request_of(FP32=ARRAYS["FP32"]))
            assert found.id == "7"
            assert list(found.raw_output_contents) == [np.array([1.5, 2.5], "f4").tobytes()]
            found = await stub.ModelInfer(typed)
            assert found.id == "8"
            assert list(found.outputs[0].contents.fp32_contents) == [1.5, 2.5]
            assert not found.raw_output_contents

    with installed(integration):
        serve(answer, steps)
    assert (kept.id, kept.outputs[0].data) == ("", [1.5, 2.5])


def test_uninstalled_servers_continue() -> None:
    """A server that was started with the integration answers as before."""

    async def steps(stub: Any) -> None:
        await stub.ModelInfer(request_of(**ARRAYS))
        integration.uninstall()
        found = await stub.ModelInfer(request_of(**ARRAYS))
        assert list(found.raw_output_contents) == list(request_of(**ARRAYS).raw_input_contents)

    with installed(integration):
        serve(echo, steps)
