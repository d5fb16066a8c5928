"""Every client with every server, over HTTP: the same conversations in each cell.

KServe's client has an environment of its own (environment.py), and so a driver script.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from benchmarks.servers import LOOPBACK, Missing, Servers
from interop import programs
from interop.missing import refuse
from interop.samples import TEXTS, Array, binary_sample, bits, bytes_array

Arrays = dict[str, Array]
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Call:
    """A request as every client can make it. ``outputs``: names, and whether each is binary."""

    model: str
    inputs: Arrays
    json_inputs: frozenset[str] = frozenset()
    outputs: tuple[tuple[str, bool], ...] | None = None


class Refused(Exception):
    """The server answered with an error; the text is what the client says of it."""


Client = Callable[[int, Call], Arrays]


def module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient without its [http]
        refuse(name, f"{name} cannot be imported: {error}")


def datatype_of(array: Array) -> str:
    return tw.Tensor("", array).datatype


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
    """What came, each output in the form that was asked for."""
    forms = dict(call.outputs or ())
    for tensor in response:
        assert tensor.binary == forms.get(tensor.name, True)
    return {tensor.name: tensor.as_numpy() for tensor in response}


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
        raise Refused(f"{reply.status}: {json.loads(body)['error']}")
    return arrays_of(tw.decode_response(body, tw.header_length(reply.headers)), call)


def by_our_client(port: int, call: Call) -> Arrays:
    ours = module("tensorwire.client")
    try:
        with ours.Client(f"http://{LOOPBACK}:{port}") as client:
            response = client.infer(call.model, our_inputs(call), our_outputs(call))
    except ours.InferenceServerError as error:
        raise Refused(f"{error.status}: {error}") from None
    return arrays_of(response, call)


def by_our_async_client(port: int, call: Call) -> Arrays:
    ours = module("tensorwire.client")

    async def infer() -> Any:
        async with ours.AsyncClient(f"http://{LOOPBACK}:{port}") as client:
            return await client.infer(call.model, our_inputs(call), our_outputs(call))

    try:
        return arrays_of(asyncio.run(infer()), call)
    except ours.InferenceServerError as error:
        raise Refused(f"{error.status}: {error}") from None


def triton_arguments(http: ModuleType, call: Call) -> tuple[list[Any], list[Any] | None]:
    inputs = []
    for name, array in call.inputs.items():
        tensor = http.InferInput(name, list(array.shape), datatype_of(array))
        tensor.set_data_from_numpy(array, binary_data=name not in call.json_inputs)
        inputs.append(tensor)
    if call.outputs is None:
        return inputs, None
    return inputs, [http.InferRequestedOutput(name, is_binary) for name, is_binary in call.outputs]


def triton_arrays(result: Any) -> Arrays:
    """The arrays; of text, which is str when it came as JSON, the bytes."""
    arrays = {}
    for output in result.get_response()["outputs"]:
        array = result.as_numpy(output["name"])
        if output["datatype"] == "BYTES":
            values = [v.encode() if isinstance(v, str) else v for v in array.ravel().tolist()]
            array = bytes_array(values).reshape(array.shape)
        arrays[output["name"]] = array
    return arrays


def by_tritonclient(port: int, call: Call) -> Arrays:
    http = module("tritonclient.http")
    inputs, outputs = triton_arguments(http, call)
    with closing(http.InferenceServerClient(f"{LOOPBACK}:{port}")) as client:
        try:
            return triton_arrays(client.infer(call.model, inputs, outputs=outputs))
        except module("tritonclient.utils").InferenceServerException as error:
            raise Refused(f"{error.status()}: {error.message()}") from None


def by_tritonclient_aio(port: int, call: Call) -> Arrays:
    aio = module("tritonclient.http.aio")
    inputs, outputs = triton_arguments(aio, call)

    async def infer() -> Any:
        async with aio.InferenceServerClient(f"{LOOPBACK}:{port}") as client:
            return await client.infer(call.model, inputs, outputs=outputs)

    try:
        return triton_arrays(asyncio.run(infer()))
    except module("tritonclient.utils").InferenceServerException as error:
        raise Refused(f"{error.status()}: {error.message()}") from None


CLIENTS: dict[str, Client] = {
    "tensorwire": by_our_client,
    "tensorwire async": by_our_async_client,
    "tritonclient": by_tritonclient,
    "tritonclient aio": by_tritonclient_aio,
    "http.client": by_http_client,
}


# --- servers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started


@pytest.fixture(params=["uvicorn", "granian", "Triton"])
def port(request: pytest.FixtureRequest, servers: Servers) -> int:
    if request.param == "Triton":
        return int(request.getfixturevalue("triton").port)
    return port_of(servers, request.param)


def port_of(servers: Servers, name: str) -> int:
    try:
        return servers.port(name)
    except Missing as reason:
        refuse(name, reason)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


# --- the cells -------------------------------------------------------------------------------

WORDS = bytes_array(TEXTS)
FLOATS = np.array([1.5, -0.0, 3e38], np.float32)
BOTH = {"INPUT0": FLOATS, "INPUT1": WORDS}


def assert_same(found: Arrays, sent: Arrays, names: Sequence[str]) -> None:
    """The outputs of these names and no other, bit for bit their inputs."""
    assert {name: bits(array) for name, array in found.items()} == {
        name: bits(sent[name.replace("OUTPUT", "INPUT")]) for name in names
    }


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BYTES"])
def test_datatype(port: int, client: Client, datatype: str) -> None:
    sent = {"INPUT0": binary_sample(datatype)}
    found = client(port, Call(f"identity_{datatype.lower()}", sent))
    assert_same(found, sent, ["OUTPUT0"])


@pytest.mark.parametrize(
    "json_inputs", [["INPUT0"], ["INPUT1"], ["INPUT0", "INPUT1"]], ids=",".join
)
def test_json_and_binary_inputs(port: int, client: Client, json_inputs: list[str]) -> None:
    found = client(port, Call("two", BOTH, frozenset(json_inputs)))
    assert_same(found, BOTH, ["OUTPUT0", "OUTPUT1"])


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BYTES"])
def test_zero_size(port: int, client: Client, datatype: str) -> None:
    sent = {"INPUT0": binary_sample(datatype)[:0]}
    found = client(port, Call(f"identity_{datatype.lower()}", sent))
    assert_same(found, sent, ["OUTPUT0"])


@pytest.mark.parametrize(
    "outputs",
    [
        pytest.param([("OUTPUT1", True)], id="one binary"),
        pytest.param([("OUTPUT0", False)], id="one JSON"),
        pytest.param([("OUTPUT0", False), ("OUTPUT1", True)], id="JSON and binary"),
        pytest.param([("OUTPUT1", False), ("OUTPUT0", True)], id="the other way round"),
    ],
)
def test_selected_outputs(port: int, client: Client, outputs: list[tuple[str, bool]]) -> None:
    found = client(port, Call("two", BOTH, outputs=tuple(outputs)))
    assert_same(found, BOTH, [name for name, _ in outputs])


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        pytest.param(Call("nobody", BOTH), "40[04]", "nobody", id="unknown model"),
        pytest.param(Call("two", {"INPUT0": FLOATS}), "400", "INPUT1|input", id="missing input"),
        pytest.param(
            Call("identity_fp32", {"INPUT0": WORDS}), "400", "INPUT0.*BYTES", id="wrong datatype"
        ),
    ],
)
def test_error(port: int, client: Client, call: Call, status: str, message: str) -> None:
    with pytest.raises(Refused, match=rf"^{status}: .*({message})"):
        client(port, call)


# --- KServe's client -------------------------------------------------------------------------

# Cases in on stdin as JSON, the outputs or what went wrong out on stdout: elements as hexadecimal.
DRIVER = """\
import asyncio
import json
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

