"""Thousands of messages to tensorwire and a live Triton, which must treat them alike.

A message is decoded by tensorwire and encoded again, with Triton's selection of outputs. A
different result must be explained by a row of DIFFERENCES. Other messages, and more of them:

    TENSORWIRE_TEST_SCALE=10 pytest -m "" --hypothesis-seed=7 tests/interop/test_differential.py
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given

import tensorwire as tw
from interop.triton_messages import BASES, Message, messages
from interop.triton_models import MODELS
from interop.triton_server import running_triton
from support import reference
from support.case_types import same
from support.scale import SCALE, scaled
from support.strategies import run_examples

pytestmark = pytest.mark.nightly(reason="it compares thousands of messages")

HEADER_LENGTH = "Inference-Header-Content-Length"
BACKEND = ("incomplete string data", "Failed to process the request", "Stub process")
UNHEALTHY = "is not healthy"
REPLY_SECONDS = 5.0
STOP_SECONDS = 0.5  # a server whose backend has stopped does not stop by itself
N_RANDOM = 2000


class Verdict(NamedTuple):
    """The result of one side: "accepted", "rejected", or "backend".

    "backend": Triton's front end accepted the message, and its Python backend rejected it or
    stopped.
    """

    what: str
    text: str = ""
    tensors: list[dict[str, Any]] | None = None  # None if the answer is malformed


# --- the differences ------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A row of WIRE.md 10. The numbers in `why` are its sections.

    `ours` and `theirs` are patterns for the error, or None if that side accepts; `body` is one for
    the body.
    """

    id: str
    why: str
    ours: str | None
    theirs: str | None
    body: bytes = b""

    def explains(self, message: Message, mine: Verdict, theirs: Verdict) -> bool:
        is_body = re.search(self.body, message.body) is not None
        return is_body and matches(self.ours, mine) and matches(self.theirs, theirs)


def matches(pattern: str | None, verdict: Verdict) -> bool:
    if pattern is None:
        return verdict.what != "rejected"  # the server accepts what only its backend rejects
    return verdict.what != "accepted" and re.search(pattern, verdict.text) is not None


STOPPED = "not healthy|the server ended"
EMPTY = rb'"shape":\[[^\]]*-?\b0\b'

