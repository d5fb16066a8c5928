"""BytesTensor: the elements of a BYTES tensor, standing in the wire bytes they came in."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import index
from operator import index as as_index
from pickle import PickleBuffer
from typing import Any, SupportsIndex, final

import numpy as np
from numpy.typing import NDArray

from . import _arrow_in, _arrow_out, _elements, _pack
from ._body import Body, same_bytes
from ._limits import Limits
from .errors import EncodeError, shape_text, subject

Shape = tuple[int, ...]
_NO_LIMITS = Limits()
_PREFIX_NBYTES = 4
MAX_RANK = _NO_LIMITS.max_rank  # numpy's
WIDEST_ITEMSIZE = 16  # that numpy would need for a BYTES element: one of StringDType


@final
class BytesTensor:
    """A sequence over length-prefixed wire bytes, of any number of dimensions, row-major.

    It holds the buffer that it stands in (a whole request body, perhaps: ``copy()`` lets go of it)
    and 8 bytes an element, the offsets of the validated scan. Elements become objects only when
    asked for, and each time anew. Indexing is numpy's: an element is ``bytes``; a run of whole
    rows is a view of the same memory; any other selection copies the chosen elements.

    Made by ``decode_request``, ``decode_response``, ``decode_bytes`` or from values through
    ``Tensor``; not by its constructor.
    """

    __slots__ = ("__weakref__", "_begin", "_body", "_end", "_shape", "_starts")

    def __new__(cls) -> BytesTensor:
        raise TypeError("a BytesTensor is made by decode_bytes, a decoded message or a Tensor")

    def __init_subclass__(cls) -> None:
        raise TypeError("BytesTensor cannot be subclassed")

    # --- making (for the modules above) ---

    @classmethod
    def scan(
        cls,
        body: Body,
        shape: Shape,
        offset: int,
        nbytes: int,
        limits: Limits,
        kind: str,
        name: str | None,
    ) -> BytesTensor:
        """Validate and take ``nbytes`` of ``body`` from ``offset`` as elements of ``shape``."""
        starts = _elements.scan(body, shape, offset, nbytes, limits, kind, name)
        return cls._over(body, starts, offset, offset + nbytes, shape)

    @classmethod
    def packed(cls, wire: bytes, shape: Shape) -> BytesTensor:
        """Take wire bytes that were just packed for ``shape``; scanned when first read."""
        return cls._over(Body(wire), None, 0, len(wire), shape)

    @classmethod
    def single(cls, body: Body, shape: Shape) -> BytesTensor:
        """The whole body as one element that came without its prefix (WIRE.md 5).

        Elements are told apart by offsets alone, so this one begins where its prefix would be.
        """
        begin = -_PREFIX_NBYTES
        return cls._over(body, np.array([begin]), begin, body.nbytes, shape)

    def reshape(self, shape: Shape) -> BytesTensor:
        """The same elements in another shape of as many, over the same memory.

        Raises ValueError for another number of elements, a negative dimension (none is worked
        out), and a shape that numpy could not have.
        """
        dims = as_dims(shape)
        if any(dim < 0 for dim in dims):
            raise ValueError(f"a shape has no negative dimensions, as {shape_text(dims)} has")
        if len(dims) > MAX_RANK:
            raise ValueError(f"a shape has at most {MAX_RANK} dimensions, not {len(dims)}")
        if prod(dims) != self.size:
            raise ValueError(f"{self.size} elements do not fill shape {shape_text(dims)}")
        if not is_addressable(dims, WIDEST_ITEMSIZE):
            raise ValueError(f"BYTES {shape_text(dims)} passes 2^63 - 1 bytes in numpy")
        return self._over(self._body, self._starts, self._begin, self._end, dims)

    @classmethod
    def _over(
        cls, body: Body, starts: NDArray[np.int64] | None, begin: int, end: int, shape: Shape
    ) -> BytesTensor:
        tensor = object.__new__(cls)
        tensor._body = body
        tensor._starts = starts
        tensor._begin = begin
        tensor._end = end
        tensor._shape = shape
        return tensor

    _shape: Shape
    _body: Body
    _starts: NDArray[np.int64] | None  # where each prefix lies in the body
    _begin: int
    _end: int

    def _offsets(self) -> NDArray[np.int64]:
        if self._starts is None:
            self._starts = _elements.scan(
                self._body, self.shape, self._begin, self.nbytes, _NO_LIMITS, "tensor", None
            )
        return self._starts

    # --- what it is ---

    @property
    def shape(self) -> Shape:
        """Dimensions; their product is the number of elements."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for dim in self.shape:
            size *= dim
        return size

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, length prefixes included."""
        return self._end - self._begin

    @property
    def wire(self) -> memoryview:
        """The wire bytes themselves, prefixes included: a view that holds the buffer.

        Only the element of a raw binary request, which came without a prefix, is copied for it.
        """
        if self._begin < 0:
            elements = [self.view(i) for i in range(self.size)]  # one; none in an empty slice
            return memoryview(_pack.pack(_pack.Objects(elements, self.shape, None)))
        return self._body.view(self._begin, self.nbytes)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a BYTES scalar")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<BytesTensor shape={list(self.shape)} nbytes={self.nbytes}>"

    def __eq__(self, other: object) -> bool:
        """Same shape and same elements, compared on the wire without making objects."""
        if not isinstance(other, BytesTensor):
            return NotImplemented
        return self.shape == other.shape and same_bytes(self.wire, other.wire)

    __hash__ = None  # type: ignore[assignment]  # the memory below may be written to

    # --- elements ---

    def __getitem__(self, index: Any) -> Any:
        """An element as ``bytes``, or a BytesTensor of the selection, as numpy would index."""
        if (type(index) is int or isinstance(index, np.integer)) and self.shape:
            return self._row(int(index))
        if isinstance(index, slice) and self.shape:
            start, stop, step = index.indices(self.shape[0])
            if step == 1:
                return self._rows(start, max(start, stop))
        chosen = np.arange(self.size).reshape(self.shape)[index]
        if not isinstance(chosen, np.ndarray):
            return self._element(int(chosen))
        return self._select(chosen)

    def _flat(self, index: int) -> int:
        size = self.size
        if not -size <= index < size:
            raise IndexError(f"element {index} is out of range: the tensor has {size}")
        return index + size if index < 0 else index

    def _element(self, flat: int) -> bytes:
        return _elements.element(self._body, self._offsets(), self._end, flat)

    def _row(self, index: int) -> Any:
        n_rows = self.shape[0]
        if not -n_rows <= index < n_rows:
            raise IndexError(f"index {index} is out of range for a dimension of {n_rows}")
        row = index + n_rows if index < 0 else index
        if len(self.shape) == 1:
            return self._element(row)
        row_size = self.size // n_rows
        return self._run(row * row_size, (row + 1) * row_size, self.shape[1:])

    def _rows(self, start: int, stop: int) -> BytesTensor:
        row_size = self.size // self.shape[0] if self.shape[0] else 0
        return self._run(start * row_size, stop * row_size, (stop - start, *self.shape[1:]))

    def _run(self, first: int, last: int, shape: Shape) -> BytesTensor:
        """Elements ``first`` up to ``last`` as a view of the same memory."""
        starts = self._offsets()
        begin = int(starts[first]) if first < len(starts) else self._end
        end = int(starts[last]) if last < len(starts) else self._end
        return self._over(self._body, starts[first:last], begin, end, shape)

    def _select(self, chosen: NDArray[np.intp]) -> BytesTensor:
        flat = np.ascontiguousarray(chosen.ravel(), np.int64)
        if flat.size and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
            return self._run(int(flat[0]), int(flat[0]) + flat.size, chosen.shape)
        wire = _elements.gather(self._body, self._offsets(), self._end, flat)
        return self.packed(wire, chosen.shape)

    def __iter__(self) -> Iterator[Any]:
        """Elements of a 1-D tensor, rows of any other, one at a time."""
        return (self[i] for i in range(len(self)))

    def view(self, index: int | tuple[int, ...]) -> memoryview:
        """One element's bytes without a copy: a flat index, or one index per dimension.

        The view holds the buffer and is writable when that is.
        """
        if isinstance(index, tuple):
            flat = int(np.ravel_multi_index(self._positive(index), self.shape))
        else:
            flat = self._flat(int(as_index(index)))
        starts = self._offsets()
        begin = int(starts[flat]) + _PREFIX_NBYTES
        end = int(starts[flat + 1]) if flat + 1 < len(starts) else self._end
        return self._body.view(begin, end - begin)

    def _positive(self, index: tuple[int, ...]) -> tuple[int, ...]:
        index = as_dims(index)
        if len(index) != len(self.shape):
            raise IndexError(f"{len(index)} indices for {len(self.shape)} dimensions")
        for i, dim in zip(index, self.shape, strict=True):
            if not -dim <= i < dim:
                raise IndexError(f"index {i} is out of range for a dimension of {dim}")
        return tuple(i % dim for i, dim in zip(index, self.shape, strict=True))

    # --- whole arrays ---

    def as_numpy(self, dtype: Any = object) -> NDArray[Any]:
        """A new array in ``shape``; every element is copied.

        ``object``: ``bytes`` objects. ``"S"``: fixed width, that of the longest element, padded
        with NULs; numpy takes trailing NULs of an element for padding and drops them. ElementError
        names one long element among many, which would make an array of more than 64 MiB that is
        more than 64 times the wire bytes.
        ``numpy.dtypes.StringDType()``: UTF-8 text, ElementError names an element that is not.
        """
        array: NDArray[Any]
        if dtype is object or dtype == np.dtype(object):
            array = _elements.objects(self._body, self._offsets(), self._end)
        elif isinstance(dtype, np.dtypes.StringDType):
            array = _elements.npy_strings(self._body, self._offsets(), self._end)
        elif np.dtype(dtype) == np.dtype("S"):
            array = _elements.fixed_width(self._body, self._offsets(), self._end)
        else:
            raise TypeError(f"BYTES become object, 'S' or StringDType() arrays, not {dtype!r}")
        return array.reshape(self.shape)

    def as_strings(self) -> NDArray[np.object_]:
        """A new object array of ``str`` in ``shape``; ElementError names one that is not UTF-8."""
        strings = _elements.strings(self._body, self._offsets(), self._end)
        return strings.reshape(self.shape)

    def tolist(self) -> Any:
        """The elements as ``bytes`` in nested lists (a scalar: the element itself)."""
        return self.as_numpy().tolist()

    def copy(self) -> BytesTensor:
        """The same elements in memory of their own; the old buffer is let go of."""
        return self._over_wire(bytes(self.wire), self.shape)

    @classmethod
    def _over_wire(cls, wire: Any, shape: Shape) -> BytesTensor:
        body = Body(wire)
        return cls.scan(body, shape, 0, body.nbytes, _NO_LIMITS, "tensor", None)

    @classmethod
    def _over_element(cls, element: Any, shape: Shape) -> BytesTensor:
        return cls.single(Body(element), (1,)).reshape(shape)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Its own bytes, not the body; from protocol 5 on a buffer that may go out of band.

        What is loaded stands in the buffer that arrived, which is scanned again.
        """
        over: Any = self._over_wire
        if self._begin < 0 and self.size:  # raw: its prefix would have to be made
            own, over = self.view(0), self._over_element
        else:
            own = self.wire
        return over, (PickleBuffer(own) if index(protocol) >= 5 else bytes(own), self.shape)

    def __arrow_c_schema__(self) -> Any:
        """Arrow's binary view (PyCapsule protocol)."""
        return _arrow_out.schema(False)

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        """The elements in row-major order as an Arrow array, whose data buffers are the body.

        Payload is not copied; 16 bytes an element are made beside it. The Arrow array holds the
        body until it is released, and sees what is written to a writable one. It is of binary
        view, or of string view where text of any kind is requested: then ElementError names an
        element that is not UTF-8. Arrow arrays have one dimension: the shape is not carried.
        """
        is_text = _arrow_out.wants_text(requested_schema)
        if is_text:
            _elements.check_utf8(self._body, self._offsets(), self._end)
        array = _arrow_out.array(self._body, self._offsets(), self._end)
        return _arrow_out.schema(is_text), array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """``numpy.asarray(tensor)``: an object array of ``bytes``."""
        if copy is False:
            raise ValueError("BYTES become a numpy array only by copying")
        return self.as_numpy(object if dtype is None else dtype)


