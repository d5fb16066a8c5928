from collections.abc import Callable
from typing import Any, NamedTuple

class Conversion(NamedTuple):
    accepted: str
    converted: str
    matches: Callable[[Any], bool]
    convert: Callable[[Any, str | None, bool], tuple[Any, Any]]
    source: Callable[[Any], Any] | None

CONVERSIONS: list[Conversion]

def encode_bytes(values: Any) -> bytes: ...