DIFFERENCES = (
    # accepted by Triton
    Difference("B7 to B12 header length", "a length has only digits, at most 20 (1)",
               "Content-Length is|two header lengths", None),
    Difference("R7 empty body", "0 must be explicit (1)", "header is empty", None),
    Difference("J23 byte order mark", "not allowed in transmitted JSON (3)", "malformed", None,
               b"^\xef\xbb\xbf"),
    Difference("B16 NUL after the JSON", "not JSON (3)", "malformed", None, b"\0"),
    Difference("J5 Inf, -Inf, -NaN", "no server is known to write them (4)", "malformed", None,
               b"Inf|-NaN"),
    Difference("Y16, Y17 invalid UTF-8", "not JSON (3, 4)", "not (valid )?UTF-8|malformed|deep",
               None, rb"[\x80-\xff]|\\ud"),
    Difference("J5 NaN outside FP data", "not JSON (3)", "malformed|must be", None,
               b"NaN|Infinity"),
    Difference("J24 equal keys", "all readers must read the same message (3)", "twice", None),
    Difference("C39 model_name, model_version", "a string is required (3)", "must be a string",
               None, b'"model_(name|version)"'),
    Difference("X3 parameters of an input or output", "an object is required (3)",
               "must be an object", None, b'"parameters"'),
    Difference("X6 NUL in a name or datatype", "two names could become equal (3)",
               "contains a NUL|unknown datatype", None, rb"\\u0000"),
    Difference("C25 duplicate output", "as newer versions of Triton (3)", "output .*appears twice",
               None),
    Difference("J18, J19 data of an empty tensor", "data and shape contradict each other (3, 4)",
               "JSON data|has none|must be|out of range", None, EMPTY),
    Difference("J1, J2 empty FP16 and BF16 as JSON", "no JSON form (4)",
               "can only be sent as binary data", None, EMPTY),
    Difference("J7 FP32 out of range", "the value would change (4)", "out of range for FP32", None),
    Difference("J8 integers out of range", "the value would change (4)", "out of range for U?INT",
               None),
    Difference("X19 many nested lists and objects", "as newer versions of Triton (4, 11)", "deep",
               None),
    Difference("R14 BOOL bytes above 1", "invalid in numpy (2)", "must be 0 or 1", None),
    # accepted by Triton's front end; rejected by its backend, or the backend stops
    Difference("Y4, Y6 truncated last element", "must not depend on the model (3)",
               "is truncated: its prefix declares", "incomplete string data"),
    Difference("a shape that overflows, or beyond the memory", "there is no such tensor (3, 4)", "",
               STOPPED),
    Difference("C15 a shape that overflows to an empty one", "there is no such tensor (3)",
               "too large to address|can only be sent as binary data", None, rb"\d{19}"),
    # rejected by Triton
    Difference("X6 NUL in a parameter's name", "any name is accepted (3)", None,
               "non-existing object member|was not found", rb"\\u0000"),
    Difference("1e400 in an unknown member, 0e999", "not converted (3); zero (4)", None,
               "Number too big"),
    Difference("C17 rank 0", "a scalar has one element (3)", None, r"got \[\]"),
    Difference("J14 null", "NaN (4)", None, "non-number", b"null"),
    Difference("J10 integers with a point or an exponent", "no value changes (4)", None,
               "non-(un)?signed-integer|Number too big"),
    Difference("null members and sources", "absent (3)", None, "", b"null"),
    Difference("X4 lists, objects and null as request parameters", "any JSON is accepted (10)",
               None, "has invalid type"),
    Difference("Triton's own parameters", "checked by the server, not the codec", None,
               "sequence|priority|timeout|reserved"),
    Difference("shared memory", "looked up by the server, not the codec", None, "shared.memory"),
    Difference("K1 classification", "done by the server, not the codec", None, None,
               b"classification"),
    Difference("Y8 BYTES as JSON, invalid UTF-8", "not JSON (4)", "^EncodeError.*not valid UTF-8",
               None),
    Difference("names and ranks of the model", "a property of the model, not of the format", None,
               "unexpected|data-type is"),
)  # fmt: skip


# --- both sides ----------------------------------------------------------------------------------


def ours(message: Message) -> Verdict:
    """Decode, echo each tensor, and encode as Triton would. Other exceptions are defects."""
    try:
        request = tw.decode_request(
            message.body, message.header_length, raw_input=message.raw_input
        )
        response = echo(request)
        if request.outputs:  # Triton omits unknown requested outputs
            request = request.replace(outputs=[o for o in request.outputs if o.name in response])
        frame = tw.encode_response(response, request, selection="triton", nonfinite="literal")
    except (tw.DecodeError, tw.EncodeError) as error:
        return Verdict("rejected", f"{type(error).__name__}: {error}")
    return Verdict("accepted", "", tensors_of(bytes(frame), frame.header_length))


def echo(request: tw.InferRequest) -> tw.InferResponse:
    """Do what the models do."""
    outputs = [
        tw.Tensor(t.name.replace("INPUT", "OUTPUT"), t.data, datatype=t.datatype, shape=t.shape)
        for t in request.inputs
        if t.data is not None
    ]
    if request.outputs:
        listed = {output.name for output in request.outputs}
        outputs = [tensor for tensor in outputs if tensor.name in listed]
    return tw.InferResponse(outputs)


def tensors_of(body: bytes, header_length: int | None) -> list[dict[str, Any]]:
    """Return the tensors of a response, sorted by name, as read by reference.py."""
    found: list[dict[str, Any]] = reference.decode(body, header_length, "response")["tensors"]
    return sorted(found, key=lambda tensor: str(tensor["name"]))