def decode_bytes(buffer: Any, count: int | None = None) -> BytesTensor:
    """Validate a run of length-prefixed elements that fills ``buffer``: shape [count].

    ``count``: how many there must be; ``None``: as many as there are. Nothing is copied: the
    result holds ``buffer`` (any C-contiguous buffer of bytes).
    Raises ElementError (a truncated element), LayoutError (another count), TypeError, BufferError.
    """
    body = Body(buffer)
    if count is None:
        count = _elements.count(body, "buffer", None)
    if isinstance(count, bool):
        raise TypeError("count is an int, not bool")
    count = index(count)
    if count < 0:
        raise ValueError(f"count is 0 or more, not {count}")
    return BytesTensor.scan(body, (count,), 0, body.nbytes, _NO_LIMITS, "buffer", None)


def encode_bytes(values: Any) -> bytes:
    """Length-prefixed wire bytes of ``values`` in row-major order: one allocation, one copy.

    ``values``: nested lists or an object array of ``bytes``, ``str`` (as UTF-8), ``bytearray`` or
    ``memoryview``; a numpy ``S``, ``U`` or StringDType array (numpy drops the trailing NULs of
    ``S`` and ``U`` elements); an Arrow array or stream of bytes or text from any library with the
    PyCapsule protocol, without nulls, which is consumed; or a BytesTensor, whose wire bytes are
    copied as they are. Of an Arrow array everything is checked but the lengths of its buffers,
    which its producer alone knows.
    Raises EncodeError with the element that has no such form, TypeError for other types.
    """
    return pack(values, None)[0]


