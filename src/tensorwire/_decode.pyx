"""The road in: body -> header -> extents -> views."""

from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport INT64_MAX

from ._body cimport Body
from ._datatypes cimport Datatype
from ._layout cimport Layout, measure
from ._limits cimport Limits
from ._messages cimport (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    TensorSpec,
    make_tensor,
)
from ._nesting cimport check_nesting
from ._wire cimport WIDEST_ITEMSIZE

from msgspec.structs import astuple

from . import _jsondata, _pack
from .bytes_tensor import BytesTensor
from ._datatypes import BYTES, DATATYPES, RAW_BF16, bf16_dtype
from .errors import (
    HeaderError,
    LayoutError,
    number_text,
    shape_text,
    subject,
)
from .header import (
    HEADER_LENGTH,
    RequestHeader,
    ResponseHeader,
    decode_request_header,
    decode_response_header,
    parse_header_length,
    read_tolerantly,
)

cdef Limits DEFAULT_LIMITS = Limits()
cdef dict ROWS = DATATYPES  # typed, which makes the lookup a call in C


def decode_request(
    body, header_length=None, *, TensorSpec raw_input=None, Limits limits not None=DEFAULT_LIMITS,
):
    """Validate a request and return its tensors as views of ``body``.

    ``body``: any C-contiguous buffer of bytes. It is pinned, whole, until the last view of it goes,
    and no payload byte is copied; arrays are writable when it is. JSON tensors get memory of their
    own. ``header_length``: what ``Inference-Header-Content-Length`` said; None when it was absent.
    ``raw_input``: what the model declares, needed when the header length is 0 (WIRE.md 5).

    Raises DecodeError (HeaderError, LayoutError, ElementError) whatever the bytes; TypeError for
    arguments of the wrong type, BufferError for a strided or multi-byte buffer.
    """
    cdef Body source = Body(body)
    cdef Py_ssize_t header_nbytes = header_extent(source, header_length, limits)
    if header_nbytes == 0 and header_length is not None:
        return raw_request(source, raw_input, limits)
    text = source.head(header_nbytes)
    check_nesting(text, limits)
    try:
        header = decode_request_header(text)
    except (ValueError, RecursionError) as error:
        header = read_tolerantly(text, RequestHeader, error, header_length is None)
    cdef InferRequest request = InferRequest.__new__(InferRequest)
    # In the order of RequestHeader's fields.
    (inputs, request.id, request.model_name, request.model_version, parameters,
     outputs) = astuple(header)
    if not inputs:
        raise HeaderError("the request has no inputs")
    if parameters is not None:
        check_flag(parameters, "binary_data_output", "request", None)
    request.inputs = read_tensors(source, header_nbytes, inputs, "input", limits)
    request.outputs = None if outputs is None else read_outputs(outputs, limits)
    request.parameters = {} if parameters is None else parameters
    return request


def decode_response(
    body, header_length=None, *, Limits limits not None=DEFAULT_LIMITS,
):
    """Validate a response and return its tensors as views of ``body``.

    Arguments, ownership and errors are those of ``decode_request``. The outputs stand in the order
    in which the server wrote them. A server's ``{"error": ...}`` is a HeaderError that quotes it.
    """
    cdef Body source = Body(body)
    cdef Py_ssize_t header_nbytes = header_extent(source, header_length, limits)
    text = source.head(header_nbytes)
    check_nesting(text, limits)
    try:
        header = decode_response_header(text)
    except (ValueError, RecursionError) as error:
        header = read_tolerantly(text, ResponseHeader, error, header_length is None)
    cdef InferResponse response = InferResponse.__new__(InferResponse)
    # In the order of ResponseHeader's fields.
    (outputs, response.model_name, response.model_version, response.id,
     parameters) = astuple(header)
    response.outputs = read_tensors(source, header_nbytes, outputs, "output", limits)
    response.parameters = {} if parameters is None else parameters
    return response


cdef Py_ssize_t header_extent(Body source, header_length, Limits limits) except -1:
    cdef Py_ssize_t nbytes = source.nbytes
    if header_length is not None:
        announced = header_length
        if type(header_length) is not int or header_length < 0:
            announced = parse_header_length(header_length)
        if announced > nbytes:
            raise beyond(announced, nbytes)
        nbytes = announced
    if nbytes > limits.max_header_nbytes:
        raise HeaderError(
            f"the JSON header is too long: {nbytes} bytes, at most {limits.max_header_nbytes} are "
            f"accepted",
            expected=limits.max_header_nbytes,
            actual=nbytes,
        )
    return nbytes


