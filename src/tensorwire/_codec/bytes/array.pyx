"""BytesArray: the elements of a BYTES tensor, in received memory or as values of a caller."""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcmp

from ..bytes.reader cimport (
    Elements, count_elements, element_bytes, elements_as_fixed_width, elements_as_objects,
    elements_as_str, elements_as_stringdtype, gather_elements, new_elements, scan_elements)
from ..bytes.writer cimport pack, source_of
from ..capsules.arrow_bytes cimport export_elements
from ..gil cimport copied_bytes, count_or_release_gil, take_gil
from ..held_buffer cimport HeldBuffer
from ..utf8 cimport are_valid_utf8
from ..wire cimport (
    MAX_RANK, PREFIX_NBYTES, WIDEST_ITEMSIZE, Element, Span, begin_of, element_at, span_nbytes)

from collections.abc import Sequence
from math import prod
from operator import index as as_index
from pickle import PickleBuffer
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..capsules.arrow_bytes import arrow_schema
from ..signatures import ReadableBuffer
from ...errors import (
    MAX_FOREIGN_TEXT, SUBJECT, DecodeError, ElementError, LayoutError, format_count, format_number,
    format_shape, format_text, name_tensor)

cnp.import_array()


@cython.final
@cython.freelist(8)
@cython.no_gc_clear  # a BytesArray may be used after a cycle was cleared
cdef class BytesArray:
    """BytesArray()\n--\n
    The elements of a BYTES tensor: a sequence of ``bytes`` with any number of dimensions.

    The elements are in row-major order. They remain in the buffer in which they were received, and
    the array keeps a reference to that buffer, which may be a whole request body. ``copy()``
    returns an array with its own memory. The array itself uses 8 bytes per element. Each access to
    an element creates a new Python object.

    Indexing works as in numpy. An element is returned as ``bytes``. A range of whole rows is
    returned as a view of the same memory. Any other selection copies the selected elements.

    A BytesArray is the ``data`` of a ``Tensor`` of BYTES, and is returned by ``decode_bytes``. It
    has no public constructor. WIRE.md 2 describes the format.

    Attributes
    ----------
    shape : tuple of int
        Dimensions.

    Examples
    --------
    >>> import tensorwire as tw
    >>> words = tw.Tensor("words", [["a", "bc"], ["", "def"]]).data
    >>> words
    <BytesArray shape=[2, 2] nbytes=22>
    >>> words[0, 1]
    b'bc'
    >>> words[1].tolist()
    [b'', b'def']
    """

    def __cinit__(self):
        # Python code can call __new__ without __init__. The result is a valid, empty array.
        self.content = b""
        self.shape = (0,)

    def __init__(self, *args, **kwargs):
        raise TypeError(
            "a BytesArray is created by decode_bytes, by decoding a message, or by Tensor")

    cdef tuple values_or_none(self):
        """Return values that are not encoded yet, each exactly bytes or str."""
        with cython.critical_section(self):  # another thread may encode them
            content = self.content
        return content if type(content) is tuple else None

    cdef encoded(self):
        """Return the wire bytes, or the Elements that were found in them.

        Several threads may encode values at once. One of the results, which are equal, is kept.
        """
        with cython.critical_section(self):
            content = self.content
        if type(content) is tuple:
            wire = pack(source_of("O", content, self.shape))
            with cython.critical_section(self):
                if type(self.content) is tuple:
                    self.content = wire
                content = self.content
        return content

    cdef Elements scanned(self):
        """Return the elements. Several threads may scan the same bytes, with the same result."""
        content = self.encoded()
        if type(content) is bytes:
            content = scan_elements(HeldBuffer(content), self.size, 0, self.nbytes)
            with cython.critical_section(self):
                self.content = content
        return content

    cdef const unsigned char* wire_data(self) except NULL:
        """Return the address of the wire bytes, which exist as long as this object does."""
        content = self.encoded()
        if type(content) is bytes:
            return <const unsigned char*>PyBytes_AS_STRING(content)
        return (<Elements>content).span.data + begin_of(&(<Elements>content).span)

    # --- attributes ---

    @property
    def ndim(self):
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self):
        """Number of elements."""
        size = 1
        for dim in self.shape:
            size *= dim
        return size

    @property
    def wire(self):
        """The wire bytes, length prefixes included, as a memoryview of the buffer."""
        content = self.encoded()
        if type(content) is bytes:
            return memoryview(content)
        cdef Elements elements = <Elements>content
        return elements.body.view(begin_of(&elements.span), self.nbytes)

    def __len__(self):
        if not self.shape:
            raise TypeError("a BytesArray without dimensions has no len()")
        return self.shape[0]

    def __repr__(self):
        return f"<BytesArray shape={list(self.shape)} nbytes={self.nbytes}>"

    def __eq__(self, other):
        """Return whether the other BytesArray has the same shape and elements."""
        if not isinstance(other, BytesArray):
            return NotImplemented
        return self.shape == other.shape and same_bytes(self.wire, other.wire)

    # --- elements ---

    def __getitem__(self, index):
        if (type(index) is int or isinstance(index, np.integer)) and self.shape:
            return row_at(self, int(index))
        if isinstance(index, slice) and self.shape:
            start, stop, step = index.indices(self.shape[0])
            if step == 1:
                stop = max(start, stop)
                return rows_between(self, start, stop, (stop - start, *self.shape[1:]))
        # numpy selects offsets, and the offsets determine the elements, because they ascend. Each
        # step takes time for the selected elements, and not for all elements of the array.
        cdef Elements elements = self.scanned()
        starts = elements.starts
        try:
            chosen = starts.reshape(self.shape)[index]
        except OverflowError as error:  # numpy raises this for integers that exceed 64 bits
            raise IndexError(str(error)) from None
        if not isinstance(chosen, np.ndarray):
            return element_bytes(elements, int(np.searchsorted(starts, chosen)))
        indices = np.searchsorted(starts, chosen.ravel())
        n = indices.size
        if n > 0 and np.array_equal(indices, np.arange(indices[0], indices[0] + n)):
            return elements_between(self, indices[0], indices[0] + n, chosen.shape)
        return bytes_of_wire(gather_elements(elements, indices), chosen.shape)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def element(self, index: SupportsIndex) -> memoryview:
        """Return one element as a memoryview of the buffer. The element is not copied.

        Parameters
        ----------
        index : int
            A flat, row-major index. A negative one counts from the end.

        Returns
        -------
        memoryview
            It keeps a reference to the buffer, and is writable if the buffer is.

        Raises
        ------
        IndexError
            There is no such element.
        TypeError
            The index is not an integer.

        Examples
        --------
        >>> import tensorwire as tw
        >>> bytes(tw.decode_bytes(tw.encode_bytes(["a", "bc"])).element(1))
        b'bc'
        """
        flat, size = as_index(index), self.size
        if not -size <= flat < size:
            raise IndexError(
                f"element {format_number(flat)} is out of range for "
                f"{format_count('element', size)}")
        flat = flat + size if flat < 0 else flat
        cdef Elements elements = self.scanned()
        cdef Element found = element_at(&elements.span, flat)
        return elements.body.view(found.data - elements.span.data, found.nbytes)

    # --- conversion ---

    def reshape(self, shape: Sequence[SupportsIndex]) -> BytesArray:
        """Return the same elements and memory in another shape.

        Parameters
        ----------
        shape : sequence of int
            Dimensions whose product is ``size``; -1 is not supported.

        Returns
        -------
        BytesArray
            A view of the same memory.

        Raises
        ------
        ValueError
            The shape has another number of elements or a negative dimension, or numpy does not
            support it.
        TypeError
            A dimension is not an integer.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.decode_bytes(tw.encode_bytes(["a", "b"])).reshape((2, 1)).tolist()
        [[b'a'], [b'b']]
        """
        dims = exact_dims(shape)
        if min(dims, default=0) < 0:
            raise ValueError(f"a dimension is negative: {format_shape(dims)}")
        if len(dims) > MAX_RANK:
            raise ValueError(f"the shape has {len(dims)} dimensions; the limit is {MAX_RANK}")
        if prod(dims) != self.size:
            raise ValueError(f"{self.size} elements do not fill shape {format_shape(dims)}")
        if prod(filter(None, dims), start=WIDEST_ITEMSIZE) >= 1 << 63:
            raise ValueError(f"BYTES {format_shape(dims)} exceeds 2^63 - 1 bytes in numpy")
        with cython.critical_section(self):
            content = self.content
        return new_bytes_array(content, self.nbytes, dims)

    def as_numpy(self, dtype: DTypeLike = object) -> NDArray[Any]:
        """Return copies of the elements as a new array.

        Parameters
        ----------
        dtype : dtype-like, default object
            ``object`` for ``bytes`` objects. ``"S"`` for elements with the width of the longest one
            (numpy drops their trailing NULs). ``numpy.dtypes.StringDType()`` for text.

        Returns
        -------
        ndarray
            A new array with the same shape.

        Raises
        ------
        ElementError
            For ``StringDType()``, an element is not valid UTF-8. For ``"S"``, one long element
            would make the array larger than both 64 MiB and 64 times the wire bytes.
        TypeError
            ``dtype`` is not one of these.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.decode_bytes(tw.encode_bytes(["a", "bc"])).as_numpy("S")
        array([b'a', b'bc'], dtype='|S2')
        """
        return self.converted(dtype)

    # The next three functions do the work of `as_numpy`, `as_strings` and `__array__`, also for a
    # Tensor, whose kind and name are in their errors then.

    cdef converted(self, dtype, str kind="array", str name=None):
        if dtype is object or dtype == np.dtype(object):
            return elements_as_objects(self.scanned()).reshape(self.shape)
        is_text = isinstance(dtype, np.dtypes.StringDType)
        if not is_text:
            try:
                found = np.dtype(dtype)
            except RecursionError:  # numpy formats invalid arguments, which may be deeply nested
                raise TypeError(f"a {type(dtype).__name__} is not a dtype") from None
            except TypeError as error:
                raise TypeError(format_text(error, MAX_FOREIGN_TEXT)) from None
            if found != np.dtype("S"):
                raise TypeError(
                    f"BYTES can be converted to object, 'S' or StringDType() arrays, not "
                    f"{format_text(found)}")
        try:
            if is_text:
                return elements_as_stringdtype(self.scanned()).reshape(self.shape)
            return elements_as_fixed_width(self.scanned()).reshape(self.shape)
        except ElementError as error:
            name_tensor(error, kind, name)
            raise

    cdef strings(self, str kind="array", str name=None):
        try:
            return elements_as_str(self.scanned()).reshape(self.shape)
        except ElementError as error:
            name_tensor(error, kind, name)
            raise

    cdef array(self, dtype, copy, str kind="array", str name=None):
        if copy is False:
            raise ValueError("BYTES cannot be converted to a numpy array without copying")
        return self.converted(object if dtype is None else dtype, kind, name)

    def as_strings(self) -> NDArray[np.object_]:
        """Decode the elements as UTF-8.

        Returns
        -------
        ndarray of object
            A new array of ``str`` with the same shape.

        Raises
        ------
        ElementError
            An element is not valid UTF-8.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.decode_bytes(tw.encode_bytes(["a", "bc"])).as_strings()
        array(['a', 'bc'], dtype=object)
        """
        return self.strings()

    def tolist(self) -> Any:
        """Return copies of the elements as nested lists.

        Returns
        -------
        list or bytes
            Nested lists of ``bytes``, one level per dimension. Without dimensions, the element.

        Examples
        --------
        >>> import tensorwire as tw
        >>> tw.decode_bytes(tw.encode_bytes(["a", "bc"])).tolist()
        [b'a', b'bc']
        """
        return self.as_numpy().tolist()

    def copy(self) -> BytesArray:
        """Return the same elements in new memory.

        Returns
        -------
        BytesArray
            It does not refer to the buffer.

        Examples
        --------
        >>> import tensorwire as tw
        >>> words = tw.decode_bytes(bytearray(tw.encode_bytes(["a", "bc"])))
        >>> words.copy() == words
        True
        """
        cdef HeldBuffer wire = HeldBuffer(self.wire)
        return scanned_bytes(copied_bytes(wire.data, wire.nbytes), self.shape)

    def __reduce_ex__(self, protocol):
        # Only the bytes of these elements are pickled, not the whole body. From protocol 5 on, they
        # are a buffer that can be stored out of band. They are scanned again when they are loaded.
        # CPython 3.11 crashes if it collects a memoryview that is exported.
        wire = HeldBuffer(self.wire)
        return scanned_bytes, (
            PickleBuffer(wire) if as_index(protocol) >= 5 else bytes(wire), self.shape)

    def __arrow_c_schema__(self):
        """Return the Arrow schema (PyCapsule protocol): binary view."""
        return arrow_schema(b"vz")

    def __arrow_c_array__(self, requested_schema=None):
        """Return the elements in row-major order as an Arrow array (PyCapsule protocol).

        The type is binary view by default. The data buffers of the array are then the body, which
        is not copied. 16 bytes per element are allocated for the views. The array keeps a reference
        to the body until it is released. If the body is writable and changes, the array changes,
        too. An Arrow array has one dimension, so the shape is lost.

        Parameters
        ----------
        requested_schema : capsule, optional
            A schema of the type that the consumer prefers: binary, string, their large or view
            types. String view is not a copy; the others are. The type is binary view if this is any
            other type, if text is requested and an element is not valid UTF-8, or if binary or
            string is requested and the elements have more than 2^31 - 1 bytes in total.

        Raises
        ------
        EncodeError
            An element of a view has 2 GiB or more, or the requested schema was released.
        TypeError
            ``requested_schema`` is not a capsule of a schema.
        """
        cdef Elements elements = self.scanned()
        return export_elements(elements, &elements.span, requested_schema)

    def __array__(self, dtype=None, copy=None):
        """Return ``as_numpy(dtype)``. This method is called by ``numpy.asarray``."""
        return self.array(dtype, copy)


