"""``max_concurrency``: how many inference requests an application works on at once."""

from __future__ import annotations

from functools import partial

from ..arguments import check_integer
from ..errors import format_count
from ..threads import ThreadCall
from .errors import OverloadedError

DEFAULT_MAX_CONCURRENCY = 1000


class Concurrency:
    """The requests in progress, also those that wait for a thread.

    Those whose models are called in the event loop and return at once are not counted. Each is
    added before it is compared with the limit, so that event loops in several threads never exceed
    it.
    """

    def __init__(self, max_concurrency: int) -> None:
        self.max_concurrency: int = check_integer("max_concurrency", max_concurrency, minimum=1)
        self.requests: set[object] = set()

    def add(self, request: object) -> None:
        """Count a request until it is removed. Raises OverloadedError; it is then not counted."""
        self.requests.add(request)
        if len(self.requests) > self.max_concurrency:
            self.requests.discard(request)
            limit = format_count("request", self.max_concurrency)
            raise OverloadedError.by("max_concurrency", f"the limit is {limit} in progress")

    def remove(self, request: object, call: ThreadCall) -> None:
        """Do not count a request any longer, or as soon as its call in a thread has ended."""
        if call.is_in_progress:  # the task was cancelled
            call.when_ended(partial(self.requests.discard, request))
        else:
            self.requests.discard(request)