def encode_bytes_into(values: Any, buffer: Any) -> int:
    """Write what ``encode_bytes`` would return to the start of ``buffer``; returns its length.

    ``buffer``: a writable C-contiguous buffer, for callers that use memory again. Nothing is
    written when it is too small, which is an EncodeError with both numbers. Values may lie in the
    buffer: then they are packed into new memory first, and copied.
    """
    return _pack.pack_into(source(values, None)[0], buffer)


def pack(values: Any, name: str | None) -> tuple[bytes, Shape]:
    """Wire bytes and shape of anything that ``encode_bytes`` takes."""
    values, shape = source(values, name)
    return _pack.pack(values), shape


def source(values: Any, name: str | None) -> tuple[_pack.Source, Shape]:
    """What packs ``values``, and their shape."""
    if isinstance(values, BytesTensor):
        return _pack.Wire(values.wire, values.shape, name), values.shape
    if isinstance(values, list | tuple):
        shape, flat = leaves(values, name)
        return _pack.Objects(flat, shape, name), shape
    if is_arrow(values):
        return _arrow_in.source(values, name)
    if not isinstance(values, np.ndarray):
        raise TypeError(f"BYTES are lists or arrays of bytes or str, not {type(values).__name__}")
    if type(values) is not np.ndarray:
        check_not_masked(values, name)
        values = np.asarray(values)  # of a subclass only the memory counts
    kind = _SOURCES.get(values.dtype.kind)
    if kind is None:
        raise EncodeError(
            f"{subject('array', name)} of {values.dtype} is not BYTES: those are object, S, U and "
            f"StringDType arrays",
            tensor=name,
        )
    shape = values.shape
    if values.dtype.kind != "T":  # which has no byte order
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
    array = np.require(values, requirements=["C", "A"])  # the kernels read whole code points
    return kind(array, shape, name), shape


