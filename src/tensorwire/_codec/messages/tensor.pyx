"""Tensors, and what a model declares about them."""

cimport cython
cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF

from ..bytes.array cimport BytesArray
from ..datatypes cimport Datatype, dims_as_tuple
from ..capsules.arrow cimport export_array, export_schema
from ..capsules.dlpack cimport dlpack_capsule
from ..capsules.dlpack_abi cimport CPU
from ..wire cimport MAX_RANK
from ..messages.convert cimport convert, convert_data, iterator_of, source_of_arrow
from ..messages.parameters cimport checked_flag, checked_name, own_parameters, read_only

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datatypes import BY_DTYPE, DATATYPES, RAW_BF16
from ..messages.convert import CONVERSIONS, Conversion
from ..signatures import Datatype as DatatypeName, constructor_signature

from ...errors import (
    SUBJECT, DatatypeError, EncodeError, TensorwireError, format_shape, format_subject,
    format_value, name_tensor)

cnp.import_array()

cdef extern from "Python.h":
    PyTypeObject PyCapsule_Type

# For annotations and signatures. In C, `Datatype` is another class.
CapsuleType = <object>&PyCapsule_Type
globals().update(
    Datatype=DatatypeName, Iterable=Iterable, Mapping=Mapping, Sequence=Sequence)

cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(
        PyTypeObject* subtype, cnp.dtype descr, int nd, const cnp.npy_intp* dims,
        const cnp.npy_intp* strides, void* data, int flags, PyObject* obj)

# The Datatype of each of numpy's own dtypes, by type number; None for the others.
cdef list BY_TYPE_NUM = [None] * cnp.NPY_NTYPES_LEGACY
for dtype, element_type in BY_DTYPE.items():
    BY_TYPE_NUM[dtype.num] = element_type
del dtype, element_type

cdef Datatype BYTES = DATATYPES["BYTES"]


