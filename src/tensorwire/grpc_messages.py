"""The service ``inference.GRPCInferenceService``: its declarations, and the fields of its messages.

``read_message`` and ``write_message`` of the codec expect the fields of a message as a dict from
the number of a field to its name and kind. They are those of INFERENCE_PROTO, which also says what
the gRPC reflection service of the server answers.
"""

from __future__ import annotations

import re
from typing import Any

SERVICE = "inference.GRPCInferenceService"

Fields = dict[int, tuple[str, Any]]

INFERENCE_PROTO = """
package inference;

service GRPCInferenceService {
  rpc ServerLive(ServerLiveRequest) returns (ServerLiveResponse);
  rpc ServerReady(ServerReadyRequest) returns (ServerReadyResponse);
  rpc ServerMetadata(ServerMetadataRequest) returns (ServerMetadataResponse);
  rpc ModelReady(ModelReadyRequest) returns (ModelReadyResponse);
  rpc ModelMetadata(ModelMetadataRequest) returns (ModelMetadataResponse);
  rpc ModelConfig(ModelConfigRequest) returns (ModelConfigResponse);
  rpc RepositoryIndex(RepositoryIndexRequest) returns (RepositoryIndexResponse);
  rpc ModelInfer(ModelInferRequest) returns (ModelInferResponse);
  rpc ModelStreamInfer(stream ModelInferRequest) returns (stream ModelStreamInferResponse);
}

message ServerLiveRequest {}
message ServerLiveResponse { bool live = 1; }
message ServerReadyRequest {}
message ServerReadyResponse { bool ready = 1; }
message ServerMetadataRequest {}
message ServerMetadataResponse {
  string name = 1;
  string version = 2;
  repeated string extensions = 3;
}
message ModelReadyRequest { string name = 1; string version = 2; }
message ModelReadyResponse { bool ready = 1; }
message ModelMetadataRequest { string name = 1; string version = 2; }
message ModelMetadataResponse {
  message TensorMetadata { string name = 1; string datatype = 2; repeated int64 shape = 3; }
  string name = 1;
  repeated string versions = 2;
  string platform = 3;
  repeated ModelMetadataResponse.TensorMetadata inputs = 4;
  repeated ModelMetadataResponse.TensorMetadata outputs = 5;
}
message ModelConfigRequest { string name = 1; string version = 2; }
message ModelConfigResponse { ModelConfig config = 1; }
message ModelConfig {
  string name = 1;
  string platform = 2;
  int32 max_batch_size = 4;
  repeated ModelInput input = 5;
  repeated ModelOutput output = 6;
}
message ModelInput { string name = 1; DataType data_type = 2; repeated int64 dims = 4; }
message ModelOutput { string name = 1; DataType data_type = 2; repeated int64 dims = 3; }
enum DataType {
  TYPE_INVALID = 0; TYPE_BOOL = 1; TYPE_UINT8 = 2; TYPE_UINT16 = 3; TYPE_UINT32 = 4;
  TYPE_UINT64 = 5; TYPE_INT8 = 6; TYPE_INT16 = 7; TYPE_INT32 = 8; TYPE_INT64 = 9; TYPE_FP16 = 10;
  TYPE_FP32 = 11; TYPE_FP64 = 12; TYPE_STRING = 13; TYPE_BF16 = 14;
}
message RepositoryIndexRequest {}
message RepositoryIndexResponse {
  message ModelIndex { string name = 1; string version = 2; string state = 3; string reason = 4; }
  repeated RepositoryIndexResponse.ModelIndex models = 1;
}

message InferParameter {
  oneof parameter_choice {
    bool bool_param = 1;
    int64 int64_param = 2;
    string string_param = 3;
    double double_param = 4;
    uint64 uint64_param = 5;
  }
}
message InferTensorContents {
  repeated bool bool_contents = 1;
  repeated int32 int_contents = 2;
  repeated int64 int64_contents = 3;
  repeated uint32 uint_contents = 4;
  repeated uint64 uint64_contents = 5;
  repeated float fp32_contents = 6;
  repeated double fp64_contents = 7;
  repeated bytes bytes_contents = 8;
}
message ModelInferRequest {
  message InferInputTensor {
    string name = 1;
    string datatype = 2;
    repeated int64 shape = 3;
    map<string, InferParameter> parameters = 4;
    InferTensorContents contents = 5;
  }
  message InferRequestedOutputTensor {
    string name = 1;
    map<string, InferParameter> parameters = 2;
  }
  string model_name = 1;
  string model_version = 2;
  string id = 3;
  map<string, InferParameter> parameters = 4;
  repeated ModelInferRequest.InferInputTensor inputs = 5;
  repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6;
  repeated bytes raw_input_contents = 7;
}
message ModelInferResponse {
  message InferOutputTensor {
    string name = 1;
    string datatype = 2;
    repeated int64 shape = 3;
    map<string, InferParameter> parameters = 4;
    InferTensorContents contents = 5;
  }
  string model_name = 1;
  string model_version = 2;
  string id = 3;
  map<string, InferParameter> parameters = 4;
  repeated ModelInferResponse.InferOutputTensor outputs = 5;
  repeated bytes raw_output_contents = 6;
}
message ModelStreamInferResponse {
  string error_message = 1;
  ModelInferResponse infer_response = 2;
}
"""

