"""gRPC servers for tests of clients: one returns given bytes, the other serves models."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np

import tensorwire as tw
from support.requirements import optional
from tensorwire import grpc_messages as fields
from tensorwire._codec.grpc.reader import read_fields
from tensorwire._codec.grpc.writer import write_fields
from tensorwire.grpc import decode_request, encode_response, encode_stream_response

grpc = optional("grpc")

SERVICE = "/inference.GRPCInferenceService/"
STREAM_ERROR = {1: ("error_message", str), 2: ("infer_response", [{3: ("id", str)}])}
SERVER = {"name": "test", "version": "1", "extensions": ["a", "b"]}
X_METADATA = {"name": "x", "datatype": "FP32", "shape": [-1]}

Answer = Callable[[Any, Any], Any]


class _Server:
    """A server of grpcio in threads.

    `methods` are functions of the message (an iterator of messages for streams) and the context of
    grpcio, which return serialized messages. `calls` has the name, as "path", and the metadata of
    each call.
    """

    def __init__(
        self,
        methods: dict[str, Answer],
        address: str = "127.0.0.1:0",
        credentials: Any = None,
        max_nbytes: int = -1,
    ) -> None:
        self.methods = methods
        self.calls: list[dict[str, Any]] = []
        self.threads = ThreadPoolExecutor(16)
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", max_nbytes),
            ("grpc.max_send_message_length", -1),
        ]
        self.server = grpc.server(self.threads, options=options)
        self.server.add_generic_rpc_handlers((self,))
        if credentials is None:
            port = self.server.add_insecure_port(address)
        else:
            port = self.server.add_secure_port(address, credentials)
        self.address = f"127.0.0.1:{port}"
        self.url = f"grpc://{self.address}"

    def service(self, details: Any) -> Any:
        """Return the handler of a call. grpcio calls this method before the message arrives."""
        name = details.method.removeprefix(SERVICE)
        if name not in self.methods:
            return None
        function = self.methods[name]
        metadata = {item.key: item.value for item in details.invocation_metadata}
        self.calls.append({"path": name, **metadata})
        if name == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(function)
        return grpc.unary_unary_rpc_method_handler(function)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop(0).wait(10)
        self.threads.shutdown(wait=False)


class RecordingServer(_Server):
    """Answers each request of ``ModelInfer``, and each request of a stream, with ``answer``.

    It is a serialized message, or a function of the request and the context. ``requests`` has the
    requests as they were received, and ``metadata`` the metadata of their calls.
    """

    def __init__(
        self, answer: bytes | Callable[[bytes, Any], bytes], credentials: Any = None
    ) -> None:
        methods: dict[str, Answer] = {"ModelInfer": self.reply, "ModelStreamInfer": self.stream}
        super().__init__(methods, credentials=credentials)
        self.answer = answer
        self.requests: list[bytes] = []
        self.metadata: list[dict[str, Any]] = []

    def stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            yield self.reply(request, context)

    def reply(self, request: bytes, context: Any) -> bytes:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        return self.answer if isinstance(self.answer, bytes) else self.answer(request, context)


class ScriptedServer(_Server):
    """Serves `declared`, which doubles its input, `slow`, `repeat` and `loading`.

    Other models return their inputs, except `unknown`, which is not known. `answers` replaces
    methods of the service; see `_Server`.
    """

    def __init__(self, answers: dict[str, Answer] | None = None, **options: Any) -> None:
        methods: dict[str, Answer] = {
            "ServerReady": lambda *_: write_fields({"ready": True}, fields.READY_RESPONSE),
            "ModelReady": self.model_ready,
            "ServerMetadata": lambda *_: write_fields(SERVER, fields.SERVER_METADATA_RESPONSE),
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "ModelStreamInfer": self.model_stream_infer,
        }
        super().__init__(methods | (answers or {}), **options)
        self.messages: list[bytes] = []  # of ModelInfer
        self.n_cancelled = 0
        self.has_begun = threading.Event()  # a call of `slow` has

    def model_ready(self, message: bytes, context: Any) -> bytes:
        return write_fields(
            {"ready": self.known_model(message, context) != "loading"}, fields.READY_RESPONSE
        )

    def model_metadata(self, message: bytes, context: Any) -> bytes:
        name = self.known_model(message, context)
        inputs = [X_METADATA] if name in ("declared", "repeat") else []
        values = {"name": name, "versions": ["1", "2"], "platform": "p", "inputs": inputs}
        return write_fields({**values, "outputs": []}, fields.MODEL_METADATA_RESPONSE)

    def known_model(self, message: bytes, context: Any) -> str:
        name = str(read_fields(message, fields.MODEL_REQUEST)["name"])
        if name == "unknown":
            context.abort(grpc.StatusCode.NOT_FOUND, "model 'unknown' is not known")
        return name

    def model_infer(self, message: bytes, context: Any) -> bytes:
        self.messages.append(message)
        request = decode_request(message)
        model = self.known_model(message, context)
        if model == "slow":
            self.has_begun.set()
            end = time.monotonic() + 5
            while context.is_active() and time.monotonic() < end:
                time.sleep(0.01)
            self.n_cancelled += not context.is_active()
        outputs: Any = request.inputs
        if model == "declared":
            outputs = {"y": request["x"].as_numpy() * 2}
        saw = {"saw": ",".join(sorted(request.parameters))}
        response = tw.InferResponse(
            outputs, model_name=model, model_version=request.model_version, parameters=saw
        )
        return encode_response(response, request)

    def model_stream_infer(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """The responses to each request; see the parameters."""
        try:
            for message in messages:
                request = decode_request(message)
                parameters = request.parameters
                if parameters.get("error"):
                    values = {"error_message": parameters["error"]}
                    values["infer_response"] = [{"id": request.id}] if request.id else []
                    yield write_fields(values, STREAM_ERROR)
                    continue
                for i in range(int(parameters.get("n", 1))):
                    outputs = {"i": np.array([i]), **{t.name: t for t in request.inputs}}
                    yield encode_stream_response(tw.InferResponse(outputs), request)
                while parameters.get("hang") and context.is_active():
                    time.sleep(0.01)
        finally:
            self.n_cancelled += not context.is_active()
