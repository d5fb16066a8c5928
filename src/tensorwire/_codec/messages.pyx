"""Messages: tensors, requests, responses and encoded frames."""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF

from .arrow cimport export_array, export_schema
from .bytes_array cimport BytesArray
from .conversion cimport convert_data, iterator_of
from .datatypes cimport Datatype, dims_as_tuple
from .dlpack cimport dlpack_capsule
from .dlpack_abi cimport CPU
from .memory cimport Body, exported_bytes, separate_view, write_memory
from .parameters cimport exact_str, exact_text, frozen, own_parameters
from .tuples cimport finished_tuple, new_tuple, set_item
from .wire cimport MAX_RANK

from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from operator import index
from pickle import PickleBuffer
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .datatypes import BY_DTYPE, DATATYPES, RAW_BF16
from .signatures import constructor_signature

from ..arguments import Datatype as DatatypeName
from ..errors import (
    MAX_FOREIGN_TEXT,
    SUBJECT,
    DatatypeError,
    ElementError,
    EncodeError,
    TensorNotFoundError,
    TensorwireError,
    format_names,
    format_number,
    format_shape,
    format_subject,
    format_text,
    format_value,
    name_subject,
    name_tensor,
)
from ..http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE

cnp.import_array()

cdef extern from "Python.h":
    PyTypeObject PyCapsule_Type

# For annotations and signatures. In C, `Datatype` is another class.
CapsuleType = <object>&PyCapsule_Type
Buffer = bytes | memoryview
Default = TypeVar("Default")
Tensors = Iterable[Tensor] | Mapping[str, Any]
globals().update(Datatype=DatatypeName, Sequence=Sequence)

cdef extern from *:
    """
    #define set_mapping_flag(type) (((PyTypeObject *)(type))->tp_flags |= Py_TPFLAGS_MAPPING)
    """
    void set_mapping_flag(type kind)  # match statements use it

cdef extern from *:
    dict new_dict "__Pyx_PyDict_NewPresized"(Py_ssize_t n_items)  # of Cython

cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(
        PyTypeObject* subtype, cnp.dtype descr, int nd, const cnp.npy_intp* dims,
        const cnp.npy_intp* strides, void* data, int flags, PyObject* obj)

# The Datatype of each of numpy's own dtypes, by type number; None for the others.
cdef list BY_TYPE_NUM = [None] * cnp.NPY_NTYPES_LEGACY
for dtype, row in BY_DTYPE.items():
    BY_TYPE_NUM[dtype.num] = row
del dtype, row


# The fields of an object that was created with __new__ alone.
cdef Datatype BYTES = DATATYPES["BYTES"]
cdef frozenset TEXTS = frozenset(("id", "model_name", "model_version"))  # members of messages
cdef BytesArray NO_TEXTS = BytesArray.__new__(BytesArray)


# --- checks of arguments ---

cdef inline int mark_made(bint* is_made, kind) except -1:
    """Mark an object as made, after the arguments of its __init__ were checked.

    The fields are set after this call, when no more Python code runs. Until then, they are those of
    an empty value, as after __new__ alone. Raises TypeError if the object was marked before, by
    another call of __init__ or by a message that contains it.
    """
    if is_made[0]:
        raise TypeError(f"{kind} cannot be changed")
    is_made[0] = True
    return 0


cdef str checked_name(name, str what):
    cdef str checked
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    checked = exact_text(name, what, None)
    if has_nul(checked):
        raise EncodeError(f"{what} contains a NUL: {format_value(name)}")
    return checked


cdef bint checked_flag(value, name) except -1:
    if value is True:
        return True
    if value is not False:
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return False


