"""A gRPC server on the loopback interface, which returns given bytes and keeps the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.requirements import optional
from support.servers import HOST

grpc = optional("grpc")

SERVICE = "inference.GRPCInferenceService"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Answer = bytes | Callable[[bytes, Any], bytes]


class GrpcServer:
    """Answers each request of ``ModelInfer``, and each request of a stream, with ``answer``.

    It is a serialized message, or a function of the request and the context. ``requests`` has the
    requests as they were received, and ``metadata`` the metadata of their calls.
    """

    def __init__(self, answer: Answer, certificate: Any = None) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.metadata: list[dict[str, Any]] = []
        self.threads = ThreadPoolExecutor(8)
        self.server = grpc.server(self.threads, options=UNLIMITED)
        handlers = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self.infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self.stream),
        }
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        if certificate is None:
            port = self.server.add_insecure_port(f"{HOST}:0")
        else:
            port = self.server.add_secure_port(f"{HOST}:0", certificate)
        self.address = f"{HOST}:{port}"

    def __enter__(self) -> GrpcServer:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop(0).wait(10)
        self.threads.shutdown()

    def infer(self, request: bytes, context: Any) -> bytes:
        return self.reply(request, context)

    def stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            yield self.reply(request, context)

    def reply(self, request: bytes, context: Any) -> bytes:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        return self.answer if isinstance(self.answer, bytes) else self.answer(request, context)
