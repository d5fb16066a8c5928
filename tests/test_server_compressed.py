"""Responses that `create_app` compresses for clients that ask for it."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
import zlib
from typing import Any
from unittest import mock

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import FRAME, ask, async_echo, echo, exchange, infer, inference
from support.memory import peak_nbytes
from support.requirements import package
from support.servers import uvicorn_server
from tensorwire import compression
from tensorwire.client import Client
from tensorwire.server import Model, body, compressed_reply, create_app
from tensorwire.server.compressed_reply import MAX_QUICK_NBYTES, MIN_NBYTES, choose_coding
from tensorwire.threads import COMPRESSING

zstd = package("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")

CODINGS = ("gzip", "deflate", "zstd")
MODELS: dict[str, Any] = {
    "echo": Model(echo, in_event_loop=True),
    "thread": echo,
    "async": async_echo,
}
APP = create_app(MODELS, compress_responses=True)
PLAIN = create_app(MODELS)


def message(n_elements: int, *, binary: bool = True) -> tw.Frame:
    """Return a request whose array becomes smaller by compression."""
    x = np.arange(n_elements, dtype=np.float32) // 7
    return tw.encode_request(
        tw.InferRequest([tw.Tensor("x", x)], parameters={"binary_data_output": binary}, id="1")
    )


def call(frame: tw.Frame, accept: str, app: Any = APP, model: str = "echo") -> Any:
    headers = {**frame.headers, "Accept-Encoding": accept}
    return infer(app, model, frame, headers=headers)


def decompressed(body: bytes, coding: str) -> bytes:
    """Decompress only the format that the header names. `Decompressor` detects the format."""
    formats = {"gzip": gzip.decompress, "deflate": zlib.decompress, "zstd": zstd.decompress}
    return bytes(formats[coding](body))


# --- which coding ---


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *(([], None), ([b""], None), ([b"identity"], None), ([b"br"], None), ([b"*"], None)),
        *(([b"gzip"], "gzip"), ([b"GZip"], "gzip"), ([b"deflate"], "deflate"), ([b"zstd"], "zstd")),
        ([b"zstd, gzip, deflate, br"], "gzip"),
        ([b"zstd, deflate, gzip;q=0.9"], "deflate"),
        ([b"deflate,gzip"], "gzip"),
        ([b"deflate", b"gzip"], "gzip"),
        ([b"gzip;q=0"], None),
        ([b"gzip;q=0.000, deflate"], "deflate"),
        ([b"gzip;q=0.5, deflate;q=0.501"], "deflate"),
        ([b"gzip ; q=0.5 ,\tdeflate;q=1.000"], "deflate"),
        ([b"gzip;q=0.5, identity"], None),
        ([b"gzip;q=0.5, identity;q=0.5"], "gzip"),
        ([b"gzip, identity;q=0"], "gzip"),
        ([b"gzip;Q=0.1, identity;q=0.2"], None),
        # malformed weights
        *(([b"gzip;q=" + weight], None) for weight in (b"2", b"nan", b"-1", b"0.0001", b"1;q=0")),
        ([b"gzip;level=9"], None),
        # long lists
        ([b"br," * 19 + b"gzip"], "gzip"),
        ([b"br," * 20 + b"gzip"], None),
        ([b"br"] * 20 + [b"gzip"], None),
    ],
)
def test_chosen_coding(values: list[bytes], expected: str | None) -> None:
    headers = [(b"accept", b"gzip"), *((b"accept-encoding", value) for value in values)]
    assert choose_coding(headers) == expected


def test_without_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "find_zstd", lambda: None)
    assert choose_coding([(b"accept-encoding", b"zstd, gzip;q=0.1")]) == "gzip"
    assert choose_coding([(b"accept-encoding", b"zstd")]) is None


# --- replies ---


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_elements", [300, 100_000])
@pytest.mark.parametrize("binary", [True, False])
def test_response(coding: str, model: str, n_elements: int, binary: bool) -> None:
    """The header length and the type are those of the decompressed body."""
    frame = message(n_elements, binary=binary)
    found, plain = call(frame, coding, model=model), call(frame, "identity", model=model)
    assert decompressed(found.body, coding) == plain.body
    assert len(found.body) < len(plain.body) / 2
    assert found.headers == plain.headers | {
        "content-encoding": coding,
        "content-length": str(len(found.body)),
    }
    assert plain.headers["vary"] == "accept-encoding"
    assert ("inference-header-content-length" in found.headers) == binary


def test_is_off_by_default() -> None:
    found = call(message(300), "gzip", PLAIN)
    assert found.response()["x"].shape == (300,)
    assert not {"content-encoding", "vary"} & found.headers.keys()


def test_small_responses_are_not_compressed() -> None:
    nbytes = MIN_NBYTES - len(call(message(0), "identity").body)
    sizes = set()
    for n in range(nbytes - 60, nbytes + 20):
        x = tw.Tensor("x", np.zeros(n, np.uint8))
        parameters = {"binary_data_output": True}
        frame = tw.encode_request(tw.InferRequest([x], parameters=parameters, id="1"))
        found, plain = call(frame, "gzip"), call(frame, "identity")
        assert ("content-encoding" in found.headers) == (len(plain.body) >= MIN_NBYTES)
        assert found.headers["vary"] == "accept-encoding"
        sizes.add(len(plain.body))
    assert {MIN_NBYTES - 1, MIN_NBYTES} <= sizes


def test_other_endpoints_and_errors_are_not_compressed() -> None:
    many = {f"model {i}": echo for i in range(100)}
    app = create_app(many, compress_responses=True)
    for path in ("/v2", "/v2/models/stats"):
        found = ask(app, path, headers={"Accept-Encoding": "gzip"})
        assert found.status == 200
        assert not {"content-encoding", "vary"} & found.headers.keys()
    long_name = tw.Tensor("x" * 2000, [1], datatype="INT8")
    frame = tw.encode_request(tw.InferRequest([long_name]))
    model = Model(echo, [tw.TensorSpec("y", "INT8", [1])])
    app = create_app({"echo": model}, compress_responses=True)
    found = call(frame, "gzip", app)
    assert (found.status, "unexpected input" in found.error) == (400, True)
    assert "content-encoding" not in found.headers


@pytest.mark.parametrize("model", MODELS)
def test_large_responses_are_compressed_in_a_thread(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def compress(*arguments: Any) -> bytes:
        seen.append(threading.current_thread() is threading.main_thread())
        return compression.compress(*arguments)

    monkeypatch.setattr(compressed_reply, "compress", compress)
    for n_elements in (MAX_QUICK_NBYTES // 8, MAX_QUICK_NBYTES // 4):
        assert call(message(n_elements), "gzip", model=model).status == 200
    assert seen == [True, False]


@pytest.mark.parametrize("model", MODELS)
def test_responses_that_are_compressed_are_requests_in_progress(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit, and if no thread can be started, the response is not compressed."""
    app = create_app(MODELS, compress_responses=True, max_concurrency=1)
    others = app.concurrency.requests
    seen: list[int] = []

    def compress(*_: Any) -> bytes:
        seen.append(len(others))
        return b""

    monkeypatch.setattr(compressed_reply, "compress", compress)
    assert call(message(100_000), "gzip", app, model).headers["content-encoding"] == "gzip"
    monkeypatch.setattr(COMPRESSING, "start", mock.Mock(side_effect=RuntimeError))
    assert "content-encoding" not in call(message(100_000), "gzip", app, model).headers
    assert (seen, len(others)) == ([1], 0)


