"""Messages that are rejected by tensorwire and a live Triton, or by only one of them.

Ids such as C1 or Y5 are those of WIRE.md 10 and support/cases.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import BINARY_ONLY, DTYPES, NOT_TEXT, bytes_array
from interop.triton_exchange import (
    HEADER_LENGTH,
    answer,
    entry,
    header,
    identity,
    request_of,
    send,
    send_text,
    server_message,
)
from interop.triton_server import TritonServer

F2 = np.array([1, 2], "<f4").tobytes()
B2 = tw.encode_bytes([b"ab", b"c"])
FP32 = entry("FP32", [2], len(F2))
JSON = header([FP32])

# --- rejected by both ---


class Row(NamedTuple):
    """An input, the bytes after the header, and the expected errors of Triton and tensorwire."""

    id: str
    tensor: dict[str, Any]
    blob: bytes
    theirs: str
    error: type[tw.DecodeError]
    ours: str


NOT_UINT = "non-unsigned-integer as unsigned-integer"
# ruff: noqa: E501 - a table with one line per case
ONE_OF = "only one of the following fields"
REJECTED_BY_BOTH = [
    Row("C1 body too short", FP32, F2[:5], "expecting 3 additional", tw.LayoutError, "it requires 8 bytes, but 5"),
    Row("C2 trailing bytes", FP32, F2 + b"xy", "unexpected additional", tw.LayoutError, "has 2 bytes after"),
    Row("C3 size too small", entry("FP32", [2], 4), F2[:4], "Expected 8, got 4", tw.LayoutError, "8 bytes, .* 4"),
    Row("C4 size too large", entry("FP32", [2], 12), F2 + b"1234", "8, got 12", tw.LayoutError, "8 bytes, .* 12"),
    Row("C5 size not a multiple of the element", entry("FP32", [2], 7), F2[:7], "Expected 8, got 7", tw.LayoutError, "8 bytes, .* 7"),
    Row("C6 JSON data and binary size", {**FP32, "data": [1, 2]}, F2, ONE_OF, tw.HeaderError, "data and binary_data_size"),
    Row("C7 no data", entry("FP32", [2]), b"", ONE_OF, tw.HeaderError, "but has none"),
    Row("C8 size is a string", entry("FP32", [2], "8"), F2, NOT_UINT, tw.HeaderError, 'must be an integer, not "8"'),
    Row("C9 size is a float", entry("FP32", [2], 8.0), F2, NOT_UINT, tw.HeaderError, "must be an integer, not 8.0"),
    Row("C10 negative size", entry("FP32", [2], -8), F2, NOT_UINT, tw.LayoutError, "is negative: -8"),
    Row("X2 size 2^63", entry("FP32", [2], 2**63), F2, "75800 additional", tw.LayoutError, r"exceeds 2\^63"),
    Row("C12 negative dimension", entry("FP32", [-2], 8), F2, NOT_UINT, tw.LayoutError, "negative dimension"),
    Row("C16 dimension is a float", entry("FP32", [2.0], 8), F2, NOT_UINT, tw.HeaderError, r"inputs\[0\].shape\[0\] must be an integer, not 2.0"),
    Row("C14 dimension 2^64 - 1", entry("FP32", [2**64 - 1], 8), F2, "got [-1]", tw.LayoutError, r"exceeds 2\^63"),
    Row("C20 unknown datatype", entry("FP31", [2], 8), F2, "'<invalid>'", tw.HeaderError, "unknown .*: 'FP31'"),
    Row("C21 datatype in lower case", entry("fp32", [2], 8), F2, "'<invalid>'", tw.HeaderError, "unknown .*: 'fp32'"),
    Row("Y2 too few elements", entry("BYTES", [3], 11), B2, "got 2", tw.LayoutError, "at least 12 bytes .* 11"),
    Row("Y3 too many elements", entry("BYTES", [1], 11), B2, "elements 2", tw.LayoutError, "of 6 bytes in total, .* 11"),
    Row("Y4 truncated element", entry("BYTES", [2], 10), B2[:10], "length 1", tw.ElementError, "declares 1 byte, but 0"),
    Row("Y5 truncated length prefix", entry("BYTES", [2], 8), B2[:8], "incomplete", tw.ElementError, "4 bytes, but 2 remain"),
    Row("Y6 length 2^32 - 1", entry("BYTES", [1], 5), b"\xff" * 5, "4294967295", tw.ElementError, "1 remain"),
    Row("Y10 bytes for an empty tensor", entry("BYTES", [0], 11), B2, "expecting 0", tw.LayoutError, "0 elements of 0 bytes"),
    Row("Y11 no bytes for two elements", entry("BYTES", [2], 0), b"", "got 0", tw.LayoutError, "there are 0"),
    Row("Y14 number for BYTES", entry("BYTES", [1], data=[5]), b"", "non-string", tw.ElementError, "must be a string"),
    Row("Y15 too many strings", entry("BYTES", [1], data=["", ""]), b"", "nts 2", tw.LayoutError, "data has 2"),
    Row("J9 negative value for UINT8", entry("UINT8", [1], data=[-1]), b"", NOT_UINT, tw.ElementError, "out of range for UINT8"),
    Row("J10 float for UINT8", entry("UINT8", [1], data=[1.5]), b"", NOT_UINT, tw.ElementError, "must be an integer"),
    Row("J12 number for BOOL", entry("BOOL", [1], data=[1]), b"", "non-boolean", tw.ElementError, "must be true or false"),
    Row("J13 string for FP32", entry("FP32", [1], data=["1"]), b"", "non-number", tw.ElementError, "must be a number"),
    Row("J15 too few values", entry("FP32", [2], data=[1]), b"", "Shape does not", tw.LayoutError, "data has 1"),
    Row("J16 too many values", entry("FP32", [1], data=[1, 2]), b"", "Shape does", tw.LayoutError, "data has 2"),
]  # fmt: skip


@pytest.mark.parametrize("row", REJECTED_BY_BOTH, ids=lambda row: row.id)
def test_both_reject_the_tensor(triton: TritonServer, row: Row) -> None:
    text = header([row.tensor])
    datatype = row.tensor["datatype"]
    model = identity(datatype if datatype in DTYPES else "FP32")
    assert row.theirs in server_message(send_text(triton, model, text, row.blob))
    with pytest.raises(row.error, match=row.ours):
        tw.decode_request(text + row.blob, len(text))


@pytest.mark.parametrize(
    ("text", "theirs", "ours"),
    [
        pytest.param(b"{}", "'inputs'", 'has no "inputs"', id="C28 no inputs member"),
        pytest.param(header([]), "expected 1 inputs", "no inputs", id="C29 no inputs"),
        pytest.param(JSON[:-1], "Missing a comma", "malformed", id="C30 truncated JSON"),
        pytest.param(b"[]", "'inputs'", "must be an object", id="C31 root is a list"),
        pytest.param(
            header([{"name": "INPUT0", "data": []}]),
            "'datatype'",
            'has no "datatype"',
            id="C33 no datatype",
        ),
        pytest.param(header([FP32, FP32]), "already exists", "twice", id="C23 duplicate input"),
        pytest.param(
            header([FP32], id=1), "as string", "id must be a string, not 1", id="C39 id is a number"
        ),
        pytest.param(
            header([FP32], parameters={"binary_data_output": "true"}),
            "non-boolean",
            "binary_data_output of the request must be true or false, not 'true'",
            id="C27 binary_data_output is a string",
        ),
        pytest.param(
            header([FP32], outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]),
            "non-boolean",
            "binary_data of output 'OUTPUT0' must be true or false, not 1",
            id="C26 binary_data is a number",
        ),
        pytest.param(
            JSON + b"x",
            "root must not be followed",
            "followed by 1 more byte",
            id="J22 text after the JSON",
        ),
    ],
)
def test_both_reject_the_header(triton: TritonServer, text: bytes, theirs: str, ours: str) -> None:
    blob = F2 * text.count(b"binary_data_size")
    assert theirs in server_message(send_text(triton, "identity_fp32", text, blob))
    with pytest.raises(tw.HeaderError, match=ours):
        tw.decode_request(text + blob, len(text))


@pytest.mark.parametrize(
    ("length", "theirs", "ours"),
    [
        pytest.param("-1", "should be in range", "not a number", id="B6 negative"),
        pytest.param(
            str(len(JSON + F2) + 1),
            "should be in range",
            "but the body has",
            id="B7 longer than the body",
        ),
        pytest.param(
            str(len(JSON) + 1), "expecting 1 additional", "malformed", id="B13 too large by 1"
        ),
        pytest.param(str(len(JSON) - 1), "Missing a comma", "malformed", id="B14 too small by 1"),
        pytest.param(None, "expecting 8 additional bytes", "is .* missing", id="B1 missing"),
    ],
)
def test_both_reject_the_header_length(
    triton: TritonServer, length: str | None, theirs: str, ours: str
) -> None:
    headers = {} if length is None else {HEADER_LENGTH: length}
    reply = triton.post("/v2/models/identity_fp32/infer", [JSON, F2], headers)
    assert theirs in server_message(reply)
    with pytest.raises(tw.HeaderError, match=ours):
        tw.decode_request(JSON + F2, tw.header_length(headers))


@pytest.mark.parametrize(
    ("model", "spec", "body", "theirs", "ours"),
    [
        pytest.param(
            "matrix",
            tw.TensorSpec("INPUT0", "FP32", [-1, 3]),
            bytes(16),
            "Expected 12, got 16",
            "a multiple of 12 bytes",
            id="R4 not a multiple of a row",
        ),
        pytest.param(
            "identity_fp32",
            tw.TensorSpec("INPUT0", "FP32", [-1]),
            bytes(7),
            "Expected 4, got 7",
            "a multiple of 4 bytes",
            id="R5 not a multiple of an element",
        ),
        pytest.param(
            "identity_bytes",
            tw.TensorSpec("INPUT0", "BYTES", [-1]),
            b"427",
            "must have input shape [1]",
            r"declared as \[-1\], not \[1\]",
            id="R11 BYTES of variable shape",
        ),
    ],
)
def test_both_reject_the_raw_request(
    triton: TritonServer, model: str, spec: tw.TensorSpec, body: bytes, theirs: str, ours: str
) -> None:
    assert theirs in server_message(send_text(triton, model, b"", body, "0"))
    with pytest.raises(tw.LayoutError, match=ours):
        tw.decode_request(body, "0", raw_input=spec)


@pytest.mark.parametrize("datatype", BINARY_ONLY)
def test_fp16_and_bf16_as_json(triton: TritonServer, datatype: str) -> None:
    """J1 and J2: our encoder rejects them before Triton does."""
    request = request_of(np.zeros(1, DTYPES[datatype]), is_binary=False)
    with pytest.raises(tw.EncodeError, match=f"'INPUT0' is {datatype}, which can only") as caught:
        tw.encode_request(request)
    assert caught.value.status == 400
    text = header([entry(datatype, [1], data=[0.0])])
    message = server_message(send_text(triton, identity(datatype), text))
    assert f"receiving {datatype} data via JSON is not supported" in message
    with pytest.raises(tw.HeaderError, match=f"'INPUT0' has JSON data, but {datatype} can only"):
        tw.decode_request(text, len(text))


@pytest.mark.parametrize("datatype", BINARY_ONLY)
def test_fp16_and_bf16_requested_as_json(triton: TritonServer, datatype: str) -> None:
    """J3 and J4: the status is the same as Triton's."""
    array = np.zeros(1, DTYPES[datatype])
    frame = tw.encode_request(request_of(array, is_output_binary=False))
    reply = send(triton, identity(datatype), frame)
    assert f"sending {datatype} data via JSON is not supported" in server_message(reply)
    request = tw.decode_request(bytes(frame), frame.header_length)
    with pytest.raises(tw.EncodeError) as caught:
        tw.encode_response(tw.InferResponse([tw.Tensor("OUTPUT0", array)]), request)
    assert caught.value.status == reply.status


