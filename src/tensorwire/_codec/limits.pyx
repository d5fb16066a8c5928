"""The limits of a message, and the errors of messages that exceed them (WIRE.md 11)."""

cimport cython
from libc.stdint cimport INT64_MAX, uint64_t

from .wire cimport MAX_RANK

from functools import partial
from operator import index

from .signatures import constructor_signature

from ..errors import SUBJECT, EncodeError, HeaderError, LayoutError, format_count, format_number


@cython.final
cdef class Limits:
    """The limits and options of a decode or encode call. An instance is immutable.

    When decoding, a message that exceeds ``max_rank`` or ``max_elements`` raises LayoutError, and
    one that exceeds another limit HeaderError. When encoding, it raises EncodeError, and the
    options ``check_bool`` and ``bf16_as_uint16`` are not used. No limit applies to the encoders of
    ``tensorwire.grpc``. WIRE.md 11 gives the reason for each limit.

    Parameters
    ----------
    max_header_nbytes : int, default 64 MiB
        Maximum size of the JSON header in bytes, or of a gRPC message besides its tensors. The
        default is also Triton's limit for JSON.
    max_tensors : int, default 4096
        Maximum number of tensors in a message, of requested outputs in a request, and of raw
        contents in a gRPC message.
    max_rank : int, default 64
        Maximum number of dimensions of a tensor, from 0 to 64. numpy does not support more.
    max_name_nbytes : int, default 4096
        Maximum size of the name of a tensor or requested output, in bytes of UTF-8.
    max_nesting : int, default 128
        Maximum nesting depth of lists and objects in the header, from 0 to 1000. Each level takes
        up to 400 bytes of the thread's stack. It does not apply to gRPC messages.
    max_parameters : int, default 1024
        Maximum number of values in all ``parameters`` of a message together, including the items of
        lists and objects in them. Each becomes a Python object.
    max_elements : int, default 2**63 - 1
        Maximum number of elements of all tensors of a message together, according to their shapes.
        With the default, only the size of the body limits it.
    check_bool : bool, default True
        Whether to reject bytes other than 0 and 1 in BOOL tensors. numpy does not support them.
    bf16_as_uint16 : bool, default False
        Whether to return BF16 tensors as arrays of ``<u2``. This does not require ml_dtypes.

    Raises
    ------
    ValueError
        A limit is not an int within its range.
    TypeError
        An option is not a bool.

    Examples
    --------
    >>> import tensorwire as tw
    >>> limits = tw.Limits(max_header_nbytes=10)
    >>> tw.decode_request(b'{"inputs":[]}', limits=limits)
    Traceback (most recent call last):
    tensorwire.errors.HeaderError: the JSON header is 13 bytes long; the limit is 10
    """

    __signature__ = constructor_signature(
        "*, max_header_nbytes: int = 67108864, max_tensors: int = 4096, max_rank: int = 64, "
        "max_name_nbytes: int = 4096, max_nesting: int = 128, max_parameters: int = 1024, "
        "max_elements: int = 9223372036854775807, check_bool: bool = True, "
        "bf16_as_uint16: bool = False"
    )

    def __cinit__(
        self, *, max_header_nbytes=64 << 20, max_tensors=4096, max_rank=MAX_RANK,
        max_name_nbytes=4096, max_nesting=128, max_parameters=1024, max_elements=INT64_MAX,
        check_bool=True, bf16_as_uint16=False,
    ):
        self.max_header_nbytes = checked_limit("max_header_nbytes", max_header_nbytes, INT64_MAX)
        self.max_tensors = checked_limit("max_tensors", max_tensors, INT64_MAX)
        self.max_rank = checked_limit("max_rank", max_rank, MAX_RANK)
        self.max_name_nbytes = checked_limit("max_name_nbytes", max_name_nbytes, INT64_MAX)
        self.max_nesting = checked_limit("max_nesting", max_nesting, MAX_NESTING)
        self.max_parameters = checked_limit("max_parameters", max_parameters, INT64_MAX)
        self.max_elements = checked_limit("max_elements", max_elements, INT64_MAX)
        self.check_bool = checked_option("check_bool", check_bool)
        self.bf16_as_uint16 = checked_option("bf16_as_uint16", bf16_as_uint16)

    def __eq__(self, other):
        if not isinstance(other, Limits):
            return NotImplemented
        return limits_as_tuple(self) == limits_as_tuple(<Limits>other)

    def __hash__(self):
        return hash(limits_as_tuple(self))

    def __reduce__(self):
        # The constructor checks the values: with a max_rank above 64, a Layout would overflow.
        return _unpickled, limits_as_tuple(self)

    def __repr__(self):
        rows = zip(FIELDS, limits_as_tuple(self), limits_as_tuple(Limits()))
        changed = []
        for name, value, default in rows:
            if value != default:
                changed.append(f"{name}={value}")
        return f"Limits({', '.join(changed)})"


cdef tuple FIELDS = (
    "max_header_nbytes", "max_tensors", "max_rank", "max_name_nbytes", "max_nesting",
    "max_parameters", "max_elements", "check_bool", "bf16_as_uint16")


cdef tuple limits_as_tuple(Limits limits):
    return tuple(map(partial(getattr, limits), FIELDS))


DEFAULT_LIMITS = Limits()

UNLIMITED = Limits(
    max_header_nbytes=INT64_MAX, max_tensors=INT64_MAX, max_name_nbytes=INT64_MAX,
    max_parameters=INT64_MAX)
"""For messages whose size another program limits: the receiver, or KServe and MLServer."""


def _unpickled(*values):
    return Limits(**dict(zip(FIELDS, values, strict=True)))


cdef Py_ssize_t checked_limit(name, value, largest) except -1:
    # Other integer types are converted before the comparison. A bool is probably a mistake.
    number = index(value) if hasattr(value, "__index__") else -1
    if isinstance(value, bool) or not 0 <= number <= largest:
        actual = format_number(value) if type(value) is int else type(value).__name__
        raise ValueError(f"{name} must be an int from 0 to {largest}, not {actual}")
    return number


cdef bint checked_option(name, value) except -1:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


# --- the errors of the checks in limits.pxd ---


cdef int raise_rank(Py_ssize_t rank, Py_ssize_t max_rank, Way way) except -1:
    raise (EncodeError if way == ENCODING else LayoutError)(
        f"{SUBJECT} has {format_count('dimension', rank)}; the limit is {max_rank}",
        expected=max_rank, actual=rank)


cdef int raise_name_nbytes(Py_ssize_t nbytes, Limits limits, Way way) except -1:
    raise (EncodeError if way == ENCODING else HeaderError)(
        f"the name of {SUBJECT} is {format_count('byte', nbytes)} long; the limit is "
        f"{limits.max_name_nbytes}", expected=limits.max_name_nbytes, actual=nbytes)


cdef int raise_n_elements(uint64_t n_elements, Limits limits, Way way) except -1:
    raise (EncodeError if way == ENCODING else LayoutError)(
        f"the message has {format_count('element', n_elements)} up to {SUBJECT}; the limit is "
        f"{limits.max_elements}", expected=limits.max_elements, actual=n_elements)


cdef int raise_n_entries(str kind, Limits limits, Way way, Py_ssize_t offset) except -1:
    raise (EncodeError if way == ENCODING else HeaderError)(
        f"the message has more than {format_count(kind, limits.max_tensors)}, which is the limit",
        expected=limits.max_tensors, actual=limits.max_tensors + <object>1,
        offset=None if way == ENCODING else offset)
