"""Metrics for Prometheus: what they count, and where they are served."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import ask, echo, infer
from support.requirements import optional, package
from support.serve_process import parse, serving
from support.servers import uvicorn_server
from support.threads import in_thread, wait_for
from tensorwire.cli import processes
from tensorwire.cli.output import UsageError
from tensorwire.cli.processes import Processes
from tensorwire.client import Client
from tensorwire.server import InferProtocol, Model, RequestError, create_app

prometheus_client = package("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from tensorwire.server import metrics  # noqa: E402
from tensorwire.server.metrics import DURATION, status_of  # noqa: E402

grpc = optional("grpc")

pytestmark = pytest.mark.thread_unsafe(reason="the metrics are those of the process")
# The metrics of a name remain until the process ends.
NAMES = (f"metrics test {i}" for i in itertools.count())


def fail(_: tw.InferRequest) -> Any:
    raise RuntimeError


def samples(text: str, model: str) -> dict[str, float]:
    """Return the number of requests to a model by the status."""
    return {
        sample.labels["status"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tensorwire_request_duration_seconds_count"
        and sample.labels["model"] == model
    }


def read(app: Any) -> str:
    answer = ask(app, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == prometheus_client.CONTENT_TYPE_LATEST
    assert ask(app, "/metrics", "HEAD").status == 200
    assert ask(app, "/metrics", "POST").status == 405
    return answer.body.decode()


def test_metrics_are_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert ask(create_app({"m": echo}), "/metrics").status == 404


@pytest.mark.parametrize("in_event_loop", [False, True])
def test_requests_by_model_and_status(in_event_loop: bool) -> None:
    name, other = next(NAMES), 'a "model"\n\\ü' + next(NAMES)

    def model(request: tw.InferRequest) -> Any:
        status = request.parameters.get("status")
        if status:
            raise RequestError("no", int(status))
        return echo(request)

    functions = {name: model, other: fail}
    models = {name: Model(each, in_event_loop=in_event_loop) for name, each in functions.items()}
    app = create_app(models, metrics=True)
    assert samples(read(app), name) == {"200": 0}
    for status in (None, None, 422, 503, 422):
        parameters: dict[str, Any] = {"status": status} if status else {}
        frame = tw.encode_request(tw.InferRequest({"x": np.zeros(3)}, parameters=parameters))
        infer(app, name, frame)
        infer(app, other, frame)
    text = read(app)
    assert samples(text, name) == {"200": 2, "422": 2, "503": 1}
    assert samples(text, other) == {"200": 0, "500": 5}
    assert app.served[name, ""].statistics.describe()["inference_stats"]["fail"]["count"] == 3


def test_duration() -> None:
    name = next(NAMES)

    def model(request: tw.InferRequest) -> Any:
        time.sleep(0.03)
        return echo(request)

    app = create_app({name: model}, metrics=True)
    infer(app, name)
    registry = prometheus_client.REGISTRY
    labels = {"model": name, "status": "200"}
    seconds = registry.get_sample_value("tensorwire_request_duration_seconds_sum", labels)
    assert 0.03 <= seconds < 2
    bucket = "tensorwire_request_duration_seconds_bucket"
    assert registry.get_sample_value(bucket, {**labels, "le": "0.025"}) == 0
    assert registry.get_sample_value(bucket, {**labels, "le": "10.0"}) == 1


def test_status_of_a_cancelled_request() -> None:
    assert status_of(asyncio.CancelledError()) == 499
    assert status_of(ZeroDivisionError()) == 500


def test_metrics_of_the_program_and_of_two_applications() -> None:
    name, other = next(NAMES), next(NAMES)
    counter = prometheus_client.Counter("of_the_program", "A metric of the user.")
    try:
        counter.inc(7)
        apps = [create_app({each: echo}, metrics=True) for each in (name, other)]
        infer(apps[0], name)
        infer(apps[1], other)
        text = read(apps[0])
        assert "of_the_program_total 7.0" in text
        assert samples(text, name) == samples(text, other) == {"200": 1}
    finally:
        prometheus_client.REGISTRY.unregister(counter)


def test_metric_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        describe = list

        def collect(self) -> Any:
            raise RuntimeError("a secret")

    app = create_app({next(NAMES): echo}, metrics=True)
    broken: Any = Broken()
    prometheus_client.REGISTRY.register(broken)
    try:
        answer = ask(app, "/metrics")
        assert (answer.status, answer.error) == (500, "internal server error")
        assert "a secret" in str(caplog.records[-1].exc_info)
    finally:
        prometheus_client.REGISTRY.unregister(broken)
    read(app)


@pytest.mark.parametrize("in_event_loop", [False, True])
def test_request_that_cannot_be_counted(
    in_event_loop: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The temporary folder of several processes may be deleted while they run.

    The error is logged once: otherwise, clients could fill the log.
    """
    monkeypatch.setattr(metrics, "_reported", set())
    name = next(NAMES)
    app = create_app({name: Model(echo, in_event_loop=in_event_loop)}, metrics=True)

    def open_file(*_: str) -> Any:
        raise FileNotFoundError("histogram_1.db")

    with monkeypatch.context() as patch:
        patch.setattr(DURATION, "labels", open_file)
        for _ in range(3):
            assert infer(app, name).status == 200
    (record,) = caplog.records
    assert "histogram_1.db" in str(record.exc_info)
    assert app.served[name, ""].statistics.describe()["inference_count"] == 3
    infer(app, name)
    assert samples(read(app), name) == {"200": 1}


