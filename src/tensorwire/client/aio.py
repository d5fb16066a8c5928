"""The asynchronous client, which uses aiohttp."""

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
    BaseClient,
    Headers,
    InferenceServerError,
    Inputs,
    Outputs,
    Request,
    ResponseBody,
    check_timeout,
    connection_error_text,
    encode,
    model_path,
    server_error,
)


class AsyncClient(BaseClient):
    """An asynchronous client for a server of the Open Inference Protocol.

    It has the same parameters and methods as ``Client``, and raises the same exceptions. The
    ``__cause__`` of a ConnectionError or TimeoutError is the exception of aiohttp. A client belongs
    to one event loop. It connects on the first call.

    If the server closes the connection before it responds, aiohttp sends the requests of
    ``server_metadata``, ``model_metadata`` and ``is_ready`` a second time.

    Parameters
    ----------
    url, timeout, max_body, limits, headers, connections, ssl_context
        See ``Client``.

    Raises
    ------
    ValueError
        The URL, ``timeout``, ``connections`` or a header is invalid.

    Examples
    --------
    >>> from tensorwire.client import AsyncClient
    >>> async def classify(url, image):
    ...     async with AsyncClient(url) as client:
    ...         response = await client.infer("resnet", {"image": image})
    ...         return response["scores"].as_numpy()
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
        """Run inference.

        The parameters, the result and the exceptions are those of ``Client.infer``. The memory of
        the inputs must not change until the call returns.

        Examples
        --------
        >>> async def add(client, x, y):
        ...     response = await client.infer("add", {"x": x, "y": y}, ["sum"])
        ...     return response["sum"].as_numpy()
        """
        frame = encode(inputs, outputs, binary_outputs, id, parameters)
        request = self._infer_request(model, version, headers, frame)
        return (await self._exchange(request, timeout)).decode(self.limits)

    async def infer_raw(
        self,
        model: str,
        array: Any,
        *,
        version: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> tw.InferResponse:
        """Run inference with a raw binary request, on a model with one input (WIRE.md 5).

        The parameters, the result and the exceptions are those of ``Client.infer_raw``. The memory
        of the array must not change until the call returns.

        Examples
        --------
        >>> async def mean(client, array):
        ...     response = await client.infer_raw("mean", array)
        ...     return response["mean"].as_numpy()
        """
        request = self._infer_request(model, version, headers, tw.encode_raw_request(array))
        return (await self._exchange(request, timeout)).decode(self.limits)

    async def server_metadata(self) -> dict[str, Any]:
        """Return the metadata of the server.

        The result and the exceptions are those of ``Client.server_metadata``.

        Examples
        --------
        >>> async def accepts_binary_tensors(client):
        ...     return "binary_tensor_data" in (await client.server_metadata())["extensions"]
        """
        body = await self._exchange(self._request("GET", "/v2"))
        return body.parse_metadata(self.limits)

    async def model_metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return the metadata of a model.

        The parameters, the result and the exceptions are those of ``Client.model_metadata``.

        Examples
        --------
        >>> async def input_names(client, model):
        ...     return [tensor["name"] for tensor in (await client.model_metadata(model))["inputs"]]
        """
        body = await self._exchange(self._request("GET", model_path(model, version)))
        return body.parse_metadata(self.limits)

    async def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Return whether the server, or one of its models, is ready.

        The parameters, the result and the exceptions are those of ``Client.is_ready``.

        Examples
        --------
        >>> import asyncio
        >>> async def wait_until_ready(client):
        ...     while not await client.is_ready():
        ...         await asyncio.sleep(0.1)
        """
        try:
            await self._exchange(self._readiness_request(model, version))
        except (InferenceServerError, ConnectionError, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Close all connections, including those of calls that have not returned."""
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
        """Return the session. The first call creates it, which requires a running event loop."""
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections, ssl=self._ssl),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def _exchange(self, request: Request, timeout: float | None = None) -> ResponseBody:
        session = self._open()
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        limit = aiohttp.ClientTimeout(sock_connect=seconds, sock_read=seconds)
        # The server may have closed a pooled connection while the program did something else. The
        # event loop notices this in its next iteration, and aiohttp in the one after it.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with _standard_exceptions(request, self.origin):
            async with (
                asyncio.timeout(None) as send_timeout,
                session.request(
                    request.method,
                    URL(self.origin + request.path, encoded=True),
                    data=_data(request, send_timeout, seconds),
                    headers=request.headers,
                    timeout=limit,
                    allow_redirects=False,
                ) as response,
            ):
                return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> ResponseBody:
        if not 200 <= response.status < 300:
            raise server_error(response.status, response.reason, await _read_error(response))
        body = self._response_body(response.content_length, response.headers.items())
        async for chunk in response.content.iter_any():
            body.buffer.write(chunk)
        return body


def _data(
    request: Request, send_timeout: asyncio.Timeout, seconds: float | None
) -> bytes | AsyncIterator[Any] | None:
    body = request.body
    if body is None or isinstance(body, bytes):
        return body
    return _chunks_in_time(body, send_timeout, seconds)


async def _chunks_in_time(
    chunks: Iterator[Any], send_timeout: asyncio.Timeout, seconds: float | None
) -> AsyncIterator[Any]:
    """Yield the chunks, and restart the timeout before each of them.

    aiohttp has no timeout for sending. It requests the next chunk only when most of the previous
    one has been sent.
    """
    now = asyncio.get_running_loop().time
    for chunk in chunks:
        if seconds is not None:
            send_timeout.reschedule(now() + seconds)
        yield chunk
    send_timeout.reschedule(None)  # while the response is read, sock_read applies instead


async def _read_error(response: aiohttp.ClientResponse) -> bytes:
    """Return the start of the body of an error response; less of it if the connection breaks."""
    text = b""
    try:
        while len(text) < ERROR_NBYTES and (chunk := await response.content.readany()):
            text += chunk
    except (aiohttp.ClientError, OSError):
        pass
    return text


@contextmanager
def _standard_exceptions(request: Request, origin: str) -> Iterator[None]:
    """Raise ConnectionError and TimeoutError instead of aiohttp's exceptions."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError) as error:
        kind = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
        raise kind(connection_error_text(request, origin, error)) from error
