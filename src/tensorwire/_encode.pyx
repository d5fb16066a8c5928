"""The encoder: messages become a JSON header and the buffers that follow it."""

cimport cython
cimport numpy as cnp
from cpython.set cimport PySet_Add, PySet_GET_SIZE

from ._body cimport check_array, payload
from ._datatypes cimport Datatype
from ._frame cimport Frame, new_frame
from ._json_writer cimport AS_ERROR, AS_LITERAL, AS_NULL, JsonWriter, Nonfinite, literal
from ._layout cimport shape_to_send
from ._messages cimport (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    checked_list,
    has_nul,
    output_at,
    tensor_at,
)

from operator import index

import numpy as np

from ._datatypes import DATATYPES, RAW_BF16, bf16_dtype
from .bytes_tensor import BytesTensor
from .errors import EncodeError, number_text

cnp.import_array()

cdef dict ROWS = DATATYPES

cdef enum:
    # Open lists and objects where a message's parameters begin, and those of a tensor or an output.
    MESSAGE_DEPTH = 2
    TENSOR_DEPTH = 4
    MAX_ALIGN = 16 << 20  # spaces that a header may be padded with


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
    cdef Draft draft = new_draft("input", nonfinite)
    cdef JsonWriter writer = draft.writer
    cdef Tensor tensor
    cdef Py_ssize_t i = 0
    literal(writer, b'{"inputs":[')
    while i < len(inputs):  # which may change meanwhile
        tensor = tensor_at(inputs, i, "inputs")
        draft.add(tensor, tensor.binary)
        i += 1
    writer.close(c"]")
    default = binary_data_output(request._parameters)
    write_text(writer, b'"id":', request.id)
    write_text(writer, b'"model_name":', request.model_name)
    write_text(writer, b'"model_version":', request.model_version)
    write_parameters(writer, request._parameters)
    if request.outputs is not None:
        write_requested(writer, request.outputs, default)
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
    cdef Draft draft = new_draft("output", nonfinite)
    cdef JsonWriter writer = draft.writer
    literal(writer, b'{"outputs":[')
    add_outputs(draft, response, request, selection)
    writer.close(c"]")
    write_text(writer, b'"model_name":', response.model_name)
    write_text(writer, b'"model_version":', response.model_version)
    write_text(
        writer, b'"id":',
        request.id if response.id is None and request is not None else response.id)
    write_parameters(writer, response._parameters)
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
    cdef Datatype row = ROWS.get(tensor.datatype)
    if row is None:
        raise bad_tensor(tensor)
    wire = wire_of(tensor.data, row, shape_to_send(tensor.shape, row, tensor.name), tensor.name)
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
@cython.freelist(8)
cdef class Draft:
    """A header under construction, and the memory that will follow it."""

    cdef JsonWriter writer
    cdef str first_name
    cdef set names  # of all tensors, when there are several
    cdef object buffer  # of the first binary tensor that is not empty
    cdef list more_buffers  # of those behind it, in wire order, or None
    cdef Py_ssize_t nbytes  # of the buffers
    cdef str kind  # of its tensors: "input" or "output"
    cdef Nonfinite nonfinite

    cdef int add(self, Tensor tensor, bint binary) except -1:
        """Write the tensor's entry; keep its memory when it is sent binary and is not empty."""
        cdef JsonWriter writer = self.writer
        cdef Py_ssize_t nbytes = -1
        cdef bint in_json = False
        cdef Datatype row = ROWS.get(tensor.datatype)
        # Each attribute is read once: keys of `parameters` may run code that assigns to them.
        cdef str name = tensor.name
        cdef dict parameters = tensor._parameters
        cdef tuple shape
        data = tensor.data
        if name is None or has_nul(name) or row is None:
            raise bad_tensor(tensor)
        shape = shape_to_send(tensor.shape, row, name)
        if data is None:
            check_elsewhere(parameters, name)
        elif binary:
            wire = wire_of(data, row, shape, name)
            nbytes = len(wire)
            if nbytes > 0:
                self.nbytes += nbytes
                if self.buffer is None:
                    self.buffer = wire
                elif self.more_buffers is None:
                    self.more_buffers = [wire]
                else:
                    self.more_buffers.append(wire)
        else:
            in_json = True
            check_json(data, row, shape, name, self.kind)
        if data is not None and parameters:
            check_reserved(parameters, name)
        try:
            literal(writer, b'{"name":')
            writer.string(name)
            literal(writer, b'"datatype":')
            writer.string(row.name)
            literal(writer, b'"shape":')
            writer.dimensions(shape)
            if parameters or nbytes >= 0:
                literal(writer, b'"parameters":{')
                if parameters:
                    writer.parameters(parameters, TENSOR_DEPTH)
                if nbytes >= 0:
                    literal(writer, b'"binary_data_size":')
                    writer.integer(nbytes)
                writer.close(c"}")
            if in_json:
                literal(writer, b'"data":')
                self.add_data(data, name)
            writer.close(c"}")
        except EncodeError as error:  # a lone surrogate, or parameters that are nested too deep
            error.tensor = name
            raise
        return self.check_new(name)

    cdef int check_new(self, str name) except -1:
        """Check that no tensor before this one has its name."""
        cdef Py_ssize_t n_before
        if self.first_name is None:
            self.first_name = name
            return 0
        if self.names is None:
            self.names = {self.first_name}
        n_before = PySet_GET_SIZE(self.names)
        PySet_Add(self.names, name)
        if PySet_GET_SIZE(self.names) == n_before:
            raise EncodeError(f"{self.kind} {name!r} appears twice", tensor=name)
        return 0

    cdef int add_data(self, data, str name) except -1:
        """Write the elements as JSON, in a flat list as Triton does."""
        cdef Py_ssize_t element
        if isinstance(data, BytesTensor):
            element = self.writer.texts(data._body, data._offsets(), data._end)
            if element >= 0:
                raise EncodeError(
                    f"element {element} of tensor {name!r} is not UTF-8, and JSON carries nothing "
                    f"else: send it binary",
                    tensor=name,
                    element=element,
                    status=400,
                )
        else:
            element = self.writer.elements(data, self.nonfinite)
            if element >= 0:
                raise EncodeError(
                    f"element {element} of {self.kind} {name!r} is "
                    f"{np.asarray(data).reshape(-1)[element]}, which has no JSON form",
                    tensor=name,
                    element=element,
                )
        return 0

    cdef Frame frame(self, align):
        """The header's JSON, padded when bytes follow it, and those bytes."""
        cdef bytes text
        if type(align) is not int:
            align = int(index(align))
        if not 1 <= align <= MAX_ALIGN:
            raise ValueError(f"align is 1 or more, to {MAX_ALIGN}, not {number_text(align)}")
        self.writer.close(c"}")
        if self.buffer is None:
            text = self.writer.finish(1)
            return new_frame((text,), None, len(text))
        text = self.writer.finish(align)
        buffers = (text, self.buffer)
        if self.more_buffers is not None:
            buffers += tuple(self.more_buffers)
        return new_frame(buffers, len(text), len(text) + self.nbytes)


