from typing import final

@final
class Chunk: ...

@final
class Stream: ...

@final
class Received: ...
