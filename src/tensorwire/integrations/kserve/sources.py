"""The functions on whose source the replacements rely, apart from the originals."""

from __future__ import annotations

TYPES = "kserve.protocol.infer_type"
PLANE = "kserve.protocol.dataplane:DataPlane"
REST = "kserve.protocol.rest"
GRPC = "kserve.protocol.grpc.servicer"


def tensor(name: str) -> tuple[str, ...]:
    """Return the functions of a tensor class that a received tensor overrides or calls."""
    used = ("__init__", "name", "datatype", "shape", "parameters", "data", "as_numpy")
    return tuple(f"{TYPES}:{name}.{each}" for each in (*used, "set_data_from_numpy"))


CODEC = (
    f"{TYPES}:serialize_byte_tensor",
    f"{TYPES}:deserialize_bytes_tensor",
    "kserve.utils.numpy_codec:to_np_dtype",
    "kserve.utils.numpy_codec:from_np_dtype",
)
READS_REQUESTS = (
    *CODEC,
    *tensor("InferInput"),
    f"{TYPES}:InferRequest.__init__",
    f"{TYPES}:RequestedOutput",
)
READS_RESPONSES = (*CODEC, *tensor("InferOutput"), f"{TYPES}:InferResponse.__init__")

# The route does what these functions do. Of the routers of Starlette and FastAPI, it relies on what
# they document: the first route that matches gets the request.
ROUTE = (
    f"{REST}.v2_endpoints:register_v2_endpoints",
    f"{REST}.v2_endpoints:V2Endpoints.infer",
    f"{PLANE}.decode",
    f"{PLANE}.decode_inference_request",
    f"{PLANE}.encode",
    f"{PLANE}.infer",
    f"{PLANE}.model_ready",
    *READS_REQUESTS,
    *READS_RESPONSES,
    f"{TYPES}:InferRequest.from_bytes",
    f"{TYPES}:InferRequest.from_inference_request",
    f"{TYPES}:InferResponse.to_rest",
    f"{TYPES}:InferResponse.get_output_by_name",
    f"{TYPES}:to_http_parameters",
    f"{REST}.v2_datamodels:InferenceRequest",
    f"{REST}.v2_datamodels:InferenceResponse",
    "kserve.utils.utils:generate_uuid",
    "starlette.routing:Route.matches",
)
METADATA = (f"{REST}.v2_datamodels:ServerMetadataResponse",)
WORKER = (f"{REST}.multiprocess.server:RESTServerProcess.target",)

# The gRPC handler does what the servicer does.
SERVICER = (
    f"{GRPC}:InferenceServicer.ModelInfer",
    f"{GRPC}:InferenceServicer.__init__",
    f"{GRPC}:InferenceServicer.validate_grpc_request",
    f"{TYPES}:InferRequest.from_grpc",
    f"{TYPES}:InferRequest.use_binary_outputs",
    f"{TYPES}:InferResponse.to_grpc",
    *READS_REQUESTS,
    *READS_RESPONSES,
)