cdef Draft new_draft(str kind, str nonfinite):
    cdef Draft draft = Draft.__new__(Draft)
    draft.writer = JsonWriter.__new__(JsonWriter)
    draft.kind = kind
    if nonfinite == "null":
        draft.nonfinite = AS_NULL
    elif nonfinite == "literal":
        draft.nonfinite = AS_LITERAL
    elif nonfinite == "error":
        draft.nonfinite = AS_ERROR
    else:
        raise ValueError(f"nonfinite is 'null', 'literal' or 'error', not {nonfinite!r}")
    return draft


cdef int write_text(JsonWriter writer, const char* name, str value) except -1:
    """A member of the message, unless the value is None. `name` has its quotes and its colon."""
    if value is None:
        return 0
    literal(writer, name)
    return writer.string(value)


cdef int write_parameters(JsonWriter writer, dict parameters) except -1:
    """A message's parameters, if it has any."""
    if not parameters:
        return 0
    literal(writer, b'"parameters":{')
    writer.parameters(parameters, MESSAGE_DEPTH)
    return writer.close(c"}")


cdef wire_of(data, Datatype row, tuple shape, str name):
    """The memory of a tensor's data, after checking that it still is what the tensor says.

    `shape` is the tensor's, as `shape_to_send` returned it.
    """
    if isinstance(data, cnp.ndarray):
        return payload(data, dtype_of(data, row, name), shape, name)
    check_bytes(data, row, shape, name)
    return data.wire


