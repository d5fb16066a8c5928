"""Convert the data that users pass to `Tensor` and `encode_bytes`: arrays, lists, Arrow arrays.

The table CONVERSIONS, at the end, has what is accepted in the order in which it is tried. The
results are what the encoder can send: a little-endian, C-contiguous array or a BytesArray. If the
data is one of these, it is not copied. The functions of this module do not know the name of the
tensor: their errors contain SUBJECT, which the caller replaces.
"""

cimport numpy as cnp
from cpython.buffer cimport PyObject_CheckBuffer
from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from libc.math cimport isinf
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ..capsules.arrow cimport Received, numbers_of, receive
from ..bytes.array cimport BytesArray, bytes_of_values, bytes_of_wire
from ..bytes.writer cimport (
    Source, immutable_values, modified_error, pack, source_of, source_of_received)
from ..datatypes cimport Datatype, Float, Integer, format_range, shape_to_send
from ..capsules.dlpack cimport exports_dlpack, import_dlpack
from ..gil cimport FREE_THREADED, ITEM_COST, count_work, end_of_batch
from ..wire cimport MAX_RANK

from collections import namedtuple
from math import prod
from typing import Any

import numpy as np

from ..datatypes import DATATYPES, bf16_dtype, datatype_of
from ..messages.columns import column_error, is_column, is_instance, read_column

from ...errors import (
    SUBJECT, EncodeError, format_shape, format_text, format_value, name_subject, name_tensor)

cnp.import_array()

cdef extern from "Python.h":
    PyObject** PySequence_Fast_ITEMS(list items)
    # Without a check for exceptions after each call.
    double as_double "PyLong_AsDouble"(PyObject* number) noexcept
    long long as_int64 "PyLong_AsLongLongAndOverflow"(PyObject* number, int* overflow) noexcept
    unsigned long long as_uint64 "PyLong_AsUnsignedLongLong"(PyObject* number) noexcept

cdef Datatype BYTES = DATATYPES["BYTES"]

# The types of the items of lists of numbers, by dtype.kind.
cdef dict NUMBER_TYPES = {"b": (bool, bool), "i": (int, int), "u": (int, int), "f": (int, float)}


cdef tuple convert(data, datatype, shape, bint binary):
    """Return the Datatype, shape and data of a tensor in the form that the encoder needs.

    The arguments are those of `Tensor`. The data of a tensor in shared memory are None.
    """
    if datatype is not None and not isinstance(datatype, str):
        raise TypeError(f"the datatype of {SUBJECT} must be a str, not {type(datatype).__name__}")
    if datatype is not None and datatype not in DATATYPES:
        raise EncodeError(
            f"{SUBJECT} has an unknown datatype: {format_value(datatype)}; it must be one of "
            f"{', '.join(DATATYPES)}")
    if data is None and (datatype is None or shape is None):
        raise EncodeError(
            f"the data of {SUBJECT} is None: pass an array, or for a tensor in shared memory "
            f"datatype=, shape= and the parameters of the region")
    element_type, converted = convert_data(data, datatype, binary)
    if shape is None:
        return element_type, converted.shape, converted
    dims = shape_to_send(as_tuple(shape), element_type)
    if converted is None or dims == converted.shape:
        return element_type, dims, converted
    try:
        return element_type, dims, converted.reshape(dims)
    except ValueError:
        raise EncodeError(
            f"{SUBJECT} does not match its shape: the shape is {format_shape(dims)}, but that of "
            f"the data is {format_shape(converted.shape)}") from None


