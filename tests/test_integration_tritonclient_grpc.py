"""Messages and calls of tritonclient.grpc and its aio with and without the integration."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from queue import Queue
from threading import Event
from typing import Any

import numpy as np
import pytest

from interop.samples import DTYPES, binary_sample, bits, bytes_array
from support import tritonclient_comparison as comparison
from support.grpc_scripted_servers import RecordingServer
from support.grpc_scripted_servers import grpc as grpcio
from support.memory import peak_nbytes
from support.protobuf_wire import delimited
from support.tritonclient_calls import (
    ARRAYS,
    GRPC,
    SECONDS,
    STREAMS,
    arrays,
    connect,
    exchange,
    given,
    grpc,
    grpc_answer,
    outcomes,
    service,
)
from support.tritonclient_comparison import FLOATS, LARGE, both, described, large
from tensorwire.grpc_messages import RAW_OUTPUT_CONTENTS
from tensorwire.integrations import tritonclient
from tensorwire.integrations.split import SplitMessage, read_split

pytestmark = comparison.MARKS
either, installed, any_data = comparison.either, comparison.installed, comparison.any_data
without_leftovers = comparison.without_leftovers

with_client = pytest.mark.parametrize("client", GRPC)


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [LARGE, 5 * LARGE])
@with_client
def test_request_above_the_limit_of_the_channel(client: str, limit: int) -> None:
    """The limits are those for sending and receiving."""
    options = [("grpc.max_send_message_length", limit), ("grpc.max_receive_message_length", 99)]
    both(lambda: exchange(client, channel_args=options))


# --- when arrays are read ------------------------------------------------------------------------


def test_async_infer_has_read_the_array_when_it_returns(any_data: None) -> None:
    array, results = FLOATS.copy(), Queue[Any]()
    with RecordingServer(grpc_answer(*ARRAYS)) as server, connect(grpc, server.address) as client:
        client.async_infer("m", [given(grpc, array)], lambda result, error: results.put(error))
        array[:] = 0
        assert results.get(timeout=SECONDS) is None
    assert server.requests[0].endswith(FLOATS.tobytes())


def test_async_stream_infer_has_read_the_array_when_it_returns(any_data: None) -> None:
    """Also if the thread that sends the requests has not taken the request from the queue."""
    array, results, gate = FLOATS.copy(), Queue[Any](), Event()
    reply = grpc_answer(*ARRAYS, client="grpc stream")
    with RecordingServer(reply) as server, connect(grpc, server.address) as client:
        client.start_stream(lambda result, error: results.put(error))
        take = client._stream._get_request

        def take_later() -> Any:
            assert gate.wait(SECONDS)
            return take()

        client._stream._get_request = take_later
        client.async_stream_infer("m", [given(grpc, FLOATS[:1])])  # which the thread waits for
        assert results.get(timeout=SECONDS) is None
        client.async_stream_infer("m", [given(grpc, array)], enable_empty_final_response=True)
        array[:] = 0
        gate.set()
        assert results.get(timeout=SECONDS) is None
        client.stop_stream()
    message = service.ModelInferRequest.FromString(server.requests[1])
    assert message.raw_input_contents == [FLOATS.tobytes()]
    assert message.parameters["triton_enable_empty_final_response"].bool_param


def test_one_input_in_concurrent_requests() -> None:
    """The integration is installed and uninstalled while the requests run."""
    inputs = [given(grpc)]
    with RecordingServer(grpc_answer(*ARRAYS)) as server, connect(grpc, server.address) as client:

        def call(i: int) -> None:
            (tritonclient.install if i % 2 else tritonclient.uninstall)()
            assert bits(client.infer("m", inputs).as_numpy("OUTPUT1")) == bits(ARRAYS[1])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(call, range(40)))
    assert len(server.requests) == 40
    assert len({*server.requests}) == 1


def test_number_of_copies(any_data: bool) -> None:
    """The client has the data and the serialized message. The server has the message twice."""
    array = np.ones(1 << 22, np.float32)

    def call(client: Any) -> None:
        client.infer("m", [given(grpc, array)])
        server.requests.clear()

    with RecordingServer(grpc_answer(*ARRAYS)) as server, connect(grpc, server.address) as client:
        call(client)
        n_copies = peak_nbytes(lambda: call(client)) / array.nbytes
    assert n_copies == pytest.approx(3 if any_data else 4, abs=0.1)


# --- responses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("client", ["grpc infer", "grpc aio stream"])
def test_request_and_response(client: str, datatype: str, is_large: bool) -> None:
    array = large(datatype) if is_large else binary_sample(datatype)

    def calls(api: Any) -> Any:
        inputs = [given(api, each, "x", datatype) for each in (array, array[::-1], array[:0])]
        return [{"inputs": inputs}]

    reply = grpc_answer(array, array[::-1], client=client)
    both(lambda: exchange(client, calls, reply))


def reordered(response: bytes) -> bytes:
    """Return the response with its raw contents before all other fields."""
    message = service.ModelInferResponse.FromString(response)
    raw = b"".join(delimited(6, content) for content in message.raw_output_contents)
    message.ClearField("raw_output_contents")
    return raw + bytes(message.SerializeToString())


def typed() -> bytes:
    message = service.ModelInferResponse()
    message.outputs.add(name="OUTPUT0", datatype="BYTES", shape=[2])
    message.outputs[0].contents.bytes_contents.extend([b"a" * LARGE, b"b"])
    message.outputs.add(name="OUTPUT1", datatype="FP32", shape=[2])
    message.outputs[1].contents.fp32_contents.extend([1, 2])
    return bytes(message.SerializeToString())


WHOLE, SINGLE = grpc_answer(*ARRAYS), grpc_answer(FLOATS)
UNKNOWN = b"\x98\x06\x05"  # field 99
RESPONSES: dict[str, bytes] = {
    "raw contents first": reordered(WHOLE),
    "unknown field": UNKNOWN + WHOLE + UNKNOWN,
    "more raw contents": WHOLE + delimited(6, b"more"),
    "fewer raw contents": SINGLE + delimited(5, delimited(1, b"OUTPUT1"), delimited(2, b"INT8")),
    "output twice": SINGLE + grpc_answer(FLOATS + 1),
    "wrong size": SINGLE + delimited(6, b"abc") + delimited(5, delimited(1, b"OUTPUT1")),
    "shape does not match": reordered(SINGLE).replace(b"\x80\x80\x04", b"\x81\x80\x04"),
    "malformed BYTES": grpc_answer(bytes_array([b"x" * LARGE])).replace(
        b"\x00\x00\x04\x00", b"\x01\x00\x04\x00"
    ),
    "unknown datatype": SINGLE.replace(b"FP32", b"FP99"),
    "typed contents": typed(),
    "no outputs": delimited(6, FLOATS.tobytes()),
    "empty": b"",
    "raw contents that are a number": WHOLE + b"\x30\x05",
    "raw contents in a group": b"\x9b\x06" + WHOLE + b"\x9c\x06",
}
STREAM_RESPONSES: dict[str, bytes] = {
    "error": delimited(1, b"no such model"),
    "long error": delimited(1, b"e" * LARGE),
    "error and response": delimited(1, b"no") + delimited(2, WHOLE),
    "response and error": delimited(2, WHOLE) + delimited(1, b"no"),
    "two responses": delimited(2, WHOLE) + delimited(2, grpc_answer(FLOATS + 2)),
    "two errors": delimited(1, b"no") + delimited(1, b"") + delimited(2, WHOLE),
    "neither": UNKNOWN,
    "unknown field of the stream": UNKNOWN + delimited(2, WHOLE) + UNKNOWN,
    "response that is a number": b"\x10\x05" + delimited(2, WHOLE),
}
# For an error of the parser, the thread of `start_stream` would wait forever.
MALFORMED: dict[str, bytes] = {
    "truncated": WHOLE[:-1],
    "truncated in an output": reordered(WHOLE)[:-5],
    "garbage": b"\xff" * LARGE,
    "name that is not UTF-8": delimited(1, b"\xff") + WHOLE,
    "name that is not UTF-8, after raw contents": WHOLE + delimited(1, b"\xff"),
    "end of a group": WHOLE + b"\x34",
}
MALFORMED_IN_STREAMS: dict[str, bytes] = {
    "error that is not UTF-8": delimited(2, WHOLE) + delimited(1, b"\xff"),
    "truncated message": delimited(2, WHOLE)[:-1],
}


def everything(result: Any) -> Any:
    """Return all that a result has, read in two orders."""
    before = described(arrays(result))
    outputs = [str(result.get_output(name)) for name in ("OUTPUT0", "OUTPUT1", "none such")]
    outputs.append(result.get_output("OUTPUT0", as_json=True))
    whole = result.get_response()
    assert type(whole) is service.ModelInferResponse
    assert result.get_response() is whole
    assert described(arrays(result)) == before
    as_json = result.get_response(as_json=True)
    serialized = whole.SerializeToString(deterministic=True)
    return before, outputs, serialized, str(as_json), str(copy.deepcopy(result).get_response())


def rows(*clients: str, **messages: bytes) -> list[Any]:
    return [
        pytest.param(client, message, id=f"{client}, {name}")
        for client in clients
        for name, message in messages.items()
    ]


def in_stream(responses: dict[str, bytes]) -> dict[str, bytes]:
    return {name: delimited(2, response) for name, response in responses.items()}


@pytest.mark.parametrize(
    ("client", "message"),
    [
        *rows("grpc infer", **RESPONSES, **MALFORMED),
        *rows("grpc stream", "grpc aio stream", **in_stream(RESPONSES), **STREAM_RESPONSES),
        *rows("grpc aio stream", **in_stream(MALFORMED), **MALFORMED_IN_STREAMS),
    ],
)
def test_unusual_response(client: str, message: bytes) -> None:
    both(lambda: exchange(client, answer=message, read=everything))


@pytest.mark.parametrize("name", ["INVALID_ARGUMENT", "UNAVAILABLE"])
@with_client
def test_error_of_the_server(client: str, name: str) -> None:
    def abort(request: bytes, context: Any) -> Any:
        context.abort(grpcio.StatusCode[name], "the reason")

    found = str(both(lambda: exchange(client, answer=abort)))
    assert f"StatusCode.{name}" in found
    assert "the reason" in found


@with_client
def test_timeout(client: str, either: bool) -> None:
    """The details of the error depend on who notices the deadline first."""
    released = Event()

    def wait(request: bytes, context: Any) -> bytes:
        released.wait(SECONDS)
        return b""

    option = "stream_timeout" if client in STREAMS else "client_timeout"
    with RecordingServer(wait) as server:
        found = outcomes(
            client, server.address, lambda api: [{"inputs": [given(api)], option: 0.1}]
        )
        released.set()
    assert "StatusCode.DEADLINE_EXCEEDED" in str(found)


@with_client
def test_arrays_are_views_of_the_response(client: str, installed: None) -> None:
    def read(result: Any) -> None:
        for name in ("OUTPUT0", "OUTPUT1"):
            array = result.as_numpy(name)
            assert np.shares_memory(array, result.as_numpy(name))
            assert not array.flags.writeable
        assert result.get_output("OUTPUT0") == result.get_response().outputs[0]
        assert np.shares_memory(array, result.as_numpy("OUTPUT1"))

    assert exchange(client, read=read).results == described([None])


@with_client
def test_program_changes_the_message_of_a_result(client: str) -> None:
    def read(result: Any) -> Any:
        message = result.get_response()
        message.outputs[0].name = "renamed"
        return result.as_numpy("renamed"), message.ByteSize(), copy.copy(result).get_response().id

    both(lambda: exchange(client, read=read))


def test_message_beside_its_raw_contents() -> None:
    """All that is no field is that of the complete message, also before it is serialized."""
    message = service.ModelInferResponse.FromString(WHOLE)
    for use in (str, copy.copy, copy.deepcopy, lambda split: split.ByteSize()):
        split = read_split(service.ModelInferResponse.FromString, RAW_OUTPUT_CONTENTS, WHOLE)
        assert type(split) is SplitMessage
        split.parameters["later"].bool_param = message.parameters["later"].bool_param = True
        assert use(split) == use(message)
        for serialized in (split.SerializeToString(), split.complete().SerializeToString()):
            assert service.ModelInferResponse.FromString(serialized) == message


@pytest.mark.parametrize("use", [id, str], ids=["not completed", "completed"])
def test_changes_of_a_message_beside_its_raw_contents_are_sent(use: Any) -> None:
    """An assigned field, and raw contents that are added or removed. Others are refused."""
    parse, name = service.ModelInferResponse.FromString, "raw_output_contents"
    split, parameters = read_split(parse, RAW_OUTPUT_CONTENTS, WHOLE), None
    parameters = split.parameters
    use(split)
    split.model_name, parameters["later"].bool_param = "other", True
    sent = parse(split.SerializeToString())
    assert (sent.model_name, sent.parameters["later"].bool_param) == ("other", True)
    for assigned in (name, "unknown", "_parts"):
        with pytest.raises(AttributeError):
            setattr(split, assigned, [])
    split.ClearField(name)
    assert not split.raw_output_contents
    split.raw_output_contents.append(b"more")
    assert list(parse(split.SerializeToString()).raw_output_contents) == [b"more"]
    assert isinstance(split.complete(), service.ModelInferResponse)


def test_message_that_cannot_be_completed_remains_as_it_was() -> None:
    message = service.ModelInferResponse()
    split = SplitMessage(message, [b"", "no buffer"], RAW_OUTPUT_CONTENTS)
    with pytest.raises(TypeError):
        split.complete()
    assert message == service.ModelInferResponse()


# --- what programs do beside the methods of the client -------------------------------------------


def test_request_that_a_program_creates(either: bool) -> None:
    """It is complete, and can be sent through any stub, which returns the generated class."""
    create = import_module("tritonclient.grpc._utils")._get_inference_request
    message = create("m", [given(grpc)], "", "", None, 0, False, False, 0, None, None)
    assert type(message) is service.ModelInferRequest
    assert message.raw_input_contents == [FLOATS.tobytes()]
    methods = import_module("tritonclient.grpc.service_pb2_grpc")
    with (
        RecordingServer(WHOLE) as server,
        connect(grpc, server.address) as client,
        grpcio.insecure_channel(server.address) as channel,
    ):
        client.infer("m", [given(grpc)])
        for stub in (client._client_stub, methods.GRPCInferenceServiceStub(channel)):
            found = [
                stub.ModelInfer(request=message, timeout=SECONDS),
                stub.ModelInfer.future(message).result(),
                stub.ModelInfer.with_call(message)[0],
            ]
            assert {type(each) for each in found} == {service.ModelInferResponse}
            assert found == [found[0]] * 3
        server.answer = delimited(2, WHOLE)
        client.start_stream(lambda result, error: None)
        [streamed] = client._client_stub.ModelStreamInfer(iter([message]))
        assert type(streamed) is service.ModelStreamInferResponse
        assert streamed.infer_response == found[0]
    assert {*server.requests[1:]} == {message.SerializeToString()}


def usable(result: Any) -> Any:
    """Return what a result has, if `get_response` returns the message or an imitation of it."""
    whole = result.get_response()
    assert len(whole.raw_output_contents[0]) == FLOATS.nbytes
    return described(arrays(result)), str(result.get_output("OUTPUT0")), whole.id, str(whole)


@pytest.mark.parametrize("is_installed_first", [True, False])
def test_client_input_and_stream_outlive_the_integration(is_installed_first: bool) -> None:
    """They are created with or without it, and used without or with it."""
    change = tritonclient.uninstall if is_installed_first else tritonclient.install
    (tritonclient.install if is_installed_first else tritonclient.uninstall)()
    results = Queue[Any]()
    with (
        RecordingServer(WHOLE) as server,
        RecordingServer(delimited(2, WHOLE)) as streaming,
        connect(grpc, server.address) as client,
        connect(grpc, streaming.address) as of_stream,
    ):
        inputs = [given(grpc)]
        before = client.infer("m", inputs)
        of_stream.start_stream(lambda result, error: results.put(error or result))
        of_stream.async_stream_infer("m", inputs)
        change()
        of_stream.async_stream_infer("m", inputs)
        for result in (before, client.infer("m", [given(grpc)]), client.infer("m", inputs)):
            assert usable(result) == usable(before)
        for _ in range(2):
            assert usable(results.get(timeout=SECONDS)) == usable(before)
        of_stream.stop_stream()
        of_stream.start_stream(lambda result, error: results.put(error or result))
        of_stream.async_stream_infer("m", [given(grpc)])
        assert usable(results.get(timeout=SECONDS)) == usable(before)
        of_stream.stop_stream()
    assert {*server.requests} == {*streaming.requests}
    assert len({*server.requests}) == 1


@pytest.mark.parametrize("replaced", ["stub", "method", "method by a function"])
def test_stub_of_the_program_gets_messages(installed: None, replaced: str) -> None:
    """A method of the program may have all attributes of the one that it calls."""
    seen: list[Any] = []
    with RecordingServer(WHOLE) as server, connect(grpc, server.address) as client:
        plain = client._client_stub.ModelInfer

        def own(request: Any, **options: Any) -> Any:
            seen.append(type(request))
            return plain(request, **options)

        class Stub:
            __slots__ = ()
            ModelInfer = staticmethod(own)

        class Method:
            __call__ = staticmethod(own)

            def __getattr__(self, name: str) -> Any:
                return getattr(plain, name)

        if replaced == "stub":
            client._client_stub = Stub()
        else:
            client._client_stub.ModelInfer = Method() if replaced == "method" else own
        result = client.infer("m", [given(grpc)])
    assert type(result._result) is service.ModelInferResponse
    assert seen == [service.ModelInferRequest]
    assert server.requests[0].endswith(FLOATS.tobytes())


def test_stub_with_other_serializers(installed: None) -> None:
    with RecordingServer(WHOLE) as server, connect(grpc, server.address) as client:
        method = client._client_stub.ModelInfer
        serialize = method._request_serializer
        method._request_serializer = lambda request: serialize(request) + UNKNOWN
        client.infer("m", [given(grpc)])
    assert server.requests[0].endswith(UNKNOWN)


@with_client
def test_interceptor_gets_messages(
    client: str, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instrumentation of grpcio has interceptors in all channels."""
    seen: list[Any] = []

    def intercept(continuation: Any, details: Any, request: Any) -> Any:
        seen.append(type(request))
        return continuation(details, request)

    class Interceptor(grpcio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        intercept_unary_unary = staticmethod(intercept)

    class AioInterceptor(grpcio.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        async def intercept_unary_unary(self, *arguments: Any) -> Any:
            return await intercept(*arguments)

    plain, aio = grpcio.insecure_channel, grpcio.aio.insecure_channel

    def intercepted(*arguments: Any, **options: Any) -> Any:
        return grpcio.intercept_channel(plain(*arguments, **options), Interceptor())

    monkeypatch.setattr("grpc.insecure_channel", intercepted)
    monkeypatch.setattr("grpc.aio.insecure_channel", partial(aio, interceptors=[AioInterceptor()]))
    found = exchange(client, read=lambda result: bits(result.as_numpy("OUTPUT0")))
    assert found.results == described([bits(FLOATS)])
    assert len(found.requests) == 1
    assert seen == ([] if client in STREAMS else [service.ModelInferRequest])
