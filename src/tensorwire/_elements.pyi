from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._body import Body
from ._limits import Limits

Offsets = NDArray[np.int64]

def scan(
    body: Body,
    shape: tuple[int, ...],
    offset: int,
    nbytes: int,
    limits: Limits,
    kind: str,
    name: str | None,
) -> Offsets: ...
def scan_all(body: Body, kind: str, name: str | None) -> Offsets: ...
def element(body: Body, starts: Offsets, end: int, i: int) -> bytes: ...
def objects(body: Body, starts: Offsets, end: int) -> NDArray[np.object_]: ...
def strings(body: Body, starts: Offsets, end: int) -> NDArray[np.object_]: ...
def fixed_width(body: Body, starts: Offsets, end: int) -> NDArray[np.bytes_]: ...
def gather(body: Body, starts: Offsets, end: int, chosen: NDArray[Any]) -> bytes: ...
