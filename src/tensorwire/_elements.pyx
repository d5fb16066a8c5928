"""BYTES read: one validated walk over the length prefixes, then elements made when asked for."""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ._body cimport Body
from ._layout cimport Layout, measure
from ._limits cimport Limits
from ._npystring cimport (
    NpyString_acquire_allocator,
    NpyString_pack,
    NpyString_release_allocator,
    PyArray_StringDTypeObject,
    npy_packed_static_string,
    npy_string_allocator,
)
from ._utf8 cimport ALL_VALID, first_invalid
from ._walk cimport NONE, Walk, walk
from ._wire cimport PREFIX_NBYTES, WIDEST_ITEMSIZE, store_le32

import numpy as np

from ._datatypes import BYTES
from .errors import ElementError, LayoutError, shape_text, subject

cnp.import_array()

# Scans of so many elements let other threads run meanwhile (benchmarks/bench_gil.py): about 1 ms.
cdef uint64_t release_gil_from = 500_000


def set_release_gil_from(uint64_t n_elements):
    """For the benchmark that chose the number; returns the one before."""
    global release_gil_from
    before, release_gil_from = release_gil_from, n_elements
    return before


cdef enum:
    # numpy's `S` arrays may be so much larger than the wire bytes, and at least so large.
    MAX_PADDING = 64
    SMALL_NBYTES = 64 << 20


