"""The answers of the gRPC reflection service: it tells clients which messages a server understands.

A client such as grpcurl asks for the file that declares a service. It gets a FileDescriptorProto,
which the codec writes as any other message, so that protobuf is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .._codec.datatypes import Limits
from .._codec.protobuf_reader import read_message
from .._codec.protobuf_writer import append_fields, write_message
from ..errors import format_value
from ..grpc_messages import Fields, blocks_of

# Both versions have the same messages. Old clients know only the second one.
SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

# --- descriptors (google/protobuf/descriptor.proto) ----------------------------------------------

# The names are those of the declarations that ``parse_proto`` returns.
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
    4: ("enum", [ENUM]),
    7: ("options", [{7: ("map_entry", bool)}]),
    8: ("oneof", [NAME]),
}
MESSAGE[3] = ("message", [MESSAGE])
METHOD: Fields = {
    1: ("name", str),
    2: ("input", str),
    3: ("output", str),
    5: ("is_request_stream", bool),
    6: ("is_response_stream", bool),
}
FILE: Fields = {
    1: ("name", str),
    2: ("package", str),
    4: ("message", [MESSAGE]),
    5: ("enum", [ENUM]),
    6: ("service", [{1: ("name", str), 2: ("rpc", [METHOD])}]),
    12: ("syntax", str),
}


def symbols_of(file: dict[str, Any]) -> Iterator[str]:
    """Yield the full names of what a file declares."""
    for service in file["service"]:
        yield service["full_name"]
        yield from (f"{service['full_name']}.{rpc['name']}" for rpc in service["rpc"])
    for name, message in blocks_of(file, "message").items():
        yield name
        yield from (f"{name}.{each['name']}" for each in (*message["field"], *message["oneof"]))
    for name, enum in blocks_of(file, "enum").items():
        yield name
        # As in C++, the values do not belong to the enum, but to what contains it.
        yield from (f"{name.rpartition('.')[0]}.{value['name']}" for value in enum["value"])


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

    def __init__(self, files: Iterable[dict[str, Any]], limits: Limits) -> None:
        self._limits = limits
        services: list[dict[str, str]] = []
        by_name: dict[str, bytes] = {}
        by_symbol: dict[str, bytes] = {}
        by_message: dict[str, bytes] = {}
        for file in files:
            content = append_fields(b"", 1, [write_message(file, FILE)])
            services += [{"name": service["full_name"]} for service in file["service"]]
            by_name[file["name"]] = content
            by_symbol |= dict.fromkeys(symbols_of(file), content)
            for name in blocks_of(file, "message"):
                by_message[name] = write_message({"name": name}, NAME)
        self._services = write_message({"service": services}, SERVICE_NAMES)
        # Fields of a request, of the response, what they ask for, and the values of the latter.
        self._known = (
            ("file_by_filename", FILE_DESCRIPTORS, "file", by_name),
            ("file_containing_symbol", FILE_DESCRIPTORS, "symbol", by_symbol),
            ("all_extension_numbers_of_type", EXTENSION_NUMBERS, "message", by_message),
        )

    def answer(self, message: bytes) -> bytes:
        """Return the ServerReflectionResponse to a ServerReflectionRequest.

        Raises HeaderError if the message is malformed or exceeds the limits.
        """
        number, value = self._find(read_message(message, REQUEST, self._limits))
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