cdef str checked_text(value, str what):
    """Return a member of a message as an exact `str`, and None for None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str or None, not {type(value).__name__}")
    return exact_text(value, what, None)


cdef tuple checked_tensors(items, str what):
    """Return the tensors of a message. `items` is a mapping of names to data, or an iterable."""
    cdef tuple tensors
    cdef Py_ssize_t i = 0
    if type(items) is list or type(items) is tuple:
        tensors = tuple(items)
    elif type(items) is Tensor:
        raise TypeError(f"{what} must be a mapping or an iterable of tensors, not a Tensor")
    elif isinstance(items, Mapping):
        return tuple([named_tensor(name, items[name]) for name in items])
    else:
        if hasattr(type(items), "columns"):  # a data frame, or a table of pyarrow
            raise TypeError(
                f"{what} must be a mapping or an iterable of tensors, not {type(items).__name__}: "
                f"pass tensors_from_dataframe({what})")
        # tuple() would allocate memory for the length that an object with __len__ declares.
        iterator = iterator_of(items, what, "a mapping or an iterable of tensors")
        tensors = tuple([item for item in iterator])
    for item in tensors:
        if type(item) is not Tensor:  # a final class
            shown = "None" if item is None else type(item).__name__
            raise TypeError(f"{what}[{i}] must be a Tensor, not {shown}")
        i += 1
        (<Tensor>item).is_made = True  # if it was created with __new__ alone
    return tensors


cdef Tensor named_tensor(name, data):
    """Return a tensor of a mapping. A Tensor keeps its parameters and the way it is sent."""
    if type(data) is not Tensor:
        return Tensor(name, data)
    if (<Tensor>data).name != name:
        return (<Tensor>data).replace(name=name)
    (<Tensor>data).is_made = True  # if it was created with __new__ alone
    return data


cdef dict items_by_name(tuple items, str kind, type error_class):
    """Return tensors or requested outputs by their names; None if there is at most one.

    Raises an error of the class for a name that appears twice.
    """
    cdef dict by_name
    cdef str name
    cdef Py_ssize_t n_items = 0
    if len(items) < 2:
        return None
    by_name = new_dict(len(items))
    for item in items:
        name = (<Tensor>item).name if type(item) is Tensor else (<RequestedOutput>item).name
        by_name[name] = item
        n_items += 1
        if len(by_name) < n_items:
            raise error_class(f"{format_subject(kind, name)} appears twice", tensor=name)
    return by_name


cdef tuple checked_outputs(items):
    """Return the requested outputs; None for None. An item may also be a name."""
    cdef list checked
    if items is None:
        return None
    checked = []
    if type(items) is not list and isinstance(items, (str, Mapping, Tensor, RequestedOutput)):
        raise TypeError(
            f"outputs must be an iterable of names or RequestedOutput, not {type(items).__name__}")
    for item in iterator_of(items, "outputs", "an iterable of names or RequestedOutput"):
        if isinstance(item, str):
            item = RequestedOutput(item)
        elif type(item) is not RequestedOutput:
            shown = "None" if item is None else type(item).__name__
            raise TypeError(
                f"outputs[{len(checked)}] must be a RequestedOutput or a str, not {shown}")
        (<RequestedOutput>item).is_made = True  # if it was created with __new__ alone
        checked.append(item)
    cdef tuple outputs = tuple(checked)
    items_by_name(outputs, "requested output", EncodeError)
    return outputs


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
    data : array, sequence, BytesArray or None
        An array of a numeric datatype; a tensor of torch, JAX or another package with
        ``__dlpack__``, in the memory of the CPU; a column with an Arrow array or stream of numbers,
        bytes or text, or of fixed-size lists of them, without nulls; another object that numpy
        reads, such as an image or a buffer, but not ``bytes`` and ``bytearray``; a Tensor. For
        BYTES: nested lists or an object array of ``bytes`` or ``str``; a numpy ``S``, ``U`` or
        StringDType array; a BytesArray. With ``datatype``, also nested lists of numbers. None for a
        tensor in shared memory, which requires ``datatype``, ``shape`` and the parameters of the
        region. If an object has several protocols, Arrow is used first, but not if the object
        describes its memory to numpy: by the buffer protocol, ``__array_interface__``,
        ``__array_struct__`` or a ``dtype`` of numpy. DLPack is next, and then ``numpy.asarray``.
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
    name : str
        Name of the tensor.
    datatype : str
        Datatype of the protocol, for example ``"FP32"``.
    shape : tuple of int
        Dimensions.
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

    def __cinit__(self):
        PyObject_GC_UnTrack(self)
        self.name = ""
        self.row = BYTES
        self.shape = (0,)
        self.texts = NO_TEXTS

    def __init__(
        self, name, data, *, datatype=None, shape=None, parameters=None, binary=True
    ):
        cdef str own_name
        cdef dict own = None
        cdef tuple dims
        cdef Datatype row = None
        own_name = checked_name(name, "the name of a tensor")
        is_binary = checked_flag(binary, "binary")
        try:
            if parameters is not None:
                own = own_parameters(parameters)  # before an array is read, which it could change
            if type(data) is cnp.ndarray and (shape is None or type(shape) is tuple):
                # The dimensions first: a new tuple may run a garbage collection, and that may run
                # code that changes the array.
                dims = dims_of_array(<cnp.ndarray>data) if shape is None else shape
                row = datatype_of_array(<cnp.ndarray>data, datatype, dims)
            if row is None:
                if type(data) is Tensor:
                    data, datatype = data_of_tensor(data, datatype)
                row_name, dims, data = convert_data(data, datatype, shape, is_binary)
                row = DATATYPES[row_name]
            check_reserved(own, data is None)
        except (EncodeError, TypeError) as error:
            name_tensor(error, "tensor", own_name)
            raise
        mark_made(&self.is_made, "a Tensor")
        self.name, self.row, self.shape, self._parameters = own_name, row, dims, own
        self.binary = is_binary
        self.texts = None
        use_converted(self, data)
        PyObject_GC_Track(self)

    @property
    def datatype(self):
        return self.row.name

    @property
    def parameters(self):
        return frozen(self._parameters)

    @property
    def data(self):
        if self.texts is not None:
            return self.texts
        return None if self.owner is None else array_of(self)

    @property
    def elements(self):
        if self.texts is None:
            if self.owner is None:
                raise shared_memory_error(self)
            raise DatatypeError(
                f"{format_subject('tensor', self.name)} is {self.row.name}, not BYTES",
                tensor=self.name)
        return self.texts

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
        if self.texts is not None:
            return self.texts.as_numpy()
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
        cdef BytesArray texts = self.elements
        try:
            return texts.strings()
        except ElementError as error:
            name_tensor(error, "tensor", self.name)
            raise

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
            changes = {"data": None, "datatype": self.row.name, "shape": self.shape, **changes}
        elif "data" not in changes:
            changes = {"data": self, **changes}
        return Tensor(**{
            "name": self.name, "parameters": self._parameters, "binary": self.binary, **changes})

    __replace__ = replace

    def __copy__(self):
        return self

    def __arrow_c_schema__(self):
        """Return the Arrow schema of the tensor (PyCapsule protocol). See ``__arrow_c_array__``."""
        if self.texts is not None:
            return self.texts.__arrow_c_schema__()
        try:
            return export_schema(array_of(self), self.row)
        except EncodeError as error:
            name_tensor(error, "tensor", self.name)
            raise

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
        try:
            if self.texts is not None:
                return self.texts.__arrow_c_array__(requested_schema)
            array = array_of(self)
            return export_schema(array, self.row), export_array(array, self.row)
        except EncodeError as error:
            name_tensor(error, "tensor", self.name)
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
            A new array over the memory of the tensor, unless a copy is needed.
        """
        if self.texts is None:
            return np.array(array_of(self), dtype, copy=copy)
        try:
            return self.texts.array(dtype, copy)
        except ElementError as error:
            name_tensor(error, "tensor", self.name)
            raise

    def __len__(self):
        if not self.shape:
            raise TypeError(
                f"{format_subject('tensor', self.name)} has no dimensions, and therefore no length")
        return self.shape[0]

    def __bool__(self):
        return True  # also if the tensor is empty

    def __iter__(self):
        return iter(array_of(self) if self.texts is None else self.texts)

    def __dlpack__(
        self, *, stream: None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> CapsuleType:
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
        cdef cnp.ndarray array
        if self.owner is None:
            raise BufferError(
                f"{format_subject('tensor', self.name)} cannot be exported: DLPack supports arrays "
                f"of numbers, not {'shared memory' if self.texts is None else 'BYTES'}")
        try:
            array = array_of(self)
            return dlpack_capsule(
                array.copy() if copy else array, self.row, max_version, dl_device, bool(copy))
        except BufferError as error:
            name_tensor(error, "tensor", self.name)
            raise

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device of the tensor, ``(1, 0)``, which is the memory of the CPU."""
        return CPU, 0

    def __repr__(self):
        return f"<Tensor {self.name!r} {self.row.name} {list(self.shape)}>"

    def __reduce_ex__(self, protocol):
        data, dtype = self.data, None
        if protocol >= 5 and self.dtype is not None and self.dtype.kind == "V":
            # numpy does not export buffers of bfloat16, and would copy the elements.
            data, dtype = data.view(RAW_BF16), self.dtype
        return _unpickled_tensor, (
            self.name, self.row.name, self.shape, data, own_parameters(self._parameters),
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


cdef bint is_shared(Tensor tensor) noexcept:
    """Return whether a tensor is in shared memory: the message does not have its data."""
    return tensor.texts is None and tensor.owner is None


cdef Datatype datatype_of_array(cnp.ndarray array, datatype, tuple shape):
    """Return the Datatype of an array whose memory can be used; None if it has to be converted.

    `datatype` is the argument of `Tensor`. No Python code runs, and no garbage collection, which
    could change the array: other classes than `str` and `int` are left to `convert_data`.
    """
    cdef Datatype row
    cdef int overflow, axis, type_num = cnp.PyArray_TYPE(array)
    if type_num >= cnp.NPY_NTYPES_LEGACY or not cnp.PyArray_IS_C_CONTIGUOUS(array):
        return None
    row = BY_TYPE_NUM[type_num]
    if row is None or row.dtype is not array.descr:  # it has another byte order, for example
        return None
    if datatype is not None and (type(datatype) is not str or <str>datatype != row.name):
        return None
    if len(shape) != cnp.PyArray_NDIM(array):
        return None
    for axis in range(cnp.PyArray_NDIM(array)):
        dim = shape[axis]
        if type(dim) is not int or PyLong_AsLongLongAndOverflow(dim, &overflow) != (
            cnp.PyArray_DIM(array, axis)  # -1 if it exceeds 64 bits
        ):
            return None
    return row


cdef tuple dims_of_array(cnp.ndarray array):
    cdef cnp.npy_intp[MAX_RANK] dims  # a copy, because a new tuple may run a garbage collection
    cdef int axis, rank = cnp.PyArray_NDIM(array)
    for axis in range(rank):
        dims[axis] = cnp.PyArray_DIM(array, axis)
    return dims_as_tuple(dims, rank)


cdef int use_converted(Tensor tensor, data) except -1:
    """Use data in the form that `convert_data` returns. None is shared memory."""
    cdef cnp.ndarray array
    if type(data) is BytesArray:
        use_texts(tensor, data)
    elif data is not None:
        array = data
        use_memory(
            tensor, array, array.descr, <char*>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array),
            not cnp.PyArray_ISWRITEABLE(array))
    return 0


cdef void use_memory(
    Tensor tensor, object owner, cnp.dtype dtype, char* memory, Py_ssize_t nbytes,
    bint is_readonly,
) noexcept:
    """Use memory with elements of `dtype`, which exists as long as `owner` does."""
    tensor.owner = owner
    tensor.dtype = dtype
    tensor.memory = memory
    tensor.nbytes = nbytes
    tensor.is_readonly = is_readonly


cdef void use_texts(Tensor tensor, BytesArray texts) noexcept:
    tensor.texts = texts
    tensor.nbytes = texts.end - texts.begin


cdef cnp.ndarray array_of(Tensor tensor):
    """Return a new array over the memory of a tensor that is not BYTES."""
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


cdef tuple data_of_tensor(Tensor tensor, datatype):
    """Return the data and the datatype for a new tensor with the same data."""
    if is_shared(tensor):
        raise EncodeError(
            f"{SUBJECT} is made from {format_subject('tensor', tensor.name)}, which is in shared "
            "memory")
    # The array of a BF16 tensor may be one of uint16.
    return tensor.data, tensor.row.name if datatype is None else datatype


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


cdef Tensor new_tensor(
    str name, Datatype row, tuple shape, dict parameters, bint binary
):
    """Return a hidden tensor without data.

    Its caller has checked the arguments, adds the data, and calls PyObject_GC_Track.
    """
    cdef Tensor tensor = Tensor.__new__(Tensor)
    tensor.is_made = True
    tensor.texts = None
    tensor.name = name
    tensor.row = row
    tensor.shape = shape
    tensor._parameters = parameters
    tensor.binary = binary
    return tensor


# --- requests and responses ---

cdef Tensor EMPTY_TENSOR = Tensor.__new__(Tensor)
EMPTY_TENSOR.is_made = True
cdef tuple EMPTY_INPUTS = (EMPTY_TENSOR,)


@cython.freelist(8)  # also of the subclasses, which have the same size
@cython.no_gc_clear
cdef class Message:
    """What requests and responses have in common: a mapping of names to tensors, and its copies."""

    @property
    def parameters(self):
        return frozen(self._parameters)

    cdef Tensor find(self, name):
        """Return the tensor with a name, or None."""
        cdef str wanted
        if not isinstance(name, str):
            return None
        wanted = exact_str(name)
        if self.by_name is not None:
            return self.by_name.get(wanted)
        if self.tensors and (<Tensor>self.tensors[0]).name == wanted:
            return self.tensors[0]
        return None

    cdef dict arguments(self):
        """Return the arguments for a copy."""
        raise NotImplementedError

    def __getitem__(self, name):
        cdef Tensor tensor = self.find(name)
        if tensor is not None:
            return tensor
        error = TensorNotFoundError(
            f"no tensor {format_value(name)}: there are {format_names(list(self))}",
            tensor=exact_str(name) if isinstance(name, str) else None)
        error.tensors = self.tensors
        raise error

    def get(self, name: str, default: Default = None) -> Tensor | Default:
        """Return the tensor with a name, or ``default`` if there is none."""
        tensor = self.find(name)
        return default if tensor is None else tensor

    def __contains__(self, name):
        return self.find(name) is not None

    def __iter__(self):
        return iter([(<Tensor>tensor).name for tensor in self.tensors])

    def __len__(self):
        return len(self.tensors)

    cdef dict as_dict(self):
        """Return a new dict of the tensors, because its views give access to it."""
        if self.by_name is not None:
            return self.by_name.copy()
        return {(<Tensor>tensor).name: tensor for tensor in self.tensors}

    def keys(self) -> KeysView[str]:
        """Return a view of the names."""
        return self.as_dict().keys()

    def values(self) -> ValuesView[Tensor]:
        """Return a view of the tensors."""
        return self.as_dict().values()

    def items(self) -> ItemsView[str, Tensor]:
        """Return a view of the pairs of a name and its tensor."""
        return self.as_dict().items()

    def replace(self, **changes: Any) -> Self:
        """Return a message with other values for some arguments of the constructor.

        Parameters
        ----------
        **changes
            Arguments of ``InferRequest`` or ``InferResponse``.

        Returns
        -------
        InferRequest or InferResponse
            The changed copy. Tensors that are not replaced are the same objects.

        Raises
        ------
        EncodeError
            The values are invalid in a message.
        TypeError
            There is no such argument, or it has the wrong type.
        """
        cdef Message copy
        cdef str own_id, own_model, own_version
        if not changes.keys() <= TEXTS:
            return type(self)(**{**self.arguments(), **changes})
        # Servers do this with every request. Everything else in the message has been checked.
        own_id = checked_text(changes.get("id", self.id), "id")
        own_model = checked_text(changes.get("model_name", self.model_name), "model_name")
        own_version = checked_text(
            changes.get("model_version", self.model_version), "model_version")
        copy = new_message(type(self) is InferRequest)
        copy.tensors, copy.by_name, copy.requested = self.tensors, self.by_name, self.requested
        copy._parameters = self._parameters
        copy.id, copy.model_name, copy.model_version = own_id, own_model, own_version
        PyObject_GC_Track(copy)
        return copy

    __replace__ = replace

    __reversed__ = None  # as in Mapping

    def __copy__(self):
        return self

    def __reduce__(self):
        return _unpickled, (type(self), self.arguments())

    def __repr__(self):
        return f"<{type(self).__name__} {list(self.tensors)}>"


Mapping.register(Message)


def _unpickled(kind, arguments):
    return kind(**arguments)


@cython.final
@cython.freelist(8)
@cython.no_gc  # it is not in a cycle: its parameters are JSON values
cdef class RequestedOutput:
    """An output that a request selects. It cannot be changed, and compares by identity.

    Parameters
    ----------
    name : str
        Name of the output, without NUL characters.
    binary : bool, optional
        Whether the server should send the output as binary data. By default, this depends on the
        request's parameter ``binary_data_output`` and on the server (WIRE.md 7).
    parameters : mapping, optional
        Other parameters of the output. A ``binary_data`` among them is the value of ``binary`` if
        that is None.

    Attributes
    ----------
    name : str
    binary : bool or None
    parameters : mapping
        The parameters without ``binary_data``. The mapping is read-only.

    Raises
    ------
    EncodeError
        The name contains a NUL, or a parameter is invalid.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> tw.RequestedOutput("probabilities", binary=True)
    <RequestedOutput 'probabilities' binary=True>
    """

    __signature__ = constructor_signature(
        "name: str, *, binary: bool | None = None, parameters: Mapping[str, Any] | None = None"
    )

    def __cinit__(self):
        self.name = ""

    def __init__(
        self, name, *, binary=None, parameters=None
    ):
        cdef dict own = None
        cdef str own_name
        own_name = checked_name(name, "the name of an output")
        try:
            own = own_parameters(parameters)
        except (EncodeError, TypeError) as error:
            name_tensor(error, "output", own_name)
            raise
        if own is not None and "binary_data" in own:
            in_parameters = own.pop("binary_data")
            if binary is None and in_parameters is not None:
                if not isinstance(in_parameters, bool):
                    raise EncodeError(
                        f"binary_data of requested output {format_value(own_name)} must be True "
                        f"or False, not {type(in_parameters).__name__}", tensor=own_name)
                binary = in_parameters
        if binary is not None:
            checked_flag(binary, "binary")
        mark_made(&self.is_made, "a RequestedOutput")
        self.name, self.binary, self._parameters = own_name, binary, own or None

    @property
    def parameters(self):
        return frozen(self._parameters)

    def replace(self, **changes: Any) -> RequestedOutput:
        """Return a requested output with other values for some arguments of the constructor.

        Parameters
        ----------
        **changes
            Arguments of ``RequestedOutput``.

        Returns
        -------
        RequestedOutput
            The changed copy.

        Raises
        ------
        EncodeError
            A value is invalid; see ``RequestedOutput``.
        TypeError
            There is no such argument, or it has the wrong type.
        """
        return RequestedOutput(**{**self.arguments(), **changes})

    __replace__ = replace

    def __copy__(self):
        return self

    cdef dict arguments(self):
        """Return the arguments for a copy, without objects that can be modified."""
        return {
            "name": self.name, "binary": self.binary,
            "parameters": own_parameters(self._parameters),
        }

    def __reduce__(self):
        return _unpickled, (RequestedOutput, self.arguments())

    def __repr__(self):
        return f"<RequestedOutput {self.name!r} binary={self.binary}>"


cdef RequestedOutput new_output(str name, binary, dict parameters):
    """Return a requested output with attributes that the decoder has checked."""
    cdef RequestedOutput output = RequestedOutput.__new__(RequestedOutput)
    output.is_made = True
    output.name = name
    output.binary = binary
    output._parameters = parameters
    return output


@cython.final
@cython.no_gc_clear
cdef class InferRequest(Message):
    """An inference request. It cannot be changed, and compares by identity.

    ``request["name"]`` returns the input with that name. The request is a mapping of names to
    tensors: ``in``, ``len``, ``get``, ``keys``, ``values`` and ``items`` work as for a dict, and
    iterating over it returns the names. The TensorNotFoundError for an unknown name lists the first
    names of the inputs.

    Parameters
    ----------
    inputs : iterable of Tensor, or mapping
        The inputs, in the order of the message, or a mapping of their names to data that ``Tensor``
        accepts.
    outputs : iterable of RequestedOutput or str, optional
        The outputs to return, or their names. By default, or if there are none, all outputs of the
        model.
    id, model_name, model_version : str, optional
        Members of the JSON header.
    parameters : mapping, optional
        Parameters of the request. ``binary_data_output`` (bool) applies to outputs whose ``binary``
        is None (WIRE.md 7).

    Attributes
    ----------
    inputs : tuple of Tensor
        The inputs, in the order of the message.
    outputs : tuple of RequestedOutput or None
        The outputs that the request selects. None selects all.
    id, model_name, model_version : str or None
    parameters : mapping
        A read-only mapping.

    Raises
    ------
    EncodeError
        There are no inputs, a name appears twice, or a parameter is invalid.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> request = tw.InferRequest([tw.Tensor("text", ["a"])], id="1")
    >>> request["text"].shape
    (1,)
    """

    __signature__ = constructor_signature(
        "inputs: Tensors, outputs: Iterable[RequestedOutput | str] | None = None, *, "
        "id: str | None = None, model_name: str | None = None, model_version: str | None = None, "
        "parameters: Mapping[str, Any] | None = None"
    )

    def __cinit__(self):
        PyObject_GC_UnTrack(self)
        self.tensors = EMPTY_INPUTS

    def __init__(
        self, inputs, outputs=None, *,
        id=None, model_name=None, model_version=None, parameters=None,
    ):
        cdef tuple tensors = checked_tensors(inputs, "inputs")
        cdef dict by_name = items_by_name(tensors, "input", EncodeError)
        cdef dict own = None if parameters is None else message_parameters(parameters)
        binary = None if own is None else own.get("binary_data_output")
        if binary is not None and type(binary) is not bool:
            raise EncodeError(
                f"binary_data_output of the request must be True or False, not "
                f"{format_value(binary)}")
        if not tensors:
            raise EncodeError("a request must have at least one input")
        cdef str own_id = checked_text(id, "id")
        cdef str own_model = checked_text(model_name, "model_name")
        cdef str own_version = checked_text(model_version, "model_version")
        cdef tuple requested = checked_outputs(outputs)
        mark_made(&self.is_made, "an InferRequest")
        self.tensors, self.by_name, self.requested = tensors, by_name, requested
        self._parameters = own
        self.id, self.model_name, self.model_version = own_id, own_model, own_version
        PyObject_GC_Track(self)

    @property
    def inputs(self):
        return self.tensors

    @property
    def outputs(self):
        return self.requested

    cdef dict arguments(self):
        return {
            "inputs": self.tensors, "outputs": self.requested, "id": self.id,
            "model_name": self.model_name, "model_version": self.model_version,
            "parameters": own_parameters(self._parameters),
        }


@cython.final
@cython.no_gc_clear
cdef class InferResponse(Message):
    """The response to an inference request. It cannot be changed, and compares by identity.

    ``response["name"]`` returns the output with that name. The response is a mapping of names to
    tensors: ``in``, ``len``, ``get``, ``keys``, ``values`` and ``items`` work as for a dict, and
    iterating over it returns the names. The TensorNotFoundError for an unknown name lists the first
    names of the outputs.

    Parameters
    ----------
    outputs : iterable of Tensor, or mapping
        The outputs, in the order of the message, or a mapping of their names to data that
        ``Tensor`` accepts. The order may differ from that of the request.
    model_name, model_version, id : str, optional
        Members of the JSON header.
    parameters : mapping, optional
        Parameters of the response.

    Attributes
    ----------
    outputs : tuple of Tensor
    model_name, model_version, id : str or None
    parameters : mapping
        A read-only mapping.

    Raises
    ------
    EncodeError
        A name appears twice, or a parameter is invalid.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> response = tw.InferResponse([tw.Tensor("text", ["a"])], model_name="echo")
    >>> list(response)
    ['text']
    """

    __signature__ = constructor_signature(
        "outputs: Tensors, *, model_name: str | None = None, model_version: str | None = None, "
        "id: str | None = None, parameters: Mapping[str, Any] | None = None"
    )

    def __cinit__(self):
        PyObject_GC_UnTrack(self)
        self.tensors = ()

    def __init__(
        self, outputs, *, model_name=None, model_version=None, id=None, parameters=None,
    ):
        cdef tuple tensors = checked_tensors(outputs, "outputs")
        cdef dict by_name = items_by_name(tensors, "output", EncodeError)
        cdef str own_model = checked_text(model_name, "model_name")
        cdef str own_version = checked_text(model_version, "model_version")
        cdef str own_id = checked_text(id, "id")
        cdef dict own = None if parameters is None else message_parameters(parameters)
        mark_made(&self.is_made, "an InferResponse")
        self.tensors, self.by_name, self._parameters = tensors, by_name, own
        self.id, self.model_name, self.model_version = own_id, own_model, own_version
        PyObject_GC_Track(self)

    @property
    def outputs(self):
        return self.tensors

    cdef dict arguments(self):
        return {
            "outputs": self.tensors, "model_name": self.model_name,
            "model_version": self.model_version, "id": self.id,
            "parameters": own_parameters(self._parameters),
        }


for kind in (Message, InferRequest, InferResponse):
    set_mapping_flag(kind)  # Mapping.register() cannot set it for compiled classes
del kind


cdef Message new_message(bint is_request):
    """Return a hidden and empty InferRequest or InferResponse.

    Its caller sets the fields, and calls PyObject_GC_Track.
    """
    cdef Message message
    if is_request:
        message = InferRequest.__new__(InferRequest)
    else:
        message = InferResponse.__new__(InferResponse)
    message.is_made = True
    return message


cdef dict message_parameters(parameters):
    try:
        return own_parameters(parameters)
    except (EncodeError, TypeError) as error:
        name_subject(error, "the message")
        raise


cdef binary_data_output(InferRequest request):
    """Return the parameter ``binary_data_output`` of a request; None if there is none."""
    return None if request._parameters is None else request._parameters.get("binary_data_output")


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

    __signature__ = constructor_signature(
        "name: str, datatype: Datatype, dims: Iterable[int], batching: bool = False"
    )

    # In __cinit__, because Python code can create objects without calling __init__.
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
        if any([dim < -1 for dim in own_dims]):
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
        if tensor.row.name != self.datatype or n_dims != len(self.dims) + first:
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


# --- encoded messages ---


@cython.final
@cython.freelist(8)
cdef class Frame:
    """An encoded message: the buffers of its body, and its HTTP headers.

    ``len(frame)`` is the size of the body in bytes, and ``bytes(frame)`` is a copy of the body.
    Iterating over the frame returns the buffers, for ``writelines``, WSGI and httpx.
    Pass the frame itself to requests and ``http.client``. Frames compare by identity;
    ``bytes(one) == bytes(other)`` compares the bodies.

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

    __signature__ = constructor_signature(
        "buffers: tuple[Buffer, ...], header_length: int | None"
    )

    def __cinit__(self):
        self.tensors = ()

    def __init__(self, tuple buffers not None, header_length):
        if not self.is_made:
            PyObject_GC_UnTrack(self)  # exporters of buffers run code, which would find the frame
        cdef list flat = [flat_bytes(buffer) for buffer in buffers]
        cdef Py_ssize_t nbytes = 0
        for buffer in flat:
            nbytes += len(buffer)
        if header_length is not None and type(header_length) is not int:
            header_length = index(header_length)
        if header_length is not None and not 0 <= header_length <= nbytes:
            raise ValueError(
                f"header_length must be 0 to {nbytes}, the size of the frame, not "
                f"{format_number(header_length)}")
        mark_made(&self.is_made, "a Frame")
        self.exported = tuple(flat)
        self.header_length = header_length
        self.nbytes = nbytes
        PyObject_GC_Track(self)

    @property
    def buffers(self):
        # New memoryviews: the caller may release them. Each takes as long as encoding a tensor.
        if self.exported is None:
            return buffers_of(self)
        return tuple([separate_view(buffer) for buffer in self.exported])

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
        return iter(self.buffers)

    def chunks(self, max_nbytes: int) -> Iterator[memoryview]:
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
        size = index(max_nbytes)
        if size < 1:
            raise ValueError(f"max_nbytes must be 1 or more, not {format_number(size)}")
        views = [memoryview(buffer) for buffer in self.buffers]
        return (view[start:start + size] for view in views for start in range(0, len(view), size))

    def __bytes__(self):
        return joined(self)

    def __copy__(self):
        return self

    def __reduce_ex__(self, protocol):
        buffers = [
            PickleBuffer(buffer) if protocol >= 5 else bytes(buffer)
            for buffer in self.buffers
        ]
        return Frame, (tuple(buffers), self.header_length)

    def __repr__(self):
        return (
            f"<Frame of {self.nbytes} bytes in {len(self.buffers)} buffers, "
            f"header_length={self.header_length}>"
        )


cdef Frame new_frame(bytes header, tuple tensors, header_length, Py_ssize_t nbytes):
    """Return a frame of a header, or None, and the memory of tensors: together `nbytes` bytes."""
    cdef Frame frame = Frame.__new__(Frame)
    frame.is_made = True
    frame.header = header
    frame.tensors = tensors
    frame.header_length = header_length
    frame.nbytes = nbytes
    return frame


cdef tuple buffers_of(Frame frame):
    """Return new buffers for the header and the tensors of a frame."""
    cdef Tensor tensor
    cdef Py_ssize_t n_set = 0 if frame.header is None else 1
    cdef Py_ssize_t n_buffers = n_set + len(frame.tensors)
    cdef tuple buffers
    if n_buffers == 0:
        return ()
    buffers = new_tuple(n_buffers)
    if n_set == 1:
        set_item(buffers, 0, frame.header)
    for tensor in frame.tensors:
        if tensor.texts is None:
            buffer = PyMemoryView_FromObject(
                exported_bytes(tensor.owner, tensor.memory, tensor.nbytes))
        else:
            buffer = tensor.texts.wire
        set_item(buffers, n_set, buffer)
        n_set += 1
    return finished_tuple(buffers)


cdef bytes joined(Frame frame):
    """Return a copy of the body."""
    cdef Tensor tensor
    cdef Body part
    cdef bytes body = PyBytes_FromStringAndSize(NULL, frame.nbytes)
    cdef unsigned char* target = <unsigned char*>PyBytes_AS_STRING(body)
    if frame.exported is not None:
        for part in [Body(buffer) for buffer in frame.buffers]:
            target = write_memory(target, part.data, part.nbytes)
        return body
    if frame.header is not None:
        target = write_memory(target, PyBytes_AS_STRING(frame.header), len(frame.header))
    for tensor in frame.tensors:
        target = write_data(target, tensor)
    return body


cdef flat_bytes(buffer):
    """Return bytes, or a memoryview of the same memory that only the frame has.

    Raises BufferError if the memory is not contiguous.
    """
    if type(buffer) is bytes:
        return buffer
    view = memoryview(buffer)
    if view.ndim == 1 and view.itemsize == 1 and view.contiguous:
        return view
    if view.nbytes == 0:
        return b""
    try:
        return view.cast("B")
    except (TypeError, ValueError) as error:
        shown = format_text(error, MAX_FOREIGN_TEXT)
        raise BufferError(f"a buffer of a frame cannot be sent as bytes: {shown}") from None
