"""Messages: tensors, requests, responses and encoded frames."""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport Py_buffer
from cpython.long cimport PyLong_FromSsize_t
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM

from .arrow cimport export_array, export_schema
from .bytes_tensor cimport BytesTensor
from .conversion cimport convert_data
from .datatypes cimport Datatype
from .dlpack cimport dlpack_capsule
from .dlpack_abi cimport CPU
from .json_writer cimport exact_parameters, exact_str
from .memory cimport FREE_THREADED, separate_view
from .wire cimport MAX_RANK

from collections.abc import Mapping
from operator import index

import numpy as np

from .datatypes import BY_DTYPE, DATATYPES, RAW_BF16
from .docstrings import document_attributes

from ..errors import (
    MAX_FOREIGN_TEXT,
    SUBJECT,
    EncodeError,
    TensorNotFoundError,
    TensorwireError,
    format_names,
    format_text,
    format_value,
    name_subject,
    name_tensor,
    number_text,
    shape_text,
    subject,
)
from ..http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE

cnp.import_array()

cdef extern from "Python.h":
    Py_ssize_t PyObject_Size(object container) except -1
    Py_buffer* PyMemoryView_GET_BUFFER(object view)

# The Datatype of each of numpy's own dtypes, by type number; None for the others.
cdef list BY_TYPE_NUM = [None] * cnp.NPY_NTYPES_LEGACY
for dtype, row in BY_DTYPE.items():
    BY_TYPE_NUM[dtype.num] = row
del dtype, row


# --- checks of arguments and attributes ---


cdef str checked_name(name, what):
    cdef str checked
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} must be a str, not {type(name).__name__}")
    checked = exact_str(name)
    if has_nul(checked):
        raise EncodeError(f"the name of {what} contains a NUL: {format_value(name)}")
    return checked


cdef bint checked_flag(value, name) except -1:
    if value is True:
        return True
    if value is not False:
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return False


