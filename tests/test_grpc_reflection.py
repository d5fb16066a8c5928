"""The gRPC reflection service, called by the client of grpcio-reflection and by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tensorwire as tw
from support.protobuf_wire import delimited, integer
from support.requirements import optional, package
from tensorwire._codec.protobuf_writer import write_message
from tensorwire.grpc_messages import INFERENCE_FILE, SERVICE, blocks_of

grpc = package("grpc")

from support.grpc_served_app import ServedApp, message, served_app  # noqa: E402
from tensorwire.server import Model, create_app  # noqa: E402
from tensorwire.server.grpc import (  # noqa: E402
    HEALTH_FILE,
    HEALTH_SERVICE,
    MAX_SMALL_NBYTES,
    SERVING,
)
from tensorwire.server.reflection import (  # noqa: E402
    FILE,
    SERVICES,
    Reflection,
    symbols_of,
)

model_config_pb2 = optional("tritonclient.grpc.model_config_pb2")
pb = optional("tritonclient.grpc.service_pb2")
descriptor_pb2 = optional("google.protobuf.descriptor_pb2")
descriptor_pool = optional("google.protobuf.descriptor_pool")
message_factory = optional("google.protobuf.message_factory")
reflection = optional("grpc_reflection.v1alpha.proto_reflection_descriptor_database")

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
Code = grpc.StatusCode
FILES = (INFERENCE_FILE, HEALTH_FILE)
FILE_BY_NAME, SYMBOL, EXTENSION, EXTENSION_NUMBERS, LIST = 3, 4, 5, 6, 7  # fields of a request
LIST_SERVICES = delimited(LIST)
MAX_NBYTES = MAX_SMALL_NBYTES + len("echo")


@pytest.fixture(scope="module")
def server() -> Iterator[ServedApp]:
    echo = Model(lambda request: tw.InferResponse(request.inputs), in_event_loop=True)
    with served_app(create_app({"echo": echo})) as found:
        yield found


def ask(server: ServedApp, *sent: bytes, service: str = SERVICES[0]) -> list[bytes]:
    method = server.channel.stream_stream(f"/{service}/ServerReflectionInfo")
    return list(method(iter(sent), timeout=10))


# --- descriptors ---------------------------------------------------------------------------------


def describe_file(file: dict[str, Any]) -> bytes:
    return write_message(file, FILE)


def described(file: Any) -> Any:
    found = descriptor_pb2.FileDescriptorProto.FromString(describe_file(file))
    assert found.SerializeToString() == describe_file(file)
    return found


def test_messages_are_those_of_triton() -> None:
    """Each field has the same name, number, type, label and oneof."""
    theirs = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(theirs)
    config = descriptor_pb2.FileDescriptorProto()
    model_config_pb2.DESCRIPTOR.CopyToProto(config)
    theirs.message_type.extend(config.message_type)
    ours = described(INFERENCE_FILE)
    assert (ours.package, ours.syntax) == (theirs.package, theirs.syntax)
    n_compared = compare(ours.message_type, theirs.message_type)
    assert n_compared == len(blocks_of(INFERENCE_FILE, "message"))
    assert list(ours.enum_type) == [enum for enum in config.enum_type if enum.name == "DataType"]


def compare(ours: Any, theirs: Any) -> int:
    """Compare messages and the messages in them. Return their number."""
    by_name = {message.name: message for message in theirs}
    n = 0
    for message_type in ours:
        other = by_name[message_type.name]
        fields = {field.name: field for field in other.field}
        for field in message_type.field:
            assert field == fields[field.name], (message_type.name, field.name)
        if message_type.name.startswith(("Infer", "ModelInfer", "ModelStream")):
            assert len(message_type.field) == len(other.field)
        if message_type.name != "ModelConfig":  # the fields of its oneof are not declared
            assert message_type.oneof_decl == other.oneof_decl
        assert message_type.options == other.options
        n += 1 + compare(message_type.nested_type, other.nested_type)
    return n


def test_methods_are_those_of_triton() -> None:
    theirs = descriptor_pb2.ServiceDescriptorProto()
    pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].CopyToProto(theirs)
    for method in theirs.method:
        method.ClearField("options")
    [ours] = described(INFERENCE_FILE).service
    assert ours.name == theirs.name
    by_name = {method.name: method for method in theirs.method}
    assert all(method == by_name[method.name] for method in ours.method)


@pytest.mark.parametrize("file", FILES, ids=["inference", "health"])
def test_server_has_the_described_methods(server: ServedApp, file: Any) -> None:
    [service] = file["service"]
    for name in (*(rpc["name"] for rpc in service["rpc"]), "Other"):
        method = server.channel.stream_stream(f"/{service['full_name']}/{name}")
        try:
            next(method(iter([b""]), timeout=10), None)
        except grpc.RpcError as error:
            assert (error.code() is Code.UNIMPLEMENTED) == (name == "Other")
        else:
            assert name != "Other"


@pytest.mark.parametrize("file", FILES, ids=["inference", "health"])
def test_symbols(file: Any) -> None:
    """The file is known by each name that it declares, as protobuf forms them."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described(file))
    found = pool.FindFileByName(file["name"])

    def names(message_type: Any) -> Iterator[str]:
        yield message_type.full_name
        for field in (*message_type.fields, *message_type.oneofs):
            yield f"{message_type.full_name}.{field.name}"
        for enum in message_type.enum_types:
            yield enum.full_name
            yield from (f"{message_type.full_name}.{value.name}" for value in enum.values)
        for nested in message_type.nested_types:
            yield from names(nested)

    declared = [name for message in found.message_types_by_name.values() for name in names(message)]
    for name in declared:
        assert pool.FindFileContainingSymbol(name) is found
    for enum in found.enum_types_by_name.values():
        declared += [enum.full_name, *(f"{found.package}.{value.name}" for value in enum.values)]
    [service] = found.services_by_name.values()
    declared += [service.full_name, *(method.full_name for method in service.methods)]
    assert sorted(symbols_of(file)) == sorted(declared)


