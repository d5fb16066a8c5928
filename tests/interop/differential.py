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
from functools import reduce
from http.client import HTTPConnection, HTTPException
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from hypothesis import given

import tensorwire as tw
from interop import triton_setup
from interop.differences import DIFFERENCES, Difference
from interop.triton_messages import BASES, Echoed, Message, Verdict, messages
from interop.triton_models import ANY, MODELS
from interop.triton_server import TritonServer, running_triton
from support import reference
from support.case_types import same
from support.strategies import run_examples

HEADER_LENGTH = "Inference-Header-Content-Length"
BACKEND = ("incomplete string data", "Failed to process the request", "Stub process")
UNHEALTHY = "is not healthy"
UNREADABLE = "unreadable answer"  # for example an id that is not UTF-8
REPLY_SECONDS = 5.0
STOP_SECONDS = 0.5  # a server whose backend has stopped does not stop by itself


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
        datatype = "UINT8" if tensor.datatype == "BOOL" else tensor.datatype
        count = reference.element_count(datatype, tensor.shape)
        values = reference.unpack(datatype, payload(tensor) or b"", count)
        tensors.append(Echoed(tensor.name, tensor.datatype, tensor.shape, tensor.binary, values))
    if not any(t.datatype == "BOOL" and any(v > 1 for v in t.values) for t in tensors):
        independent = reference.decode(body, header_length, "response")["tensors"]
        for mine, other in zip(tensors, independent, strict=True):
            is_bool, values = mine.datatype == "BOOL", other["values"]
            assert mine[:4] == (*(other[k] for k in ("name", "datatype", "shape", "binary")),)
            assert same(mine.values, [int(v) for v in values] if is_bool else values), (mine, other)
    return tuple(sorted(tensors))


# --- theirs --------------------------------------------------------------------------------------


class LiveTriton:
    """Two servers that start on demand, and again after they have stopped.

    The one with the model `any` alone starts faster, and is the one that messages may stop.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.n_starts = folder, 0
        raw = {message.model for message in BASES}
        self.models = {True: [], False: [model for model in MODELS if model.name in raw]}
        self.running: dict[bool, tuple[TritonServer, HTTPConnection, ExitStack]] = {}

    def __enter__(self) -> LiveTriton:
        return self

    def __exit__(self, *_: object) -> None:
        for is_any in list(self.running):
            self.close(is_any)

    def close(self, is_any: bool) -> None:
        _, connection, stack = self.running.pop(is_any)
        connection.close()
        stack.close()

    def connect(self, is_any: bool) -> HTTPConnection:
        if is_any not in self.running:
            self.n_starts += 1
            stack = ExitStack()
            models = self.models[is_any]
            server = stack.enter_context(running_triton(self.folder, models, STOP_SECONDS))
            connection = HTTPConnection(server.host, server.port, timeout=REPLY_SECONDS)
            self.running[is_any] = server, connection, stack
        return self.running[is_any][1]

    def verdict(self, message: Message) -> Verdict:
        """Return the server's result, also if it stopped."""
        is_any = message.model == ANY
        connection = self.connect(is_any)
        headers = {"Content-Length": str(len(message.body))}
        if message.header_length is not None:
            headers[HEADER_LENGTH] = message.header_length
        try:
            connection.request("POST", f"/v2/models/{message.model}/infer", message.body, headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, HTTPException) as error:
            self.close(is_any)
            return Verdict("backend", f"the server ended: {error!r}")
        if response.status != 200:
            text = json.loads(body.decode("utf-8", "replace"), strict=False)["error"]
            if UNHEALTHY in text:
                self.close(is_any)
            return Verdict("backend" if any(map(text.__contains__, BACKEND)) else "rejected", text)
        length = response.headers.get(HEADER_LENGTH)
        try:
            return Verdict("accepted", "", read_answer(body, int(length) if length else None))
        except tw.DecodeError as error:
            return Verdict("accepted", f"{UNREADABLE}: {error}")


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


