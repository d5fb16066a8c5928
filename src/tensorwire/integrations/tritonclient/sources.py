"""What the replacements rely on in tritonclient, apart from the functions that they replace."""

from __future__ import annotations

UTILS = "tritonclient.utils"
MEMORY = "tritonclient.utils.shared_memory"
INPUT = "tritonclient.http._infer_input:InferInput"
RESULT = "tritonclient.http._infer_result:InferResult"

REQUEST = "tritonclient.http._utils:_get_inference_request"

READS_INPUTS = (
    f"{INPUT}.__init__",
    f"{INPUT}._get_binary_data",
    f"{INPUT}._get_tensor",
)

HTTP_CLIENT = "tritonclient.http._client:InferenceServerClient"
HTTP_AIO_CLIENT = "tritonclient.http.aio:InferenceServerClient"

# A body is passed to geventhttpclient like a file, and a response is received from its socket.
GEVENT_REQUEST = "geventhttpclient.client:HTTPClient.request"
GEVENT_RESPONSE = tuple(
    f"geventhttpclient.response:{name}"
    for name in (
        "HTTPResponse.__init__",
        "HTTPSocketResponse.__init__",
        "HTTPSocketResponse.read",
        "HTTPSocketPoolResponse.__init__",
        "HTTPSocketPoolResponse.release",
    )
)

GRPC = "tritonclient.grpc"
GRPC_INPUT = f"{GRPC}._infer_input:InferInput"
GRPC_RESULT = f"{GRPC}._infer_result:InferResult"
GRPC_CLIENT = f"{GRPC}._client:InferenceServerClient"
GRPC_AIO_CLIENT = f"{GRPC}.aio:InferenceServerClient"
GRPC_REQUEST = f"{GRPC}._utils:_get_inference_request"
GRPC_STREAM = f"{GRPC}._infer_stream"

GRPC_CALLS = (
    f"{GRPC_CLIENT}.infer",
    f"{GRPC_CLIENT}.async_infer",
    f"{GRPC_AIO_CLIENT}.infer",
    f"{GRPC_AIO_CLIENT}.stream_infer",
)

# The results of calls over gRPC are parts of a response without raw contents.
READS_RESPONSES = tuple(
    f"{GRPC_RESULT}.{name}" for name in ("__init__", "as_numpy", "get_output", "get_response")
)

# The requests of a stream are serialized before they are queued.
GRPC_QUEUE = f"{GRPC_STREAM}:_InferStream._enqueue_request"

RELIES_ON = {
    # It reads the memory at the offset that the caller passes.
    f"{MEMORY}:get_contents_as_numpy": (
        f"{MEMORY}:SharedMemoryRegion",
        f"{MEMORY}:create_shared_memory_region",
    ),
    REQUEST: READS_INPUTS,
    f"{INPUT}.set_data_from_numpy": (*READS_INPUTS, f"{UTILS}:np_to_triton_dtype"),
    # as_numpy reads the outputs from an array instead of bytes.
    f"{RESULT}.__init__": (
        f"{RESULT}.as_numpy",
        f"{RESULT}.from_response_body",
        f"{UTILS}:deserialize_bytes_tensor",
        *GEVENT_RESPONSE,
    ),
    # They send and receive with the connections of the client.
    **{
        f"{HTTP_CLIENT}.{name}": (
            f"{HTTP_CLIENT}.__init__",
            f"{HTTP_CLIENT}._post",
            REQUEST,
            GEVENT_REQUEST,
        )
        for name in ("infer", "async_infer")
    },
    f"{HTTP_AIO_CLIENT}.infer": (
        f"{HTTP_AIO_CLIENT}.__init__",
        f"{HTTP_AIO_CLIENT}._post",
        REQUEST,
    ),
    f"{GRPC_INPUT}.set_data_from_numpy": (
        f"{UTILS}:np_to_triton_dtype",
        f"{GRPC_INPUT}.__init__",
        f"{GRPC_INPUT}._get_content",
    ),
    GRPC_REQUEST: (
        f"{GRPC_INPUT}.__init__",
        f"{GRPC_INPUT}._get_tensor",
        f"{GRPC_INPUT}._get_content",
    ),
    **dict.fromkeys(GRPC_CALLS, (GRPC_REQUEST, *READS_RESPONSES)),
    f"{GRPC_CLIENT}.start_stream": (
        GRPC_REQUEST,
        *READS_RESPONSES,
        f"{GRPC_STREAM}:_InferStream._process_response",
    ),
    f"{GRPC_CLIENT}.async_stream_infer": (GRPC_REQUEST, GRPC_QUEUE),
    GRPC_QUEUE: (f"{GRPC_STREAM}:_InferStream._get_request", f"{GRPC_STREAM}:_RequestIterator"),
}
"""For each original, the functions on whose source its replacement relies."""
