"""Whole calls of tritonclient.grpc and tritonclient.grpc.aio with and without the integration."""

from __future__ import annotations

import asyncio
import copy
import queue
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import DTYPES, Array, binary_sample, bits, bytes_array
from support import client_fixtures, tritonclient_comparison
from support.client_fixtures import Certificate
from support.grpc_scripted_servers import RecordingServer, grpc
from support.memory import peak_nbytes
from support.protobuf_wire import delimited
from support.requirements import package
from support.tritonclient_comparison import (
    FLOATS,
    LARGE,
    large,
    module,
    object_array,
    partly_installed,
)
from support.wrappers import Proxy, closure, functools_wrapper, wrapped
from tensorwire.grpc import encode_response, encode_stream_response
from tensorwire.integrations import tritonclient

pytestmark = tritonclient_comparison.MARKS
package("tritonclient.grpc")  # the tables of responses are made with its classes

api = tritonclient_comparison.grpc
either, installed, any_data = (
    tritonclient_comparison.either,
    tritonclient_comparison.installed,
    tritonclient_comparison.any_data,
)  # fixtures
certificate = client_fixtures.certificate

SECONDS = 10


def service() -> ModuleType:
    return import_module("tritonclient.grpc.service_pb2")


def integration() -> ModuleType:
    return import_module("tensorwire.integrations.tritonclient.grpc")


# --- the calls of the clients --------------------------------------------------------------------

Calls = Callable[[Any], Iterable[dict[str, Any]]]


def connect(address: str, **options: Any) -> Any:
    """Return a client for a ``with`` block, which closes it."""
    return closing(module("grpc", "grpc").InferenceServerClient(address, **options))


def by_infer(address: str, calls: Calls, read: Any, **options: Any) -> list[Any]:
    with connect(address, **options) as client:
        return [tried(lambda c: read(client.infer("m", **c)), call) for call in calls(client)]


def by_async_infer(address: str, calls: Calls, read: Any, **options: Any) -> list[Any]:
    done: queue.Queue[Any] = queue.Queue()

    def callback(result: Any, error: Any) -> None:
        done.put((result, error))

    def infer(client: Any, call: dict[str, Any]) -> Any:
        client.async_infer("m", callback=callback, **call)
        return given_to_callback(done, read)

    with connect(address, **options) as client:
        return [tried(infer, client, call) for call in calls(client)]


def by_stream(address: str, calls: Calls, read: Any, **options: Any) -> list[Any]:
    done: queue.Queue[Any] = queue.Queue()

    def callback(result: Any, error: Any) -> None:
        done.put((result, error))

    def infer(client: Any, call: dict[str, Any]) -> Any:
        started = {name: call.pop(name) for name in OF_STREAM if name in call}
        client.start_stream(callback, **started)
        try:
            client.async_stream_infer("m", **call)
            return given_to_callback(done, read)
        finally:
            client.stop_stream()

    with connect(address, **options) as client:
        return [tried(infer, client, call) for call in calls(client)]


def by_aio(address: str, calls: Calls, read: Any, **options: Any) -> list[Any]:
    async def infer() -> Any:
        async with module("grpc.aio", "grpc").InferenceServerClient(address, **options) as client:
            return [await aio_tried(client.infer("m", **call), read) for call in calls(client)]

    return asyncio.run(infer())


def by_aio_stream(address: str, calls: Calls, read: Any, **options: Any) -> list[Any]:
    async def requests(call: dict[str, Any]) -> AsyncIterator[Any]:
        yield {"model_name": "m", **call}

    async def receive(client: Any, call: dict[str, Any]) -> Any:
        started = {name: call.pop(name) for name in OF_STREAM if name in call}
        async for result, error in client.stream_infer(requests(call), **started):
            if error is not None:
                raise error
            return result
        raise AssertionError("the stream has no response")

    async def infer() -> Any:
        async with module("grpc.aio", "grpc").InferenceServerClient(address, **options) as client:
            return [await aio_tried(receive(client, call), read) for call in calls(client)]

    return asyncio.run(infer())


OF_STREAM = ("headers", "compression_algorithm", "stream_timeout")


