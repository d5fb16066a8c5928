"""The service ``inference.GRPCInferenceService``: its methods, and the fields of small messages.

Each message is a dict from the number of a field to its name and kind, as ``read_message`` and
``write_message`` of the codec expect it.
"""

from __future__ import annotations

from typing import Any

SERVICE = "inference.GRPCInferenceService"

Fields = dict[int, tuple[str, Any]]

# The numbers of fields of ModelInferRequest, ModelInferResponse and ModelStreamInferResponse.
RAW_INPUT_CONTENTS = 7
RAW_OUTPUT_CONTENTS = 6
INFER_RESPONSE = 2

NO_FIELDS: Fields = {}
SERVER_LIVE_RESPONSE: Fields = {1: ("live", bool)}
READY_RESPONSE: Fields = {1: ("ready", bool)}  # of ServerReady and ModelReady
SERVER_METADATA_RESPONSE: Fields = {
    1: ("name", str),
    2: ("version", str),
    3: ("extensions", [str]),
}
MODEL_REQUEST: Fields = {1: ("name", str), 2: ("version", str)}  # of ModelReady and ModelMetadata
TENSOR_METADATA: Fields = {1: ("name", str), 2: ("datatype", str), 3: ("shape", [int])}
MODEL_METADATA_RESPONSE: Fields = {
    1: ("name", str),
    2: ("versions", [str]),
    3: ("platform", str),
    4: ("inputs", [TENSOR_METADATA]),
    5: ("outputs", [TENSOR_METADATA]),
}
# The error of a request in a stream.
STREAM_ERROR: Fields = {1: ("error_message", str), 2: ("infer_response", [{3: ("id", str)}])}
