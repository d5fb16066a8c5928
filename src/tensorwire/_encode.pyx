"""The road out: arrays -> header -> buffers."""

cimport cython
cimport numpy as cnp

from ._body cimport payload
from ._datatypes cimport Datatype
from ._frame cimport Frame
from ._headertext cimport HeaderText
from ._layout cimport shape_to_send
from ._messages cimport (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    checked_list,
    output_at,
    tensor_at,
)

import json
from operator import index

import msgspec
import numpy as np

from .bytes_tensor import BytesTensor
from ._datatypes import DATATYPES, RAW_BF16, bf16_dtype
from .errors import ElementError, EncodeError, number_text
from .header import OutputEntry

cnp.import_array()

cdef enum:
    MAX_ALIGN = 16 << 20  # spaces that a header may be padded with

cdef dict ROWS = DATATYPES  # typed, which makes the lookup a call in C


def encode_request(
    InferRequest request not None, *, align=64, str nonfinite="null",
):
    """The buffers of a request; the tensors' memory is referenced, never copied or joined.

    ``align``: the JSON is padded with spaces so that the first binary tensor begins at a multiple
    of so many bytes from the start of the body; 1 for no padding, at most 2^24 (WIRE.md 6).
    ``nonfinite``: NaN and infinities in JSON tensors as ``null``, as the ``NaN`` and ``Infinity``
    that Triton understands, or as an error (WIRE.md 4).
    A ``binary_data_output`` among the parameters is repeated on every listed output that has no
    ``binary`` of its own, which every server understands alike (WIRE.md 7).

    Raises EncodeError naming the tensor and element; TypeError for an attribute, or an item of a
    list, of another type than the message was made with; ValueError for ``align``.
    """
    cdef list inputs = checked_list(request.inputs, "inputs")
    if not inputs:
        raise EncodeError("a request has at least one input")
    cdef Draft draft = Draft("input", nonfinite, b'{"inputs":[')
    cdef Tensor tensor
    cdef Py_ssize_t i = 0
    while i < len(inputs):  # which may change meanwhile
        tensor = tensor_at(inputs, i, "inputs")
        draft.add(tensor, tensor.binary)
        i += 1
    default = binary_data_output(request.parameters)
    requested = None if request.outputs is None else output_entries(request.outputs, default)
    cdef HeaderText text = draft.text
    text.close(b"]")
    text.member(b'"id":', request.id)
    text.member(b'"model_name":', request.model_name)
    text.member(b'"model_version":', request.model_version)
    text.member(b'"parameters":', request.parameters or None)
    text.member(b'"outputs":', requested)
    return draft.frame(align)


def encode_response(
    InferResponse response not None, InferRequest request=None, *,
    str selection="spec", align=64, str nonfinite="null",
):
    """The buffers of a response; the tensors' memory is referenced, never copied or joined.

    ``request``: the request that it answers decides which outputs are sent (those it lists; all
    when it lists none) and which of them binary: an output's own ``binary``, else the request's
    ``binary_data_output``, else JSON. With ``selection="triton"`` the second applies only to
    outputs that are not listed (WIRE.md 7). An ``id`` of the request is repeated when the
    response has none. Without a request, each tensor's own ``binary`` decides.
    ``align`` and ``nonfinite`` are those of ``encode_request``.

    Raises EncodeError, with status 400 where the request asked for what cannot be (FP16 as JSON, an
    output that is not there); TypeError and ValueError as ``encode_request`` does.
    """
    if selection not in ("spec", "triton"):
        raise ValueError(f"selection is 'spec' or 'triton', not {selection!r}")
    cdef Draft draft = Draft("output", nonfinite, b'{"outputs":[')
    add_outputs(draft, response, request, selection)
    cdef HeaderText text = draft.text
    text.close(b"]")
    text.member(b'"model_name":', response.model_name)
    text.member(b'"model_version":', response.model_version)
    text.member(
        b'"id":', request.id if response.id is None and request is not None else response.id)
    text.member(b'"parameters":', response.parameters or None)
    return draft.frame(align)


def encode_raw_request(array):
    """The raw binary request of one tensor: its bytes are the body, without JSON (WIRE.md 5).

    ``array``: anything that ``Tensor`` takes, of one element when it is BYTES; ``bytes`` or ``str``
    are that element. BYTES go without their length prefix. The memory is referenced, not copied.
    Raises EncodeError, TypeError.
    """
    if isinstance(array, bytes | str | bytearray):
        array = [array]
    cdef Tensor tensor = array if isinstance(array, Tensor) else Tensor("raw_input", array)
    if tensor.data is None:
        raise EncodeError(
            f"tensor {tensor.name!r} lives in shared memory: a raw request carries its bytes",
            tensor=tensor.name)
    cdef Datatype datatype = ROWS.get(tensor.datatype)
    if datatype is None:
        raise bad_tensor(tensor)
    wire = wire_of(tensor, datatype, shape_to_send(tensor.shape, datatype, tensor.name))
    if not isinstance(tensor.data, BytesTensor):
        return Frame((wire,), 0)
    if tensor.data.size != 1:
        raise EncodeError(
            f"a raw BYTES request is one element, the tensor has {tensor.data.size}",
            expected=1,
            actual=tensor.data.size,
        )
    return Frame((tensor.data.view(0).toreadonly(),), 0)