def given_to_callback(done: queue.Queue[Any], read: Any) -> Any:
    result, error = done.get(timeout=SECONDS)
    if error is not None:
        raise error
    return read(result)


async def aio_tried(call: Any, read: Any) -> Any:
    try:
        result = await call
    except (Exception, asyncio.CancelledError) as error:
        return failure(error)
    return tried(lambda: read(result))


def tried(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or its exception in a form that can be compared."""
    try:
        return call(*arguments)
    except Exception as error:
        return failure(error)


def failure(error: BaseException) -> Any:
    return type(error), re.sub("0x[0-9a-f]+", "ADDRESS", str(error))


def same(call: Callable[[], Any]) -> Any:
    """Return the result of a call, after checking that it is the same with the integration."""
    without = tried(call)
    for change in (tritonclient.install, tritonclient.uninstall):
        change()
        found = tried(call)
        assert found == without, f"{found!r:.999} with tensorwire, {without!r:.999} without"
    return without


CLIENTS: dict[str, Callable[..., Any]] = {
    "infer": by_infer,
    "async_infer": by_async_infer,
    "stream": by_stream,
    "aio": by_aio,
    "aio stream": by_aio_stream,
}
STREAMS = (by_stream, by_aio_stream)


@pytest.fixture(params=CLIENTS)
def infer(request: pytest.FixtureRequest) -> Any:
    return CLIENTS[request.param]


@pytest.fixture(autouse=True)
def without_leftovers() -> Iterator[None]:
    yield
    tritonclient.uninstall()


# --- messages ------------------------------------------------------------------------------------


def given(array: Array = FLOATS, name: str = "x", datatype: str = "FP32") -> Any:
    tensor = module("grpc", "grpc").InferInput(name, list(array.shape), datatype)
    return tensor.set_data_from_numpy(array)


ARRAYS = [FLOATS, FLOATS + 1, bytes_array([b"x", b"\0" * 99]), FLOATS[:2], FLOATS[:0]]


SHAPES = [*(array.shape for array in ARRAYS), None]


def answer(arrays: list[Array], infer: Any = by_infer) -> bytes:
    outputs = [tw.Tensor(f"OUTPUT{i}", array) for i, array in enumerate(arrays)]
    response = tw.InferResponse(outputs, model_name="m", id="7", parameters={"p": 1})
    return (encode_stream_response if infer in STREAMS else encode_response)(response)


def arrays_of(result: Any) -> Any:
    return [described(result.as_numpy(f"OUTPUT{i}")) for i in range(6)]


def described(array: Array | None) -> Any:
    if array is None:
        return None
    values = array.tolist() if array.dtype == object else array.tobytes()
    return type(array), array.dtype, array.shape, array.flags.writeable, values


def canonical(request: bytes) -> bytes:
    """Return a request with its parameters sorted. The order of a protobuf map is arbitrary."""
    message = service().ModelInferRequest.FromString(request)
    canonical: bytes = message.SerializeToString(deterministic=True)
    return canonical


def exchange(
    infer: Callable[..., Any],
    calls: Calls,
    reply: Any = None,
    read: Any = arrays_of,
    **options: Any,
) -> Any:
    """Return the outcomes of the calls, and what the server has received."""
    with RecordingServer(answer(ARRAYS, infer) if reply is None else reply) as server:
        found = infer(server.address, calls, read, **options)
        metadata = [{k: v for k, v in m.items() if k != "user-agent"} for m in server.metadata]
        return found, [canonical(request) for request in server.requests], metadata


# --- requests --------------------------------------------------------------------------------


def several() -> list[Any]:
    words = object_array(["x", b"\0"])
    return [
        given(FLOATS[:4], "a"),
        given(FLOATS, "b"),
        given(np.empty((0, 3), np.float32), "c"),
        given(words, "d", "BYTES"),
        given(FLOATS[::-1], "e"),
        given(np.arange(LARGE), "f", "INT64"),
        given(object_array(["x" * LARGE, b"y"]), "g", "BYTES"),
    ]


def in_shared_memory() -> Any:
    tensor = module("grpc", "grpc").InferInput("s", [4], "FP32")
    return tensor.set_shared_memory("region", 16, offset=64)


def reversed_input() -> Any:
    class Reversed(module("grpc", "grpc").InferInput):  # type: ignore[misc]
        def _get_content(self) -> bytes:
            content = super()._get_content()
            assert type(content) is bytes
            return content[::-1]

    return Reversed("r", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)


def with_content(content: Any) -> Any:
    """Return an input whose data was replaced by the program."""
    tensor = given(FLOATS[:4])
    tensor._raw_content = content
    return tensor


class OwnInput:
    """An input that is no instance of tritonclient's class. Its requests only need two methods."""

    def __init__(self) -> None:
        tensor = given()
        self._get_tensor, self._get_content = tensor._get_tensor, tensor._get_content


def requested() -> list[Any]:
    output = module("grpc", "grpc").InferRequestedOutput
    shared = output("OUTPUT2")
    shared.set_shared_memory("region", 8)
    return [output("OUTPUT1"), output("OUTPUT0", class_count=2), shared]


CALLS: dict[str, Calls] = {
    "one": lambda _: [{"inputs": [given()]}],
    "several": lambda _: [{"inputs": several()}],
    "iterator": lambda _: [{"inputs": iter([given(), given(FLOATS[:4], "y")])}],
    "twice": lambda _: [{"inputs": [given()]}, {"inputs": [given(FLOATS + 2)]}],
    "one input twice": lambda _: [{"inputs": [given()] * 2}],
    "shared memory": lambda _: [{"inputs": [given(), in_shared_memory(), given(FLOATS + 1, "y")]}],
    "only shared memory": lambda _: [{"inputs": [in_shared_memory()]}],
    "no data": lambda _: [{"inputs": [module("grpc", "grpc").InferInput("n", [1], "FP32")]}],
    "outputs": lambda _: [{"inputs": [given()], "outputs": requested(), "timeout": 10**6}],
    "reserved parameter": lambda _: [{"inputs": [given()], "parameters": {"sequence_id": 1}}],
    "wrong parameter": lambda _: [{"inputs": [given()], "parameters": {"a": None}}],
    "text as sequence": lambda _: [
        {"inputs": [given()], "sequence_id": "a", "sequence_end": True, "timeout": 0}
    ],
    "wrong version": lambda _: [{"inputs": [given()], "model_version": 2}],
    "wrong id": lambda _: [{"inputs": [given()], "request_id": 2}],
    "subclass": lambda _: [{"inputs": [given(), reversed_input()]}],
    "own class": lambda _: [{"inputs": [OwnInput(), given()]}],
    "content of the program": lambda _: [{"inputs": [with_content(b"abc"), given()]}],
    "content of another type": lambda _: [{"inputs": [given(), with_content(bytearray(4))]}],
    "no inputs": lambda _: [{"inputs": []}],
    "no list of inputs": lambda _: [{"inputs": None}],
    "no input": lambda _: [{"inputs": ["x"]}],
    "wrong headers": lambda _: [{"inputs": [given()], "headers": {"X-Id": "7"}}],
}
N_REQUESTS = {
    "twice": 2,
    **dict.fromkeys(("reserved parameter", "wrong parameter", "wrong version", "wrong id"), 0),
    **dict.fromkeys(("no list of inputs", "no input", "content of another type"), 0),
    "wrong headers": 0,
}


@pytest.mark.parametrize(
    ("client", "name"),
    [
        *((client, name) for client in ("infer", "aio stream") for name in CALLS),
        *(
            (client, name)
            for client in ("async_infer", "stream", "aio")
            for name in ("several", "shared memory", "subclass")
        ),
    ],
)
def test_request(api: ModuleType, client: str, name: str) -> None:
    """The server receives the same message and metadata, and the outcome is the same."""
    infer = CLIENTS[client]
    found = same(lambda: exchange(infer, CALLS[name]))
    assert len(found[1]) == N_REQUESTS.get(name, 1)


def test_request_has_the_same_bytes(api: ModuleType, infer: Any) -> None:
    received = []
    for is_installed in (False, True):
        (tritonclient.install if is_installed else tritonclient.uninstall)()
        with RecordingServer(answer(ARRAYS, infer)) as server:
            infer(server.address, lambda _: [{"inputs": several(), "request_id": "7"}], arrays_of)
            received += server.requests
    assert received[0] == received[1]
    assert FLOATS.tobytes() in received[0]


def compressed_by(name: str, _: Any) -> list[dict[str, Any]]:
    return [{"inputs": [given()], "compression_algorithm": name}]


def test_compressed_request(api: ModuleType, infer: Any) -> None:
    for name in ("gzip", "deflate", "none such"):
        same(partial(exchange, infer, partial(compressed_by, name)))


@pytest.mark.parametrize("limit", [LARGE, 5 * LARGE])
def test_request_above_the_limit_of_the_channel(api: ModuleType, infer: Any, limit: int) -> None:
    """The limits are those for sending and receiving."""
    options = [("grpc.max_send_message_length", limit), ("grpc.max_receive_message_length", 99)]
    same(lambda: exchange(infer, CALLS["one"], channel_args=options))


def test_verbose_output(
    api: ModuleType, infer: Any, either: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The complete messages are printed."""
    _, requests, _ = exchange(infer, lambda _: [{"inputs": [given(FLOATS + 0.1)]}], verbose=True)
    assert len(tw.grpc.decode_request(requests[0]).inputs) == 1
    printed = capsys.readouterr().out
    assert printed.count("raw_output_contents: ") == len(ARRAYS)
    if infer is not by_aio_stream:  # which does not print the request
        message = service().ModelInferRequest(raw_input_contents=[(FLOATS + 0.1).tobytes()])
        assert str(message) in printed


def test_tls(api: ModuleType, infer: Any, either: bool, certificate: Certificate) -> None:
    """A call after another one uses the same connection."""
    key, chain = Path(certificate.key).read_bytes(), Path(certificate.file).read_bytes()
    credentials = grpc.ssl_server_credentials([(key, chain)])
    options = {"ssl": True, "root_certificates": certificate.file}
    with RecordingServer(answer(ARRAYS, infer), credentials) as server:
        found = infer(server.address, CALLS["twice"], arrays_of, **options)
    assert [[each and each[2] for each in call] for call in found] == [SHAPES] * 2
    assert len(server.requests) == 2


# --- when arrays are read ------------------------------------------------------------------------


def test_async_infer_has_read_the_array_when_it_returns(api: ModuleType, any_data: None) -> None:
    array, results = FLOATS.copy(), queue.Queue[Any]()
    with RecordingServer(answer(ARRAYS)) as server, connect(server.address) as client:
        client.async_infer("m", [given(array)], lambda result, error: results.put(error))
        array[:] = 0
        assert results.get(timeout=SECONDS) is None
    assert server.requests[0].endswith(FLOATS.tobytes())


def test_async_stream_infer_has_read_the_array_when_it_returns(
    api: ModuleType, any_data: None
) -> None:
    """Also if the thread that sends the requests has not taken the request from the queue."""
    array, results, gate = FLOATS.copy(), queue.Queue[Any](), Event()
    with RecordingServer(answer(ARRAYS, by_stream)) as server, connect(server.address) as client:
        client.start_stream(lambda result, error: results.put(error))
        take = client._stream._get_request

        def take_later() -> Any:
            assert gate.wait(SECONDS)
            return take()

        client._stream._get_request = take_later
        client.async_stream_infer("m", [given(FLOATS[:1])])  # what the thread waits for already
        assert results.get(timeout=SECONDS) is None
        client.async_stream_infer("m", [given(array)], enable_empty_final_response=True)
        array[:] = 0
        gate.set()
        assert results.get(timeout=SECONDS) is None
        client.stop_stream()
    message = service().ModelInferRequest.FromString(server.requests[1])
    assert message.raw_input_contents == [FLOATS.tobytes()]
    assert message.parameters["triton_enable_empty_final_response"].bool_param


def test_one_input_in_concurrent_requests(api: ModuleType) -> None:
    """The integration is installed and uninstalled while the requests run."""
    inputs = [given(FLOATS)]
    with RecordingServer(answer(ARRAYS)) as server, connect(server.address) as client:

        def exchange(i: int) -> None:
            (tritonclient.install if i % 2 else tritonclient.uninstall)()
            assert bits(client.infer("m", inputs).as_numpy("OUTPUT1")) == bits(ARRAYS[1])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(exchange, range(40)))
    assert len(server.requests) == 40
    assert len({*server.requests}) == 1


@pytest.mark.parametrize("is_only", [False, True])
def test_each_replacement_works_without_the_others(
    api: ModuleType, infer: Any, is_only: bool
) -> None:
    expected = exchange(infer, CALLS["several"])
    for name in partly_installed(is_only):
        assert exchange(infer, CALLS["several"]) == expected, name


# --- memory --------------------------------------------------------------------------------------


def test_number_of_copies(api: ModuleType, any_data: bool) -> None:
    """The client has the data and the serialized message. The server has the message twice."""
    array = np.ones(1 << 22, np.float32)

    def call(client: Any) -> None:
        client.infer("m", [given(array)])
        server.requests.clear()

    with RecordingServer(WHOLE) as server, connect(server.address) as client:
        call(client)
        n_copies = peak_nbytes(lambda: call(client)) / array.nbytes
    assert n_copies == pytest.approx(3 if any_data else 4, abs=0.1)


# --- responses -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("infer", [by_infer, by_aio_stream])
def test_response(api: ModuleType, infer: Any, datatype: str, is_large: bool) -> None:
    array = large(datatype) if is_large else binary_sample(datatype)
    found = same(lambda: exchange(infer, CALLS["one"], answer([array, array[::-1]], infer)))
    assert [each and each[2] for each in found[0][0]] == [array.shape] * 2 + [None] * 4


def reordered(response: bytes) -> bytes:
    """Return the response with its raw contents before all other fields."""
    message = service().ModelInferResponse.FromString(response)
    raw = b"".join(delimited(6, content) for content in message.raw_output_contents)
    message.ClearField("raw_output_contents")
    return raw + bytes(message.SerializeToString())


def typed() -> bytes:
    message = service().ModelInferResponse()
    message.outputs.add(name="OUTPUT0", datatype="BYTES", shape=[2])
    message.outputs[0].contents.bytes_contents.extend([b"a" * LARGE, b"b"])
    message.outputs.add(name="OUTPUT1", datatype="FP32", shape=[2])
    message.outputs[1].contents.fp32_contents.extend([1, 2])
    return bytes(message.SerializeToString())


WHOLE = answer(ARRAYS)
UNKNOWN = b"\x98\x06\x05"  # field 99
RESPONSES: dict[str, bytes] = {
    "raw contents first": reordered(WHOLE),
    "unknown field": UNKNOWN + WHOLE + UNKNOWN,
    "more raw contents": WHOLE + delimited(6, b"more"),
    "fewer raw contents": answer([FLOATS])
    + delimited(5, delimited(1, b"OUTPUT1"), delimited(2, b"INT8")),
    "output twice": answer([FLOATS]) + answer([FLOATS + 1]),
    "wrong size": answer([FLOATS]) + delimited(6, b"abc") + delimited(5, delimited(1, b"OUTPUT1")),
    "shape does not match": reordered(answer([FLOATS])).replace(b"\x80\x80\x04", b"\x81\x80\x04"),
    "malformed BYTES": answer([bytes_array([b"x" * LARGE])]).replace(
        b"\x00\x00\x04\x00", b"\x01\x00\x04\x00"
    ),
    "unknown datatype": answer([FLOATS]).replace(b"FP32", b"FP99"),
    "typed contents": typed(),
    "no outputs": delimited(6, FLOATS.tobytes()),
    "empty": b"",
    "truncated": WHOLE[:-1],
    "truncated in an output": reordered(WHOLE)[:-5],
    "garbage": b"\xff" * LARGE,
    "name that is not UTF-8": delimited(1, b"\xff") + WHOLE,
    "name that is not UTF-8, after raw contents": WHOLE + delimited(1, b"\xff"),
    "end of a group": WHOLE + b"\x34",
    "raw contents in a group": b"\x9b\x06" + WHOLE + b"\x9c\x06",
    "raw contents that are a number": WHOLE + b"\x30\x05",
}


def everything(result: Any) -> Any:
    """Return all that a result has, read in two orders."""
    arrays = arrays_of(result)
    outputs = [str(result.get_output(name)) for name in ("OUTPUT0", "OUTPUT1", "none such")]
    outputs.append(result.get_output("OUTPUT0", as_json=True))
    whole = result.get_response()
    assert type(whole) is service().ModelInferResponse
    assert result.get_response() is whole
    assert arrays_of(result) == arrays
    as_json = result.get_response(as_json=True)
    serialized = whole.SerializeToString(deterministic=True)
    return arrays, outputs, serialized, str(as_json), str(copy.deepcopy(result).get_response())


MALFORMED = {
    *("truncated", "truncated in an output", "garbage", "end of a group"),
    *("name that is not UTF-8", "name that is not UTF-8, after raw contents"),
    *("error that is not UTF-8", "truncated response"),
}
ROWS = [
    (client, name)
    for client in ("infer", "stream", "aio stream")
    for name in RESPONSES
    if client != "stream" or name not in MALFORMED  # its thread would wait forever
]


@pytest.mark.parametrize(("client", "name"), ROWS)
def test_unusual_response(api: ModuleType, client: str, name: str) -> None:
    infer = CLIENTS[client]
    message = RESPONSES[name]
    reply = delimited(2, message) if infer in STREAMS else message
    same(lambda: exchange(infer, CALLS["one"], reply, everything))


STREAM_RESPONSES: dict[str, bytes] = {
    "error": delimited(1, b"no such model"),
    "long error": delimited(1, b"e" * LARGE),
    "error and response": delimited(1, b"no") + delimited(2, WHOLE),
    "response and error": delimited(2, WHOLE) + delimited(1, b"no"),
    "two responses": delimited(2, WHOLE) + delimited(2, answer([FLOATS + 2])),
    "two errors": delimited(1, b"no") + delimited(1, b"") + delimited(2, WHOLE),
    "neither": UNKNOWN,
    "unknown field": UNKNOWN + delimited(2, WHOLE) + UNKNOWN,
    "error that is not UTF-8": delimited(2, WHOLE) + delimited(1, b"\xff"),
    "truncated": delimited(2, WHOLE)[:-1],
    "truncated response": delimited(2, WHOLE[:-1]),
    "response that is a number": b"\x10\x05" + delimited(2, WHOLE),
}


@pytest.mark.parametrize(
    ("client", "name"),
    [("aio stream", name) for name in STREAM_RESPONSES]
    + [("stream", name) for name in STREAM_RESPONSES if name not in MALFORMED],
)
def test_unusual_response_of_a_stream(api: ModuleType, client: str, name: str) -> None:
    infer = CLIENTS[client]
    same(lambda: exchange(infer, CALLS["one"], STREAM_RESPONSES[name], everything))


@pytest.mark.parametrize("name", ["INVALID_ARGUMENT", "UNAVAILABLE"])
def test_error_of_the_server(api: ModuleType, infer: Any, name: str) -> None:
    def abort(request: bytes, context: Any) -> Any:
        context.abort(grpc.StatusCode[name], "the reason")

    found = same(lambda: exchange(infer, CALLS["one"], abort))
    assert f"StatusCode.{name}" in found[0][0][1]
    assert "the reason" in found[0][0][1]


def test_timeout(api: ModuleType, infer: Any, either: bool) -> None:
    """The details of the error depend on who notices the deadline first."""
    released = Event()

    def wait(request: bytes, context: Any) -> bytes:
        released.wait(SECONDS)
        return b""

    option = "stream_timeout" if infer in STREAMS else "client_timeout"
    with RecordingServer(wait) as server:
        [(_, text)] = infer(
            server.address, lambda _: [{"inputs": [given()], option: 0.1}], arrays_of
        )
        released.set()
    assert "StatusCode.DEADLINE_EXCEEDED" in text


@pytest.mark.parametrize("infer", [by_infer, by_async_infer, by_aio])
def test_unreachable_server(api: ModuleType, infer: Any) -> None:
    with RecordingServer(WHOLE) as server:
        address = server.address
    assert "StatusCode.UNAVAILABLE" in repr(same(lambda: infer(address, CALLS["one"], arrays_of)))


def test_closed_client(api: ModuleType) -> None:
    def call() -> Any:
        client = api.InferenceServerClient("localhost:1")
        client.close()
        return client.infer("m", [given()])

    same(call)


def test_arrays_are_views_of_the_response(api: ModuleType, infer: Any, installed: None) -> None:
    def read(result: Any) -> Any:
        for name in ("OUTPUT0", "OUTPUT1"):
            array = result.as_numpy(name)
            assert np.shares_memory(array, result.as_numpy(name))
            assert not array.flags.writeable
        outputs = result.get_output("OUTPUT0"), result.get_response().outputs[0]
        assert outputs[0] == outputs[1]
        assert np.shares_memory(array, result.as_numpy("OUTPUT1"))

    found, _, _ = exchange(infer, CALLS["one"], read=read)
    assert found == [None]


# --- what programs do beside the methods of the client -------------------------------------------


def message_of(array: Array) -> Any:
    create = import_module("tritonclient.grpc._utils")._get_inference_request
    return create("m", [given(array)], "", "", None, 0, False, False, 0, None, None)


def test_request_that_a_program_creates(api: ModuleType, either: bool) -> None:
    """It is complete, and can be sent through any stub, which returns the generated class."""
    message = message_of(FLOATS)
    assert type(message) is service().ModelInferRequest
    assert message.raw_input_contents == [FLOATS.tobytes()]
    methods = import_module("tritonclient.grpc.service_pb2_grpc")
    with (
        RecordingServer(WHOLE) as server,
        connect(server.address) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        client.infer("m", [given()])
        for stub in (client._client_stub, methods.GRPCInferenceServiceStub(channel)):
            found = [
                stub.ModelInfer(message),
                stub.ModelInfer(request=message, timeout=SECONDS),
                stub.ModelInfer.future(message).result(),
                stub.ModelInfer.with_call(message)[0],
            ]
            assert {type(each) for each in found} == {service().ModelInferResponse}
            assert {each.SerializeToString(deterministic=True) for each in found} == {
                found[0].SerializeToString(deterministic=True)
            }
        server.answer = delimited(2, WHOLE)
        client.start_stream(lambda result, error: None)
        [streamed] = client._client_stub.ModelStreamInfer(iter([message]))
        assert type(streamed) is service().ModelStreamInferResponse
        assert streamed.infer_response == found[0]
    assert {canonical(request) for request in server.requests[1:]} == {
        message.SerializeToString(deterministic=True)
    }


def usable(result: Any) -> Any:
    """Return what a result has, if `get_response` returns the message or an imitation of it."""
    whole = result.get_response()
    assert len(whole.raw_output_contents[0]) == FLOATS.nbytes
    return arrays_of(result), str(result.get_output("OUTPUT0")), whole.id, str(whole)


@pytest.mark.parametrize("is_installed_first", [True, False])
def test_client_input_and_stream_outlive_the_integration(
    api: ModuleType, is_installed_first: bool
) -> None:
    """They are created with or without it, and used without or with it."""
    change = tritonclient.uninstall if is_installed_first else tritonclient.install
    (tritonclient.install if is_installed_first else tritonclient.uninstall)()
    results: queue.Queue[Any] = queue.Queue()
    with (
        RecordingServer(WHOLE) as server,
        RecordingServer(delimited(2, WHOLE)) as streaming,
        connect(server.address) as client,
        connect(streaming.address) as of_stream,
    ):
        inputs = [given()]
        before = client.infer("m", inputs)
        of_stream.start_stream(lambda result, error: results.put((result, error)))
        of_stream.async_stream_infer("m", inputs)
        change()
        of_stream.async_stream_infer("m", inputs)
        for result in (before, client.infer("m", [given()]), client.infer("m", inputs)):
            assert usable(result) == usable(before)
        for _ in range(2):
            result, error = results.get(timeout=SECONDS)
            assert error is None
            assert usable(result) == usable(before)
        of_stream.stop_stream()
        of_stream.start_stream(lambda result, error: results.put((result, error)))
        of_stream.async_stream_infer("m", [given()])
        assert usable(results.get(timeout=SECONDS)[0]) == usable(before)
        of_stream.stop_stream()
    assert {*server.requests} == {*streaming.requests}
    assert len({*server.requests}) == 1


class OtherStub:
    """A program's own stub, which gets messages of the generated class."""

    __slots__ = ("requests", "stub")

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.requests: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stub, name)

    def ModelInfer(self, request: Any, **options: Any) -> Any:
        self.requests.append(request)
        return self.stub.ModelInfer(request, **options)


class OtherMethod:
    """A program's own method of a stub, with all attributes of the one that it calls."""

    def __init__(self, stub: OtherStub) -> None:
        self.stub = stub

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stub.stub.ModelInfer, name)

    def __call__(self, request: Any, **options: Any) -> Any:
        return self.stub.ModelInfer(request, **options)