class Campaign:
    """The results for all messages."""

    def __init__(self, triton: LiveTriton) -> None:
        self.triton = triton
        self.equal, self.explained = Counter[str](), Counter[str]()
        self.new: list[str] = []

    def run(self, n: int, seed: int) -> None:
        """Compare the messages of the tables, and more from the strategy, `n` in total."""
        for message in BASES[:n]:
            self.add(message)
        run_examples(given(messages)(self.add), max(n - len(BASES), 0), seed)

    def add(self, message: Message) -> None:
        mine, theirs = ours(message), self.triton.verdict(message)
        if theirs.what == "backend" and mine.what == "accepted":
            theirs = self.triton.verdict(message)  # the previous message may have stopped it
        if agree(mine, theirs):
            self.equal[mine.what] += 1
        elif ids := self.explain(message, mine, theirs):
            self.explained.update(ids)
        else:
            self.new.append(f"{message}\n  ours: {mine}\n  Triton: {theirs}"[:4000])
            print(self.new[-1], flush=True)

    def explain(self, message: Message, mine: Verdict, theirs: Verdict) -> list[str]:
        """Return a minimal set of rows that explains this difference, or an empty set."""
        for row in DIFFERENCES:
            if self.is_explained(message, mine, theirs, [row]):
                return [row.id]
        rows, changed = [], message
        for row in DIFFERENCES:
            after = row.apply(changed)
            if after != changed or row.apply(message) != message:
                rows.append(row)
                changed = after
        if not self.is_explained(message, mine, theirs, rows):
            return []
        for row in list(rows):
            fewer = [other for other in rows if other is not row]
            if self.is_explained(message, mine, theirs, fewer):
                rows = fewer
        return [row.id for row in rows]

    def is_explained(
        self, message: Message, mine: Verdict, theirs: Verdict, rows: list[Difference]
    ) -> bool:
        """Return whether the results match a row, and agree after the message is rewritten."""
        if not any(row.applies_to(message, mine, theirs) for row in rows):
            return False
        if all(row.rewrite is None for row in rows):
            return True
        plain = rewritten(message, rows)
        if plain == message:
            return False
        resent = rewritten(message, [row for row in rows if row.is_resent])
        if theirs.text.startswith(UNREADABLE):
            resent = plain
        read = ours(plain)
        is_kept = all(row.is_lossless for row in rows) and mine.what == read.what == "accepted"
        if is_kept and mine.payloads != read.payloads:
            return False
        answer = theirs if resent == message else self.triton.verdict(resent)
        if not is_settled(plain, read, answer) and any(row.is_resent for row in rows):
            answer = self.triton.verdict(plain)  # without the differences that need no rewriting
        return is_settled(plain, read, answer)


def rewritten(message: Message, rows: list[Difference]) -> Message:
    return reduce(lambda changed, row: row.apply(changed), rows, message)


def is_settled(message: Message, mine: Verdict, theirs: Verdict) -> bool:
    """Return whether the results agree, or the difference needs no rewriting."""
    ends = (row for row in DIFFERENCES if row.rewrite is None)
    return agree(mine, theirs) or any(row.applies_to(message, mine, theirs) for row in ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=3000)
    options = parser.parse_args()
    folder = triton_setup.folder_in_use()
    if triton_setup.read_marker(folder) is None:
        parser.error(f"no Triton is installed: {triton_setup.__file__} installs one")
    with LiveTriton(folder) as triton:
        campaign = Campaign(triton)
        campaign.run(options.n, options.seed)
    print(f"equal: {dict(campaign.equal)}, {triton.n_starts} starts of the server")
    for id, n in campaign.explained.most_common():
        print(f"{n:6} {id}")
    print(f"{len(campaign.new):6} new")
    sys.exit(1 if campaign.new else 0)


if __name__ == "__main__":
    main()
