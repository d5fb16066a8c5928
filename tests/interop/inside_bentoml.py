"""The service for BentoML in the manual, with tensorwire's clients.

`test_programs.py` runs this file in the environment of BentoML.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

import tensorwire as tw
from interop import programs
from interop.triton_server import LOOPBACK, free_port
from tensorwire.client import AsyncClient, Client, InferenceServerError

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "frameworks.md"
START_SECONDS = 60.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("bentoml")
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [service] = [block for block in blocks if "import bentoml" in block]
    (folder / "service.py").write_text(service)
    url = f"{LOOPBACK}:{free_port()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_DO_NOT_TRACK", "True")
        patch.setenv("BENTOML_HOME", str(folder / "home"))
        command = [str(Path(sys.prefix, "bin", "bentoml")), "serve", "service:Scale"]
        command += ["--host", LOOPBACK, "--port", url.rpartition(":")[2]]
        with programs.started(command, folder / "log", cwd=folder) as program:
            programs.wait_until(lambda: is_ready(url), program, START_SECONDS)
            yield url


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"http://{url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_client(url: str) -> None:
    large = np.arange(1 << 20, dtype=np.float32).reshape(-1, 2)
    with Client(url) as client:
        for compression in (None, "gzip"):
            response = client.infer(
                "scale", {"x": large}, request_compression_algorithm=compression
            )
            assert np.array_equal(response["y"].as_numpy(), large * np.array([1, 10], np.float32))
            assert response["y"].binary
        with pytest.raises(InferenceServerError, match="an input and a parameter") as caught:
            client.infer("scale", {"x": large}, parameters={"x": 1})
        assert caught.value.status == 400
        assert client.infer("scale", {"x": large[:0]})["y"].shape == (0, 2)


def test_async_client(url: str) -> None:
    async def call() -> list[tw.InferResponse]:
        async with AsyncClient(url) as client:
            rows = [{"x": np.full((1, 2), i, np.float32)} for i in range(8)]
            calls = [client.infer("scale", row, binary_inputs=False) for row in rows]
            return await asyncio.gather(*calls)

    for i, response in enumerate(asyncio.run(call())):
        assert response["y"].tolist() == [[i, 10 * i]]
