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
# Of ModelReady, ModelMetadata and ModelConfig.
MODEL_REQUEST: Fields = {1: ("name", str), 2: ("version", str)}
TENSOR_METADATA: Fields = {1: ("name", str), 2: ("datatype", str), 3: ("shape", [int])}
MODEL_METADATA_RESPONSE: Fields = {
    1: ("name", str),
    2: ("versions", [str]),
    3: ("platform", str),
    4: ("inputs", [TENSOR_METADATA]),
    5: ("outputs", [TENSOR_METADATA]),
}
MODEL_INPUT: Fields = {1: ("name", str), 2: ("data_type", int), 4: ("dims", [int])}
MODEL_OUTPUT: Fields = {1: ("name", str), 2: ("data_type", int), 3: ("dims", [int])}
MODEL_CONFIG: Fields = {
    1: ("name", str),
    2: ("platform", str),
    4: ("max_batch_size", int),
    5: ("input", [MODEL_INPUT]),
    6: ("output", [MODEL_OUTPUT]),
}
MODEL_CONFIG_RESPONSE: Fields = {1: ("config", [MODEL_CONFIG])}
# The enum inference.DataType, whose first value is 1.
DATA_TYPES = (
    *("TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8"),
    *("TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64"),
    *("TYPE_STRING", "TYPE_BF16"),
)
MODEL_INDEX: Fields = {
    1: ("name", str),
    2: ("version", str),
    3: ("state", str),
    4: ("reason", str),
}
REPOSITORY_INDEX_RESPONSE: Fields = {1: ("models", [MODEL_INDEX])}
# The error of a request in a stream.
STREAM_ERROR: Fields = {1: ("error_message", str), 2: ("infer_response", [{3: ("id", str)}])}
