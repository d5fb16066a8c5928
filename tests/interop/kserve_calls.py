"""KServe's REST client as a subprocess, run in the environment of KServe.

Each line of stdin is a call of test_matrix.py as JSON, with the server's URL. Each line of stdout
is the response or the error. An array is its datatype and its elements in hexadecimal.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from httpx import HTTPStatusError
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

DTYPES = {"FP32": "<f4", "FP16": "<f2"}


def array_of(datatype: str, elements: list[str]) -> Any:
    values = [bytes.fromhex(element) for element in elements]
    if datatype != "BYTES":
        return np.frombuffer(b"".join(values), DTYPES[datatype])
    array = np.empty(len(values), object)
    array[:] = values
    return array


def to_hex(value: Any) -> str:
    if isinstance(value, str):
        return value.encode().hex()
    return (value if isinstance(value, bytes) else value.tobytes()).hex()


def request_of(call: dict[str, Any]) -> InferRequest:
    inputs = []
    for name, (datatype, elements) in call["inputs"].items():
        array = array_of(datatype, elements)
        tensor = InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=name not in call["json_inputs"])
        inputs.append(tensor)
    if call["outputs"] is None:
        return InferRequest(call["model"], inputs, parameters={"binary_data_output": True})
    outputs = [RequestedOutput(name, {"binary_data": binary}) for name, binary in call["outputs"]]
    return InferRequest(call["model"], inputs, request_outputs=outputs)


async def answer(client: InferenceRESTClient, call: dict[str, Any]) -> dict[str, Any]:
    request = request_of(call)
    try:
        response = await client.infer(call["url"], request, model_name=call["model"])
    except HTTPStatusError as error:
        return {"rejected": f"{error.response.status_code}: {error}"}
    return {
        output.name: (output.datatype, [to_hex(value) for value in output.as_numpy()])
        for output in response.outputs
    }


async def main() -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    for line in sys.stdin:
        print(json.dumps(await answer(client, json.loads(line))), flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
