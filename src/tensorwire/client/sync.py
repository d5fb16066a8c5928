"""The blocking client, on urllib3."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import tensorwire as tw

try:
    import urllib3
except ImportError:
    raise ImportError("Client needs urllib3: pip install 'tensorwire[client]'") from None

from .calls import (
    DEFAULT_MAX_BODY,
    DEFAULT_TIMEOUT,
    ERROR_NBYTES,
    Answer,
    BaseClient,
    Call,
    Headers,
    InferenceServerError,
    Inputs,
    Outputs,
    checked_timeout,
    encode,
    failure,
    model_path,
    server_error,
)

_READ_NBYTES = 256 << 10  # stays in the cache on its way into the body


class Client(BaseClient):
    """A server of the protocol, over pooled connections; to be shared by threads.

    ``url``: ``http://host:8000``, https, or ``host:8000``, with a path in front of ``/v2`` if any.
    ``timeout``: seconds to connect, and without progress of what is sent or received; None waits
    forever. ``max_body``: bytes of a response that are accepted, None for any number.
    ``limits``: of ``decode_response``, and of metadata. ``headers``: sent with each request.
    ``connections``: open at a time; more threads wait. ``ssl_context``: for https.

    Raises InferenceServerError for an answer that is an error, DecodeError for one that is no
    message (status 413: over ``max_body``), ConnectionError when the connection fails or breaks off
    in the middle, TimeoutError; what urllib3 says of it is the ``__cause__``. Nothing is repeated,
    and no redirect is followed.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_body: int | None = DEFAULT_MAX_BODY,
        limits: tw.Limits | None = None,
        headers: Headers | None = None,
        connections: int = 32,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            url,
            timeout=timeout,
            max_body=max_body,
            limits=limits,
            headers=headers,
            connections=connections,
        )
        secure = {"ssl_context": ssl_context} if self.origin.startswith("https:") else {}
        self._pool = urllib3.connection_from_url(
            self.origin, maxsize=connections, block=True, **secure
        )
        self._closed = False

    def infer(
        self,
        model: str,
        inputs: Inputs,
        outputs: Outputs | None = None,
        *,
        binary_outputs: bool = True,
        version: str | None = None,
        id: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> tw.InferResponse:
        """Run a model. The response's arrays are writable, aligned views of its body.

        ``inputs``: tensors, or a mapping of names to arrays, whose memory is sent as it is.
        ``outputs``: names, or RequestedOutput; None for all. ``binary_outputs``: ask for them
        binary, unless a RequestedOutput says otherwise. ``timeout``: instead of the client's.
        """
        frame = encode(inputs, outputs, binary_outputs, id, parameters)
        call = self.infer_call(model, version, headers, frame)
        return self._exchange(call, timeout).message(self.limits)

    def infer_raw(
        self,
        model: str,
        array: Any,
        *,
        version: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> tw.InferResponse:
        """Run a model of one input on an array's bare bytes: no JSON; the outputs come binary."""
        call = self.infer_call(model, version, headers, tw.encode_raw_request(array))
        return self._exchange(call, timeout).message(self.limits)

    def server_metadata(self) -> dict[str, Any]:
        """What the server says of itself: ``name``, ``version``, ``extensions``."""
        return self._exchange(self.call("GET", "/v2", None)).json(self.limits)

    def model_metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """What a model declares: ``inputs``, ``outputs``, ``versions``, ``platform``."""
        return self._exchange(self.call("GET", model_path(model, version), None)).json(self.limits)

    def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Whether the server, or a model, is ready; False too when nobody answers."""
        try:
            self._exchange(self.ready_call(model, version))
        except (InferenceServerError, ConnectionError, TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Close the connections that are idle; those in use close when they are done."""
        self._closed = True
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _exchange(self, call: Call, timeout: float | None = None) -> Answer:
        if self._closed:
            raise RuntimeError("the client is closed")
        seconds = self.timeout if timeout is None else checked_timeout(timeout)
        with _translated(call, self.origin):
            response = self._pool.urlopen(
                call.method,
                call.path,
                body=call.body,
                headers=call.headers,
                timeout=urllib3.Timeout(connect=seconds, read=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            try:
                answer = self._read(response)
            except BaseException:
                response.close()  # the rest of the answer must not meet the next request
                raise
            finally:
                response.release_conn()
        return answer

    def _read(self, response: urllib3.BaseHTTPResponse) -> Answer:
        if not 200 <= response.status < 300:
            raise server_error(response.status, response.reason, _error_text(response))
        length = getattr(response, "length_remaining", None)
        answer = self.answer(length, response.headers.items())
        while chunk := response.read(_READ_NBYTES):
            answer.body.write(chunk)
        return answer


def _error_text(response: urllib3.BaseHTTPResponse) -> bytes:
    """What there is of an error's body: its status counts even if the connection breaks."""
    try:
        return response.read(ERROR_NBYTES)
    except urllib3.exceptions.HTTPError:
        return b""


@contextmanager
def _translated(call: Call, origin: str) -> Iterator[None]:
    """Python's own exceptions for a transport that fails, whatever the library is."""
    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        kind = TimeoutError if _is_timeout(error) else ConnectionError
        raise kind(failure(call, origin, error)) from error


def _is_timeout(error: urllib3.exceptions.HTTPError) -> bool:
    if isinstance(error, urllib3.exceptions.NewConnectionError):  # refused; a timeout by name only
        return False
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return True
    # A timeout of sending comes as a ProtocolError around it.
    return any(isinstance(cause, TimeoutError) for cause in error.args)
