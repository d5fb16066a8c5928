"""What a decoder accepts from a stranger."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RANK = 64  # numpy's NPY_MAXDIMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and choices of a decode call.

    ``max_header_nbytes``: JSON header, bytes (Triton's own default).
    ``max_tensors``: tensors in one message, and outputs in one request.
    ``max_rank``: dimensions of a tensor; numpy ends at 64.
    ``check_bool``: refuse BOOL bytes other than 0 and 1, which break numpy's bool arrays.
    ``bf16_as_uint16``: deliver BF16 as raw ``<u2`` words, without the ml_dtypes package.
    """

    max_header_nbytes: int = 64 << 20
    max_tensors: int = 4096
    max_rank: int = MAX_RANK
    check_bool: bool = True
    bf16_as_uint16: bool = False

    def __post_init__(self) -> None:
        for name in ("max_header_nbytes", "max_tensors", "max_rank"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is a count of 0 or more, not {value!r}")
        if self.max_rank > MAX_RANK:
            raise ValueError(f"max_rank is at most {MAX_RANK}, as numpy has no more dimensions")