cdef int check_bytes(data, Datatype row, tuple shape, str name) except -1:
    """Check that data that is no array is BYTES, and still what the tensor says."""
    if not isinstance(data, BytesTensor):
        raise TypeError(f"the data of tensor {name!r} is now {type(data).__name__}")
    if row.itemsize != 0 or data.shape != shape:
        raise EncodeError(
            f"tensor {name!r} was made as {row.name} {list(shape)}, its data is now BYTES "
            f"{list(data.shape)}",
            tensor=name,
        )
    return 0


cdef bad_tensor(Tensor tensor):
    what = f"an unknown datatype: {tensor.datatype!r}"
    if tensor.name is None or has_nul(tensor.name):
        what = "no name, or one with a NUL"
    return EncodeError(f"tensor {tensor.name!r} has {what}", tensor=tensor.name)


cdef cnp.dtype dtype_of(cnp.ndarray array, Datatype row, str name):
    if row.dtype is not None:
        return row.dtype
    if row.itemsize == 0:
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
                f"tensor {name!r} has data, and {key} among its parameters", tensor=name)
    return 0


cdef int check_json(data, Datatype row, tuple shape, str name, str kind) except -1:
    """Check that the data is what the tensor says, and of a datatype that JSON can carry."""
    if isinstance(data, cnp.ndarray):
        check_array(data, dtype_of(data, row, name), shape, name)
    else:
        check_bytes(data, row, shape, name)
    if not row.in_json:
        raise EncodeError(
            f"{kind} {name!r} is {row.name}, which has no JSON form: send it binary",
            tensor=name,
            status=400,
        )
    return 0


# --- outputs: which, and how -----------------------------------------------------------------


cdef binary_data_output(dict parameters):
    value = None if parameters is None else parameters.get("binary_data_output")
    if value is not None and not isinstance(value, bool):
        raise EncodeError(f"binary_data_output of the request is True or False, not {value!r}")
    return value


cdef int write_requested(JsonWriter writer, list outputs, default) except -1:
    """The outputs that a request asks for; `default`: its binary_data_output, or None."""
    cdef RequestedOutput output
    cdef dict parameters
    cdef Py_ssize_t i = 0
    cdef str name
    cdef set names = set()
    literal(writer, b'"outputs":[')
    while i < len(outputs):  # which may change meanwhile
        output = output_at(outputs, i, "outputs")
        i += 1
        name = checked_output_name(output)
        PySet_Add(names, name)
        if PySet_GET_SIZE(names) < i:
            raise EncodeError(f"requested output {name!r} appears twice", tensor=name)
        binary = checked_binary(output, default)
        parameters = output._parameters
        if binary is not None:
            parameters = {**(parameters or {}), "binary_data": binary}
        literal(writer, b'{"name":')
        writer.string(name)
        if parameters:
            literal(writer, b'"parameters":{')
            writer.parameters(parameters, TENSOR_DEPTH)
            writer.close(c"}")
        writer.close(c"}")
    return writer.close(c"]")


cdef str checked_output_name(RequestedOutput output):
    if output.name is None or has_nul(output.name):
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
    """Add the outputs that the request wants, each as it wants it (WIRE.md 7)."""
    cdef list outputs = checked_list(response.outputs, "outputs")
    cdef Tensor tensor
    cdef dict listed = None
    cdef Py_ssize_t i = 0
    default = None if request is None else bool(binary_data_output(request._parameters))
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
