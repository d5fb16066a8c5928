"""The road out: arrays -> header -> buffers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import numpy as np

from ._body import payload
from .bytes_tensor import BytesTensor, pack
from .datatypes import DATATYPES, RAW_BF16, bf16_dtype
from .errors import ElementError, EncodeError
from .frame import Buffer, Frame
from .header import OutputEntry, RequestHeader, ResponseHeader, TensorEntry, write_header
from .messages import InferRequest, InferResponse, RequestedOutput, Tensor

Nonfinite = Literal["null", "literal", "error"]
Selection = Literal["spec", "triton"]


def encode_request(
    request: InferRequest, *, align: int = 64, nonfinite: Nonfinite = "null"
) -> Frame:
    """The buffers of a request; the tensors' memory is referenced, never copied or joined.

    ``align``: the JSON is padded with spaces so that the first binary tensor begins at a multiple
    of so many bytes from the start of the body; 1 for no padding (docs/wire.md 6).
    ``nonfinite``: NaN and infinities in JSON tensors as ``null``, as the ``NaN`` and ``Infinity``
    that Triton understands, or as an error (docs/wire.md 4).
    A ``binary_data_output`` among the parameters is repeated on every listed output that has no
    ``binary`` of its own, which every server understands alike (docs/wire.md 7).

    Raises EncodeError naming the tensor and element, TypeError.
    """
    if not isinstance(request, InferRequest):
        raise TypeError(f"encode_request takes an InferRequest, not {type(request).__name__}")
    if not request.inputs:
        raise EncodeError("a request has at least one input")
    choice = [(tensor, tensor.binary) for tensor in request.inputs]
    entries, buffers = _entries(choice, "input", nonfinite)
    header = RequestHeader(
        entries,
        request.id,
        request.model_name,
        request.model_version,
        request.parameters or None,
        None if request.outputs is None else _output_entries(request.outputs, request.parameters),
    )
    return _frame(header, buffers, align)


def encode_response(
    response: InferResponse,
    request: InferRequest | None = None,
    *,
    selection: Selection = "spec",
    align: int = 64,
    nonfinite: Nonfinite = "null",
) -> Frame:
    """The buffers of a response; the tensors' memory is referenced, never copied or joined.

    ``request``: the request that it answers decides which outputs are sent (those it lists; all
    when it lists none) and which of them binary: an output's own ``binary``, else the request's
    ``binary_data_output``, else JSON. With ``selection="triton"`` the second applies only to outputs
    that are not listed (docs/wire.md 7). An ``id`` of the request is repeated when the response has
    none. Without a request, each tensor's own ``binary`` decides.
    ``align`` and ``nonfinite`` are those of ``encode_request``.

    Raises EncodeError, with status 400 where the request asked for what cannot be (FP16 as JSON, an
    output that is not there), TypeError.
    """
    if not isinstance(response, InferResponse):
        raise TypeError(f"encode_response takes an InferResponse, not {type(response).__name__}")
    if selection not in ("spec", "triton"):
        raise ValueError(f"selection is 'spec' or 'triton', not {selection!r}")
    if request is None:
        choice = [(tensor, tensor.binary) for tensor in response.outputs]
    else:
        choice = _chosen(response, request, selection)
    entries, buffers = _entries(choice, "output", nonfinite)
    header = ResponseHeader(
        entries,
        response.model_name,
        response.model_version,
        request.id if response.id is None and request is not None else response.id,
        response.parameters or None,
    )
    return _frame(header, buffers, align)


def encode_raw_request(array: Any) -> Frame:
    """The raw binary request of one tensor: its bytes are the body, without JSON (docs/wire.md 5).

    ``array``: anything that ``Tensor`` takes, of one element when it is BYTES; ``bytes`` or ``str``
    are that element. BYTES go without their length prefix. The memory is referenced, not copied.
    Raises EncodeError, TypeError.
    """
    if isinstance(array, bytes | str | bytearray):
        array = [array]
    tensor = array if isinstance(array, Tensor) else Tensor("raw_input", array)
    if not isinstance(tensor.data, BytesTensor):
        return Frame((_wire(tensor),), 0)
    if tensor.data.size != 1:
        raise EncodeError(
            f"a raw BYTES request is one element, the tensor has {tensor.data.size}",
            expected=1,
            actual=tensor.data.size,
        )
    return Frame((tensor.data.wire[4:].toreadonly(),), 0)


def _frame(header: RequestHeader | ResponseHeader, buffers: list[Buffer], align: int) -> Frame:
    if align < 1:
        raise ValueError(f"align is 1 or more, not {align}")
    if not buffers:  # nothing follows the JSON: it needs neither length nor padding
        return Frame((write_header(header, 1),), None)
    text = write_header(header, align)
    return Frame((text, *buffers), len(text))


# --- tensors ---------------------------------------------------------------------------------


def _entries(
    choice: Iterable[tuple[Tensor, bool]], kind: str, nonfinite: Nonfinite
) -> tuple[list[TensorEntry], list[Buffer]]:
    """Header entries in order, and the memory of the non-empty binary tensors among them."""
    entries: list[TensorEntry] = []
    buffers: list[Buffer] = []
    names = set()
    for tensor, binary in choice:
        entry = TensorEntry(tensor.name, tensor.datatype, tensor.shape, tensor.parameters or None)
        if tensor.data is None:
            _check_elsewhere(tensor)
        elif binary:
            wire = _wire(tensor)
            if tensor.parameters:
                _check_reserved(tensor)
            entry.parameters = {**tensor.parameters, "binary_data_size": len(wire)}
            if len(wire) > 0:
                buffers.append(wire)
        else:
            _check_reserved(tensor)
            entry.data = _json_data(tensor, kind, nonfinite)
        entries.append(entry)
        names.add(tensor.name)
    if len(names) != len(entries):
        raise _duplicate(entries, kind)
    return entries, buffers


def _wire(tensor: Tensor) -> memoryview:
    """The tensor's own memory, after checking that it still is what the tensor says."""
    data = tensor.data
    if isinstance(data, BytesTensor):
        if tensor.datatype != "BYTES" or data.shape != tensor.shape:
            raise EncodeError(
                f"tensor {tensor.name!r} is {tensor.datatype} {list(tensor.shape)}, its data is "
                f"now BYTES {list(data.shape)}",
                tensor=tensor.name,
            )
        return data.wire
    if not isinstance(data, np.ndarray):
        raise TypeError(f"the data of tensor {tensor.name!r} is now {type(data).__name__}")
    dtype = DATATYPES[tensor.datatype].dtype
    if dtype is None:
        dtype = RAW_BF16 if data.dtype == RAW_BF16 else bf16_dtype() or RAW_BF16
    return payload(data, dtype, tensor.shape, tensor.name)