cdef str checked_text(value, what):
    """Return a member of a message as an exact `str`, and None for None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str or None, not {type(value).__name__}")
    return exact_str(value)


cdef dict copy_parameters(parameters):
    """Return a copy of the parameters as a dict, and None for None. Keys and texts are `str`."""
    if parameters is None:
        return None
    if type(parameters) is not dict:
        if not isinstance(parameters, Mapping):
            raise TypeError(f"parameters must be a mapping, not {type(parameters).__name__}")
        parameters = dict(parameters)
    return exact_parameters(parameters)


cdef list checked_items(kind, items):
    """Return the items as a list. Raises TypeError if the class of an item is not `kind`.

    The error has SUBJECT in place of the name of the argument.
    """
    # list() would allocate memory for the length that an object with __len__ declares.
    cdef list checked = []
    for item in items:
        if type(item) is not kind:
            raise wrong_item(item, len(checked), kind.__name__)
        checked.append(item)
    return checked


cdef wrong_item(item, i, kind):
    """Return the TypeError for item `i` of a list, which is not a `kind`."""
    what = "None" if item is None else f"of type {type(item).__name__}"
    return TypeError(f"{SUBJECT}[{i}] is {what}, not a {kind}")


@cython.final
@cython.freelist(8)
@cython.trashcan(True)  # users can set `data` to any object, including a long chain of tensors
cdef class Tensor:
    """Tensor(name, data, *, datatype=None, shape=None, parameters=None, binary=True)\n--\n
    A named tensor of a decoded message, or of a message to encode.

    numpy, pandas, torch and others accept it as an array: ``numpy.asarray(tensor)`` and
    ``torch.from_dlpack(tensor)`` return its memory without copying it. ``len(tensor)`` is the first
    dimension, and iterating over it returns the elements or rows.

    You can assign to the attributes. They are checked when the message is encoded: EncodeError is
    raised if they do not agree or are invalid in a message, TypeError if one has the wrong type.

    Parameters
    ----------
    name : str
        Name of the tensor, without NUL characters.
    data : array, sequence, BytesTensor or None
        An array of a numeric datatype; a tensor of torch, JAX or another package with
        ``__dlpack__``, in the memory of the CPU; an object with an Arrow array or stream of
        numbers, bytes or text, or of fixed-size lists of them, without nulls; an object with
        ``__array__``; a Tensor. For BYTES: nested lists or an object array of ``bytes`` or ``str``;
        a numpy ``S``, ``U`` or StringDType array; a BytesTensor. With ``datatype``, also nested
        lists of numbers. None for a tensor in shared memory, which needs ``datatype``, ``shape``
        and the parameters of the region.
    datatype : str, optional
        Datatype of the protocol, for example ``"FP32"``. It is derived from ``data`` by default.
        With ``"BF16"``, arrays of ``uint16`` are also accepted.
    shape : sequence of int, optional
        Dimensions. By default, those of ``data``.
    parameters : mapping, optional
        Parameters of the tensor (str, int, float or bool).
    binary : bool, default True
        Whether the tensor is sent as binary data rather than as JSON.

    Attributes
    ----------
    name : str
        Name of the tensor.
    datatype : str
        Datatype of the protocol, for example ``"FP32"``.
    shape : tuple of int
        Dimensions.
    parameters : dict
        The parameters without ``binary_data_size``.
    binary : bool
        Whether the tensor was received, or will be sent, as binary data.
    data : ndarray, BytesTensor or None
        A little-endian, C-contiguous array; a BytesTensor for BYTES; None for a tensor in shared
        memory. In a decoded message, the data of a binary tensor is a view of the body. It keeps
        the body alive, and is writable if the body is. In a new tensor, it has the memory of the
        array that was passed if that is C-contiguous and little-endian, so changes of the array are
        sent. The memory of an Arrow array is used if it has one chunk and is not BOOL. Otherwise it
        is a converted copy.

    Raises
    ------
    EncodeError
        ``data``, ``datatype`` and ``shape`` do not agree, an element cannot be encoded, the name
        contains a NUL, or ``data`` is on another device or requires gradients.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> tw.Tensor("x", np.zeros((2, 3), np.float32))
    <Tensor 'x' FP32 [2, 3]>
    >>> tw.Tensor("text", ["a", "bc"])
    <Tensor 'text' BYTES [2]>
    """

    def __init__(
        self, name, data, *, datatype=None, shape=None, parameters=None, binary=True
    ):
        self.name = checked_name(name, "a tensor")
        if type(data) is not cnp.ndarray or not use_array(self, data, datatype, shape):
            try:
                if type(data) is Tensor:
                    data, datatype = data_of_tensor(data, datatype)
                self.datatype, self.shape, self.data = convert_data(data, datatype, shape)
            except (EncodeError, TypeError) as error:
                name_tensor(error, "tensor", self.name)
                raise
        self._parameters = copy_parameters(parameters)
        self.binary = checked_flag(binary, "binary")

    @property
    def parameters(self):
        with cython.critical_section(self):
            if self._parameters is None:
                self._parameters = {}
            return self._parameters

    @parameters.setter
    def parameters(self, dict parameters):
        with cython.critical_section(self):
            self._parameters = parameters

    def as_numpy(self, *, bint aligned=False, bint writable=False):
        """Return the tensor as an array.

        Parameters
        ----------
        aligned : bool, default False
            Whether to return a copy if the array is not aligned.
        writable : bool, default False
            Whether to return a copy if the array is not writable.

        Returns
        -------
        ndarray
            The array ``data`` itself, which is a view of the body in a decoded message. For BYTES,
            a new object array of ``bytes``.

        Raises
        ------
        TensorwireError
            The tensor is in shared memory.
        TypeError
            ``data`` was set to another object.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.Tensor("text", ["a", "bc"]).as_numpy()
        array([b'a', b'bc'], dtype=object)
        """
        data = data_of(self)
        if type(data) is not cnp.ndarray:
            if data is None:
                name = name_of(self)
                raise TensorwireError(
                    f"{subject('tensor', name)} is in shared memory: the message does not have its "
                    f"data",
                    tensor=name,
                    status=400,
                )
            if isinstance(data, BytesTensor):
                return data.as_numpy()
            if not isinstance(data, cnp.ndarray):
                raise TypeError(
                    f"the data of {subject('tensor', name_of(self))} is now "
                    f"{type(data).__name__}")
        if (aligned and not data.flags.aligned) or (writable and not data.flags.writeable):
            return data.copy()
        return data

    def __arrow_c_schema__(self):
        """Return the Arrow schema of the tensor (PyCapsule protocol). See ``__arrow_c_array__``."""
        data = data_of(self)
        if isinstance(data, BytesTensor):
            return data.__arrow_c_schema__()
        try:
            return export_schema(self.as_numpy(), datatype_name(self))
        except EncodeError as error:
            name_tensor(error, "tensor", name_of(self))
            raise

    def __arrow_c_array__(self, requested_schema=None):
        """Return the tensor as an Arrow array (PyCapsule protocol).

        A tensor with several dimensions is an array of fixed-size lists; a tensor without
        dimensions is an array of length 1. BYTES are exported by ``BytesTensor``, without their
        shape.

        The buffer of the array is the memory of the tensor, aligned or not. Only BOOL is copied,
        because Arrow has a bit for each boolean. The array keeps a reference to the memory until it
        is released. If the memory is writable and changes, the array changes, too.

        Parameters
        ----------
        requested_schema : capsule, optional
            The type that the consumer prefers. It is ignored, except for BYTES.

        Raises
        ------
        EncodeError
            The tensor is BF16, for which Arrow has no type, or a dimension other than the first one
            is 2^31 or more. For BYTES, an element has 2 GiB or more.
        TensorwireError
            The tensor is in shared memory.
        ElementError
            Text was requested, and an element is not valid UTF-8.
        """
        data, datatype = data_of(self), datatype_name(self)
        if isinstance(data, BytesTensor):
            return data.__arrow_c_array__(requested_schema)
        array = self.as_numpy()
        try:
            return export_schema(array, datatype), export_array(array, datatype)
        except EncodeError as error:
            name_tensor(error, "tensor", name_of(self))
            raise

    def __array__(self, dtype=None, copy=None):
        """Return the tensor as an array. This method is called by ``numpy.asarray``.

        Parameters
        ----------
        dtype : dtype, optional
            The dtype of the result. By default, that of ``as_numpy()``.
        copy : bool, optional
            True for a copy. False for a view of the same memory, or ValueError if a copy is needed,
            which is always so for BYTES.

        Returns
        -------
        ndarray
            The array ``data`` itself, unless a copy is needed.
        """
        data = data_of(self)
        if isinstance(data, BytesTensor):
            return data.__array__(dtype, copy)
        return np.array(self.as_numpy(), dtype, copy=copy)

    def __len__(self):
        shape = shape_of_tensor(self)
        if not shape:
            raise TypeError(
                f"{subject('tensor', name_of(self))} has no dimensions, and therefore no length")
        return shape[0]

    def __bool__(self):
        return True  # also if the tensor is empty

    def __iter__(self):
        data = data_of(self)
        return iter(data if isinstance(data, BytesTensor) else self.as_numpy())

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Return a DLPack capsule of the tensor.

        This method is called by the ``from_dlpack`` functions of other packages. It copies nothing
        unless ``copy`` is true. The capsule keeps the memory of the tensor alive. BF16 is exported
        as bfloat16, also from an array of ``uint16``.

        Parameters
        ----------
        stream : None
            Streams do not exist for the memory of the CPU.
        max_version : tuple of int, optional
            The DLPack version that the consumer supports. From ``(1, 0)`` on, the capsule is
            versioned, and says whether the tensor is read-only.
        dl_device : tuple of int, optional
            ``(1, 0)``, the memory of the CPU, is the only supported device.
        copy : bool, optional
            Whether to export a copy, which is writable and aligned.

        Returns
        -------
        capsule
            A ``dltensor_versioned`` capsule; without ``max_version``, a ``dltensor`` capsule.

        Raises
        ------
        BufferError
            The tensor is BYTES or in shared memory, the device is not the CPU, or the tensor is
            read-only and the capsule not versioned.
        ValueError
            ``stream`` is not None.
        """
        if stream is not None:
            raise ValueError("stream must be None for a tensor in the memory of the CPU")
        data, datatype = data_of(self), datatype_name(self)
        if not isinstance(data, cnp.ndarray):
            raise BufferError(
                f"{subject('tensor', name_of(self))} cannot be exported: DLPack supports arrays of "
                f"numbers, not {'shared memory' if data is None else format_text(datatype)}")
        try:
            return dlpack_capsule(
                data.copy() if copy else data, datatype, max_version, dl_device, bool(copy))
        except BufferError as error:
            name_tensor(error, "tensor", name_of(self))
            raise

    def __dlpack_device__(self):
        """Return the DLPack device of the tensor, ``(1, 0)``, which is the memory of the CPU."""
        return CPU, 0

    def __repr__(self):
        shape = shape_of_tensor(self)
        dims = None if shape is None else list(shape)
        return f"<Tensor {name_of(self)!r} {datatype_name(self)} {dims}>"

    def __reduce_ex__(self, protocol):
        data, dtype = data_of(self), None
        if protocol >= 5 and isinstance(data, cnp.ndarray) and data.dtype.kind == "V":
            # numpy does not export buffers of bfloat16, and would copy the elements.
            data, dtype = data.view(RAW_BF16), data.dtype
        return _unpickled_tensor, (
            name_of(self), datatype_name(self), shape_of_tensor(self), data, self.parameters,
            self.binary, dtype,
        )


