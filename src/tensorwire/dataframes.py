"""Data frames of pandas, polars and pyarrow to tensors and back, one tensor per column.

None of these packages is imported before a function is called with one of its frames or its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Literal

from ._codec.bytes.array import BytesArray, are_texts
from ._codec.messages.columns import COLUMN_MAKERS, columns_of
from ._codec.messages.message import InferRequest, InferResponse
from ._codec.messages.tensor import Tensor, tensor_of_column
from .errors import (
    EncodeError,
    format_count,
    format_names,
    format_subject,
    format_text,
    format_value,
)

Library = Literal["pandas", "polars", "pyarrow"]


def tensors_from_dataframe(dataframe: Any, *, column_vectors: bool = False) -> list[Tensor]:
    """Return a tensor for each column of a data frame.

    Columns of numbers are not copied if their memory has the layout of a tensor: columns of pandas
    with a numpy dtype or a nullable dtype, and columns of Arrow memory (polars, pyarrow, and
    ``ArrowDtype`` of pandas) in one chunk. Several chunks are copied once, and booleans in Arrow
    memory are unpacked. Text and binary columns become BYTES, which are copied once. Columns of
    lists of one size, and columns of pandas whose cells are arrays of one shape and kind, become
    tensors with several dimensions. They are copied, except for fixed-size lists.

    The index of a pandas frame is ignored. To send it, call ``dataframe.reset_index()`` first.

    Parameters
    ----------
    dataframe : pandas.DataFrame, polars.DataFrame, pyarrow.Table or pyarrow.RecordBatch
        A frame whose columns have distinct names.
    column_vectors : bool, default False
        Whether a column of n numbers or texts has the shape ``[n, 1]``, which most models of Triton
        declare, instead of ``[n]``.

    Returns
    -------
    list of Tensor
        The tensors in the order of the columns, whose names they have.

    Raises
    ------
    EncodeError
        A column has missing values, an element that cannot be encoded, or cells that are lists or
        arrays of different shapes or kinds. NaN is a number, unless its dtype is nullable.
    TypeError
        ``dataframe`` is not one of these frames, the name of a column is not a str, or a column has
        a type without a datatype, such as dates, decimals, UUIDs and categories.
    ValueError
        Two columns have the same name.

    Examples
    --------
    >>> import pandas as pd
    >>> import tensorwire as tw
    >>> tw.tensors_from_dataframe(pd.DataFrame({"age": [30, 41], "city": ["Rome", "Oslo"]}))
    [<Tensor 'age' INT64 [2]>, <Tensor 'city' BYTES [2]>]
    """
    tensors = dict[str, Tensor]()
    for name, column in columns_of(dataframe):
        if not isinstance(name, str):
            shown = format_text(repr(name))
            raise TypeError(f"the name of column {len(tensors)} must be a str, not {shown}")
        if name in tensors:
            raise ValueError(f"two columns are named {format_value(name)}")
        tensor = tensor_of_column(name, column)
        is_vector = column_vectors and len(tensor.shape) == 1
        tensors[name] = tensor.replace(shape=(*tensor.shape, 1)) if is_vector else tensor
    return list(tensors.values())


def dataframe_from_tensors(
    tensors: Iterable[Tensor] | InferRequest | InferResponse,
    library: Library,
    *,
    text: bool | Iterable[str] | None = None,
) -> Any:
    """Return a data frame with a column for each tensor.

    The columns of pandas and polars are views of the tensors, except for BOOL in polars and
    pyarrow, misaligned tensors in pandas, and BYTES. The shape ``[n, 1]`` is like ``[n]``. The rows
    of other tensors with several dimensions become fixed-size lists in polars and pyarrow, and
    arrays in an object column of pandas, which are views of the tensor.

    Parameters
    ----------
    tensors : InferRequest, InferResponse or iterable of Tensor
        A message, or tensors with distinct names. They have the same first dimension.
    library : {"pandas", "polars", "pyarrow"}
        The package of the frame. It is imported.
    text : bool or iterable of str, optional
        Whether BYTES become columns of text rather than of bytes, or the names of the tensors that
        do. By default, a tensor becomes text if all its elements are UTF-8.

    Returns
    -------
    pandas.DataFrame, polars.DataFrame or pyarrow.Table
        The frame. A frame of pandas has the default index.

    Raises
    ------
    ValueError
        ``library`` is unknown, a name in ``text`` is not that of a tensor, two tensors have the
        same name, or the tensors have different lengths or no dimensions.
    ElementError
        An element of a tensor that ``text`` selects is not UTF-8.
    EncodeError
        A tensor is BF16, which none of these packages supports.
    TensorwireError
        A tensor is in shared memory.
    TypeError
        An item is not a Tensor.
    ImportError
        The package is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorwire as tw
    >>> outputs = [tw.Tensor("score", np.array([0.5, 0.25])), tw.Tensor("label", ["cat", "dog"])]
    >>> tw.dataframe_from_tensors(outputs, "pandas")
       score label
    0   0.50   cat
    1   0.25   dog
    """
    if library not in [*COLUMN_MAKERS]:
        expected = "library must be 'pandas', 'polars' or 'pyarrow'"
        raise ValueError(f"{expected}, not {format_value(library)}")
    columns = dict[str, Tensor]()
    if isinstance(tensors, InferRequest | InferResponse):
        tensors = tensors.values()
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"tensors[{len(columns)}] must be a Tensor, not {format_value(tensor)}")
        if tensor.name in columns:
            raise ValueError(f"two tensors are named {format_value(tensor.name)}")
        columns[tensor.name] = _as_column(tensor, next(iter(columns.values()), tensor))
    package, made = import_module(library), {}
    for name, choice in _text_columns(columns, text).items():
        tensor = columns[name]
        may_be_text = isinstance(tensor.data, BytesArray) and choice is not False
        is_text = may_be_text and are_texts(tensor.data)
        if choice and may_be_text and not is_text:
            tensor.as_strings()  # raises the error for the element that is not text
        made[name] = COLUMN_MAKERS[library](package, tensor, is_text)
    if library == "pandas":
        return package.DataFrame(made, copy=False)
    return package.DataFrame(made) if library == "polars" else package.table(made)


def _text_columns(
    columns: dict[str, Tensor], text: bool | Iterable[str] | None
) -> dict[str, bool | None]:
    """Return which tensors become text. None depends on their elements."""
    if text is None or isinstance(text, bool):
        return dict.fromkeys(columns, text)
    if isinstance(text, str):
        raise TypeError(f"text must be a bool or a list of names: pass [{format_value(text)}]")
    is_text: dict[str, bool | None] = {**dict.fromkeys(columns, False), **dict.fromkeys(text, True)}
    for name in is_text.keys() - columns.keys():
        known = format_names([*columns])
        raise ValueError(f"text contains {format_value(name)}, but the tensors are {known}")
    return is_text


def _as_column(tensor: Tensor, first: Tensor) -> Tensor:
    """Return a tensor that can be a column beside the first one, without a dimension of 1."""
    subject = format_subject("tensor", tensor.name)
    if not tensor.shape:
        raise ValueError(f"{subject} has no dimensions, but a column requires one")
    if tensor.shape[0] != first.shape[0]:
        rows, other = format_count("row", tensor.shape[0]), format_subject("tensor", first.name)
        raise ValueError(f"{subject} has {rows}, but {other} has {first.shape[0]}")
    if tensor.datatype == "BF16":
        what = "is BF16, which data frames do not support: convert it to FP32 first"
        raise EncodeError(f"{subject} {what}", tensor=tensor.name)
    return tensor.replace(shape=tensor.shape[:1]) if tensor.shape[1:] == (1,) else tensor