# --- rejected by one ---


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        pytest.param(
            header([entry("UINT8", [1], data=[300])]), "0 to 255", id="J8 value wraps in Triton"
        ),
        pytest.param(
            header([entry("FP32", [0], data=[1])]),
            "requires 0 elements",
            id="J18 data for an empty tensor",
        ),
        pytest.param(
            header([entry("FP32", [0], data="x")]), "must be a list", id="J19 data is a string"
        ),
        pytest.param(
            header([entry("FP32", [0], 0)]) + b"\0", "malformed", id="B16 NUL after the JSON"
        ),
    ],
)
def test_rejected_only_by_tensorwire(triton: TritonServer, text: bytes, ours: str) -> None:
    model = "identity_uint8" if b"UINT8" in text else "identity_fp32"
    assert send_text(triton, model, text).status == 200
    with pytest.raises(tw.DecodeError, match=ours):
        tw.decode_request(text, len(text))


def test_null_for_nan_is_rejected_by_triton(triton: TritonServer) -> None:
    """J14: by default we write NaN as null, which is valid JSON. Triton reads only NaN literals."""
    frame = tw.encode_request(request_of(np.array([np.nan]), is_binary=False))
    assert "non-number as double" in server_message(send(triton, "identity_fp64", frame))
    [tensor] = tw.decode_request(bytes(frame)).inputs
    assert np.isnan(tensor.as_numpy()).all()