# --- tensors ---------------------------------------------------------------------------------


def read_binary(
    body, Py_ssize_t offset, list entries not None, str kind not None,
    Limits limits not None=DEFAULT_LIMITS,
):
    """The binary tensors of ``entries``, which cover ``body`` from ``offset`` to its end.

    For edges that read the JSON themselves: ``entries`` are TensorEntry, each with its
    ``binary_data_size``, which is taken out of its parameters. ``kind``: what errors call a tensor.
    Ownership and errors are those of ``decode_request``; HeaderError, too, for an ``offset`` that
    is not within the body.
    """
    cdef Body source = body if isinstance(body, Body) else Body(body)
    if offset < 0:
        raise HeaderError(f"{HEADER_LENGTH} is negative: {offset}", expected=0, actual=offset)
    if offset > source.nbytes:
        raise beyond(offset, source.nbytes)
    return read_tensors(source, offset, entries, kind, limits)


cdef list read_tensors(
    Body source, Py_ssize_t header_nbytes, list entries, str kind, Limits limits
):
    """Walk the entries in wire order; the binary ones cover the body exactly (WIRE.md 1)."""
    cdef list tensors = []
    cdef Py_ssize_t offset = header_nbytes  # at most source.nbytes, now and after each tensor
    cdef long long declared
    cdef int overflow = 0
    cdef Datatype datatype
    cdef Tensor tensor
    cdef str name
    cdef tuple shape
    cdef dict parameters
    check_number(len(entries), kind, limits)
    if limits.max_elements < INT64_MAX:
        check_elements([(entry.name, entry.shape) for entry in entries], kind, limits)
    for entry in entries:
        name, datatype_name, shape, parameters, data = astuple(entry)
        datatype = ROWS.get(datatype_name)
        if datatype is None or "\0" in name:
            raise bad_entry(entry, kind)
        if len(name) > limits.max_name_nbytes >> 2:
            check_name(name, kind, limits)
        nbytes = None if parameters is None else parameters.pop("binary_data_size", None)
        if nbytes is None or data is not None:
            tensors.append(read_without_bytes(entry, datatype, nbytes, kind, limits))
            continue
        if type(nbytes) is not int:
            raise bad_size(nbytes, name, kind)
        declared = PyLong_AsLongLongAndOverflow(nbytes, &overflow)
        if declared < 0 or overflow != 0:
            raise bad_size(nbytes, name, kind)
        if parameters and check_region(parameters, name, kind):
            raise not_one_source(entry, nbytes, kind)
        data = take(source, name, shape, datatype, offset, declared, kind, limits)
        offset += declared  # which `take` found within the body
        tensors.append(make_tensor(name, datatype.name, shape, data, parameters, True))
    if offset != source.nbytes:
        raise tail(source, offset, len(entries), header_nbytes)
    if len(tensors) > 1:
        check_unique([tensor.name for tensor in tensors], kind)
    return tensors


cdef take(
    Body source, str name, tuple shape, Datatype datatype, Py_ssize_t offset, Py_ssize_t nbytes,
    str kind, Limits limits,
):
    """The array or BytesTensor over `nbytes` bytes from `offset`."""
    dtype = datatype.dtype
    if dtype is None:
        if datatype.itemsize == 0:
            return BytesTensor.scan(source, shape, offset, nbytes, limits, kind, name)
        dtype = bf16(name, kind, limits)
    return source.array(dtype, shape, offset, nbytes, limits, kind, name, datatype)


cdef bf16(str name, str kind, Limits limits):
    dtype = RAW_BF16 if limits.bf16_as_uint16 else bf16_dtype()
    if dtype is None:
        raise HeaderError(
            f"{subject(kind, name)} is BF16, for which numpy needs the ml_dtypes package; "
            f"Limits(bf16_as_uint16=True) delivers its 16-bit words without",
            tensor=name,
        )
    return dtype


cdef Tensor read_without_bytes(entry, Datatype datatype, nbytes, str kind, Limits limits):
    """A tensor in JSON, in shared memory, or empty; more than one of them is refused."""
    cdef Layout layout
    parameters = {} if entry.parameters is None else entry.parameters
    is_elsewhere = check_region(parameters, entry.name, kind)
    is_json = entry.data is not None
    if (nbytes is not None) + is_json + is_elsewhere > 1:
        raise not_one_source(entry, nbytes, kind)
    if is_json:
        data = read_json(entry, datatype, kind, limits)
    elif is_elsewhere:
        measure(&layout, entry.shape, datatype.itemsize or WIDEST_ITEMSIZE, limits, kind,
                entry.name, datatype)
        data = None
    elif kind == "output" and 0 in entry.shape:  # as OVMS sends an empty output (WIRE.md 3)
        data = take(Body(b""), entry.name, entry.shape, datatype, 0, 0, kind, limits)
    else:
        raise not_one_source(entry, nbytes, kind)
    is_binary = not (is_json or is_elsewhere)
    return make_tensor(entry.name, entry.datatype, entry.shape, data, parameters, is_binary)