cdef bint same_bytes(first, second) except -1:
    """Return whether two buffers have the same bytes. `==` of memoryviews would compare items."""
    cdef HeldBuffer one = HeldBuffer(first)
    cdef HeldBuffer other = HeldBuffer(second)
    cdef int difference
    if one.nbytes != other.nbytes:
        return False
    released = count_or_release_gil(one.nbytes)
    difference = memcmp(one.data, other.data, one.nbytes)
    take_gil(released)
    return difference == 0


cdef row_at(BytesArray array, index):
    n_rows = array.shape[0]
    if not -n_rows <= index < n_rows:
        raise IndexError(
            f"index {format_number(index)} is out of range for a dimension of {n_rows}")
    row = index + n_rows if index < 0 else index
    if len(array.shape) == 1:
        return element_bytes(array.scanned(), row)
    return rows_between(array, row, row + 1, array.shape[1:])


cdef BytesArray rows_between(BytesArray array, start, stop, tuple shape):
    row_size = array.size // array.shape[0] if array.shape[0] else 0
    return elements_between(array, start * row_size, stop * row_size, shape)


cdef BytesArray elements_between(
    BytesArray array, Py_ssize_t first, Py_ssize_t last, tuple shape
):
    """Return the elements from `first` up to `last` as a view of the same memory."""
    cdef Elements elements = array.scanned()
    cdef const Span* span = &elements.span
    cdef Py_ssize_t end = span.starts[last] if last < span.n else span.end
    return bytes_of_elements(new_elements(elements.body, elements.starts[first:last], end), shape)


