"""What a user can choose for KServe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..._limits import Limits


@dataclass(frozen=True)
class Options:
    """How arrays are delivered; see ``install``."""

    writable: bool = False
    aligned: bool = False
    bf16_as_uint16: bool = False

    @cached_property
    def limits(self) -> Limits:
        """For the decoder."""
        return Limits(bf16_as_uint16=self.bf16_as_uint16)
