"""Send the same messages to tensorwire and to a live Triton, and compare the results.

    TENSORWIRE_TRITON=folder python tests/interop/differential.py --seed 7 --n 30000

On our side a message is decoded and encoded again with Triton's selection of outputs. A difference
must be explained by rows of differences.py; others are reported as new.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import tensorwire as tw
from interop import triton_setup
from interop.differences import DIFFERENCES, Difference
from interop.message_generator import messages, raw_messages
from interop.plain_message import Message
from interop.triton_models import ANY, MODELS, Model
from interop.triton_server import TritonServer, running_triton
from support import reference
from support.case_types import same

HEADER_LENGTH = "Inference-Header-Content-Length"
# The models for raw requests.
RAW = {message.model for message in raw_messages()}
USED = [model for model in MODELS if model.name in RAW]
BACKEND = ("incomplete string data", "Failed to process the request", "Stub process")
UNHEALTHY = "is not healthy"
UNREADABLE = "unreadable answer"  # for example an id that is not UTF-8
REPLY_SECONDS = 5.0
STOP_SECONDS = 0.5  # a server whose backend has stopped does not stop by itself


class Echoed(NamedTuple):
    """A returned tensor. Values are flat, and BOOLs of JSON are 0 or 1."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    is_binary: bool
    values: list[Any]


@dataclass(frozen=True)
class Verdict:
    """The result of one side.

    `backend`: Triton's front end accepted the message, and its Python backend rejected it or
    stopped.
    """

    what: Literal["accepted", "rejected", "backend"]
    text: str = ""
    tensors: tuple[Echoed, ...] = ()
    payloads: tuple[bytes | None, ...] = ()  # of the inputs, as read by tensorwire


# --- ours ----------------------------------------------------------------------------------------


def ours(message: Message) -> Verdict:
    """Decode, echo each tensor, and encode as Triton would. Other exceptions are defects."""
    limits = tw.Limits(check_bool=message.check_bool)
    try:
        request = tw.decode_request(
            message.body, message.header_length, raw_input=message.raw_input, limits=limits
        )
        response = echo(request)
        if request.outputs:  # Triton omits unknown requested outputs
            request = request.replace(outputs=[o for o in request.outputs if o.name in response])
        frame = tw.encode_response(response, request, selection="triton", nonfinite="literal")
    except (tw.DecodeError, tw.EncodeError) as error:
        return Verdict("rejected", f"{type(error).__name__}: {error}")
    tensors = read_answer(bytes(frame), frame.header_length)
    return Verdict("accepted", "", tensors, tuple(payload(tensor) for tensor in request.inputs))


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


def payload(tensor: tw.Tensor) -> bytes | None:
    """Return the tensor's bytes; all NaNs are equal."""
    if tensor.data is None:
        return None
    if isinstance(tensor.data, tw.BytesArray):
        return bytes(tensor.data.wire)
    array = tensor.as_numpy(writable=True)
    if array.dtype.kind == "f":
        array[np.isnan(array)] = float("nan")
    return bytes(array.tobytes())


def read_answer(body: bytes, header_length: int | None) -> tuple[Echoed, ...]:
    """Return the tensors of a response, sorted by name, as read by tensorwire and reference.py.

    reference.py always checks BOOLs, so it is not used for responses with other BOOL bytes.
    """
    response = tw.decode_response(body, header_length, limits=tw.Limits(check_bool=False))
    tensors = []
    for tensor in response.outputs:
        data = payload(tensor)
        datatype = "UINT8" if tensor.datatype == "BOOL" else tensor.datatype
        count = reference.element_count(datatype, tensor.shape)
        values = reference.unpack(datatype, data or b"", count)
        tensors.append(Echoed(tensor.name, tensor.datatype, tensor.shape, tensor.binary, values))
    if not any(t.datatype == "BOOL" and any(v > 1 for v in t.values) for t in tensors):
        independent = reference.decode(body, header_length, "response")["tensors"]
        for mine, other in zip(tensors, independent, strict=True):
            values = (
                [int(v) for v in other["values"]] if mine.datatype == "BOOL" else other["values"]
            )
            assert mine[:4] == (*(other[k] for k in ("name", "datatype", "shape", "binary")),)
            assert same(mine.values, values), (mine, other)
    return tuple(sorted(tensors))


# --- theirs --------------------------------------------------------------------------------------


class LiveServer:
    """A Triton server that starts on demand, and restarts after it has stopped."""

    def __init__(self, folder: Path, models: list[Model]) -> None:
        self.folder = folder
        self.models = models
        self.n_starts = 0
        self.server: TritonServer | None = None
        self.connection: HTTPConnection | None = None
        self.stack = ExitStack()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.server = self.connection = None
        self.stack.close()

    def connect(self) -> HTTPConnection:
        if self.server is None:
            self.n_starts += 1
            running = running_triton(self.folder, self.models, STOP_SECONDS)
            self.server = self.stack.enter_context(running)
        if self.connection is None:
            host, port = self.server.host, self.server.port
            self.connection = HTTPConnection(host, port, timeout=REPLY_SECONDS)
        return self.connection

    def verdict(self, message: Message) -> Verdict:
        """Return the server's result, also if it stopped."""
        connection = self.connect()
        headers = {"Content-Length": str(len(message.body))}
        if message.header_length is not None:
            headers[HEADER_LENGTH] = message.header_length
        try:
            connection.request("POST", f"/v2/models/{message.model}/infer", message.body, headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, HTTPException) as error:
            self.close()
            return Verdict("backend", f"the server ended: {error!r}")
        if response.status != 200:
            text = json.loads(body.decode("utf-8", "replace"), strict=False)["error"]
            if UNHEALTHY in text:
                self.close()
            is_late = any(message in text for message in BACKEND)
            return Verdict("backend" if is_late else "rejected", text)
        length = response.headers.get(HEADER_LENGTH)
        try:
            return Verdict("accepted", "", read_answer(body, int(length) if length else None))
        except tw.DecodeError as error:
            return Verdict("accepted", f"{UNREADABLE}: {error}")