# --- the service ---------------------------------------------------------------------------------


def test_client_without_generated_classes(server: ServedApp) -> None:
    """It makes the classes from what the server tells, and calls models with them."""
    database = reflection.ProtoReflectionDescriptorDatabase(server.channel)
    assert database.get_services() == [SERVICE, HEALTH_SERVICE]
    pool = descriptor_pool.DescriptorPool(database)
    classes = message_factory.GetMessageClass

    def call(name: str, fields: dict[str, Any]) -> Any:
        service, _, method = name.rpartition(".")
        types = pool.FindServiceByName(service).methods_by_name[method]
        response = server.channel.unary_unary(
            f"/{service}/{method}",
            classes(types.input_type).SerializeToString,
            classes(types.output_type).FromString,
        )
        return response(classes(types.input_type)(**fields), timeout=10)

    assert call(f"{SERVICE}.ServerLive", {}).live
    assert call(f"{SERVICE}.ServerMetadata", {}).name == "tensorwire"
    assert call(f"{SERVICE}.ModelMetadata", {"name": "echo"}).versions == ["1"]
    assert [model.name for model in call(f"{SERVICE}.RepositoryIndex", {}).models] == ["echo"]
    x = {"name": "x", "datatype": "FP32", "shape": [2], "contents": {"fp32_contents": [1, 2]}}
    response = call(f"{SERVICE}.ModelInfer", {"model_name": "echo", "id": "7", "inputs": [x]})
    assert response.id == "7"
    assert response.outputs[0].shape == [2]
    assert response.raw_output_contents == [b"\0\0\x80\x3f\0\0\0\x40"]
    health = call(f"{HEALTH_SERVICE}.Check", {"service": SERVICE})
    assert health.SerializeToString() == SERVING
    status = pool.FindEnumTypeByName("grpc.health.v1.HealthCheckResponse.ServingStatus")
    assert status.values_by_number[health.status].name == "SERVING"
    infer = pool.FindMessageTypeByName("inference.ModelInferRequest")
    assert list(pool.FindAllExtensions(infer)) == []
    for name in ("inference.Other", "", "inference"):
        with pytest.raises(KeyError):
            pool.FindMessageTypeByName(name)
    with pytest.raises(KeyError):
        pool.FindFileByName("other.proto")