# --- tensors ---------------------------------------------------------------------------------


@cython.final
cdef class Draft:
    """The header entries of a message under way, and the memory that will follow its header."""

    cdef HeaderText text
    cdef list names  # of the tensors that have been added
    cdef list buffers  # of the non-empty binary tensors, in wire order
    cdef str kind
    cdef str nonfinite

    def __cinit__(self, str kind, str nonfinite, bytes opening):
        if nonfinite not in ("null", "literal", "error"):
            raise ValueError(f"nonfinite is 'null', 'literal' or 'error', not {nonfinite!r}")
        self.text = HeaderText()
        self.text.open(opening)
        self.names = []
        self.buffers = []
        self.kind = kind
        self.nonfinite = nonfinite

    cdef int add(self, Tensor tensor, bint binary) except -1:
        """Append the tensor's entry, and its memory when it travels binary and is not empty."""
        cdef HeaderText text = self.text
        cdef Py_ssize_t nbytes = -1
        cdef Datatype datatype = ROWS.get(tensor.datatype)
        cdef tuple shape
        data = None
        # Each attribute is read once: keys of `parameters` may run code that assigns to them.
        cdef str name = tensor.name
        cdef dict parameters = tensor.parameters
        has_data = tensor.data is not None
        if name is None or "\0" in name or datatype is None:
            raise bad_tensor(tensor)
        shape = shape_to_send(tensor.shape, datatype, name)
        if not has_data:
            check_elsewhere(parameters, name)
        elif binary:
            wire = wire_of(tensor, datatype, shape)
            nbytes = len(wire)
            if nbytes > 0:
                self.buffers.append(wire)
        else:
            data = json_data(tensor, datatype, shape, self.kind, self.nonfinite)
        if has_data and parameters:
            check_reserved(parameters, name)
        try:
            text.item()
            text.open(b'{')
            text.member(b'"name":', name)
            text.member(b'"datatype":', datatype.name)
            text.item()
            text.put_bytes(b'"shape":')
            text.numbers(shape)
            text.parameters(parameters, nbytes)
            text.member(b'"data":', data)
            text.close(b'}')
        except EncodeError as error:  # a lone surrogate somewhere, or a dict within itself
            error.tensor = name
            raise
        self.names.append(name)
        return 0

    cdef Frame frame(self, align):
        """The header's JSON, padded when bytes follow it, and those bytes."""
        cdef bytes text
        if type(align) is not int:
            align = int(index(align))
        if not 1 <= align <= MAX_ALIGN:
            raise ValueError(f"align is 1 or more, to {MAX_ALIGN}, not {number_text(align)}")
        if len(self.names) > 1:
            check_unique(self.names, self.kind)
        self.text.close(b"}")
        if not self.buffers:
            return Frame((self.text.padded(1),), None)
        text = self.text.padded(align)
        return Frame((text, *self.buffers), len(text))


cdef int check_unique(list names, str what) except -1:
    seen = set()
    for name in names:
        if name in seen:
            raise EncodeError(f"{what} {name!r} appears twice", tensor=name)
        seen.add(name)
    return 0


cdef wire_of(Tensor tensor, Datatype datatype, tuple shape):
    """The tensor's own memory, after checking that it still is what the tensor says.

    `datatype` and `shape` are the tensor's, the latter as `shape_to_send` returned it.
    """
    data = tensor.data
    if isinstance(data, cnp.ndarray):
        return payload(data, dtype_of(data, datatype, tensor.name), shape, tensor.name)
    if not isinstance(data, BytesTensor):
        raise TypeError(f"the data of tensor {tensor.name!r} is now {type(data).__name__}")
    if datatype.itemsize != 0 or data.shape != shape:
        raise EncodeError(
            f"tensor {tensor.name!r} was made as {datatype.name} {list(shape)}, its data "
            f"is now BYTES {list(data.shape)}",
            tensor=tensor.name,
        )
    return data.wire


cdef bad_tensor(Tensor tensor):
    what = f"an unknown datatype: {tensor.datatype!r}"
    if tensor.name is None or "\0" in tensor.name:
        what = "no name, or one with a NUL"
    return EncodeError(f"tensor {tensor.name!r} has {what}", tensor=tensor.name)


cdef cnp.dtype dtype_of(cnp.ndarray array, Datatype datatype, str name):
    if datatype.dtype is not None:
        return datatype.dtype
    if datatype.itemsize == 0:
        raise EncodeError(
            f"tensor {name!r} was made as BYTES, its data is now {array.descr}", tensor=name)
    return RAW_BF16 if array.descr == RAW_BF16 else bf16_dtype() or RAW_BF16


