"""What Windows lacks, taken away on this machine.

`tests/interop/platforms.py windows` runs the tests of the codec and of the clients with Wine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket

import numpy as np
import pytest

from support.client_fixtures import GOOD, X
from support.scripts import run_script
from support.serve_process import free_port
from support.servers import Scripted
from tensorwire.client import AsyncClient, Client, connection
from tensorwire.client.sync import POLLOUT, Backend, complete

WSAEWOULDBLOCK = 10035
pytestmark = pytest.mark.skipif(os.name == "nt", reason="this machine lacks it already")


def test_blocking_client(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_ex = socket.socket.connect_ex

    def connect(self: socket.socket, address: object) -> int:
        code = connect_ex(self, address)  # type: ignore[arg-type]
        return WSAEWOULDBLOCK if code == errno.EINPROGRESS else code

    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr(errno, "EWOULDBLOCK", WSAEWOULDBLOCK)
    monkeypatch.setattr(connection, "_HAS_SENDMSG", False)
    monkeypatch.delattr(select, "poll")
    monkeypatch.delattr(socket, "AF_UNIX")
    monkeypatch.setattr(socket, "errorTab", {errno.ECONNREFUSED: "nobody listens"}, raising=False)
    with Scripted([GOOD]) as server, Client(server.address) as client:
        monkeypatch.setattr(socket.socket, "sendmsg", None)
        large = {"x": np.zeros(100_000)}  # not joined with its head
        assert np.array_equal(client.infer("m", large)["x"].as_numpy(), X)
    fails = pytest.raises(ConnectionError, match=r"nobody listens$")
    with Client(f"127.0.0.1:{free_port()}") as client, fails:
        client.server_metadata()
    with pytest.raises(ValueError, match="this Python has no Unix sockets"):
        Client("unix:/socket")


def test_connection_that_cannot_be_established(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")
    monkeypatch.setattr(select, "select", lambda read, write, failed, _: (read, [], failed))
    with socket.socket() as sock:
        assert complete(Backend().watch(sock, None).wait(POLLOUT, 5)) == POLLOUT


def test_event_loop_that_cannot_watch_sockets() -> None:
    class Proactor(asyncio.SelectorEventLoop):
        def add_reader(self, *_: object) -> None:
            raise NotImplementedError

        remove_reader = add_writer = remove_writer = add_reader  # type: ignore[assignment]

    async def call() -> None:
        async with AsyncClient(server.address) as client:
            with pytest.raises(RuntimeError, match=r"in a Proactor: .*asyncio.SelectorEventLoop"):
                await client.server_metadata()

    with Scripted([GOOD]) as server, asyncio.Runner(loop_factory=Proactor) as runner:
        runner.run(call())
        assert server.n_connections == 0


def test_modules_that_import_what_is_missing() -> None:
    done = run_script(
        """
import asyncio, os, select, sys, numpy, uvicorn
del os.register_at_fork, select.poll, select.POLLIN, select.POLLOUT
sys.modules |= dict.fromkeys(("fcntl", "resource", "termios"))
import tensorwire.client
from tensorwire import cli, server
os.name = "nt"
server.create_app({})
try:
    server.InferProtocol
except ImportError as error:
    print(error)
cli.main(["serve"])
"""
    )
    assert (done.returncode, done.stdout) == (2, "InferProtocol requires Linux or macOS\n")
    assert done.stderr.endswith(" serve: error: the server requires Linux or macOS\n")
