from functools import _lru_cache_wrapper
from typing import Any, final

import numpy as np

@final
class Datatype:
    @property
    def name(self) -> str: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any] | None: ...
    @property
    def in_json(self) -> bool: ...
    def __new__(
        cls, name: str, itemsize: int, dtype: np.dtype[Any] | None, in_json: bool = True
    ) -> Datatype: ...

DATATYPES: dict[str, Datatype]
RAW_BF16: np.dtype[Any]
BY_DTYPE: dict[np.dtype[Any], Datatype]

bf16_dtype: _lru_cache_wrapper[np.dtype[Any] | None]

def datatype_of(dtype: np.dtype[Any]) -> Datatype | None: ...