def encode_bytes(values: Any) -> bytes:
    """Encode values as length-prefixed elements (WIRE.md 2), in row-major order.

    Parameters
    ----------
    values : sequence, array or BytesArray
        Nested lists or an object array of ``bytes``, ``str`` (encoded as UTF-8), ``bytearray`` or
        ``memoryview``; a numpy ``S``, ``U`` or StringDType array (numpy drops the trailing NULs of
        ``S`` and ``U`` elements) or ``V`` array; an object that numpy converts to one of these
        arrays; a column with an Arrow array or stream of bytes or text without nulls, which is
        consumed; a BytesArray. The lengths of the buffers of an Arrow array cannot be checked, so
        pass only Arrow arrays from a trusted producer.

    Returns
    -------
    bytes
        The wire bytes in new memory.

    Raises
    ------
    EncodeError
        An element cannot be encoded, or another thread modified the values meanwhile.
    TypeError
        ``values`` has an unsupported type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> tw.encode_bytes(["a", b"bc"])
    b'\\x01\\x00\\x00\\x00a\\x02\\x00\\x00\\x00bc'
    """
    try:
        return pack(source_of_values(values))
    except (EncodeError, TypeError) as error:
        name_tensor(error, "argument", None)
        raise


# --- what is accepted ----------------------------------------------------------------------------

# A row of the table of what is accepted as data. `accepted` and `converted` are the text of the
# manual. The first row with `matches(data)` applies. `Tensor` calls `convert(data, datatype,
# binary)`, and `encode_bytes` calls `source(data)`, which is None if the data cannot be BYTES.
Conversion = namedtuple("Conversion", "accepted converted matches convert source")


cdef tuple convert_data(data, datatype, bint binary):
    """Return the Datatype, and an array or BytesArray with the shape that the data has."""
    conversion = conversion_of(data)
    if conversion is None:
        raise not_accepted_error(
            data, f"the data of {SUBJECT} must be an array, a list or a BytesArray")
    return conversion.convert(data, datatype, binary)


cdef Source source_of_values(values):
    """Return the values as the elements of BYTES. An Arrow array or stream is consumed."""
    conversion = conversion_of(values)
    if conversion is None or conversion.source is None:
        raise not_accepted_error(values, "BYTES must be a list or an array of bytes or str")
    return conversion.source(values)


cdef conversion_of(data):
    for conversion in CONVERSIONS:
        if conversion.matches(data):
            return conversion
    return None


cdef bint is_array(value) except -1:
    """Return whether an item of a list is an array, rather than a number or an element of BYTES."""
    if value is None or isinstance(value, (str, bytes, bytearray, memoryview, list, tuple)):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return False
    return conversion_of(value) is not None


