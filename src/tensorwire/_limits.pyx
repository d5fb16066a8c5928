"""What a decoder accepts from a stranger."""

cimport cython

from ._wire cimport MAX_RANK


@cython.final
cdef class Limits:
    """Bounds and choices of a decode call; it cannot be changed once made.

    ``max_header_nbytes``: JSON header, bytes (64 MiB, which is Triton's own default).
    ``max_tensors``: tensors in one message, and outputs asked for in one request.
    ``max_rank``: dimensions of a tensor; numpy ends at 64.
    ``check_bool``: refuse BOOL bytes other than 0 and 1, which break numpy's bool arrays.
    ``bf16_as_uint16``: deliver BF16 as raw ``<u2`` words, without the ml_dtypes package.
    """

    def __init__(
        self, *, max_header_nbytes=64 << 20, max_tensors=4096, max_rank=MAX_RANK,
        check_bool=True, bf16_as_uint16=False,
    ):
        self.max_header_nbytes = bound("max_header_nbytes", max_header_nbytes, 2 ** 63 - 1)
        self.max_tensors = bound("max_tensors", max_tensors, 2 ** 63 - 1)
        self.max_rank = bound("max_rank", max_rank, MAX_RANK)
        self.check_bool = flag("check_bool", check_bool)
        self.bf16_as_uint16 = flag("bf16_as_uint16", bf16_as_uint16)

    def __repr__(self):
        return (
            f"Limits(max_header_nbytes={self.max_header_nbytes}, max_tensors={self.max_tensors}, "
            f"max_rank={self.max_rank}, check_bool={self.check_bool}, "
            f"bf16_as_uint16={self.bf16_as_uint16})"
        )


cdef Py_ssize_t bound(name, value, most) except -1:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is an int from 0 to {most}, not {value!r}")
    return value


cdef bint flag(name, value) except -1:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is True or False, not {value!r}")
    return value
