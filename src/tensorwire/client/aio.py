"""The asynchronous client, on aiohttp."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import tensorwire as tw

try:
    import aiohttp
    from yarl import URL
except ImportError:
    raise ImportError("AsyncClient needs aiohttp: pip install 'tensorwire[client]'") from None

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


class AsyncClient(BaseClient):
    """``Client`` for one event loop: the same options, calls and exceptions, awaited.

    It connects with the first call; what aiohttp says of a failure is the ``__cause__``. aiohttp
    asks once more for metadata and readiness when the connection breaks before the answer.
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
        self._connections = connections
        self._ssl = True if ssl_context is None else ssl_context
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def infer(
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
        """Run a model; see ``Client.infer``. The inputs' memory must not change meanwhile."""
        frame = encode(inputs, outputs, binary_outputs, id, parameters)
        call = self.infer_call(model, version, headers, frame)
        return (await self._exchange(call, timeout)).message(self.limits)

    async def infer_raw(
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
        return (await self._exchange(call, timeout)).message(self.limits)

    async def server_metadata(self) -> dict[str, Any]:
        """What the server says of itself: ``name``, ``version``, ``extensions``."""
        return (await self._exchange(self.call("GET", "/v2", None))).json(self.limits)

    async def model_metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """What a model declares: ``inputs``, ``outputs``, ``versions``, ``platform``."""
        call = self.call("GET", model_path(model, version), None)
        return (await self._exchange(call)).json(self.limits)

    async def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Whether the server, or a model, is ready; False too when nobody answers."""
        try:
            await self._exchange(self.ready_call(model, version))
        except (InferenceServerError, ConnectionError, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Close all connections, those in use as well."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _open(self) -> aiohttp.ClientSession:
        """The session, made within the event loop that it belongs to."""
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections, ssl=self._ssl),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def _exchange(self, call: Call, timeout: float | None = None) -> Answer:
        session = self._open()
        seconds = self.timeout if timeout is None else checked_timeout(timeout)
        limit = aiohttp.ClientTimeout(sock_connect=seconds, sock_read=seconds)
        # The server may have closed a pooled connection while this program was busy elsewhere. The
        # loop hears of it in one round, and aiohttp in the next.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with _translated(call, self.origin):
            async with (
                asyncio.timeout(None) as sending,
                session.request(
                    call.method,
                    URL(self.origin + call.path, encoded=True),
                    data=_data(call, sending, seconds),
                    headers=call.headers,
                    timeout=limit,
                    allow_redirects=False,
                ) as response,
            ):
                return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> Answer:
        if not 200 <= response.status < 300:
            raise server_error(response.status, response.reason, await _error_text(response))
        answer = self.answer(response.content_length, response.headers.items())
        async for chunk in response.content.iter_any():
            answer.body.write(chunk)
        return answer


def _data(
    call: Call, sending: asyncio.Timeout, seconds: float | None
) -> bytes | AsyncIterator[Any] | None:
    body = call.body
    if body is None or isinstance(body, bytes):
        return body
    return _in_time(body, sending, seconds)


async def _in_time(
    pieces: Iterator[Any], sending: asyncio.Timeout, seconds: float | None
) -> AsyncIterator[Any]:
    """The pieces, each to be sent within ``seconds``: aiohttp has no timeout for that.

    It asks for the next when the socket has taken most of the last, and buffers no more.
    """
    now = asyncio.get_running_loop().time
    for piece in pieces:
        if seconds is not None:
            sending.reschedule(now() + seconds)
        yield piece
    sending.reschedule(None)  # from here on it is sock_read


async def _error_text(response: aiohttp.ClientResponse) -> bytes:
    """What there is of an error's body: its status counts even if the connection breaks."""
    text = b""
    try:
        while len(text) < ERROR_NBYTES and (chunk := await response.content.readany()):
            text += chunk
    except (aiohttp.ClientError, OSError):
        pass
    return text


@contextmanager
def _translated(call: Call, origin: str) -> Iterator[None]:
    """Python's own exceptions for a transport that fails, whatever the library is."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError) as error:
        kind = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
        raise kind(failure(call, origin, error)) from error
