"""Shapes as tuples of Python numbers, which may be anything: measured, or rejected."""

from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport uint64_t

from ._datatypes cimport Datatype
from ._limits cimport Limits
from ._wire cimport WIDEST_ITEMSIZE

from operator import index

from .errors import EncodeError, LayoutError, shape_text, subject


cdef int measure(
    Layout* layout, tuple shape, uint64_t itemsize, Limits limits, kind, name, Datatype datatype
) except -1:
    """Fill `layout`, or raise the LayoutError that says what is wrong with `shape`.

    The rank stays within the 64 dimensions that Layout has room for, because Limits allows no more.
    """
    cdef int overflow = 0
    cdef long long dim
    cdef Py_ssize_t axis
    cdef Py_ssize_t rank = len(shape)
    if rank > limits.max_rank:
        raise LayoutError(
            f"{subject(kind, name)} has {rank} dimensions, at most {limits.max_rank} are accepted",
            tensor=name, expected=limits.max_rank, actual=rank)
    for axis in range(rank):
        dim = PyLong_AsLongLongAndOverflow(shape[axis], &overflow)
        if dim < 0 and shape[axis] < 0:  # -1 stands for an overflow, too
            raise LayoutError(
                f"{subject(kind, name)} has a negative dimension: shape {shape_text(shape)}",
                tensor=name, expected=0, actual=shape[axis])
        if overflow != 0:
            raise too_large(shape, kind, name, datatype)
        layout.dims[axis] = dim
    layout.rank = <int>rank
    if not count_elements(layout, itemsize):
        raise too_large(shape, kind, name, datatype)
    return 0


cdef tuple shape_to_send(tuple shape, Datatype datatype, name):
    """The shape of a tensor as exact ints, after the checks that a decoder makes of it.

    The rules are those of `measure`, whether there are data or not. Raises EncodeError that names
    the tensor; TypeError when `shape` is None or has a dimension that is not an integer.
    """
    cdef uint64_t span = datatype.itemsize or WIDEST_ITEMSIZE
    cdef int overflow = 0
    cdef long long dim
    cdef Py_ssize_t axis, rank
    if shape is None:
        raise TypeError(f"the shape of tensor {name!r} is None, not a tuple of ints")
    rank = len(shape)
    if rank > MAX_RANK:
        raise EncodeError(
            f"tensor {name!r} has {rank} dimensions, numpy has {MAX_RANK}",
            tensor=name, expected=MAX_RANK, actual=rank)
    for axis in range(rank):
        if type(shape[axis]) is not int:
            return shape_to_send(as_ints(shape, name), datatype, name)
        dim = PyLong_AsLongLongAndOverflow(shape[axis], &overflow)
        if overflow < 0 or (overflow == 0 and dim < 0):
            raise EncodeError(
                f"tensor {name!r} has a negative dimension: {shape_text(shape)}",
                tensor=name, expected=0, actual=shape[axis])
        if overflow > 0 or (dim > 0 and not multiply(&span, <uint64_t>dim)):
            raise EncodeError(
                f"tensor {name!r} is too large to address: {datatype.name} {shape_text(shape)} "
                f"passes 2^63 - 1 bytes", tensor=name, expected=2 ** 63 - 1)
    return shape


cdef tuple as_ints(tuple shape, name):
    try:
        return tuple([int(index(dim)) for dim in shape])
    except TypeError as error:
        raise TypeError(f"the shape of tensor {name!r} is not a tuple of ints: {error}") from None


cdef too_large(shape, kind, name, Datatype datatype):
    return LayoutError(
        f"{subject(kind, name)} is too large to address: {datatype.name} {shape_text(shape)} "
        f"passes 2^63 - 1 bytes",
        tensor=name, expected=2 ** 63 - 1,
    )
