from typing import final

@final
class Limits:
    @property
    def max_header_nbytes(self) -> int: ...
    @property
    def max_tensors(self) -> int: ...
    @property
    def max_rank(self) -> int: ...
    @property
    def max_name_nbytes(self) -> int: ...
    @property
    def max_nesting(self) -> int: ...
    @property
    def max_parameters(self) -> int: ...
    @property
    def max_elements(self) -> int: ...
    @property
    def check_bool(self) -> bool: ...
    @property
    def bf16_as_uint16(self) -> bool: ...
    def __new__(
        cls,
        *,
        max_header_nbytes: int = 67108864,
        max_tensors: int = 4096,
        max_rank: int = 64,
        max_name_nbytes: int = 4096,
        max_nesting: int = 128,
        max_parameters: int = 1024,
        max_elements: int = 9223372036854775807,
        check_bool: bool = True,
        bf16_as_uint16: bool = False,
    ) -> Limits: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

DEFAULT_LIMITS: Limits
UNLIMITED: Limits
