"""tritonclient against a live Triton, with and without the integration, by all its clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from interop.samples import DTYPES, Array, binary_sample, bits
from interop.triton_models import identity
from interop.triton_server import TritonServer
from support import tritonclient_comparison as comparison
from support.tritonclient_calls import CLIENTS, HTTP, given, outcomes

either = comparison.either

FLOATS = np.arange(1 << 20, dtype=np.float32)
WORDS = np.tile(binary_sample("BYTES"), 20_000)
SAMPLES = [*((each, binary_sample(each)) for each in DTYPES), ("FP32", FLOATS), ("BYTES", WORDS)]


def calls(api: Any) -> Iterator[dict[str, Any]]:
    """Yield a call with each array, one whose response has classes, and one that is an error."""

    def inputs(datatype: str, array: Array) -> dict[str, Any]:
        tensor = given(api, array, "INPUT0", datatype)
        return {"model_name": identity(datatype), "inputs": [tensor]}

    yield from (inputs(*each) for each in SAMPLES)
    outputs = [api.InferRequestedOutput("OUTPUT0", class_count=2)]
    yield inputs("FP32", np.array([0.25, 4, -1], np.float32)) | {"outputs": outputs}
    yield inputs("FP32", FLOATS[:4].reshape(2, 2))


@pytest.mark.parametrize("client", CLIENTS)
def test_tritonclient(triton: TritonServer, either: bool, client: str) -> None:
    port = triton.port if client in HTTP else triton.grpc_port
    *found, classes, error = outcomes(client, f"{triton.host}:{port}", calls)
    assert [bits(each[0]) for each in found] == [bits(array) for _, array in SAMPLES]
    assert [text.split(b":")[1] for text in classes[0].ravel()] == [b"1", b"0"]
    assert "unexpected shape for input 'INPUT0'" in str(error)