@pytest.mark.parametrize("replaced", ["the stub", "a method", "a method, by a function"])
def test_stub_of_the_program(api: ModuleType, installed: None, replaced: str) -> None:
    with RecordingServer(WHOLE) as server, connect(server.address) as client:
        stub = OtherStub(copy.copy(client._client_stub))
        if replaced == "the stub":
            client._client_stub = stub
        elif replaced == "a method":
            client._client_stub.ModelInfer = OtherMethod(stub)
        else:
            client._client_stub.ModelInfer = stub.ModelInfer
        result = client.infer("m", [given()])
        assert type(result._result) is service().ModelInferResponse
    assert [type(request) for request in stub.requests] == [service().ModelInferRequest]
    assert stub.requests[0].raw_input_contents == [FLOATS.tobytes()]


def test_stub_with_other_serializers(api: ModuleType, installed: None) -> None:
    with RecordingServer(WHOLE) as server, connect(server.address) as client:
        method = client._client_stub.ModelInfer
        serialize = method._request_serializer
        method._request_serializer = lambda request: serialize(request) + UNKNOWN
        client.infer("m", [given()])
    assert server.requests[0].endswith(UNKNOWN)


def test_interceptor_gets_messages(
    api: ModuleType, infer: Any, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instrumentation of grpcio has interceptors in all channels."""
    seen: list[Any] = []

    def intercept(continuation: Any, details: Any, request: Any) -> Any:
        seen.append(type(request))
        return continuation(details, request)

    class Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        intercept_unary_unary = staticmethod(intercept)

    class AioInterceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        async def intercept_unary_unary(self, *arguments: Any) -> Any:
            return await intercept(*arguments)

    plain, aio = grpc.insecure_channel, grpc.aio.insecure_channel
    monkeypatch.setattr(
        grpc,
        "insecure_channel",
        lambda *a, **k: grpc.intercept_channel(plain(*a, **k), Interceptor()),
    )
    monkeypatch.setattr(
        grpc.aio, "insecure_channel", lambda *a, **k: aio(*a, **k, interceptors=[AioInterceptor()])
    )
    found, requests, _ = exchange(infer, CALLS["one"])
    assert [each and each[2] for each in found[0]] == SHAPES
    assert requests == [requests[0]]
    assert seen == ([] if infer in STREAMS else [service().ModelInferRequest])


@pytest.mark.parametrize("is_first", [True, False], ids=["wrapped first", "wrapped later"])
@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy, closure])
def test_wrapper_gets_messages(api: ModuleType, infer: Any, wrap: Any, is_first: bool) -> None:
    """A wrapper of the function that creates the requests is called as without the integration."""
    module("grpc.aio", "grpc")  # otherwise, `install` imports it, and it imports the wrapper
    seen: list[Any] = []

    def checking(function: Any, count: Callable[[], None]) -> Any:
        def checked(*arguments: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            seen.append((type(found), found.SerializeToString()))
            return found

        return wrap(checked, count)

    if not is_first:
        tritonclient.install()
    with wrapped(
        import_module("tritonclient.grpc._utils"), "_get_inference_request", checking, lambda: None
    ):
        if is_first:
            tritonclient.install()
        _, requests, _ = exchange(infer, CALLS["one"])
        if is_first:
            tritonclient.uninstall()
    assert seen == [(service().ModelInferRequest, requests[0])]
