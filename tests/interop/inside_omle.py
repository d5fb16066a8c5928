"""omle-server with tensorwire's clients.

`test_programs.py` runs this file in the environment of omle. The model returns the weighted sum of
three numbers, and whether it is positive as an integer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import omle
import pytest
from omle import DataType, Node, NodeInput, NodeOutput, OutputRole, TensorType

import tensorwire as tw
from interop import programs
from interop.triton_server import LOOPBACK, free_ports
from tensorwire.client import AsyncClient, Client, InferenceServerError

START_SECONDS = 60.0
X = np.array([[1, 2, 3], [0, -4, 0.25]], np.float32)
WEIGHTS, INTERCEPT = np.array([1, 10, 100], np.float32), np.float32(0.5)


def vector(values: list[float]) -> omle.TensorValue:
    kind = TensorType(DataType.FLOAT32, [len(values)])
    return omle.TensorValue(tensor=omle.Tensor(type=kind, float32_data=values))


def write_model(file: Path) -> None:
    sums, labels = TensorType(DataType.FLOAT32, [-1, 1]), TensorType(DataType.INT64, [-1])
    probabilities = TensorType(DataType.FLOAT32, [-1, 2])
    line = vector(WEIGHTS.tolist()), vector([float(INTERCEPT)])
    sigmoid = {"post_transform": omle.PostTransform.SIGMOID_BINARY}
    prediction, name = {"role": OutputRole.PREDICTION}, omle.NameRef("x")
    model = omle.OMLEModel(
        operator_imports=[omle.NamespaceImport("omle.ml", "0.1")],
        inputs=[omle.InputSpec("x", TensorType(DataType.FLOAT32, [-1, 3]))],
        outputs=[
            omle.OutputSpec("sum", sums, **prediction),
            omle.OutputSpec("label", labels, **prediction),
        ],
        nodes=[
            Node(
                *("linear", "omle.ml", "Linear"),
                inputs=[NodeInput(name)],
                outputs=[NodeOutput("sum", sums, **prediction)],
                linear=omle.Linear(omle.TaskType.REGRESSION, *line),
            ),
            Node(
                *("classify", "omle.ml", "Linear"),
                inputs=[NodeInput(name)],
                outputs=[
                    NodeOutput("label", labels, **prediction),
                    NodeOutput("probability", probabilities, role=OutputRole.PROBABILITY),
                ],
                linear=omle.Linear(omle.TaskType.BINARY, *line, **sigmoid),
            ),
        ],
    )
    found = omle.validate(model)
    assert found.is_valid, found
    omle.save(model, str(file))


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """omle-server has no option for its host. It listens at all addresses."""
    folder = tmp_path_factory.mktemp("omle")
    write_model(folder / "linear.omle")
    ports = free_ports(2)
    command = [str(Path(sys.prefix, "bin", "omle-server")), "--model", str(folder / "linear.omle")]
    command += ["--rest-port", str(ports[0]), "--grpc-port", str(ports[1])]
    with programs.started(command, folder / "log") as program:
        found = {
            scheme: f"{scheme}://{LOOPBACK}:{port}"
            for scheme, port in zip(("http", "grpc"), ports, strict=True)
        }
        programs.wait_until_ready(list(found.values()), program, START_SECONDS)
        yield found


def check(response: tw.InferResponse) -> None:
    """omle-server writes the labels as 0.0 and 1.0 in JSON."""
    assert np.array_equal(response["sum"].as_numpy()[:, 0], X @ WEIGHTS + INTERCEPT)
    assert response["label"].datatype == "INT64"
    assert response["label"].tolist() == [[0], [1]]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_clients(addresses: dict[str, str], scheme: str) -> None:
    url = addresses[scheme]
    with Client(url, binary_inputs=False) as client:
        assert client.server_metadata()["name"] == "omle-server"
        [described] = client.model_metadata("linear")["inputs"]
        assert described == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
        check(client.infer("linear", {"x": X}))
        check(client.infer("linear", {"x": X.tolist()}))
        check(client.infer("linear", {"x": X}, ["sum", "label"], version="1"))
        with pytest.raises(InferenceServerError, match="model 'none' not found") as caught:
            client.infer("none", {"x": X})
        assert caught.value.status == 404

    async def call() -> list[tw.InferResponse]:  # it rejects calls while all threads are busy
        async with AsyncClient(url, binary_inputs=False, retries=5) as client:
            return await asyncio.gather(*(client.infer("linear", {"x": X}) for _ in range(8)))

    for response in asyncio.run(call()):
        check(response)


def test_only_json_is_read(addresses: dict[str, str]) -> None:
    """The error says what to pass."""
    with Client(addresses["http"]) as client, pytest.raises(InferenceServerError) as caught:
        client.infer("linear", {"x": X})
    assert caught.value.status == 400
    assert "call infer with binary_inputs=False" in str(caught.value)
