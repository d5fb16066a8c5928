"""The functions on whose source the replacements rely, apart from the originals."""

from __future__ import annotations

NUMPY = "mlserver.codecs.numpy"
RAW = "mlserver.raw"
REST = "mlserver.rest"
GRPC = "mlserver.grpc"
TYPES = "mlserver.types.dataplane"

# ArrayData is created instead of a TensorData.
DATA = (
    f"{TYPES}:TensorData",
    *(f"{TYPES}:TensorData.{method}" for method in ("__iter__", "__getitem__", "__len__")),
    f"{TYPES}:Datatype",
    "pydantic.root_model:RootModel.__setstate__",
)

# The codecs and the conversion of raw contents do the same as these functions.
DECODE_INPUT = (
    *DATA,
    f"{NUMPY}:_DatatypeToNumpy",
    f"{NUMPY}:_to_ndarray",
    f"{NUMPY}:to_dtype",
)
ENCODE_OUTPUT = (
    *DATA,
    f"{TYPES}:Parameters",
    f"{TYPES}:ResponseOutput",
    f"{NUMPY}:_NumpyToDatatype",
    f"{NUMPY}:_encode_data",
    f"{NUMPY}:convert_nan",
    f"{NUMPY}:to_datatype",
)
DECODE_STRINGS = (*DATA, "mlserver.codecs.string:decode_str", "mlserver.codecs.lists:as_list")
RAW_FORMATS = (*DATA, f"{RAW}:_DatatypeToCtype", f"{RAW}:_tensor_format", f"{RAW}:_tensor_length")
INJECT_RAW = (*RAW_FORMATS, f"{RAW}:unpack", f"{RAW}:_unpack_bytes", f"{RAW}:_unpack_tensor")
PACK = (*RAW_FORMATS, f"{RAW}:_ensure_bytes", f"{RAW}:_pack_bytes", f"{RAW}:_pack_tensor")

# The gRPC handler calls what the servicer calls, apart from the conversion of raw contents.
SERVICER = (
    f"{RAW}:extract_raw",
    f"{RAW}:inject_raw",
    f"{GRPC}.converters:InferInputTensorConverter.to_types",
    f"{GRPC}.converters:InferTensorContentsConverter.to_types",
    f"{GRPC}.converters:ModelInferRequestConverter.to_types",
    f"{GRPC}.converters:ModelInferResponseConverter.from_types",
    f"{GRPC}.servicers:InferenceServicer.__init__",
    f"{GRPC}.servicers:InferenceServicer.ModelInfer",
    f"{GRPC}.servicers:InferenceServicer._InsertHeaders",
    f"{GRPC}.servicers:InferenceServicer._SetTrailingMetadata",
)

# REST: the replacement calls the endpoint instead of FastAPI, and reads and writes JSON.
HANDLE = (
    *DATA,
    f"{TYPES}:Parameters",
    f"{TYPES}:RequestInput",
    f"{TYPES}:RequestOutput",
    f"{TYPES}:InferenceRequest",
    f"{TYPES}:ResponseOutput",
    f"{TYPES}:InferenceResponse",
    "mlserver.codecs.json:decode_from_bytelike_json_to_dict",
    "mlserver.codecs.json:encode_to_json_bytes",
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
)

# The metadata list the extension that the replacement of `handle` provides.
METADATA = (f"{REST}.app:APIRoute.handle",)
