"""The messages of the service ``inference.GRPCInferenceService`` that contain no tensors.

``read_fields`` and ``write_fields`` of the codec expect the fields of a message as a dict from
the number of a field to its name and kind. A message in a message is a list of messages.
"""

from __future__ import annotations

from typing import Any

SERVICE = "inference.GRPCInferenceService"
MAX_MESSAGE_NBYTES = 2**31 - 1  # of protobuf, and of grpcio

Fields = dict[int, tuple[str, Any]]

# The numbers of fields of ModelInferRequest, ModelInferResponse and ModelStreamInferResponse.
RAW_INPUT_CONTENTS = 7
RAW_OUTPUT_CONTENTS = 6
INFER_RESPONSE = 2

NO_FIELDS: Fields = {}
# ModelReadyRequest, ModelMetadataRequest, ModelConfigRequest and ModelStatisticsRequest.
MODEL_REQUEST: Fields = {1: ("name", str), 2: ("version", str)}
LIVE_RESPONSE: Fields = {1: ("live", bool)}
READY_RESPONSE: Fields = {1: ("ready", bool)}  # also of ModelReady
SERVER_METADATA_RESPONSE: Fields = {1: ("name", str), 2: ("version", str), 3: ("extensions", [str])}
_TENSOR_METADATA: Fields = {1: ("name", str), 2: ("datatype", str), 3: ("shape", [int])}
MODEL_METADATA_RESPONSE: Fields = {
    1: ("name", str),
    2: ("versions", [str]),
    3: ("platform", str),
    4: ("inputs", [_TENSOR_METADATA]),
    5: ("outputs", [_TENSOR_METADATA]),
}
_STRING_PARAMETER: Fields = {1: ("key", str), 2: ("value", [{1: ("string_value", str)}])}
# The configuration of a model in the form of Triton.
_MODEL_CONFIG: Fields = {
    1: ("name", str),
    2: ("platform", str),
    4: ("max_batch_size", int),
    5: ("input", [{1: ("name", str), 2: ("data_type", int), 4: ("dims", [int])}]),
    6: ("output", [{1: ("name", str), 2: ("data_type", int), 3: ("dims", [int])}]),
    14: ("parameters", [_STRING_PARAMETER]),
}
MODEL_CONFIG_RESPONSE: Fields = {1: ("config", [_MODEL_CONFIG])}
TRITON_CONFIG_RESPONSE: Fields = {1: ("config", [_MODEL_CONFIG | {17: ("backend", str)}])}
# The enum of ``data_type``: the value of a name is its index.
DATA_TYPES = (
    *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
    *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32"),
    *("TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
)
_MODEL_INDEX: Fields = {
    1: ("name", str),
    2: ("version", str),
    3: ("state", str),
    4: ("reason", str),
}
REPOSITORY_INDEX_RESPONSE: Fields = {1: ("models", [_MODEL_INDEX])}
_DURATION: Fields = {1: ("count", int), 2: ("ns", int)}


def _statistics(*durations: str) -> Fields:
    model: Fields = {
        1: ("name", str),
        2: ("version", str),
        3: ("last_inference", int),
        4: ("inference_count", int),
        5: ("execution_count", int),
        6: ("inference_stats", [{i: (name, [_DURATION]) for i, name in enumerate(durations, 1)}]),
    }
    return {1: ("model_stats", [model])}


MODEL_STATISTICS_RESPONSE = _statistics("success", "fail")
TRITON_STATISTICS_RESPONSE = _statistics(
    *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
    *("cache_hit", "cache_miss"),
)
_REPOSITORY_PARAMETER: Fields = {
    1: ("key", str),
    2: ("value", [{1: ("bool_param", bool), 3: ("string_param", str)}]),
}
# RepositoryModelLoadRequest and RepositoryModelUnloadRequest, and their responses.
LOAD_REQUEST: Fields = {2: ("model_name", str), 3: ("parameters", [_REPOSITORY_PARAMETER])}
LOAD_RESPONSE: Fields = {}
# The ModelStreamInferResponse to a request that failed.
STREAM_ERROR: Fields = {
    1: ("error_message", str),
    INFER_RESPONSE: ("infer_response", [{3: ("id", str)}]),
}