cdef BytesArray new_bytes_array(content, Py_ssize_t nbytes, tuple shape):
    cdef BytesArray array = BytesArray.__new__(BytesArray)
    array.content = content
    array.nbytes = nbytes
    array.shape = shape
    return array


cdef BytesArray bytes_of_elements(Elements elements, tuple shape):
    return new_bytes_array(elements, span_nbytes(&elements.span), shape)


cdef BytesArray bytes_of_wire(bytes wire, tuple shape):
    return new_bytes_array(wire, len(wire), shape)


cdef BytesArray bytes_of_values(tuple values, Py_ssize_t nbytes, tuple shape):
    """The values, each exactly bytes or str, were measured, and are encoded when that is needed."""
    return new_bytes_array(values, nbytes, shape)


def are_texts(BytesArray array not None):
    """Return whether all elements are valid UTF-8."""
    cdef Elements elements = array.scanned()
    return are_valid_utf8(&elements.span)


def values_to_encode(BytesArray array not None):
    """Return the values of an array that is not encoded yet, each exactly bytes or str, or None."""
    return array.values_or_none()


def scanned_bytes(wire, shape):
    return scan_body(HeldBuffer(wire), exact_dims(shape))


cdef tuple exact_dims(shape):
    cdef list dims = []
    for dim in shape:
        dims.append(as_index(dim))
    return tuple(dims)


