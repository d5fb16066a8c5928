"""Replacements for common arguments, compiled so that they are fast for small tensors as well.

Each function returns None or False, and has changed nothing, for all other arguments. The caller
then uses a slower way, which may be the original function. Attributes of tritonclient's objects are
read and written in the same order as by its own methods.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from ..._codec.bytes_reader cimport elements_as_objects, scan_elements
from ..._codec.bytes_array cimport BytesArray
from ..._codec.memory cimport Body

import numpy as np

from ..._codec.bytes_reader import count_elements
from ..._codec.bytes_writer import Objects, all_plain, pack
from ...errors import DecodeError, EncodeError

cnp.import_array()

cdef extern from "Python.h":
    bint PyLong_CheckExact(object value)
    bint PyDict_CheckExact(object value)

# A copy of a smaller array takes less time than a reference (benchmarks/bench_integrations.py).
REFER_FROM_NBYTES = 256 * 1024
"""The minimum size in bytes of input arrays that are kept by reference instead of copied."""

cdef Py_ssize_t refer_from_nbytes = REFER_FROM_NBYTES

cdef enum:
    N_TYPES = 24  # numpy's types have smaller numbers, except StringDType and those of extensions

# The datatype of each of numpy's type numbers, or None.
cdef list DATATYPE_OF = [None] * N_TYPES
for name, character in (
    ("BOOL", "?"), ("FP16", "e"), ("FP32", "f"), ("FP64", "d"), ("BYTES", "O"),
):
    DATATYPE_OF[np.dtype(character).num] = name
for character in "bBhHiIlLqQ":
    dtype = np.dtype(character)
    DATATYPE_OF[dtype.num] = f"{'U' if dtype.kind == 'u' else ''}INT{8 * dtype.itemsize}"
del name, character, dtype


# --- BYTES -----------------------------------------------------------------------------------


def serialized_objects(values):
    """Serialize an object array that contains only `bytes` and `str`. Returns None for others."""
    cdef cnp.ndarray array
    if type(values) is not cnp.ndarray:
        return None
    array = values
    if cnp.PyArray_TYPE(array) != cnp.NPY_OBJECT:
        return None
    if not cnp.PyArray_ISCARRAY_RO(array):
        array = np.require(array, requirements=["C", "A"])
    if not all_plain(array):
        return None  # tritonclient calls str() for numbers, None, subclasses and so on
    try:
        return pack(Objects(array, (<object>array).shape))
    except EncodeError:  # an unpaired surrogate, or an element of 4 GiB or more
        return None


def scalar_array(bytes wire not None):
    """Return what `serialize_byte_tensor` returns: the bytes in an object array without dimensions.

    The array is empty if there are no bytes.
    """
    cdef cnp.npy_intp n_items = 0
    if PyBytes_GET_SIZE(wire) == 0:
        return cnp.PyArray_SimpleNew(1, &n_items, cnp.NPY_OBJECT)
    cdef cnp.ndarray array = cnp.PyArray_SimpleNew(0, NULL, cnp.NPY_OBJECT)  # its item is NULL
    Py_INCREF(wire)
    (<PyObject**>cnp.PyArray_DATA(array))[0] = <PyObject*>wire
    return array


def deserialized(encoded):
    """Return the elements of serialized BYTES as an object array of `bytes`.

    Returns None for malformed BYTES, and for anything but `bytes` and flat arrays of bytes.
    """
    cdef Body body
    cdef cnp.ndarray array
    if not PyBytes_CheckExact(encoded):
        if type(encoded) is not cnp.ndarray:
            return None
        array = encoded
        if cnp.PyArray_TYPE(array) != cnp.NPY_UINT8 or cnp.PyArray_NDIM(array) != 1:
            return None
        if not cnp.PyArray_ISCARRAY_RO(array):
            return None
    body = Body(encoded)
    try:
        elements = scan_elements(body, count_elements(body), 0, body.nbytes)
    except DecodeError:
        return None
    return elements_as_objects(elements)


# --- inputs ----------------------------------------------------------------------------------


def is_extra_bytes(values):
    """Return whether the values are BYTES of a type that tritonclient itself does not accept."""
    if type(values) is cnp.ndarray:
        return (<cnp.ndarray>values).descr.kind in (c"U", c"T")
    return isinstance(values, BytesArray)


def set_binary_data(tensor, values):
    """Set the data of an InferInput of tritonclient.http, which will be sent as binary data.

    Returns False if the datatype or the shape may differ, and for anything but plain numpy arrays.
    """
    datatype = datatype_of(values)
    if datatype is None or tensor._datatype != datatype or not has_shape(values, tensor._shape):
        return False
    parameters = tensor._parameters
    if not PyDict_CheckExact(parameters):
        return False
    raw = raw_data(values)
    if raw is None:
        return False
    for key in SHARED_MEMORY_KEYS:
        if key in <dict>parameters:
            del (<dict>parameters)[key]
    tensor._data = None
    tensor._raw_data = raw
    (<dict>parameters)["binary_data_size"] = len(raw)
    return True


def set_raw_contents(tensor, values):
    """Set the data of an InferInput of tritonclient.grpc.

    Returns False if the datatype or the shape may differ, and for anything but plain numpy arrays.
    """
    datatype = datatype_of(values)
    if datatype is None:
        return False
    message = tensor._input
    if message.datatype != datatype or not has_shape(values, message.shape[:]):
        return False
    raw = raw_data(values)
    if raw is None:
        return False
    parameters = message.parameters
    if parameters:
        for key in SHARED_MEMORY_KEYS:
            parameters.pop(key, None)
    tensor._raw_content = raw
    return True


cdef object datatype_of(values):
    """Return the datatype of a plain numpy array, or None."""
    cdef int type_num
    if type(values) is not cnp.ndarray or not cnp.PyArray_ISNOTSWAPPED(values):
        return None
    type_num = cnp.PyArray_TYPE(values)
    return DATATYPE_OF[type_num] if 0 <= type_num < N_TYPES else None


cdef object raw_data(cnp.ndarray array):
    """Return the elements as `bytes`, or None for objects that tritonclient must serialize.

    A large C-contiguous array of numbers is not copied: the result is a view of it.
    """
    if cnp.PyArray_TYPE(array) == cnp.NPY_OBJECT:
        return serialized_objects(array)
    if cnp.PyArray_NBYTES(array) >= refer_from_nbytes and cnp.PyArray_IS_C_CONTIGUOUS(array):
        return flat_bytes(array)
    return cnp.PyArray_ToString(array, cnp.NPY_CORDER)


cdef tuple SHARED_MEMORY_KEYS = (
    "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


cdef bint has_shape(cnp.ndarray array, shape) except -1:
    """Return whether the shape is a list or tuple of exactly these `int`s."""
    cdef Py_ssize_t i, n_dims = cnp.PyArray_NDIM(array)
    if type(shape) is list:
        if len(<list>shape) != n_dims:
            return False
        for i in range(n_dims):
            if not is_dim((<list>shape)[i], cnp.PyArray_DIM(array, i)):
                return False
        return True
    if type(shape) is tuple:
        return shape == (<object>array).shape
    return False


cdef inline bint is_dim(value, cnp.npy_intp dim) except -1:
    cdef int overflow = 0
    return (
        PyLong_CheckExact(value)
        and PyLong_AsLongLongAndOverflow(value, &overflow) == dim
        and not overflow
    )


def flat_bytes(cnp.ndarray array not None):
    """Return a flat, read-only uint8 view of a C-contiguous array."""
    flat = array.reshape(-1).view(np.uint8)
    flat.flags.writeable = False
    return flat


def raw_contents(inputs, type input_class not None):
    """Return a list with the data of the inputs of tritonclient.grpc that have any.

    Returns None if tritonclient has to read an input: subclasses may override ``_get_content``.
    """
    cdef list contents = []
    if not isinstance(inputs, (list, tuple)):
        return None
    for tensor in inputs:
        if type(tensor) is not input_class:
            return None
        raw = tensor._raw_content
        if PyBytes_CheckExact(raw) or type(raw) is cnp.ndarray:
            contents.append(raw)
        elif raw is not None:
            return None
    return contents


def replace_get_binary_data(original):
    def _get_binary_data(self):
        # Copies an array that is kept by reference, because programs that create request bodies
        # themselves need `bytes`.
        raw = self._raw_data
        return raw.tobytes() if type(raw) is cnp.ndarray else raw

    return _get_binary_data


def refer_to_arrays(inputs, type input_class not None):
    """Return whether an input in a list or tuple keeps an array by reference.

    Inputs of other classes do not count: their methods return the data.
    """
    if not isinstance(inputs, (list, tuple)):
        return False
    for tensor in inputs:
        if type(tensor) is input_class and type(tensor._raw_data) is cnp.ndarray:
            return True
    return False