cdef int check_elsewhere(dict parameters, str name) except -1:
    if parameters is None or not isinstance(parameters.get("shared_memory_region"), str):
        raise EncodeError(
            f"tensor {name!r} has no data, and no shared_memory_region among its parameters",
            tensor=name,
        )
    if "binary_data_size" in parameters:
        raise EncodeError(
            f"tensor {name!r} lives in shared memory, and has a binary_data_size among its "
            f"parameters",
            tensor=name,
        )
    return 0


cdef int check_reserved(dict parameters, str name) except -1:
    for key in ("binary_data_size", "shared_memory_region"):
        if key in parameters:
            raise EncodeError(
                f"tensor {name!r} has data, and {key} among its parameters",
                tensor=name,
            )
    return 0


# --- JSON tensors ----------------------------------------------------------------------------


cdef json_data(Tensor tensor, Datatype datatype, tuple shape, str kind, str nonfinite):
    """JSON ``data``, flat as Triton writes it; msgspec turns what is not finite to null."""
    data = tensor.data
    wire_of(tensor, datatype, shape)  # for its checks
    if isinstance(data, BytesTensor):
        return json_strings(data, tensor)
    if not datatype.in_json:
        raise EncodeError(
            f"{kind} {tensor.name!r} is {tensor.datatype}, which has no JSON form: send it binary",
            tensor=tensor.name,
            status=400,
        )
    flat = np.asarray(data).reshape(-1)  # of a subclass only the memory counts
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


cdef list json_strings(data, Tensor tensor):
    try:
        return data.as_strings().reshape(-1).tolist()
    except ElementError as error:
        raise EncodeError(
            f"element {error.element} of tensor {tensor.name!r} is not UTF-8, and JSON carries "
            f"nothing else: send it binary",
            tensor=tensor.name,
            element=error.element,
            status=400,
        ) from None


# --- outputs: which, and how -----------------------------------------------------------------


cdef binary_data_output(dict parameters):
    value = None if parameters is None else parameters.get("binary_data_output")
    if value is not None and not isinstance(value, bool):
        what = repr(value) if isinstance(value, (str, int)) else type(value).__name__
        raise EncodeError(f"binary_data_output of the request is True or False, not {what}")
    return value


cdef list output_entries(list outputs, default):
    cdef RequestedOutput output
    cdef Py_ssize_t i
    entries = []
    outputs = [output_at(outputs, i, "outputs") for i in range(len(outputs))]
    check_unique([output.name for output in outputs], "requested output")
    for output in outputs:
        checked_output_name(output)
        binary = checked_binary(output, default)
        parameters = {**(output.parameters or {})}
        if binary is not None:
            parameters["binary_data"] = binary
        elif not isinstance(parameters.get("binary_data"), (bool, type(None))):
            raise EncodeError(
                f"binary_data of requested output {output.name!r} is True or False, not "
                f"{type(parameters['binary_data']).__name__}")
        entries.append(OutputEntry(output.name, parameters or None))
    return entries


cdef str checked_output_name(RequestedOutput output):
    if output.name is None or "\0" in output.name:
        raise EncodeError(f"requested output {output.name!r} has no name, or one with a NUL")
    return output.name


cdef checked_binary(RequestedOutput output, default):
    """How the output is asked for; `default` when it does not say."""
    if output.binary is not None and not isinstance(output.binary, bool):
        raise TypeError(
            f"binary of requested output {output.name!r} is True, False or None, not "
            f"{type(output.binary).__name__}")
    return default if output.binary is None else output.binary


cdef int add_outputs(
    Draft draft, InferResponse response, InferRequest request, str selection,
) except -1:
    """Draft the outputs that the request wants, each as it wants it (WIRE.md 7)."""
    cdef list outputs = checked_list(response.outputs, "outputs")
    cdef Tensor tensor
    cdef dict listed = None
    cdef Py_ssize_t i = 0
    default = None if request is None else bool(binary_data_output(request.parameters))
    if request is not None and request.outputs:
        listed = listed_outputs(outputs, request, default if selection == "spec" else False)
    while i < len(outputs):  # which may change meanwhile
        tensor = tensor_at(outputs, i, "outputs")
        if listed is None:
            draft.add(tensor, tensor.binary if default is None else default)
        elif tensor.name in listed:
            draft.add(tensor, listed[tensor.name])
        i += 1
    return 0


cdef dict listed_outputs(list outputs, InferRequest request, bint default):
    """Names of the outputs that the request lists, and whether each goes binary."""
    cdef RequestedOutput output
    cdef dict binary = {}
    cdef Py_ssize_t i
    for i in range(len(request.outputs)):
        output = output_at(request.outputs, i, "the request's outputs")
        binary[checked_output_name(output)] = checked_binary(output, default)
    names = [tensor_at(outputs, i, "outputs").name for i in range(len(outputs))]
    missing = binary.keys() - set(names)
    if missing:
        raise EncodeError(
            f"the request asks for output {min(missing)!r}, the response has {names}",
            tensor=min(missing),
            status=400,
        )
    return binary
