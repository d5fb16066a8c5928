"""What the replacements rely on in KServe, apart from the functions that they replace."""

from __future__ import annotations

TYPES = "kserve.protocol.infer_type"
CODEC = "kserve.utils.numpy_codec"
PLANE = "kserve.protocol.dataplane:DataPlane"
REST = "kserve.protocol.rest"
ENDPOINTS = f"{REST}.v2_endpoints:V2Endpoints"
MODELS = f"{REST}.v2_datamodels"
GRPC = "kserve.protocol.grpc"
PROCESS = f"{REST}.multiprocess.server:RESTServerProcess"
REGISTER = f"{REST}.v2_endpoints:register_v2_endpoints"
REQUEST_JSON = "starlette.requests:Request.json"


def attributes(name: str) -> tuple[str, ...]:
    """Return the functions of a tensor class whose work the replacements may do themselves."""
    found = ("__init__", "name", "datatype", "shape", "parameters", "data")
    return tuple(f"{TYPES}:{name}.{each}" for each in found)


def tensor(name: str) -> tuple[str, ...]:
    """Return the functions of a tensor class that a lazy tensor overrides, calls or bypasses."""
    methods = ("as_numpy", "set_data_from_numpy")
    return (*attributes(name), *(f"{TYPES}:{name}.{method}" for method in methods))


# Lazy tensors are created instead of the tensors of KServe.
READS_REQUESTS = (
    *tensor("InferInput"),
    f"{TYPES}:InferRequest.__init__",
    f"{TYPES}:RequestedOutput",
)
READS_RESPONSES = (*tensor("InferOutput"), f"{TYPES}:InferResponse.__init__")

RELIES_ON = {
    f"{TYPES}:_contains_fp16_datatype": (
        f"{TYPES}:InferOutput.datatype",
        f"{TYPES}:InferResponse.to_grpc",
    ),
    # tensors: the replacements do not call these functions, but implement the same
    **{
        f"{TYPES}:{name}.as_numpy": (
            f"{CODEC}:to_np_dtype",
            f"{TYPES}:deserialize_bytes_tensor",
            *attributes(name),
        )
        for name in ("InferInput", "InferOutput")
    },
    **{
        f"{TYPES}:{name}.set_data_from_numpy": (
            f"{CODEC}:from_np_dtype",
            f"{TYPES}:serialize_byte_tensor",
            *attributes(name),
        )
        for name in ("InferInput", "InferOutput")
    },
    # messages
    f"{TYPES}:InferRequest.from_bytes": READS_REQUESTS,
    f"{TYPES}:InferResponse.from_bytes": READS_RESPONSES,
    f"{TYPES}:InferRequest.to_rest": (*READS_REQUESTS, f"{TYPES}:to_http_parameters"),
    f"{TYPES}:InferResponse.to_rest": (
        *READS_RESPONSES,
        f"{TYPES}:InferResponse.get_output_by_name",
        f"{TYPES}:RequestedOutput",
        f"{TYPES}:to_http_parameters",
    ),
    f"{TYPES}:InferRequest.from_inference_request": (*READS_REQUESTS, REGISTER),
    # JSON requests: the endpoint passes a LazyInferenceRequest on to from_inference_request
    REGISTER: (
        REQUEST_JSON,
        f"{ENDPOINTS}.infer",
        f"{PLANE}.decode",
        f"{PLANE}.decode_inference_request",
        f"{TYPES}:InferRequest.from_inference_request",
        f"{MODELS}:InferParameter",
        f"{MODELS}:Parameters",
        f"{MODELS}:RequestInput",
        f"{MODELS}:RequestOutput",
        f"{MODELS}:InferenceRequest",
    ),
    f"{PLANE}.decode_inference_request": (
        f"{PLANE}.decode",
        f"{TYPES}:InferRequest.from_bytes",
    ),
    # the response follows the request
    f"{PLANE}.infer": (
        f"{PLANE}.encode",
        f"{TYPES}:InferResponse.to_rest",
        f"{TYPES}:InferRequest.__init__",
        f"{TYPES}:InferRequest.use_binary_outputs",
        f"{TYPES}:InferResponse.__init__",
        f"{TYPES}:RequestedOutput",
        "kserve.utils.utils:generate_uuid",
    ),
    f"{TYPES}:get_content": ("kserve.constants.constants:GRPC_CONTENT_DATATYPE_MAPPINGS",),
    # JSON responses: the endpoint sends bytes instead of a tree
    f"{ENDPOINTS}.infer": (
        f"{PLANE}.encode",
        f"{TYPES}:InferResponse.to_rest",
        f"{MODELS}:InferParameter",
        f"{MODELS}:Parameters",
        f"{MODELS}:ResponseOutput",
        f"{MODELS}:InferenceResponse",
    ),
    # gRPC: the servicer gets views of raw contents, and calls to_grpc of a ResponseWithViews
    f"{GRPC}.grpc_predict_v2_pb2_grpc:add_GRPCInferenceServiceServicer_to_server": (
        f"{GRPC}.servicer:InferenceServicer.ModelInfer",
        f"{GRPC}.servicer:InferenceServicer.__init__",
        f"{GRPC}.servicer:InferenceServicer.validate_grpc_request",
        f"{TYPES}:InferRequest.from_grpc",
        f"{TYPES}:InferResponse.to_grpc",
        *READS_REQUESTS,
        *READS_RESPONSES,
    ),
    f"{ENDPOINTS}.metadata": (f"{PLANE}.metadata", f"{MODELS}:ServerMetadataResponse"),
    f"{PROCESS}.__init__": (f"{PROCESS}.target",),
}
"""For each original, the functions on whose source its replacement relies."""

DATA_PLANE = (
    f"{PLANE}.metadata",
    f"{PLANE}.decode_inference_request",
    f"{PLANE}.infer",
    f"{PLANE}.encode",
)
"""The functions that ``BinaryDataPlane`` overrides."""
