"""Whole calls of tritonclient.http and tritonclient.http.aio with and without the integration."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import test_integration_tritonclient_grpc as grpc_calls
from interop.samples import Array, bits, bytes_array
from support import client_fixtures, tritonclient_comparison
from support.client_fixtures import Certificate, chunked
from support.memory import peak_nbytes
from support.servers import HOST, Scripted
from support.servers import http as http_response
from support.tritonclient_comparison import (
    FLOATS,
    LARGE,
    body_of,
    both,
    module,
    object_array,
    outcome,
    parsed,
    partly_installed,
    response,
)
from support.wrappers import Proxy, closure, functools_wrapper, wrapped
from tensorwire.integrations import tritonclient
from tensorwire.integrations.tritonclient.transport import (
    FileBody,
    Transport,
    payload_class,
)

pytestmark = [
    *tritonclient_comparison.MARKS,
    # aiohttp warns about the bodies of the client without the integration.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]

http, either, installed, any_data = (
    tritonclient_comparison.http,
    tritonclient_comparison.either,
    tritonclient_comparison.installed,
    tritonclient_comparison.any_data,
)  # fixtures
certificate = client_fixtures.certificate

LENGTH = "Inference-Header-Content-Length"


class Recording(Scripted):
    """A scripted server that keeps the bodies of the requests."""

    def __init__(self, answers: Any) -> None:
        super().__init__(answers)
        self.bodies: list[bytes] = []

    def __enter__(self) -> Recording:
        super().__enter__()
        return self

    def read(self, connection: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            byte = connection.recv(1)
            if not byte:
                return False
            head += byte
        self.heads.append(head.decode())
        lines = dict(
            line.lower().split(": ", 1) for line in self.heads[-1].splitlines() if ":" in line
        )
        body = bytearray()
        while len(body) < int(lines["content-length"]):
            body += connection.recv(1 << 16)
        self.bodies.append(bytes(body))
        return True

    @property
    def requests(self) -> list[tuple[list[str], bytes]]:
        """The lines of the headers without the port of the server, and the bodies.

        Bodies in gzip are decompressed, because they contain the time.
        """
        heads = [head.replace(self.address, HOST).splitlines() for head in self.heads]
        is_gzip = [body.startswith(b"\x1f\x8b") for body in self.bodies]
        bodies = [
            gzip.decompress(body) if packed else body
            for body, packed in zip(self.bodies, is_gzip, strict=True)
        ]
        return list(zip(heads, bodies, strict=True))


def answer(*arrays: Array, **options: Any) -> bytes:
    body, length = response(*arrays, **options)
    return http_response(body, {LENGTH: str(length)} if length is not None else None)


ANSWER = answer(FLOATS, FLOATS + 1, bytes_array([b"x", b"\0"]))


# --- the calls of the clients --------------------------------------------------------------------

Calls = Callable[[Any], Iterable[dict[str, Any]]]


def connect(address: str, **options: Any) -> Any:
    """Return a client for a ``with`` block, which closes it."""
    return closing(module("http", "http").InferenceServerClient(address, **options))


def by_http(address: str, calls: Calls, **options: Any) -> Any:
    with connect(address, **options) as client:
        return [arrays(client.infer("m", **call)) for call in calls(client)]


def by_aio(address: str, calls: Calls, **options: Any) -> Any:
    aio = module("http.aio", "http")

    async def infer() -> Any:
        async with aio.InferenceServerClient(address, **options) as client:
            return [arrays(await client.infer("m", **call)) for call in calls(client)]

    return asyncio.run(infer())


def arrays(result: Any) -> list[Array | None]:
    return [result.as_numpy(f"OUTPUT{i}") for i in range(3)]


def by_async_infer(address: str, calls: Calls, **options: Any) -> Any:
    with connect(address, **options) as client:
        return [arrays(client.async_infer("m", **c).get_result()) for c in calls(client)]


CLIENTS: dict[str, Callable[..., Any]] = {
    "infer": by_http,
    "async_infer": by_async_infer,
    "aio": by_aio,
}


@pytest.fixture(params=CLIENTS)
def infer(request: pytest.FixtureRequest) -> Any:
    return CLIENTS[request.param]


def given(array: Array = FLOATS, name: str = "x", datatype: str = "FP32", **options: Any) -> Any:
    tensor = module("http", "http").InferInput(name, list(array.shape), datatype)
    return tensor.set_data_from_numpy(array, **options)


def exchange(
    infer: Callable[..., Any],
    calls: Calls,
    answers: Any = (ANSWER,),
    **options: Any,
) -> Any:
    """Return the results of the calls, the requests of the server and its connections.

    Warnings are not compared, because aiohttp warns about large bodies of `bytes`.
    """
    with Recording(answers) as server:
        found, _ = outcome(lambda: infer(server.address, calls, **options))
        return found, server.requests, server.n_connections


# --- requests --------------------------------------------------------------------------------


def several() -> list[Any]:
    return [
        given(FLOATS[:4], "a"),
        given(FLOATS, "b"),
        given(np.empty((0, 3), np.float32), "c"),
        given(object_array(["x", b"\0"]), "d", "BYTES"),
        given(FLOATS[::-1], "e"),
        given(np.arange(LARGE), "f", "INT64"),
    ]


def reversed_input() -> Any:
    api = module("http", "http")

    class Reversed(api.InferInput):  # type: ignore[misc, name-defined]
        def _get_binary_data(self) -> bytes:
            return bytes(super()._get_binary_data()[::-1])

    return Reversed("r", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)


def with_bytearray() -> Any:
    """Return an input whose binary data was replaced by the program."""
    tensor = given(FLOATS[:4])
    tensor._raw_data = bytearray(tensor._raw_data)
    return tensor


def with_region() -> Any:
    """Return an input whose parameters were changed by the program."""
    tensor = given(FLOATS[:4], binary_data=False)
    tensor._parameters["shared_memory_region"] = "r"
    return tensor


class OwnInput:
    """An input that is no instance of tritonclient's class. Its requests only need two methods."""

    def __init__(self) -> None:
        tensor = given()
        self._get_tensor, self._get_binary_data = tensor._get_tensor, tensor._get_binary_data