# The garbage collector does not clear messages and tensors, because they cannot change: code that
# runs while a cycle is cleared may still use them. A cycle always has another object to clear.
@cython.final
@cython.freelist(64)  # a message may have many
@cython.no_gc_clear
@cython.trashcan(True)  # the memory may belong to another library's object, which owns a tensor
cdef class Tensor:
    """A named tensor of a decoded message, or of a message to encode. It cannot be changed.

    Tensors compare by identity. ``numpy.array_equal(one, other)`` compares their elements.

    numpy, pandas, torch and others accept it as an array: ``numpy.asarray(tensor)`` and
    ``torch.from_dlpack(tensor)`` return its memory without copying it. ``len(tensor)`` is the first
    dimension, and iterating over it returns the elements or rows.

    The constructor checks everything that a binary tensor of a message needs. The elements are not
    copied if ``data`` is a C-contiguous, little-endian array: they remain in the caller's memory,
    and a frame contains the values at the time when it is sent.

    Parameters
    ----------
    name : str
        Name of the tensor, without NUL characters.
    data : object
        The first of these rows that applies:

        1. a ``Tensor``: its data and datatype.
        2. ``None``: nothing, because the tensor is in shared memory.
        3. a ``BytesArray``: BYTES.
        4. an array of numpy, also of a subclass: the datatype of its dtype; object, ``S``, ``U``,
           ``V`` and StringDType arrays are BYTES.
        5. a list or tuple, also nested: BYTES if the items are ``bytes`` or ``str``; numbers of the
           ``datatype``, which is required; a stack of arrays, which this table converts, with one
           datatype and shape.
        6. a column of pandas, polars or pyarrow: like a column in ``tensors_from_dataframe``.
        7. an object that exports an Arrow array or stream, and does not describe its memory to
           numpy: numbers, bytes or text, or fixed-size lists of them, without nulls.
        8. an object with ``__dlpack__``: numbers, which must be in the memory of the CPU.
        9. an object that describes its memory to numpy, or has ``__array__``: the array of
           ``numpy.asarray``.

        An object describes its memory to numpy by the buffer protocol, ``__array_interface__``,
        ``__array_struct__`` or a ``dtype`` of numpy. ``bytes`` and ``bytearray`` are elements of
        BYTES, not buffers. A tensor in shared memory requires ``datatype``, ``shape`` and the
        parameters of the region.
    datatype : str, optional
        Datatype of the protocol, for example ``"FP32"``. It is derived from ``data`` by default.
        With ``"BF16"``, arrays of ``uint16`` are also accepted.
    shape : sequence of int, optional
        Dimensions. By default, those of ``data``.
    parameters : mapping, optional
        Parameters of the tensor: values that JSON can represent. The protocol defines str, int,
        float and bool.
    binary : bool, default True
        Whether the tensor is sent as binary data rather than as JSON.

    Attributes
    ----------
    name, datatype : str
    shape : tuple of int
    nbytes : int
        Size of the data in bytes, for BYTES with the length prefixes; 0 in shared memory.
    parameters : mapping
        The parameters without ``binary_data_size``. The mapping is read-only.
    binary : bool
        Whether the tensor was received, or will be sent, as binary data.
    data : ndarray, BytesArray or None
        A little-endian, C-contiguous array; a BytesArray for BYTES; None for a tensor in shared
        memory. Each access returns a new array over the same memory. In a decoded message, this is
        the memory of the body for a binary tensor. The array keeps the body alive, and is writable
        if the body is. In a new tensor, it is the memory of the array that was passed if that is
        C-contiguous and little-endian, or that of an Arrow array with one chunk that is not BOOL.
        Otherwise it is that of a converted copy.
    elements : BytesArray
        The data of a BYTES tensor.

    Raises
    ------
    EncodeError
        ``data``, ``datatype`` and ``shape`` do not agree, an element cannot be encoded, the name
        contains a NUL, a parameter is invalid, or ``data`` is on another device or requires
        gradients.
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

    __signature__ = constructor_signature(
        "name: str, data: Any, *, datatype: Datatype | None = None, "
        "shape: Sequence[int] | None = None, parameters: Mapping[str, Any] | None = None, "
        "binary: bool = True"
    )

    # Valid values, because the garbage collector shows objects whose constructor is running.
    def __cinit__(self):
        self.name, self.element_type, self.shape = "", BYTES, ()

    def __init__(self, name, data, *, datatype=None, shape=None, parameters=None, binary=True):
        make_once(self, &self.is_made)
        cdef str own_name = checked_name(name, "the name of a tensor")
        cdef bint is_binary = checked_flag(binary, "binary")
        cdef dict own = None
        cdef tuple dims
        cdef Datatype element_type = None
        try:
            if parameters is not None:
                own = own_parameters(parameters)  # before an array is read, which it could change
            if type(data) is cnp.ndarray and (shape is None or type(shape) is tuple):
                # The dimensions first: a new tuple may run a garbage collection, and that may run
                # code that changes the array.
                dims = dims_of_array(<cnp.ndarray>data) if shape is None else shape
                element_type = datatype_of_array(<cnp.ndarray>data, datatype, dims)
            if element_type is None:
                element_type, dims, data = convert(data, datatype, shape, is_binary)
            check_reserved(own, data is None)
        except (EncodeError, TypeError) as error:
            name_tensor(error, "tensor", own_name)
            raise
        self.name, self.element_type, self.shape = own_name, element_type, dims
        self._parameters = own
        self.binary = is_binary
        use_converted(self, data)

    @property
    def datatype(self):
        return self.element_type.name

    @property
    def parameters(self):
        return read_only(self._parameters)

    @property
    def data(self):
        if self.bytes_array is not None:
            return self.bytes_array
        return None if self.owner is None else array_of(self)

    @property
    def elements(self):
        if self.bytes_array is None:
            if self.owner is None:
                raise shared_memory_error(self)
            raise DatatypeError(
                f"{format_subject('tensor', self.name)} is {self.element_type.name}, not BYTES",
                tensor=self.name)
        return self.bytes_array

    def as_numpy(self, *, bint aligned: bool = False, bint writable: bool = False) -> NDArray[Any]:
        """Return the tensor as an array.

        Parameters
        ----------
        aligned : bool, default False
            Whether to return a copy if the memory is not aligned.
        writable : bool, default False
            Whether to return a copy if the memory is read-only.

        Returns
        -------
        ndarray
            A new array over the memory of the tensor, which is the body in a decoded message. For
            BYTES, a new object array of ``bytes``.

        Raises
        ------
        TensorwireError
            The tensor is in shared memory.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.Tensor("text", ["a", "bc"]).as_numpy()
        array([b'a', b'bc'], dtype=object)
        """
        cdef cnp.ndarray array
        if self.bytes_array is not None:
            return self.bytes_array.as_numpy()
        array = array_of(self)
        if (aligned and not cnp.PyArray_ISALIGNED(array)) or (writable and self.is_readonly):
            return array.copy()
        return array

    def as_strings(self) -> NDArray[np.object_]:
        """Return the elements of a BYTES tensor as text.

        Returns
        -------
        ndarray of object
            A new array of ``str`` with the shape of the tensor.

        Raises
        ------
        DatatypeError
            The tensor is not BYTES.
        ElementError
            An element is not valid UTF-8.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.Tensor("text", ["a", "bc"]).as_strings()
        array(['a', 'bc'], dtype=object)
        """
        cdef BytesArray elements = self.elements
        return elements.strings("tensor", self.name)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python objects.

        Returns
        -------
        list or scalar
            One level of lists for each dimension; the element if there are no dimensions. The
            elements of BYTES are ``bytes``.

        Raises
        ------
        TensorwireError
            The tensor is in shared memory.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.Tensor("x", [[1, 2]], datatype="INT8").tolist()
        [[1, 2]]
        """
        return self.as_numpy().tolist()

    def replace(self, **changes: Any) -> Tensor:
        """Return a tensor with other values for some arguments of the constructor.

        Parameters
        ----------
        **changes
            Arguments of ``Tensor``. Without ``data``, the result shares the memory of this tensor.

        Returns
        -------
        Tensor
            The changed copy.

        Raises
        ------
        EncodeError
            The values do not agree; see ``Tensor``.
        TypeError
            There is no such argument, or it has the wrong type.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.Tensor("x", [1, 2], datatype="INT8").replace(name="y", shape=(2, 1))
        <Tensor 'y' INT8 [2, 1]>
        """
        if "data" not in changes and is_shared(self):
            kept = {"data": None, "datatype": self.element_type.name, "shape": self.shape}
            changes = {**kept, **changes}
        elif "data" not in changes:
            changes = {"data": self, **changes}
        return Tensor(**{
            "name": self.name, "parameters": self._parameters, "binary": self.binary, **changes})

    __replace__ = replace

    def __copy__(self):
        return self

    def __arrow_c_schema__(self):
        """Return the Arrow schema of the tensor (PyCapsule protocol). See ``__arrow_c_array__``."""
        if self.bytes_array is not None:
            return self.bytes_array.__arrow_c_schema__()
        return export_schema(array_of(self), self.element_type, self.name)

    def __arrow_c_array__(self, requested_schema=None):
        """Return the tensor as an Arrow array (PyCapsule protocol).

        A tensor with several dimensions is an array of fixed-size lists; a tensor without
        dimensions is an array of length 1. BYTES are exported by ``BytesArray``, without their
        shape.

        The buffer of the array is the memory of the tensor, aligned or not. Only BOOL is copied,
        because Arrow has a bit for each boolean. The array keeps a reference to the memory until it
        is released. If the memory is writable and changes, the array changes, too.

        Parameters
        ----------
        requested_schema : capsule, optional
            The type that the consumer prefers. It is ignored, except for BYTES: see ``BytesArray``.

        Raises
        ------
        EncodeError
            The tensor is BF16, for which Arrow has no type, or a dimension other than the first one
            is 2^31 or more. For BYTES, an element has 2 GiB or more.
        TensorwireError
            The tensor is in shared memory.
        """
        if self.bytes_array is not None:
            return self.bytes_array.__arrow_c_array__(requested_schema)
        array = array_of(self)
        schema = export_schema(array, self.element_type, self.name)
        return schema, export_array(array, self.element_type)

    def __array__(self, dtype=None, copy=None):
        """Return the tensor as an array, for ``numpy.asarray``.

        By default, it has the dtype of ``as_numpy()``, and is copied only if that is needed. With
        ``copy=False``, ValueError is raised in that case, which BYTES always are.
        """
        if self.bytes_array is None:
            return np.array(array_of(self), dtype, copy=copy)
        return self.bytes_array.array(dtype, copy, "tensor", self.name)

    def __len__(self):
        if not self.shape:
            raise TypeError(
                f"{format_subject('tensor', self.name)} has no dimensions, and therefore no length")
        return self.shape[0]

    def __bool__(self):
        return True  # also if the tensor is empty

    def __iter__(self):
        return iter(array_of(self) if self.bytes_array is None else self.bytes_array)

    def __dlpack__(
        self, *, stream: None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> CapsuleType:
        """Return a DLPack capsule of the tensor, for ``from_dlpack`` of other packages.

        The capsule keeps the memory of the tensor alive, which is not copied unless ``copy`` is
        true. A copy is writable and aligned. From a ``max_version`` of ``(1, 0)`` on, the capsule
        is versioned, and says whether the tensor is read-only. BF16 is exported as bfloat16, also
        from an array of ``uint16``. ``stream`` must be None, and ``dl_device`` None or ``(1, 0)``,
        the CPU.

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
        if self.owner is None:
            raise BufferError(
                f"{format_subject('tensor', self.name)} cannot be exported: DLPack supports arrays "
                f"of numbers, not {'shared memory' if self.bytes_array is None else 'BYTES'}")
        try:
            return dlpack_capsule(
                array_of(self), self.element_type, max_version, dl_device, bool(copy))
        except BufferError as error:
            name_tensor(error, "tensor", self.name)
            raise

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device of the tensor, ``(1, 0)``, which is the memory of the CPU."""
        return CPU, 0

    def __repr__(self):
        return f"<Tensor {self.name!r} {self.element_type.name} {list(self.shape)}>"

    def _repr_html_(self) -> str:
        from .html import tensors_as_html
        return tensors_as_html([self])

    def __reduce_ex__(self, protocol):
        data, dtype = self.data, None
        if protocol >= 5 and self.dtype is not None and self.dtype.kind == "V":
            # numpy does not export buffers of bfloat16, and would copy the elements.
            data, dtype = data.view(RAW_BF16), self.dtype
        return _unpickled_tensor, (
            self.name, self.element_type.name, self.shape, data, own_parameters(self._parameters),
            self.binary, dtype)


def _unpickled_tensor(name, datatype, shape, data, parameters, binary, dtype):
    if dtype is not None:
        if type(data) is not cnp.ndarray or not isinstance(dtype, cnp.dtype):
            raise TypeError(
                f"a pickled tensor must have an array and a dtype, not {type(data).__name__} and "
                f"{type(dtype).__name__}")
        data = data.view(dtype)
    return Tensor(
        name, data, datatype=datatype, shape=shape, parameters=parameters, binary=binary)


# --- the data of a tensor ---


cdef Datatype datatype_of_array(cnp.ndarray array, datatype, tuple shape):
    """Return the Datatype of an array whose memory can be used; None if it has to be converted.

    `datatype` is the argument of `Tensor`. No Python code runs, and no garbage collection, which
    could change the array: other classes than `str` and `int` are left to `convert`.
    """
    cdef Datatype element_type
    cdef int overflow, axis, type_num = cnp.PyArray_TYPE(array)
    if type_num >= cnp.NPY_NTYPES_LEGACY or not cnp.PyArray_IS_C_CONTIGUOUS(array):
        return None
    element_type = BY_TYPE_NUM[type_num]
    # The byte order may differ, for example.
    if element_type is None or element_type.dtype is not array.descr:
        return None
    if datatype is not None and (type(datatype) is not str or <str>datatype != element_type.name):
        return None
    if len(shape) != cnp.PyArray_NDIM(array):
        return None
    for axis in range(cnp.PyArray_NDIM(array)):
        dim = shape[axis]
        if type(dim) is not int or PyLong_AsLongLongAndOverflow(dim, &overflow) != (
            cnp.PyArray_DIM(array, axis)  # -1 if it exceeds 64 bits
        ):
            return None
    return element_type


cdef tuple convert_tensor(tensor, datatype, bint binary):
    if is_shared(tensor):
        raise EncodeError(
            f"{SUBJECT} is made from {format_subject('tensor', tensor.name)}, which is in shared "
            f"memory")
    # The array of a BF16 tensor may be one of uint16.
    return convert_data(
        tensor.data, (<Tensor>tensor).element_type.name if datatype is None else datatype, binary)


CONVERSIONS.insert(0, Conversion(
    "a `Tensor`", "its data and datatype", lambda data: type(data) is Tensor,
    convert_tensor, source_of_arrow))


cdef tuple dims_of_array(cnp.ndarray array):
    cdef cnp.npy_intp[MAX_RANK] dims  # a copy, because a new tuple may run a garbage collection
    cdef int axis, rank = cnp.PyArray_NDIM(array)
    for axis in range(rank):
        dims[axis] = cnp.PyArray_DIM(array, axis)
    return dims_as_tuple(dims, rank)


cdef int use_converted(Tensor tensor, data) except -1:
    """Use data in the form that `convert` returns. None is shared memory."""
    cdef cnp.ndarray array
    if type(data) is BytesArray:
        use_bytes_array(tensor, data)
    elif data is not None:
        array = data
        use_memory(
            tensor, array, array.descr, <char*>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array),
            not cnp.PyArray_ISWRITEABLE(array))
    return 0


