"""The fields of messages, and the .proto file of the manual, compared with those of Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.requirements import package
from tensorwire import grpc_messages as fields
from tensorwire.grpc_messages import Fields

ROOT = Path(__file__).parents[1]
PROTO = ROOT / "docs/guide/open_inference_grpc.proto"

package("grpc")
pb = package("tritonclient.grpc.service_pb2")
config_pb = package("tritonclient.grpc.model_config_pb2")
descriptor_pb = package("google.protobuf.descriptor_pb2")

MESSAGES = {
    "ServerLiveRequest": fields.NO_FIELDS,
    "ServerReadyRequest": fields.NO_FIELDS,
    "ServerMetadataRequest": fields.NO_FIELDS,
    "ModelReadyRequest": fields.MODEL_REQUEST,
    "ModelMetadataRequest": fields.MODEL_REQUEST,
    "ModelConfigRequest": fields.MODEL_REQUEST,
    "ServerLiveResponse": fields.LIVE_RESPONSE,
    "ServerReadyResponse": fields.READY_RESPONSE,
    "ModelReadyResponse": fields.READY_RESPONSE,
    "ServerMetadataResponse": fields.SERVER_METADATA_RESPONSE,
    "ModelMetadataResponse": fields.MODEL_METADATA_RESPONSE,
    "ModelConfigResponse": fields.MODEL_CONFIG_RESPONSE,
    "ModelStatisticsRequest": fields.MODEL_REQUEST,
    "ModelStatisticsResponse": fields.MODEL_STATISTICS_RESPONSE,
    "RepositoryIndexResponse": fields.REPOSITORY_INDEX_RESPONSE,
    "ModelStreamInferResponse": fields.STREAM_ERROR,
    "ModelInferRequest": {fields.RAW_INPUT_CONTENTS: ("raw_input_contents", [bytes])},
    "ModelInferResponse": {fields.RAW_OUTPUT_CONTENTS: ("raw_output_contents", [bytes])},
}


# What only the clients know.
OF_TRITON = (
    ("ModelConfigResponse", fields.TRITON_CONFIG_RESPONSE),
    ("ModelStatisticsResponse", fields.TRITON_STATISTICS_RESPONSE),
    ("RepositoryModelLoadRequest", fields.LOAD_REQUEST),
    ("RepositoryModelUnloadRequest", fields.LOAD_REQUEST),
    ("RepositoryModelLoadResponse", fields.LOAD_RESPONSE),
    ("RepositoryModelUnloadResponse", fields.LOAD_RESPONSE),
)


@pytest.mark.parametrize(("name", "ours"), [*MESSAGES.items(), *OF_TRITON])
def test_fields(name: str, ours: Fields) -> None:
    check_fields(ours, pb.DESCRIPTOR.message_types_by_name[name])


def check_fields(ours: Fields, theirs: Any) -> None:
    for number, (name, kind) in ours.items():
        field = theirs.fields_by_number[number]
        assert field.name == name
        is_repeated = field.is_repeated
        [inner] = kind if isinstance(kind, list) else [kind]
        if isinstance(inner, dict):
            check_fields(inner, field.message_type)
            continue
        assert is_repeated == isinstance(kind, list)
        kinds = {bool: "bool", str: "string", bytes: "bytes", int: "int64 uint64 int32 enum"}
        allowed = {getattr(field, f"TYPE_{each.upper()}") for each in kinds[inner].split()}
        assert field.type in allowed


def test_values_of_data_types() -> None:
    theirs = config_pb.DataType.items()
    assert list(enumerate(fields.DATA_TYPES)) == [(number, name) for name, number in theirs]


def test_proto_file_of_the_manual(tmp_path: Path) -> None:
    """protoc accepts it, and each declaration is that of Triton."""
    protoc = package("grpc_tools.protoc")
    compiled = tmp_path / "compiled"
    options = ["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={compiled}", str(PROTO)]
    assert protoc.main(options) == 0
    [ours] = descriptor_pb.FileDescriptorSet.FromString(compiled.read_bytes()).file
    theirs, config = (descriptor_pb.FileDescriptorProto() for _ in range(2))
    pb.DESCRIPTOR.CopyToProto(theirs)
    config_pb.DESCRIPTOR.CopyToProto(config)
    assert (ours.package, ours.syntax) == (theirs.package, theirs.syntax)
    compare_messages(ours.message_type, [*theirs.message_type, *config.message_type])
    assert list(ours.enum_type) == [enum for enum in config.enum_type if enum.name == "DataType"]
    [[service], [other]] = (file.service for file in (ours, theirs))
    assert service.name == other.name
    methods = {method.name: method for method in other.method}
    for method in service.method:
        methods[method.name].ClearField("options")
        assert method == methods[method.name]
    assert set(MESSAGES) <= {message.name for message in ours.message_type}


def compare_messages(ours: Any, theirs: Any) -> None:
    """Check that each field has the same name, number, type, label and oneof."""
    by_name = {message.name: message for message in theirs}
    for message in ours:
        other = by_name[message.name]
        fields = {field.name: field for field in other.field}
        for field in message.field:
            field.ClearField("json_name")  # which protoc adds
            assert field == fields[field.name], (message.name, field.name)
        assert message.options == other.options
        compare_messages(message.nested_type, other.nested_type)
