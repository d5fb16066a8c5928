"""Serve with gRPC: the service ``inference.GRPCInferenceService`` on a server of ``grpc.aio``.

There are no generated classes: grpcio passes each message as ``bytes``, and the codec reads it.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, copy_context
from typing import Any, TypeVar
from urllib.parse import unquote

import tensorwire as tw

from .. import grpc_messages as messages
from .._codec.grpc.reader import nbytes_besides_raw, read_fields, read_names
from .._codec.grpc.writer import write_fields
from ..arguments import check_type
from ..errors import TensorwireError
from ..grpc import decode_request, encode_response, encode_stream_response
from ..grpc_messages import DATA_TYPES, MODEL_REQUEST, NO_FIELDS, SERVICE, STREAM_ERROR, Fields
from ..sizes import MAX_QUICK_JSON_NBYTES, MAX_QUICK_MESSAGE_NBYTES, MAX_SHARED_JSON_NBYTES
from ..threads import InThread, read_without_blocking
from .client_calls import ClientCall
from .context import RequestContext, set_headers
from .errors import SHUTTING_DOWN
from .inference import Inference, MessageFormat, ServedModel, is_cancelled
from .model import Model, ModelFunction
from .service import Service

try:
    import grpc
    import grpc.aio

    from .grpc_calls import OpenCalls, check_length
except ModuleNotFoundError:
    raise ImportError("gRPC requires grpcio: pip install 'tensorwire[grpc]'") from None

HEALTH_SERVICE = "grpc.health.v1.Health"
HEALTH_REQUEST: Fields = {1: ("service", str)}
# The HealthCheckResponses. Field 1 is an enum.
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


# The methods without inference: the endpoint of the application, the request and the response.
SMALL_METHODS = {
    "ServerLive": ("live", NO_FIELDS, messages.LIVE_RESPONSE),
    "ServerReady": ("ready", NO_FIELDS, messages.READY_RESPONSE),
    "ServerMetadata": ("server", NO_FIELDS, messages.SERVER_METADATA_RESPONSE),
    "ModelReady": ("ready", MODEL_REQUEST, messages.READY_RESPONSE),
    "ModelMetadata": ("model", MODEL_REQUEST, messages.MODEL_METADATA_RESPONSE),
    "ModelConfig": ("config", MODEL_REQUEST, messages.MODEL_CONFIG_RESPONSE),
    "ModelStatistics": ("stats", MODEL_REQUEST, messages.MODEL_STATISTICS_RESPONSE),
    "RepositoryIndex": ("index", NO_FIELDS, messages.REPOSITORY_INDEX_RESPONSE),
}


def reading_nbytes(message: bytes) -> int:
    """Return how many bytes take time to read, or any number above the limits for that.

    The bytes that are not raw contents limit the number of fields and of elements of typed
    contents.
    """
    nbytes = len(message)
    if MAX_SHARED_JSON_NBYTES < nbytes <= MAX_QUICK_MESSAGE_NBYTES:
        return nbytes_besides_raw(message, MAX_QUICK_JSON_NBYTES)
    return nbytes


class GrpcFormat(MessageFormat[bytes, bytes]):
    """The messages of ModelInfer, or of ModelStreamInfer."""

    reading_nbytes: Callable[..., int] = staticmethod(reading_nbytes)

    async def read_slowly(self, received: bytes, decode: Callable[[], None], run: InThread) -> None:
        await read_without_blocking(reading_nbytes(received), decode, run=run)

    def decode(self, received: bytes, model: Model) -> tw.InferRequest:
        return decode_request(received, limits=self.limits)

    def request_id(self, source: str) -> str:
        return source

    def is_slow_to_encode(self, nbytes: int, request: tw.InferRequest) -> bool:
        return nbytes > MAX_QUICK_MESSAGE_NBYTES


def context_of(call: Any) -> RequestContext:
    """Return what a model may know of a call."""
    metadata = [
        (name, b64encode(value) if isinstance(value, bytes) else value)
        for name, value in call.invocation_metadata() or ()
    ]
    kind, _, address = unquote(call.peer()).partition(":")
    host, _, port = address.rpartition(":")
    client = (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") else None
    remaining = call.time_remaining()
    return RequestContext(
        metadata, client, None if remaining is None else time.monotonic() + remaining
    )


def id_of(call: Any) -> str:
    """Return the id in the metadata of a call. grpcio frees the metadata when the call ends."""
    return str(dict(call.invocation_metadata() or ()).get("x-request-id", ""))


def set_metadata(call: Any, context: RequestContext) -> None:
    """Add the headers that a model has set to the trailing metadata of a call."""
    if headers := set_headers(context):
        others = [pair for pair in call.trailing_metadata() or () if pair[0] not in headers]
        call.set_trailing_metadata((*others, *headers.items()))


Result = TypeVar("Result")
Failed = Callable[[BaseException, str], bytes]  # the error and the id of the request


def encode_final_response(
    response: tw.InferResponse, request: tw.InferRequest | None = None
) -> bytes:
    """Encode the only response to a request of a stream. Clients read until one is the final."""
    parameters = {**response.parameters, "triton_final_response": True}
    return encode_stream_response(response.replace(parameters=parameters), request)


class InferenceService:
    def __init__(self, service: Service, limit_concurrency: int | None = None) -> None:
        self._service = service
        shared = service.threads, service.concurrency, service.limits
        self._unary = GrpcFormat(*shared, encode_response)
        self._stream = GrpcFormat(*shared, encode_final_response)
        # The requests in progress. If a client does not wait for the response, its request remains
        # here until the model returns: models are not interrupted.
        self.tasks: set[asyncio.Task[Any]] = set()
        self.calls = OpenCalls(service, limit_concurrency)

    def handlers(self) -> tuple[Any, Any]:
        """Return the handlers of the service and of ``grpc.health.v1.Health``.

        Kubernetes and load balancers call the second one. Its messages have one field, so that the
        package grpcio-health-checking, which requires protobuf, is not needed.
        """
        calls = self.calls
        unary, stream = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods = {
            name: unary(calls.small_method(self._respond_with(*method)))
            for name, method in SMALL_METHODS.items()
        }
        methods["ModelInfer"] = unary(calls.method(self._model_infer))
        methods["ModelStreamInfer"] = stream(calls.method(self._model_stream_infer))
        health = {
            "Check": unary(calls.small_method(self._check)),
            "Watch": stream(calls.method(self._watch)),
        }
        return (
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(HEALTH_SERVICE, health),
        )

    def _respond_with(
        self, endpoint: str, request: Fields, response: Fields
    ) -> Callable[[bytes], bytes]:
        def respond(message: bytes) -> bytes:
            wanted = read_fields(message, request, self._service.limits)
            served = None
            if wanted and (wanted["name"] or endpoint != "stats"):  # "" means all models
                key = wanted["name"], wanted["version"]
                if endpoint == "ready" and key not in self._service.served:
                    return write_fields({"ready": False}, response)
                served = self._find(*key)
            found = self._service.describe(endpoint, served)
            if endpoint == "index":
                found = {"models": found}
            elif endpoint == "config":
                for tensor in (*found["input"], *found["output"]):
                    tensor["data_type"] = DATA_TYPES.index(tensor["data_type"])
                parameters = found["parameters"].items()
                found["parameters"] = [{"key": key, "value": [each]} for key, each in parameters]
                found = {"config": [found]}
            elif endpoint == "stats":
                for each in found["model_stats"]:
                    durations = each["inference_stats"].items()
                    each["inference_stats"] = [{name: [value] for name, value in durations}]
            return write_fields(found, response)

        return respond

    def _find(self, name: str, version: str) -> ServedModel:
        served = self._service.served.get((name, version))
        if served is None:
            raise TensorwireError(self._service.unknown_model(name, version), status=404)
        return served

    async def _model_infer(self, context: Any) -> bytes:
        self.calls.begin_inference()
        message = await self.calls.receive(context, self._service.receive_timeout)
        return await self._infer(
            self._unary, message, context, lambda error, _: self.calls.fail(context, error)
        )

    async def _model_stream_infer(self, context: Any) -> None:
        """Respond to the requests of a stream one after another."""
        self.calls.begin_inference()
        while (message := await self.calls.read(context)) is not grpc.aio.EOF:
            result = await self._infer(self._stream, message, context, self._fail_request)
            del message
            await context.write(result)
            del result  # while the client sends nothing

    async def _infer(
        self, message_format: GrpcFormat, message: bytes, context: Any, failed: Failed
    ) -> bytes:
        """Return the response to a request, or that of ``failed``, if there is an exception."""
        call = ClientCall()
        request_id = ""
        service = self._service
        task: asyncio.Task[Any] | None = None
        early_context = request_context = None
        try:
            check_length(message, service.max_body_nbytes)
            metadata_id = id_of(context)
            nbytes = reading_nbytes(message)
            if nbytes <= MAX_SHARED_JSON_NBYTES:
                name, version, request_id = read_names(message, service.limits)
            else:
                # An interceptor may hide the end of a call from this task, and grpcio crashes if it
                # is then asked for the peer.
                early_context = context_of(context)
                task = self._begin(self._read_names(message, nbytes, call))
                name, version, request_id = await task
            served = self._find(name, version)
            if served.model.takes_context:
                request_context = early_context or context_of(context)
            inference = Inference(message_format, served, message, metadata_id, request_context)
            variables = copy_context()  # the next request of a stream must not see those it sets
            response = variables.run(inference.now) if served.model.in_event_loop else None
            if response is not None:
                return response
            task = self._begin(settle(inference, call, failed, request_id), variables)
            found: bytes = await asyncio.shield(task)
            return found
        except Exception as error:
            task = None  # it refers to the error, and thereby to this frame
            return failed(error, request_id)
        except asyncio.CancelledError as error:
            if task is not None and task.cancelled() and not is_cancelled(error):
                # By the end of the shutdown, or by the model.
                is_ending = self.calls.is_ending.is_set()
                return failed(SHUTTING_DOWN if is_ending else error, request_id)
            call.cancel()  # the client does not wait any longer
            if task is not None:  # the model may run
                self.calls.count_inference(task)
            raise
        finally:
            if request_context is not None:
                set_metadata(context, request_context)

    def _begin(
        self, work: Coroutine[Any, Any, Result], variables: Context | None = None
    ) -> asyncio.Task[Result]:
        """Begin a task for a request, for which a shutdown waits."""
        task = asyncio.get_running_loop().create_task(work, context=variables)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _read_names(
        self, message: bytes, nbytes: int, call: ClientCall
    ) -> tuple[str, str, str]:
        """Read the names of a large message. It is counted, as when it is decoded."""
        concurrency, counted = self._service.concurrency, object()
        concurrency.add(counted)
        try:
            names: tuple[str, str, str] = await read_without_blocking(
                nbytes, read_names, message, self._service.limits, run=call.in_thread
            )
            return names
        finally:
            concurrency.remove(counted, call)

    def _fail_request(self, error: BaseException, request_id: str) -> bytes:
        """Return the only response of a stream to a request that failed. It has its id."""
        text, _ = self._service.describe_failure(error)
        message = write_fields({"error_message": text, "infer_response": []}, STREAM_ERROR)
        response = tw.InferResponse([], id=request_id or None)
        return message + encode_final_response(response)  # joined messages are merged

    def _check(self, message: bytes) -> bytes:
        status = self._status(message)
        if status == SERVICE_UNKNOWN:
            raise TensorwireError("the service is not known", status=404)
        return status

    async def _watch(self, context: Any) -> None:
        calls = self.calls
        status = self._status(await calls.receive_small(context))
        await context.write(status)
        await calls.is_ending.wait()
        if status != SERVICE_UNKNOWN:
            await context.write(NOT_SERVING)

    def _status(self, message: bytes) -> bytes:
        service = read_fields(message, HEALTH_REQUEST, self._service.limits)["service"]
        if service not in ("", SERVICE):
            return SERVICE_UNKNOWN
        return NOT_SERVING if self.calls.is_ending.is_set() else SERVING


async def settle(
    inference: Inference[bytes, bytes], call: ClientCall, failed: Failed, request_id: str
) -> bytes:
    """Await the response to a request, also if its client is gone: failures are counted."""
    try:
        return await inference.later(call)
    except Exception as error:
        return failed(error, request_id)


def add_to_grpc_server(server: Any, models: Service | Mapping[str, ModelFunction | Model]) -> None:
    """Add the service ``inference.GRPCInferenceService`` to a server of ``grpc.aio``.

    Its methods are ServerLive, ServerReady, ServerMetadata, ModelReady, ModelMetadata, ModelConfig,
    ModelStatistics, ModelInfer, ModelStreamInfer and RepositoryIndex. A stream has one response
    for each request, in the order of the requests; the error of a request is an ``error_message``,
    and the stream continues. All responses have the parameter ``triton_final_response``, which is
    true. For interceptors, the requests of all methods are streams.

    The page "Endpoints and applications" of the manual lists the codes of errors. Exceptions of
    models are handled as by ``create_app``.

    Parameters
    ----------
    server : grpc.aio.Server
        The server, before it is started. By default, it rejects messages of more than 4 MiB: set
        its option ``grpc.max_receive_message_length`` as in the example.
    models : application or mapping of str to callable or Model
        The application of ``create_app``, whose models, limits and threads are used for gRPC, too;
        or what ``create_app`` takes.

    Raises
    ------
    TypeError
        ``server`` is not a server of ``grpc.aio``, or ``models`` has the wrong type.
    ValueError
        The name of a model is invalid.

    Examples
    --------
    >>> import grpc
    >>> from tensorwire.server import add_to_grpc_server
    >>> async def serve(models):
    ...     options = [("grpc.max_receive_message_length", 2**31 - 1)]
    ...     server = grpc.aio.server(options=options)
    ...     add_to_grpc_server(server, models)
    ...     server.add_insecure_port("127.0.0.1:8001")
    ...     await server.start()
    ...     await server.wait_for_termination()
    """
    check_type("server", server, grpc.aio.Server, "a server of grpc.aio")
    service = models if isinstance(models, Service) else Service(models)
    server.add_generic_rpc_handlers(InferenceService(service).handlers()[:1])  # without health