class ModelsThatWait(dict[str, Any]):
    def __init__(self, models: Mapping[str, Any], wait: Callable[[], object]) -> None:
        super().__init__(models)
        self.wait = wait

    def __iter__(self) -> Iterator[str]:
        self.wait()
        return super().__iter__()


@pytest.mark.parametrize(
    "options", [{"http": InferProtocol}, {"http": "h11"}], ids=["fast", "asgi"]
)
@pytest.mark.parametrize("path", ["/metrics", "/v2/models/stats", "/v2/repository/index"])
def test_all_models_do_not_block_other_requests(
    path: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def wait(*_: Any) -> Any:
        has_begun.set()
        may_end.wait(10)
        return b"", "text/plain"

    app = create_app({next(NAMES): echo}, metrics=True)
    monkeypatch.setattr("tensorwire.server.metrics.exposition", wait)
    monkeypatch.setattr(app, "models", ModelsThatWait(app.models, wait))
    body = b"" if path.endswith("index") else None
    with uvicorn_server(app, **options) as address, Client(address, timeout=5) as client:
        url = f"http://{address}{path}"
        with in_thread(lambda: urllib.request.urlopen(url, body).close()):
            assert has_begun.wait(5)
            try:
                assert client.is_ready()
                assert not may_end.is_set()
            finally:
                may_end.set()


def test_grpc_calls_are_counted() -> None:
    grpc.aio  # noqa: B018 - skip the test without grpcio
    from support.grpc_served_app import served_app  # noqa: PLC0415

    name = next(NAMES)
    app = create_app({name: echo}, metrics=True)
    with served_app(app) as server:
        server.infer(name)
    assert samples(read(app), name) == {"200": 1}


# --- the command ---------------------------------------------------------------------------------

SLOW = pytest.mark.slow(reason="it starts processes")
MODELS = """
import os
import signal
import tensorwire as tw
from tensorwire.server import create_app

def process(request):
    return {"process": os.getpid()}

models = {"process": process}
app = create_app(models, metrics=True)
"""


@pytest.mark.no_sanitizers(reason="it runs other programs")
@pytest.mark.parametrize(
    ("arguments", "workers"),
    [
        (["served_here", "--metrics"], 1),
        pytest.param(["served_here", "--metrics"], 2, marks=SLOW),
        pytest.param(["served_here:app"], 2, marks=SLOW),
    ],
)
def test_metrics_of_all_processes(
    tmp_path: Path, arguments: list[str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response has the sum, and the temporary folder is removed."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    with serving(tmp_path, *arguments, "--workers", str(workers), models=MODELS) as server:
        processes: list[int] = []

        def all_have_replied() -> bool:
            with Client(server.address) as client:
                response = client.infer("process", {"x": np.zeros(1)})
            processes.append(int(response["process"].as_numpy()))
            return len({*processes}) == workers

        wait_for(all_have_replied, 20)
        for _ in range(6):
            with urllib.request.urlopen(f"http://{server.address}/metrics") as answer:
                text = answer.read().decode()
            assert samples(text, "process") == {"200": len(processes)}
        assert ("process_cpu_seconds_total" in text) == (workers == 1)
        server.stop()
        assert list(folder.iterdir()) == []


def test_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is an error, and not SIGBUS, which ends the process when it writes to mapped memory."""

    def fail(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with closing(prometheus_client.mmap_dict.MmapedDict(str(tmp_path / "values"))) as values:
        monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
        with pytest.raises(OSError, match="full"):
            for i in range(10_000):
                values.write_value(str(i), 1.0, 0.0)
        assert values.read_value("0") == (1.0, 0.0)


@pytest.mark.parametrize("is_set", [True, False])
def test_folder_of_the_user(is_set: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder, found = str(tmp_path) if is_set else "", list[Path]()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", folder)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def step(processes: Processes) -> None:
        processes.is_stopping = True
        found.append(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        assert found[0].is_dir()

    monkeypatch.setattr(Processes, "step", step)
    Processes(parse("--workers", "2"), [], print, ExitStack()).run()
    assert (found == [tmp_path], found[0].exists()) == (is_set, is_set)
    assert os.environ.get("PROMETHEUS_MULTIPROC_DIR", "") == folder


def test_processes_without_a_writable_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ``--metrics`` requires one."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(Processes, "step", lambda self: setattr(self, "is_stopping", True))
    made = Mock(side_effect=FileNotFoundError("No usable temporary directory found"))
    monkeypatch.setattr(processes, "TemporaryDirectory", made)
    assert Processes(parse("--workers", "2"), [], print, ExitStack()).run() == 0
    with pytest.raises(UsageError, match="--metrics with several processes: No usable temporary"):
        Processes(parse("--workers", "2", "--metrics"), [], print, ExitStack()).run()