def _check_elsewhere(tensor: Tensor) -> None:
    if "shared_memory_region" not in tensor.parameters:
        raise EncodeError(
            f"tensor {tensor.name!r} has no data, and no shared_memory_region among its parameters",
            tensor=tensor.name,
        )


def _check_reserved(tensor: Tensor) -> None:
    for key in ("binary_data_size", "shared_memory_region"):
        if key in tensor.parameters:
            raise EncodeError(
                f"tensor {tensor.name!r} has data, and {key} among its parameters",
                tensor=tensor.name,
            )


def _duplicate(entries: list[TensorEntry], kind: str) -> EncodeError:
    names = [entry.name for entry in entries]
    name = next(name for name in names if names.count(name) > 1)
    return EncodeError(f"{kind} {name!r} appears twice", tensor=name)


# --- JSON tensors ----------------------------------------------------------------------------


def _json_data(tensor: Tensor, kind: str, nonfinite: Nonfinite) -> Any:
    """JSON ``data``, flat as Triton writes it, in which msgspec turns what is not finite to null."""
    data = tensor.data
    if isinstance(data, BytesTensor):
        return _json_strings(data, tensor)
    if not DATATYPES[tensor.datatype].in_json:
        raise EncodeError(
            f"{kind} {tensor.name!r} is {tensor.datatype}, which has no JSON form: send it binary",
            tensor=tensor.name,
            status=400,
        )
    payload(data, DATATYPES[tensor.datatype].dtype, tensor.shape, tensor.name)
    assert data is not None
    flat = data.reshape(-1)
    if nonfinite == "null" or data.dtype.kind != "f":
        return flat.tolist()
    finite = np.isfinite(flat)
    if finite.all():
        return flat.tolist()
    if nonfinite == "literal":
        return msgspec.Raw(json.dumps(flat.tolist(), separators=(",", ":")).encode())
    element = int(finite.argmin())
    raise EncodeError(
        f"element {element} of {kind} {tensor.name!r} is {flat[element]}, which has no JSON form",
        tensor=tensor.name,
        element=element,
    )


def _json_strings(data: BytesTensor, tensor: Tensor) -> list[str]:
    try:
        strings: list[str] = data.as_strings().reshape(-1).tolist()
    except ElementError as error:
        raise EncodeError(
            f"element {error.element} of tensor {tensor.name!r} is not UTF-8, and JSON carries "
            f"nothing else: send it binary",
            tensor=tensor.name,
            element=error.element,
            status=400,
        ) from None
    return strings


# --- outputs: which, and how -----------------------------------------------------------------


def _output_entries(outputs: list[RequestedOutput], parameters: dict[str, Any]) -> list[OutputEntry]:
    default = parameters.get("binary_data_output")
    entries = []
    for output in outputs:
        binary = default if output.binary is None else output.binary
        own = {} if binary is None else {"binary_data": binary}
        entries.append(OutputEntry(output.name, {**output.parameters, **own} or None))
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise EncodeError(f"output {name!r} is requested twice", tensor=name)
    return entries


def _chosen(
    response: InferResponse, request: InferRequest, selection: Selection
) -> list[tuple[Tensor, bool]]:
    """The outputs to send in the response's order, and which of them are binary."""
    default = bool(request.parameters.get("binary_data_output", False))
    if not request.outputs:
        return [(tensor, default) for tensor in response.outputs]
    listed_default = default if selection == "spec" else False
    binary = {
        output.name: listed_default if output.binary is None else output.binary
        for output in request.outputs
    }
    chosen = [(tensor, binary[tensor.name]) for tensor in response.outputs if tensor.name in binary]
    missing = binary.keys() - {tensor.name for tensor, _ in chosen}
    if missing:
        raise EncodeError(
            f"the request asks for output {min(missing)!r}, the response has "
            f"{[tensor.name for tensor in response.outputs]}",
            tensor=min(missing),
            status=400,
        )
    return chosen
