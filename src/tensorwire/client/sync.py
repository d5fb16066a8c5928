"""The blocking client, which uses urllib3."""

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

_READ_NBYTES = 256 << 10  # small enough that a chunk stays in the CPU cache until it is copied


class Client(BaseClient):
    """A client for a server of the Open Inference Protocol.

    It keeps a pool of connections, and is thread-safe. Requests are not retried, and redirects are
    not followed.

    Parameters
    ----------
    url : str
        The address of the server: ``http://host:8000``, ``https://host`` or ``host:8000``. If it
        has a path, the path is inserted before ``/v2``.
    timeout : float or None, default 60.0
        Timeout in seconds for connecting, and for each single send or receive operation. It does
        not limit the duration of a whole call. None means no timeout.
    max_body : int or None, default 2**31 - 1
        Maximum length of a response body in bytes. None means no limit.
    limits : Limits, optional
        The limits for ``decode_response``. They also apply to metadata.
    headers : mapping of str to str, optional
        Headers that are sent with every request.
    connections : int, default 32
        Maximum number of open connections. If all of them are in use, further calls wait.
    ssl_context : ssl.SSLContext, optional
        The TLS settings for an ``https`` URL. Certificates are verified by default.

    Raises
    ------
    ValueError
        The URL, ``timeout``, ``connections`` or a header is invalid.

    Notes
    -----
    The methods that send a request raise these exceptions:

    - ``InferenceServerError`` if the server responds with an error;
    - ``DecodeError`` if the response is not a valid message; its ``status`` is 413 if the response
      is longer than ``max_body``;
    - ``ConnectionError`` if the connection fails or is closed before the response is complete;
    - ``TimeoutError`` if the server does not respond in time;
    - ``RuntimeError`` if the client is closed.

    For an InferenceServerError, ConnectionError or TimeoutError, ``is_ready`` returns False instead
    of raising the exception. The ``__cause__`` of a ConnectionError or TimeoutError is the
    exception of urllib3.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorwire.client import Client
    >>> client = Client("localhost:8000", timeout=10)
    >>> client
    <Client of http://localhost:8000>
    >>> image = np.zeros((1, 3, 224, 224), np.float32)
    >>> client.infer("resnet", {"image": image})["scores"].as_numpy()    # doctest: +SKIP
    array([[0.1, 0.9]], dtype=float32)
    >>> client.close()
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
        """Run inference.

        Parameters
        ----------
        model : str
            The name of the model.
        inputs : mapping of str to array, or iterable of Tensor
            The inputs. Large inputs are not copied. Their memory must not change until the call
            returns.
        outputs : iterable of str or RequestedOutput, optional
            The outputs to return. By default, the server returns all outputs.
        binary_outputs : bool, default True
            Whether to request all outputs as binary data. The ``binary`` of a RequestedOutput and
            a ``binary_data_output`` in ``parameters`` take precedence.
        version : str, optional
            The version of the model. By default, the server chooses one.
        id : str, optional
            The id of the request. The server returns it in the response.
        parameters : mapping, optional
            The parameters of the request.
        headers : mapping of str to str, optional
            Additional headers for this request.
        timeout : float, optional
            Timeout in seconds for this call. By default, the timeout of the client applies.

        Returns
        -------
        InferResponse
            Its binary tensors are writable views of the response body, which is kept until the last
            of them is released. The first one is aligned to 64 bytes (WIRE.md 6).

        Raises
        ------
        InferenceServerError, DecodeError, ConnectionError, TimeoutError, RuntimeError
            See ``Client``.
        EncodeError
            The request cannot be encoded.
        ValueError
            ``timeout`` or a header is invalid.
        TypeError
            An argument has the wrong type.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     response = client.infer("add", {"x": np.ones(2), "y": np.ones(2)}, ["sum"])
        >>> response["sum"].as_numpy()                                   # doctest: +SKIP
        array([2., 2.])
        """
        frame = encode(inputs, outputs, binary_outputs, id, parameters)
        request = self._infer_request(model, version, headers, frame)
        return self._exchange(request, timeout).decode(self.limits)

    def infer_raw(
        self,
        model: str,
        array: Any,
        *,
        version: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> tw.InferResponse:
        """Run inference with a raw binary request, on a model with one input (WIRE.md 5).

        The body of the request is the data of the array. The model defines the name, the datatype
        and the shape of the input. The server returns all outputs as binary data.

        Parameters
        ----------
        model : str
            The name of the model.
        array : array_like, bytes or str
            The input; see ``encode_raw_request``. Its memory must not change until the call
            returns.
        version, headers, timeout
            See ``infer``.

        Returns
        -------
        InferResponse
            See ``infer``.

        Raises
        ------
        InferenceServerError, DecodeError, ConnectionError, TimeoutError, RuntimeError
            See ``Client``.
        EncodeError, ValueError, TypeError
            See ``infer``.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     response = client.infer_raw("mean", np.ones(1000, np.float32))
        """
        request = self._infer_request(model, version, headers, tw.encode_raw_request(array))
        return self._exchange(request, timeout).decode(self.limits)

    def server_metadata(self) -> dict[str, Any]:
        """Return the metadata of the server.

        Returns
        -------
        dict
            The JSON object of the server, usually with ``name``, ``version`` and ``extensions``.

        Raises
        ------
        InferenceServerError, DecodeError, ConnectionError, TimeoutError, RuntimeError
            See ``Client``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.server_metadata()["extensions"]
        ['binary_tensor_data']
        """
        return self._exchange(self._request("GET", "/v2")).parse_metadata(self.limits)

    def model_metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return the metadata of a model.

        Parameters
        ----------
        model : str
            The name of the model.
        version : str, optional
            The version of the model. By default, the server chooses one.

        Returns
        -------
        dict
            The JSON object of the server, usually with ``name``, ``versions``, ``platform``,
            ``inputs`` and ``outputs``.

        Raises
        ------
        InferenceServerError, DecodeError, ConnectionError, TimeoutError, RuntimeError
            See ``Client``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.model_metadata("resnet")["inputs"]
        [{'name': 'image', 'datatype': 'FP32', 'shape': [-1, 3, 224, 224]}]
        """
        request = self._request("GET", model_path(model, version))
        return self._exchange(request).parse_metadata(self.limits)

    def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Return whether the server, or one of its models, is ready.

        Parameters
        ----------
        model : str, optional
            The name of a model. By default, the server as a whole is checked.
        version : str, optional
            The version of the model. By default, the server chooses one.

        Returns
        -------
        bool
            False if the server responds with an error, the connection fails or a timeout expires.

        Raises
        ------
        DecodeError, RuntimeError
            See ``Client``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.is_ready("resnet")
        True
        """
        try:
            self._exchange(self._readiness_request(model, version))
        except (InferenceServerError, ConnectionError, TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Close the idle connections. The other connections are closed when their calls return."""
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

    def _exchange(self, request: Request, timeout: float | None = None) -> ResponseBody:
        if self._closed:
            raise RuntimeError("the client is closed")
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        with _standard_exceptions(request, self.origin):
            response = self._pool.urlopen(
                request.method,
                request.path,
                body=request.body,
                headers=request.headers,
                timeout=urllib3.Timeout(connect=seconds, read=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            try:
                body = self._read(response)
            except BaseException:
                response.close()  # do not reuse a connection with unread data
                raise
            finally:
                response.release_conn()
        return body

    def _read(self, response: urllib3.BaseHTTPResponse) -> ResponseBody:
        if not 200 <= response.status < 300:
            raise server_error(response.status, response.reason, _read_error(response))
        content_length = getattr(response, "length_remaining", None)
        body = self._response_body(content_length, response.headers.items())
        while chunk := response.read(_READ_NBYTES):
            body.buffer.write(chunk)
        return body


def _read_error(response: urllib3.BaseHTTPResponse) -> bytes:
    """Return the start of the body of an error response; empty if the connection breaks."""
    try:
        return response.read(ERROR_NBYTES)
    except urllib3.exceptions.HTTPError:
        return b""


@contextmanager
def _standard_exceptions(request: Request, origin: str) -> Iterator[None]:
    """Raise ConnectionError and TimeoutError instead of urllib3's exceptions."""
    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        kind = TimeoutError if _is_timeout(error) else ConnectionError
        raise kind(connection_error_text(request, origin, error)) from error


def _is_timeout(error: urllib3.exceptions.HTTPError) -> bool:
    # This class is a subclass of a timeout class, but is raised for a refused connection.
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return False
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return True
    # If sending times out, urllib3 raises a ProtocolError whose arguments contain the timeout.
    return any(isinstance(cause, TimeoutError) for cause in error.args)