def with_basic_auth(client: Any) -> list[dict[str, Any]]:
    client.register_plugin(import_module("tritonclient.http.auth").BasicAuth("user", "password"))
    return [{"inputs": [given()], "headers": {"X-Id": "7"}}]


def with_replaced_post(client: Any) -> list[dict[str, Any]]:
    """The program expects a body of type `bytes`, as it is without the integration."""
    original = client._post

    def post(request_uri: str, request_body: Any, headers: Any, query_params: Any) -> Any:
        assert type(request_body) is bytes
        return original(request_uri, request_body + b"", headers, query_params)

    client._post = post
    return [{"inputs": [given()]}]


CALLS: dict[str, Calls] = {
    "one": lambda _: [{"inputs": [given()]}],
    "several": lambda _: [{"inputs": several()}],
    "JSON": lambda _: [{"inputs": [given(FLOATS[:4], binary_data=False), given(name="y")]}],
    "reserved parameter": lambda _: [{"inputs": [given()], "parameters": {"sequence_id": 1}}],
    "sequence": lambda _: [
        {"inputs": [given()], "sequence_id": 2**63 + 1, "sequence_start": True, "priority": 3}
    ],
    "positional": lambda _: [{"inputs": [given()], "model_version": "2"}],
    "wrong version": lambda _: [{"inputs": [given()], "model_version": 2}],
    "deflate": lambda _: [{"inputs": [given()], "request_compression_algorithm": "deflate"}],
    "chunked": lambda _: [{"inputs": [given()], "headers": {"Transfer-Encoding": "chunked"}}],
    "content type": lambda _: [{"inputs": [given()], "headers": {"Content-Type": "a/b"}}],
    "subclass": lambda _: [{"inputs": [given(), reversed_input()]}],
    "bytearray": lambda _: [{"inputs": [with_bytearray(), given()]}],
    "region": lambda _: [{"inputs": [with_region(), given()]}],
    "own class": lambda _: [{"inputs": [OwnInput(), given()]}],
    "basic auth": with_basic_auth,
    "replaced _post": with_replaced_post,
    "twice": lambda _: [{"inputs": [given()]}, {"inputs": [given(FLOATS + 2)]}],
    "no inputs": lambda _: [{"inputs": []}],
}


N_REQUESTS = {"twice": 2, "reserved parameter": 0, "wrong version": 0, "chunked": 0}


@pytest.mark.parametrize("name", CALLS)
def test_request(http: ModuleType, infer: Any, name: str) -> None:
    """The server receives the same headers and the same body on as many connections."""
    found = both(lambda: exchange(infer, CALLS[name], (ANSWER, ANSWER)))
    n_requests = len(found[1][1][1])
    assert n_requests == N_REQUESTS.get(name, 1) or (name == "chunked" and infer is by_aio)


