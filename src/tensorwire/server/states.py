"""The states of an HTTP/1.1 connection: what the client does, and what the server waits for.

``Receiver`` (receiver.py) changes ``ClientState``: when the parser calls it with what has arrived,
at the end of the input (``end_of_input``), if there is no memory (``buffer``, ``continue_body``),
or when the ``Connection`` wants nothing more (``reject``, ``ignore_rest``). ``Connection``
(connection.py) changes ``ServerState``, in ``_enter``, ``start`` and ``_abort``. There,
``_set_deadline`` has the time of each state, ``_tick_waiting`` that of WAITING until the client has
read a large reply, ``_tick_ending`` that of LINGERING and CLOSING when it has read everything, and
``tick`` what happens at its end. A shutdown is not a state: ``Connection.grace_left`` is finite
then.
"""

from __future__ import annotations

from enum import Enum, auto


class ClientState(Enum):
    """What the client is doing: ``Receiver.state``."""

    IDLE = auto()  # it has sent nothing of the next request
    HEAD = auto()  # it sends the head of a request
    BODY = auto()  # it sends the rest of a request, if any, which is the last of `requests`
    IGNORED = auto()  # what it sends from now on is discarded; replies may still be due
    CLOSED = auto()  # it has closed the connection, or its sending direction; this is the last one


class ServerState(Enum):
    """What the server waits for: ``Connection.state``."""

    WAITING = auto()  # the client, which may send the next request
    RECEIVING = auto()  # the client, which sends the rest of a head or of a body
    STALLED = auto()  # memory for the body of the first request
    READY = auto()  # the transport, which runs the first request
    RUNNING = auto()  # the reply to the first request
    SENDING = auto()  # the client, which must read: a large reply (`pieces`), or several replies
    LINGERING = auto()  # the client, which closes the connection after the last reply
    CLOSING = auto()  # the transport, which sends what it has, and closes the connection
    ABORTED = auto()  # nothing: the connection is lost, or the transport drops it


# In Python 3.11, an attribute of an Enum class takes as long as a call.
IDLE, HEAD, BODY, IGNORED, CLOSED = ClientState
INPUT_OVER = (IGNORED, CLOSED)
WAITING, RECEIVING, STALLED, READY, RUNNING, SENDING, LINGERING, CLOSING, ABORTED = ServerState
ARRIVING = (RECEIVING, STALLED)
BETWEEN_REPLIES = (WAITING, RECEIVING, STALLED, READY)
ENDING = (LINGERING, CLOSING, ABORTED)
UNTIMED = (READY, RUNNING, ABORTED)  # no limit of time; ticks only if a second request waits
