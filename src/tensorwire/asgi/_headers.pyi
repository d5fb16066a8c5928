from collections.abc import Iterable

from .._codec.messages import Frame

def parse_framing(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[int | None, int | None, bytes]: ...
def frame_headers(frame: Frame) -> list[tuple[bytes, bytes]]: ...
