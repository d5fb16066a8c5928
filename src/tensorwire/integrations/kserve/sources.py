"""What the replacements rely on in KServe, apart from the functions that they replace."""

from __future__ import annotations

TYPES = "kserve.protocol.infer_type"
CODEC = "kserve.utils.numpy_codec"
PLANE = "kserve.protocol.dataplane:DataPlane"
REST = "kserve.protocol.rest"
ENDPOINTS = f"{REST}.v2_endpoints:V2Endpoints"
MODELS = f"{REST}.v2_datamodels"
PROCESS = f"{REST}.multiprocess.server:RESTServerProcess"
REQUEST_JSON = "starlette.requests:Request.json"


def tensor(name: str) -> tuple[str, ...]:
    """Return the methods of a tensor class that a lazy tensor overrides or calls."""
    methods = ("__init__", "data", "as_numpy", "set_data_from_numpy")
    return tuple(f"{TYPES}:{name}.{method}" for method in methods)


# Lazy tensors are created instead of the tensors of KServe.
READS_REQUESTS = (
    *tensor("InferInput"),
    f"{TYPES}:InferRequest.__init__",
    f"{TYPES}:RequestedOutput",
)
READS_RESPONSES = (*tensor("InferOutput"), f"{TYPES}:InferResponse.__init__")

RELIES_ON = {
    f"{TYPES}:_contains_fp16_datatype": (f"{TYPES}:InferResponse.to_grpc",),
    # tensors: the replacements do not call these functions, but implement the same
    **{
        f"{TYPES}:{name}.as_numpy": (
            f"{CODEC}:to_np_dtype",
            f"{TYPES}:deserialize_bytes_tensor",
            f"{TYPES}:{name}.__init__",
        )
        for name in ("InferInput", "InferOutput")
    },
    **{
        f"{TYPES}:{name}.set_data_from_numpy": (
            f"{CODEC}:from_np_dtype",
            f"{TYPES}:serialize_byte_tensor",
            f"{TYPES}:{name}.__init__",
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
    f"{TYPES}:InferRequest.from_inference_request": (*READS_REQUESTS, REQUEST_JSON),
    # JSON requests: the endpoint passes a LazyInferenceRequest on to from_inference_request
    REQUEST_JSON: (
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
        f"{TYPES}:InferRequest.__init__",
        f"{TYPES}:InferRequest.use_binary_outputs",
        f"{TYPES}:InferResponse.__init__",
        f"{TYPES}:RequestedOutput",
        "kserve.utils.utils:generate_uuid",
    ),
    f"{TYPES}:get_content": ("kserve.constants.constants:GRPC_CONTENT_DATATYPE_MAPPINGS",),
    # JSON responses: the endpoint sends bytes instead of a tree
    f"{PLANE}.encode": (
        f"{ENDPOINTS}.infer",
        f"{TYPES}:InferResponse.to_rest",
        f"{MODELS}:InferParameter",
        f"{MODELS}:Parameters",
        f"{MODELS}:ResponseOutput",
        f"{MODELS}:InferenceResponse",
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
