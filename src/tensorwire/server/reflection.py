"""The answers of the gRPC reflection service: it tells clients which messages a server understands.

A client such as grpcurl asks for the file that declares a service. It gets a FileDescriptorProto,
which the codec writes as any other message, so that protobuf is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .._codec.protobuf_reader import read_message
from .._codec.protobuf_writer import append_fields, write_message
from ..errors import format_value
from ..grpc_messages import MODEL_CONFIG, MODEL_INPUT, MODEL_OUTPUT, Fields

# Both versions have the same messages. Old clients know only the second one.
SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

# --- what the files declare ----------------------------------------------------------------------

# The kinds of fields are those of ``Fields``, the names of TYPES, of messages and of enums,
# or a list of one of these if the field is repeated. A dict is the message with these fields.
PARAMETERS = ["ParametersEntry"]  # a map, which is a repeated message with this name


class Rpc(NamedTuple):
    """The messages of a method."""

    request: str
    response: str
    is_request_stream: bool = False
    is_response_stream: bool = False


class File(NamedTuple):
    """What a file with one service declares.

    The name of the service begins with the package. Those of messages and enums do not; if they are
    nested, they begin with the name of the outer message.
    """

    name: str
    service: str
    methods: Mapping[str, Rpc]
    messages: Mapping[str, Fields]
    enums: Mapping[str, Mapping[str, int]]

    @property
    def package(self) -> str:
        return self.service.rpartition(".")[0]


def tensor(message: str, name: str) -> dict[str, Fields]:
    """Return the message of a tensor, which is nested in another one."""
    fields: Fields = {
        1: ("name", str),
        2: ("datatype", str),
        3: ("shape", [int]),
        4: ("parameters", PARAMETERS),
        5: ("contents", "InferTensorContents"),
    }
    return {f"{message}.{name}": fields, f"{message}.{name}.ParametersEntry": PARAMETER}


PARAMETER: Fields = {1: ("key", str), 2: ("value", "InferParameter")}
INFER_MESSAGES: dict[str, Fields] = {
    "InferParameter": {
        1: ("bool_param", bool),
        2: ("int64_param", "int64"),
        3: ("string_param", str),
        4: ("double_param", "double"),
        5: ("uint64_param", "uint64"),
    },
    "InferTensorContents": {
        1: ("bool_contents", ["bool"]),
        2: ("int_contents", ["int32"]),
        3: ("int64_contents", ["int64"]),
        4: ("uint_contents", ["uint32"]),
        5: ("uint64_contents", ["uint64"]),
        6: ("fp32_contents", ["float"]),
        7: ("fp64_contents", ["double"]),
        8: ("bytes_contents", ["bytes"]),
    },
    "ModelInferRequest": {
        1: ("model_name", str),
        2: ("model_version", str),
        3: ("id", str),
        4: ("parameters", PARAMETERS),
        5: ("inputs", ["ModelInferRequest.InferInputTensor"]),
        6: ("outputs", ["ModelInferRequest.InferRequestedOutputTensor"]),
        7: ("raw_input_contents", ["bytes"]),
    },
    "ModelInferRequest.ParametersEntry": PARAMETER,
    **tensor("ModelInferRequest", "InferInputTensor"),
    "ModelInferRequest.InferRequestedOutputTensor": {
        1: ("name", str),
        2: ("parameters", PARAMETERS),
    },
    "ModelInferRequest.InferRequestedOutputTensor.ParametersEntry": PARAMETER,
    "ModelInferResponse": {
        1: ("model_name", str),
        2: ("model_version", str),
        3: ("id", str),
        4: ("parameters", PARAMETERS),
        5: ("outputs", ["ModelInferResponse.InferOutputTensor"]),
        6: ("raw_output_contents", ["bytes"]),
    },
    "ModelInferResponse.ParametersEntry": PARAMETER,
    **tensor("ModelInferResponse", "InferOutputTensor"),
    "ModelStreamInferResponse": {
        1: ("error_message", str),
        2: ("infer_response", "ModelInferResponse"),
    },
}
# The server writes these messages as if the integers were of 64 bits, which are the same bytes.
CONFIG_MESSAGES: dict[str, Fields] = {
    "ModelConfigResponse": {1: ("config", "ModelConfig")},
    "ModelConfig": {
        **MODEL_CONFIG,
        4: ("max_batch_size", "int32"),
        5: ("input", ["ModelInput"]),
        6: ("output", ["ModelOutput"]),
    },
    "ModelInput": {**MODEL_INPUT, 2: ("data_type", "DataType")},
    "ModelOutput": {**MODEL_OUTPUT, 2: ("data_type", "DataType")},
}
INFER_METHODS = {
    "ModelInfer": Rpc("ModelInferRequest", "ModelInferResponse"),
    "ModelStreamInfer": Rpc("ModelInferRequest", "ModelStreamInferResponse", True, True),
}
ONEOFS = {"InferParameter": "parameter_choice"}  # to which all fields of the message belong


# --- descriptors (google/protobuf/descriptor.proto) ----------------------------------------------

TYPES = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
}
PYTHON_TYPES = {bool: "bool", int: "int64", str: "string"}
MESSAGE_TYPE, ENUM_TYPE = 11, 14
OPTIONAL, REPEATED = 1, 3

NAME: Fields = {1: ("name", str)}
FIELD: Fields = {
    1: ("name", str),
    3: ("number", int),
    4: ("label", int),
    5: ("type", int),
    6: ("type_name", str),
    9: ("oneof_index", int),
}
ENUM: Fields = {1: ("name", str), 2: ("value", [{1: ("name", str), 2: ("number", int)}])}
MESSAGE: Fields = {
    1: ("name", str),
    2: ("field", [FIELD]),
    4: ("enum_type", [ENUM]),
    7: ("options", [{7: ("map_entry", bool)}]),
    8: ("oneof_decl", [NAME]),
}
MESSAGE[3] = ("nested_type", [MESSAGE])
METHOD: Fields = {
    1: ("name", str),
    2: ("input_type", str),
    3: ("output_type", str),
    5: ("client_streaming", bool),
    6: ("server_streaming", bool),
}
FILE: Fields = {
    1: ("name", str),
    2: ("package", str),
    4: ("message_type", [MESSAGE]),
    5: ("enum_type", [ENUM]),
    6: ("service", [{1: ("name", str), 2: ("method", [METHOD])}]),
    12: ("syntax", str),
}


def describe_file(file: File) -> bytes:
    """Return the FileDescriptorProto of a file."""
    methods = [
        {
            "name": name,
            "input_type": f".{file.package}.{rpc.request}",
            "output_type": f".{file.package}.{rpc.response}",
            "client_streaming": rpc.is_request_stream,
            "server_streaming": rpc.is_response_stream,
        }
        for name, rpc in file.methods.items()
    ]
    described = {
        "name": file.name,
        "package": file.package,
        "message_type": describe_messages(file, ""),
        "enum_type": describe_enums(file, ""),
        "service": [{"name": file.service.rpartition(".")[2], "method": methods}],
        "syntax": "proto3",
    }
    return write_message(described, FILE)


def describe_messages(file: File, outer: str) -> list[dict[str, Any]]:
    """Return the DescriptorProtos of the messages in a message, or of those in no other one."""
    return [
        {
            "name": name,
            "field": [
                describe_field(file, full_name, number, *field) for number, field in fields.items()
            ],
            "enum_type": describe_enums(file, full_name),
            "options": [{"map_entry": True}] if name in PARAMETERS else [],
            "oneof_decl": [{"name": ONEOFS[name]}] if name in ONEOFS else [],
            "nested_type": describe_messages(file, full_name),
        }
        for owner, name, fields in split_names(file.messages)
        if owner == outer
        for full_name in [f"{outer}.{name}" if outer else name]
    ]


def describe_enums(file: File, outer: str) -> list[dict[str, Any]]:
    """Return the EnumDescriptorProtos of the enums in a message, or of those in no message."""
    return [
        {"name": name, "value": [{"name": n, "number": i} for n, i in values.items()]}
        for owner, name, values in split_names(file.enums)
        if owner == outer
    ]


def split_names(declared: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the outer message or "", the name in it, and the declaration."""
    for full_name, declaration in declared.items():
        outer, _, name = full_name.rpartition(".")
        yield outer, name, declaration


