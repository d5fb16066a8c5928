from typing import Any

from numpy.typing import NDArray

from ._datatypes import Datatype

def numbers(scalars: list[Any], datatype: Datatype, name: str) -> NDArray[Any]: ...
