"""The options of a client, and what limits a call: timeouts, deadlines and retries."""

from __future__ import annotations

import random
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import tensorwire as tw

from ..arguments import check_seconds
from ..errors import InferenceServerError, format_seconds
from .requests import NO_PROGRESS, NO_TARGET, Regions, Target

if TYPE_CHECKING:
    import grpc

    GrpcChannel: TypeAlias = grpc.Channel | grpc.aio.Channel
else:
    GrpcChannel = Any  # annotations can be evaluated without grpcio

DEFAULT_TIMEOUT = 60.0
"""Default timeout in seconds, as in tritonclient."""

MAX_INT32 = 2**31 - 1

_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 10.0
_MAX_RETRY_AFTER_SECONDS = 60
_RETRIED_STATUSES = (429, 502, 503, 504)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """The timeouts of a call, in seconds. None means no timeout.

    Parameters
    ----------
    connect : float or None, default 60.0
        Maximum duration of establishing a connection, including TLS, for each address of the host.
        Looking up the addresses may take as long. Over gRPC, only that of the client applies, and a
        ConnectionError is raised when it expires.
    read : float or None, default 60.0
        Maximum duration of each single send or receive operation. A request is sent in pieces of at
        most 1 MiB. Over gRPC, the maximum duration from the start of an attempt to its response.
    total : float or None, default None
        Maximum duration of the whole call, including the wait for a free connection, retries and
        the pauses between them. It does not include encoding, compressing and decoding.

    Raises
    ------
    ValueError
        A timeout is not a positive number.
    TypeError
        A timeout is neither a number nor None.

    Examples
    --------
    >>> from tensorwire.client import Client, Timeout
    >>> client = Client("localhost:8000", timeout=Timeout(connect=1, total=30))
    >>> client.timeout
    Timeout(connect=1, read=60.0, total=30)
    """

    connect: float | None = DEFAULT_TIMEOUT
    read: float | None = DEFAULT_TIMEOUT
    total: float | None = None

    def __post_init__(self) -> None:
        for name in ("connect", "read", "total"):
            object.__setattr__(self, name, check_seconds(name, getattr(self, name)))


class ClientOptions(NamedTuple):
    """The arguments of a client, after they were checked."""

    url: str
    timeout: Timeout
    max_body_nbytes: int | None
    limits: tw.Limits
    headers: dict[str, str]
    connections: int
    idle_timeout: float | None
    retries: int
    ssl_context: ssl.SSLContext | None
    trust_env: bool
    binary_inputs: bool
    channel: GrpcChannel | None


def as_timeout(timeout: float | Timeout | None) -> Timeout:
    if isinstance(timeout, Timeout):
        return timeout
    seconds = check_seconds("timeout", timeout)
    return Timeout(connect=seconds, read=seconds)


Step = Literal["connect", "read", "total"]
"""What a wait is for, and the name of the timeout that ends it."""


class Deadline:
    """The timeouts of one call, with the time at which its total timeout expires."""

    __slots__ = ("at", "timeout")

    def __init__(self, timeout: Timeout) -> None:
        self.timeout = timeout
        self.at = None if timeout.total is None else time.monotonic() + timeout.total

    def limit(self, step: Step, since: float | None = None) -> tuple[float | None, Step]:
        """Return how many seconds a step may still take, and which timeout expires then.

        The step began at ``since``, by default now. Raises TimeoutError if no time remains. The
        timeouts are only compared here, and with one clock. The clock of an event loop may be
        coarser or ahead, so it cannot tell which timeout has expired.
        """
        now = time.monotonic()
        seconds: float | None = None if step == "total" else getattr(self.timeout, step)
        end = None if seconds is None else seconds + (now if since is None else since)
        if self.at is not None and (end is None or self.at <= end):
            end, step = self.at, "total"
        if end is None:
            return None, step
        if end <= now:
            raise self.timeout_error(step)
        return end - now, step

    def timeout_error(self, step: Step) -> TimeoutError:
        duration = format_seconds(getattr(self.timeout, step))
        if step == "total":
            return TimeoutError(f"the call took longer than {duration} (total timeout)")
        if step == "connect":
            return TimeoutError(f"no connection after {duration} (connect timeout)")
        return TimeoutError(f"no data was transferred for {duration} (read timeout)")


class ConnectDeadline(Deadline):
    """The deadline of establishing one connection: every step ends with its connect timeout."""

    __slots__ = ("since",)

    def __init__(self, deadline: Deadline) -> None:
        self.timeout = deadline.timeout
        self.at = deadline.at
        self.since = time.monotonic()

    def limit(self, step: Step, since: float | None = None) -> tuple[float | None, Step]:
        return super().limit("connect", self.since)


class Call:
    """A call: what it is for, its deadline, the retries that are left, and its progress."""

    __slots__ = ("deadline", "inputs", "n_pauses", "n_retries", "progress", "regions", "target")

    def __init__(self, deadline: Deadline, n_retries: int = 0, target: Target = NO_TARGET) -> None:
        self.target = target
        self.deadline = deadline
        self.n_retries = n_retries
        self.progress = NO_PROGRESS
        self.n_pauses = 0
        self.regions: Regions = {}
        self.inputs: list[tuple[str, tw.Datatype]] = []

    def take_retry(self) -> bool:
        """Take a retry without a pause. Returns False if none is left."""
        if self.n_retries == 0:
            return False
        self.n_retries -= 1
        return True

    def retry_delay(self, error: Exception) -> float | None:
        """Take a retry, and return the seconds to wait before it. None if the error is final."""
        if isinstance(error, TimeoutError):
            return None
        delay: float | None = None
        if isinstance(error, InferenceServerError):
            if error.status not in _RETRIED_STATUSES:
                return None
            delay = error.retry_after
        if delay is None:
            delay = min(_FIRST_DELAY_SECONDS * 2.0 ** min(self.n_pauses, 10), _MAX_DELAY_SECONDS)
            delay *= random.uniform(0.5, 1.0)
        elif delay > _MAX_RETRY_AFTER_SECONDS:
            return None
        if self.deadline.at is not None and time.monotonic() + delay >= self.deadline.at:
            return None
        if not self.take_retry():
            return None
        self.n_pauses += 1
        return delay
