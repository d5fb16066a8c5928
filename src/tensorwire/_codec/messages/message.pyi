from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Self, TypeVar, final, overload

from typing_extensions import disjoint_base

from .tensor import Tensor

Tensors = Iterable[Tensor] | Mapping[str, Any]
Default = TypeVar("Default")

@final
class RequestedOutput:
    @property
    def name(self) -> str: ...
    @property
    def binary(self) -> bool | None: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    def __init__(
        self,
        name: str,
        *,
        binary: bool | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None: ...
    def replace(
        self,
        *,
        name: str = ...,
        binary: bool | None = ...,
        parameters: Mapping[str, Any] | None = ...,
    ) -> RequestedOutput: ...
    __replace__ = replace
    def __copy__(self) -> RequestedOutput: ...

@disjoint_base
class Message(Mapping[str, Tensor]):
    @property
    def id(self) -> str | None: ...
    @property
    def model_name(self) -> str | None: ...
    @property
    def model_version(self) -> str | None: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    def __getitem__(self, name: str, /) -> Tensor: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object, /) -> bool: ...
    __reversed__: None
    @overload
    def get(self, name: str, default: None = None) -> Tensor | None: ...
    @overload
    def get(self, name: str, default: Default) -> Tensor | Default: ...
    def keys(self) -> KeysView[str]: ...
    def values(self) -> ValuesView[Tensor]: ...
    def items(self) -> ItemsView[str, Tensor]: ...
    def __copy__(self) -> Self: ...
    def _repr_html_(self) -> str: ...

@final
class InferRequest(Message):
    @property
    def inputs(self) -> tuple[Tensor, ...]: ...
    @property
    def outputs(self) -> tuple[RequestedOutput, ...] | None: ...
    def __init__(
        self,
        inputs: Tensors,
        outputs: Iterable[RequestedOutput | str] | None = None,
        *,
        id: str | None = None,
        model_name: str | None = None,
        model_version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None: ...
    def replace(
        self,
        *,
        inputs: Tensors = ...,
        outputs: Iterable[RequestedOutput | str] | None = ...,
        id: str | None = ...,
        model_name: str | None = ...,
        model_version: str | None = ...,
        parameters: Mapping[str, Any] | None = ...,
    ) -> InferRequest: ...
    __replace__ = replace

@final
class ResponseOptions:
    @property
    def outputs(self) -> tuple[RequestedOutput, ...] | None: ...
    @property
    def binary(self) -> bool: ...
    @property
    def id(self) -> str | None: ...
    def __new__(
        cls,
        outputs: Iterable[RequestedOutput | str] | None = None,
        *,
        binary: bool = False,
        id: str | None = None,
    ) -> ResponseOptions: ...
    def __copy__(self) -> ResponseOptions: ...

@final
class InferResponse(Message):
    @property
    def outputs(self) -> tuple[Tensor, ...]: ...
    def __init__(
        self,
        outputs: Tensors,
        *,
        model_name: str | None = None,
        model_version: str | None = None,
        id: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None: ...
    def replace(
        self,
        *,
        outputs: Tensors = ...,
        id: str | None = ...,
        model_name: str | None = ...,
        model_version: str | None = ...,
        parameters: Mapping[str, Any] | None = ...,
    ) -> InferResponse: ...
    __replace__ = replace
