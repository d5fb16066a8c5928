"""tritonclient.http and tritonclient.utils: bodies, BYTES and shared memory.

Most tests compare what they create, send, receive and read with and without the integration.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import socket
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib import import_module
from pickle import dumps, loads
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import (
    DTYPES,
    JSON_DATATYPES,
    NOT_TEXT,
    TEXTS,
    Array,
    binary_sample,
    bits,
    bytes_array,
    json_sample,
)
from support import client_fixtures
from support import tritonclient_comparison as comparison
from support.client_fixtures import Certificate, chunked
from support.memory import peak_nbytes
from support.servers import Scripted
from support.servers import http as http_response
from support.tritonclient_calls import (
    ARRAYS,
    LENGTH,
    Recording,
    connect,
    exchange,
    given,
    grpc,
    http,
    http_answer,
    one,
    outcomes,
)
from support.tritonclient_comparison import (
    BYTES_ARRAYS,
    FLOATS,
    LARGE,
    Octets,
    Sub,
    body_of,
    both,
    large,
    module,
    object_array,
    outcome,
    parsed,
    response,
)
from support.wrappers import closure, wrapped
from tensorwire.integrations import tritonclient
from tensorwire.integrations.tritonclient.bodies import FileBody, payload_class
from tensorwire.integrations.tritonclient.convert import elements_at

pytestmark = comparison.MARKS
either, installed, any_data = comparison.either, comparison.installed, comparison.any_data
without_leftovers = comparison.without_leftovers
certificate = client_fixtures.certificate

utils, shm = module("utils", "http"), module("utils.shared_memory", "http")
generate = http.InferenceServerClient.generate_request_body
with_datatype = pytest.mark.parametrize("datatype", DTYPES)
with_size = pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])


# --- bodies of requests --------------------------------------------------------------------------


def decoded(array: Array, datatype: str, **options: Any) -> Any:
    body, length, _ = body_of(array, datatype, **options)
    return tw.decode_request(body, length)["INPUT0"].as_numpy()


@with_size
@with_datatype
def test_request(datatype: str, is_large: bool) -> None:
    """tensorwire reads it."""
    array = large(datatype) if is_large else binary_sample(datatype)
    for each in (array, array[::-1], array[:0].reshape(2, 0), array[:, None].T):
        both(body_of, each, datatype)
        assert bits(decoded(each, datatype)) == bits(each)
    both(lambda: body_of(array[:7], datatype, binary_data=False))
    if datatype in JSON_DATATYPES:
        sample = json_sample(datatype)
        assert bits(decoded(sample, datatype, binary_data=False)) == bits(sample)


OTHER_ARRAYS = {
    "big-endian": FLOATS.astype(">f4"),
    "another datatype": FLOATS.astype(np.float64),
    "masked": np.ma.masked_array(FLOATS, FLOATS > 3, fill_value=7),
    "subclass": FLOATS.view(Sub),
    "0-d": np.array(1, np.float32),
    "repeated": np.broadcast_to(np.float32(1), LARGE),
    "U": FLOATS.astype("U"),
}


@pytest.mark.parametrize("name", OTHER_ARRAYS)
def test_request_of_other_arrays(name: str) -> None:
    both(body_of, OTHER_ARRAYS[name], "FP32")
    both(body_of, OTHER_ARRAYS[name], "BF16")  # which older clients create from float32


@pytest.mark.parametrize("value", [None, [1.0], b"abcd", memoryview(b"abcd"), np.float32(1)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16", "none such"])
@pytest.mark.parametrize("is_binary", [True, False, None], ids=["binary", "JSON", "gRPC"])
def test_request_of_objects_that_are_not_arrays(
    datatype: str, value: Any, is_binary: bool | None
) -> None:
    options = () if is_binary is None else (is_binary,)
    api = grpc if is_binary is None else http
    both(lambda: api.InferInput("x", [1], datatype).set_data_from_numpy(value, *options))


@pytest.mark.parametrize("shape", [[4], (4,), [np.int64(4)], [4.0], [True], ["4"], [4, 1], 4, None])
@pytest.mark.parametrize(("api", "data"), [(http, "_raw_data"), (grpc, "_raw_content")])
def test_shapes_and_parameters_when_data_is_set(api: Any, data: str, shape: Any) -> None:
    """The parameters of shared memory are removed, and others are kept in their order."""

    def set_data(datatype: str, array: Array) -> Any:
        tensor = api.InferInput("x", [1], datatype)
        tensor.set_shared_memory("region", 4, 8)
        tensor.set_shape(shape)
        try:
            tensor.set_data_from_numpy(array)
        finally:
            found = outcome(tensor._get_tensor)
        return str(found), getattr(tensor, data)

    for array in (FLOATS[:4], FLOATS[:4].astype(">f4"), FLOATS[:1], FLOATS[:1].astype(bool)):
        both(set_data, "FP32", array)
        both(set_data, "BOOL", array)
    both(set_data, "BYTES", object_array(["a", "b", "c", "d"]))
    both(set_data, "BYTES", object_array(["a", 1, None, 2.5]))


def test_data_set_repeatedly(either: bool) -> None:
    """The last call determines the data, in binary or JSON form."""
    tensor = given(http)
    tensor.set_data_from_numpy(FLOATS + 1)
    body, length = generate([tensor])
    assert body[length:] == (FLOATS + 1).tobytes()
    assert type(body) is bytes
    tensor.set_data_from_numpy(FLOATS, binary_data=False)
    assert generate([tensor])[1] is None
    tensor.set_shape([2]).set_data_from_numpy(FLOATS[:2])
    body, length = generate([tensor])
    assert body[length:] == FLOATS[:2].tobytes()
    assert tensor._data is None  # the list of the JSON form is released


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: loads(dumps(x))])
@pytest.mark.parametrize(("api", "data"), [(http, "_get_binary_data"), (grpc, "_get_content")])
def test_inputs_and_results_can_be_copied(
    any_data: None, api: Any, data: str, copied: Callable[[Any], Any]
) -> None:
    """An input can also be pickled for a process without the integration."""
    tensor = given(api)
    assert b"tensorwire" not in dumps(tensor)
    assert (repr(type(tensor)), type(tensor).__doc__) == (
        repr(api.InferInput),
        api.InferInput.__doc__,
    )
    found = copied(tensor)
    assert type(found) is api.InferInput
    assert str(found._get_tensor()) == str(tensor._get_tensor())
    assert getattr(found, data)() == FLOATS.tobytes()
    result = parsed(*response(FLOATS))
    assert bits(copied(result).as_numpy("OUTPUT0")) == bits(FLOATS)


# --- additional types ----------------------------------------------------------------------------

VALUES = [["a", "\xe9"], ["", "\U0001f600"]]
TEXT_ARRAYS: dict[str, Any] = {
    "U": np.array(VALUES),
    "U, big-endian": np.array(VALUES, ">U3"),
    "U, transposed": np.array(VALUES).T,
    "U, empty": np.empty((2, 0), "U1"),
    "StringDType": np.array(VALUES, np.dtypes.StringDType()),
    "BytesArray": tw.Tensor("x", VALUES).data,
    "BytesArray, empty": tw.decode_bytes(b"").reshape((2, 0)),
}


@pytest.mark.parametrize("name", TEXT_ARRAYS)
def test_additional_bytes_types(installed: None, name: str) -> None:
    """The result is the same as for an object array of the elements."""
    values = TEXT_ARRAYS[name]
    plain = values.as_numpy() if isinstance(values, tw.BytesArray) else values.astype(object)
    for is_binary in (True, False):
        found = body_of(values, "BYTES", binary_data=is_binary)
        assert found == body_of(plain, "BYTES", binary_data=is_binary)
    assert bits(utils.serialize_byte_tensor(values)) == bits(utils.serialize_byte_tensor(plain))
    content = given(grpc, values, "x", "BYTES")._get_content()
    assert (type(content), content) == (bytes, tw.encode_bytes(values))
    for api in (http, grpc):
        with pytest.raises(utils.InferenceServerException, match=r"shape \[2, \d\], expected \[3"):
            given(api, values, "x", "BYTES", [3])


# --- bodies of responses -------------------------------------------------------------------------


def output(body: Any, length: Any, name: str = "OUTPUT0", encoding: str | None = None) -> Any:
    """Return an output, read as programs read it."""
    return parsed(body, length, encoding).as_numpy(name)


@with_size
@with_datatype
def test_response(datatype: str, is_large: bool) -> None:
    array = large(datatype) if is_large else binary_sample(datatype)
    body, length = response(array, array[::-1], align=1)
    for received in (body, bytearray(body)):
        for name in ("OUTPUT0", "OUTPUT1", "none such"):
            both(output, received, length, name)
    both(output, body, str(length))
    assert bits(output(body, length)) == bits(array)


@pytest.mark.parametrize("cut", [1, 3, 4, LARGE, LARGE + 50, 2 * LARGE + 20, 2 * LARGE + 150])
@pytest.mark.parametrize("is_late", [False, True])
def test_malformed_response(cut: int, is_late: bool) -> None:
    body, length = response(FLOATS, bytes_array([b"abc"] * (LARGE // 7)))
    damaged = body[cut:] if is_late else body[:-cut]
    for name in ("OUTPUT0", "OUTPUT1"):
        both(output, damaged, length, name)


@pytest.mark.parametrize("length", [None, 0, -1, -5, 5, 10**9, "64", "abc", "", b"64", 64.0])
@pytest.mark.parametrize("array", [FLOATS, FLOATS[:4]], ids=["large", "small"])
def test_wrong_header_length(array: Array, length: Any) -> None:
    both(output, response(array)[0], length)


@pytest.mark.parametrize("kind", [bytearray, memoryview, np.array, str, lambda body: None])
def test_body_of_other_buffer_types(kind: Callable[[Any], Any]) -> None:
    body, length = response(FLOATS)
    both(output, kind(body), length)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", bytes), ("gzip", bytes)],
)
def test_compressed_response(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    for array in (FLOATS, FLOATS[:4]):
        body, length = response(array, array)
        both(output, pack(body), length, "OUTPUT1", encoding)


def test_subclass_with_its_own_constructor() -> None:
    """It reads `bytes` from the response."""

    class Result(http.InferResult):  # type: ignore[misc, name-defined]
        def __init__(self, response: Any, verbose: bool) -> None:
            length = int(response.get("Inference-Header-Content-Length"))
            self.parts = response.read(length=length), response.read()

    body, length = response(FLOATS)
    both(lambda: Result.from_response_body(body, False, length).parts)


def test_arrays_of_a_writable_body_are_copies(either: bool) -> None:
    """As without the integration, the caller may reuse the buffer and owns each array."""
    body, length = response(FLOATS, FLOATS)
    received = bytearray(body)
    result = parsed(received, length)
    received[:] = bytes(len(received))
    first = result.as_numpy("OUTPUT0")
    first[:] = 0
    assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)


def test_response_is_not_copied(either: bool) -> None:
    array = np.ones(1 << 22, np.float32)
    read = partial(output, *response(array, array), "OUTPUT1")
    read()  # fill caches
    assert peak_nbytes(read) / array.nbytes == pytest.approx(0 if either else 3, abs=0.01)


ANSWER = http_answer(*ARRAYS)


# --- requests that are sent ----------------------------------------------------------------------


@pytest.mark.parametrize("is_installed", [False, True])
@pytest.mark.parametrize("wrap", [lambda function, _: function, closure])
def test_positional_arguments(wrap: Any, is_installed: bool) -> None:
    """All arguments can be positional, including the compression; also those of a wrapper."""
    with wrapped(http.InferenceServerClient, "infer", wrap, lambda: None):
        if is_installed:
            tritonclient.install()
        with Recording([ANSWER]) as server, connect(http, server.address) as client:
            options = ("", None, "7", 0, False, False, 0, None, None, None, "gzip", None, None)
            client.infer("m", [given(http)], *options)
        tritonclient.uninstall()
    [(_, headers, body)] = server.requests
    assert ("Content-Encoding", "gzip") in headers
    assert body.endswith(FLOATS.tobytes())


def test_async_infer_has_read_the_array_when_it_returns(any_data: None) -> None:
    sent = FLOATS.copy()
    with Recording([ANSWER]) as server, connect(http, server.address) as client:
        tensor = given(http, sent)
        handle = client.async_infer("m", [tensor])
        sent[:] = 0
        tensor.set_data_from_numpy(FLOATS + 1)
        assert bits(handle.get_result().as_numpy("OUTPUT0")) == bits(FLOATS)
    assert server.requests[0][2].endswith(FLOATS.tobytes())


def test_redirected_request_has_the_same_body(either: bool) -> None:
    """Only aiohttp follows redirects, for which it sends the body again."""
    moved = http_response(b"", {"Location": "/v2/models/m/infer"}, "307 Temporary Redirect")
    _, requests, _ = exchange("http aio", answer=[moved, ANSWER])
    first, second = (body for _, _, body in requests)
    assert first == second
    assert first.endswith(FLOATS.tobytes())


def test_tls(either: bool, certificate: Certificate) -> None:
    options = {"ssl": True, "ssl_options": {"ca_certs": certificate.file}}
    with client_fixtures.TlsScripted([ANSWER, ANSWER], certificate) as server:
        found = outcomes("http infer", server.address, lambda api: one(api) * 2, **options)
    assert [bits(result[0]) for result in found] == [bits(FLOATS)] * 2
    assert server.n_connections == 1


@pytest.mark.parametrize(
    ("client", "n_copies"), [("http infer", 2), ("http async_infer", 2), ("http aio", 1)]
)
def test_large_request_is_not_copied(either: bool, client: str, n_copies: int) -> None:
    tensor = given(http, np.ones(1 << 22, np.float32))
    reply = http_answer(FLOATS[:4])
    with Scripted([reply, reply]) as server:
        call = partial(outcomes, client, server.address)
        call(one)  # fill caches
        nbytes = peak_nbytes(lambda: call(lambda _: [{"inputs": [tensor]}]))
    found = nbytes / (1 << 24)
    # asyncio may copy the piece that the socket does not take at once.
    assert found < 0.3 if either else found > n_copies - 0.1


# --- bodies for the HTTP libraries ---------------------------------------------------------------

MANY_BYTES = np.arange(1 << 22, dtype=np.uint8)
PARTS: list[Any] = [
    *(b"{header}", b"small", MANY_BYTES, b"", MANY_BYTES[: (1 << 20) + 1], b"end", b"."),
]
WHOLE = b"".join(map(bytes, PARTS))


def test_file_body_is_sent_from_the_start_each_time() -> None:
    """geventhttpclient may repeat a request after the connection was closed while it was sent."""
    sockets = import_module("gevent.socket")
    body = FileBody(PARTS)
    assert len(body) == len(WHOLE)
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
        assert received == WHOLE


def test_payload_of_aiohttp() -> None:
    payload = payload_class()(PARTS)
    assert payload.size == len(WHOLE)
    assert payload_class()([b"a", np.frombuffer("\xe9".encode(), np.uint8)]).decode() == "a\xe9"
    written: list[bytes] = []

    class Writer:
        async def write(self, chunk: Any) -> None:
            assert len(chunk) <= 1 << 20
            written.append(bytes(chunk))

    asyncio.run(payload.write(Writer()))
    asyncio.run(payload.write(Writer()))
    assert b"".join(written) == 2 * WHOLE


# --- responses that are received -----------------------------------------------------------------

BODY, HEADER_LENGTH = response(*ARRAYS)
HEADERS = {LENGTH: str(HEADER_LENGTH)}


def in_pieces(connection: socket.socket) -> None:
    for i in range(0, len(ANSWER), 50_001):
        connection.sendall(ANSWER[i : i + 50_001])


def with_header_length(length: object) -> bytes:
    return http_response(BODY, {LENGTH: str(length)})


ANSWERS: dict[str, Any] = {
    "with a length": ANSWER,
    "in pieces": in_pieces,
    "small": http_answer(FLOATS[:4], FLOATS[:1]),
    "chunked": http_response(
        chunked(BODY, 70_000), {**HEADERS, "Transfer-Encoding": "chunked"}, length=""
    ),
    "until the connection is closed": http_response(BODY, HEADERS, length=""),
    "last of the connection": http_response(BODY, {**HEADERS, "Connection": "close"}),
    "gzip": http_response(gzip.compress(BODY), {**HEADERS, "Content-Encoding": "gzip"}),
    "deflate": http_response(zlib.compress(BODY), {**HEADERS, "Content-Encoding": "deflate"}),
    "truncated header": http_response(BODY[:5], HEADERS, length=len(BODY)),
    "truncated": http_response(BODY[:-1], HEADERS, length=len(BODY)),
    "truncated after the header": http_response(BODY[:HEADER_LENGTH], HEADERS, length=len(BODY)),
    "extreme length": http_response(BODY, HEADERS, length=1 << 62),
    "length of 64 bits": http_response(BODY, HEADERS, length=2**64 - 1),
    "header only": http_response(BODY[:HEADER_LENGTH], HEADERS),
    "header length of the whole body": with_header_length(len(BODY)),
    "header length too large": with_header_length(len(BODY) + 1),
    "header length 0": with_header_length(0),
    "negative header length": with_header_length(-5),
    "header length that is no number": with_header_length("x"),
    "error": http_response(b'{"error":"no such model"}', status="400 Bad Request"),
    "large error": http_response(
        b'{"error":"%b"}' % (b"e" * LARGE), HEADERS, status="500 Internal Server Error"
    ),
    "no response": b"",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_received_response(name: str) -> None:
    """The server closes the connection after the response."""
    both(lambda: exchange("http infer", answer=[ANSWERS[name]]))


def received(answer: bytes, read: Any = lambda result: result.as_numpy("OUTPUT0")) -> Any:
    """Return what is read from the result of one call."""
    with Scripted([answer]) as server, connect(http, server.address) as client:
        return read(client.infer("m", [given(http, FLOATS[:4])]))


@pytest.mark.parametrize("name", ["with a length", "chunked", "gzip"])
def test_arrays_are_aligned_views(installed: None, name: str) -> None:
    def check(result: Any) -> None:
        array = result.as_numpy("OUTPUT1")
        assert np.shares_memory(array, result.as_numpy("OUTPUT1"))
        assert not array.flags.writeable
        assert array.flags.aligned

    received(ANSWERS[name], check)


@pytest.mark.parametrize("name", ["with a length", "chunked"])
def test_response_is_read_completely(either: bool, name: str) -> None:
    with Scripted([ANSWERS[name]]) as server, connect(http, server.address) as client:
        response = client._post("v2", b"{}", None, None)
        result = http.InferResult(response, False)
        assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)
        assert response.read() == b""


def test_older_geventhttpclient_returns_bytearrays(
    either: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arrays of its responses are writable."""
    monkeypatch.setattr("geventhttpclient.response.copy", lambda data: data[:])
    found = received(ANSWER)
    assert bits(found) == bits(FLOATS)
    assert found.flags.writeable