def describe_field(file: File, message: str, number: int, name: str, kind: Any) -> dict[str, Any]:
    """Return the FieldDescriptorProto of a field of a message."""
    item: Any = kind[0] if isinstance(kind, list) else kind
    if isinstance(item, dict):
        item = next(other for other, fields in file.messages.items() if fields is item)
    elif kind is PARAMETERS:
        item = f"{message}.{item}"
    item = PYTHON_TYPES.get(item, item)
    return {
        "name": name,
        "number": number,
        "label": REPEATED if isinstance(kind, list) else OPTIONAL,
        "type": TYPES.get(item, ENUM_TYPE if item in file.enums else MESSAGE_TYPE),
        "type_name": "" if item in TYPES else f".{file.package}.{item}",
        "oneof_index": 0 if message in ONEOFS else None,
    }


def symbols_of(file: File) -> Iterator[str]:
    """Yield the full names of what a file declares."""
    yield file.service
    yield from (f"{file.service}.{name}" for name in file.methods)
    for message, fields in file.messages.items():
        full_name = f"{file.package}.{message}"
        yield full_name
        yield from (f"{full_name}.{name}" for name, _ in fields.values())
        if message in ONEOFS:
            yield f"{full_name}.{ONEOFS[message]}"
    for enum, values in file.enums.items():
        full_name = f"{file.package}.{enum}"
        yield full_name
        # As in C++, the values do not belong to the enum, but to what contains it.
        yield from (f"{full_name.rpartition('.')[0]}.{name}" for name in values)


