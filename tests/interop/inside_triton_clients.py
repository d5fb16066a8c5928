"""pytriton's clients and tritony with `tensorwire serve`.

`test_programs.py` runs this file in the environment "triton_clients". The variable
TENSORWIRE_SERVED has the addresses for HTTP and gRPC; the models are those of served_models.py.
"""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)

os.environ |= {"TRITON_LOAD_DELAY": "0.01", "TRITON_RETRIES": "2"}  # read by the import

from tritony import InferenceClient

HTTP, GRPC = os.environ["TENSORWIRE_SERVED"].split()
X = np.arange(12, dtype=np.float32).reshape(4, 3)
TEXTS = np.array([[b"a"], ["ä".encode()], [b""]], object)
UPPER = [[b"A"], ["Ä".encode()], [b""]]

with_both = pytest.mark.parametrize("url", [f"http://{HTTP}", f"grpc://{GRPC}"])


@with_both
def test_pytriton(url: str) -> None:
    for is_lazy in (True, False):
        with ModelClient(url, "double", lazy_init=is_lazy) as client:
            assert client.is_batching_supported
            assert [each.shape for each in client.model_config.inputs] == [(3,)]
            assert np.array_equal(client.infer_batch(X)["y"], X * 2)
            assert np.array_equal(client.infer_batch(x=X)["y"], X * 2)
            assert np.array_equal(client.infer_sample(X[0])["y"], X[0] * 2)
    with ModelClient(url, "upper") as client:
        assert client.infer_batch(TEXTS)["upper"].tolist() == UPPER
    with ModelClient(url, "rows") as client:
        assert not client.is_batching_supported
        assert np.array_equal(client.infer_sample(X[0])["y"], X[0] * 2)


@with_both
def test_errors_of_pytriton(url: str) -> None:
    with (
        ModelClient(url, "reject") as client,
        pytest.raises(PyTritonClientInferenceServerError, match="there are no cats in the image"),
    ):
        client.infer_batch(X)
    with (
        ModelClient(url, "none", init_timeout_s=1) as client,
        pytest.raises(PyTritonClientTimeoutError),  # it waits until the model is ready
    ):
        client.infer_batch(X)


@with_both
def test_futures_of_pytriton(url: str) -> None:
    """Over gRPC, all threads but the first one send HTTP: they copy the URL without its scheme."""
    n_threads = 1 if url.startswith("grpc") else 20
    with FuturesModelClient(url, "double", max_workers=n_threads) as client:
        futures = [client.infer_batch(X + i) for i in range(20)]
        found = [each.result()["y"] for each in futures]
    assert all(np.array_equal(each, (X + i) * 2) for i, each in enumerate(found))


@with_both
def test_asyncio_of_pytriton(url: str) -> None:
    async def infer() -> None:
        async with AsyncioModelClient(url, "double") as client:
            found = await asyncio.gather(*(client.infer_batch(X + i) for i in range(20)))
        assert all(np.array_equal(each["y"], (X + i) * 2) for i, each in enumerate(found))

    asyncio.run(infer())


@pytest.mark.parametrize(
    ("url", "protocol", "run_async"),
    [(HTTP, "http", True), (GRPC, "grpc", True), (GRPC, "grpc", False)],
)
def test_tritony(url: str, protocol: str, run_async: bool) -> None:
    """It does not implement HTTP with run_async=False."""
    client = InferenceClient.create_with("double", url, protocol=protocol, run_async=run_async)
    assert client.default_model_spec.max_batch_size > len(X)
    assert [each.dtype for each in client.default_model_spec.model_input] == ["FP32"]
    assert np.array_equal(client(X), X * 2)
    assert np.array_equal(client({"x": X}), X * 2)
    assert client({"text": TEXTS}, model_name="upper").tolist() == UPPER
    # Without a maximum batch size, tritony sends each row as a request.
    assert np.array_equal(client(X, model_name="rows"), X * 2)


@pytest.mark.parametrize(("url", "protocol"), [(HTTP, "http"), (GRPC, "grpc")])
def test_asyncio_of_tritony(url: str, protocol: str) -> None:
    async def infer() -> None:
        client = InferenceClient.create_with_asyncio("double", url, protocol=protocol)
        assert np.array_equal(await client.aio_infer(X), X * 2)
        await client.async_close()

    asyncio.run(infer())
