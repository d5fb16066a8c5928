from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from numpy.typing import NDArray

from .bytes_tensor import BytesTensor

Data = NDArray[Any] | BytesTensor | None
Buffer = bytes | memoryview

@final
class Tensor:
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any]
    binary: bool
    data: Data
    def __init__(
        self,
        name: str,
        data: Any,
        *,
        datatype: str | None = None,
        shape: Sequence[int] | None = None,
        parameters: Mapping[str, Any] | None = None,
        binary: bool = True,
    ) -> None: ...
    def as_numpy(self, *, aligned: bool = False, writable: bool = False) -> NDArray[Any]: ...
    def __arrow_c_schema__(self) -> Any: ...
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class RequestedOutput:
    name: str
    binary: bool | None
    parameters: dict[str, Any]
    def __init__(
        self,
        name: str,
        *,
        binary: bool | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None: ...

@final
class InferRequest:
    inputs: list[Tensor]
    outputs: list[RequestedOutput] | None
    id: str | None
    model_name: str | None
    model_version: str | None
    parameters: dict[str, Any]
    def __init__(
        self,
        inputs: Iterable[Tensor],
        outputs: Iterable[RequestedOutput] | None = None,
        *,
        id: str | None = None,
        model_name: str | None = None,
        model_version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None: ...
    def __getitem__(self, name: str, /) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __contains__(self, name: object, /) -> bool: ...

@final
class InferResponse:
    outputs: list[Tensor]
    model_name: str | None
    model_version: str | None
    id: str | None
    parameters: dict[str, Any]
    def __init__(
        self,
        outputs: Iterable[Tensor],
        *,
        model_name: str | None = None,
        model_version: str | None = None,
        id: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None: ...
    def __getitem__(self, name: str, /) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __contains__(self, name: object, /) -> bool: ...

@final
class TensorSpec:
    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def batching(self) -> bool: ...
    def __new__(
        cls, name: str, datatype: str, dims: Iterable[int], batching: bool = False
    ) -> TensorSpec: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def accepts(self, tensor: Tensor) -> bool: ...

@final
class Frame:
    @property
    def buffers(self) -> tuple[Buffer, ...]: ...
    @property
    def header_length(self) -> int | None: ...
    @property
    def headers(self) -> dict[str, str]: ...
    def __init__(self, buffers: tuple[Buffer, ...], header_length: int | None) -> None: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __iter__(self) -> Iterator[Buffer]: ...
    def chunks(self, max_nbytes: int) -> Iterator[memoryview]: ...
    def __bytes__(self) -> bytes: ...