def _new_message(kind):
    """Return an object without fields. ``__setstate__`` sets them and checks their types."""
    if kind not in (RequestedOutput, InferRequest, InferResponse):
        raise TypeError(f"not a message class: {type(kind).__name__}")
    return kind.__new__(kind)


def _unpickled_tensor(name, datatype, shape, data, parameters, binary, dtype):
    if dtype is not None:
        if type(data) is not cnp.ndarray or not isinstance(dtype, cnp.dtype):
            raise TypeError(
                f"a pickled tensor must have an array and a dtype, not {type(data).__name__} and "
                f"{type(dtype).__name__}")
        data = data.view(dtype)
    return make_tensor(name, datatype, shape, data, parameters, binary)


cdef tuple data_of_tensor(Tensor tensor, datatype):
    """Return the data and the datatype for a new tensor with the same data."""
    data = data_of(tensor)
    if data is None:
        raise EncodeError(
            f"{SUBJECT} is made from {subject('tensor', name_of(tensor))}, which is in shared "
            f"memory")
    # The array of a BF16 tensor may be one of uint16.
    return data, datatype_name(tensor) if datatype is None else datatype


cdef bint use_array(Tensor tensor, cnp.ndarray array, datatype, shape) except -1:
    """Set the datatype, shape and data of a tensor to those of an array.

    Returns False, and does nothing, if the array has to be converted.
    """
    cdef Datatype row
    cdef int type_num = cnp.PyArray_TYPE(array)
    if type_num >= cnp.NPY_NTYPES_LEGACY or not cnp.PyArray_IS_C_CONTIGUOUS(array):
        return False
    row = BY_TYPE_NUM[type_num]
    if row is None or row.dtype is not array.descr:  # it has another byte order, for example
        return False
    own_shape = shape_of(array)
    if (datatype is not None and datatype != row.name) or (
            shape is not None and (type(shape) is not tuple or shape != own_shape)):
        return False
    tensor.datatype = row.name
    tensor.shape = own_shape
    tensor.data = array
    return True


