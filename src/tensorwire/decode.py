"""The road in: body -> header -> extents -> views."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _jsondata, _pack
from ._body import Body
from .bytes_tensor import BytesTensor
from .datatypes import DATATYPES, RAW_BF16, Datatype, bf16_dtype
from .errors import (
    DecodeError,
    ElementError,
    EncodeError,
    HeaderError,
    LayoutError,
    shape_text,
    subject,
)
from .header import (
    HEADER_LENGTH,
    OutputEntry,
    TensorEntry,
    parse_header_length,
    read_request_header,
    read_response_header,
)
from .limits import Limits
from .messages import InferRequest, InferResponse, RequestedOutput, Tensor, TensorSpec

_DEFAULT_LIMITS = Limits()


def decode_request(
    body: Any,
    header_length: int | str | bytes | None = None,
    *,
    raw_input: TensorSpec | None = None,
    limits: Limits = _DEFAULT_LIMITS,
) -> InferRequest:
    """Validate a request and return its tensors as views of ``body``.

    ``body``: any C-contiguous buffer of bytes. It is pinned, whole, until the last view of it goes,
    and no payload byte is copied; arrays are writable when it is. JSON tensors get memory of their
    own. ``header_length``: what ``Inference-Header-Content-Length`` said; None when it was absent.
    ``raw_input``: what the model declares, needed when the header length is 0 (docs/wire.md 5).

    Raises DecodeError (HeaderError, LayoutError, ElementError) whatever the bytes; TypeError for
    arguments of the wrong type, BufferError for a strided or multi-byte buffer.
    """
    source = Body(body)
    header_nbytes = _header_nbytes(source, header_length, limits)
    if header_nbytes == 0 and header_length is not None:
        return _raw_request(source, raw_input, limits)
    header = read_request_header(source.head(header_nbytes), header_length is None)
    if not header.inputs:
        raise HeaderError("the request has no inputs")
    inputs = _read_tensors(source, header_nbytes, header.inputs, "input", limits)
    request = InferRequest(
        inputs,
        id=header.id,
        model_name=header.model_name,
        model_version=header.model_version,
    )
    if header.parameters is not None:
        request.parameters = header.parameters
        _check_flag(header.parameters, "binary_data_output", "the request")
    if header.outputs is not None:
        request.outputs = _read_outputs(header.outputs, limits)
    return request


def decode_response(
    body: Any,
    header_length: int | str | bytes | None = None,
    *,
    limits: Limits = _DEFAULT_LIMITS,
) -> InferResponse:
    """Validate a response and return its tensors as views of ``body``.

    Arguments, ownership and errors are those of ``decode_request``. The outputs stand in the order
    in which the server wrote them. A server's ``{"error": ...}`` is a HeaderError that quotes it.
    """
    source = Body(body)
    header_nbytes = _header_nbytes(source, header_length, limits)
    header = read_response_header(source.head(header_nbytes), header_length is None)
    response = InferResponse(
        _read_tensors(source, header_nbytes, header.outputs, "output", limits),
        model_name=header.model_name,
        model_version=header.model_version,
        id=header.id,
    )
    if header.parameters is not None:
        response.parameters = header.parameters
    return response


def _header_nbytes(source: Body, header_length: int | str | bytes | None, limits: Limits) -> int:
    if header_length is None:
        nbytes = source.nbytes
    else:
        nbytes = parse_header_length(header_length)
        if nbytes > source.nbytes:
            raise HeaderError(
                f"{HEADER_LENGTH} is {nbytes}, the body has {source.nbytes} bytes",
                expected=nbytes,
                actual=source.nbytes,
            )
    if nbytes > limits.max_header_nbytes:
        raise HeaderError(
            f"the JSON header is too long: {nbytes} bytes, at most {limits.max_header_nbytes} are "
            f"accepted",
            expected=limits.max_header_nbytes,
            actual=nbytes,
        )
    return nbytes


# --- tensors ---------------------------------------------------------------------------------


def _read_tensors(
    source: Body, header_nbytes: int, entries: list[TensorEntry], kind: str, limits: Limits
) -> list[Tensor]:
    """Walk the entries in wire order; the binary ones cover the body exactly (docs/wire.md 1)."""
    _check_number(len(entries), f"{kind}s", limits)
    tensors = []
    offset = header_nbytes
    for entry in entries:
        datatype = DATATYPES.get(entry.datatype)
        if datatype is None or "\0" in entry.name:
            raise _bad_entry(entry, kind)
        parameters = entry.parameters
        nbytes = None if parameters is None else parameters.pop("binary_data_size", None)
        if nbytes is None or entry.data is not None:
            tensors.append(_read_without_bytes(entry, datatype, nbytes, kind, limits))
            continue
        assert parameters is not None
        # `0 <= nbytes <= remaining` keeps what goes into C within the body, whatever was declared.
        if type(nbytes) is not int or not 0 <= nbytes <= source.nbytes - offset:
            raise _bad_size(nbytes, source, offset, entry, datatype, kind, limits)
        if "shared_memory_region" in parameters:
            raise _not_one_source(entry, nbytes, kind)
        data = _view(source, entry, datatype, offset, nbytes, kind, limits)
        offset += nbytes
        tensors.append(
            Tensor.decoded(entry.name, entry.datatype, entry.shape, data, parameters, True)
        )
    if offset != source.nbytes:
        raise _tail(source, offset, len(entries), header_nbytes)
    if len(tensors) > 1:
        _check_unique([tensor.name for tensor in tensors], kind)
    return tensors


def _view(
    source: Body,
    entry: TensorEntry,
    datatype: Datatype,
    offset: int,
    nbytes: int,
    kind: str,
    limits: Limits,
) -> Any:
    if datatype.itemsize == 0:
        return BytesTensor.scan(source, entry.shape, offset, nbytes, limits, kind, entry.name)
    dtype = datatype.dtype or _bf16(entry.name, kind, limits)
    return source.array(
        dtype, entry.shape, offset, nbytes, limits, kind, entry.name, entry.datatype
    )


def _bf16(name: str, kind: str, limits: Limits) -> np.dtype[Any]:
    dtype = RAW_BF16 if limits.bf16_as_uint16 else bf16_dtype()
    if dtype is None:
        raise HeaderError(
            f"{subject(kind, name)} is BF16, for which numpy needs the ml_dtypes package; "
            f"Limits(bf16_as_uint16=True) delivers its 16-bit words without",
            tensor=name,
        )
    return dtype


def _read_without_bytes(
    entry: TensorEntry, datatype: Datatype, nbytes: Any, kind: str, limits: Limits
) -> Tensor:
    """A tensor in JSON, in shared memory, or empty; more than one of them is refused."""
    parameters = {} if entry.parameters is None else entry.parameters
    is_elsewhere = "shared_memory_region" in parameters
    is_json = entry.data is not None
    if (nbytes is not None) + is_json + is_elsewhere > 1:
        raise _not_one_source(entry, nbytes, kind)
    data: Any
    if is_json:
        data = _read_json(entry, datatype, kind, limits)
    elif is_elsewhere:
        data = None
    elif 0 in entry.shape:  # as OVMS sends an empty output (docs/wire.md 3)
        data = _view(Body(b""), entry, datatype, 0, 0, kind, limits)
    else:
        raise _not_one_source(entry, nbytes, kind)
    return Tensor.decoded(
        entry.name, entry.datatype, entry.shape, data, parameters, not (is_json or is_elsewhere)
    )


def _read_json(entry: TensorEntry, datatype: Datatype, kind: str, limits: Limits) -> Any:
    """The array or BytesTensor of JSON ``data``, in memory of its own (docs/wire.md 4)."""
    name = entry.name
    if not datatype.in_json:
        raise HeaderError(
            f"{subject(kind, name)} is {entry.datatype} with JSON data: it travels only binary",
            tensor=name,
        )
    scalars = _jsondata.flatten(entry.data, kind, name)
    if datatype.dtype is not None:
        return _jsondata.numbers(
            scalars, datatype.dtype, entry.shape, limits, kind, name, entry.datatype
        )
    _jsondata.texts(scalars, entry.shape, limits, kind, name)
    try:
        wire = _pack.pack_objects(scalars, entry.shape, name)
    except EncodeError as error:  # a lone surrogate, which the tolerant parser lets through
        raise ElementError(str(error), tensor=name, element=error.element) from None
    return BytesTensor.packed(wire, entry.shape)


# --- requested outputs, raw requests ---------------------------------------------------------


def _read_outputs(entries: list[OutputEntry], limits: Limits) -> list[RequestedOutput]:
    _check_number(len(entries), "outputs", limits)
    outputs = []
    for entry in entries:
        if "\0" in entry.name:
            raise _bad_name(entry.name, "output")
        output = RequestedOutput(entry.name)
        if entry.parameters is not None:
            _check_flag(entry.parameters, "binary_data", f"output {entry.name!r}")
            output.binary = entry.parameters.pop("binary_data", None)
            output.parameters = entry.parameters
        outputs.append(output)
    _check_unique([output.name for output in outputs], "output")
    return outputs


def _raw_request(source: Body, spec: TensorSpec | None, limits: Limits) -> InferRequest:
    """The whole body is one tensor; everything else is deduced from the model (docs/wire.md 5)."""
    if spec is None:
        raise HeaderError(
            f"{HEADER_LENGTH} is 0, a raw binary request, and no raw_input is declared for it"
        )
    datatype = DATATYPES[spec.datatype]
    batch = (1,) if spec.batching else ()
    data: Any
    if datatype.itemsize == 0:
        shape = batch + spec.dims
        data = _raw_element(source, shape, spec)
    else:
        shape = batch + _deduce(source.nbytes, datatype, spec)
        dtype = datatype.dtype or _bf16(spec.name, "input", limits)
        data = source.array(
            dtype, shape, 0, source.nbytes, limits, "input", spec.name, spec.datatype
        )
    tensor = Tensor.decoded(spec.name, spec.datatype, shape, data, {}, True)
    # The client of a raw request cannot say it, and means it: every output is returned binary.
    return InferRequest([tensor], parameters={"binary_data_output": True})


def _raw_element(source: Body, shape: tuple[int, ...], spec: TensorSpec) -> BytesTensor:
    if any(dim != 1 for dim in shape):
        raise LayoutError(
            f"a raw BYTES request is one element: input {spec.name!r} is declared "
            f"{shape_text(spec.dims)}, not [1]",
            tensor=spec.name,
        )
    if source.nbytes >= 1 << 32:
        raise LayoutError(
            f"input {spec.name!r} is one BYTES element of {source.nbytes} bytes, its length is "
            f"below 2^32",
            tensor=spec.name,
            expected=(1 << 32) - 1,
            actual=source.nbytes,
        )
    return BytesTensor.single(source, shape)


def _deduce(nbytes: int, datatype: Datatype, spec: TensorSpec) -> tuple[int, ...]:
    """The declared dims with the variable one worked out from the body's size."""
    n_variable = spec.dims.count(-1)
    if n_variable > 1:
        raise LayoutError(
            f"the shape of input {spec.name!r} cannot be deduced: {shape_text(spec.dims)} has "
            f"{n_variable} variable dimensions",
            tensor=spec.name,
            expected=1,
            actual=n_variable,
        )
    row_nbytes = datatype.itemsize
    for dim in spec.dims:
        row_nbytes *= 1 if dim == -1 else dim
    if n_variable == 0:
        return spec.dims
    if row_nbytes == 0 or nbytes % row_nbytes != 0:
        raise LayoutError(
            f"a raw body of {nbytes} bytes does not fill input {spec.name!r}: {spec.datatype} "
            f"{shape_text(spec.dims)} comes in multiples of {row_nbytes} bytes",
            tensor=spec.name,
            expected=row_nbytes,
            actual=nbytes,
        )
    return tuple(nbytes // row_nbytes if dim == -1 else dim for dim in spec.dims)


# --- checks and their words ------------------------------------------------------------------


def _check_number(n_entries: int, what: str, limits: Limits) -> None:
    if n_entries > limits.max_tensors:
        raise HeaderError(
            f"the message has {n_entries} {what}, at most {limits.max_tensors} are accepted",
            expected=limits.max_tensors,
            actual=n_entries,
        )


def _check_unique(names: list[str], kind: str) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise HeaderError(f"{subject(kind, name)} appears twice", tensor=name)
        seen.add(name)


def _check_flag(parameters: dict[str, Any], key: str, where: str) -> None:
    value = parameters.get(key)
    if value is not None and type(value) is not bool:
        raise HeaderError(f"{key} of {where} is true or false, not {value!r:.40}")


def _bad_entry(entry: TensorEntry, kind: str) -> DecodeError:
    if "\0" in entry.name:
        return _bad_name(entry.name, kind)
    return HeaderError(
        f"{subject(kind, entry.name)} has an unknown datatype: {entry.datatype[:40]!r}",
        tensor=entry.name,
    )


def _bad_name(name: str, kind: str) -> DecodeError:
    return HeaderError(f"the name of {subject(kind, name)} contains a NUL", tensor=name)


def _bad_size(
    nbytes: Any,
    source: Body,
    offset: int,
    entry: TensorEntry,
    datatype: Datatype,
    kind: str,
    limits: Limits,
) -> DecodeError:
    """A binary_data_size that is no integer, is negative, or passes the end of the body."""
    who = subject(kind, entry.name)
    if type(nbytes) is not int:
        return HeaderError(
            f"binary_data_size of {who} is an integer, not {nbytes!r:.40}", tensor=entry.name
        )
    if nbytes < 0:
        return LayoutError(
            f"{who} has a negative binary_data_size: {shape_text([nbytes])[1:-1]}",
            tensor=entry.name,
            expected=0,
            actual=nbytes,
        )
    remaining = source.nbytes - offset
    return LayoutError(
        f"the body ends inside {who}: {shape_text([nbytes])[1:-1]} bytes are declared, "
        f"{remaining} remain (body byte {offset})",
        tensor=entry.name,
        offset=offset,
        expected=nbytes,
        actual=remaining,
    )


def _not_one_source(entry: TensorEntry, nbytes: Any, kind: str) -> DecodeError:
    parameters = entry.parameters or {}
    present = [
        key
        for key, is_present in (
            ("data", entry.data is not None),
            ("binary_data_size", nbytes is not None),
            ("shared_memory_region", "shared_memory_region" in parameters),
        )
        if is_present
    ]
    return HeaderError(
        f"{subject(kind, entry.name)} needs exactly one of data, binary_data_size and "
        f"shared_memory_region, it has {' and '.join(present) or 'none'}",
        tensor=entry.name,
    )


def _tail(source: Body, offset: int, n_tensors: int, header_nbytes: int) -> DecodeError:
    return LayoutError(
        f"the body has {source.nbytes - offset} bytes after its last tensor: the header of "
        f"{header_nbytes} bytes and {n_tensors} tensors end at byte {offset} of {source.nbytes}",
        offset=offset,
        expected=offset,
        actual=source.nbytes,
    )
