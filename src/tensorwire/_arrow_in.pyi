from typing import Any, final

from ._pack import Source

@final
class ArrowSource(Source): ...

def source(values: Any, name: str | None) -> tuple[ArrowSource, tuple[int]]: ...
