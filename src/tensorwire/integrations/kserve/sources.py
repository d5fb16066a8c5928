"""The functions on whose source the replacements rely, apart from the originals."""

from __future__ import annotations

from ..functions import within

TYPES = "kserve.protocol.infer_type"
PLANE = "kserve.protocol.dataplane:DataPlane"
REST = "kserve.protocol.rest"
SERVER = "kserve.protocol.grpc.servicer:InferenceServicer"

# What a received tensor overrides or calls.
TENSOR = "__init__ name datatype shape parameters data as_numpy set_data_from_numpy"
CODEC = (
    *within(TYPES, "serialize_byte_tensor deserialize_bytes_tensor"),
    *within("kserve.utils.numpy_codec", "to_np_dtype from_np_dtype"),
)
READS_REQUESTS = (
    *CODEC,
    *within(f"{TYPES}:InferInput", TENSOR),
    *within(TYPES, "InferRequest.__init__ RequestedOutput"),
)
READS_RESPONSES = (
    *CODEC,
    *within(f"{TYPES}:InferOutput", TENSOR),
    f"{TYPES}:InferResponse.__init__",
)

# The route does what these functions do. Of the routers of Starlette and FastAPI, it relies on what
# they document: the first route that matches gets the request.
ROUTE = (
    *within(f"{REST}.v2_endpoints", "register_v2_endpoints V2Endpoints.infer"),
    *within(PLANE, "decode decode_inference_request encode infer model_ready"),
    *READS_REQUESTS,
    *READS_RESPONSES,
    *within(f"{TYPES}:InferRequest", "from_bytes from_inference_request"),
    *within(f"{TYPES}:InferResponse", "to_rest get_output_by_name"),
    f"{TYPES}:to_http_parameters",
    *within(f"{REST}.v2_datamodels", "InferenceRequest InferenceResponse"),
    "kserve.utils.utils:generate_uuid",
    "starlette.routing:Route.matches",
)
METADATA = (f"{REST}.v2_datamodels:ServerMetadataResponse",)
WORKER = (f"{REST}.multiprocess.server:RESTServerProcess.target",)

# The gRPC handler does what the servicer does.
SERVICER = (
    *within(SERVER, "ModelInfer __init__ validate_grpc_request"),
    *within(f"{TYPES}:InferRequest", "from_grpc use_binary_outputs"),
    f"{TYPES}:InferResponse.to_grpc",
    *READS_REQUESTS,
    *READS_RESPONSES,
)