@pytest.mark.parametrize("n_elements", [1000, 100_000])
@pytest.mark.parametrize("model", MODELS)
def test_compression_that_fails(
    model: str, n_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compress(*_: Any) -> bytes:
        raise MemoryError

    monkeypatch.setattr(compressed_reply, "compress", compress)
    found = call(message(n_elements), "gzip", model=model)
    assert (found.status, found.error) == (500, "internal server error")


def test_memory_is_that_of_the_compressed_body() -> None:
    def zeros(_: tw.InferRequest) -> dict[str, Any]:
        return {"y": np.zeros(64 << 20, np.uint8)}

    app = create_app({"zeros": zeros}, compress_responses=True)

    def infer_zeros() -> None:
        assert len(call(FRAME, "gzip", app, "zeros").body) < 1 << 20

    assert peak_nbytes(infer_zeros) < (64 << 20) + (4 << 20)  # with the array


# --- with clients ---


X = np.arange(50_000, dtype=np.int32) // 7
NOISE = np.random.default_rng(1).integers(0, 256, 1_200_000, np.uint8)


async def test_compressed_requests_do_not_delay_others() -> None:
    """A small one may take long. 33 of them fill all threads that decompress."""
    going_on = threading.Event()

    class Waiting(compression.Decompressor):
        def pieces(self, data: Any) -> Any:
            going_on.wait(20)
            return super().pieces(data)

    chunks = [gzip.compress(bytes(FRAME))]
    headers = {"Inference-Header-Content-Length": f"{FRAME.header_length}"}
    headers["Content-Encoding"] = "gzip"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(body, "Decompressor", Waiting)
        call = inference(chunks=chunks, headers=headers, disconnected=asyncio.Event())
        waiting = [asyncio.create_task(exchange(PLAIN, **call)) for _ in range(33)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(10):
                found = await exchange(PLAIN, **inference(frame=message(1 << 20)))
        finally:
            going_on.set()
        assert {found.status, *(each.status for each in await asyncio.gather(*waiting))} == {200}


def test_middleware_of_starlette() -> None:
    """It compresses the responses that the application does not."""
    app = package("starlette.middleware.gzip").GZipMiddleware(PLAIN)
    with uvicorn_server(app) as address, Client(address) as client:
        for coding in (None, "gzip", "deflate"):
            options: Any = {"response_compression_algorithm": coding}
            response = client.infer("async", {"x": X, "noise": NOISE}, **options)
            assert np.array_equal(response["x"].as_numpy(), X)
            assert np.array_equal(response["noise"].as_numpy(), NOISE)
