"""Every client with every server over HTTP, with the same requests in each combination.

KServe's client runs in its environment, in which `test_programs.py` also runs this file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from benchmarks.servers import LOOPBACK, Servers
from interop.samples import TEXTS, Array, binary_sample, bits, bytes_array, json_sample
from support.requirements import package, skip_or_fail

Arrays = dict[str, Array]
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Call:
    """A request that every client can make. `outputs` has names, and whether each is binary."""

    model: str
    inputs: Arrays
    json_inputs: frozenset[str] = frozenset()
    outputs: tuple[tuple[str, bool], ...] | None = None


class Rejected(Exception):
    """The server returned an error; the text is the client's message."""


Client = Callable[[int, Call], Arrays]


def our_inputs(call: Call) -> list[tw.Tensor]:
    return [
        tw.Tensor(name, array, binary=name not in call.json_inputs)
        for name, array in call.inputs.items()
    ]


def our_outputs(call: Call) -> list[tw.RequestedOutput] | None:
    if call.outputs is None:
        return None
    return [tw.RequestedOutput(name, binary=is_binary) for name, is_binary in call.outputs]


def arrays_of(response: tw.InferResponse, call: Call) -> Arrays:
    """Return the arrays of a response, and check the form of each output."""
    forms = dict(call.outputs or ())
    for tensor in response.outputs:
        assert tensor.binary == forms.get(tensor.name, True)
    return {tensor.name: tensor.as_numpy() for tensor in response.outputs}


# --- clients ---------------------------------------------------------------------------------


def by_http_client(port: int, call: Call) -> Arrays:
    parameters = {"binary_data_output": True}
    request = tw.InferRequest(our_inputs(call), our_outputs(call), parameters=parameters)
    frame = tw.encode_request(request)
    with closing(HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS)) as connection:
        connection.request("POST", f"/v2/models/{call.model}/infer", frame, frame.headers)
        reply = connection.getresponse()
        body = reply.read()
    if reply.status != 200:
        raise Rejected(f"{reply.status}: {json.loads(body)['error']}")
    return arrays_of(tw.decode_response(body, tw.header_length(reply.headers)), call)


def by_our_client(port: int, call: Call, is_async: bool = False) -> Arrays:
    ours = package("tensorwire.client")
    url, arguments = f"http://{LOOPBACK}:{port}", (call.model, our_inputs(call), our_outputs(call))

    async def infer() -> Any:
        async with ours.AsyncClient(url) as client:
            return await client.infer(*arguments)

    try:
        if is_async:
            return arrays_of(asyncio.run(infer()), call)
        with ours.Client(url) as client:
            return arrays_of(client.infer(*arguments), call)
    except ours.InferenceServerError as error:
        raise Rejected(f"{error.status}: {error}") from None


def their_inputs(module: ModuleType, call: Call) -> list[Any]:
    """Return the inputs as objects of tritonclient or KServe."""
    inputs = []
    for name, array in call.inputs.items():
        tensor = module.InferInput(name, list(array.shape), tw.Tensor("", array).datatype)
        tensor.set_data_from_numpy(array, binary_data=name not in call.json_inputs)
        inputs.append(tensor)
    return inputs


def as_bytes(array: Array) -> Array:
    """Return an array whose texts, which other clients read as `str`, are encoded."""
    if array.dtype != object:
        return array
    values = [v.encode() if isinstance(v, str) else v for v in array.ravel().tolist()]
    return bytes_array(values).reshape(array.shape)


def triton_arrays(result: Any) -> Arrays:
    names = [output["name"] for output in result.get_response()["outputs"]]
    return {name: as_bytes(result.as_numpy(name)) for name in names}


def triton_module(name: str) -> ModuleType:
    module: ModuleType = package("support.tritonclient_comparison").module(name, "http")
    return module


def by_tritonclient(port: int, call: Call, is_async: bool = False) -> Arrays:
    http, aio = triton_module("http"), triton_module("http.aio")
    url, inputs, outputs = f"{LOOPBACK}:{port}", their_inputs(http, call), None
    if call.outputs is not None:
        outputs = [http.InferRequestedOutput(*output) for output in call.outputs]

    async def infer() -> Any:
        async with aio.InferenceServerClient(url) as client:
            return await client.infer(call.model, inputs, outputs=outputs)

    try:
        if is_async:
            return triton_arrays(asyncio.run(infer()))
        with closing(http.InferenceServerClient(url)) as client:
            return triton_arrays(client.infer(call.model, inputs, outputs=outputs))
    except triton_module("utils").InferenceServerException as error:
        raise Rejected(f"{error.status()}: {error.message()}") from None