def test_scalar_is_rejected_by_triton(triton: TritonServer) -> None:
    """C17: Triton gets no dimension where the model declares one."""
    frame = tw.encode_request(request_of(np.array(1, np.float32)))
    assert "Expected [-1], got []" in server_message(send(triton, "identity_fp32", frame))
    [tensor] = tw.decode_request(bytes(frame), frame.header_length).inputs
    assert tensor.as_numpy().tobytes() == np.float32(1).tobytes()


def test_bool_bytes_above_1(triton: TritonServer) -> None:
    """R14: Triton forwards them; tensorwire rejects them unless check_bool is False."""
    text = header([entry("BOOL", [4], 4)], parameters={"binary_data_output": True})
    reply = send_text(triton, "identity_bool", text, bytes([0, 1, 2, 255]))
    with pytest.raises(tw.ElementError, match="element 2 of output 'OUTPUT0' must be 0 or 1"):
        answer(reply)
    length, lenient = tw.header_length(reply.headers), tw.Limits(check_bool=False)
    [tensor] = tw.decode_response(reply.body, length, limits=lenient).outputs
    assert tensor.as_numpy().tobytes() == bytes([0, 1, 2, 255])


def test_json_response_that_is_not_utf8(triton: TritonServer) -> None:
    """Y8: Triton returns 200 with JSON that is not UTF-8; our encoder rejects the elements."""
    array = bytes_array([NOT_TEXT])
    reply = send(triton, "identity_bytes", tw.encode_request(request_of(array, True, False)))
    assert reply.status == 200
    with pytest.raises(tw.HeaderError, match="not UTF-8"):
        answer(reply)
    response = tw.InferResponse([tw.Tensor("OUTPUT0", array, binary=False)])
    with pytest.raises(tw.EncodeError, match="element 0 of output 'OUTPUT0' is not valid UTF-8"):
        tw.encode_response(response)


