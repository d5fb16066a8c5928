"""Data frames of pandas, polars and pyarrow to tensors and back, one tensor per column.

None of these packages is imported before a function is called with one of its frames or its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from math import prod
from typing import Any, Literal

import numpy as np

from ._codec.bytes.array import BytesArray
from ._codec.bytes.reader import arrow_schema
from ._codec.messages.columns import is_instance
from ._codec.messages.message import InferRequest, InferResponse
from ._codec.messages.tensor import Tensor, tensor_of_column
from .errors import (
    ElementError,
    EncodeError,
    format_count,
    format_names,
    format_subject,
    format_text,
    format_value,
)

Library = Literal["pandas", "polars", "pyarrow"]

# Formats of Arrow types.
STRING_VIEW = b"vu"
BINARY_VIEW = b"vz"
LARGE_STRING = b"U"
LARGE_BINARY = b"Z"


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
        arrays of different shapes or kinds. NaN in a column of floating-point numbers is a
        number, unless its dtype is nullable.
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
    columns = dict[str, Any]()
    for name, column in _columns(dataframe):
        if not isinstance(name, str):
            raise TypeError(
                f"the name of column {len(columns)} must be a str, not {format_text(repr(name))}"
            )
        if name in columns:
            raise ValueError(f"two columns are named {format_value(name)}")
        columns[name] = column
    tensors = [tensor_of_column(name, column) for name, column in columns.items()]
    if column_vectors:
        return [t.replace(shape=(*t.shape, 1)) if len(t.shape) == 1 else t for t in tensors]
    return tensors


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
    if library not in [*_COLUMNS]:
        raise ValueError(
            f"library must be 'pandas', 'polars' or 'pyarrow', not {format_value(library)}"
        )
    columns = dict[str, Tensor]()
    if isinstance(tensors, InferRequest | InferResponse):
        tensors = tensors.values()
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"tensors[{len(columns)}] must be a Tensor, not {format_value(tensor)}")
        if tensor.name in columns:
            raise ValueError(f"two tensors are named {format_value(tensor.name)}")
        _check_column(tensor, next(iter(columns.values()), tensor))
        is_vector = tensor.shape[1:] == (1,)
        columns[tensor.name] = tensor.replace(shape=tensor.shape[:1]) if is_vector else tensor
    package = import_module(library)
    make_column = _COLUMNS[library]
    is_text = _text_columns(columns, text)
    made = {name: make_column(package, t, is_text[name]) for name, t in columns.items()}
    if library == "pandas":
        return package.DataFrame(made, copy=False)
    return package.DataFrame(made) if library == "polars" else package.table(made)


# --- from columns ---


def _columns(dataframe: Any) -> Iterator[tuple[Any, Any]]:
    """Return pairs of the name and the column."""
    if is_instance(dataframe, "pandas", "DataFrame"):
        return iter(dataframe.items())
    if is_instance(dataframe, "polars", "DataFrame"):
        return ((column.name, column) for column in dataframe.get_columns())
    if is_instance(dataframe, "pyarrow", "Table", "RecordBatch"):
        return zip(dataframe.schema.names, dataframe.columns, strict=True)
    raise TypeError(
        f"a data frame must be one of pandas, polars or pyarrow, not {type(dataframe).__name__}"
    )


# --- to columns ---


def _check_column(tensor: Tensor, first: Tensor) -> None:
    """Check that a tensor can be a column beside the first one."""
    if not tensor.shape:
        raise ValueError(
            f"{format_subject('tensor', tensor.name)} has no dimensions, but a column requires one"
        )
    if tensor.shape[0] != first.shape[0]:
        raise ValueError(
            f"{format_subject('tensor', tensor.name)} has {format_count('row', tensor.shape[0])}, "
            f"but {format_subject('tensor', first.name)} has {first.shape[0]}"
        )
    if tensor.datatype == "BF16":
        raise EncodeError(
            f"{format_subject('tensor', tensor.name)} is BF16, which data frames do not support: "
            f"convert it to FP32 first",
            tensor=tensor.name,
        )


def _text_columns(
    columns: Mapping[str, Tensor], text: bool | Iterable[str] | None
) -> dict[str, bool | None]:
    """Return which tensors become text. None depends on their elements."""
    if text is None or isinstance(text, bool):
        return dict.fromkeys(columns, text)
    if isinstance(text, str):
        raise TypeError(f"text must be a bool or a list of names: pass [{format_value(text)}]")
    selected = set(text)
    for name in selected - columns.keys():
        raise ValueError(
            f"text contains {format_value(name)}, but the tensors are {format_names([*columns])}"
        )
    return {name: name in selected for name in columns}


class _Exported:
    """Exports BYTES to Arrow as a type, whatever the consumer requests.

    If it is a type of text, and an element is not UTF-8, they are exported as binary view.
    """

    def __init__(self, elements: BytesArray, format: bytes) -> None:
        self.elements = elements
        self.format = format

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self.elements.__arrow_c_array__(arrow_schema(self.format))


def _pandas_column(pandas: Any, tensor: Tensor, is_text: bool | None) -> Any:
    if isinstance(tensor.data, BytesArray):
        if len(tensor.shape) == 1 and is_text is not False:
            column = _pandas_text(pandas, tensor.data)
            if column is not None:
                return column
        array = tensor.as_numpy() if is_text is False else _strings(tensor, is_text)
    else:
        array = tensor.as_numpy(aligned=True)
    if array.ndim == 1:
        # Without copy=False, the array of a Series is copied.
        return pandas.Series(array, copy=False)
    rows = np.empty(len(array), object)
    for i, row in enumerate(array):
        rows[i] = row
    return pandas.Series(rows, copy=False)


def _strings(tensor: Tensor, is_text: bool | None) -> Any:
    try:
        return tensor.as_strings()
    except ElementError:
        if is_text:
            raise
        return tensor.as_numpy()


def _pandas_text(pandas: Any, elements: BytesArray) -> Any:
    """Return a column of text if pandas keeps text in Arrow memory by default, else None.

    It has the dtype that pandas infers from ``str`` objects, which are not created. The result is
    None if an element is not UTF-8.
    """
    dtype = pandas.Series([""]).dtype
    if getattr(dtype, "storage", "") != "pyarrow":
        return None
    pyarrow = import_module("pyarrow")
    column = pyarrow.array(_Exported(elements, LARGE_STRING))
    if column.type != pyarrow.large_string():
        return None
    return pandas.Series(dtype.__from_arrow__(column), copy=False)


def _polars_column(polars: Any, tensor: Tensor, is_text: bool | None) -> Any:
    if not isinstance(tensor.data, BytesArray):
        # polars panics when it imports Arrow lists of size 0.
        return polars.Series(tensor.as_numpy() if 0 in tensor.shape[1:] else tensor)
    column = polars.Series(_Exported(tensor.data, BINARY_VIEW if is_text is False else STRING_VIEW))
    if is_text and column.dtype != polars.String:
        tensor.as_strings()  # raises the error for the element that is not text
    return column if len(tensor.shape) == 1 else column.reshape(tensor.shape)


def _arrow_column(pyarrow: Any, tensor: Tensor, is_text: bool | None) -> Any:
    if not isinstance(tensor.data, BytesArray):
        return pyarrow.array(tensor)
    # Many functions of pyarrow do not support views. A type with 64-bit offsets has no limit.
    column = pyarrow.array(
        _Exported(tensor.data, LARGE_BINARY if is_text is False else LARGE_STRING)
    )
    if is_text is not False and column.type != pyarrow.large_string():
        if is_text:
            tensor.as_strings()  # raises the error for the element that is not text
        column = pyarrow.array(_Exported(tensor.data, LARGE_BINARY))
    shape = tensor.shape
    for axis in range(len(shape) - 1, 0, -1):
        # FixedSizeListArray.from_arrays rejects lists of size 0, whose number it cannot compute.
        kind = pyarrow.list_(column.type, shape[axis])
        column = pyarrow.Array.from_buffers(kind, prod(shape[:axis]), [None], children=[column])
    return column


_COLUMNS = {"pandas": _pandas_column, "polars": _polars_column, "pyarrow": _arrow_column}