cdef void use_memory(
    Tensor tensor, object owner, cnp.dtype dtype, char* memory, Py_ssize_t nbytes, bint is_readonly
) noexcept:
    """Use memory with elements of `dtype`, which exists as long as `owner` does."""
    tensor.owner = owner
    tensor.dtype = dtype
    tensor.memory = memory
    tensor.nbytes = nbytes
    tensor.is_readonly = is_readonly


cdef void use_bytes_array(Tensor tensor, BytesArray bytes_array) noexcept:
    tensor.bytes_array = bytes_array
    tensor.nbytes = bytes_array.nbytes


cdef cnp.ndarray array_of(Tensor tensor):
    cdef cnp.npy_intp[MAX_RANK] dims
    cdef int flags = 0 if tensor.is_readonly else cnp.NPY_ARRAY_WRITEABLE
    cdef tuple shape = tensor.shape
    cdef int axis, rank = <int>len(shape)
    cdef cnp.ndarray array
    if tensor.owner is None:
        raise shared_memory_error(tensor)
    for axis in range(rank):  # at most MAX_RANK, which every way to make a tensor has checked
        dims[axis] = shape[axis]
    Py_INCREF(tensor.dtype)  # PyArray_NewFromDescr steals one reference
    # numpy derives the flags for contiguity and alignment itself.
    array = <cnp.ndarray>PyArray_NewFromDescr(
        <PyTypeObject*>cnp.ndarray, tensor.dtype, rank, dims, NULL, tensor.memory, flags, NULL)
    cnp.set_array_base(array, tensor.owner)
    return array