@pytest.mark.parametrize("name", ["truncated", "truncated after the header"])
def test_closed_connection_is_an_error_although_the_parser_reports_none(
    installed: None, monkeypatch: pytest.MonkeyPatch, name: str
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
        received(ANSWERS[name])


def test_connection_is_closed_after_a_timeout(either: bool) -> None:
    """It is closed at once, although the exception still refers to the response."""
    with (
        Scripted([ANSWER[:-1], ANSWER]) as server,
        connect(http, server.address, network_timeout=0.2) as client,
    ):
        with pytest.raises(TimeoutError) as error:
            client.infer("m", [given(http)])
        assert server.client_has_closed.wait(5)
    assert error.tb is not None


def test_large_response_is_received_into_the_result(either: bool) -> None:
    answer = http_answer(np.ones(1 << 22, np.float32))
    received(ANSWER)  # fill caches
    n_copies = peak_nbytes(lambda: received(answer)) / (1 << 24)
    assert n_copies == pytest.approx(1, abs=0.05) if either else n_copies > 1.9


# --- BYTES ---------------------------------------------------------------------------------------


class Text(str):
    def __str__(self) -> str:
        return "a text"


class Unprintable:
    def __str__(self) -> str:
        raise LookupError("has no text")


ODD: list[Any] = [
    *(1, 2.5, None, True, 10**30, float("nan"), (1, "a"), {"a": 1}, bytearray(b"ab"), print),
    *(Text("b"), Octets(b"c"), np.str_("n"), np.bytes_(b"m"), np.float32(0.1), np.int8(-1)),
    *("\ud800", "a\udfffb", Unprintable(), np.zeros(0), np.array([1, 2])),
]


OTHER_OBJECTS = {str(x): x for x in (b"ab", [b"a"], None, np.bytes_(b"a"), np.float32(1), 5)}


@pytest.mark.parametrize("name", [*BYTES_ARRAYS, *OTHER_OBJECTS])
def test_serialize(name: str) -> None:
    both(lambda: utils.serialize_byte_tensor((BYTES_ARRAYS | OTHER_OBJECTS)[name]))


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("before", [[], [b"a", "b"]], ids=["alone", "after others"])
def test_serialize_other_elements(before: list[Any], value: Any) -> None:
    array = object_array([*before, value, "c"])
    both(lambda: utils.serialize_byte_tensor(array))


WIRE = tw.encode_bytes([*TEXTS, NOT_TEXT, b"x" * 300])
BUFFERS: dict[str, Any] = {
    "bytes": WIRE,
    "bytearray": bytearray(WIRE),
    "memoryview": memoryview(WIRE),
    "slice": memoryview(b"?" + WIRE + b"?")[1:-1],
    "array": np.frombuffer(WIRE, np.uint8),
    "empty": b"",
    "empty memoryview": memoryview(b""),
    "empty array": np.empty(0, np.uint8),
    "int8": np.frombuffer(WIRE, np.int8),
    "chars": memoryview(WIRE).cast("c"),
    "words": np.frombuffer(WIRE[:16], np.uint32),
    "0-d": np.array(5, np.uint8),
    "2-d": np.frombuffer(WIRE[:16], np.uint8).reshape(4, 4),
    "2-d, whole elements": np.frombuffer(tw.encode_bytes([b"abcd"] * 2), np.uint8).reshape(4, 4),
    "strided": memoryview(WIRE)[::2],
    "strided array": np.repeat(np.frombuffer(WIRE, np.uint8), 2)[::2],
    "str": "abcd",
    "list": [1, 0, 0, 0, 65],
    "None": None,
    "object array": np.array([b"\1\0\0\0a"], object),
    "S array": np.array([b"\1\0\0\0a"]),
    "subclass": Octets(WIRE),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_deserialize(name: str) -> None:
    both(lambda: utils.deserialize_bytes_tensor(BUFFERS[name]))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_deserialize_truncated(kind: type) -> None:
    cuts = [kind(WIRE[:n]) for n in range(len(WIRE))]
    both(lambda: [outcome(partial(utils.deserialize_bytes_tensor, cut)) for cut in cuts])


# --- shared memory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "shape", "offset"),
    [
        *((datatype, [2, 2], 3) for datatype in (np.object_, np.dtype(object), np.bytes_)),
        *((np.object_, shape, 3) for shape in ((4,), [1], [7], [2, np.int64(2)], np.array([4]))),
        *((np.object_, shape, 3) for shape in ([8], [1 << 40], [1 << 62, 4], [])),
        *((np.object_, shape, 3) for shape in ([0], [2, 0], [-1], [-2, -2], [4.0], 4, "4")),
        *((np.object_, [1], offset) for offset in (0, 7, 40, 1 << 40, -1, -8, -100, 3.0, None)),
        (np.uint8, [4], 3),
        (np.float32, [2], 4),
    ],
)
def test_read_shared_memory(datatype: Any, shape: Any, offset: Any) -> None:
    """The region is larger than the elements, which begin at its byte 3."""
    wire = tw.encode_bytes([b"a", b"", b"b\0", b"\xff", b"", b"", b""])
    region = bytearray(b"???" + wire + b"\xff\xff\xff\xff")
    handle = SimpleNamespace(_mpsm_handle=SimpleNamespace(buf=memoryview(region)))
    both(lambda: shm.get_contents_as_numpy(handle, datatype, shape, offset))


def test_other_bytes_after_the_elements_in_shared_memory() -> None:
    """The function of tritonclient, which takes longer, is not needed."""
    region = memoryview(bytearray(b"???" + tw.encode_bytes([b"a", b"", b"c"]) + b"\xff" * 4))
    assert elements_at(region, [2, 1], 3).tolist() == [[b"a"], [b""]]