class LiveTriton:
    """A server that starts again after a message has stopped it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stack = folder, ExitStack()
        raw = {message.model for message in BASES}
        self.models = [model for model in MODELS if model.name in raw]
        self.start()

    def start(self) -> None:
        self.stack.close()
        server = self.stack.enter_context(running_triton(self.folder, self.models, STOP_SECONDS))
        self.connection = HTTPConnection(server.host, server.port, timeout=REPLY_SECONDS)
        self.stack.callback(self.connection.close)

    def verdict(self, message: Message) -> Verdict:
        """Return the server's result, also if it stopped."""
        headers = {"Content-Length": str(len(message.body))}
        if message.header_length is not None:
            headers[HEADER_LENGTH] = message.header_length
        path = f"/v2/models/{message.model}/infer"
        try:
            self.connection.request("POST", path, message.body, headers)
            response = self.connection.getresponse()
            body = response.read()
        except (OSError, HTTPException) as error:
            self.start()
            return Verdict("backend", f"the server ended: {error!r}")
        if response.status != 200:
            text = json.loads(body.decode("utf-8", "replace"), strict=False)["error"]
            if UNHEALTHY in text:
                self.start()
            return Verdict("backend" if any(map(text.__contains__, BACKEND)) else "rejected", text)
        length = response.headers.get(HEADER_LENGTH)
        try:
            return Verdict("accepted", "", tensors_of(body, int(length) if length else None))
        except reference.WireError:  # for example, it has a BOOL of 2, or text that is not UTF-8
            return Verdict("accepted")


# --- the comparison ------------------------------------------------------------------------------


def agree(mine: Verdict, theirs: Verdict) -> bool:
    """Return whether both reject, or both accept and return the same tensors in the same form."""
    if mine.what != theirs.what:
        return False
    if mine.what == "rejected":
        return True
    if theirs.tensors is None or len(mine.tensors or ()) != len(theirs.tensors):
        return False
    return all(map(are_equal, mine.tensors or (), theirs.tensors))


def are_equal(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Compare tensors. Of JSON, Triton reads -0 as 0, and decimals with a small error (J6)."""
    is_same_kind = all(mine[key] == theirs[key] for key in ("datatype", "shape"))
    if is_same_kind and mine["datatype"] in ("FP32", "FP64"):
        values = zip(mine["values"], theirs["values"], strict=True)
        if all(math.isclose(a, b, rel_tol=2**-23) or same(a, b) for a, b in values):
            theirs = theirs | {"values": mine["values"]}
    return same(mine, theirs)


@pytest.fixture(scope="module")
def live(triton_folder: Path) -> Iterator[LiveTriton]:
    """A separate server, because some messages stop it."""
    found = LiveTriton(triton_folder)
    with found.stack:
        yield found


def test_only_documented_differences(live: LiveTriton, pytestconfig: pytest.Config) -> None:
    """Each of them occurs: a row that no longer explains a difference must be removed."""
    explaining: set[str] = set()

    def compare(message: Message) -> None:
        mine, theirs = ours(message), live.verdict(message)
        if theirs.what == "backend" and mine.what == "accepted":
            theirs = live.verdict(message)  # the previous message may have stopped the server
        if not agree(mine, theirs):
            found = [row.id for row in DIFFERENCES if row.explains(message, mine, theirs)]
            assert found, f"{message}\n  ours: {mine}\n  Triton: {theirs}"[:4000]
            explaining.update(found)

    for message in BASES:
        compare(message)
    seed = int(pytestconfig.getoption("--hypothesis-seed", None) or 0)
    run_examples(given(messages)(compare), scaled(N_RANDOM), seed)
    if SCALE >= 1:
        assert explaining == {row.id for row in DIFFERENCES}