cdef tuple shape_of(cnp.ndarray array):
    """Return `array.shape`, without an attribute lookup."""
    cdef int axis, rank = cnp.PyArray_NDIM(array)
    cdef tuple shape = PyTuple_New(rank)
    for axis in range(rank):
        dim = PyLong_FromSsize_t(cnp.PyArray_DIM(array, axis))
        Py_INCREF(dim)  # PyTuple_SET_ITEM steals one reference
        PyTuple_SET_ITEM(shape, axis, dim)
    return shape


cdef Tensor make_tensor(
    str name, str datatype, tuple shape, data, dict parameters, bint binary
):
    """Return a tensor with attributes that the decoder has checked."""
    cdef Tensor tensor = Tensor.__new__(Tensor)
    tensor.name = name
    tensor.datatype = datatype
    tensor.shape = shape
    tensor.data = data
    tensor._parameters = parameters
    tensor.binary = binary
    return tensor


cdef list tensors_of(message):
    """Return the inputs of a request, or the outputs of a response. Raises TypeError for None."""
    cdef list tensors
    with cython.critical_section(message):
        if type(message) is InferRequest:
            tensors = (<InferRequest>message).inputs
        else:
            tensors = (<InferResponse>message).outputs
    if tensors is None:
        raise TypeError(f"{list_name(message)} must be a list, not None")
    return tensors


cdef str list_name(message):
    """Return the name of the attribute that `tensors_of` returns."""
    return "inputs" if type(message) is InferRequest else "outputs"


