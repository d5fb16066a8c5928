"""tritonclient against a live Triton, with and without the integration, over all its transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from queue import Queue
from types import ModuleType
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import DTYPES, NOT_TEXT, TEXTS, Array, binary_sample, bits, bytes_array
from interop.triton_server import TritonServer
from support.tritonclient_comparison import module
from tensorwire.integrations import tritonclient

Call = tuple[str, dict[str, Array]]  # the model, and its inputs by name
Transport = Callable[[TritonServer, Call], list[Array]]

# aiohttp warns about the bodies of the client, with and without the integration.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


def inputs_of(api: ModuleType, call: Call) -> list[Any]:
    made = []
    for name, array in call[1].items():
        tensor = api.InferInput(name, list(array.shape), tw.Tensor(name, array).datatype)
        made.append(tensor.set_data_from_numpy(array))
    return made


def outputs_of(result: Any, call: Call) -> list[Array]:
    return [result.as_numpy(name.replace("INPUT", "OUTPUT")) for name in call[1]]


# --- the transports -------------------------------------------------------------------------------


def address(triton: TritonServer, api: str) -> str:
    return f"{triton.host}:{triton.port if api == 'http' else triton.grpc_port}"


def connected(triton: TritonServer, api: str) -> Any:
    return closing(module(api, api).InferenceServerClient(address(triton, api)))


def by_infer(triton: TritonServer, call: Call, api: str, **options: Any) -> list[Array]:
    with connected(triton, api) as client:
        inputs = inputs_of(module(api, api), call)
        return outputs_of(client.infer(call[0], inputs, **options), call)


def by_http_async_infer(triton: TritonServer, call: Call) -> list[Array]:
    with connected(triton, "http") as client:
        handle = client.async_infer(call[0], inputs_of(module("http", "http"), call))
        return outputs_of(handle.get_result(), call)


def by_aio(triton: TritonServer, call: Call, api: str) -> list[Array]:
    """The client for HTTP requests compressed responses by itself."""
    aio, inputs = module(f"{api}.aio", api), inputs_of(module(api, api), call)

    async def infer() -> Any:
        async with aio.InferenceServerClient(address(triton, api)) as client:
            return await client.infer(call[0], inputs)

    return outputs_of(asyncio.run(infer()), call)


def by_another_http_client(triton: TritonServer, call: Call) -> list[Array]:
    """The client creates and reads the bodies; another HTTP client sends them."""
    http = module("http", "http")
    body, length = http.InferenceServerClient.generate_request_body(inputs_of(http, call))
    headers = {"Inference-Header-Content-Length": str(length)}
    reply = triton.post(f"/v2/models/{call[0]}/infer", [body], headers)
    length = tw.header_length(reply.headers)
    result = http.InferenceServerClient.parse_response_body(reply.body, header_length=length)
    return outputs_of(result, call)


def by_grpc_callback(triton: TritonServer, call: Call, is_stream: bool) -> list[Array]:
    inputs, done = inputs_of(module("grpc", "grpc"), call), Queue[Any]()

    def put(result: Any, error: Any) -> None:
        done.put(error or result)

    with connected(triton, "grpc") as client:
        if is_stream:
            client.start_stream(put)
            client.async_stream_infer(call[0], inputs)
        else:
            client.async_infer(call[0], inputs, put)
        found = done.get(timeout=60)
        if isinstance(found, Exception):
            raise found
        return outputs_of(found, call)


def by_grpc_aio_stream(triton: TritonServer, call: Call) -> list[Array]:
    grpc, aio = module("grpc", "grpc"), module("grpc.aio", "grpc")

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": call[0], "inputs": inputs_of(grpc, call)}

    async def infer() -> Any:
        async with aio.InferenceServerClient(address(triton, "grpc")) as client:
            async for result, error in client.stream_infer(requests()):
                if error is not None:
                    raise error
                return result

    return outputs_of(asyncio.run(infer()), call)


def by_shared_memory(triton: TritonServer, call: Call) -> list[Array]:
    """Use one region, with the input at its start and the output after it."""
    names = ("http", "utils", "utils.shared_memory")
    http, utils, shm = (module(name, "http") for name in names)
    model, ((name, array),) = call[0], call[1].items()
    is_bytes = array.dtype == object
    packed = utils.serialize_byte_tensor(array) if is_bytes else array
    nbytes = len(packed.item()) if is_bytes else array.nbytes
    region = f"tensorwire-{uuid4().hex}"
    handle = shm.create_shared_memory_region(region, f"/{region}", 2 * nbytes)
    with connected(triton, "http") as client:
        try:
            shm.set_shared_memory_region(handle, [packed])
            client.register_system_shared_memory(region, f"/{region}", 2 * nbytes)
            tensor = http.InferInput(name, list(array.shape), tw.Tensor(name, array).datatype)
            tensor.set_shared_memory(region, nbytes)
            output = http.InferRequestedOutput("OUTPUT0")
            output.set_shared_memory(region, nbytes, offset=nbytes)
            client.infer(model, [tensor], outputs=[output])
            dtype = np.object_ if is_bytes else array.dtype
            found = shm.get_contents_as_numpy(handle, dtype, array.shape, offset=nbytes)
            return [found.copy()]
        finally:
            client.unregister_system_shared_memory(region)
            found = None  # release this view of the region before the region is destroyed
            shm.destroy_shared_memory_region(handle)


TRANSPORTS: dict[str, Transport] = {
    "http": partial(by_infer, api="http"),
    "http async_infer": by_http_async_infer,
    "http gzip": partial(by_infer, api="http", response_compression_algorithm="gzip"),
    "http.aio": partial(by_aio, api="http"),
    "another HTTP client": by_another_http_client,
    "grpc": partial(by_infer, api="grpc"),
    "grpc async_infer": partial(by_grpc_callback, is_stream=False),
    "grpc stream": partial(by_grpc_callback, is_stream=True),
    "grpc.aio": partial(by_aio, api="grpc"),
    "grpc.aio stream": by_grpc_aio_stream,
    "shared memory": by_shared_memory,
}


# --- the calls -------------------------------------------------------------------------------


def calls() -> Iterator[tuple[str, Call]]:
    for datatype in DTYPES:
        array = binary_sample(datatype)
        yield datatype, (f"identity_{datatype.lower()}", {"INPUT0": array})
    floats = np.arange(1 << 20, dtype=np.float32)
    yield "4 MB", ("identity_fp32", {"INPUT0": floats})
    yield "strided", ("identity_fp32", {"INPUT0": floats[::-7]})
    words = bytes_array([*TEXTS, NOT_TEXT] * 20_000)
    yield "120,000 elements", ("identity_bytes", {"INPUT0": words})
    yield "two", ("two", {"INPUT0": floats, "INPUT1": words})
    yield "batching", ("batching", {"INPUT0": floats.reshape(8, -1)})


CALLS = dict(calls())
ROWS = [
    (transport, name)
    for name, (_, inputs) in CALLS.items()
    for transport in TRANSPORTS
    if transport != "shared memory" or len(inputs) == 1  # a region has one tensor
]


@pytest.fixture(autouse=True)
def without_leftovers() -> Iterator[None]:
    yield
    tritonclient.uninstall()


@pytest.mark.parametrize(("transport", "call"), ROWS)
def test_results_are_equal_with_and_without(
    triton: TritonServer, transport: str, call: str
) -> None:
    sent = [bits(array) for array in CALLS[call][1].values()]
    without = TRANSPORTS[transport](triton, CALLS[call])
    assert [bits(array) for array in without] == sent
    tritonclient.install()
    found = TRANSPORTS[transport](triton, CALLS[call])
    assert [bits(array) for array in found] == sent
    assert [array.flags.writeable for array in found] == [a.flags.writeable for a in without]


@pytest.mark.parametrize(
    "transport", ["http", "http.aio", *(name for name in TRANSPORTS if "grpc" in name)]
)
def test_server_errors(triton: TritonServer, transport: str) -> None:
    """The shape of the tensor is wrong for the model. The exception has the server's message."""
    call = "matrix", {"INPUT0": np.ones((2, 4), np.float32)}
    error_class = module("utils", "http").InferenceServerException
    with pytest.raises(error_class) as without:
        TRANSPORTS[transport](triton, call)
    tritonclient.install()
    with pytest.raises(error_class, match="unexpected shape for input 'INPUT0'") as found:
        TRANSPORTS[transport](triton, call)
    assert str(found.value) == str(without.value)


@pytest.mark.parametrize("api", ["http", "grpc"])
def test_classification(triton: TritonServer, api: str) -> None:
    """The server returns texts of the form "score:index" as BYTES."""
    call = "identity_fp32", {"INPUT0": np.array([0.25, 4, -1], np.float32)}
    outputs = [module(api, api).InferRequestedOutput("OUTPUT0", class_count=2)]
    [without] = by_infer(triton, call, api, outputs=outputs)
    tritonclient.install()
    [found] = by_infer(triton, call, api, outputs=outputs)
    assert bits(found) == bits(without)
    assert [text.split(b":")[1] for text in without.ravel()] == [b"1", b"0"]
