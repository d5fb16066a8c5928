"""What the user holds: tensors, and the requests and responses that carry them."""

cimport cython
cimport numpy as cnp

from cpython.long cimport PyLong_FromSsize_t
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM

from ._datatypes cimport Datatype

from .bytes_tensor import BytesTensor
from collections.abc import Mapping
from operator import index

from ._datatypes import BY_DTYPE, DATATYPES, RAW_BF16
from .errors import EncodeError, TensorwireError, shape_text
from .payload import wire_ready

cnp.import_array()

# The datatypes of numpy's own dtypes, by their numbers; None for those that have none.
cdef list BY_TYPE_NUM = [None] * cnp.NPY_NTYPES_LEGACY
for dtype, row in BY_DTYPE.items():
    BY_TYPE_NUM[dtype.num] = row
del dtype, row


cdef str checked_name(name, what):
    cdef str checked
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} is a str, not {type(name).__name__}")
    checked = name if type(name) is str else str(name)
    if has_nul(checked):
        raise EncodeError(f"the name of {what} contains a NUL: {name!r}")
    return checked


cdef bint checked_flag(value, name) except -1:
    if value is True:
        return True
    if value is not False:
        raise TypeError(f"{name} is True or False, not {value!r}")
    return False


cdef dict copied(parameters):
    """A dict of its own, or None for None."""
    if parameters is None:
        return None
    if type(parameters) is not dict and not isinstance(parameters, Mapping):
        raise TypeError(f"parameters are a mapping, not {type(parameters).__name__}")
    return dict(parameters)


cdef list all_of(kind, items, name):
    made = list(items)
    for i, item in enumerate(made):
        if type(item) is not kind:  # which are final
            raise wrong_item(item, i, name, kind.__name__)
    return made


cdef wrong_item(item, i, attribute, kind):
    """The TypeError for item `i` of a message's list `attribute`, which has to be a `kind`."""
    what = "None" if item is None else f"of type {type(item).__name__}"
    return TypeError(f"{attribute}[{i}] is {what}, not a {kind}")


@cython.final
@cython.freelist(8)
@cython.trashcan(True)  # `data` may be set to anything, also to a long chain of tensors
cdef class Tensor:
    """A named tensor, in a message that came or for one that goes.

    ``name``; ``datatype`` ("FP32"); ``shape`` (tuple); ``parameters`` (dict, without the framing
    key); ``binary`` (how it travelled, or shall travel); ``data``: a little-endian C-contiguous
    ndarray, a BytesTensor for BYTES, or ``None`` for a tensor in shared memory.

    Decoded, ``data`` is a view that pins the whole body and is writable when the body is.
    Built, it is the caller's own array when that is C-contiguous and little-endian already (change
    it, and you change what is sent); other arrays are converted and BYTES packed, once, here.

    ``data`` may be an array of any numeric datatype (anything with ``__array__``), a BytesTensor,
    an object, ``S``, ``U`` or StringDType array or nested lists for BYTES, nested lists of numbers
    when ``datatype`` is given, or ``None`` with ``datatype``, ``shape`` and the parameters of a
    shared memory region.
    ``datatype="BF16"`` takes uint16 words, too. Raises EncodeError, TypeError.

    The attributes may be assigned to. They are checked when the message is encoded: EncodeError
    when they disagree or break a rule of the wire, TypeError when one has the wrong type.
    """

    def __init__(
        self, name, data, *, datatype=None, shape=None, parameters=None, binary=True
    ):
        self.name = checked_name(name, "a tensor")
        if type(data) is not cnp.ndarray or not take_array(self, data, datatype, shape):
            self.datatype, self.shape, self.data = wire_ready(name, data, datatype, shape)
        self._parameters = copied(parameters)
        self.binary = checked_flag(binary, "binary")

    @property
    def parameters(self):
        if self._parameters is None:
            self._parameters = {}
        return self._parameters

    @parameters.setter
    def parameters(self, dict parameters):
        self._parameters = parameters

    def as_numpy(self, *, bint aligned=False, bint writable=False):
        """The tensor as an array in ``shape``.

        Numeric: the very array of ``data``, a view that pins the body; one copy of this tensor
        when ``aligned`` or ``writable`` is asked for and the view is not. BYTES: a new object array
        of ``bytes``. Raises TensorwireError for a tensor in shared memory.
        """
        data = self.data
        if type(data) is not cnp.ndarray:
            if data is None:
                raise TensorwireError(
                    f"tensor {self.name!r} lives in shared memory: the message has no bytes of it",
                    tensor=self.name,
                )
            if isinstance(data, BytesTensor):
                return data.as_numpy()
            if not isinstance(data, cnp.ndarray):
                raise TypeError(f"the data of tensor {self.name!r} is now {type(data).__name__}")
        if (aligned and not data.flags.aligned) or (writable and not data.flags.writeable):
            return data.copy()
        return data

    def __repr__(self):
        shape = None if self.shape is None else list(self.shape)
        return f"<Tensor {self.name!r} {self.datatype} {shape}>"

    def __reduce_ex__(self, protocol):
        data, dtype = self.data, None
        if protocol >= 5 and isinstance(data, cnp.ndarray) and data.dtype.kind == "V":
            # numpy exports no buffer of bfloat16, and would copy the elements into the pickle.
            data, dtype = data.view(RAW_BF16), data.dtype
        return _unpickled, (
            self.name, self.datatype, self.shape, data, self.parameters, self.binary, dtype,
        )