def is_arrow(values: Any) -> bool:
    """Whether ``values`` exports an Arrow array, or a stream of them."""
    return hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__")


def check_not_masked(values: Any, name: str | None) -> None:
    """Raise EncodeError for a masked array, whose mask would be lost."""
    if isinstance(values, np.ma.MaskedArray):
        raise EncodeError(
            f"{subject('tensor', name)} is a masked array, and the wire has no missing values",
            tensor=name,
        )


def as_dims(shape: Any) -> Shape:
    """Integers of any type as exactly ``int``, before anything is computed with them."""
    return tuple(int(index(dim)) for dim in shape)


def is_addressable(dims: Shape, itemsize: int) -> bool:
    """Whether the dimensions that are not 0, times ``itemsize``, stay below 2^63.

    The rule of the decoder, which holds for empty tensors, too: numpy computes this product.
    """
    return prod((dim for dim in dims if dim), start=itemsize) < 1 << 63


_SOURCES = {"O": _pack.Objects, "S": _pack.FixedWidth, "U": _pack.Unicode, "T": _pack.Strings}


def leaves(
    values: list[Any] | tuple[Any, ...], name: str | None, depth: int = 1
) -> tuple[Shape, list[Any]]:
    """The shape of nested lists, and their leaves in row-major order."""
    if type(values) is not list:  # a subclass may give other answers than its items
        values = list(values)
    if depth > MAX_RANK:
        raise EncodeError(
            f"{subject('list', name)} is nested deeper than {MAX_RANK} lists", tensor=name
        )
    if not values or not isinstance(values[0], list | tuple):
        return (len(values),), values
    flat: list[Any] = []
    inner: Shape | None = None
    for i, value in enumerate(values):
        if not isinstance(value, list | tuple):
            raise EncodeError(
                f"{subject('list', name)} is ragged: item {i} is no list", tensor=name
            )
        shape, items = leaves(value, name, depth + 1)
        if inner is not None and shape != inner:
            raise EncodeError(
                f"{subject('list', name)} is ragged: item {i} has shape {list(shape)}, those "
                f"before it {list(inner)}",
                tensor=name,
            )
        inner = shape
        flat += items
    assert inner is not None
    return (len(values), *inner), flat
