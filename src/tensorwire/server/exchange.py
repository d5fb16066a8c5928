"""One request and its reply, without I/O: what is the same for every transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from .._codec.messages.frame import Frame
from ..errors import TensorwireError, format_seconds
from ..threads import in_thread
from .body import ClientDisconnectedError, ReceiveTimeoutError, RequestBody
from .compressed import choose_coding, is_slow_to_compress, negotiated_reply
from .framing import AmbiguousLengthError, expects_continue
from .model import ServedModel
from .service import HttpModel, MakeReply, Reply, Service, describe_failure, error_reply
from .workers import ThreadCall

# Up to this size, the body of a rejected request is discarded before the reply. If a server closes
# the connection while the client is still sending, the client may not receive the reply.
MAX_DISCARDED_NBYTES = 16 << 20


class Exchange:
    """A request whose head has arrived, and its ``target``: the result of ``Service.route``.

    A transport passes the body to ``write``, or receives it into ``body``, until the body ends or
    ``is_rejected`` is true. It sends the reply that ``finish`` returns.
    """

    def __init__(
        self,
        service: Service,
        target: HttpModel | Reply | MakeReply,
        headers: Iterable[tuple[bytes, bytes]],
        wait_for_disconnect: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._service = service
        self._n_discarded = 0
        self.is_immediate = True  # whether the reply is probably made without a thread or a task
        self._reply: Reply | MakeReply | None = None
        self.body: RequestBody | None = None  # None if it is discarded: the reply does not need it
        self.thread_call = ThreadCall(wait_for_disconnect)
        # Whether the reply must be sent now, without the rest of the body, and be the last one.
        self.is_rejected = False
        if not isinstance(target, ServedModel):
            self._reply = target
            self.is_rejected = expects_continue(headers)
            return
        self._model = target
        self.is_immediate = target.model.in_event_loop
        self._coding = choose_coding(headers) if service.compress_responses else None
        try:
            self.body = RequestBody(headers, service.max_body)
        except TensorwireError as error:
            self.fail(error)
            self.is_rejected = (
                error.status == 413
                or isinstance(error, AmbiguousLengthError)
                or expects_continue(headers)
            )

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a chunk to the body, or discard it."""
        if self.body is not None:
            try:
                self.body.buffer.write(chunk)
            except TensorwireError as error:
                self.fail(error)
        else:
            self._n_discarded += len(chunk)
            if self._n_discarded > MAX_DISCARDED_NBYTES:
                self.is_rejected = True

    def fail(self, error: TensorwireError) -> None:
        """Reply with an error. The rest of the body is discarded."""
        self.body = None
        self._reply = error_reply(str(error), error.status)

    def reject(self, error: TensorwireError) -> None:
        """Reply with an error now, and close the connection."""
        self.fail(error)
        self.is_rejected = True

    def reject_late(self) -> None:
        """Reject a request whose body has not arrived within ``receive_timeout``."""
        seconds = self._service.receive_timeout
        assert seconds is not None
        self.reject(
            ReceiveTimeoutError(f"the body did not arrive within {format_seconds(seconds)}")
        )

    async def reply(self) -> Reply:
        """Return the reply, with ``Connection: close`` if the request is rejected.

        Raises ClientDisconnectedError if the client disconnected before the model ran.
        """
        reply = self.finish()
        if not isinstance(reply, Reply):
            reply = await reply
        return reply.closing() if self.is_rejected else reply

    def finish(self) -> Reply | Awaitable[Reply]:
        """Return the reply, or an awaitable of it if the model has not returned yet.

        The awaitable raises ClientDisconnectedError if the client disconnected before the model
        ran.
        """
        body, self.body = self.body, None  # the memory is released with the last array
        if body is None:
            assert self._reply is not None
            return self._reply if isinstance(self._reply, Reply) else self._reply()
        try:
            result = self._model.infer(body, self.thread_call)
            if isinstance(result, Frame) and not is_slow_to_compress(result, self._coding):
                return self._reply_with(result)
        except Exception as error:
            return failure_reply(error)
        return self._finish_later(result)

    async def _finish_later(self, result: Frame | Awaitable[Frame]) -> Reply:
        try:
            frame = result if isinstance(result, Frame) else await result
            if not is_slow_to_compress(frame, self._coding):
                return self._reply_with(frame)
            reply: Reply = await in_thread(self._reply_with, frame)
            return reply
        except ClientDisconnectedError:
            raise
        except Exception as error:
            return failure_reply(error)

    def _reply_with(self, frame: Frame) -> Reply:
        if not self._service.compress_responses:
            return Reply(200, frame)
        return negotiated_reply(frame, self._coding)


def failure_reply(error: BaseException) -> Reply:
    """Return the reply for an exception, and log it if it is unexpected."""
    return error_reply(*describe_failure(error))
