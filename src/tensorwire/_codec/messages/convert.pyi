from collections.abc import Callable
from typing import Any, NamedTuple

class Kind(NamedTuple):
    accepted: str
    converted: str
    matches: Callable[[Any], bool]
    convert: Callable[[Any, str | None, bool], tuple[Any, Any]]

KINDS: list[Kind]

def encode_bytes(values: Any) -> bytes: ...
