"""tritony against `tensorwire serve`, run in the environment "triton_clients".

`python tritony_client.py HTTP GRPC` with the addresses. Ends with a line when all calls are as
expected.
"""

from __future__ import annotations

import asyncio
import os
import sys

import numpy as np

os.environ |= {"TRITON_LOAD_DELAY": "0.01", "TRITON_RETRIES": "2"}  # read by the import

from tritony import InferenceClient

X = np.arange(12, dtype=np.float32).reshape(4, 3)
TEXTS = np.array([[b"a"], ["ä".encode()], [b""]], object)


def check(url: str, protocol: str, run_async: bool) -> None:
    client = InferenceClient.create_with("double", url, protocol=protocol, run_async=run_async)
    assert client.default_model_spec.max_batch_size > len(X)
    assert [each.dtype for each in client.default_model_spec.model_input] == ["FP32"]
    assert np.array_equal(client(X), X * 2)
    assert np.array_equal(client({"x": X}), X * 2)
    assert client({"text": TEXTS}, model_name="upper").tolist() == [[b"A"], ["Ä".encode()], [b""]]
    # Without a maximum batch size, tritony sends each row as a request.
    assert np.array_equal(client(X, model_name="rows"), X * 2)


async def check_asyncio(url: str, protocol: str) -> None:
    client = InferenceClient.create_with_asyncio("double", url, protocol=protocol)
    assert np.array_equal(await client.aio_infer(X), X * 2)
    await client.async_close()


http, grpc = sys.argv[1:]
check(http, "http", True)  # tritony does not implement HTTP with run_async=False
check(grpc, "grpc", True)
check(grpc, "grpc", False)
asyncio.run(check_asyncio(http, "http"))
asyncio.run(check_asyncio(grpc, "grpc"))
print("all calls are as expected")
