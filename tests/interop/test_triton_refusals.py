"""What is refused: by us and by a live Triton alike, or by one of the two and why.

Ids such as C1 or Y5 are rows of the conformance table in reference/triton.md, section 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorwire as tw

from interop.samples import BINARY_ONLY, DTYPES, NOT_TEXT, bytes_array
from interop.triton_exchange import (
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
NOT_UINT = "non-unsigned-integer as unsigned-integer"
ONE_OF = "only one of the following fields"

# --- refused by both -------------------------------------------------------------------------

REFUSED_BY_BOTH: list[tuple[str, dict[str, Any], bytes, str, type[tw.DecodeError], str]] = [
    # id, input, bytes behind the header, what Triton says, our error and what it says
    ("C1", FP32, F2[:5], "expecting 3 additional bytes", tw.LayoutError, "8 bytes are declared, 5"),
    ("C2", FP32, F2 + b"xy", "unexpected additional input", tw.LayoutError, "has 2 bytes after"),
    ("C3", entry("FP32", [2], 4), F2[:4], "Expected 8, got 4", tw.LayoutError, "8 bytes, .* is 4"),
    ("C4", entry("FP32", [2], 12), F2 + F2[:4], "8, got 12", tw.LayoutError, "8 bytes, .* is 12"),
    ("C5", entry("FP32", [2], 7), F2[:7], "Expected 8, got 7", tw.LayoutError, "8 bytes, .* is 7"),
    ("C6", {**FP32, "data": [1, 2]}, F2, ONE_OF, tw.HeaderError, "has data and binary_data_size"),
    ("C7", entry("FP32", [2]), b"", ONE_OF, tw.HeaderError, "it has none"),
    ("C8", entry("FP32", [2], "8"), F2, NOT_UINT, tw.HeaderError, "is an integer, not '8'"),
    ("C9", entry("FP32", [2], 8.0), F2, NOT_UINT, tw.HeaderError, "is an integer, not 8.0"),
    ("C10", entry("FP32", [2], -8), F2, NOT_UINT, tw.LayoutError, "is negative: -8"),
    ("X2", entry("FP32", [2], 2**63), F2, "9223372036854775800", tw.LayoutError, r"passes 2\^63"),
    ("C12", entry("FP32", [-2], 8), F2, NOT_UINT, tw.LayoutError, "negative dimension"),
    ("C16", entry("FP32", [2.0], 8), F2, NOT_UINT, tw.HeaderError, "got `float`"),
    ("C14", entry("FP32", [2**64 - 1], 8), F2, "should be spec", tw.LayoutError, r"passes 2\^63"),
    ("C20", entry("FP31", [2], 8), F2, "'<invalid>'", tw.HeaderError, "unknown datatype: 'FP31'"),
    ("C21", entry("fp32", [2], 8), F2, "'<invalid>'", tw.HeaderError, "unknown datatype: 'fp32'"),
    ("Y2", entry("BYTES", [3], 11), B2, "got 2", tw.LayoutError, "at least 12 bytes, .* 11"),
    ("Y3", entry("BYTES", [1], 11), B2, "elements 2", tw.LayoutError, "take 6 bytes, there are 11"),
    ("Y4", entry("BYTES", [2], 10), B2[:10], "length 1", tw.ElementError, "declares 1 bytes, 0"),
    ("Y5", entry("BYTES", [2], 8), B2[:8], "length indicator", tw.ElementError, "4 bytes, 2 remain"),
    ("Y6", entry("BYTES", [1], 5), b"\xff\xff\xff\xffa", "4294967295", tw.ElementError, "1 remain"),
    ("Y10", entry("BYTES", [0], 11), B2, "expecting 0", tw.LayoutError, "take 0 bytes"),
    ("Y11", entry("BYTES", [2], 0), b"", "got 0", tw.LayoutError, "there are 0"),
    ("Y14", entry("BYTES", [1], data=[5]), b"", "non-string", tw.ElementError, "takes strings"),
    ("Y15", entry("BYTES", [1], data=["a", "b"]), b"", "elements 2", tw.LayoutError, "data has 2"),
    ("J9", entry("UINT8", [1], data=[-1]), b"", NOT_UINT, tw.ElementError, "takes 0 to 255"),
    ("J10", entry("UINT8", [1], data=[1.0]), b"", NOT_UINT, tw.ElementError, "takes integers"),
    ("J12", entry("BOOL", [1], data=[1]), b"", "non-boolean", tw.ElementError, "true and false"),
    ("J13", entry("FP32", [1], data=["1"]), b"", "non-number", tw.ElementError, "takes numbers"),
    ("J15", entry("FP32", [2], data=[1]), b"", "Shape does not", tw.LayoutError, "data has 1"),
    ("J16", entry("FP32", [1], data=[1, 2]), b"", "Shape does", tw.LayoutError, "data has 2"),
]


@pytest.mark.parametrize(
    ("tensor", "blob", "theirs", "error", "ours"),
    [row[1:] for row in REFUSED_BY_BOTH],
    ids=[row[0] for row in REFUSED_BY_BOTH],
)
def test_both_refuse(
    triton: TritonServer,
    tensor: dict[str, Any],
    blob: bytes,
    theirs: str,
    error: type[tw.DecodeError],
    ours: str,
) -> None:
    text = header([tensor])
    model = "identity_fp32" if tensor["datatype"] == "FP31" else identity(tensor["datatype"])
    assert theirs in server_message(send_text(triton, model, text, blob))
    with pytest.raises(error, match=ours):
        tw.decode_request(text + blob, len(text))


JSON = header([FP32])


@pytest.mark.parametrize(
    ("text", "theirs", "ours"),
    [
        pytest.param(b"{}", "'inputs'", "missing required field `inputs`", id="C28"),
        pytest.param(header([]), "expected 1 inputs", "no inputs", id="C29"),
        pytest.param(JSON[:-1], "Missing a comma or }", "malformed", id="C30"),
        pytest.param(b"[]", "'inputs'", "Expected `object`", id="C31"),
        pytest.param(header([{"name": "INPUT0"}]), "Unable to parse", "required field", id="C33"),
        pytest.param(header([FP32, FP32]), "already exists", "twice", id="C23"),
        pytest.param(header([FP32], id=1), "as string", "Expected `str", id="C39"),
        pytest.param(
            header([FP32], parameters={"binary_data_output": "true"}),
            "non-boolean",
            "binary_data_output of the request is true or false",
            id="C27",
        ),
        pytest.param(
            header([FP32], outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]),
            "non-boolean",
            "binary_data of output 'OUTPUT0' is true or false",
            id="C26",
        ),
        pytest.param(JSON + b"x", "root must not be followed", "trailing characters", id="J22"),
    ],
)
def test_both_refuse_the_header(triton: TritonServer, text: bytes, theirs: str, ours: str) -> None:
    blob = F2 * text.count(b"binary_data_size")
    assert theirs in server_message(send_text(triton, "identity_fp32", text, blob))
    with pytest.raises(tw.HeaderError, match=ours):
        tw.decode_request(text + blob, len(text))
