"""What a decoder accepts from a stranger."""

cimport cython

from operator import index

from ._wire cimport MAX_RANK

cdef object MOST = 2 ** 63 - 1
cdef object DEEPEST = 1000  # Python's own bound, and 400 KB of a thread's stack


@cython.final
cdef class Limits:
    """Bounds and choices of a decode call; it cannot be changed once made.

    What passes a bound raises HeaderError, or LayoutError for a shape. WIRE.md 11 has the reasons.

    ``max_header_nbytes``: JSON header, bytes (64 MiB, which is Triton's own default).
    ``max_tensors``: tensors in one message, and outputs asked for in one request (4096).
    ``max_rank``: dimensions of a tensor (64, where numpy ends).
    ``max_name_nbytes``: the name of a tensor or of an output asked for, UTF-8 bytes (4096).
    ``max_nesting``: lists and objects within each other, anywhere in the header (128; at most
    1000). A level takes up to 400 bytes of the thread's stack.
    ``max_elements``: elements of all tensors together, as their shapes say (2^63 - 1: those of a
    body are bounded by its bytes).
    ``check_bool``: refuse BOOL bytes other than 0 and 1, which break numpy's bool arrays.
    ``bf16_as_uint16``: deliver BF16 as raw ``<u2`` words, without the ml_dtypes package.
    """

    def __init__(
        self, *, max_header_nbytes=64 << 20, max_tensors=4096, max_rank=MAX_RANK,
        max_name_nbytes=4096, max_nesting=128, max_elements=MOST,
        check_bool=True, bf16_as_uint16=False,
    ):
        self.max_header_nbytes = bound("max_header_nbytes", max_header_nbytes, MOST)
        self.max_tensors = bound("max_tensors", max_tensors, MOST)
        self.max_rank = bound("max_rank", max_rank, MAX_RANK)
        self.max_name_nbytes = bound("max_name_nbytes", max_name_nbytes, MOST)
        self.max_nesting = bound("max_nesting", max_nesting, DEEPEST)
        self.max_elements = bound("max_elements", max_elements, MOST)
        self.check_bool = flag("check_bool", check_bool)
        self.bf16_as_uint16 = flag("bf16_as_uint16", bf16_as_uint16)

    def __repr__(self):
        return (
            f"Limits(max_header_nbytes={self.max_header_nbytes}, max_tensors={self.max_tensors}, "
            f"max_rank={self.max_rank}, max_name_nbytes={self.max_name_nbytes}, "
            f"max_nesting={self.max_nesting}, max_elements={self.max_elements}, "
            f"check_bool={self.check_bool}, bf16_as_uint16={self.bf16_as_uint16})"
        )


cdef Py_ssize_t bound(name, value, most) except -1:
    # As a Python int first, whatever integer type it has; a bool is taken for a mistake.
    number = int(index(value)) if hasattr(value, "__index__") else -1
    if isinstance(value, bool) or not 0 <= number <= most:
        raise ValueError(f"{name} is an int from 0 to {most}, not {value!r:.40}")
    return number


cdef bint flag(name, value) except -1:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is True or False, not {value!r}")
    return value
