from collections.abc import Iterable

from typing_extensions import disjoint_base

from .._codec.messages import Frame

FRAMING_HEADERS: tuple[str, ...]

@disjoint_base
class Framing:
    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None: ...
    @property
    def header_length(self) -> int | None: ...
    @property
    def content_length(self) -> int | None: ...
    @property
    def encoding(self) -> bytes: ...

def frame_headers(frame: Frame) -> list[tuple[bytes, bytes]]: ...
def frame_head(frame: Frame) -> bytes: ...