def _unpickled(name, datatype, shape, data, parameters, binary, dtype):
    if dtype is not None:
        data = data.view(dtype)
    return make_tensor(name, datatype, shape, data, parameters, binary)


cdef bint take_array(Tensor tensor, cnp.ndarray array, datatype, shape) except -1:
    """Take an array as it is; False, and nothing done, when there is anything to decide."""
    cdef Datatype row
    cdef int type_num = cnp.PyArray_TYPE(array)
    if type_num >= cnp.NPY_NTYPES_LEGACY or not cnp.PyArray_IS_C_CONTIGUOUS(array):
        return False
    row = BY_TYPE_NUM[type_num]
    if row is None or row.dtype is not array.descr:  # another byte order, for example
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
    """`array.shape`, without the look-up of an attribute."""
    cdef int axis, rank = cnp.PyArray_NDIM(array)
    cdef tuple shape = PyTuple_New(rank)
    for axis in range(rank):
        dim = PyLong_FromSsize_t(cnp.PyArray_DIM(array, axis))
        Py_INCREF(dim)  # the tuple takes one reference
        PyTuple_SET_ITEM(shape, axis, dim)
    return shape


cdef Tensor make_tensor(
    str name, str datatype, tuple shape, data, dict parameters, bint binary
):
    """A tensor of parts that a decoder has checked."""
    cdef Tensor tensor = Tensor.__new__(Tensor)
    tensor.name = name
    tensor.datatype = datatype
    tensor.shape = shape
    tensor.data = data
    tensor._parameters = parameters
    tensor.binary = binary
    return tensor


cdef bint has(list tensors, name, str attribute) except -1:
    checked_list(tensors, attribute)
    return isinstance(name, str) and position(tensors, str(name), 0, attribute) >= 0


cdef Py_ssize_t find(list tensors, name, Py_ssize_t expected, str attribute) except -1:
    """Where the tensor of that name stands; the search begins where the caller expects it."""
    cdef Py_ssize_t at = -1
    checked_list(tensors, attribute)
    if isinstance(name, str):
        name = str(name)  # of a subclass; may run its code, so the length is read afterwards
        at = position(tensors, name, min(expected, len(tensors)), attribute)
    if at < 0:
        raise KeyError(f"no tensor {name!r}: there are {[tensor.name for tensor in tensors]}")
    return at


cdef Py_ssize_t position(
    list tensors, str name, Py_ssize_t first, str attribute
) except -2:
    """Where the tensor of that name stands, or -1: from `first` to the end, and round.

    Tensors are mostly asked for in wire order, and then the first look finds them.
    """
    cdef Tensor tensor
    cdef Py_ssize_t i, n = len(tensors)
    for i in range(first, n + first):
        tensor = tensor_at(tensors, i if i < n else i - n, attribute)
        if tensor.name == name:
            return i if i < n else i - n
    return -1