cdef Tensor get_tensor(message, name, Py_ssize_t* next_index):
    """Return the tensor with a name, or raise KeyError.

    The search begins at `next_index`, which is then set to the index after that tensor.
    """
    cdef list tensors = tensors_of(message)
    cdef Tensor tensor
    cdef Py_ssize_t position
    if not isinstance(name, str):
        raise KeyError(f"the name of a tensor is a str, not {type(name).__name__}")
    name = exact_str(name)
    with cython.critical_section(message):
        position = next_index[0]
    tensor = find_tensor(message, tensors, name, &position)
    if tensor is None:
        error = TensorNotFoundError(
            f"no tensor {format_value(name)}: there are "
            f"{format_names([tensor.name for tensor in tensors])}", tensor=name)
        error.tensors = tensors
        raise error
    with cython.critical_section(message):
        next_index[0] = position
    return tensor


cdef bint has_tensor(message, name) except -1:
    """Return whether a tensor has the name."""
    cdef list tensors = tensors_of(message)
    cdef Py_ssize_t position = 0
    return isinstance(name, str) and (
        find_tensor(message, tensors, exact_str(name), &position) is not None)


cdef Tensor find_tensor(message, list tensors, str name, Py_ssize_t* position):
    """Return the tensor with a name, or None. `position` is set to the index after it.

    The search begins at the index `position`, and continues at 0. Tensors are usually accessed in
    the order of the message. Then the first comparison finds them.
    """
    cdef Tensor tensor
    cdef Py_ssize_t i, k, n = len(tensors)
    cdef Py_ssize_t first = min(position[0], n)
    try:
        for i in range(first, n + first):
            k = i if i < n else i - n
            tensor = tensor_at(tensors, k)
            if has_name(tensor, name):
                position[0] = k + 1
                return tensor
    except TypeError as error:
        name_subject(error, list_name(message))
        raise
    return None


@cython.final
@cython.freelist(8)
@cython.trashcan(True)  # users can set `binary` to any object, including a long chain of outputs
cdef class RequestedOutput:
    """RequestedOutput(name, *, binary=None, parameters=None)\n--\n
    An output that a request selects.

    Parameters
    ----------
    name : str
        Name of the output, without NUL characters.
    binary : bool, optional
        Whether the server should send the output as binary data. By default, this depends on the
        request's parameter ``binary_data_output`` and on the server (WIRE.md 7).
    parameters : mapping, optional
        Other parameters of the output.

    Raises
    ------
    EncodeError
        The name contains a NUL.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> tw.RequestedOutput("probabilities", binary=True)
    <RequestedOutput 'probabilities' binary=True>
    """

    def __init__(
        self, name, *, binary=None, parameters=None
    ):
        self.name = checked_name(name, "an output")
        self.binary = None if binary is None else checked_flag(binary, "binary")
        self._parameters = copy_parameters(parameters)

    @property
    def parameters(self):
        with cython.critical_section(self):
            if self._parameters is None:
                self._parameters = {}
            return self._parameters

    @parameters.setter
    def parameters(self, dict parameters):
        with cython.critical_section(self):
            self._parameters = parameters

    def __reduce__(self):
        parameters = self.parameters
        with cython.critical_section(self):
            return _new_message, (RequestedOutput,), (self.name, self.binary, parameters)

    def __setstate__(self, tuple state not None):
        self.name, self.binary, self.parameters = state

    def __repr__(self):
        with cython.critical_section(self):
            name, binary = self.name, self.binary
        return f"<RequestedOutput {name!r} binary={binary}>"