class LiveTriton:
    """Two servers. The one with the model `any` may stop, and restarts quickly."""

    def __init__(self, folder: Path) -> None:
        self.any_server = LiveServer(folder, [])
        self.raw_server = LiveServer(folder, USED)

    def __enter__(self) -> LiveTriton:
        return self

    def __exit__(self, *_: object) -> None:
        self.any_server.close()
        self.raw_server.close()

    @property
    def n_starts(self) -> int:
        return self.any_server.n_starts + self.raw_server.n_starts

    def verdict(self, message: Message) -> Verdict:
        server = self.any_server if message.model == ANY else self.raw_server
        return server.verdict(message)


# --- the comparison ------------------------------------------------------------------------------


def agree(mine: Verdict, theirs: Verdict) -> bool:
    """Return whether both reject, or both accept and return the same tensors in the same form."""
    if mine.what != theirs.what or theirs.text.startswith(UNREADABLE):
        return False
    if mine.what == "rejected":
        return True
    return same([canonical(t) for t in mine.tensors], [canonical(t) for t in theirs.tensors])


def canonical(tensor: Echoed) -> Echoed:
    """Convert the BOOLs of JSON to 0 and 1."""
    if tensor.datatype != "BOOL" or tensor.is_binary:
        return tensor
    return tensor._replace(values=[min(value, 1) for value in tensor.values])


def explain(message: Message, triton: LiveTriton, mine: Verdict, theirs: Verdict) -> list[str]:
    """Return a minimal set of rows that explains this difference, or an empty set."""
    for row in DIFFERENCES:
        if is_explained(message, triton, mine, theirs, [row]):
            return [row.id]
    rows = applicable(message)
    if not is_explained(message, triton, mine, theirs, rows):
        return []
    for row in list(rows):
        fewer = [other for other in rows if other is not row]
        if is_explained(message, triton, mine, theirs, fewer):
            rows = fewer
    return [row.id for row in rows]


def applicable(message: Message) -> list[Difference]:
    """Return the rows that change the message, applied in sequence."""
    found = []
    for row in DIFFERENCES:
        changed = row.apply(message)
        if changed != message:
            found.append(row)
            message = changed
    return found


def is_explained(
    message: Message, triton: LiveTriton, mine: Verdict, theirs: Verdict, rows: list[Difference]
) -> bool:
    """Return whether the results match a row, and agree after the message is rewritten."""
    if not any(row.applies_to(message, mine, theirs) for row in rows):
        return False
    if all(row.rewrite is None for row in rows):
        return True
    plain = reduce(lambda changed, row: row.apply(changed), rows, message)
    if plain == message:
        return False
    resent = reduce(
        lambda changed, row: row.apply(changed) if row.is_resent else changed, rows, message
    )
    if theirs.text.startswith(UNREADABLE):
        resent = plain
    read = ours(plain)
    is_kept = all(row.is_lossless for row in rows) and mine.what == read.what == "accepted"
    if is_kept and mine.payloads != read.payloads:
        return False
    answer = theirs if resent == message else triton.verdict(resent)
    if not is_settled(plain, read, answer) and any(row.is_resent for row in rows):
        answer = triton.verdict(plain)  # without the differences that need no rewriting
    return is_settled(plain, read, answer)


def is_settled(message: Message, mine: Verdict, theirs: Verdict) -> bool:
    """Return whether the results agree, or the difference needs no rewriting."""
    ends = (row for row in DIFFERENCES if row.rewrite is None)
    return agree(mine, theirs) or any(row.applies_to(message, mine, theirs) for row in ends)


@dataclass
class Campaign:
    """The results for all messages."""

    equal: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    new: list[tuple[Message, Verdict, Verdict]] = field(default_factory=list)

    def add(self, message: Message, triton: LiveTriton) -> None:
        mine, theirs = ours(message), triton.verdict(message)
        if theirs.what == "backend" and mine.what == "accepted":
            theirs = triton.verdict(message)  # the previous message may have stopped it
        if agree(mine, theirs):
            self.equal[mine.what] += 1
        elif ids := explain(message, triton, mine, theirs):
            self.explained.update(ids)
        else:
            self.new.append((message, mine, theirs))


def described(message: Message, mine: Verdict, theirs: Verdict) -> str:
    return (
        f"{message.id}: header length {message.header_length!r}, model {message.model}\n"
        f"  {message.body[:2000]!r}\n  ours: {mine}\n  Triton: {theirs}"[:4000]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=3000)
    options = parser.parse_args()
    folder = triton_setup.folder_in_use()
    if triton_setup.read_marker(folder) is None:
        parser.error(f"no Triton is installed: {triton_setup.__file__} installs one")
    campaign = Campaign()
    with LiveTriton(folder) as triton:
        for message in messages(options.seed, options.n):
            n_new = len(campaign.new)
            campaign.add(message, triton)
            if len(campaign.new) > n_new:
                print(described(*campaign.new[-1]), flush=True)
    print(f"equal: {dict(campaign.equal)}, {triton.n_starts} starts of the server")
    for id, n in campaign.explained.most_common():
        print(f"{n:6} {id}")
    print(f"{len(campaign.new):6} new")
    sys.exit(1 if campaign.new else 0)


if __name__ == "__main__":
    main()
