"""The application that serves models with ASGI and RSGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import tensorwire as tw

from ..arguments import Nonfinite
from . import asgi
from .body import DEFAULT_MAX_BODY, DEFAULT_RECEIVE_TIMEOUT
from .http import Selection
from .model import Function, Model
from .service import Service
from .workers import DEFAULT_MAX_CONCURRENCY


class App(Service):
    """The application that ``create_app`` returns."""

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Respond to an ASGI event."""
        await asgi.respond(self, scope, receive, send)

    @property
    def __rsgi__(self) -> Callable[[Any, Any], Awaitable[None]]:
        """The function that responds to an RSGI request."""
        from . import rsgi  # noqa: PLC0415 - it needs granian, which has been imported by now

        return partial(rsgi.respond, self)


def create_app(
    models: Mapping[str, Function | Model],
    *,
    max_body: int = DEFAULT_MAX_BODY,
    limits: tw.Limits | None = None,
    selection: Selection = "spec",
    nonfinite: Nonfinite = "null",
    receive_timeout: float | None = DEFAULT_RECEIVE_TIMEOUT,
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY,
    zero_copy: bool = False,
    compress_responses: bool = False,
    metrics: bool = False,
) -> App:
    """Return an application that serves models by name, with ASGI and RSGI.

    The endpoints are ``GET /v2``, ``GET /v2/health/live``, ``GET /v2/health/ready``,
    ``GET /v2/models/{name}``, ``GET /v2/models/{name}/ready`` and
    ``POST /v2/models/{name}/infer``; and, in the form of Triton, ``GET /v2/models/{name}/config``,
    ``GET /v2/models/{name}/stats``, ``GET /v2/models/stats`` and ``POST /v2/repository/index``. The
    paths of a model may contain ``/versions/{version}`` after the name. The only version is 1.

    Errors are responses with a JSON body ``{"error": ...}`` and one of these statuses: 400 (invalid
    request), 404 (unknown path, model or version), 405 (wrong method), 408 (the body did not arrive
    in time), 413 (body too long), 415 (unknown Content-Encoding), 500 (the model failed) and 503
    (too many requests). A model chooses another one with ``RequestError``. Any other exception of a
    model is logged by the logger ``tensorwire.server`` and is not sent to the client.

    Parameters
    ----------
    models : mapping of str to callable or Model
        A callable takes an ``InferRequest``, and returns an ``InferResponse`` or a mapping of
        output names to arrays, lists or numbers. An async function is awaited. Any other function
        is called in a thread pool. A ``Model`` is a function with declared inputs and outputs.
    max_body : int, default 2**31 - 1
        Maximum length of a request body in bytes, before and after decompression.
    limits : Limits, optional
        The limits for ``decode_request``.
    selection : {"spec", "triton"}, default "spec"
        The rule that determines which outputs are binary; see ``encode_response``.
    nonfinite : {"null", "literal", "error"}, default "null"
        How to write NaN and infinities in outputs that are sent as JSON. By default, they become
        ``null``, as in KServe, so that an infinity is lost: clients read NaN, or a missing value.
        With "literal", they are written as Triton does, which strict JSON parsers reject. With
        "error", the response is an error with status 500. Binary outputs and gRPC are exact.
    receive_timeout : float or None, default 300.0
        Time in seconds in which the whole body of a request must arrive. None means no limit. With
        ``InferProtocol``, the time includes the headers, and a client that reads nothing of its
        response for this time is disconnected.
    max_concurrency : int, default 1000
        Maximum number of inference requests of a process that have arrived and are in progress or
        wait for a thread. Requests whose body is arriving or whose response is being sent are not
        counted. Further requests are rejected with status 503. A request that waits for a thread is
        dropped if its client disconnects. Requests to a model with ``in_event_loop`` that returns
        at once are not counted.
    zero_copy : bool, default False
        Whether to send large ASGI responses as memoryviews of the arrays, which saves a copy.
        uvicorn accepts memoryviews. ASGI only requires ``bytes``, so other servers may not.
    compress_responses : bool, default False
        Whether to compress inference responses with zstd, gzip or deflate if the client asks for it
        with Accept-Encoding. Responses of less than 1 KiB and errors are not compressed. Most
        floating-point data hardly becomes smaller, and gzip is slower than most networks.
    metrics : bool, default False
        Whether to serve metrics for Prometheus at ``GET /metrics``, which requires
        prometheus_client. They are in its default registry.

    Returns
    -------
    App
        The application. It sends responses from the memory of the arrays that the models return,
        so a model must not modify an array after returning it.

    Raises
    ------
    ImportError
        ``metrics`` is true, and prometheus_client is not installed.
    TypeError
        An argument has the wrong type, or a model is neither callable nor a ``Model``.
    ValueError
        ``max_body``, ``selection``, ``nonfinite``, ``receive_timeout``, ``max_concurrency`` or the
        name of a model is invalid.

    Examples
    --------
    >>> from tensorwire import TensorSpec
    >>> from tensorwire.server import Model, create_app
    >>> def double(request):
    ...     return {"y": request["x"].as_numpy() * 2}
    >>> app = create_app({"double": Model(double, [TensorSpec("x", "FP32", [-1])])})

    Serve it with ``tensorwire serve module:app``, with any ASGI server, for example
    ``uvicorn --http h11 --ws none module:app``, or with ``granian --interface rsgi module:app``.
    """
    return App(
        models,
        max_body=max_body,
        limits=tw.Limits() if limits is None else limits,
        selection=selection,
        nonfinite=nonfinite,
        receive_timeout=receive_timeout,
        max_concurrency=max_concurrency,
        zero_copy=zero_copy,
        compress_responses=compress_responses,
        metrics=metrics,
    )
