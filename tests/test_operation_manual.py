"""The examples of the pages about running and deploying a server."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from http.client import HTTPConnection
from pathlib import Path

import pytest

from support.examples import ROOT
from support.requirements import package
from support.serve_process import parse, serving
from tensorwire.server import create_app

pytestmark = [
    pytest.mark.no_sanitizers(reason="it reads the repository"),
    pytest.mark.thread_unsafe(reason="it starts servers"),
]

GUIDE = ROOT / "docs" / "guide"
PAGE = (GUIDE / "operation.md").read_text() + (GUIDE / "deploying.md").read_text()
REQUEST = '{"id": "r-17", "inputs": [{"name": "x", "datatype": "BOOL", "shape": [0], "data": []}]}'
END_SECONDS = 5  # between the end of the graceful shutdown and that of the process, at most
FAILING = "def fails(request): raise ValueError('no weights')\nmodels = {'fails': fails}\n"


def block(language: str) -> str:
    """Return the only block of the pages in a language."""
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(text)


def test_table_has_all_limits_and_times() -> None:
    options = vars(parse())
    expected = {name for name in options if re.search("max_|limit_|timeout", name)}
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert {name.replace("-", "_") for name in rows} == expected
    app = create_app({})
    assert rows["max-concurrency"] == str(app.concurrency.max_concurrency)
    assert rows["receive-timeout"] == f"{app.receive_timeout:g} s"
    assert rows["timeout-keep-alive"] == f"{options['timeout_keep_alive']} s"
    assert (rows["max-body"], app.max_body_nbytes) == ("2 GiB - 1", 2**31 - 1)
    assert rows["limit-concurrency"] == rows["timeout-graceful-shutdown"] == "none"


def test_systemd(tmp_path: Path) -> None:
    unit = ConfigParser(interpolation=None)
    unit.read_string(block("ini"))
    service = unit["Service"]
    command = shlex.split(service["ExecStart"].replace("\\\n", " "))
    chosen = parse(*command[2:])
    assert Path(chosen.uds).parent == Path("/run", service["RuntimeDirectory"])
    assert service.getint("TimeoutStopSec") > chosen.timeout_graceful_shutdown + END_SECONDS
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("this machine has no systemd-analyze")
    file = tmp_path / "models.service"
    file.write_text(block("ini").replace(command[0], sys.executable))
    done = subprocess.run([program, "verify", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_docker() -> None:
    [command] = re.findall(r"^CMD (.*)$", block("dockerfile"), re.MULTILINE)
    chosen = parse(*json.loads(command)[2:])  # the form of a list, without a shell
    assert chosen.host == "0.0.0.0"
    [seconds] = re.findall(r"`docker run .*--stop-timeout (\d+)`", PAGE)
    assert int(seconds) > chosen.timeout_graceful_shutdown + END_SECONDS


def test_kubernetes() -> None:
    deployment = package("yaml").safe_load(block("yaml"))
    package("kubernetes_validate").validate(deployment, "1.34", strict=True)
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    chosen = parse(*container["command"][2:])
    seconds = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    seconds += chosen.timeout_graceful_shutdown + END_SECONDS
    assert seconds < pod["spec"]["terminationGracePeriodSeconds"]
    assert container["ports"] == [{"containerPort": chosen.port}]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert probe["path"] in create_app({}).routes and probe["port"] == chosen.port
    assert container["resources"]["limits"]["memory"] and chosen.max_concurrency


def test_lines_of_json(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(import json\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "jsonlog.py").write_text(code)
    (tmp_path / "logging.json").write_text(block("json"))
    arguments = ("served_here", "--access-log", "--log-config", "logging.json", "--workers", "2")
    with serving(tmp_path, *arguments, models=FAILING) as server:
        connection = HTTPConnection(server.address, timeout=20)
        connection.request("POST", "/v2/models/fails/infer", REQUEST)
        with contextlib.closing(connection), connection.getresponse() as answer:
            assert answer.status == 500
        text = server.stop()
    lines = [json.loads(line) for line in text.splitlines() if " serves " not in line]
    [error] = [line for line in lines if line["level"] == "ERROR"]
    assert error["logger"] == "tensorwire.server"
    assert error["message"] == "model 'fails' (version 1, request 'r-17') failed"
    assert error["traceback"].endswith("ValueError: no weights")
    assert any(line["logger"] == "uvicorn.access" for line in lines)