# --- error responses ---


@pytest.mark.parametrize(
    ("model", "tensor", "headers", "status"),
    [
        pytest.param("absent", FP32, {}, 404, id="C35 unknown model, text/plain"),
        pytest.param(
            "identity_fp16", entry("FP16", [4], 8), {}, 400, id="J3 FP16 as JSON, text/plain"
        ),
        pytest.param("matrix", FP32, {}, 400, id="C18 wrong rank"),
        pytest.param("batching", entry("FP32", [9, 2], 8), {}, 400, id="X16 batch too large"),
        pytest.param("identity_fp32", entry("FP32", [-2], 8), {}, 500, id="C12 negative dimension"),
        pytest.param(
            "identity_fp32", FP32, {"Content-Encoding": "br"}, 501, id="Z5 unknown content encoding"
        ),
    ],
)
def test_error_responses(
    triton: TritonServer,
    model: str,
    tensor: dict[str, Any],
    headers: dict[str, str],
    status: int,
) -> None:
    """The error contains the server's message, for any status and content type."""
    text = header([tensor])
    headers = {HEADER_LENGTH: str(len(text)), **headers}
    reply = triton.post(f"/v2/models/{model}/infer", [text, F2], headers)
    assert reply.status == status
    with pytest.raises(tw.HeaderError) as caught:
        answer(reply)
    assert str(caught.value).endswith(f": {server_message(reply)}")
