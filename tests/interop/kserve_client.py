"""KServe's own REST and gRPC clients, run in the environment of KServe.

`python kserve_client.py MODE HTTP_PORT GRPC_PORT`, where MODE is "plain" or "installed". Prints the
responses as JSON, with elements in hexadecimal.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

from tensorwire.integrations import kserve as backend

LOOPBACK = "127.0.0.1"
ARRAYS: dict[str, tuple[str, Any]] = {
    "FP32": ("FP32", np.array([[0.0, -1.5], [3e38, 1.0]], np.float32)),
    "FP16": ("FP16", np.array([0.0, -1.5, 65504], np.float16)),
    "INT64": ("INT64", np.array([1 << 62, -1])),
    "BOOL": ("BOOL", np.array([True, False])),
    "BYTES": ("BYTES", np.array([b"a cat", "ein Hündchen".encode(), b""], object)),
}
IN_JSON = ("FP32", "INT64", "BYTES")


def request(names: Any, is_binary: bool, binary_output: bool) -> InferRequest:
    inputs = []
    for name in names:
        datatype, array = ARRAYS[name]
        tensor = InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=is_binary)
        inputs.append(tensor)
    return InferRequest("echo", inputs, parameters={"binary_data_output": binary_output})


def described(response: Any) -> dict[str, Any]:
    found = {}
    for output in response.outputs:
        array = output.as_numpy()
        values = [to_hex(value) for value in array.ravel()]
        found[output.name] = [output.datatype, list(array.shape), values]
    return found


def to_hex(value: Any) -> str:
    if isinstance(value, str):
        return value.encode().hex()
    return (value if isinstance(value, bytes) else value.tobytes()).hex()


async def over_rest(url: str) -> dict[str, Any]:
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    sent = {
        "binary": request(ARRAYS, True, True),
        "binary in": request(IN_JSON, True, False),
        "JSON in": request(IN_JSON, False, True),
        "JSON": request(IN_JSON, False, False),
        "mixed": InferRequest(
            "echo",
            [*request(["FP16"], True, True).inputs, *request(["BYTES"], False, True).inputs],
            parameters={"binary_data_output": True},
        ),
    }
    found = {
        how: described(await client.infer(url, message, model_name="echo"))
        for how, message in sent.items()
    }
    await client.close()
    return found


async def over_grpc(address: str) -> dict[str, Any]:
    client = InferenceGRPCClient(address)
    found = {"raw": described(await client.infer(request(ARRAYS, True, False)))}
    await client.close()
    return found


async def main(mode: str, http_port: str, grpc_port: str) -> None:
    if mode == "installed":
        backend.install()
    found = await over_rest(f"http://{LOOPBACK}:{http_port}")
    found |= await over_grpc(f"{LOOPBACK}:{grpc_port}")
    sent = {
        name: [datatype, list(array.shape), [to_hex(value) for value in array.ravel()]]
        for name, (datatype, array) in ARRAYS.items()
    }
    print(json.dumps({"sent": sent, "found": found}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