cdef shared_memory_error(Tensor tensor):
    return TensorwireError(
        f"{format_subject('tensor', tensor.name)} is in shared memory: the message does not have "
        f"its data", tensor=tensor.name, status=400)


cdef int check_reserved(dict parameters, bint is_shared) except -1:
    """Raise EncodeError for parameters that contradict the source of a tensor's data."""
    region = None if parameters is None else parameters.get("shared_memory_region")
    if is_shared and type(region) is not str:
        raise EncodeError(
            f"{SUBJECT} has no data, and no shared_memory_region among its parameters")
    if parameters is not None:
        for key in ("binary_data_size", "shared_memory_region"):
            if key in parameters and not (is_shared and key == "shared_memory_region"):
                source = "a shared_memory_region" if is_shared else "data"
                raise EncodeError(f"{SUBJECT} has {source}, but also the parameter {key}")
    return 0


def tensor_of_column(name, column):
    """Return the tensor of a column of a data frame. Errors call it a column, not a tensor."""
    cdef str own_name = checked_name(name, "the name of a tensor")
    try:
        element_type, dims, data = convert(column, None, None, True)
    except (EncodeError, TypeError) as error:
        name_tensor(error, "column", own_name)
        raise
    tensor = new_tensor(own_name, element_type, dims, None, True)
    use_converted(tensor, data)
    return tensor