def by_kserve(port: int, call: Call) -> Arrays:
    """KServe's REST client, which converts data to lists."""
    kserve = package("kserve")
    more: dict[str, Any] = {"parameters": {"binary_data_output": True}}
    if call.outputs is not None:
        made = package("kserve.protocol.infer_type").RequestedOutput
        more = {
            "request_outputs": [made(name, {"binary_data": form}) for name, form in call.outputs]
        }
    request = kserve.InferRequest(call.model, their_inputs(kserve, call), **more)

    async def infer() -> Any:
        config = package("kserve.inference_client").RESTConfig(protocol="v2")
        client = kserve.InferenceRESTClient(config)
        url = f"http://{LOOPBACK}:{port}"
        try:
            return await client.infer(url, request, model_name=call.model)
        finally:
            await client.close()

    try:
        response = asyncio.run(infer())
    except package("httpx").HTTPStatusError as error:
        raise Rejected(f"{error.response.status_code}: {error}") from None
    return {output.name: as_bytes(output.as_numpy()) for output in response.outputs}


CLIENTS: dict[str, Client] = {
    "tensorwire": by_our_client,
    "tensorwire async": partial(by_our_client, is_async=True),
    "tritonclient": by_tritonclient,
    "tritonclient aio": partial(by_tritonclient, is_async=True),
    "http.client": by_http_client,
}
if find_spec("kserve"):
    CLIENTS = {"kserve": by_kserve}


# --- servers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started


@pytest.fixture(params=["uvicorn", "granian", "Triton"])
def server(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def port(request: pytest.FixtureRequest, servers: Servers, server: str) -> int:
    if server == "Triton":
        return int(request.getfixturevalue("triton").port)
    try:
        return servers.get(server).port
    except pytest.skip.Exception as reason:
        skip_or_fail(server, reason)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


def sample(client: Client, datatype: str) -> Array:
    """Return a sample that survives the lists of KServe's client, if this is the client."""
    make = json_sample if client is by_kserve else binary_sample
    return make(datatype)


# --- the cells -------------------------------------------------------------------------------

WORDS = bytes_array(TEXTS)
FLOATS = np.array([1.5, -0.0, 3e38], np.float32)
BOTH = {"INPUT0": FLOATS, "INPUT1": WORDS}


def assert_same(found: Arrays, sent: Arrays, names: Sequence[str]) -> None:
    """Check that there are only these outputs, equal bit for bit to their inputs."""
    assert {name: bits(array) for name, array in found.items()} == {
        name: bits(sent[name.replace("OUTPUT", "INPUT")]) for name in names
    }


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BYTES"])
def test_datatype(port: int, client: Client, datatype: str) -> None:
    sent = {"INPUT0": sample(client, datatype)}
    found = client(port, Call(f"identity_{datatype.lower()}", sent))
    assert_same(found, sent, ["OUTPUT0"])


def test_large_tensor(port: int, client: Client) -> None:
    """The body is sent in pieces. It is below 1 MiB, because aiohttp warns about larger bodies."""
    sent = {"INPUT0": np.arange(250_000, dtype=np.float32)}
    assert_same(client(port, Call("identity_fp32", sent)), sent, ["OUTPUT0"])


@pytest.mark.parametrize(
    "json_inputs", [["INPUT0"], ["INPUT1"], ["INPUT0", "INPUT1"]], ids=",".join
)
def test_json_and_binary_inputs(port: int, client: Client, json_inputs: list[str]) -> None:
    found = client(port, Call("two", BOTH, frozenset(json_inputs)))
    assert_same(found, BOTH, ["OUTPUT0", "OUTPUT1"])


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BYTES"])
def test_empty_tensors(server: str, port: int, client: Client, datatype: str) -> None:
    sent = {"INPUT0": sample(client, datatype)[:0]}
    call = Call(f"identity_{datatype.lower()}", sent)
    if server == "Triton" and client is by_kserve:
        # It writes `"data": null` next to the size. Triton counts both as sources of data.
        with pytest.raises(Rejected, match=r"^400: Input must set only one of"):
            client(port, call)
        return
    assert_same(client(port, call), sent, ["OUTPUT0"])


@pytest.mark.parametrize(
    "outputs",
    [
        pytest.param([("OUTPUT1", True)], id="one binary"),
        pytest.param([("OUTPUT0", False)], id="one JSON"),
        pytest.param([("OUTPUT0", False), ("OUTPUT1", True)], id="JSON and binary"),
        pytest.param([("OUTPUT1", False), ("OUTPUT0", True)], id="one binary, one JSON, swapped"),
    ],
)
def test_selected_outputs(port: int, client: Client, outputs: list[tuple[str, bool]]) -> None:
    found = client(port, Call("two", BOTH, outputs=tuple(outputs)))
    assert_same(found, BOTH, [name for name, _ in outputs])


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        pytest.param(Call("unknown", BOTH), "40[04]", "unknown", id="unknown model"),
        pytest.param(Call("two", {"INPUT0": FLOATS}), "400", "INPUT1|input", id="missing input"),
        pytest.param(
            Call("identity_fp32", {"INPUT0": WORDS}), "400", "INPUT0.*BYTES", id="wrong datatype"
        ),
    ],
)
def test_server_errors(port: int, client: Client, call: Call, status: str, message: str) -> None:
    with pytest.raises(Rejected, match=rf"^{status}: .*({message})"):
        client(port, call)