@pytest.mark.parametrize("is_only", [False, True])
def test_each_replacement_works_without_the_others(
    http: ModuleType, infer: Any, is_only: bool
) -> None:
    body, length = response(FLOATS, bytes_array([b"x", b"\0"]))
    texts, words = np.array(["x", "\xe9"]), object_array(["x", "\xe9"])

    def outcomes() -> Any:
        result = parsed(http, body, str(length))
        return (
            exchange(infer, CALLS["several"]),
            [bits(result.as_numpy(f"OUTPUT{i}")) for i in range(2)],
            body_of(http, words, "BYTES"),
        )

    expected = outcomes()
    for name in partly_installed(is_only):
        assert outcomes() == expected, name
        try:
            assert body_of(http, texts, "BYTES") == expected[2], name
        except module("utils", "http").InferenceServerException as error:
            assert "unexpected datatype" in str(error)  # of an array that only we accept


def test_positional_arguments(http: ModuleType, either: bool) -> None:
    """All arguments can be positional, including the compression of the request."""
    infer_with_positional_arguments()


def test_positional_arguments_of_a_wrapper_with_other_parameters(http: ModuleType) -> None:
    with wrapped(http.InferenceServerClient, "infer", closure, lambda: None):
        tritonclient.install()
        try:
            infer_with_positional_arguments()
        finally:
            tritonclient.uninstall()


def infer_with_positional_arguments() -> None:
    with Recording([ANSWER]) as server, connect(server.address) as client:
        options = ("", None, "7", 0, False, False, 0, None, None, None, "gzip", None, None)
        client.infer("m", [given()], *options)
        assert gzip.decompress(server.bodies[0]).endswith(FLOATS.tobytes())


