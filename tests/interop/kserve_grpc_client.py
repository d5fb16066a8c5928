"""KServe's gRPC client against the server of tensorwire, run in the environment of KServe.

`python kserve_grpc_client.py ADDRESS`. Ends with a line when all calls are as expected.
"""

from __future__ import annotations

import asyncio
import sys

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

X = np.array([0.0, -1.5, 3e38, 1.0], np.float32)


async def main(address: str) -> None:
    client = InferenceGRPCClient(address)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("echo")
    for model in ("echo", "thread", "declared"):
        for is_raw in (True, False):
            tensor = InferInput("x", [4], "FP32", data=None if is_raw else X.tolist())
            if is_raw:
                tensor.set_data_from_numpy(X, binary_data=True)
            request = InferRequest(model_name=model, infer_inputs=[tensor], request_id="7")
            response = await client.infer(request)
            assert (response.model_name, response.id) == (model, "7")
            assert np.array_equal(response.outputs[0].as_numpy(), X)
    request = InferRequest(model_name="none", infer_inputs=[tensor])
    try:
        await client.infer(request)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert error.details() == "model 'none' is not known"
    else:
        raise AssertionError("the model does not exist")
    await client.close()
    print("all calls are as expected")


asyncio.run(main(sys.argv[1]))