cdef bint exports_arrow(values) except -1:
    """Return whether to use the Arrow array or stream of `values`.

    An image may export its pixels to Arrow, too, but without their shape. It also describes its
    memory to numpy. Columns do not: they only have `__array__`, which converts them (a null to NaN,
    text to objects).
    """
    return (
        (hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"))
        and not describes_memory(values)
    )


cdef bint describes_memory(values) except -1:
    """Return whether numpy can read the memory of `values`, without `__array__`."""
    if isinstance(getattr(values, "dtype", None), np.dtype):
        return True
    if PyObject_CheckBuffer(values):
        return not isinstance(values, (bytes, bytearray))  # these are elements of BYTES
    # The class is asked first, because the property of an image copies its pixels.
    for name in ("__array_interface__", "__array_struct__"):
        if hasattr(type(values), name) or hasattr(values, name):
            return True
    return False


cdef bint is_read_by_numpy(values) except -1:
    return describes_memory(values) or hasattr(values, "__array__")


cdef not_accepted_error(values, str expected):
    is_element = isinstance(values, (int, float, str, bytes, bytearray))
    advice = ": pass [value]" if is_element else ""
    return TypeError(f"{expected}, not {type(values).__name__}{advice}")


# --- arrays --------------------------------------------------------------------------------------


cdef tuple convert_array(array, datatype, bint binary):
    if is_masked(array):
        raise masked_error()
    if holds_bytes(array.dtype):
        return declared_type(BYTES, datatype), array_of_source(source_of_array(array), binary)
    # A new view: the checks that follow may run Python code, which could change the attributes of
    # the array that was passed.
    array = np.asarray(array).view()
    return numbers_to_send(datatype_of(array.dtype), array, datatype)


cdef tuple convert_dlpack(data, datatype, bint binary):
    element_type, array = import_dlpack(data)
    return numbers_to_send(element_type, array, datatype)


cdef tuple convert_memory(data, datatype, bint binary):
    return convert_array(read_array(data), datatype, binary)


cdef read_array(values):
    array = np.asarray(values)
    if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        # A true element may have any byte in the memory of other packages: 255 in Pillow's.
        return array.view(np.uint8) != 0
    return array


cdef tuple numbers_to_send(Datatype element_type, cnp.ndarray array, datatype):
    """Return the Datatype, and the array if it is C-contiguous and little-endian, else a copy."""
    if element_type is None:
        raise EncodeError(
            f"{SUBJECT} is an array of {format_text(array.dtype)}, which has no datatype")
    element_type = declared_type(element_type, datatype)
    if not cnp.PyArray_IS_C_CONTIGUOUS(array) or not cnp.PyArray_ISNOTSWAPPED(array):
        array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    return element_type, array


cdef tuple convert_arrow(values, datatype, bint binary):
    """Convert an Arrow array or stream, which is consumed."""
    if hasattr(type(values), "columns"):
        raise TypeError(
            f"{SUBJECT} is a data frame ({type(values).__name__}): pass an array of its values, "
            f"for example dataframe.to_numpy(), or make a tensor of each column with "
            f"tensors_from_dataframe(dataframe)")
    cdef Received received = receive(values, False)
    cdef Datatype element_type = declared_type(received.element_type, datatype)
    if element_type.name == "BYTES":
        return element_type, array_of_source(source_of_received(received), True)
    return element_type, numbers_of(received)


cdef tuple convert_column(column, datatype, bint binary):
    values, chosen, outer = read_column(column)
    datatype = chosen if datatype is None else datatype
    try:
        if is_list_or_array(values):
            element_type, converted = convert_data(values, datatype, binary)
        else:
            element_type, converted = convert_arrow(values, datatype, binary)
    except (EncodeError, TypeError) as error:
        raise column_error(column, values, error) from None
    return element_type, converted.reshape(outer + converted.shape[1:]) if outer else converted


cdef bint is_list_or_array(values) except -1:
    """Return whether the values of a column are not to be read with Arrow."""
    return isinstance(values, (list, np.ndarray))


cdef masked_error():
    return EncodeError(f"{SUBJECT} is a masked array, whose missing values cannot be sent")


cdef Datatype declared_type(Datatype element_type, datatype):
    """Return the Datatype of data. Raises EncodeError if the argument `datatype` is another one."""
    if datatype == "BF16" and element_type.name == "UINT16":
        return DATATYPES["BF16"]
    if datatype is not None and datatype != element_type.name:
        raise EncodeError(
            f"{SUBJECT} has datatype {format_text(datatype)}, but its data is {element_type.name}")
    return element_type


# --- BYTES ---------------------------------------------------------------------------------------


cdef tuple convert_elements(elements, datatype, bint binary):
    return declared_type(BYTES, datatype), elements


cdef bint is_masked(array) except -1:
    """Return whether an array is masked. `np.ma` would import the module.

    A process that is forked meanwhile would wait for the import for ever.
    """
    return type(array) is not np.ndarray and is_instance(array, "numpy.ma", "MaskedArray")


cdef bint holds_bytes(dtype) except -1:
    # The void dtypes of records and of other packages, such as bfloat16, are not bytes.
    return dtype.kind in "OSUT" or (dtype.num == cnp.NPY_VOID and dtype.names is None)


cdef BytesArray array_of_source(Source source, bint binary):
    """Return a BytesArray. Values that will be sent as JSON are kept, if they cannot change."""
    cdef Py_ssize_t nbytes
    cdef tuple values = None if binary else immutable_values(source, &nbytes)
    if values is not None:
        return bytes_of_values(values, nbytes, source.shape)
    return bytes_of_wire(pack(source), source.shape)


cdef Source source_of_elements(elements):
    return source_of("wire", elements.wire, elements.shape)


cdef Source source_of_list(values):
    shape, flat = flatten(values, 1)
    return source_of("O", flat, shape)


cdef Source source_of_array(array):
    if is_masked(array):
        raise masked_error()
    array = np.asarray(array)  # the attributes of a subclass are not used
    if not holds_bytes(array.dtype):
        raise EncodeError(
            f"{SUBJECT} is an array of {format_text(array.dtype)}, not BYTES: those are object, "
            f"S, U, V and StringDType arrays")
    if array.dtype.kind == "V":
        array = array.astype(object)
    kind, shape = array.dtype.kind, array.shape
    if kind != "T":  # a StringDType has no byte order
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    # The kernels need aligned memory, because they load whole code points.
    return source_of(kind, np.require(array, requirements=["C", "A"]), shape)


cdef Source source_of_memory(values):
    return source_of_array(read_array(values))


cdef Source source_of_column(column):
    values = read_column(column)[0]
    return source_of_values(values) if is_list_or_array(values) else source_of_arrow(values)


cdef source_of_arrow(values):
    return source_of_received(receive(values, True))


cdef tuple as_tuple(shape):
    if type(shape) is tuple:
        return shape
    iterator = iterator_of(shape, f"the shape of {SUBJECT}", "a sequence of ints")
    # tuple() would allocate memory for the length that an object with __len__ declares.
    dims = []
    for dim in iterator:
        dims.append(dim)
    return tuple(dims)


cdef iterator_of(items, str what, str expected):
    try:
        return iter(items)
    except TypeError:
        # An array without dimensions has the method, too.
        if hasattr(type(items), "__iter__") and not isinstance(items, np.ndarray):
            raise
        raise TypeError(f"{what} must be {expected}, not {type(items).__name__}") from None


# --- lists ---------------------------------------------------------------------------------------


cdef tuple convert_list(data, datatype, bint binary):
    leaf = first_leaf(data)
    # A list of scalars of numpy is a list of numbers if there is a datatype to convert them to.
    if is_array(leaf) and (datatype is None or not isinstance(leaf, np.generic)):
        return convert_arrays(data, datatype, binary)
    is_text = isinstance(leaf, (bytes, str, bytearray, memoryview))
    if datatype == "BYTES" or (datatype is None and is_text):
        return declared_type(BYTES, datatype), array_of_source(source_of_list(data), binary)
    return convert_numbers(data, leaf, datatype)


cdef tuple convert_arrays(data, datatype, bint binary):
    """Convert equal arrays in a list, or in nested lists."""
    cdef Datatype element_type, first = None
    cdef tuple outer, dims, inner = ()
    cdef Py_ssize_t i
    outer, items = flatten(data, 1)
    if len(items) == prod(outer) and len(set(map(type, items))) == 1 and (
        isinstance(items[0], np.generic)
    ):
        return convert_array(np.array(items).reshape(outer), datatype, binary)
    parts = []
    for i, item in enumerate(items):
        count_work(10 * ITEM_COST)
        if not is_array(item):
            raise EncodeError(
                f"item {i} of {SUBJECT} is {format_value(item)}, but the items before it are "
                f"arrays or numpy scalars")
        try:
            element_type, part = convert_data(item, datatype, True)
            dims = part.shape
        except (EncodeError, TypeError) as error:
            name_subject(error, f"item {i} of {SUBJECT}")
            if getattr(error, "element", None) is not None:
                error.element += i * prod(inner)
            raise
        if first is None:
            first, inner = element_type, dims
        elif element_type is not first or dims != inner:
            raise EncodeError(
                f"item {i} of {SUBJECT} is {element_type.name} {format_shape(dims)}, but item 0 is "
                f"{first.name} {format_shape(inner)}: the arrays in a list must have the same "
                f"datatype and shape")
        parts.append(part)
    if first is None or len(parts) != prod(outer):
        raise modified_error()
    dims = shape_to_send(outer + inner, first)
    if first.name == "BYTES":
        wires = []
        for part in parts:
            wires.append(part.wire)
        return first, bytes_of_wire(b"".join(wires), dims)
    # The arrays of BF16 may be of bfloat16 and of uint16.
    views = []
    for part in parts:
        views.append(part.view(parts[0].dtype))
    return first, np.stack(views).reshape(dims)


cdef first_leaf(data):
    """Return the first item of nested lists that is not a list, or an empty list."""
    cdef int _depth
    for _depth in range(MAX_RANK + 1):  # limited, because a list may contain itself
        if not isinstance(data, (list, tuple)) or not data:
            break
        data = data[0]
    return data


cdef tuple flatten(values, int depth):
    """Return the shape of nested lists, and a list of their items in row-major order.

    Other threads may run before the items of a list are read. They may change a list that was not
    nested: callers check the number of items.
    """
    count_work(2 * ITEM_COST)
    if type(values) is not list:  # __iter__ is the only method of a subclass that is used
        items = []
        for value in values:
            items.append(value)
        values = items
    elif FREE_THREADED:  # else no other thread can change the list while items are added to another
        values = values[:]
    if depth > MAX_RANK:
        raise EncodeError(
            f"{SUBJECT} is a list that is nested too deeply; the limit is {MAX_RANK} levels")
    if not values or not isinstance(values[0], (list, tuple)):
        return (len(values),), values
    flat = []
    inner = None
    for i, value in enumerate(values):
        if not isinstance(value, (list, tuple)):
            raise EncodeError(f"{SUBJECT} is a ragged list: item {i} is not a list")
        shape, items = flatten(value, depth + 1)
        if inner is not None and shape != inner:
            raise EncodeError(
                f"{SUBJECT} is a ragged list: item {i} has shape {format_shape(shape)}, but the "
                f"items before it have shape {format_shape(inner)}")
        inner = shape
        flat += items
    return (len(values), *inner), flat


# --- lists of numbers ----------------------------------------------------------------------------


cdef tuple convert_numbers(data, leaf, datatype):
    """Convert nested lists of numbers. Raises EncodeError for one that does not fit."""
    cdef Datatype element_type
    cdef Numbers numbers
    cdef tuple shape
    cdef list flat
    cdef Py_ssize_t n, stop, i = 0
    cdef PyObject* item
    if datatype is None:
        if not isinstance(leaf, (list, tuple, int, float, np.generic)):
            raise EncodeError(
                f"{SUBJECT} is a list of {type(leaf).__name__}, not of numbers, arrays, bytes "
                f"or str")
        empty = isinstance(leaf, (list, tuple)) and not leaf
        raise EncodeError(
            f"{SUBJECT} is {'an empty list' if empty else 'a list of numbers'}: pass "
            f"{'numpy.empty(0, dtype)' if empty else 'an array'}, or a Tensor with datatype=")
    element_type = DATATYPES[datatype]
    shape, flat = flatten(data, 1)
    n = len(flat)
    numbers.kind, numbers.itemsize = ord(dtype_kind(element_type)), element_type.itemsize
    if numbers.kind == c"f" and element_type.itemsize == 2:
        numbers.itemsize = 8  # FP16 and BF16 are made of FP64
    if n != prod(shape):  # methods of subclasses of list have changed the others
        raise modified_error()
    is_exact = numbers.itemsize == element_type.itemsize
    array = np.empty(shape, element_type.dtype if is_exact else np.float64)
    cdef char* target = <char*>cnp.PyArray_DATA(array)
    while i < n:
        stop = end_of_batch(i, n, ITEM_COST)
        while i < stop:
            if len(flat) != n:  # other threads, or methods of its items, have changed the list
                raise modified_error()
            i += store(&numbers, target + i * numbers.itemsize, PySequence_Fast_ITEMS(flat) + i,
                       stop - i)
            if i < stop:
                value = exact_number(flat[i], i, element_type)
                item = <PyObject*>value
                if store(&numbers, target + i * numbers.itemsize, &item, 1) == 0:
                    raise out_of_range_error(value, i, element_type)
                i += 1
    return element_type, array if is_exact else rounded_to(element_type, array)


cdef exact_number(value, Py_ssize_t element, Datatype element_type):
    """Return the Python object for a scalar of numpy. Raises EncodeError for another type."""
    cdef tuple types = NUMBER_TYPES[dtype_kind(element_type)]
    # A timedelta64 is an np.integer, too.
    if isinstance(value, (np.bool_, np.number)) and not isinstance(value, np.timedelta64):
        value = value.item()
    if type(value) not in types:
        raise wrong_type_error(value, element, element_type)
    return value


cdef rounded_to(Datatype element_type, doubles):
    """Convert FP64 numbers to FP16 or BF16. Raises EncodeError if a finite one overflows."""
    dtype = element_type.dtype or bf16_dtype()
    if dtype is None:
        raise EncodeError(
            f"{SUBJECT} is a list of BF16, which requires the ml_dtypes package; an array of "
            f"uint16 can be sent without it")
    with np.errstate(all="ignore"):
        rounded = doubles.astype(dtype)
    overflowed = np.flatnonzero(np.isinf(rounded.astype(np.float64)) & ~np.isinf(doubles))
    if overflowed.size:
        i = int(overflowed[0])
        raise out_of_range_error(doubles.item(i), i, element_type)
    return rounded


cdef str dtype_kind(Datatype element_type):
    cdef object dtype = element_type.dtype
    return "f" if dtype is None else dtype.kind  # BF16 has no dtype


cdef wrong_type_error(value, element, Datatype element_type):
    is_subclass = isinstance(value, (int, float)) and type(value) not in (bool, int, float)
    shown = type(value).__name__ if is_subclass else format_value(value)
    wanted = {"b": "a bool", "f": "a number"}.get(dtype_kind(element_type), "an integer")
    return EncodeError(
        f"element {element} of {SUBJECT} must be {wanted} ({element_type.name}), not {shown}",
        element=element)


cdef out_of_range_error(value, element, Datatype element_type):
    shown = format_value(value)
    if type(value) is int and value.bit_length() > 64:
        shown = f"an integer of {value.bit_length()} bits"
    return EncodeError(
        f"element {element} of {SUBJECT} is {shown}, which is out of range for "
        f"{format_range(element_type)}", element=element)


# --- lists of numbers: kernels -------------------------------------------------------------------


cdef struct Numbers:
    char kind  # b, i, u or f: the `kind` of the numpy dtype
    int itemsize


cdef Py_ssize_t store(
    const Numbers* numbers, char* target, PyObject** items, Py_ssize_t n
) noexcept:
    """Store numbers at `target`. Return how many there are before the first one that does not fit.

    Only exact float, int and bool objects are read, so that no other code runs.
    """
    if numbers.kind == c"b":
        return store_flags(target, items, n)
    if numbers.kind == c"f":
        if numbers.itemsize == 4:
            return store_floats[float](<float*>target, items, n)
        return store_floats[double](<double*>target, items, n)
    if numbers.kind == c"i":
        if numbers.itemsize == 1:
            return store_integers[int8_t](<int8_t*>target, items, n)
        if numbers.itemsize == 2:
            return store_integers[int16_t](<int16_t*>target, items, n)
        if numbers.itemsize == 4:
            return store_integers[int32_t](<int32_t*>target, items, n)
        return store_integers[int64_t](<int64_t*>target, items, n)
    if numbers.itemsize == 1:
        return store_integers[uint8_t](<uint8_t*>target, items, n)
    if numbers.itemsize == 2:
        return store_integers[uint16_t](<uint16_t*>target, items, n)
    if numbers.itemsize == 4:
        return store_integers[uint32_t](<uint32_t*>target, items, n)
    return store_integers[uint64_t](<uint64_t*>target, items, n)


cdef Py_ssize_t store_flags(char* target, PyObject** items, Py_ssize_t n) noexcept:
    cdef Py_ssize_t i
    for i in range(n):
        if <object>items[i] is not True and <object>items[i] is not False:
            return i
        target[i] = <object>items[i] is True
    return n


cdef Py_ssize_t store_floats(Float* target, PyObject** items, Py_ssize_t n) noexcept:
    cdef double number
    cdef Py_ssize_t i
    for i in range(n):
        if PyFloat_CheckExact(<object>items[i]):
            number = PyFloat_AS_DOUBLE(<object>items[i])
        elif PyLong_CheckExact(<object>items[i]):
            number = as_double(items[i])
            if number == -1 and PyErr_Occurred() != NULL:
                PyErr_Clear()
                return i
        else:
            return i
        target[i] = <Float>number
        if Float is float and isinf(target[i]) and not isinf(number):
            return i
    return n


cdef Py_ssize_t store_integers(Integer* target, PyObject** items, Py_ssize_t n) noexcept:
    cdef int overflow
    cdef int64_t number
    cdef Py_ssize_t i
    for i in range(n):
        if not PyLong_CheckExact(<object>items[i]):
            return i
        number = as_int64(items[i], &overflow)
        if Integer is uint64_t:
            if overflow > 0:
                number = <int64_t>as_uint64(items[i])
                if PyErr_Occurred() != NULL:
                    PyErr_Clear()
                    return i
            elif overflow < 0 or number < 0:
                return i
        elif overflow != 0 or number != <Integer>number:
            return i
        target[i] = <Integer>number
    return n


# --- the table -----------------------------------------------------------------------------------

# `Tensor` adds the first row. Its docstring and the manual have the texts of all rows.
CONVERSIONS = [
    Conversion(
        "`None`", "nothing, because the tensor is in shared memory",
        lambda data: data is None,
        lambda _, datatype, binary: (DATATYPES[datatype], None), None),
    Conversion(
        "a `BytesArray`", "BYTES", lambda data: isinstance(data, BytesArray),
        convert_elements, source_of_elements),
    Conversion(
        "an array of numpy, also of a subclass",
        "the datatype of its dtype; object, `S`, `U`, `V` and StringDType arrays are BYTES",
        lambda data: isinstance(data, np.ndarray), convert_array, source_of_array),
    Conversion(
        "a list or tuple, also nested",
        "BYTES if the items are `bytes` or `str`; numbers of the `datatype`, which is required; "
        "a stack of arrays, which this table converts, with one datatype and shape",
        lambda data: isinstance(data, (list, tuple)), convert_list, source_of_list),
    Conversion(
        "a column of pandas, polars or pyarrow", "like a column in `tensors_from_dataframe`",
        is_column, convert_column, source_of_column),
    Conversion(
        "an object that exports an Arrow array or stream, and does not describe its memory to "
        "numpy",
        "numbers, bytes or text, or fixed-size lists of them, without nulls",
        exports_arrow, convert_arrow, source_of_arrow),
    Conversion(
        "an object with `__dlpack__`", "numbers, which must be in the memory of the CPU",
        exports_dlpack, convert_dlpack, None),
    Conversion(
        "an object that describes its memory to numpy, or has `__array__`",
        "the array of `numpy.asarray`", is_read_by_numpy, convert_memory, source_of_memory),
]