cdef BytesArray scan_body(HeldBuffer body, tuple shape):
    """Return a BytesArray of the elements that fill a body. `shape` is None if it is not known."""
    try:
        size = count_elements(body) if shape is None else prod(shape)
        if not 0 <= size < 1 << 62:  # before it is converted to a C integer
            raise LayoutError(
                f"{SUBJECT} does not match its shape: at least "
                f"{format_number(PREFIX_NBYTES * size)} bytes are required for "
                f"{format_number(size)} BYTES elements, but there are {body.nbytes}",
                expected=PREFIX_NBYTES * size, actual=body.nbytes)
        elements = scan_elements(body, size, 0, body.nbytes)
    except DecodeError as error:
        name_tensor(error, "body", None)
        raise
    array = bytes_of_elements(elements, (size,))
    return array if shape is None or len(shape) == 1 else array.reshape(shape)


def decode_bytes(buffer: ReadableBuffer, count: int | None = None) -> BytesArray:
    """Validate the length-prefixed elements in a buffer, and return them (WIRE.md 2).

    Parameters
    ----------
    buffer : buffer
        A C-contiguous buffer of bytes. It is not copied.
    count : int, optional
        The number of elements. If it is None, any number is accepted.

    Returns
    -------
    BytesArray
        An array of shape [count], which keeps a reference to the buffer.

    Raises
    ------
    ElementError
        An element is truncated.
    LayoutError
        The buffer does not have ``count`` elements.
    TypeError
        ``buffer`` is not a buffer, or ``count`` is not an integer.
    ValueError
        ``count`` is negative.
    BufferError
        The buffer is not contiguous, or its items are not bytes.

    Examples
    --------
    >>> import tensorwire as tw
    >>> tw.decode_bytes(b"\\x01\\x00\\x00\\x00a\\x02\\x00\\x00\\x00bc").tolist()
    [b'a', b'bc']
    >>> tw.decode_bytes(b"\\x09\\x00\\x00\\x00abc")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tensorwire.errors.ElementError: element 0 of the body is truncated: its prefix declares 9...
    """
    cdef HeldBuffer body = HeldBuffer(buffer)
    if count is None:
        return scan_body(body, None)
    if isinstance(count, bool):
        raise TypeError("count must be an int, not bool")
    count = as_index(count)
    if count < 0:
        raise ValueError(f"count must be 0 or more, not {format_number(count)}")
    return scan_body(body, (count,))
