"""What the adapters for HTTP and gRPC do, and which one a URL needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import tensorwire as tw

from .._codec.signatures import Nonfinite
from .addresses import ServerAddress
from .options import Call, ClientOptions
from .requests import Encoding, Endpoint, Target
from .sync import Backend


class Adapter(Protocol):
    """Builds the requests of a client, and exchanges them with a server.

    Each adapter has its own kinds of pools, messages, requests and bodies of responses. A pool
    has a ``backend``, ``close`` and ``forget``; a request has an ``operation``. What an adapter
    cannot do raises ValueError.
    """

    binary_parameters: Mapping[str, Any]
    """The parameters with which a request asks for binary outputs."""

    def new_pool(self, backend: Backend) -> Any: ...

    def metadata_request(self, target: Target) -> Any: ...

    def readiness_request(self, target: Target) -> Any: ...

    def endpoint_request(
        self, endpoint: Endpoint, target: Target, parameters: Mapping[str, Any], /
    ) -> Any:
        """Return a request without inference. Parameters that are dicts are sent as JSON."""

    def json_request(self, target: Target, method: str, path: str, body: Any) -> Any: ...

    async def encode(
        self,
        target: Target,
        request: tw.InferRequest,
        nonfinite: Nonfinite | None,
        backend: Backend,
        /,
    ) -> Any:
        """Return the message of a request."""

    def encode_raw(self, array: Any) -> Any:
        """Return the message of a raw binary request."""

    def check_encoded(self, target: Target, message: tw.Frame | bytes) -> Any:
        """Return a message that the caller has encoded."""

    async def infer_request(
        self, target: Target, message: Any, encoding: Encoding, backend: Backend, /
    ) -> Any: ...

    async def attempt(self, pool: Any, request: Any, call: Call, /) -> Any:
        """Send a request once, and return the body of the response.

        Raises OSError, and InferenceServerError; the call may then be repeated.
        """

    async def read(self, request: Any, body: Any, backend: Backend, /) -> Any:
        """Return what the body of a response contains."""

    def open_stream(self, open_pool: Any, call: Call, requests: Any, encode: Any, /) -> Any: ...


def adapter_of(server: ServerAddress, options: ClientOptions) -> Adapter:
    if server.is_grpc:
        from .grpc import GrpcAdapter  # noqa: PLC0415 - requires grpcio

        return GrpcAdapter(server, options)
    from .http import HttpAdapter  # noqa: PLC0415 - requires httptools

    return HttpAdapter(server, options)