# The numbers of types and labels in google/protobuf/descriptor.proto.
_SCALARS = {
    **{"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5},
    **{"bool": 8, "string": 9, "bytes": 12, "uint32": 13},
}
_MESSAGE, _ENUM = 11, 14
_OPTIONAL, _REPEATED = 1, 3


def parse_proto(file_name: str, text: str) -> dict[str, Any]:
    """Return the declarations of a file, as a dict with the content of a FileDescriptorProto.

    The text has the syntax of proto3, as far as it is used here: names of types are not relative,
    except to the package.
    """
    enums = re.findall(r"enum (\w+)", text)
    head, _, rest = text.partition(";")
    package = head.removeprefix("\npackage ")
    blocks = [_block(file_name, package) | {"package": package, "syntax": "proto3"}]

    def field(number: str, name: str, kind: str, label: int = _OPTIONAL) -> dict[str, Any]:
        other = _ENUM if kind.rpartition(".")[2] in enums else _MESSAGE
        return {
            "name": name,
            "number": int(number),
            "label": label,
            "type": _SCALARS.get(kind, other),
            "type_name": "" if kind in _SCALARS else f".{package}.{kind}",
            "oneof_index": blocks[-1].get("oneof_index"),
        }

    for statement in re.findall(r"[^{};]*[{};]", rest):
        block = blocks[-1]
        match re.findall(r"[\w.]+", statement):
            case []:  # the end of a block
                blocks.pop()
            case ["message" | "enum" | "service" as kind, name]:
                blocks.append(_block(name, f"{block['full_name']}.{name}"))
                block[kind].append(blocks[-1])
            case ["oneof", name]:  # its fields are those of the message
                block["oneof"].append({"name": name})
                blocks.append({**block, "oneof_index": 0})
            case ["rpc", name, *types]:
                asked, answered = " ".join(types).split(" returns ")
                method = {
                    "name": name,
                    "input": f".{package}.{asked.removeprefix('stream ')}",
                    "output": f".{package}.{answered.removeprefix('stream ')}",
                    "is_request_stream": asked.startswith("stream "),
                    "is_response_stream": answered.startswith("stream "),
                }
                block["rpc"].append(method)
            case ["map", key, value, name, number]:  # a repeated message; all maps are "parameters"
                entry = _block("ParametersEntry", f"{block['full_name']}.ParametersEntry")
                entry["options"].append({"map_entry": True})
                entry["field"] += [field("1", "key", key), field("2", "value", value)]
                block["message"].append(entry)
                kind = entry["full_name"].removeprefix(f"{package}.")
                block["field"].append(field(number, name, kind, _REPEATED))
            case ["repeated", kind, name, number]:
                block["field"].append(field(number, name, kind, _REPEATED))
            case [kind, name, number]:
                block["field"].append(field(number, name, kind))
            case [name, number]:
                block["value"].append({"name": name, "number": int(number)})
    return blocks[0]


def _block(name: str, full_name: str) -> dict[str, Any]:
    kinds = ("message", "enum", "service", "field", "oneof", "rpc", "value", "options")
    return {"name": name, "full_name": full_name, **{kind: [] for kind in kinds}}


def blocks_of(file: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the messages, or the enums, that a file or a message declares, by their full names."""
    found = {block["full_name"]: block for block in file[kind]}
    for message in file["message"]:
        found |= blocks_of(message, kind)
    return found


INFERENCE_FILE = parse_proto("open_inference_grpc.proto", INFERENCE_PROTO)
_MESSAGES = blocks_of(INFERENCE_FILE, "message")


def fields_of(message: str) -> Fields:
    """Return the fields of a message, which has only texts, booleans, integers and messages.

    A message in it is read as a list of messages.
    """
    found: Fields = {}
    for field in _MESSAGES[f"inference.{message}"]["field"]:
        kind: Any = {_SCALARS["string"]: str, _SCALARS["bool"]: bool}.get(field["type"], int)
        if field["type"] == _MESSAGE:
            kind = fields_of(field["type_name"].removeprefix(".inference."))
        is_list = field["type"] == _MESSAGE or field["label"] == _REPEATED
        found[field["number"]] = field["name"], [kind] if is_list else kind
    return found


# The numbers of fields of ModelInferRequest, ModelInferResponse and ModelStreamInferResponse.
RAW_INPUT_CONTENTS = 7
RAW_OUTPUT_CONTENTS = 6
INFER_RESPONSE = 2

NO_FIELDS: Fields = {}
READY_RESPONSE = fields_of("ServerReadyResponse")  # also of ModelReady
SERVER_METADATA_RESPONSE = fields_of("ServerMetadataResponse")
MODEL_METADATA_RESPONSE = fields_of("ModelMetadataResponse")
MODEL_REQUEST = fields_of("ModelReadyRequest")  # also of ModelMetadata and ModelConfig
# The error of a request in a stream.
STREAM_ERROR: Fields = {1: ("error_message", str), 2: ("infer_response", [{3: ("id", str)}])}
