"""What the REST servers of KServe and MLServer have to do alike: requests as tables, and tests.

The requests go directly to the ASGI application, without a network. `inside_kserve.py` and
`inside_mlserver.py` have the class RestTests. Their fixture `server` has these attributes:
`integration`; `infer(body, content_type, **headers)`; `app`, the application that `infer` calls;
`model.seen`, what the model saw of the last request; `another()`, a new server; `encodings`, those
of requests; `normalised(answer)`, an answer without what differs each time; `changes` of sources
and which replacements are left out because of them; and `ask()`, which sends a request to the gRPC
class `servicer`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import nullcontext, suppress
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tensorwire as tw
from interop.recorded_sources import (
    check_next_release,
    check_recorded,
    check_replacements_are_shown_alike,
    installed,
)
from support.case_types import Malformed
from support.malformed import MALFORMED
from support.wrappers import Proxy, functools_wrapper, wrapped

PATH = "/v2/models/recorder/infer"
JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"
Answer = tuple[int, dict[str, str], bytes]


def post(
    app: Any,
    path: str,
    body: bytes,
    content_type: str | None = JSON_TYPE,
    *,
    method: str = "POST",
    is_complete: bool = True,
    **more: str,
) -> Any:
    """Send a request to an ASGI application, and return the Answer, or None if there is none.

    Without the end of its body, the client disconnects.
    """
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
    if content_type is not None:
        headers.append((b"content-type", content_type.encode()))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("x", 80),
    }  # fmt: skip
    half = len(body) // 2
    incoming = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": not is_complete},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    with suppress(Exception):  # the server has logged it and answered with status 500
        asyncio.run(app(scope, receive, send))
    if not sent:
        return None
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert len(names) == len(sent[0]["headers"])
    return sent[0]["status"], names, b"".join(message.get("body", b"") for message in sent)


def assert_same_answer(plain: Answer, ours: Answer) -> None:
    """Check that answers agree: JSON by its parsed value, everything else to the byte."""
    assert ours[0] == plain[0], (plain[2], ours[2])
    lengths = {name: ours[1][name] for name in ("content-length",) if name in ours[1]}
    assert ours[1] == plain[1] | lengths
    if plain[1].get("content-type") == "application/json":
        assert int(ours[1]["content-length"]) == len(ours[2])
        # repr also compares the order of members, and integers with floats.
        assert repr(json.loads(ours[2])) == repr(json.loads(plain[2]))
    else:
        assert ours[2] == plain[2]


def outcome(function: Any) -> Any:
    """Return the result of a function, or the type of the exception it raises."""
    try:
        return function()
    except Exception as error:
        return type(error)


def array_properties(make: Any) -> Any:
    """Return the dtype, shape, flags and values of the array that a function makes."""
    array = outcome(make)
    if not isinstance(array, np.ndarray):
        return "an error"  # tensorwire and the server raise different types
    flags = array.flags
    return array.dtype, array.shape, flags.writeable, flags.aligned, repr(array.tolist())


def entry(data: Any, datatype: str = "FP32", shape: list[int] | None = None, **more: Any) -> Any:
    shape = [len(data)] if shape is None else shape
    return {"name": "x", "shape": shape, "datatype": datatype, "data": data, **more}


def message(*inputs: Any, **more: Any) -> bytes:
    return json.dumps({"id": "7", "inputs": inputs, **more}).encode()


def data_text(data: str, datatype: str = "FP32", shape: str = "[2]") -> bytes:
    return (
        f'{{"id":"7","inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}'
    ).encode()


# Bodies whose tensors tensorwire reads as arrays, without Python lists.
# ruff: noqa: E501 - tables, a line for each case
READ_AS_ARRAYS: dict[str, bytes] = {
    "flat": message(entry([1.5, -2.25, 3e38])),
    "nested": message(entry([[1.0, 2.0], [3.0, 4.0]], shape=[2, 2])),
    "flat, of two dimensions": message(entry([1, 2, 3, 4, 5, 6], shape=[2, 3])),
    "scalar": message(entry([5.5], shape=[])),
    "integers for FP32": message(entry([1, 2, 16777217])),
    "rounded once": message(entry([0.1, 1e-45, 1.17549435e-38, 16777216.5])),
    "BOOL": message(entry([True, False], "BOOL")),
    **{
        f"{kind}{bits}": message(entry([0, 2 ** (bits - (kind == "INT")) - 1], f"{kind}{bits}"))
        for kind in ("INT", "UINT")
        for bits in (8, 16, 32, 64)
    },
    "integers with a point": data_text("[1.0, -2.0e2]", "INT32"),
    "BYTES": message(entry(["a", "ein Hündchen", "", "\0\n\"\\", "\U0001f600"], "BYTES")),
    "BYTES, nested": message(entry([["a", "b"], ["c", "d"]], "BYTES", [2, 2])),
    "BYTES, escaped": data_text(r'["é😀", "\/\b"]', "BYTES"),
    "NaN and infinities": data_text("[NaN, -Infinity, Infinity, null]", shape="[4]"),
    "empty": message(entry([])),
    "empty BYTES": message(entry([], "BYTES")),
    "data first": b'{"inputs":[{"data":[1,2],"datatype":"FP32","shape":[2],"name":"x"}],"id":"7"}',
    "unknown members": message(entry([1], more={"a": [None]}), nobody=[1, {"a": None}], model_version="3"),
    "parameters": message(
        entry([1], parameters={"a": 1, "b": "c", "d": True, "e": 0.5, "f": 10**30}),
        parameters={"a": 1, "binary_data_output": False},
    ),
    "empty parameters": message(entry([1], parameters={}), parameters={}),
    "null members": message(entry([1], parameters=None), parameters=None, outputs=None, id=None),
    "no id": message(entry([1]), id=None),
    "outputs": message(
        entry([1]), outputs=[{"name": "x", "parameters": {"binary_data": False, "a": 1}}]
    ),
    "binary output": message(entry([1.5]), outputs=[{"name": "x", "parameters": {"binary_data": True}}]),
    "binary outputs": message(entry([1.5]), parameters={"binary_data_output": True}),
    "unknown requested output": message(entry([1.5]), outputs=[{"name": "y"}]),
    "50 tensors": message(*(entry([i, 0.5], "FP64", name=f"x{i}") for i in range(50))),
    "white space": b" \r\n\t" + message(entry([1])) + b"\n ",
    "long": message(entry(np.random.default_rng(1).standard_normal(3000).tolist(), "FP64")),
    "name of 5000 bytes": message(entry([1], name="a" * 5000)),
    "many dimensions": message(entry([[[[[1, 2]]]]], "INT8", [1, 1, 1, 1, 2])),
}  # fmt: skip
# Bodies that are left to the server's own JSON reader, besides those that the codec rejects.
LEFT_TO_SERVER: dict[str, bytes] = {
    "no inputs": message(),
    "lists of different depths": message(entry(["a", ["b"]], "BYTES", [3])),
    "lists of different lengths": message(entry([[1], [2, 3]], shape=[2])),
    "nested parameters": message(entry([1], parameters={"a": [1]})),
    "null parameter": message(entry([1]), parameters={"a": None}),
    "truncated": message(entry([1, 2, 3]))[:-3],
    "gzip": gzip.compress(message(entry([1]))),
}  # fmt: skip
# Bodies with binary data and without a header length.
INVALID_BINARY = [
    message(entry([1], name="y"), entry([1], parameters={"binary_data_size": 4})),
    message(entry([1], parameters={"binary_data_size": 4})).replace(
        b"data_size", b"data\\u005fsize"
    ),
]
RANDOM = np.random.default_rng(2).standard_normal((20, 25))
NUMBERS = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
ARRAYS = {  # of outputs
    **{dtype: RANDOM.astype(dtype) for dtype in NUMBERS},
    "limits of UINT64": np.array([2**64 - 1, 0], "u8"),
    "limits of INT64": np.array([-(2**63), 2**63 - 1]),
    # Finite numbers whose shortest decimal text is hard to find.
    "odd FP64": np.array([0.0, -0.0, 1e16, 1e-7, 5e-324, 1e22, 123456789.0]),
    "odd FP32": np.array([0.1, 3e38, 1e-45, 16777216], "f4"),
    "infinity": np.array([1, np.inf, -np.inf]),
    "empty": np.zeros((0, 3)),
    "strided": RANDOM.T[::2],
    "integers in columns": np.arange(6).reshape(2, 3).T,
}
CONTENT_TYPES = [
    *(JSON_TYPE, f"{JSON_TYPE}; charset=utf-8", f"{JSON_TYPE}; charset=latin-1", JSON_TYPE.upper()),
    *("application/vnd.kserve+json", "text/json", "text/plain", "", None),
]


# --- tests of both servers ------------------------------------------------------------------------

FLAT = READ_AS_ARRAYS["flat"]
LONG = message(entry([1.5] * 100))
BINARY = tw.encode_request(tw.InferRequest({"x": RANDOM}))


def both(server: Any, body: bytes, *of_type: str | None, **more: Any) -> Answer:
    """Check that the model sees the same without and with the integration, and gives the same.

    Returns the answer with the integration.
    """
    plain = server.infer(body, *of_type, **more)
    seen = server.model.seen
    with installed(server.integration):
        ours: Answer = server.infer(body, *of_type, **more)
    assert server.model.seen == seen
    assert_same_answer(server.normalised(plain), server.normalised(ours))
    return ours


def check_rejected(server: Any, body: bytes, header_length: Any = None) -> None:
    """Check that a request has status 400 in each encoding, and that the model does not get it."""
    more = {} if header_length is None else {"inference_header_content_length": header_length}
    content_type = BINARY_TYPE if more else JSON_TYPE
    given = header_length and header_length.encode()
    with pytest.raises(tw.DecodeError) as caught, installed(server.integration):
        tw.decode_request(body, given)
    for encoding in server.encodings:
        sent = {"gzip": gzip.compress}.get(encoding, bytes)(body)
        with installed(server.integration):
            answer = server.infer(sent, content_type, content_encoding=encoding, **more)
        assert (answer[0], json.loads(answer[2])) == (400, {"error": str(caught.value)})
        assert server.model.seen is None


class RestTests:
    """The tests that both servers have."""

    @pytest.mark.parametrize(
        "row",
        [row for row in MALFORMED if row.kind == "request" and row.header_length is not None],
        ids=lambda row: row.id,
    )
    def test_malformed_binary_request(self, server: Any, row: Malformed) -> None:
        length = row.header_length
        check_rejected(
            server, row.body, length.decode("latin-1") if isinstance(length, bytes) else str(length)
        )

    @pytest.mark.parametrize("body", INVALID_BINARY, ids=["second", "escaped"])
    def test_binary_tensors_without_a_header_length(self, server: Any, body: bytes) -> None:
        """The servers alone read JSON data of a tensor that also has a size."""
        check_rejected(server, body)

    @pytest.mark.parametrize(
        "row",
        [
            row
            for row in MALFORMED
            if row.kind == "request"
            and row.header_length is None
            and b"BF16" not in row.body  # which KServe then reads with the integration
        ],
        ids=lambda row: row.id,
    )
    def test_malformed_json(self, server: Any, row: Malformed) -> None:
        """It is left to the server, unless an input has a binary size."""
        if "binary_data_size" in str(outcome(lambda: json.loads(row.body))):
            check_rejected(server, row.body)
        else:
            both(server, row.body)

    def test_empty_binary_tensors_need_no_header_length(self, server: Any) -> None:
        """The whole body is JSON (WIRE.md 1). KServe itself requires `data`."""
        body = message(
            {"name": "x", "shape": [0], "datatype": "FP32", "parameters": {"binary_data_size": 0}}
        )
        with installed(server.integration):
            assert server.infer(body)[0] == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"content_type": "text/plain"},
            {"inference_header_content_length": str(len(LONG))},
            {"ce_id": "1"},
            {"content_encoding": "br"},
        ],
        ids=["JSON", "invalid JSON", "binary", "CloudEvent", "an encoding"],
    )
    def test_body_that_is_too_long(self, server: Any, headers: dict[str, str]) -> None:
        """A body with Content-Length is rejected before it is read. The next request is answered."""
        n = len(LONG)
        error = {"error": f"the body is {n} bytes long; the limit is {n - 1}"}
        sent = [(LONG, {}), (b"", {"content_length": str(n)})]
        if "gzip" in server.encodings and "content_encoding" not in headers:
            sent.append((gzip.compress(LONG), {"content_encoding": "gzip"}))
        with installed(server.integration, max_body_nbytes=n - 1):
            for body, more in sent:
                status, _, answer = server.infer(body, **headers, **more)
                assert (status, json.loads(answer)) == (413, error)
                assert server.model.seen is None
            assert server.infer(FLAT)[0] == 200
            server.integration.install(max_body_nbytes=n)
            assert server.infer(LONG)[0] == 200
        with installed(server.integration):
            assert server.infer(LONG)[0] == 200

    @pytest.mark.parametrize(
        ("status", "headers"),
        [
            (200, {"content_length": str(len(BINARY))}),
            (400, {"content_length": str(len(BINARY) - 1)}),
            (415, {"content_encoding": "br"}),
        ],
    )
    def test_headers_of_a_binary_request(
        self, server: Any, status: int, headers: dict[str, str]
    ) -> None:
        length = {"inference_header_content_length": str(BINARY.header_length)}
        with installed(server.integration):
            assert server.infer(bytes(BINARY), BINARY_TYPE, **length, **headers)[0] == status
        assert (server.model.seen is not None) == (status == 200)

    @pytest.mark.parametrize(
        ("value", "error"), [(0, ValueError), (-1, ValueError), ("5", TypeError), (True, TypeError)]
    )
    def test_invalid_max_body_changes_nothing(
        self, server: Any, value: Any, error: type[Exception]
    ) -> None:
        with pytest.raises(error, match="max_body_nbytes must be"):
            server.integration.install(max_body_nbytes=value)
        assert not server.integration.is_installed()

    def test_client_that_disconnects(self, server: Any) -> None:
        """It has sent a part of the body. The model is not called."""
        with installed(server.integration):
            for more in ({}, {"inference_header_content_length": str(len(FLAT))}):
                assert server.infer(FLAT[:9], is_complete=False, **more) is None
                assert server.model.seen is None

    def test_first_of_several_headers_applies(self, server: Any) -> None:
        async def doubled(scope: Any, receive: Any, send: Any) -> None:
            more = [(b"x-b3-traceid", b"first"), (b"x-b3-traceid", b"second"), (b"x-b", b"\xe9")]
            await server.app({**scope, "headers": [*scope["headers"], *more]}, receive, send)

        seen = []
        for context in (nullcontext(), installed(server.integration)):
            with context:
                assert post(doubled, PATH, FLAT)[0] == 200
            seen.append(server.model.seen)
        assert seen[0] == seen[1]
        assert "'x-b3-traceid': 'first'" in repr(seen[0])

    @pytest.mark.parametrize("method", ["body", "json"])
    def test_middleware_that_reads_the_body(self, server: Any, method: str) -> None:
        from starlette.middleware.base import BaseHTTPMiddleware  # noqa: PLC0415

        seen: list[Any] = []

        async def dispatch(request: Any, call_next: Any) -> Any:
            seen.append(await getattr(request, method)())
            return await call_next(request)

        other = server.another()
        plain = server.infer(FLAT)
        with installed(server.integration):
            other.app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
            ours = other.infer(FLAT)
        assert_same_answer(server.normalised(plain), server.normalised(ours))
        assert other.model.seen == server.model.seen
        assert seen == [FLAT if method == "body" else json.loads(FLAT)]

    def test_digests_are_recorded(self, server: Any) -> None:
        check_recorded(server.integration)

    def test_replacements_are_shown_like_their_originals(self, server: Any) -> None:
        check_replacements_are_shown_alike(server.integration)

    def test_next_release_with_another_source(
        self, server: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        for left_out, changed in server.changes:
            check_next_release(server.integration, caplog, changed, left_out)

    @pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
    def test_wrapper_around_the_servicer_that_is_added_later(self, server: Any, wrap: Any) -> None:
        """The server's own handler then handles gRPC requests."""
        count = Mock()
        with installed(server.integration), wrapped(server.servicer, "ModelInfer", wrap, count):
            server.ask()
        assert count.call_count == 1