cdef inline uint64_t as_if_close(uint64_t n_elements, uint64_t nbytes) noexcept nogil:
    """How many elements of a few bytes take as long: a step to a far one waits for memory.

    From 16 bytes an element on the time goes with the bytes, from 2 KiB on with the elements again.
    """
    return max(n_elements, 128 * min(n_elements, nbytes // 2048))


cdef void walk_politely(
    Walk* walked, const unsigned char* data, uint64_t nbytes,
    int64_t* starts, uint64_t capacity, int64_t base,
) noexcept:
    """`walk`, without the GIL when it takes long. The caller's Body pins the memory."""
    if as_if_close(capacity - walked.n_elements, nbytes) < release_gil_from:
        walk(walked, data, nbytes, starts, capacity, base)
    else:
        with nogil:
            walk(walked, data, nbytes, starts, capacity, base)


def scan(Body body not None, tuple shape not None, Py_ssize_t offset, Py_ssize_t nbytes,
         Limits limits not None, kind, name):
    """Validate a BYTES tensor of `shape` in `nbytes` bytes from `offset` of the body.

    Returns where each element's prefix begins in the body: int64 [n_elements], read-only, 8 bytes
    an element, allocated only after the bytes are known to have room for so many prefixes.
    Raises LayoutError (coverage, element count), ElementError (a truncated element).
    """
    cdef Layout layout
    cdef Walk walked
    assert 0 <= offset <= body.nbytes and nbytes >= 0
    measure(&layout, shape, WIDEST_ITEMSIZE, limits, kind, name, BYTES)
    body.check_extent(offset, nbytes, kind, name)
    if layout.n_elements > <uint64_t>nbytes // PREFIX_NBYTES:
        raise too_few_bytes(shape, layout.n_elements, nbytes, offset, kind, name)
    cdef cnp.npy_intp n_elements = <cnp.npy_intp>layout.n_elements
    cdef cnp.ndarray starts = cnp.PyArray_EMPTY(1, &n_elements, cnp.NPY_INT64, 0)
    walked.position = walked.n_elements = 0
    walk_politely(&walked, body.data + offset, nbytes,
                  <int64_t*>cnp.PyArray_DATA(starts), layout.n_elements, offset)
    if walked.fault != NONE:
        raise truncated_element(&walked, offset, nbytes, kind, name)
    if walked.n_elements < layout.n_elements:
        raise too_few_elements(shape, layout.n_elements, &walked, offset, kind, name)
    if walked.position < <uint64_t>nbytes:
        raise too_many_bytes(shape, &walked, nbytes, offset, kind, name)
    starts.setflags(write=False)
    return starts


def count(Body body not None, kind, name):
    """How many BYTES elements the whole body holds; nothing is allocated.

    Raises ElementError (a truncated element).
    """
    cdef Walk walked
    cdef uint64_t more_than_fit = <uint64_t>body.nbytes // PREFIX_NBYTES + 1
    walked.position = walked.n_elements = 0
    walk_politely(&walked, body.data, body.nbytes, NULL, more_than_fit, 0)
    if walked.fault != NONE:
        raise truncated_element(&walked, 0, body.nbytes, kind, name)
    return walked.n_elements


def nbytes_of(Body body not None, Py_ssize_t offset, Py_ssize_t n_elements, kind, name):
    """How many bytes from `offset` on the next `n_elements` elements take, whatever is behind them.

    Raises ElementError (a truncated element, or one that is not there).
    """
    cdef Walk walked
    assert 0 <= offset <= body.nbytes and n_elements >= 0
    walked.position = walked.n_elements = 0
    walk_politely(&walked, body.data + offset, body.nbytes - offset, NULL, n_elements, 0)
    if walked.n_elements < <uint64_t>n_elements:
        raise truncated_element(&walked, offset, body.nbytes - offset, kind, name)
    return walked.position


cdef truncated_element(Walk* walked, Py_ssize_t offset, Py_ssize_t nbytes, kind, name):
    element, position = walked.n_elements, offset + walked.position
    of = f" of {subject(kind, name)}" if name is not None else ""
    where = f"{kind if name is None else 'body'} byte {position}"
    remaining = nbytes - walked.position
    if remaining < PREFIX_NBYTES:
        return ElementError(
            f"element {element}{of} is truncated: a length prefix takes 4 bytes, {remaining} "
            f"remain ({where})",
            tensor=name, element=element, offset=position, expected=4, actual=remaining,
        )
    remaining -= PREFIX_NBYTES
    return ElementError(
        f"element {element}{of} is truncated: its prefix declares {walked.declared} bytes, "
        f"{remaining} remain ({where})",
        tensor=name, element=element, offset=position, expected=walked.declared, actual=remaining,
    )


cdef too_few_bytes(shape, n_elements, nbytes, offset, kind, name):
    return LayoutError(
        f"{subject(kind, name)} does not match its shape: BYTES {shape_text(shape)} needs at least "
        f"{PREFIX_NBYTES * n_elements} bytes, there are {nbytes}",
        tensor=name, offset=offset, expected=PREFIX_NBYTES * n_elements, actual=nbytes,
    )


cdef too_few_elements(shape, n_elements, Walk* walked, offset, kind, name):
    return LayoutError(
        f"{subject(kind, name)} does not match its shape: BYTES {shape_text(shape)} needs "
        f"{n_elements} elements, its bytes hold {walked.n_elements}",
        tensor=name, element=walked.n_elements, offset=offset + walked.position,
        expected=n_elements, actual=walked.n_elements,
    )


cdef too_many_bytes(shape, Walk* walked, nbytes, offset, kind, name):
    position = offset + walked.position
    return LayoutError(
        f"{subject(kind, name)} does not match its shape: the {walked.n_elements} elements of "
        f"BYTES {shape_text(shape)} take {walked.position} bytes, there are {nbytes} "
        f"({kind if name is None else 'body'} byte {position})",
        tensor=name, element=walked.n_elements, offset=position,
        expected=walked.position, actual=nbytes,
    )


# Below: elements that were scanned. `starts` (int64, from scan) says where each prefix lies in the
# body and `end` where the last element ends; lengths are their differences, never read again.

def element(Body body not None, cnp.ndarray starts not None, Py_ssize_t end, Py_ssize_t i):
    """Element `i` as `bytes`, copied."""
    if not 0 <= i < starts.shape[0]:
        raise IndexError(f"element {i} is out of range: there are {starts.shape[0]}")
    cdef const int64_t* offsets = <const int64_t*>cnp.PyArray_DATA(starts)
    cdef Element found = element_at(body, offsets, starts.shape[0], end, i)
    return PyBytes_FromStringAndSize(<const char*>found.data, found.nbytes)


def objects(Body body not None, cnp.ndarray starts not None, Py_ssize_t end):
    """The elements as `bytes`, copied: object array [n_elements]."""
    cdef Py_ssize_t n_elements = starts.shape[0]
    cdef const int64_t* offsets = <const int64_t*>cnp.PyArray_DATA(starts)
    cdef cnp.ndarray array = cnp.PyArray_SimpleNew(1, starts.shape, cnp.NPY_OBJECT)
    cdef PyObject** items = <PyObject**>cnp.PyArray_DATA(array)  # all NULL, which numpy owns
    cdef Element element
    cdef Py_ssize_t i
    for i in range(n_elements):
        element = element_at(body, offsets, n_elements, end, i)
        give(items + i, PyBytes_FromStringAndSize(<const char*>element.data, element.nbytes))
    return array


def strings(Body body not None, cnp.ndarray starts not None, Py_ssize_t end):
    """The elements as `str`, decoded from strict UTF-8: object array [n_elements].

    Raises ElementError that names the first element that is not UTF-8.
    """
    cdef Py_ssize_t n_elements = starts.shape[0]
    cdef const int64_t* offsets = <const int64_t*>cnp.PyArray_DATA(starts)
    cdef cnp.ndarray array = cnp.PyArray_SimpleNew(1, starts.shape, cnp.NPY_OBJECT)
    cdef PyObject** items = <PyObject**>cnp.PyArray_DATA(array)
    cdef Element element
    cdef Py_ssize_t i
    for i in range(n_elements):
        element = element_at(body, offsets, n_elements, end, i)
        try:
            give(items + i, PyUnicode_DecodeUTF8(
                <const char*>element.data, element.nbytes, NULL))
        except UnicodeDecodeError:
            raise not_utf8(body, i, offsets[i] + PREFIX_NBYTES, element.nbytes) from None
    return array


cdef inline void give(PyObject** slot, object item) noexcept:
    """Move one reference to `item` into an array's slot that is NULL."""
    Py_INCREF(item)
    slot[0] = <PyObject*>item


cdef not_utf8(Body body, element, offset, nbytes):
    reason, at = "it has changed", 0  # unless the codec finds the fault again
    try:
        str(body.view(offset, nbytes), "utf-8")
    except UnicodeDecodeError as error:
        reason, at = error.reason, error.start
    return ElementError(
        f"element {element} is not UTF-8: {reason} at its byte {at} (body byte {offset + at})",
        element=element, offset=offset + at,
    )


cdef enum PackFault:
    PACKED
    NOT_UTF8
    NO_MEMORY


cdef struct Packing:
    Py_ssize_t element  # where it stopped, for a fault
    PackFault fault


cdef Packing pack_strings(
    npy_string_allocator* allocator, char* packed, Py_ssize_t itemsize,
    const unsigned char* data, const int64_t* offsets, Py_ssize_t n_elements, Py_ssize_t end,
) noexcept nogil:
    """Fill `packed`, the items of a StringDType array, with the elements, which must be UTF-8."""
    cdef Packing packing
    cdef Element element
    cdef Py_ssize_t i
    packing.fault = PACKED
    packing.element = 0
    for i in range(n_elements):
        packing.element = i
        element = element_in(data, offsets, n_elements, end, i)
        if first_invalid(element.data, element.nbytes) != ALL_VALID:
            packing.fault = NOT_UTF8
            break
        if NpyString_pack(
            allocator, <npy_packed_static_string*>(packed + i * itemsize),
            <const char*>element.data, element.nbytes,
        ) != 0:
            packing.fault = NO_MEMORY
            break
    return packing


def npy_strings(Body body not None, cnp.ndarray starts not None, Py_ssize_t end):
    """The elements as a numpy StringDType array [n_elements], filled without `str` objects.

    The GIL is released meanwhile. Raises ElementError that names the first element that is not
    UTF-8.
    """
    cdef Py_ssize_t n_elements = starts.shape[0]
    cdef const int64_t* offsets = <const int64_t*>cnp.PyArray_DATA(starts)
    cdef cnp.ndarray array = np.empty(n_elements, np.dtypes.StringDType())
    cdef char* packed = <char*>cnp.PyArray_DATA(array)
    cdef Py_ssize_t itemsize = cnp.PyArray_ITEMSIZE(array)
    cdef PyArray_StringDTypeObject* descr = <PyArray_StringDTypeObject*>cnp.PyArray_DESCR(array)
    cdef const unsigned char* data = body.data
    cdef npy_string_allocator* allocator
    cdef Packing packing
    cdef Element element
    with nogil:
        allocator = NpyString_acquire_allocator(descr)
        packing = pack_strings(allocator, packed, itemsize, data, offsets, n_elements, end)
        NpyString_release_allocator(allocator)
    if packing.fault == PACKED:
        return array
    element = element_at(body, offsets, n_elements, end, packing.element)
    if packing.fault == NOT_UTF8:
        raise not_utf8(
            body, packing.element, offsets[packing.element] + PREFIX_NBYTES, element.nbytes)
    raise MemoryError(
        f"numpy has no room for element {packing.element} of {element.nbytes} bytes")


def check_utf8(Body body not None, cnp.ndarray starts not None, Py_ssize_t end):
    """Raise ElementError that names the first element that is not UTF-8."""
    cdef Py_ssize_t n_elements = starts.shape[0]
    cdef const int64_t* offsets = <const int64_t*>cnp.PyArray_DATA(starts)
    cdef Element element
    cdef Py_ssize_t i
    for i in range(n_elements):
        element = element_at(body, offsets, n_elements, end, i)
        if first_invalid(element.data, element.nbytes) != ALL_VALID:
            raise not_utf8(body, i, offsets[i] + PREFIX_NBYTES, element.nbytes)


def fixed_width(Body body not None, cnp.ndarray starts not None, Py_ssize_t end):
    """The elements as numpy `S`, copied and padded with NULs to the widest: array [n_elements].

    Raises ElementError when one of them makes the array many times larger than the wire bytes.
    """
    cdef Py_ssize_t n_elements = starts.shape[0]
    cdef const int64_t* offsets = <const int64_t*>cnp.PyArray_DATA(starts)
    cdef Py_ssize_t width = 1  # numpy has no S0 arrays
    cdef Py_ssize_t widest = 0
    cdef Element element
    cdef Py_ssize_t i
    for i in range(n_elements):
        element = element_at(body, offsets, n_elements, end, i)
        if element.nbytes > width:
            width, widest = element.nbytes, i
    # n_elements is at most a quarter of the wire bytes, and those times 64 are no 2^63.
    if n_elements > 0 and width > max(SMALL_NBYTES, MAX_PADDING * (end - offsets[0])) // n_elements:
        raise too_wide(widest, width, n_elements)
    cdef cnp.ndarray array = np.zeros(n_elements, f"S{width}")
    cdef char* target = <char*>cnp.PyArray_DATA(array)
    for i in range(n_elements):
        element = element_at(body, offsets, n_elements, end, i)
        memcpy(target + i * width, element.data, element.nbytes)
    return array


cdef too_wide(element, width, n_elements):
    return ElementError(
        f"element {element} is too long for numpy's S: it would make each of {n_elements} elements "
        f"{width} bytes wide",
        element=element, actual=width,
    )


def gather(Body body not None, cnp.ndarray starts not None, Py_ssize_t end, int64_t[::1] chosen):
    """The wire bytes of the `chosen` elements (indices within range), copied one after another."""
    cdef Py_ssize_t n_elements = starts.shape[0]
    cdef const int64_t* offsets = <const int64_t*>cnp.PyArray_DATA(starts)
    cdef Py_ssize_t nbytes = 0
    cdef Element element
    cdef Py_ssize_t i
    for i in range(chosen.shape[0]):
        element = element_at(body, offsets, n_elements, end, chosen[i])
        nbytes += PREFIX_NBYTES + element.nbytes
    wire = PyBytes_FromStringAndSize(NULL, nbytes)
    cdef unsigned char* target = <unsigned char*>PyBytes_AS_STRING(wire)
    for i in range(chosen.shape[0]):
        element = element_at(body, offsets, n_elements, end, chosen[i])
        # The prefix is written from the offsets: in the body it may have changed since the scan.
        store_le32(target, <uint32_t>element.nbytes)
        memcpy(target + PREFIX_NBYTES, element.data, element.nbytes)
        target += PREFIX_NBYTES + element.nbytes
    return wire