@pytest.mark.parametrize("service", SERVICES)
def test_stream(server: ServedApp, service: str) -> None:
    """Each request has a response, in both versions of the service."""
    asked = {
        "file": delimited(FILE_BY_NAME, INFERENCE_FILE["name"]),
        "symbol": delimited(SYMBOL, f"{SERVICE}.ModelInfer"),
        "unknown": delimited(SYMBOL, "inference.Other"),
        "services": integer(99, 1) + LIST_SERVICES,
        "last": delimited(FILE_BY_NAME, "other") + delimited(FILE_BY_NAME, HEALTH_FILE["name"]),
    }
    answers = dict(zip(asked, ask(server, *asked.values(), service=service), strict=True))
    content = delimited(4, delimited(1, describe_file(INFERENCE_FILE)))
    assert answers["file"] == delimited(2, asked["file"]) + content
    assert answers["symbol"] == delimited(2, asked["symbol"]) + content
    names = [delimited(1, delimited(1, name)) for name in (SERVICE, HEALTH_SERVICE)]
    assert answers["services"] == delimited(2, asked["services"]) + delimited(6, b"".join(names))
    assert answers["last"].endswith(delimited(4, delimited(1, describe_file(HEALTH_FILE))))
    assert answers["unknown"] == delimited(2, asked["unknown"]) + delimited(
        7,
        integer(1, Code.NOT_FOUND.value[0]),
        delimited(2, "symbol 'inference.Other' is not known"),
    )


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        (b"", Code.INVALID_ARGUMENT, "the request asks for nothing"),
        (delimited(1, "host"), Code.INVALID_ARGUMENT, "the request asks for nothing"),
        (delimited(FILE_BY_NAME), Code.NOT_FOUND, "file '' is not known"),
        (delimited(SYMBOL, "x" * 1000), Code.NOT_FOUND, f"symbol '{'x' * 80}'... is not known"),
        (
            delimited(EXTENSION, delimited(1, "inference.ModelInferRequest"), integer(2, 5)),
            Code.NOT_FOUND,
            "message 'inference.ModelInferRequest' has no extensions",
        ),
        (delimited(EXTENSION_NUMBERS, "\0"), Code.NOT_FOUND, r"message '\x00' is not known"),
        (
            delimited(EXTENSION_NUMBERS, SERVICE),
            Code.NOT_FOUND,
            f"message '{SERVICE}' is not known",
        ),
    ],
)
def test_errors(server: ServedApp, sent: bytes, code: Any, text: str) -> None:
    """The stream continues."""
    answer, after = ask(server, sent, LIST_SERVICES)
    error = delimited(7, integer(1, code.value[0]), delimited(2, text))
    assert answer == delimited(2, sent) + error
    assert SERVICE.encode() in after


def test_message_has_no_extensions() -> None:
    name = "inference.ModelInferRequest.InferInputTensor"
    sent = delimited(EXTENSION_NUMBERS, name)
    assert Reflection(FILES, tw.Limits()).answer(sent) == delimited(2, sent) + delimited(
        5, delimited(1, name)
    )


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        (b"\x22\x05abc", Code.INVALID_ARGUMENT, "the gRPC message is malformed"),
        (delimited(SYMBOL, b"\xff"), Code.INVALID_ARGUMENT, "is not valid UTF-8"),
        (
            delimited(99, b"x" * MAX_NBYTES),
            Code.RESOURCE_EXHAUSTED,
            f"SERVER: Received message larger than max ({MAX_NBYTES + 4} vs. {MAX_NBYTES})",
        ),
    ],
)
def test_malformed_requests_end_the_stream(
    server: ServedApp, sent: bytes, code: Any, text: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(server, sent, LIST_SERVICES)
    assert caught.value.code() is code
    assert text in caught.value.details()
    assert len(ask(server, LIST_SERVICES)) == 1


def test_longest_request(server: ServedApp) -> None:
    sent = delimited(SYMBOL, "x" * (MAX_NBYTES - 3))
    assert len(sent) == MAX_NBYTES
    [answer] = ask(server, sent)
    assert delimited(2, sent) in answer


def test_shutdown_ends_open_streams() -> None:
    """It does not wait until the clients close them, which some never do."""
    proceed = threading.Event()

    def requests() -> Iterator[bytes]:
        yield LIST_SERVICES
        proceed.wait(20)

    app = create_app({"echo": lambda request: {}}, receive_timeout=20)
    with served_app(app) as server:
        method = server.channel.stream_stream(f"/{SERVICES[0]}/ServerReflectionInfo")
        streams = [method(requests(), timeout=30) for _ in range(3)]
        for stream in streams:
            next(stream)
        streams[0].cancel()
        server.method(message())
        started = time.monotonic()
        server.stop()
        for stream in streams[1:]:
            with pytest.raises(grpc.RpcError) as caught:
                next(stream)
            assert caught.value.code() is Code.UNAVAILABLE
            assert caught.value.details() == "the server is shutting down"
        proceed.set()
    assert time.monotonic() - started < 10