cdef bint check_region(dict parameters, str name, str kind) except -1:
    region = parameters.get("shared_memory_region")
    if region is not None and type(region) is not str:
        raise HeaderError(
            f"shared_memory_region of {subject(kind, name)} is a string, not {region!r:.40}",
            tensor=name,
        )
    return region is not None


cdef read_json(entry, Datatype datatype, str kind, Limits limits):
    """The array or BytesTensor of JSON ``data``, in memory of its own (WIRE.md 4)."""
    name = entry.name
    if not datatype.in_json:
        raise HeaderError(
            f"{subject(kind, name)} is {entry.datatype} with JSON data: it travels only binary",
            tensor=name,
        )
    scalars = _jsondata.flatten(entry.data, kind, name)
    if datatype.dtype is not None:
        return _jsondata.numbers(
            scalars, datatype.dtype, entry.shape, limits, kind, name, datatype
        )
    _jsondata.texts(scalars, entry.shape, limits, kind, name)
    wire = _pack.pack(_pack.Objects(scalars, entry.shape, name))
    return BytesTensor.packed(wire, entry.shape)


# --- requested outputs, raw requests ---------------------------------------------------------


cdef list read_outputs(list entries, Limits limits):
    cdef RequestedOutput output
    cdef list outputs = []
    check_number(len(entries), "output", limits)
    for entry in entries:
        if "\0" in entry.name:
            raise bad_name(entry.name, "output")
        check_name(entry.name, "output", limits)
        output = RequestedOutput(entry.name)
        if entry.parameters is not None:
            check_flag(entry.parameters, "binary_data", "output", entry.name)
            output.binary = entry.parameters.pop("binary_data", None)
            output.parameters = entry.parameters
        outputs.append(output)
    check_unique([output.name for output in outputs], "output")
    return outputs


cdef InferRequest raw_request(Body source, TensorSpec spec, Limits limits):
    """The whole body is one tensor; everything else is deduced from the model (WIRE.md 5)."""
    if spec is None:
        raise HeaderError(
            f"{HEADER_LENGTH} is 0, a raw binary request, and no raw_input is declared for it"
        )
    cdef Tensor tensor
    cdef Datatype datatype = ROWS[spec.datatype]
    batch = (1,) if spec.batching else ()
    if datatype.itemsize == 0:
        shape = batch + spec.dims
        check_elements([(spec.name, shape)], "input", limits)
        data = raw_element(source, shape, spec, limits)
    else:
        shape = batch + deduce(source.nbytes, datatype, spec)
        check_elements([(spec.name, shape)], "input", limits)
        data = take(source, spec.name, shape, datatype, 0, source.nbytes, "input", limits)
    tensor = make_tensor(spec.name, spec.datatype, shape, data, {}, True)
    # The client of a raw request cannot say it, and means it: every output is returned binary.
    return InferRequest([tensor], parameters={"binary_data_output": True})


cdef raw_element(Body source, tuple shape, TensorSpec spec, Limits limits):
    cdef Layout layout
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
    measure(&layout, shape, WIDEST_ITEMSIZE, limits, "input", spec.name, BYTES)
    return BytesTensor.single(source, shape)


