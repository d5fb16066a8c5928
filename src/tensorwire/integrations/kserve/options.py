"""What a user can choose for KServe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..._codec.datatypes import Limits

UNLIMITED = 2**63 - 1


@dataclass(frozen=True)
class Options:
    """How arrays are delivered; see ``install``."""

    writable: bool = False
    aligned: bool = False
    bf16_as_uint16: bool = False

    @cached_property
    def limits(self) -> Limits:
        """For bodies with a header length."""
        return Limits(bf16_as_uint16=self.bf16_as_uint16)

    @cached_property
    def json_limits(self) -> Limits:
        """For bodies that are JSON as a whole, whose size KServe does not limit.

        What passes the limits that are left is read by KServe itself.
        """
        return Limits(
            max_header_nbytes=UNLIMITED,
            max_tensors=UNLIMITED,
            max_name_nbytes=UNLIMITED,
            bf16_as_uint16=self.bf16_as_uint16,
        )