def test_verbose_output(
    http: ModuleType, infer: Any, either: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    exchange(infer, CALLS["one"], verbose=True)
    printed = capsys.readouterr().out
    assert repr(FLOATS.tobytes())[2:-1] in printed
    assert "POST " in printed


def test_async_infer_has_read_the_array_when_it_returns(http: ModuleType, any_data: None) -> None:
    sent = FLOATS.copy()
    with Recording([ANSWER]) as server, connect(server.address) as client:
        tensor = given(sent)
        handle = client.async_infer("m", [tensor])
        sent[:] = 0
        tensor.set_data_from_numpy(FLOATS + 1)
        assert bits(handle.get_result().as_numpy("OUTPUT0")) == bits(FLOATS)
        assert server.bodies[0].endswith(FLOATS.tobytes())


def test_redirected_request_has_the_same_body(http: ModuleType, either: bool) -> None:
    """Only aiohttp follows redirects, for which it sends the body again."""
    moved = http_response(b"", {"Location": "/v2/models/m/infer"}, "307 Temporary Redirect")
    _, requests, _ = exchange(by_aio, CALLS["several"], (moved, ANSWER))
    bodies = [body for _, body in requests]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
    assert bodies[0].endswith(np.arange(LARGE).tobytes())


def test_tls(http: ModuleType, either: bool, certificate: Certificate) -> None:
    server = client_fixtures.TlsScripted([ANSWER, ANSWER], certificate)
    with server:
        options = {"ssl": True, "ssl_options": {"ca_certs": certificate.file}}
        address = server.address
        calls = CALLS["twice"]
        found = by_http(address, calls, **options)
    assert [bits(result[0]) for result in found] == [bits(FLOATS)] * 2
    assert server.n_connections == 1


@pytest.mark.parametrize(("client", "n_copies"), [("infer", 2), ("async_infer", 2), ("aio", 1)])
def test_large_request_is_not_copied(
    http: ModuleType, either: bool, client: str, n_copies: int
) -> None:
    array = np.ones(1 << 22, np.float32)
    tensor = given(array)
    small = answer(FLOATS[:4])
    with Scripted([small, small]) as server:
        call = CLIENTS[client]
        call(server.address, lambda _: [{"inputs": [given(FLOATS)]}])  # fill caches
        nbytes = peak_nbytes(lambda: call(server.address, lambda _: [{"inputs": [tensor]}]))
    found = nbytes / array.nbytes
    # asyncio may copy the piece that the socket does not take at once.
    assert found < 0.3 if either else found > n_copies - 0.1


# --- wrappers of other code ------------------------------------------------------------------


def functions_on_the_way(infer: Any) -> dict[str, Any]:
    """Return the owners of the functions through which a body goes to the socket."""
    if infer is not by_aio:
        api, stub = module("http._client", "http"), import_module("geventhttpclient").HTTPClient
    else:
        api, stub = module("http.aio", "http"), import_module("aiohttp").ClientSession
    owners = {"_get_inference_request": api, "_post": api.InferenceServerClient, "post": stub}
    return {**owners, "_request" if infer is by_aio else "request": stub}


@pytest.mark.parametrize("is_first", [True, False], ids=["wrapped first", "wrapped later"])
@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy, closure])
@pytest.mark.parametrize("position", range(4))
def test_wrapper_gets_a_body_of_type_bytes(
    http: ModuleType, infer: Any, position: int, wrap: Any, is_first: bool
) -> None:
    """The wrapper of any function on the way is called as without the integration."""
    module("http.aio", "http")  # otherwise, `install` imports it, and it imports the wrapper
    name, owner = list(functions_on_the_way(infer).items())[position]
    seen: list[Any] = []

    def checking(function: Any, count: Callable[[], None]) -> Any:
        def checked(*arguments: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            values = [*arguments, *options.values(), *(found if type(found) is tuple else ())]
            seen.extend(type(value) for value in values if hasattr(value, "__len__"))
            return found

        return wrap(checked, count)

    def send() -> list[Any]:
        seen.clear()
        exchange(infer, CALLS["one"])
        assert seen
        return list(seen)

    with wrapped(owner, name, checking, lambda: None):
        expected = send()
        if is_first:
            tritonclient.install()
            found = send()
            tritonclient.uninstall()
    if not is_first:
        tritonclient.install()
        with wrapped(owner, name, checking, lambda: None):
            found = send()
        tritonclient.uninstall()
    assert bytes in expected
    assert found == expected


def test_subclass_of_the_class_of_the_library_gets_bytes(http: ModuleType) -> None:
    """It may have methods that expect `bytes`."""
    library = import_module("geventhttpclient").HTTPClient
    client_class = http.InferenceServerClient
    transport = Transport("_client_stub", library, ("post", "request"), FileBody)
    with closing(client_class("localhost:1")) as client:
        assert transport.is_plain(client)
        client._client_stub.__class__ = type("Subclass", (library,), {})
        assert not transport.is_plain(client)


def read_by_grpc(result: Any) -> Any:
    result.get_output("OUTPUT0")
    return result.as_numpy("OUTPUT0"), result.get_response().id


def workload() -> None:
    """Call everything that the integration replaces or relies on."""
    api, utils = module("http", "http"), module("utils", "http")
    memory, grpc = module("utils.shared_memory", "http"), module("grpc", "grpc")
    texts = object_array(["x", b"\0"])
    utils.deserialize_bytes_tensor(utils.serialize_byte_tensor(texts).item())
    region = memory.create_shared_memory_region("tensorwire", "tensorwire_wrappers", 4096)
    try:
        memory.set_shared_memory_region(region, [utils.serialize_byte_tensor(texts)])
        memory.get_contents_as_numpy(region, np.object_, [2])
    finally:
        memory.destroy_shared_memory_region(region)
    grpc.InferInput("t", [2], "BYTES").set_data_from_numpy(texts)
    for infer in grpc_calls.CLIENTS.values():
        grpc_calls.exchange(infer, grpc_calls.CALLS["one"], read=read_by_grpc)
    result = api.InferResult.from_response_body(BODY, header_length=HEADER_LENGTH)
    assert result.as_numpy("OUTPUT2").tolist() == [b"x", b"\0"]
    inputs = [given(texts, "t", "BYTES"), given(FLOATS), given(FLOATS[:4], "y")]
    api.InferenceServerClient.generate_request_body(inputs)
    for infer in CLIENTS.values():
        exchange(infer, lambda _: [{"inputs": inputs}])


def compared_functions() -> set[str]:
    return set(json.loads(tritonclient._PATCH.digests.read_text())) - NOT_FUNCTIONS


NOT_FUNCTIONS = {  # but classes
    "tritonclient.utils.shared_memory:SharedMemoryRegion",
    "tritonclient.grpc._infer_stream:_RequestIterator",
}


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize("name", sorted(compared_functions()))
def test_wrapper_is_called_as_often_as_without_the_integration(
    http: ModuleType, name: str, wrap: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds for each function that the integration replaces or relies on."""
    module_name, _, path = name.partition(":")
    owner: Any = import_module(module_name)
    *classes, function = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    n_calls: list[int] = []

    def count() -> None:
        n_calls[-1] += 1

    with wrapped(owner, function, wrap, count):
        for is_installed in (False, True, False):
            n_calls.append(0)
            if is_installed:
                tritonclient.install()
            workload()
            tritonclient.uninstall()
    assert n_calls[0] > 0
    assert n_calls == [n_calls[0]] * 3
    is_called_anyway = "ServerClient." in name and not name.endswith(("__init__", "_post"))
    assert len(caplog.records) == (not is_called_anyway)
    if not is_called_anyway:
        assert name.replace(":", ".") in caplog.text


# --- bodies ----------------------------------------------------------------------------------


def buffers() -> list[Any]:
    large = np.arange(1 << 22, dtype=np.uint8)
    return [b"{header}", b"small", large, b"", large[: (1 << 20) + 1], b"end", b"."]


def whole(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


def test_file_body_is_sent_from_the_start_each_time(http: ModuleType) -> None:
    """geventhttpclient may repeat a request after the connection was closed while it was sent."""
    sockets = import_module("gevent.socket")
    body = FileBody(buffers())
    assert len(body) == len(whole(buffers()))
    ours, theirs = sockets.socketpair()
    theirs.close()
    with closing(ours), pytest.raises(OSError, match="Broken pipe"):
        ours.sendfile(body)
    for _ in range(2):
        ours, theirs = sockets.socketpair()
        received = bytearray()

        def receive(theirs: Any = theirs, received: bytearray = received) -> None:
            while chunk := theirs.recv(1 << 16):
                received += chunk

        reader = import_module("gevent").spawn(receive)
        with closing(theirs):
            with closing(ours):
                assert ours.sendfile(body) == len(body)
            reader.get()
        assert received == whole(buffers())


def test_payload_of_aiohttp(http: ModuleType) -> None:
    payload = payload_class()(buffers())
    assert payload.size == len(whole(buffers()))
    assert payload_class()([b"a", np.frombuffer("\xe9".encode(), np.uint8)]).decode() == "a\xe9"
    written: list[bytes] = []

    class Writer:
        async def write(self, chunk: Any) -> None:
            assert len(chunk) <= 1 << 20
            written.append(bytes(chunk))

    asyncio.run(payload.write(Writer()))
    asyncio.run(payload.write(Writer()))
    assert b"".join(written) == 2 * whole(buffers())


# --- responses -------------------------------------------------------------------------------


BODY, HEADER_LENGTH = response(FLOATS, FLOATS + 1, bytes_array([b"x", b"\0"]))
HEADERS = {LENGTH: str(HEADER_LENGTH)}
CHUNKED = {**HEADERS, "Transfer-Encoding": "chunked"}


def in_pieces(connection: socket.socket) -> None:
    for i in range(0, len(ANSWER), 50_001):
        connection.sendall(ANSWER[i : i + 50_001])


ANSWERS: dict[str, Any] = {
    "with a length": ANSWER,
    "in pieces": in_pieces,
    "small": answer(FLOATS[:4], FLOATS[:1]),
    "chunked": http_response(chunked(BODY, 70_000), CHUNKED, length=""),
    "until the connection is closed": http_response(BODY, HEADERS, length=""),
    "last of the connection": http_response(BODY, {**HEADERS, "Connection": "close"}),
    "gzip": http_response(gzip.compress(BODY), {**HEADERS, "Content-Encoding": "gzip"}),
    "deflate": http_response(zlib.compress(BODY), {**HEADERS, "Content-Encoding": "deflate"}),
    "JSON": http_response(
        b'{"outputs":[{"name":"OUTPUT0","datatype":"INT8","shape":[2],"data":[1,2]}]}'
    ),
    "truncated header": http_response(BODY[:5], HEADERS, length=len(BODY)),
    "truncated": http_response(BODY[:-1], HEADERS, length=len(BODY)),
    "truncated after the header": http_response(BODY[:HEADER_LENGTH], HEADERS, length=len(BODY)),
    "extreme length": http_response(BODY, HEADERS, length=1 << 62),
    "length of 64 bits": http_response(BODY, HEADERS, length=2**64 - 1),
    "header only": http_response(BODY[:HEADER_LENGTH], HEADERS),
    "header length of the whole body": http_response(BODY, {LENGTH: str(len(BODY))}),
    "header length too large": http_response(BODY, {LENGTH: str(len(BODY) + 1)}),
    "header length 0": http_response(BODY, {LENGTH: "0"}),
    "negative header length": http_response(BODY, {LENGTH: "-5"}),
    "header length that is no number": http_response(BODY, {LENGTH: "x"}),
    "error": http_response(b'{"error":"no such model"}', status="400 Bad Request"),
    "large error": http_response(
        b'{"error":"%b"}' % (b"e" * LARGE), HEADERS, status="500 Internal Server Error"
    ),
    "no response": b"",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_response(http: ModuleType, name: str) -> None:
    """The server closes the connection after the response."""
    both(lambda: exchange(by_http, CALLS["one"], (ANSWERS[name],)))


@pytest.mark.parametrize("name", ["with a length", "chunked", "gzip"])
def test_arrays_are_not_copied_again(http: ModuleType, installed: None, name: str) -> None:
    with Scripted([ANSWERS[name]]) as server, connect(server.address) as client:
        result = client.infer("m", [given(FLOATS[:4])])
        assert np.shares_memory(result.as_numpy("OUTPUT1"), result.as_numpy("OUTPUT1"))


@pytest.mark.parametrize("name", ["with a length", "chunked"])
def test_response_is_read_completely(http: ModuleType, either: bool, name: str) -> None:
    with Scripted([ANSWERS[name]]) as server, connect(server.address) as client:
        received = client._post("v2", b"{}", None, None)
        result = http.InferResult(received, False)
        assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)
        assert received.read() == b""


def test_older_geventhttpclient_returns_bytearrays(
    http: ModuleType, either: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arrays of its responses are writable."""
    monkeypatch.setattr("geventhttpclient.response.copy", lambda data: data[:])
    found = by_http_once(ANSWER)[0]
    assert bits(found) == bits(FLOATS)
    assert found.flags.writeable


@pytest.mark.parametrize("name", ["truncated", "truncated after the header"])
def test_closed_connection_is_an_error_although_the_parser_reports_none(
    http: ModuleType, installed: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The call does not wait for a connection that the server has closed."""
    library = import_module("geventhttpclient.response")
    feed, n_ends = library.HTTPResponse.feed, 0

    def silent_feed(self: Any, data: bytes) -> None:
        nonlocal n_ends
        if data:
            feed(self, data)
            return
        n_ends += 1
        assert n_ends < 5, "receives from a closed connection repeatedly"

    monkeypatch.setattr(library.HTTPResponse, "feed", silent_feed)
    with pytest.raises(library.HTTPConnectionClosed, match=r"after \d+ of \d+ bytes"):
        by_http_once(ANSWERS[name])


def test_connection_is_used_again(http: ModuleType, either: bool) -> None:
    _, requests, n_connections = exchange(by_http, CALLS["twice"], (ANSWER, ANSWER))
    assert len(requests) == 2
    assert n_connections == 1


def test_timeout_while_receiving(http: ModuleType) -> None:
    """The server waits until the client closes the connection."""
    answers = (ANSWER[:-1], ANSWER)
    both(lambda: exchange(by_http, CALLS["one"], answers, network_timeout=0.2)[0])


def test_connection_is_closed_after_an_error(http: ModuleType, either: bool) -> None:
    """It is closed at once, although the exception still refers to the response."""
    with (
        Scripted([ANSWER[:-1], ANSWER]) as server,
        connect(server.address, network_timeout=0.2) as client,
    ):
        with pytest.raises(TimeoutError) as error:
            client.infer("m", [given()])
        assert server.client_has_closed.wait(5)
    assert error.tb is not None


def test_large_response_is_received_into_the_result(http: ModuleType, either: bool) -> None:
    array = np.ones(1 << 22, np.float32)
    large, small = answer(array), answer(FLOATS)
    call = [{"inputs": [given(FLOATS[:4])]}]
    with Scripted([small]) as first, Scripted([large]) as second:
        by_http(first.address, lambda _: call)  # fill caches
        n_copies = peak_nbytes(lambda: by_http(second.address, lambda _: call)) / array.nbytes
    assert n_copies == pytest.approx(1, abs=0.05) if either else n_copies > 1.9


@pytest.fixture(autouse=True)
def without_leftovers() -> Iterator[None]:
    yield
    tritonclient.uninstall()


def test_arrays_are_aligned_views(http: ModuleType, installed: None) -> None:
    (first, second, _) = by_http_once(answer(FLOATS, FLOATS + 1, FLOATS[:1]))
    assert first.base is not None
    assert not first.flags.writeable
    assert second.flags.aligned
    assert tw.Tensor("x", second).datatype == "FP32"


def by_http_once(reply: bytes) -> Any:
    with Scripted([reply]) as server:
        return by_http(server.address, CALLS["one"])[0]
