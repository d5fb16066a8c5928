"""Columns of pandas, polars and pyarrow as values that `Tensor` converts, and tensors as columns.

None of the packages is imported to read a column, which exists only if its package is. Errors
contain SUBJECT.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from math import prod
from typing import Any, cast

import numpy as np

from ...errors import SUBJECT, EncodeError, format_count, format_text
from ..bytes.array import BytesArray
from ..capsules.arrow_bytes import arrow_schema
from .lists import choose_datatype, is_list_of_numbers

_TO_TEXT = "column.astype(str)"
# How to convert an object column of pandas, by the names of the types that its cells may have.
_ADVICE = {
    frozenset({"int", "bool"}): "column.astype('int64') or ",
    frozenset({"int", "bool", "float", "Decimal"}): "column.astype('float64') or ",
    frozenset({"date", "datetime"}): "pandas.to_datetime(column).astype('int64') or ",
    frozenset(
        {*["str", "int", "bool", "float", "Decimal", "date", "datetime", "time", "UUID"]}
    ): "",
}
_POLARS_ADVICE = {
    **dict.fromkeys(("Categorical", "Enum"), "cast it to String, or send to_physical()"),
    "Date": "cast it to Int32, or format it as text",
    **dict.fromkeys(("Datetime", "Duration", "Time"), "cast it to Int64, or format it as text"),
    "Decimal": "cast it to Float64, or to String",
    "Object": "make a column of numbers or of text",
}


def is_instance(value: Any, package: str, *classes: str) -> bool:
    """Return whether an object is of a class of a package, which is imported if it is."""
    module = sys.modules.get(package)
    # The classes do not exist yet while another thread imports the package.
    return module is not None and isinstance(value, tuple(getattr(module, c, ()) for c in classes))


def columns_of(dataframe: Any) -> Iterable[tuple[Any, Any]]:
    """Return the name and the column of each column of a data frame. Raises TypeError."""
    if is_instance(dataframe, "pandas", "DataFrame"):
        return cast("Iterable[tuple[Any, Any]]", dataframe.items())
    if is_instance(dataframe, "polars", "DataFrame"):
        return zip(dataframe.columns, dataframe.get_columns(), strict=True)
    if is_instance(dataframe, "pyarrow", "Table", "RecordBatch"):
        return zip(dataframe.schema.names, dataframe.columns, strict=True)
    raise TypeError(
        f"a data frame must be one of pandas, polars or pyarrow, not {type(dataframe).__name__}"
    )


def is_column(value: Any) -> bool:
    """Return whether an object is a column of pandas, polars or pyarrow."""
    return (
        is_instance(value, "pandas", "Series")
        or is_instance(value, "polars", "Series")
        or is_instance(value, "pyarrow", "Array", "ChunkedArray")
    )


def read_column(column: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """Return the values of a column, their datatype or None, and the outer dimensions.

    The values are an array of numpy, a list, or an object with an Arrow array or stream. If there
    are outer dimensions, the values are flat, and their first dimension is the product of these.
    Raises EncodeError for missing values and lists of different sizes, and TypeError for a type
    without a datatype.
    """
    if is_instance(column, "pandas", "Series"):
        return _read_series(column)
    if is_instance(column, "polars", "Series"):
        advice = _POLARS_ADVICE.get(str(column.dtype.base_type()))
        if advice is not None:
            raise _no_datatype_error(f"the type {format_text(column.dtype)}", advice)
    return _read_arrow(column)


def column_error(column: Any, values: Any, error: Exception) -> Exception:
    """Return the error to raise instead of one for the values that were read from a column."""
    if not is_instance(column, "pandas", "Series"):
        return error
    is_missing = column.isna().to_numpy()
    if is_missing.any():
        return _missing_values_error(is_missing)
    element = getattr(error, "element", None)
    if not isinstance(values, np.ndarray) or values.dtype != object or element is None:
        return error
    kinds = {type(cell).__name__ for cell in values.flat}
    kind = type(values.flat[element]).__name__
    if kind in ("str", "bytes"):
        return error
    numbers = next((_ADVICE[accepted] for accepted in _ADVICE if kinds <= accepted), None)
    advice = "convert it to numbers or to text"
    if numbers is not None:
        advice = f"convert it with {numbers}{_TO_TEXT}"
    return _no_datatype_error(f"a cell of type {kind}", advice)


def _no_datatype_error(found: str, advice: str) -> TypeError:
    return TypeError(f"{SUBJECT} has {found}, which has no datatype: {advice}")


def _missing_values_error(is_missing: Any) -> EncodeError:
    n_missing, first = int(is_missing.sum()), int(is_missing.argmax())
    return EncodeError(
        f"{SUBJECT} contains {format_count('missing value', n_missing)}, "
        f"which tensors cannot have; the first is element {first}",
        element=first,
    )


# --- polars and pyarrow ---


def _read_arrow(column: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """Read a column whose cells may be lists of one size."""
    shape = [len(column)]
    is_polars = is_instance(column, "polars", "Series")
    while (column.dtype == sys.modules["polars"].List) if is_polars else _has_lists(column.type):
        is_missing = np.asarray(column.is_null())
        if is_missing.any():
            raise _missing_values_error(is_missing)
        if is_polars:
            shape.append(_size_of_lists(column.list.len().to_numpy(), shape[0]))
            column = (column if shape[-1] else column.clear()).explode()
        else:
            if hasattr(column, "combine_chunks"):
                column = column.combine_chunks()
            shape.append(_size_of_lists(column.value_lengths().to_numpy(), shape[0]))
            column = column.flatten()
    return column, None, tuple(shape) if len(shape) > 1 else ()


def _has_lists(kind: Any) -> bool:
    types = sys.modules["pyarrow"].types
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _size_of_lists(sizes: Any, n_rows: int) -> int:
    """Return the size that all lists of a column have. Raises EncodeError if they differ."""
    differ = np.flatnonzero(sizes != sizes[:1])
    if differ.size:
        row = int(differ[0]) * n_rows // len(sizes)
        raise EncodeError(
            f"row {row} of {SUBJECT} has a list of size {sizes[differ[0]]}, "
            f"but the first list has size {sizes[0]}: all must have the same size"
        )
    return int(sizes[0]) if len(sizes) else 0


# --- pandas ---


def _read_series(column: Any) -> tuple[Any, Any, tuple[int, ...]]:
    dtype = column.dtype
    is_arrow = is_instance(dtype, "pandas", "StringDtype", "ArrowDtype")
    has_numbers = isinstance(dtype, np.dtype) or getattr(dtype, "numpy_dtype", None) is not None
    advice = None
    if is_instance(dtype, "pandas", "CategoricalDtype"):
        advice = f"send its codes, column.cat.codes, or its values, {_TO_TEXT}"
    elif str(dtype).startswith(("date32", "date64")):
        advice = "convert it with pandas.to_datetime(column).astype('int64') or column.astype(str)"
    elif dtype.kind in "mM":
        advice = f"convert it with column.astype('int64') or {_TO_TEXT}"
    elif not (is_arrow or has_numbers):
        advice = "convert it to numbers or to text"
    if advice is not None:
        raise _no_datatype_error(f"the dtype {format_text(dtype)}", advice)
    if is_arrow:
        if getattr(dtype, "storage", "") == "python":
            return column.to_numpy(object), None, ()
        return _read_arrow(column.array.__arrow_array__())
    if not isinstance(dtype, np.dtype) and column.hasnans:
        raise _missing_values_error(column.isna().to_numpy())
    array = column.to_numpy(getattr(dtype, "numpy_dtype", None))
    first = array[0] if dtype.kind == "O" and len(array) else None
    if isinstance(first, list | tuple):
        rows = list(array)
        values, datatype = choose_datatype(rows) if is_list_of_numbers(rows) else (rows, None)
        return values, datatype, ()
    if isinstance(first, np.ndarray):
        kinds = {
            (row.shape, row.dtype.kind) if isinstance(row, np.ndarray) else None for row in array
        }
        return np.stack(array) if len(kinds) == 1 else list(array), None, ()
    can_be_stacked = hasattr(first, "__array__") or hasattr(first, "__array_interface__")
    return list(array) if can_be_stacked else array, None, ()


# --- tensors as columns ---


class _Exported:
    """Exports BYTES to Arrow as a type, whatever the consumer requests."""

    def __init__(self, elements: BytesArray, arrow_format: bytes) -> None:
        self.elements, self.schema = elements, arrow_schema(arrow_format)

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self.elements.__arrow_c_array__(self.schema)


def _pandas_column(pandas: Any, tensor: Any, is_text: bool) -> Any:
    # The dtype that pandas infers from str objects, which are not created for Arrow memory.
    dtype: Any = pandas.Series([""]).dtype if is_text and len(tensor.shape) == 1 else None
    if getattr(dtype, "storage", "") == "pyarrow":
        column = import_module("pyarrow").array(_Exported(tensor.data, b"U"))
        return pandas.Series(dtype.__from_arrow__(column), copy=False)
    array = tensor.as_strings() if is_text else tensor.as_numpy(aligned=True)
    if array.ndim > 1:
        array = np.fromiter(array, object, len(array))  # of views of the rows
    return pandas.Series(array, copy=False)


def _polars_column(polars: Any, tensor: Any, is_text: bool) -> Any:
    if not isinstance(tensor.data, BytesArray):
        # polars panics when it imports Arrow lists of size 0.
        return polars.Series(tensor.as_numpy() if 0 in tensor.shape[1:] else tensor)
    column = polars.Series(_Exported(tensor.data, b"vu" if is_text else b"vz"))
    return column if len(tensor.shape) == 1 else column.reshape(tensor.shape)


def _arrow_column(pyarrow: Any, tensor: Any, is_text: bool) -> Any:
    if not isinstance(tensor.data, BytesArray):
        return pyarrow.array(tensor)
    # Many functions of pyarrow do not support views. A type with 64-bit offsets has no limit.
    column = pyarrow.array(_Exported(tensor.data, b"U" if is_text else b"Z"))
    for axis in range(len(tensor.shape) - 1, 0, -1):
        # FixedSizeListArray.from_arrays rejects lists of size 0, whose number it cannot compute.
        kind, n_rows = pyarrow.list_(column.type, tensor.shape[axis]), prod(tensor.shape[:axis])
        column = pyarrow.Array.from_buffers(kind, n_rows, [None], children=[column])
    return column


COLUMN_MAKERS = {"pandas": _pandas_column, "polars": _polars_column, "pyarrow": _arrow_column}
