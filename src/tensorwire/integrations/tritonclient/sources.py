"""The functions on whose source the replacements rely, apart from the originals."""

from __future__ import annotations

UTILS = "tritonclient.utils"
MEMORY = "tritonclient.utils.shared_memory"
HTTP = "tritonclient.http"
GRPC = "tritonclient.grpc"
GEVENT = "geventhttpclient.response"

# It reads the memory at the offset that the caller passes.
GET_CONTENTS = (f"{MEMORY}:SharedMemoryRegion", f"{MEMORY}:create_shared_memory_region")

HTTP_INPUT = f"{HTTP}._infer_input:InferInput"
HTTP_REQUEST = (
    f"{HTTP_INPUT}.__init__",
    f"{HTTP_INPUT}._get_binary_data",
    f"{HTTP_INPUT}._get_tensor",
)
HTTP_SET_DATA = (*HTTP_REQUEST, f"{UTILS}:np_to_triton_dtype")

# They send a body of another type through the client. geventhttpclient sends it like a file.
HTTP_AIO_INFER = (
    f"{HTTP}.aio:InferenceServerClient.__init__",
    f"{HTTP}.aio:InferenceServerClient._post",
    f"{HTTP}._utils:_get_inference_request",
)
HTTP_INFER = (
    f"{HTTP}._client:InferenceServerClient.__init__",
    f"{HTTP}._client:InferenceServerClient._post",
    f"{HTTP}._utils:_get_inference_request",
    "geventhttpclient.client:HTTPClient.request",
)

# `as_numpy` reads the outputs from an array, which may be received from the socket of the response.
HTTP_RESULT = (
    f"{HTTP}._infer_result:InferResult.as_numpy",
    f"{HTTP}._infer_result:InferResult.from_response_body",
    f"{UTILS}:deserialize_bytes_tensor",
    f"{GEVENT}:HTTPResponse.__init__",
    f"{GEVENT}:HTTPSocketResponse.__init__",
    f"{GEVENT}:HTTPSocketResponse.read",
    f"{GEVENT}:HTTPSocketPoolResponse.__init__",
    f"{GEVENT}:HTTPSocketPoolResponse.release",
)

GRPC_INPUT = f"{GRPC}._infer_input:InferInput"
GRPC_REQUEST = (
    f"{GRPC_INPUT}.__init__",
    f"{GRPC_INPUT}._get_tensor",
    f"{GRPC_INPUT}._get_content",
)
GRPC_SET_DATA = (
    f"{GRPC_INPUT}.__init__",
    f"{GRPC_INPUT}._get_content",
    f"{UTILS}:np_to_triton_dtype",
)

# The results of calls are parts of a response without raw contents.
GRPC_RESULT = f"{GRPC}._infer_result:InferResult"
GRPC_CALL = (
    f"{GRPC}._utils:_get_inference_request",
    f"{GRPC_RESULT}.__init__",
    f"{GRPC_RESULT}.as_numpy",
    f"{GRPC_RESULT}.get_output",
    f"{GRPC_RESULT}.get_response",
)
GRPC_STREAM = (*GRPC_CALL, f"{GRPC}._infer_stream:_InferStream._process_response")

# The requests of a stream are serialized before they are queued.
GRPC_STREAM_REQUEST = (
    f"{GRPC}._utils:_get_inference_request",
    f"{GRPC}._infer_stream:_InferStream._enqueue_request",
)
GRPC_QUEUE = (
    f"{GRPC}._infer_stream:_InferStream._get_request",
    f"{GRPC}._infer_stream:_RequestIterator",
)
