"""The functions on whose source the replacements rely, apart from the originals."""

from __future__ import annotations

from ..functions import within

NUMPY = "mlserver.codecs.numpy"
RAW = "mlserver.raw"
REST = "mlserver.rest"
GRPC = "mlserver.grpc"
TYPES = "mlserver.types.dataplane"

# ArrayData is created instead of a TensorData.
DATA = (
    *within(TYPES, "TensorData Datatype"),
    *within(f"{TYPES}:TensorData", "__iter__ __getitem__ __len__"),
    "pydantic.root_model:RootModel.__setstate__",
)

# The codecs and the conversion of raw contents do the same as these functions.
DECODE_INPUT = (*DATA, *within(NUMPY, "_DatatypeToNumpy _to_ndarray to_dtype"))
ENCODE_OUTPUT = (
    *DATA,
    *within(TYPES, "Parameters ResponseOutput"),
    *within(NUMPY, "_NumpyToDatatype _encode_data convert_nan to_datatype"),
)
DECODE_STRINGS = (*DATA, "mlserver.codecs.string:decode_str", "mlserver.codecs.lists:as_list")
RAW_FORMATS = (*DATA, *within(RAW, "_DatatypeToCtype _tensor_format _tensor_length"))
INJECT_RAW = (*RAW_FORMATS, *within(RAW, "unpack _unpack_bytes _unpack_tensor"))
PACK = (*RAW_FORMATS, *within(RAW, "_ensure_bytes _pack_bytes _pack_tensor"))

# The gRPC handler calls what the servicer calls, apart from the conversion of raw contents.
SERVICER = (
    *within(RAW, "extract_raw inject_raw"),
    f"{GRPC}.converters:InferInputTensorConverter.to_types",
    f"{GRPC}.converters:InferTensorContentsConverter.to_types",
    f"{GRPC}.converters:ModelInferRequestConverter.to_types",
    f"{GRPC}.converters:ModelInferResponseConverter.from_types",
    *within(
        f"{GRPC}.servicers:InferenceServicer",
        "__init__ ModelInfer _InsertHeaders _SetTrailingMetadata",
    ),
)

# REST: the replacement calls the endpoint instead of FastAPI, and reads and writes JSON.
HANDLE = (
    *DATA,
    *within(TYPES, "Parameters RequestInput RequestOutput InferenceRequest"),
    *within(TYPES, "ResponseOutput InferenceResponse"),
    *within("mlserver.codecs.json", "decode_from_bytelike_json_to_dict encode_to_json_bytes"),
    *within(f"{REST}.app", "APIRoute APIRoute.get_route_handler"),
    *within(f"{REST}.endpoints:Endpoints", "infer model_metadata"),
    *within(f"{REST}.requests:Request", "body json"),
    *within(f"{REST}.responses", "Response Response.render"),
    *within("fastapi.routing", "get_request_handler serialize_response"),
)

# The metadata list the extension that the replacement of `handle` provides.
METADATA = (f"{REST}.app:APIRoute.handle",)
