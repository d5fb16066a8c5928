from typing import final

@final
class Chunk: ...

@final
class Stream: ...

@final
class ArrowType: ...

@final
class Received: ...

@final
class ChunkMemory:
    def __buffer__(self, flags: int, /) -> memoryview: ...