DTYPES = {"FP32": "<f4", "FP16": "<f2"}


def array_of(datatype, values):
    if datatype == "BYTES":
        return np.array([bytes.fromhex(value) for value in values], object)
    return np.frombuffer(bytes.fromhex("".join(values)), DTYPES[datatype])


def hexed(value):
    return (value.encode() if isinstance(value, str) else bytes(value)).hex()


async def infer(client, url, case):
    array = array_of(case["datatype"], case["values"])
    tensor = InferInput("INPUT0", list(array.shape), case["datatype"])
    tensor.set_data_from_numpy(array, binary_data=True)
    outputs = [RequestedOutput("OUTPUT0", {"binary_data": True})]
    request = InferRequest(case["model"], [tensor], request_outputs=outputs)
    try:
        response = await client.infer(url, request, model_name=case["model"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    [output] = response.outputs
    values = [hexed(value) for value in output.as_numpy()]
    return {"name": output.name, "datatype": output.datatype, "values": values}


async def main(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    found = [await infer(client, url, case) for case in json.load(sys.stdin)]
    await client.close()
    print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
"""
KSERVE_SECONDS = 120.0
KSERVE_ARRAYS: Arrays = {
    "FP32": np.array([0.0, -1.5, 3e38], np.float32),
    "FP16": np.array([0.0, -1.5, 65504], np.float16),
    "BYTES": WORDS,  # text: KServe decodes every element as UTF-8
}


def kserve_case(model: str, datatype: str) -> dict[str, Any]:
    return {"model": model, "datatype": datatype, "values": hexed(KSERVE_ARRAYS[datatype])}


def hexed(array: Array) -> list[str]:
    values = array if array.dtype == object else [value.tobytes() for value in array]
    return [bytes(value).hex() for value in values]


@pytest.fixture(scope="module")
def kserve_answers(servers: Servers) -> list[dict[str, Any]]:
    """What KServe's client has got, in one run: it takes seconds to import."""
    python = programs.interpreter("kserve")
    cases = [kserve_case(f"identity_{name.lower()}", name) for name in KSERVE_ARRAYS]
    cases.append(kserve_case("identity_fp32", "BYTES"))
    port = port_of(servers, "uvicorn")
    run = subprocess.run(
        [str(python), "-c", DRIVER, f"http://{LOOPBACK}:{port}"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=KSERVE_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answers: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize(("i", "datatype"), list(enumerate(KSERVE_ARRAYS)))
def test_kserve(kserve_answers: list[dict[str, Any]], i: int, datatype: str) -> None:
    values = hexed(KSERVE_ARRAYS[datatype])
    assert kserve_answers[i] == {"name": "OUTPUT0", "datatype": datatype, "values": values}


def test_kserve_error(kserve_answers: list[dict[str, Any]]) -> None:
    message = kserve_answers[-1]["error"]
    assert message.startswith("HTTPStatusError: input 'INPUT0' is BYTES")
    assert "400 Bad Request" in message
