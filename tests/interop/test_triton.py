"""tensorwire against a live Triton: it accepts our requests, and we read its responses.

Ids such as A3 or R10 are those of WIRE.md 10 and support/cases.py.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import (
    DTYPES,
    JSON_DATATYPES,
    NOT_TEXT,
    TEXTS,
    Array,
    binary_sample,
    bits,
    bytes_array,
    json_sample,
)
from interop.triton_exchange import (
    HEADER_LENGTH,
    answer,
    entry,
    header,
    identity,
    output,
    request_of,
    send,
    send_text,
)
from interop.triton_models import DATATYPES
from interop.triton_server import TritonServer

NUMERIC = [datatype for datatype in DATATYPES if datatype != "BYTES"]
F2 = np.array([1, 2], np.float32)
BYTES = bytes_array([*TEXTS, NOT_TEXT])


def two(arrays: list[Array], forms: tuple[bool, ...] = (True, True)) -> tw.InferRequest:
    """Return a request for the model `two`, with each input in its own form."""
    inputs = [
        tw.Tensor(f"INPUT{i}", array, binary=is_binary)
        for i, (array, is_binary) in enumerate(zip(arrays, forms, strict=True))
    ]
    return tw.InferRequest(inputs, parameters={"binary_data_output": True})


# --- datatypes -------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", DATATYPES)
def test_binary_tensors(triton: TritonServer, datatype: str) -> None:
    sent = binary_sample(datatype)
    request = request_of(sent)
    assert request.inputs[0].datatype == datatype
    received = output(send(triton, identity(datatype), tw.encode_request(request)))
    assert (received.datatype, received.binary) == (datatype, True)
    assert bits(received.as_numpy()) == bits(sent)


@pytest.mark.parametrize("forms", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("datatype", JSON_DATATYPES)
def test_json_tensors(triton: TritonServer, datatype: str, forms: tuple[bool, bool]) -> None:
    """For FP64, Triton reads many decimals with an error of up to 2 units in the last place.

    The sample has no such decimals. Its NaN and infinities are bare tokens (J5).
    """
    sent = json_sample(datatype)
    frame = tw.encode_request(request_of(sent, *forms), nonfinite="literal")
    assert (HEADER_LENGTH in frame.headers) == forms[0]
    received = output(send(triton, identity(datatype), frame))
    assert (received.datatype, received.binary) == (datatype, forms[1])
    assert bits(received.as_numpy()) == bits(sent)


def test_response_id_and_names(triton: TritonServer) -> None:
    """C38: any text is an id, and is returned."""
    request = request_of(F2).replace(id='\xe9"1')
    response = answer(send(triton, "identity_fp32", tw.encode_request(request)))
    assert (response.id, response.model_name) == (request.id, "identity_fp32")
    assert response.model_version == "1"


def test_tensor_of_64_mib(triton: TritonServer) -> None:
    sent = np.arange(1 << 24, dtype=np.float32)
    reply = send(triton, "identity_fp32", tw.encode_request(request_of(sent)))
    received = output(reply).as_numpy()
    assert np.array_equal(received, sent)
    assert np.shares_memory(received, np.frombuffer(reply.body, np.uint8))


# --- framing ---------------------------------------------------------------------------------


def test_json_padding(triton: TritonServer) -> None:
    """B15: spaces after the JSON align the first tensor to a multiple of 64."""
    widths = set()
    for i in range(64):
        request = request_of(F2).replace(id="i" * (i + 1))
        frame = tw.encode_request(request)
        body, length = bytes(frame), frame.header_length
        assert length is not None
        assert length % 64 == 0
        assert body[length:] == F2.tobytes()
        widths.add(length - len(body[:length].rstrip()))
        assert bits(output(send(triton, "identity_fp32", frame)).as_numpy()) == bits(F2)
    assert widths == set(range(64))


@pytest.mark.parametrize("align", [1, 4096])
def test_other_json_padding(triton: TritonServer, align: int) -> None:
    frame = tw.encode_request(request_of(F2), align=align)
    assert bits(output(send(triton, "identity_fp32", frame)).as_numpy()) == bits(F2)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_empty_tensor(triton: TritonServer, datatype: str) -> None:
    """B3 and Y9: no header length in either direction, because no binary data follows."""
    sent = np.empty(0, DTYPES[datatype])
    frame = tw.encode_request(request_of(sent))
    assert HEADER_LENGTH not in frame.headers
    reply = send(triton, identity(datatype), frame)
    assert HEADER_LENGTH.lower() not in reply.headers
    received = output(reply)
    assert received.binary
    assert bits(received.as_numpy()) == bits(sent)


@pytest.mark.parametrize("is_output_binary", [False, True])
def test_empty_tensor_with_header_length(triton: TritonServer, is_output_binary: bool) -> None:
    """B4 and B5: the header length equals the body length, for binary and JSON output."""
    empty = np.empty((0, 3), np.float32)
    text = bytes(tw.encode_request(request_of(empty, is_output_binary=is_output_binary)))
    received = output(send_text(triton, "matrix", text))
    assert (received.binary, received.shape) == (is_output_binary, (0, 3))


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (0, 0)])
def test_empty_tensor_next_to_another(triton: TritonServer, sizes: tuple[int, int]) -> None:
    """X1: an empty tensor takes no bytes, before or after another tensor."""
    sent = [F2[: sizes[0]], BYTES[: sizes[1]]]
    reply = send(triton, "two", tw.encode_request(two(sent)))
    assert (HEADER_LENGTH.lower() in reply.headers) == any(sizes)
    for i, tensor in enumerate(answer(reply).outputs):
        assert bits(tensor.as_numpy()) == bits(sent[i])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("forms", list(product([False, True], repeat=4)))
def test_binary_and_json_in_one_message(
    triton: TritonServer, forms: tuple[bool, ...], order: tuple[int, int]
) -> None:
    """A5 to A8: each tensor in its own form; the model determines the order of the response."""
    sent = [F2, bytes_array(TEXTS)]
    request = two(sent, forms[:2])
    request = request.replace(
        inputs=[request.inputs[i] for i in order],
        outputs=[tw.RequestedOutput(f"OUTPUT{i}", binary=forms[2 + i]) for i in (0, 1)],
    )
    response = answer(send(triton, "two", tw.encode_request(request)))
    assert [tensor.name for tensor in response.outputs] == [f"OUTPUT{i}" for i in order]
    for i in (0, 1):
        tensor = response[f"OUTPUT{i}"]
        assert tensor.binary == forms[2 + i]
        assert bits(tensor.as_numpy()) == bits(sent[i])


# --- which outputs are binary ----------------------------------------------------------------


@pytest.mark.parametrize("default", [None, False, True])
@pytest.mark.parametrize("own", [None, False, True, "unlisted"])
def test_requested_form_of_outputs(triton: TritonServer, own: Any, default: bool | None) -> None:
    """A1 to A3, X10: for a listed output, Triton only uses its own parameter, so we write it."""
    request = request_of(F2).replace(
        outputs=[tw.RequestedOutput("OUTPUT0", binary=own)] if own != "unlisted" else None,
        parameters={} if default is None else {"binary_data_output": default},
    )
    received = output(send(triton, "identity_fp32", tw.encode_request(request)))
    assert received.binary == (own if isinstance(own, bool) else bool(default))


@pytest.mark.parametrize("default", [None, False, True])
@pytest.mark.parametrize(
    "listed",
    [
        None,
        [],
        [{"name": "OUTPUT1"}],
        [{"name": "OUTPUT1", "parameters": {"binary_data": True}}, {"name": "OUTPUT0"}],
        [{"name": "OUTPUT0", "parameters": {"binary_data": False}}],
    ],
)
def test_selection_triton(
    triton: TritonServer, listed: list[dict[str, Any]] | None, default: bool | None
) -> None:
    """A1 to A3, X10, C40: our response has the same outputs in the same forms as Triton's."""
    inputs = [entry("FP32", [2], 8), entry("BYTES", [1], 6, name="INPUT1")]
    members = {} if default is None else {"parameters": {"binary_data_output": default}}
    text = header(inputs, **members, **({} if listed is None else {"outputs": listed}))
    blob = F2.tobytes() + tw.encode_bytes([b"ab"])
    theirs = answer(send_text(triton, "two", text, blob))

    request = tw.decode_request(text + blob, len(text))
    outputs = [tw.Tensor(f"OUTPUT{i}", tensor.data) for i, tensor in enumerate(request.inputs)]
    frame = tw.encode_response(tw.InferResponse(outputs), request, selection="triton")
    ours = tw.decode_response(bytes(frame), frame.header_length)
    assert forms_of(ours) == forms_of(theirs)


