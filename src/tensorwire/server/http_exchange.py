"""One request over HTTP, from its head to its reply, without I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from .._codec.messages.frame import Frame
from ..errors import TensorwireError, format_count, format_seconds
from ..threads import COMPRESSING, PACKAGE
from .body import RequestBody
from .body_memory import Reservation
from .client_calls import ClientCall
from .compressed_reply import choose_coding, is_quick_to_compress, negotiated_reply
from .context import Address, RequestContext, set_headers
from .errors import ClientDisconnectedError, OverloadedError, ReceiveTimeoutError
from .framing import AmbiguousLengthError, expects_continue
from .inference import Inference, ServedModel
from .service import DeferredReply, Reply, Route, Service

# Up to this size, a body that the reply does not need is discarded before the reply. If a server
# closes the connection while the client is still sending, the client may not receive the reply.
MAX_DISCARDED_NBYTES = 16 << 20


class Exchange(ClientCall):
    """A request whose head has arrived, and its ``route``: the result of ``Service.route``.

    A transport makes it in the event loop, and calls its methods there, in this order:

    1. It passes the body to ``write``, or receives it into ``body.buffer``, until the body ends or
       ``is_rejected`` is true. If ``take_step`` returns False, it receives nothing more, and calls
       ``take_step`` again after ``wake`` was called, which may happen in any thread. If
       ``receive_timeout`` expires, it calls ``reject_late``.
    2. It sends the ``reply``. If ``is_rejected`` is true, it sends ``closing()`` of the reply, and
       closes the connection. If the client disconnects before, it calls ``disconnect``, or
       ``cancel`` if the client certainly does not receive a reply.
    3. It calls ``close``, also if no reply was sent.

    If ``takes_context`` is true, it sets ``client`` before the second step. The names of
    ``headers`` are in lower case.
    """

    takes_context: bool = False
    client: Address | None = None
    body: RequestBody | None = None
    """None if it is discarded, because the reply does not need it, and from ``reply`` on."""
    is_rejected: bool = False
    """Whether the reply must be sent now, without the rest of the body, and be the last one."""
    _context: RequestContext | None = None
    _coding: str | None = None
    _reserved: Reservation | None = None
    _n_discarded = 0
    _is_replying = False  # the reply is made, and has to be awaited
    _is_closed = False

    def __init__(
        self,
        service: Service,
        route: Route,
        headers: Iterable[tuple[bytes, bytes]],
        wake: Callable[[], object] | None = None,
    ) -> None:
        self._service = service
        self._route = route
        self.headers = headers
        if wake is not None:
            self.wake = wake  # type: ignore[method-assign]
        if type(route) is not ServedModel:
            self.is_rejected = expects_continue(headers)
            return
        self.takes_context = route.model.takes_context
        if service.compress_responses:
            self._coding = choose_coding(headers)
        try:
            self.body = RequestBody(headers, service.max_body_nbytes, self._reservation)
        except TensorwireError as error:
            self._fail(error)
            self.is_rejected = (
                error.status == 413
                or isinstance(error, AmbiguousLengthError)
                or expects_continue(headers)
            )

    @property
    def is_immediate(self) -> bool:
        """Whether the reply is probably made without a thread or a task."""
        route = self._route
        return type(route) is not ServedModel or route.model.in_event_loop

    @property
    def is_given_up(self) -> bool:
        """Whether the body arrives too slowly while requests wait for memory."""
        return self._reserved is not None and self._reserved.is_given_up

    @property
    def has_memory(self) -> bool:
        """Whether memory is counted for the body, until the reply has been sent."""
        return self._reserved is not None and self._reserved.nbytes > 0

    def wake(self) -> object:
        """The body has memory, or is given up. This is called in any thread."""

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a chunk to the body, or discard it."""
        body = self.body
        if body is not None:
            try:
                (body.write if body.has_steps else body.buffer.write)(chunk)
            except TensorwireError as error:
                self._fail(error)
        else:
            self._n_discarded += len(chunk)
            if self._n_discarded > MAX_DISCARDED_NBYTES:
                self.is_rejected = True

    def take_step(self) -> bool:
        """Provide memory for more of the body. Return False if the body has to wait."""
        body = self.body
        if body is None or not body.has_steps:
            return True
        if self.is_given_up:
            self.reject(
                ReceiveTimeoutError(
                    f"the body arrives too slowly: {format_count('byte', body.n_arrived)} have "
                    "arrived, and requests wait for memory"
                )
            )
            return True
        try:
            return body.take_step()
        except TensorwireError as error:
            self.reject(error)
            return True

    def tick(self, now: float, is_silent: bool) -> None:
        """The body waits. ``is_silent`` says whether its client has sent nothing more."""
        self._service.body_memory.tick(now)
        if self._reserved is not None:
            self._reserved.tick(is_silent)

    def _reservation(self) -> Reservation:
        reserved = self._reserved
        if reserved is None:
            if self._is_closed:  # before its task, which decompresses the body, has begun
                raise ClientDisconnectedError("the request has ended")
            self._reserved = reserved = Reservation(
                self._service.body_memory, self.wake, self._n_arrived
            )
        return reserved

    def _n_arrived(self) -> int:
        body = self.body  # another event loop may ask
        return 0 if body is None else body.n_arrived

    def close(self) -> None:
        """End the exchange: the reply has been sent, or it never will be.

        If a thread still has the body, its memory is released when the thread has ended.
        """
        self._is_closed = True
        if self._is_replying:
            return
        if self.is_in_progress:  # the task was cancelled, for example by middleware
            self.when_ended(self.close)
            return
        self.body = None
        if self._reserved is not None:
            self._release()

    def _release(self) -> None:
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            reserved.release()

    def _fail(self, error: TensorwireError) -> None:
        self.body = None  # the rest is discarded
        self._release()
        self._route = self._service.failure_reply(error)

    def reject(self, error: TensorwireError) -> None:
        """Reply with an error now, and close the connection."""
        self._fail(error)
        self.is_rejected = True

    def reject_late(self) -> None:
        """Reject a request whose body has not arrived within ``receive_timeout``."""
        seconds = self._service.receive_timeout
        assert seconds is not None
        error: TensorwireError
        if self.body is not None and self.body.is_waiting:
            error = self._reservation().overloaded_error()
        else:
            text = f"the body did not arrive within {format_seconds(seconds)}"
            error = ReceiveTimeoutError(text)
        self.reject(error)

    def reply(self) -> Reply | Awaitable[Reply]:
        """Return the reply, or an awaitable of it if it is not made at once.

        The awaitable raises ClientDisconnectedError if the client disconnected while the request
        waited for a thread.
        """
        route = self._route
        if type(route) is Reply:
            return route
        if type(route) is DeferredReply:
            return self.in_thread(route.make, threads=PACKAGE) if route.is_slow else route.make()
        assert type(route) is ServedModel
        body, self.body = self.body, None  # the memory is released with the last array
        assert body is not None
        if body.framing.encoding:  # a thread will take memory for the decompressed bytes
            self._reservation()
        if self._reserved is not None:
            self._reserved.complete()
        if self.takes_context:
            self._context = RequestContext(self.headers, self.client)
        inference = Inference(self._service.http_format, route, body, self.headers, self._context)
        frame = None
        try:
            if route.model.in_event_loop:
                frame = inference.now()
            if frame is not None and (self._coding is None or is_quick_to_compress(frame)):
                return self._reply_with(frame)
        except Exception as error:
            return self._with_headers(self._service.failure_reply(error))
        return self._reply_later(inference, frame)

    async def _reply_later(
        self, inference: Inference[RequestBody, Frame], frame: Frame | None
    ) -> Reply:
        self._is_replying = True
        try:
            if frame is None:
                frame = await inference.later(self)
            if self._coding is not None and not is_quick_to_compress(frame):
                return await self._compress(frame)
            return self._reply_with(frame)
        except ClientDisconnectedError:
            raise
        except Exception as error:
            return self._with_headers(self._service.failure_reply(error))
        finally:
            self._is_replying = False
            if self._is_closed:
                self.close()

    async def _compress(self, frame: Frame) -> Reply:
        """Return the reply with a large frame, which is not compressed if there is too much work.

        Raises ClientDisconnectedError.
        """
        concurrency = self._service.concurrency
        counted = object()
        try:
            concurrency.add(counted)
            reply: Reply = await self.run(COMPRESSING, self._reply_with, frame)
            return reply
        except OverloadedError:  # also if no thread can be started
            self._coding = None
            return self._reply_with(frame)
        finally:
            concurrency.remove(counted, self)

    def _reply_with(self, frame: Frame) -> Reply:
        if not self._service.compress_responses:
            reply = Reply(200, frame)
        else:
            reply = negotiated_reply(frame, self._coding)
        return reply if self._context is None else self._with_headers(reply)

    def _with_headers(self, reply: Reply) -> Reply:
        """Add the headers that the model has set."""
        if self._context is None:
            return reply
        added = [(k.encode(), v.encode()) for k, v in set_headers(self._context).items()]
        return replace(reply, extra_headers=(*reply.extra_headers, *added))