# --- the service ---------------------------------------------------------------------------------

# A request has one of the fields 3 to 7. They are read as lists, because that of ``list_services``
# may be empty.
REQUEST: Fields = {
    3: ("file_by_filename", [str]),
    4: ("file_containing_symbol", [str]),
    5: ("file_containing_extension", [{1: ("containing_type", str)}]),
    6: ("all_extension_numbers_of_type", [str]),
    7: ("list_services", [str]),
}
# Fields of a response. EXTENSION_NUMBERS is the name of a message, without numbers: there are none.
ORIGINAL_REQUEST, FILE_DESCRIPTORS, EXTENSION_NUMBERS, SERVICE_LIST, ERROR_RESPONSE = 2, 4, 5, 6, 7
SERVICE_NAMES: Fields = {1: ("service", [NAME])}
ERROR: Fields = {1: ("error_code", int), 2: ("error_message", str)}
INVALID_ARGUMENT, NOT_FOUND = 3, 5


class Reflection:
    """Answers the requests of the reflection service about the services of some files."""

    def __init__(self, files: Iterable[File]) -> None:
        services: list[dict[str, str]] = []
        by_name: dict[str, bytes] = {}
        by_symbol: dict[str, bytes] = {}
        by_message: dict[str, bytes] = {}
        for file in files:
            content = append_fields(b"", 1, [describe_file(file)])
            services.append({"name": file.service})
            by_name[file.name] = content
            by_symbol |= dict.fromkeys(symbols_of(file), content)
            for name in file.messages:
                full_name = f"{file.package}.{name}"
                by_message[full_name] = write_message({"name": full_name}, NAME)
        self._services = write_message({"service": services}, SERVICE_NAMES)
        # Fields of a request, of the response, what they ask for, and the values of the latter.
        self._known = (
            ("file_by_filename", FILE_DESCRIPTORS, "file", by_name),
            ("file_containing_symbol", FILE_DESCRIPTORS, "symbol", by_symbol),
            ("all_extension_numbers_of_type", EXTENSION_NUMBERS, "message", by_message),
        )

    def answer(self, message: bytes) -> bytes:
        """Return the ServerReflectionResponse to a ServerReflectionRequest.

        Raises HeaderError if the message is malformed or has more text than the default limit.
        """
        number, value = self._find(read_message(message, REQUEST))
        return append_fields(append_fields(b"", ORIGINAL_REQUEST, [message]), number, [value])

    def _find(self, asked: dict[str, list[Any]]) -> tuple[int, bytes]:
        """Return the number of a field of the response, and its value."""
        for field, number, kind, known in self._known:
            if names := asked[field]:
                if names[-1] in known:
                    return number, known[names[-1]]
                return error_response(NOT_FOUND, f"{kind} {format_value(names[-1])} is not known")
        if extended := asked["file_containing_extension"]:
            name = format_value(extended[-1]["containing_type"])
            return error_response(NOT_FOUND, f"message {name} has no extensions")
        if asked["list_services"]:
            return SERVICE_LIST, self._services
        return error_response(INVALID_ARGUMENT, "the request asks for nothing")


def error_response(code: int, text: str) -> tuple[int, bytes]:
    return ERROR_RESPONSE, write_message({"error_code": code, "error_message": text}, ERROR)
