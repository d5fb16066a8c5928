"""pytriton's clients against `tensorwire serve`, run in the environment "triton_clients".

`python pytriton_client.py HTTP GRPC` with the addresses. Ends with a line when all calls are as
expected.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from pytriton.client import (
    AsyncioModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)

X = np.arange(12, dtype=np.float32).reshape(4, 3)
TEXTS = np.array([[b"a"], ["ä".encode()], [b""]], object)


def check(url: str) -> None:
    for is_lazy in (True, False):
        with ModelClient(url, "double", lazy_init=is_lazy) as client:
            assert client.is_batching_supported
            assert [each.shape for each in client.model_config.inputs] == [(3,)]
            assert np.array_equal(client.infer_batch(X)["y"], X * 2)
            assert np.array_equal(client.infer_batch(x=X)["y"], X * 2)
            assert np.array_equal(client.infer_sample(X[0])["y"], X[0] * 2)
    with ModelClient(url, "upper") as client:
        found = client.infer_batch(TEXTS)["upper"]
        assert found.tolist() == [[b"A"], ["Ä".encode()], [b""]]
    with ModelClient(url, "rows") as client:
        assert not client.is_batching_supported
        assert np.array_equal(client.infer_sample(X[0])["y"], X[0] * 2)
    with ModelClient(url, "reject") as client:
        try:
            client.infer_batch(X)
        except PyTritonClientInferenceServerError as error:
            assert "there are no cats in the image" in str(error)
        else:
            raise AssertionError("the model rejects everything")
    with ModelClient(url, "none", init_timeout_s=1) as client:
        try:
            client.infer_batch(X)
        except PyTritonClientTimeoutError:  # it waits until the model is ready
            pass
        else:
            raise AssertionError("the model does not exist")


def check_futures(url: str) -> None:
    # Over gRPC, all threads but the first one send HTTP: they copy the URL without its scheme.
    n_threads = 1 if url.startswith("grpc") else 20
    with FuturesModelClient(url, "double", max_workers=n_threads) as client:
        futures = [client.infer_batch(X + i) for i in range(20)]
        found = [each.result()["y"] for each in futures]
    assert all(np.array_equal(each, (X + i) * 2) for i, each in enumerate(found))


async def check_asyncio(url: str) -> None:
    async with AsyncioModelClient(url, "double") as client:
        found = await asyncio.gather(*(client.infer_batch(X + i) for i in range(20)))
    assert all(np.array_equal(each["y"], (X + i) * 2) for i, each in enumerate(found))


http, grpc = sys.argv[1:]
for address in (f"http://{http}", f"grpc://{grpc}"):
    check(address)
    check_futures(address)
    asyncio.run(check_asyncio(address))
print("all calls are as expected")
