"""What the replacements rely on in MLServer, apart from the functions that they replace."""

from __future__ import annotations

NUMPY = "mlserver.codecs.numpy"
STRING = "mlserver.codecs.string"
LISTS = "mlserver.codecs.lists"
JSON = "mlserver.codecs.json"
RAW = "mlserver.raw"
REST = "mlserver.rest"
TYPES = "mlserver.types.dataplane"

# ArrayData is created instead of a TensorData.
DATA = (
    f"{TYPES}:TensorData",
    *(f"{TYPES}:TensorData.{method}" for method in ("__iter__", "__getitem__", "__len__")),
    f"{TYPES}:Datatype",
    "pydantic.root_model:RootModel.__setstate__",
)

RAW_FORMATS = (f"{RAW}:_DatatypeToCtype", f"{RAW}:_tensor_format", f"{RAW}:_tensor_length")

GRPC = "mlserver.grpc"
HANDLE = f"{REST}.app:APIRoute.handle"  # inherited

RELIES_ON = {
    # codecs and raw contents: the replacements implement the same as these functions
    f"{NUMPY}:NumpyCodec.decode_input": (
        *DATA,
        f"{NUMPY}:_DatatypeToNumpy",
        f"{NUMPY}:_to_ndarray",
        f"{NUMPY}:to_dtype",
    ),
    f"{NUMPY}:NumpyCodec.encode_output": (
        *DATA,
        f"{TYPES}:Parameters",
        f"{TYPES}:ResponseOutput",
        f"{NUMPY}:_NumpyToDatatype",
        f"{NUMPY}:_encode_data",
        f"{NUMPY}:convert_nan",
        f"{NUMPY}:to_datatype",
    ),
    f"{STRING}:_decode_input_or_output": (*DATA, f"{STRING}:decode_str", f"{LISTS}:as_list"),
    f"{RAW}:inject_raw": (
        *DATA,
        *RAW_FORMATS,
        *(f"{RAW}:{name}" for name in ("unpack", "_unpack_bytes", "_unpack_tensor")),
    ),
    f"{RAW}:pack": (
        *DATA,
        *RAW_FORMATS,
        *(f"{RAW}:{name}" for name in ("_ensure_bytes", "_pack_bytes", "_pack_tensor")),
    ),
    # gRPC: the handler calls what the servicer calls, apart from the conversion of raw contents
    f"{GRPC}.dataplane_pb2_grpc:add_GRPCInferenceServiceServicer_to_server": (
        f"{RAW}:extract_raw",
        f"{RAW}:inject_raw",
        f"{GRPC}.converters:InferInputTensorConverter.to_types",
        f"{GRPC}.converters:InferTensorContentsConverter.to_types",
        f"{GRPC}.converters:ModelInferRequestConverter.to_types",
        f"{GRPC}.converters:ModelInferResponseConverter.from_types",
        *(
            f"{GRPC}.servicers:InferenceServicer.{method}"
            for method in ("__init__", "ModelInfer", "_InsertHeaders", "_SetTrailingMetadata")
        ),
    ),
    # REST: the replacement calls the endpoint instead of FastAPI, and reads and writes JSON
    HANDLE: (
        *DATA,
        f"{TYPES}:Parameters",
        f"{TYPES}:RequestInput",
        f"{TYPES}:RequestOutput",
        f"{TYPES}:InferenceRequest",
        f"{TYPES}:ResponseOutput",
        f"{TYPES}:InferenceResponse",
        f"{JSON}:decode_from_bytelike_json_to_dict",
        f"{JSON}:encode_to_json_bytes",
        f"{REST}.app:APIRoute",
        f"{REST}.app:APIRoute.get_route_handler",
        f"{REST}.endpoints:Endpoints.infer",
        f"{REST}.endpoints:Endpoints.model_metadata",
        f"{REST}.requests:Request.body",
        f"{REST}.requests:Request.json",
        f"{REST}.responses:Response",
        f"{REST}.responses:Response.render",
        "fastapi.routing:get_request_handler",
        "fastapi.routing:serialize_response",
    ),
    # It lists the extension that the replacement of handle provides.
    "mlserver.handlers.dataplane:DataPlane.metadata": (HANDLE,),
}
"""For each original, the functions on whose source its replacement relies."""