def forms_of(response: tw.InferResponse) -> list[tuple[str, bool]]:
    return [(tensor.name, tensor.binary) for tensor in response.outputs]


# --- raw binary requests ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "spec", "sent", "shape"),
    [
        *(
            pytest.param(
                identity(datatype),
                tw.TensorSpec("INPUT0", datatype, [-1]),  # type: ignore[arg-type]
                binary_sample(datatype),
                binary_sample(datatype).shape,
                id=f"R1 {datatype}",
            )
            for datatype in NUMERIC
        ),
        pytest.param(
            "batching",
            tw.TensorSpec("INPUT0", "FP32", [-1], batching=True),
            F2,
            (1, 2),
            id="R2 batching",
        ),
        pytest.param(
            "matrix",
            tw.TensorSpec("INPUT0", "FP32", [-1, 3]),
            F2.repeat(3),
            (2, 3),
            id="R3 two dimensions",
        ),
        pytest.param(
            "matrix", tw.TensorSpec("INPUT0", "FP32", [-1, 3]), F2[:0], (0, 3), id="R6 empty"
        ),
    ],
)
def test_raw_requests(
    triton: TritonServer, model: str, spec: tw.TensorSpec, sent: Array, shape: tuple[int, ...]
) -> None:
    """Triton deduces the same shape as we do from the same declaration."""
    frame = tw.encode_raw_request(sent)
    assert frame.headers[HEADER_LENGTH] == "0"
    received = output(send(triton, model, frame))
    assert received.binary
    assert bits(received.as_numpy()) == bits(sent.reshape(shape))
    [deduced] = tw.decode_request(bytes(frame), 0, raw_input=spec).inputs
    assert bits(deduced.as_numpy()) == bits(received.as_numpy())


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"427", id="R10 text"),
        pytest.param(tw.encode_bytes([b"427"]), id="R12 length prefix is part of the element"),
        pytest.param(b"", id="R13 empty element"),
        pytest.param(NOT_TEXT, id="not UTF-8"),
    ],
)
def test_raw_bytes_requests(triton: TritonServer, value: bytes) -> None:
    frame = tw.encode_raw_request(value)
    assert bytes(frame) == value
    received = output(send(triton, "raw_bytes", frame))
    assert received.binary
    assert bits(received.as_numpy()) == bits(bytes_array([value]))
    spec = tw.TensorSpec("INPUT0", "BYTES", [1])
    [ours] = tw.decode_request(value, "0", raw_input=spec).inputs
    assert ours.data == received.data
