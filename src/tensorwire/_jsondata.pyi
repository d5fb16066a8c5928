from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._datatypes import Datatype
from ._limits import Limits

def flatten(values: Any, kind: str, name: str) -> list[Any]: ...
def numbers(
    scalars: list[Any],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    limits: Limits,
    kind: str,
    name: str,
    datatype: Datatype,
) -> NDArray[Any]: ...
def texts(
    scalars: list[Any], shape: tuple[int, ...], limits: Limits, kind: str, name: str
) -> None: ...