@cython.final
@cython.freelist(8)
cdef class InferRequest:
    """InferRequest(inputs, outputs=None, *, id=None, model_name=None, model_version=None, \
parameters=None)\n--\n
    An inference request.

    ``request["name"]`` returns the input with that name, ``"name" in request`` tests for it, and
    iterating over the request returns the inputs. The KeyError for an unknown name lists the first
    names of the inputs.

    Parameters
    ----------
    inputs : iterable of Tensor
        The inputs, in the order of the message.
    outputs : iterable of RequestedOutput, optional
        The outputs to return. By default, all outputs of the model.
    id, model_name, model_version : str, optional
        Members of the JSON header.
    parameters : mapping, optional
        Parameters of the request. ``binary_data_output`` (bool) applies to outputs whose ``binary``
        is None (WIRE.md 7).

    Attributes
    ----------
    inputs : list of Tensor
        The inputs, in the order of the message.
    outputs : list of RequestedOutput or None
        The outputs that the request selects. None selects all.
    id, model_name, model_version : str or None
    parameters : dict

    Raises
    ------
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> request = tw.InferRequest([tw.Tensor("text", ["a"])], id="1")
    >>> request["text"].shape
    (1,)
    """

    def __init__(
        self, inputs, outputs=None, *,
        id=None, model_name=None, model_version=None, parameters=None,
    ):
        try:
            self.inputs = checked_items(Tensor, inputs)
        except TypeError as error:
            name_subject(error, "inputs")
            raise
        try:
            self.outputs = None if outputs is None else checked_items(RequestedOutput, outputs)
        except TypeError as error:
            name_subject(error, "outputs")
            raise
        self.id = checked_text(id, "id")
        self.model_name = checked_text(model_name, "model_name")
        self.model_version = checked_text(model_version, "model_version")
        self._parameters = copy_parameters(parameters)

    @property
    def parameters(self):
        with cython.critical_section(self):
            if self._parameters is None:
                self._parameters = {}
            return self._parameters

    @parameters.setter
    def parameters(self, dict parameters):
        with cython.critical_section(self):
            self._parameters = parameters

    def __getitem__(self, name):
        return get_tensor(self, name, &self.next_index)

    def __iter__(self):
        return iter(tensors_of(self))

    def __contains__(self, name):
        return has_tensor(self, name)

    def __reduce__(self):
        parameters = self.parameters
        with cython.critical_section(self):
            return _new_message, (InferRequest,), (
                self.inputs, self.outputs, self.id, self.model_name, self.model_version,
                parameters,
            )

    def __setstate__(self, tuple state not None):
        (self.inputs, self.outputs, self.id, self.model_name, self.model_version,
         self.parameters) = state

    def __repr__(self):
        with cython.critical_section(self):
            inputs = self.inputs
        return f"<InferRequest {inputs}>"


@cython.final
@cython.freelist(8)
cdef class InferResponse:
    """InferResponse(outputs, *, model_name=None, model_version=None, id=None, \
parameters=None)\n--\n
    The response to an inference request.

    ``response["name"]`` returns the output with that name, ``"name" in response`` tests for it, and
    iterating over the response returns the outputs. The KeyError for an unknown name lists the
    first names of the outputs.

    Parameters
    ----------
    outputs : iterable of Tensor
        The outputs, in the order of the message. It may differ from the order of the request.
    model_name, model_version, id : str, optional
        Members of the JSON header.
    parameters : mapping, optional
        Parameters of the response.

    Attributes
    ----------
    outputs : list of Tensor
    model_name, model_version, id : str or None
    parameters : dict

    Raises
    ------
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> response = tw.InferResponse([tw.Tensor("text", ["a"])], model_name="echo")
    >>> [tensor.name for tensor in response]
    ['text']
    """

    def __init__(
        self, outputs, *, model_name=None, model_version=None, id=None, parameters=None,
    ):
        try:
            self.outputs = checked_items(Tensor, outputs)
        except TypeError as error:
            name_subject(error, "outputs")
            raise
        self.model_name = checked_text(model_name, "model_name")
        self.model_version = checked_text(model_version, "model_version")
        self.id = checked_text(id, "id")
        self._parameters = copy_parameters(parameters)

    @property
    def parameters(self):
        with cython.critical_section(self):
            if self._parameters is None:
                self._parameters = {}
            return self._parameters

    @parameters.setter
    def parameters(self, dict parameters):
        with cython.critical_section(self):
            self._parameters = parameters

    def __getitem__(self, name):
        return get_tensor(self, name, &self.next_index)

    def __iter__(self):
        return iter(tensors_of(self))

    def __contains__(self, name):
        return has_tensor(self, name)

    def __reduce__(self):
        parameters = self.parameters
        with cython.critical_section(self):
            return _new_message, (InferResponse,), (
                self.outputs, self.model_name, self.model_version, self.id, parameters)

    def __setstate__(self, tuple state not None):
        self.outputs, self.model_name, self.model_version, self.id, self.parameters = state

    def __repr__(self):
        with cython.critical_section(self):
            outputs = self.outputs
        return f"<InferResponse {outputs}>"