cdef Tensor new_tensor(str name, Datatype element_type, tuple shape, dict parameters, bint binary):
    """Return a tensor without data, as in shared memory. The caller has checked the arguments."""
    cdef Tensor tensor = Tensor.__new__(Tensor)
    tensor.is_made = True
    tensor.name = name
    tensor.element_type = element_type
    tensor.shape = shape
    tensor._parameters = parameters
    tensor.binary = binary
    return tensor


# --- declarations ---


@cython.final
@cython.no_gc  # not in a cycle; the arguments may run code that would find it
cdef class TensorSpec:
    """The declaration of an input or output of a model. It is immutable and compares by value.

    Parameters
    ----------
    name : str
        Name of the tensor, without NUL characters.
    datatype : str
        Datatype of the protocol, for example ``"FP32"``.
    dims : iterable of int
        Dimensions. -1 is a variable dimension.
    batching : bool, default False
        Whether the shape has a batch dimension before ``dims``. Requests are not combined.

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

    __signature__ = constructor_signature(
        "name: str, datatype: Datatype, dims: Iterable[int], batching: bool = False"
    )

    def __cinit__(self, name, datatype, dims, batching=False):
        if not isinstance(datatype, str):
            raise TypeError(f"datatype must be a str, not {type(datatype).__name__}")
        if datatype not in DATATYPES:
            raise ValueError(
                f"unknown datatype {format_value(datatype)}; it must be one of "
                f"{', '.join(DATATYPES)}")
        cdef str own_name = checked_name(name, "the name of a tensor")
        # Not with islice() or tuple(): in Python 3.11, iter() of a released memoryview returns an
        # iterator and sets an exception, which only a loop raises.
        checked = []
        for dim in iterator_of(dims, "dims", "an iterable of ints"):
            if len(checked) == MAX_RANK:
                raise ValueError(f"dims must have at most {MAX_RANK} dimensions")
            if dim is None:
                raise TypeError("dims must be ints, not None: a variable dimension is -1")
            checked.append(index(dim))
        cdef tuple own_dims = tuple(checked)
        cdef bint is_batched = checked_flag(batching, "batching")
        if min(own_dims, default=0) < -1:
            raise ValueError(
                f"dims must be 0 or more, or -1 if they are variable, not "
                f"{format_shape(own_dims)}")
        self.name, self.datatype = own_name, DATATYPES[datatype].name
        self.dims, self.batching = own_dims, is_batched

    def __reduce__(self):
        return TensorSpec, (self.name, self.datatype, self.dims, self.batching)

    @property
    def shape(self):
        """``dims``, after the batch dimension if there is one. -1 is a variable dimension."""
        return (-1, *self.dims) if self.batching else self.dims

    def accepts(self, Tensor tensor not None: Tensor) -> bool:
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
            ``tensor`` is not a Tensor.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tensor = tw.Tensor("x", [1, 2], datatype="INT8")
        >>> tw.TensorSpec("x", "INT8", [-1]).accepts(tensor)
        True
        """
        cdef Py_ssize_t i, first = self.batching  # axis of the first dimension in `dims`
        cdef tuple shape = tensor.shape
        cdef Py_ssize_t n_dims = len(shape)
        if tensor.element_type.name != self.datatype or n_dims != len(self.dims) + first:
            return False
        for i in range(first, n_dims):
            declared = self.dims[i - first]
            if declared != -1 and declared != shape[i]:
                return False
        return True

    def __eq__(self, other):
        if type(other) is not TensorSpec:
            return NotImplemented
        return self.__reduce__()[1] == (<TensorSpec>other).__reduce__()[1]

    def __hash__(self):
        return hash(self.__reduce__()[1])

    def __repr__(self):
        batching = ", batching=True" if self.batching else ""
        return f"TensorSpec({self.name!r}, {self.datatype!r}, {list(self.dims)}{batching})"
