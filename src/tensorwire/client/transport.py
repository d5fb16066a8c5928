"""What a client passes to its transport, which speaks HTTP or gRPC, and what it expects of it."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import tensorwire as tw

from ..arguments import Nonfinite
from .limits import Deadline, Timeout
from .requests import Algorithm, ProgressReporter, Target

if TYPE_CHECKING:
    import grpc

    from .connection import Backend

Outputs = Iterable[str | tw.RequestedOutput]


class Options(NamedTuple):
    """The arguments of a client, after they were checked."""

    url: str
    timeout: Timeout
    max_body: int | None
    limits: tw.Limits
    headers: dict[str, str]
    connections: int
    idle_timeout: float | None
    retries: int
    ssl_context: ssl.SSLContext | None
    trust_env: bool
    binary_inputs: bool
    channel: grpc.Channel | grpc.aio.Channel | None


class Body(Protocol):
    """The body of a successful response."""

    def decode(self, limits: tw.Limits) -> tw.InferResponse: ...

    def parse_metadata(self, limits: tw.Limits) -> dict[str, Any]: ...


class OpenStream(Protocol):
    """A call with several requests and responses."""

    async def read(self) -> tw.InferResponse | None:
        """Return the next response, or None at the end."""

    def close(self) -> None:
        """Cancel the call, unless it has ended."""


class ConnectionPool(Protocol):
    """The connections of a client in one process."""

    backend: Backend

    def close(self) -> Awaitable[None] | None: ...

    def forget(self) -> None:
        """Release what a child process has inherited."""


class Transport(Protocol):
    """Builds the requests of a client, and sends them."""

    binary_outputs: ClassVar[dict[str, Any]]  # the parameters that request binary outputs

    def new_pool(self, backend: Backend) -> ConnectionPool: ...

    def metadata_request(self, target: Target) -> Any: ...

    def readiness_request(self, target: Target) -> Any: ...

    def encode(
        self,
        target: Target,
        request: tw.InferRequest,
        binary_inputs: bool,
        nonfinite: Nonfinite | None,
    ) -> Any: ...

    def encode_raw(self, array: Any) -> Any: ...

    def check_encoded(self, target: Target, message: tw.Frame | bytes) -> Any:
        """Return a request that the caller has encoded. Raises TypeError and ValueError."""

    async def compress(self, message: Any, algorithm: Algorithm, backend: Backend) -> Any: ...

    def infer_request(
        self, target: Target, message: Any, accept: Algorithm | None = None
    ) -> Any: ...

    async def attempt(
        self, pool: Any, request: Any, deadline: Deadline, progress: ProgressReporter | None
    ) -> Body:
        """Send a request, and return the body of the response."""
        raise NotImplementedError

    def open_stream(
        self,
        pool: Any,
        target: Target,
        deadline: Deadline,
        requests: Any,
        encode: Callable[[Any], Coroutine[Any, Any, bytes]],
    ) -> OpenStream: ...