@cython.final
cdef class TensorSpec:
    """TensorSpec(name, datatype, dims, batching=False)\n--\n
    The declaration of an input or output of a model. An instance is immutable.

    Parameters
    ----------
    name : str
        Name of the tensor, without NUL characters.
    datatype : str
        Datatype of the protocol, for example ``"FP32"``.
    dims : iterable of int
        Dimensions. -1 is a variable dimension.
    batching : bool, default False
        Whether the shape has a batch dimension before ``dims``.

    Attributes
    ----------
    name, datatype : str
    dims : tuple of int
    batching : bool

    Raises
    ------
    ValueError
        The datatype is unknown, a dimension is less than -1, or there are more than 64 dimensions.
    EncodeError
        The name contains a NUL.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> tw.TensorSpec("image", "FP32", [224, 224, 3], batching=True).shape
    (-1, 224, 224, 3)
    """

    # In __cinit__, because Python code can create objects without calling __init__.
    def __cinit__(self, name, datatype, dims, batching=False):
        if datatype not in DATATYPES:
            raise ValueError(
                f"unknown datatype {format_value(datatype)}, must be one of {', '.join(DATATYPES)}")
        self.name = checked_name(name, "a tensor")
        self.datatype = DATATYPES[datatype].name
        # Not with islice() or tuple(): in Python 3.11, iter() of a released memoryview returns an
        # iterator and sets an exception, which only a loop raises.
        checked = []
        for dim in dims:
            if len(checked) == MAX_RANK:
                raise ValueError(f"dims must have at most {MAX_RANK} dimensions")
            checked.append(int(index(dim)))
        self.dims = tuple(checked)
        self.batching = checked_flag(batching, "batching")
        if any(dim < -1 for dim in self.dims):
            raise ValueError(
                f"dims must be 0 or more, or -1 if they are variable, not {shape_text(self.dims)}")

    def __reduce__(self):
        return TensorSpec, (self.name, self.datatype, self.dims, self.batching)

    @property
    def shape(self):
        """``dims``, after the batch dimension if there is one. -1 is a variable dimension."""
        return (-1, *self.dims) if self.batching else self.dims

    def accepts(self, Tensor tensor not None):
        """Return whether a tensor has the declared datatype and shape.

        Parameters
        ----------
        tensor : Tensor
            The tensor. Its name is not compared.

        Returns
        -------
        bool
            True if the datatype is the same, and each dimension is the same or variable.

        Raises
        ------
        TypeError
            ``tensor`` is not a Tensor, or its shape is None.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tensor = tw.Tensor("x", [1, 2], datatype="INT8")
        >>> tw.TensorSpec("x", "INT8", [-1]).accepts(tensor)
        True
        """
        cdef Py_ssize_t i, first = self.batching  # axis of the first dimension in `dims`
        cdef tuple shape = shape_of_tensor(tensor)
        cdef Py_ssize_t n_dims = len(shape)
        if datatype_name(tensor) != self.datatype or n_dims != len(self.dims) + first:
            return False
        for i in range(first, n_dims):
            declared = self.dims[i - first]
            if declared != -1 and declared != shape[i]:
                return False
        return True

    def __repr__(self):
        return f"TensorSpec({self.name!r}, {self.datatype!r}, {list(self.dims)}, {self.batching})"


# --- encoded messages ---


