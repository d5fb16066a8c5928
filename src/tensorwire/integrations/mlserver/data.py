"""ArrayData: an array in MLServer's types, and a list only when somebody asks for one."""

from __future__ import annotations

import copy
from array import array
from math import prod
from typing import Any

import numpy as np
from mlserver.codecs.json import decode_from_bytelike_json_to_dict
from mlserver.errors import MLServerError
from mlserver.types import Datatype, TensorData
from numpy.typing import NDArray

import tensorwire as tw

from ..._codec.datatypes import DATATYPES
from ..._codec.decoder import PeerTensor
from ...errors import TensorwireError

Array = NDArray[Any]


def validated(model: Any, state: dict[str, Any], fields: set[str]) -> Any:
    """An object of a pydantic model with this ``__dict__``, whose ``fields`` were set."""
    made = model.__new__(model)
    set_attribute = object.__setattr__
    set_attribute(made, "__dict__", state)
    set_attribute(made, "__pydantic_fields_set__", fields)
    set_attribute(made, "__pydantic_extra__", None)
    set_attribute(made, "__pydantic_private__", None)
    return made


class ArrayData(TensorData):  # type: ignore[misc]  # mlserver has no types
    """A TensorData over an ndarray or a BytesTensor, made by ``over``.

    ``root``, and with it all that reads it (iteration, indexing, JSON, gRPC contents, other
    codecs, batching), is the list that MLServer would have: of JSON data the list that was sent,
    else a flat one. It is made when it is first asked for and is the data from then on, so that a
    change to it counts. The array is referenced, not copied, and keeps what it is a view of.
    """

    @classmethod
    def over(
        cls,
        data: Array | tw.BytesTensor,
        is_encoded: bool = False,
        source: PeerTensor | bytes | None = None,
    ) -> ArrayData:
        """Make one.

        ``is_encoded``: ``data`` was made by MLServer's NumpyCodec, whose lists have None for NaN.
        ``source``: the entry that ``data`` was read from as JSON, or the text of its data.
        """
        state = {"array": data, "is_encoded": is_encoded, "source": source}
        made: ArrayData = validated(cls, state, {"root"})
        return made

    def __len__(self) -> int:
        data = array_of(self)
        is_json = self.__dict__.get("source") is not None
        return len(self.root) if data is None or is_json else _length(data)

    def __eq__(self, other: object) -> bool:
        return self.root == other.root if isinstance(other, TensorData) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of any model that is not frozen

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [next(iter(self.__dict__.items()))]

    def __copy__(self) -> ArrayData:
        data = array_of(self)
        if data is None:
            return super().__copy__()  # type: ignore[no-any-return]
        return ArrayData.over(data, self.__dict__["is_encoded"], self.__dict__["source"])

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> ArrayData:
        data, text = array_of(self), text_of(self)
        if data is None:
            return super().__deepcopy__(memo)  # type: ignore[no-any-return]
        source = (
            None if text is None else bytes(text)
        )  # neither an entry nor a memoryview can be copied
        return ArrayData.over(copy.deepcopy(data, memo), self.__dict__["is_encoded"], source)

    def __reduce__(self) -> tuple[Any, ...]:
        data = array_of(self)
        if data is None:
            return TensorData, (self.root,)
        text = text_of(self)
        return ArrayData.over, (
            data,
            self.__dict__["is_encoded"],
            None if text is None else bytes(text),
        )


def _root(self: ArrayData) -> Any:
    state = self.__dict__
    if "root" not in state:
        text = text_of(self)
        if text is None:
            _set_root(self, as_list(state["array"], state["is_encoded"]))
        else:
            _set_root(self, decode_from_bytelike_json_to_dict(bytes(text)))
    return self.__dict__["root"]


def _set_root(self: ArrayData, value: Any) -> None:
    object.__setattr__(self, "__dict__", {"root": value})


# Not in the class body, where pydantic would take it for the field's default.
ArrayData.root = property(_root, _set_root)


def array_of(data: Any) -> Array | tw.BytesTensor | None:
    """What an ArrayData stands on, unless its list is the data by now; None for any other data."""
    return data.__dict__.get("array") if isinstance(data, ArrayData) else None


def text_of(data: Any) -> memoryview | bytes | None:
    """The JSON that an ArrayData was read from; None for any other data."""
    source = data.__dict__.get("source") if isinstance(data, ArrayData) else None
    return source.text if isinstance(source, PeerTensor) else source


def is_flat(text: memoryview | bytes) -> bool:
    """Whether the text of a list has no lists in it; False, too, where a string has a bracket."""
    return b"[" not in bytes(text)[1:]


def as_list(data: Array | tw.BytesTensor, is_encoded: bool) -> list[Any]:
    """The flat list that MLServer would have made."""
    if isinstance(data, tw.BytesTensor):
        return data.as_numpy().reshape(-1).tolist()
    if data.dtype.kind == "S":  # which MLServer keeps in one piece
        return [data.tobytes()]
    values = data.reshape(-1).tolist()
    if is_encoded and data.dtype.kind == "f" and np.isnan(data).any():
        return [None if value != value else value for value in values]  # noqa: PLR0124
    return values


def _length(data: Array | tw.BytesTensor) -> int:
    is_one = isinstance(data, np.ndarray) and data.dtype.kind == "S"
    return 1 if is_one else data.size


# --- inputs and outputs ----------------------------------------------------------------------


def datatype_of(element: Any) -> str:
    """The datatype of a RequestInput or ResponseOutput, which is not always validated."""
    return str(Datatype(element.datatype).value)


def numeric_array(element: Any) -> Array | None:
    """The array of its datatype that an input or output stands on, in any shape; else None."""
    data = array_of(element.data)
    dtype = DATATYPES[datatype_of(element)].dtype
    return data if isinstance(data, np.ndarray) and dtype and data.dtype == dtype else None


def tensor_of(element: Any, is_binary: bool) -> tw.Tensor:
    """An input or output as a Tensor, over the same memory where there is an array.

    Raises EncodeError, TypeError.
    """
    datatype, data = datatype_of(element), array_of(element.data)
    if data is None:
        data = _from_root(getattr(element.data, "root", element.data), datatype, element.shape)
    parameters = element.parameters.model_dump() if element.parameters else None
    return tw.Tensor(
        element.name,
        data,
        datatype=datatype,
        shape=element.shape,
        parameters=parameters,
        binary=is_binary,
    )


def _from_root(values: Any, datatype: str, shape: list[int]) -> Any:
    if not isinstance(values, list | np.ndarray):
        return [values]  # which MLServer takes for one element
    numbers = from_list(values, datatype, shape)
    return values if numbers is None else numbers


def from_list(values: Any, datatype: str, shape: list[int]) -> Array | None:
    """A flat list of numbers as an array; None where anything is to be decided or refused.

    The array module checks and converts as struct does, without taking them as arguments.
    """
    dtype = DATATYPES[datatype].dtype
    if not isinstance(values, list) or dtype is None or dtype.char not in "bBhHiIlLqQfd":
        return None
    try:
        made = np.frombuffer(array(dtype.char, values), dtype)
    except (TypeError, ValueError, OverflowError):
        return None
    return made if made.size == prod(shape) else None


def refusal(error: TensorwireError) -> Exception:
    """The exception that MLServer's REST and gRPC servers turn into an answer of that status."""
    return MLServerError(str(error), error.status)  # type: ignore[no-any-return]