cdef tuple deduce(Py_ssize_t nbytes, Datatype datatype, TensorSpec spec):
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
    row_nbytes = datatype.itemsize  # of the fixed dims; a Python int, which cannot overflow
    for dim in spec.dims:
        row_nbytes *= 1 if dim == -1 else dim
    fits = nbytes == row_nbytes if n_variable == 0 else row_nbytes > 0 and nbytes % row_nbytes == 0
    if not fits:
        takes = "multiples of " if n_variable else ""
        raise LayoutError(
            f"a raw body of {nbytes} bytes does not fill input {spec.name!r}: {spec.datatype} "
            f"{shape_text(spec.dims)} takes {takes}{number_text(row_nbytes)} bytes",
            tensor=spec.name,
            expected=row_nbytes,
            actual=nbytes,
        )
    return tuple(nbytes // row_nbytes if dim == -1 else dim for dim in spec.dims)


# --- checks and their words ------------------------------------------------------------------


cdef int check_number(Py_ssize_t n_entries, str kind, Limits limits) except -1:
    if n_entries > <Py_ssize_t>limits.max_tensors:
        raise HeaderError(
            f"the message has {n_entries} {kind}s, at most {limits.max_tensors} are accepted",
            expected=limits.max_tensors,
            actual=n_entries,
        )
    return 0


cdef int check_name(str name, str kind, Limits limits) except -1:
    """Refuse a name that is too long. One of a quarter as many characters needs no look."""
    cdef Py_ssize_t nbytes = len(name.encode())
    if nbytes > limits.max_name_nbytes:
        raise HeaderError(
            f"the name of {subject(kind, name)} is too long: {nbytes} bytes, at most "
            f"{limits.max_name_nbytes} are accepted",
            tensor=name, expected=limits.max_name_nbytes, actual=nbytes,
        )
    return 0


cdef int check_elements(list shapes, str kind, Limits limits) except -1:
    """Refuse more elements than are accepted, by what (name, shape) pairs declare."""
    total = 0
    for name, shape in shapes:
        total += n_declared(shape)
        if total > limits.max_elements:
            raise LayoutError(
                f"the message has too many elements: {number_text(total)} up to "
                f"{subject(kind, name)}, at most {limits.max_elements} are accepted",
                tensor=name, expected=limits.max_elements, actual=total,
            )
    return 0


cdef n_declared(tuple shape):
    """The product of the dimensions; anything over 2^63 where it is, and 0 for what cannot be."""
    product = 1
    if 0 in shape:
        return 0
    for dim in shape:
        if dim < 0:
            return 0
        if product <= INT64_MAX:  # so that the factors stay small, however many there are
            product *= dim
    return product


cdef int check_unique(list names, str kind) except -1:
    seen = set()
    for name in names:
        if name in seen:
            raise HeaderError(f"{subject(kind, name)} appears twice", tensor=name)
        seen.add(name)
    return 0


cdef int check_flag(dict parameters, str key, str kind, str name) except -1:
    value = parameters.get(key)
    if value is not None and type(value) is not bool:
        raise HeaderError(
            f"{key} of {subject(kind, name)} is true or false, not {value!r:.40}", tensor=name)
    return 0


cdef beyond(announced, Py_ssize_t nbytes):
    return HeaderError(
        f"{HEADER_LENGTH} is {number_text(announced)}, the body has {nbytes} bytes",
        expected=announced,
        actual=nbytes,
    )


cdef bad_entry(entry, str kind):
    if "\0" in entry.name:
        return bad_name(entry.name, kind)
    return HeaderError(
        f"{subject(kind, entry.name)} has an unknown datatype: {entry.datatype[:40]!r}",
        tensor=entry.name,
    )


cdef bad_name(str name, str kind):
    return HeaderError(f"the name of {subject(kind, name)} contains a NUL", tensor=name)


cdef bad_size(nbytes, str name, str kind):
    """A binary_data_size that is no integer, is negative, or passes 2^63 - 1."""
    if type(nbytes) is not int:
        return HeaderError(
            f"binary_data_size of {subject(kind, name)} is an integer, not {nbytes!r:.40}",
            tensor=name,
        )
    if nbytes < 0:
        return LayoutError(
            f"binary_data_size of {subject(kind, name)} is negative: {number_text(nbytes)}",
            tensor=name, expected=0, actual=nbytes,
        )
    return LayoutError(
        f"binary_data_size of {subject(kind, name)} passes 2^63 - 1 bytes: {number_text(nbytes)}",
        tensor=name, expected=2 ** 63 - 1, actual=nbytes,
    )


cdef not_one_source(entry, nbytes, str kind):
    parameters = entry.parameters or {}
    present = [
        key
        for key, is_present in (
            ("data", entry.data is not None),
            ("binary_data_size", nbytes is not None),
            ("shared_memory_region", parameters.get("shared_memory_region") is not None),
        )
        if is_present
    ]
    return HeaderError(
        f"{subject(kind, entry.name)} needs exactly one of data, binary_data_size and "
        f"shared_memory_region, it has {' and '.join(present) or 'none'}",
        tensor=entry.name,
    )


cdef tail(Body source, Py_ssize_t offset, Py_ssize_t n_tensors, Py_ssize_t header_nbytes):
    return LayoutError(
        f"the body has {source.nbytes - offset} bytes after its last tensor: the header of "
        f"{header_nbytes} bytes and {n_tensors} tensors end at byte {offset} of {source.nbytes}",
        offset=offset,
        expected=offset,
        actual=source.nbytes,
    )