@cython.final
@cython.freelist(8)
cdef class Frame:
    """Frame(buffers, header_length)\n--\n
    An encoded message: the buffers of its body, and its HTTP headers.

    ``len(frame)`` is the size of the body in bytes, and ``bytes(frame)`` is a copy of the body.
    Iterating over the frame returns the buffers, for ``writelines``, WSGI and httpx.
    Pass the frame itself to requests and ``http.client``.

    The encoders return frames. Use the constructor for a body from other code.

    Parameters
    ----------
    buffers : tuple of buffers
        The parts of the body, which must be contiguous. They are not copied.
    header_length : int or None
        Size of the JSON header in bytes. 0 and None have the meanings described below.

    Attributes
    ----------
    buffers : tuple of bytes or memoryview
        The JSON header, and the memory of each binary tensor that is not empty as a flat
        memoryview. The memory of the tensors is not copied, and must not change until it is sent.
    header_length : int or None
        Size of the JSON header in bytes; 0 for a raw binary request; None if the whole message is
        JSON.

    Raises
    ------
    ValueError
        ``header_length`` is negative or larger than the body.
    BufferError
        A buffer is not contiguous.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.zeros(4))]))
    >>> len(frame) - frame.header_length, len(frame.buffers)
    (32, 2)
    """

    def __init__(self, tuple buffers not None, header_length):
        cdef Py_ssize_t nbytes = 0
        cdef bint is_ready = True
        for buffer in buffers:
            if not is_flat(buffer):
                is_ready = False
                break
            nbytes += PyObject_Size(buffer)
        if not is_ready:
            buffers = tuple([flat_bytes(buffer) for buffer in buffers])
            nbytes = sum([len(buffer) for buffer in buffers])
        if header_length is not None and type(header_length) is not int:
            header_length = int(index(header_length))
        if header_length is not None and not 0 <= header_length <= nbytes:
            raise ValueError(
                f"header_length must be 0 to {nbytes}, the size of the frame, not "
                f"{number_text(header_length)}")
        self.buffers = buffers
        self.header_length = header_length
        self.nbytes = nbytes

    @property
    def headers(self):
        """The HTTP headers as a new dict (WIRE.md 1).

        They are Content-Type, Content-Length and, unless ``header_length`` is None,
        Inference-Header-Content-Length.
        """
        if self.header_length is None:
            return {"Content-Type": JSON_TYPE, "Content-Length": str(self.nbytes)}
        return {
            "Content-Type": BINARY_TYPE,
            HEADER_LENGTH: str(self.header_length),
            "Content-Length": str(self.nbytes),
        }

    def __len__(self):
        return self.nbytes

    def __bool__(self):
        return True  # also if the body is empty, as in a raw request without elements

    def __iter__(self):
        return iter(self.separate_buffers())

    def chunks(self, max_nbytes):
        """Iterate over the body as memoryviews of limited size. The body is not copied.

        Parameters
        ----------
        max_nbytes : int
            Maximum size of a memoryview in bytes.

        Returns
        -------
        iterator of memoryview
            Views of the buffers, in order. None of them is empty.

        Raises
        ------
        ValueError
            ``max_nbytes`` is less than 1.
        TypeError
            ``max_nbytes`` is not an integer.

        Examples
        --------
        >>> import tensorwire as tw
        >>> [bytes(chunk) for chunk in tw.encode_raw_request(b"abcde").chunks(2)]
        [b'ab', b'cd', b'e']
        """
        size = int(index(max_nbytes))
        if size < 1:
            raise ValueError(f"max_nbytes must be 1 or more, not {number_text(size)}")
        views = [memoryview(buffer) for buffer in self.separate_buffers()]
        return (view[start:start + size] for view in views for start in range(0, len(view), size))

    def __bytes__(self):
        return b"".join(self.separate_buffers())

    cdef tuple separate_buffers(self):
        """Return the buffers for a thread, while other threads may use those of the frame."""
        if FREE_THREADED:
            return tuple([separate_view(buffer) for buffer in self.buffers])
        return self.buffers

    def __reduce__(self):
        return Frame, (self.buffers, self.header_length)

    def __repr__(self):
        return (
            f"<Frame of {self.nbytes} bytes in {len(self.buffers)} buffers, "
            f"header_length={self.header_length}>"
        )


cdef Frame new_frame(tuple buffers, header_length, Py_ssize_t nbytes):
    """Return a frame without checking its buffers, whose total size is `nbytes`."""
    cdef Frame frame = Frame.__new__(Frame)
    frame.buffers = buffers
    frame.header_length = header_length
    frame.nbytes = nbytes
    return frame


cdef bint is_flat(buffer) noexcept:
    """Return whether a buffer is contiguous, and `len` returns its number of bytes.

    Returns False for other classes than bytes, bytearray and memoryview.
    """
    cdef Py_buffer* view
    if type(buffer) is memoryview:
        view = PyMemoryView_GET_BUFFER(buffer)
        return (
            view.ndim == 1 and view.itemsize == 1
            and (view.len <= 1 or view.strides == NULL or view.strides[0] == 1)
        )
    return type(buffer) is bytes or type(buffer) is bytearray


cdef flat_bytes(buffer):
    """Return the same memory as flat bytes. Raises BufferError if it is not contiguous."""
    if is_flat(buffer):
        return buffer
    view = memoryview(buffer)
    if view.nbytes == 0:
        return b""
    try:
        return view.cast("B")
    except (TypeError, ValueError) as error:
        shown = format_text(error, MAX_FOREIGN_TEXT)
        raise BufferError(f"a buffer of a frame cannot be sent as bytes: {shown}") from None


for kind in (Tensor, RequestedOutput, InferRequest, InferResponse, TensorSpec, Frame):
    document_attributes(kind)
del kind
