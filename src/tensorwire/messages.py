"""What the user holds: tensors, and the requests and responses that carry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bytes_tensor import BytesTensor, Shape
from .datatypes import DATATYPES
from .errors import EncodeError, TensorwireError
from .payload import Data, wire_ready


def _name(name: Any, what: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} is a str, not {type(name).__name__}")
    if "\0" in name:
        raise EncodeError(f"the name of {what} contains a NUL: {name!r}")
    return name


class Tensor:
    """A named tensor, in a message that came or for one that goes.

    ``name``; ``datatype`` ("FP32"); ``shape`` (tuple); ``parameters`` (dict, without the framing
    key); ``binary`` (how it travelled, or shall travel); ``data``: a little-endian C-contiguous
    ndarray, a BytesTensor for BYTES, or ``None`` for a tensor in shared memory.

    Decoded, ``data`` is a view that pins the whole body and is writable when the body is.
    Built, it is the caller's own array when that is C-contiguous and little-endian already (change
    it, and you change what is sent); other arrays are converted and BYTES packed, once, here.

    ``data`` may be an array of any numeric datatype (anything with ``__array__``), a BytesTensor, an
    object, ``S``, ``U`` or StringDType array or nested lists for BYTES, nested lists of numbers when
    ``datatype`` is given, or ``None`` with ``datatype``, ``shape`` and the shared memory parameters.
    ``datatype="BF16"`` takes uint16 words, too. Raises EncodeError, TypeError.
    """

    __slots__ = ("binary", "data", "datatype", "name", "parameters", "shape")

    name: str
    datatype: str
    shape: Shape
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
    ) -> None:
        self.name = _name(name, "a tensor")
        self.datatype, self.shape, self.data = wire_ready(name, data, datatype, shape)
        self.parameters = {} if parameters is None else dict(parameters)
        self.binary = binary

    @classmethod
    def decoded(
        cls,
        name: str,
        datatype: str,
        shape: Shape,
        data: Data,
        parameters: dict[str, Any],
        binary: bool,
    ) -> Tensor:
        """A tensor whose parts the decoder has checked; for `decode`."""
        tensor = cls.__new__(cls)
        tensor.name = name
        tensor.datatype = datatype
        tensor.shape = shape
        tensor.data = data
        tensor.parameters = parameters
        tensor.binary = binary
        return tensor

    def as_numpy(self, *, aligned: bool = False, writable: bool = False) -> NDArray[Any]:
        """The tensor as an array in ``shape``.

        Numeric: the very array of ``data``, a view that pins the body; one copy of this tensor
        when ``aligned`` or ``writable`` is asked for and the view is not. BYTES: a new object array
        of ``bytes``. Raises TensorwireError for a tensor in shared memory.
        """
        data = self.data
        if data is None:
            raise TensorwireError(
                f"tensor {self.name!r} lives in shared memory: the message has no bytes of it",
                tensor=self.name,
            )
        if isinstance(data, BytesTensor):
            return data.as_numpy()
        if (aligned and not data.flags.aligned) or (writable and not data.flags.writeable):
            return data.copy()
        return data

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.datatype} {list(self.shape)}>"


class _Message:
    """What requests and responses share: tensors found by name."""

    __slots__ = ()

    def _tensors(self) -> list[Tensor]:
        raise NotImplementedError

    def __getitem__(self, name: str) -> Tensor:
        tensors = self._tensors()
        for tensor in tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(f"no tensor {name!r}: there are {[tensor.name for tensor in tensors]}")


class RequestedOutput:
    """An output that a request asks for: ``binary`` True, False, or None where it does not say."""

    __slots__ = ("binary", "name", "parameters")

    def __init__(
        self,
        name: str,
        *,
        binary: bool | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = _name(name, "an output")
        self.binary = binary
        self.parameters: dict[str, Any] = {} if parameters is None else dict(parameters)

    def __repr__(self) -> str:
        return f"<RequestedOutput {self.name!r} binary={self.binary}>"


class InferRequest(_Message):
    """A request: ``inputs`` in wire order; ``outputs``, or None for all that the model has.

    ``parameters`` keeps ``binary_data_output``, the request's own word on outputs that say nothing.
    """

    __slots__ = ("id", "inputs", "model_name", "model_version", "outputs", "parameters")

    def __init__(
        self,
        inputs: Iterable[Tensor],
        outputs: Iterable[RequestedOutput] | None = None,
        *,
        id: str | None = None,
        model_name: str | None = None,
        model_version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.inputs = list(inputs)
        self.outputs = None if outputs is None else list(outputs)
        self.id = id
        self.model_name = model_name
        self.model_version = model_version
        self.parameters: dict[str, Any] = {} if parameters is None else dict(parameters)

    def _tensors(self) -> list[Tensor]:
        return self.inputs

    def __repr__(self) -> str:
        return f"<InferRequest {self.inputs}>"


class InferResponse(_Message):
    """A response: ``outputs`` in wire order, which need not be the order they were asked in."""

    __slots__ = ("id", "model_name", "model_version", "outputs", "parameters")

    def __init__(
        self,
        outputs: Iterable[Tensor],
        *,
        model_name: str | None = None,
        model_version: str | None = None,
        id: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.outputs = list(outputs)
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.parameters: dict[str, Any] = {} if parameters is None else dict(parameters)

    def _tensors(self) -> list[Tensor]:
        return self.outputs

    def __repr__(self) -> str:
        return f"<InferResponse {self.outputs}>"


class TensorSpec:
    """What a model declares of an input or output; -1 is a variable dimension.

    ``batching``: the model's shape has a batch dimension in front of ``dims``.
    """

    __slots__ = ("batching", "datatype", "dims", "name")

    def __init__(
        self, name: str, datatype: str, dims: Iterable[int], batching: bool = False
    ) -> None:
        if datatype not in DATATYPES:
            raise ValueError(f"unknown datatype {datatype!r}: there are {', '.join(DATATYPES)}")
        self.name = _name(name, "a tensor")
        self.datatype = datatype
        self.dims = tuple(int(dim) for dim in dims)
        self.batching = bool(batching)
        if any(dim < -1 for dim in self.dims):
            raise ValueError(f"dims are 0 or more, or -1 for variable, not {list(self.dims)}")

    def __repr__(self) -> str:
        return f"TensorSpec({self.name!r}, {self.datatype!r}, {list(self.dims)}, {self.batching})"