@cython.final
@cython.freelist(8)
@cython.trashcan(True)  # as Tensor: `binary` may be set to anything
cdef class RequestedOutput:
    """An output that a request asks for: ``binary`` True, False, or None where it does not say."""

    def __init__(
        self, name, *, binary=None, parameters=None
    ):
        self.name = checked_name(name, "an output")
        self.binary = None if binary is None else checked_flag(binary, "binary")
        self._parameters = copied(parameters)

    @property
    def parameters(self):
        if self._parameters is None:
            self._parameters = {}
        return self._parameters

    @parameters.setter
    def parameters(self, dict parameters):
        self._parameters = parameters

    def __repr__(self):
        return f"<RequestedOutput {self.name!r} binary={self.binary}>"


@cython.final
@cython.freelist(8)
cdef class InferRequest:
    """A request: ``inputs`` in wire order; ``outputs``, or None for all that the model has.

    ``parameters`` keeps ``binary_data_output``, the request's own word on outputs that say nothing.
    """

    def __init__(
        self, inputs, outputs=None, *,
        id=None, model_name=None, model_version=None, parameters=None,
    ):
        self.inputs = all_of(Tensor, inputs, "inputs")
        self.outputs = None if outputs is None else all_of(RequestedOutput, outputs, "outputs")
        self.id = id
        self.model_name = model_name
        self.model_version = model_version
        self._parameters = copied(parameters)

    @property
    def parameters(self):
        if self._parameters is None:
            self._parameters = {}
        return self._parameters

    @parameters.setter
    def parameters(self, dict parameters):
        self._parameters = parameters

    def __getitem__(self, name):
        cdef Py_ssize_t at = find(self.inputs, name, self.expected, "inputs")
        self.expected = at + 1
        return self.inputs[at]

    def __iter__(self):
        return iter(checked_list(self.inputs, "inputs"))

    def __contains__(self, name):
        return has(self.inputs, name, "inputs")

    def __repr__(self):
        return f"<InferRequest {self.inputs}>"


@cython.final
@cython.freelist(8)
cdef class InferResponse:
    """A response: ``outputs`` in wire order, which need not be the order they were asked in."""

    def __init__(
        self, outputs, *, model_name=None, model_version=None, id=None, parameters=None,
    ):
        self.outputs = all_of(Tensor, outputs, "outputs")
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self._parameters = copied(parameters)

    @property
    def parameters(self):
        if self._parameters is None:
            self._parameters = {}
        return self._parameters

    @parameters.setter
    def parameters(self, dict parameters):
        self._parameters = parameters

    def __getitem__(self, name):
        cdef Py_ssize_t at = find(self.outputs, name, self.expected, "outputs")
        self.expected = at + 1
        return self.outputs[at]

    def __iter__(self):
        return iter(checked_list(self.outputs, "outputs"))

    def __contains__(self, name):
        return has(self.outputs, name, "outputs")

    def __repr__(self):
        return f"<InferResponse {self.outputs}>"


@cython.final
cdef class TensorSpec:
    """What a model declares of an input or output; -1 is a variable dimension.

    ``batching``: the model's shape has a batch dimension in front of ``dims``.
    """

    # In __cinit__, so that there is no object whose fields were not checked.
    def __cinit__(self, name, datatype, dims, batching=False):
        if datatype not in DATATYPES:
            raise ValueError(f"unknown datatype {datatype!r}: there are {', '.join(DATATYPES)}")
        self.name = checked_name(name, "a tensor")
        self.datatype = DATATYPES[datatype].name
        self.dims = tuple([int(index(dim)) for dim in dims])
        self.batching = checked_flag(batching, "batching")
        if any(dim < -1 for dim in self.dims):
            raise ValueError(f"dims are 0 or more, or -1 for variable, not {shape_text(self.dims)}")

    def __reduce__(self):
        return TensorSpec, (self.name, self.datatype, self.dims, self.batching)

    @property
    def shape(self):
        """``dims`` with the batch dimension in front, where there is one; -1 is variable."""
        return (-1, *self.dims) if self.batching else self.dims

    def accepts(self, Tensor tensor not None):
        """Whether the tensor's datatype and shape are what is declared."""
        cdef Py_ssize_t i, first = self.batching  # the first dimension that is declared
        cdef Py_ssize_t n_dims = len(tensor.shape)
        if tensor.datatype != self.datatype or n_dims != len(self.dims) + first:
            return False
        for i in range(first, n_dims):
            declared = self.dims[i - first]
            if declared != -1 and declared != tensor.shape[i]:
                return False
        return True

    def __repr__(self):
        return f"TensorSpec({self.name!r}, {self.datatype!r}, {list(self.dims)}, {self.batching})"
