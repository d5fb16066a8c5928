"""Data frames of pandas, polars and pyarrow to tensors and back: values, addresses, errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from stress.leaks import leak_of
from support.lifetimes import assert_result_keeps_body_alive
from support.memory import address
from support.requirements import optional, package
from support.scripts import run_script

pd, pl, pa = optional("pandas"), optional("polars"), optional("pyarrow")

LIBRARIES = ("pandas", "polars", "pyarrow")


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    """The name of a package, which is installed."""
    package(request.param)
    return request.param


DATATYPES = {
    **{"BOOL": "?", "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "INT8": "i1"},
    **{"INT16": "i2", "INT32": "i4", "INT64": "i8", "FP16": "f2", "FP32": "f4", "FP64": "f8"},
}
WHEN = datetime(2020, 1, 2, tzinfo=UTC).replace(tzinfo=None)


def lists_of(tensors: list[tw.Tensor]) -> dict[str, tuple[str, Any]]:
    return {t.name: (t.datatype, t.as_numpy().tolist()) for t in tensors}


def rows_of(column: Any) -> Any:
    """Return the rows of a column as Python objects."""
    values = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


# --- both directions ---


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (4, 3), (2, 3, 4)], ids=str)
def test_numbers_of_all_datatypes(library: Any, shape: tuple[int, ...]) -> None:
    numbers = (np.arange(np.prod(shape)) % 2).reshape(shape)
    arrays = {name: numbers.astype(code) for name, code in DATATYPES.items()}
    tensors = [tw.Tensor(name, array) for name, array in arrays.items()]
    frame = tw.dataframe_from_tensors(tensors, library)
    for name, array in arrays.items():
        assert rows_of(frame[name]) == array.tolist()
    back = tw.tensors_from_dataframe(frame)
    assert lists_of(back) == lists_of(tensors)
    assert [tensor.shape for tensor in back] == [shape] * len(arrays)
    for tensor, array in zip(back, arrays.values(), strict=True):
        is_view = array.size and (library == "pandas" or tensor.datatype != "BOOL")
        if is_view and not (library == "pandas" and len(shape) > 1):  # cells are stacked
            assert address(tensor.as_numpy()) == address(array)


@pytest.mark.parametrize("shape", [(2, 0), (2, 0, 3), (2, 3, 0), (0, 3)], ids=str)
@pytest.mark.parametrize(("datatype", "dtype"), [("FP32", np.float32), ("BYTES", object)])
def test_empty_rows(library: Any, datatype: str, dtype: Any, shape: tuple[int, ...]) -> None:
    frame = tw.dataframe_from_tensors([tw.Tensor("x", np.empty(shape, dtype))], library)
    (back,) = tw.tensors_from_dataframe(frame)
    if library == "pandas" and shape[0] == 0:  # an object column does not know the type of its rows
        assert (back.datatype, back.shape) == ("BYTES", (0,))
    else:
        assert (back.datatype, back.shape) == (datatype, shape)


def test_text_and_binary(library: Any) -> None:
    tensors = [
        tw.Tensor("text", ["a", "", "longer than twelve bytes é"]),
        tw.Tensor("binary", [b"\xff", b"", b"longer than twelve bytes \xff"]),
        tw.Tensor("rows", [["a", "b"], ["c", "d"], ["e", "f"]]),
        tw.Tensor("cubes", [[["a"], ["b"]], [["c"], ["d"]], [["e"], ["f"]]]),
    ]
    frame = tw.dataframe_from_tensors(tensors, library)
    assert rows_of(frame["text"]) == ["a", "", "longer than twelve bytes é"]
    assert rows_of(frame["binary"]) == [b"\xff", b"", b"longer than twelve bytes \xff"]
    assert [list(row) for row in rows_of(frame["rows"])] == [["a", "b"], ["c", "d"], ["e", "f"]]
    cubes = [[list(inner) for inner in row] for row in rows_of(frame["cubes"])]
    assert cubes == [[["a"], ["b"]], [["c"], ["d"]], [["e"], ["f"]]]
    assert lists_of(tw.tensors_from_dataframe(frame)) == lists_of(tensors)
    if library == "polars":
        cube = pl.Array(pl.String, (2, 1))
        assert frame.dtypes == [pl.String, pl.Binary, pl.Array(pl.String, 2), cube]
    if library == "pyarrow":
        types = [pa.large_string(), pa.large_binary(), pa.list_(pa.large_string(), 2)]
        types.append(pa.list_(pa.list_(pa.large_string(), 1), 2))
        assert frame.schema.types == types


def test_no_columns(library: Any) -> None:
    assert tw.tensors_from_dataframe(tw.dataframe_from_tensors([], library)) == []


def test_frame_keeps_the_body_alive(library: Any) -> None:
    def convert(body: Any) -> Any:
        spec = tw.TensorSpec("x", "INT32", [12])
        tensor = tw.decode_request(body, 0, raw_input=spec)["x"]
        lists = tw.Tensor("y", tensor.as_numpy().reshape(12, 1))
        return tw.dataframe_from_tensors([tensor, lists], library)

    assert_result_keeps_body_alive(bytes(range(48)), convert)


# --- from frames ---


def test_columns_of_pandas_are_not_copied() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6], "c": [0.5, np.nan, 2.5]})
    assert frame["a"].to_numpy().base is not None  # a and b are rows of one block
    for tensor in tw.tensors_from_dataframe(frame):
        assert np.shares_memory(tensor.as_numpy(), frame[tensor.name].to_numpy())
    from_matrix = pd.DataFrame(np.arange(6.0).reshape(3, 2), columns=["p", "q"])
    assert lists_of(tw.tensors_from_dataframe(from_matrix)) == {
        "p": ("FP64", [0, 2, 4]),
        "q": ("FP64", [1, 3, 5]),
    }


# The dtype of a column, its values, and those of its tensor.
EXTENSIONS: dict[str, tuple[Any, list[Any], tuple[str, list[Any]]]] = {
    "Int64": ("Int64", [1, 2], ("INT64", [1, 2])),
    "Float32": ("Float32", [0.5, 1.5], ("FP32", [0.5, 1.5])),
    "boolean": ("boolean", [True, False], ("BOOL", [True, False])),
    "str": ("str", ["a", "é"], ("BYTES", [b"a", "é".encode()])),
    "string": ("string", ["a", "b"], ("BYTES", [b"a", b"b"])),
    "python": ("string[python]", ["c", "d"], ("BYTES", [b"c", b"d"])),
    "pyarrow": ("string[pyarrow]", ["e", "f"], ("BYTES", [b"e", b"f"])),
    "arrow int": ("int16[pyarrow]", [1, 2], ("INT16", [1, 2])),
    "arrow bytes": (lambda: pa.binary(), [b"\xff", b""], ("BYTES", [b"\xff", b""])),  # noqa: PLW0108
    "arrow list": (
        *(lambda: pa.list_(pa.int8(), 2), [[1, 2], [3, 4]]),
        ("INT8", [[1, 2], [3, 4]]),
    ),
}


def test_extension_columns_of_pandas() -> None:
    columns = {
        name: pd.array(values, dtype=pd.ArrowDtype(dtype()) if callable(dtype) else dtype)
        for name, (dtype, values, _) in EXTENSIONS.items()
    }
    frame = pd.DataFrame(columns, index=["x", "y"])
    tensors = {tensor.name: tensor for tensor in tw.tensors_from_dataframe(frame)}
    assert lists_of(list(tensors.values())) == {name: row[2] for name, row in EXTENSIONS.items()}
    for name in ("Int64", "Float32", "boolean"):
        assert np.shares_memory(tensors[name].as_numpy(), frame[name].array._data)
    (buffer,) = frame["arrow int"].array.__arrow_array__().chunks
    assert address(tensors["arrow int"].data) == buffer.buffers()[1].address


ROW = "row 1 of column 'x' is {}, but row 0 is an array of float64 [2]: all rows must have"
UNEQUAL_ROWS: dict[str, tuple[Any, str]] = {
    "shapes": (np.zeros(3), "an array of float64 [3]"),
    "ranks": (np.zeros((1, 2)), "an array of float64 [1, 2]"),
    "dtypes": (np.zeros(2, np.int64), "an array of int64 [2]"),
    "text": (np.array(["a", "b"]), "an array of <U1 [2]"),
    "no array": ([0.0, 0.0], "list"),
}


@pytest.mark.parametrize("case", UNEQUAL_ROWS)
def test_rows_that_do_not_fit_together(case: str) -> None:
    cell, found = UNEQUAL_ROWS[case]
    rows = pd.Series([np.zeros(2), cell], dtype=object)
    with pytest.raises(tw.EncodeError) as caught:
        tw.tensors_from_dataframe(pd.DataFrame({"x": rows}))
    assert str(caught.value).startswith(ROW.format(found))
    assert caught.value.tensor == "x"


def test_rows_of_one_kind() -> None:
    numbers = pd.Series([np.zeros(2, np.int8), np.ones(2, np.int64)])
    text = pd.Series([np.array(["a", "b"]), np.array(["cc", "d"])])
    column = pd.Series([b"\xff", "é"], dtype=object)
    arrays = pd.Series([np.array([1.5, 2]), np.array([3, 4.5])], dtype=object)
    frame = pd.DataFrame({"n": numbers, "t": text, "b": column, "a": arrays})
    assert lists_of(tw.tensors_from_dataframe(frame)) == {
        "n": ("INT64", [[0, 0], [1, 1]]),
        "t": ("BYTES", [[b"a", b"b"], [b"cc", b"d"]]),
        "b": ("BYTES", [b"\xff", "é".encode()]),
        "a": ("FP64", [[1.5, 2], [3, 4.5]]),
    }


def test_columns_in_several_chunks() -> None:
    part = pl.DataFrame({"n": [1, 2], "s": ["a", "b"], "b": [True, False]})
    frame = pl.concat([part, part, part], rechunk=False)
    expected = {
        "n": ("INT64", [1, 2] * 3),
        "s": ("BYTES", [b"a", b"b"] * 3),
        "b": ("BOOL", [True, False] * 3),
    }
    assert lists_of(tw.tensors_from_dataframe(frame)) == expected
    table = pa.concat_tables([part.to_arrow()] * 3)
    assert lists_of(tw.tensors_from_dataframe(table)) == expected
    batch = pa.RecordBatch.from_pydict({"n": [1, 2], "s": ["a", "b"]})
    assert lists_of(tw.tensors_from_dataframe(batch[1:])) == {
        "n": ("INT64", [2]),
        "s": ("BYTES", [b"b"]),
    }


def test_arrow_columns_in_one_chunk_are_not_copied() -> None:
    table = pa.table({"x": pa.array([1.5, 2.5, 3.5])})[1:]
    (tensor,) = tw.tensors_from_dataframe(table)
    assert address(tensor.as_numpy()) == table["x"].chunk(0).buffers()[1].address + 8
    frame = pl.DataFrame({"x": [1, 2, 3]})
    (tensor,) = tw.tensors_from_dataframe(frame)
    assert np.shares_memory(tensor.as_numpy(), frame["x"].to_numpy(allow_copy=False))


MISSING_VALUES: dict[str, tuple[Callable[[], Any], int, int]] = {  # their number, the first one
    "Int64": (lambda: pd.array([1, None, None], dtype="Int64"), 2, 1),
    "Float64": (lambda: pd.array([1.5, None], dtype="Float64"), 1, 1),
    "boolean": (lambda: pd.array([True, None], dtype="boolean"), 1, 1),
    "str": (lambda: pd.array(["a", "b", None], dtype="str"), 1, 2),
    "python": (lambda: pd.array([None], dtype="string[python]"), 1, 0),
    "ArrowDtype": (lambda: pd.array([1, None], dtype="int8[pyarrow]"), 1, 1),
    "object": (lambda: pd.Series(["a", np.nan], dtype=object), 1, 1),
    "arrays": (lambda: pd.Series([np.zeros(2), None], dtype=object), 1, 1),
}
NULLS: dict[str, tuple[Callable[[], Any], int]] = {  # test_arrow_numbers.py has more
    "polars": (lambda: pl.Series([1, 2, None]), 2),
    "polars text": (lambda: pl.Series(["a", None]), 1),
    "pyarrow": (lambda: pa.array([None, True, None]), 0),
    "pyarrow text": (lambda: pa.array(["a", None]), 1),
}


def frame_of(column: Any, name: Any = "x") -> Any:
    """Return a frame with a column, of the package of the column."""
    library = type(column).__module__.partition(".")[0]
    if library == "polars":
        return pl.DataFrame({name: column})
    if library == "pyarrow":
        return pa.table({name: column})
    return pd.DataFrame({name: column})


@pytest.mark.parametrize("case", MISSING_VALUES)
def test_missing_values_of_pandas_are_rejected(case: str) -> None:
    make, n_missing, first = MISSING_VALUES[case]
    with pytest.raises(tw.EncodeError) as caught:
        tw.tensors_from_dataframe(frame_of(make()))
    assert str(caught.value).startswith(
        f"column 'x' contains {n_missing} missing value{'s' if n_missing > 1 else ''}, which "
        f"tensors cannot have; the first is element {first}"
    )
    assert (caught.value.tensor, caught.value.element) == ("x", first)


@pytest.mark.parametrize("case", NULLS)
def test_nulls_are_rejected(case: str) -> None:
    make, first = NULLS[case]
    with pytest.raises(
        tw.EncodeError, match=r"of tensor 'x' is null|'x' contains . null"
    ) as caught:
        tw.tensors_from_dataframe(frame_of(make()))
    assert (caught.value.tensor, caught.value.element) == ("x", first)


WITHOUT_DATATYPE: dict[str, tuple[Callable[[], Any], str]] = {
    "pandas category": (lambda: pd.Categorical(["a"]), "send its codes, column.cat.codes, or its"),
    "pandas datetime": (lambda: pd.to_datetime(["2020-01-02"]), "column.astype('int64')"),
    "pandas time zone": (
        lambda: pd.to_datetime(["2020-01-02"]).tz_localize("UTC"),
        "column.astype('int64')",
    ),
    "pandas timedelta": (lambda: pd.to_timedelta([1], "s"), "column.astype('int64')"),
    "pandas period": (lambda: pd.period_range("2020", periods=1, freq="D"), "convert it to numb"),
    "pandas interval": (lambda: pd.interval_range(0, 1), "convert it to numbers or to text"),
    "arrow timestamp": (
        lambda: pd.array([WHEN], dtype="timestamp[us][pyarrow]"),
        "column.astype('int64')",
    ),
    "polars category": (lambda: pl.Series(["a"], dtype=pl.Categorical), "or send to_physical()"),
    "polars enum": (lambda: pl.Series(["a"], dtype=pl.Enum(["a"])), "or send to_physical()"),
    "polars datetime": (lambda: pl.Series([WHEN]), "cast it to Int64, or format it as text"),
    "polars date": (lambda: pl.Series([WHEN.date()]), "cast it to Int32, or format it as text"),
    "polars list": (lambda: pl.Series([[1], [2, 3]]), "convert it with list.to_array(width)"),
    "polars struct": (lambda: pl.Series([{"a": 1}]), "convert it to numbers, bytes or text first"),
    "pyarrow timestamp": (lambda: pa.array([WHEN]), "of format 'tsu:' (timestamp)"),
    "pyarrow dictionary": (lambda: pa.array(["a"]).dictionary_encode(), "with a dictionary"),
}


@pytest.mark.parametrize("case", WITHOUT_DATATYPE)
def test_columns_without_a_datatype_are_rejected(case: str) -> None:
    make, advice = WITHOUT_DATATYPE[case]
    with pytest.raises(TypeError) as caught:
        tw.tensors_from_dataframe(frame_of(make()))
    assert "'x'" in str(caught.value)
    assert advice in str(caught.value)


def test_advice_for_columns_of_pandas_works() -> None:
    dates = pd.Series(pd.to_datetime(["2020-01-02"]))
    categories = pd.Series(["b", "a", "b"], dtype="category")
    for column in (
        *(dates.astype("int64"), dates.astype(str)),
        *(categories.cat.codes, categories.astype(str)),
    ):
        assert tw.tensors_from_dataframe(pd.DataFrame({"x": column}))[0].shape == column.shape


def test_names_of_columns() -> None:
    with pytest.raises(TypeError, match="the name of column 0 must be a str, not 0"):
        tw.tensors_from_dataframe(pd.DataFrame([[1]]))
    with pytest.raises(ValueError, match="two columns are named 'a'"):
        tw.tensors_from_dataframe(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ValueError, match="two columns are named 'a'"):
        tw.tensors_from_dataframe(pa.table([[1], [2]], ["a", "a"]))


@pytest.mark.parametrize(
    "make",
    [lambda: {"a": [1]}, lambda: None, lambda: pd.Series([1]), lambda: pl.Series([1])],
    ids=["dict", "None", "pandas", "polars"],
)
def test_other_objects_are_rejected(make: Callable[[], Any]) -> None:
    value = make()
    with pytest.raises(TypeError, match="a data frame must be one of pandas, polars or pyarrow"):
        tw.tensors_from_dataframe(value)


# --- to frames ---


def test_text_columns_of_pandas_do_not_require_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    package("pandas")
    words = ["a", "é", ""]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pd.option_context("mode.string_storage", "python"):
        frame = tw.dataframe_from_tensors([tw.Tensor("s", words)], "pandas")
        assert frame["s"].tolist() == words


@pytest.mark.parametrize("name", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.table"])
def test_data_frame_in_place_of_tensors(name: str) -> None:
    module, _, function = name.partition(".")
    frame: Any = getattr(package(module), function)({"a": [1, 2], "b": [0.5, 2]})
    kind = type(frame).__name__
    for message, what in ((tw.InferRequest, "inputs"), (tw.InferResponse, "outputs")):
        with pytest.raises(TypeError) as caught:
            message(frame)
        assert str(caught.value) == (
            f"{what} must be a mapping or an iterable of tensors, not {kind}: pass "
            f"tensors_from_dataframe({what})"
        )
    pattern = (
        r"tensor 'x' .* \(struct or table\), .*; tensors_from_dataframe makes a tensor of each"
    )
    for make in (lambda: tw.Tensor("x", frame), lambda: tw.InferRequest({"x": frame})):
        with pytest.raises(TypeError, match=pattern):
            make()


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
@pytest.mark.parametrize("storage", ["pyarrow", "python", None])
def test_text_columns_of_pandas_have_the_dtype_of_pandas(storage: str | None) -> None:
    """None is the object dtype of pandas 2."""
    package("pandas")
    package("pyarrow")
    option = ("future.infer_string", False) if storage is None else ("mode.string_storage", storage)
    words = ["a", "é", "", "x\0y", "longer than twelve bytes"]
    with pd.option_context(*option):
        expected = pd.Series(words, name="s")
        frame = tw.dataframe_from_tensors([tw.Tensor("s", words)], "pandas")
        binary = tw.dataframe_from_tensors([tw.Tensor("s", [b"\xff", b"a"])], "pandas")["s"]
        (again,) = tw.tensors_from_dataframe(frame)
    pd.testing.assert_series_equal(frame["s"], expected)
    assert getattr(frame["s"].dtype, "storage", None) == storage
    assert (binary.dtype, binary.tolist()) == (object, [b"\xff", b"a"])
    assert again.as_strings().tolist() == words
    frame.loc[1, "s"] = "changed"
    assert frame["s"].tolist() == ["a", "changed", *words[2:]]


def test_columns_of_pandas_are_views_of_the_tensors() -> None:
    package("pandas")
    rows = np.arange(6.0).reshape(3, 2)
    memory = np.zeros(25, np.uint8)
    misaligned = memory[1:].view("<f8")
    tensors = [tw.Tensor("rows", rows), tw.Tensor("misaligned", misaligned)]
    frame = tw.dataframe_from_tensors(tensors, "pandas")
    assert address(frame["rows"][1]) == address(rows) + 16
    assert frame["misaligned"].to_numpy().flags.aligned
    assert frame.index.tolist() == [0, 1, 2]


def test_tensors_that_do_not_fit_together() -> None:
    a, b = tw.Tensor("a", np.zeros(2)), tw.Tensor("b", np.zeros((3, 2)))
    with pytest.raises(ValueError, match="tensor 'b' has 3 rows, but tensor 'a' has 2"):
        tw.dataframe_from_tensors([a, b], "pandas")
    with pytest.raises(ValueError, match="tensor 'a' has 2 rows, but tensor 'b' has 3"):
        tw.dataframe_from_tensors([b, a], "pandas")
    with pytest.raises(ValueError, match="two tensors are named 'a'"):
        tw.dataframe_from_tensors([a, a], "polars")
    with pytest.raises(ValueError, match="tensor 's' has no dimensions, but a column requires one"):
        tw.dataframe_from_tensors([tw.Tensor("s", np.zeros(()))], "pyarrow")
    with pytest.raises(TypeError, match=r"tensors\[1\] must be a Tensor, not ndarray"):
        tw.dataframe_from_tensors([a, np.zeros(2)], "pandas")  # type: ignore[list-item]
    with pytest.raises(ValueError, match="library must be 'pandas', 'polars' or 'pyarrow', not 'x"):
        tw.dataframe_from_tensors([a], "xarray")  # type: ignore[arg-type]


def test_tensors_without_a_column_type(library: Any) -> None:
    bf16 = tw.Tensor("b", np.zeros(2, np.uint16), datatype="BF16")
    with pytest.raises(tw.EncodeError, match="tensor 'b' is BF16, which data frames do not supp"):
        tw.dataframe_from_tensors([bf16], library)
    region = tw.Tensor(
        "r", None, datatype="FP32", shape=[2], parameters={"shared_memory_region": "m"}
    )
    with pytest.raises(tw.TensorwireError, match="tensor 'r' is in shared memory"):
        tw.dataframe_from_tensors([region], library)


def test_packages_are_imported_on_use() -> None:
    package("polars")
    code = """
import sys
import numpy as np
import tensorwire as tw

def imported():
    return {"pandas", "polars", "pyarrow"} & set(sys.modules)

try:
    tw.tensors_from_dataframe(np.zeros(2))
except TypeError:
    assert not imported()
tw.dataframe_from_tensors([tw.Tensor("x", np.zeros(2))], "polars")
assert imported() == {"polars"}
"""
    done = run_script(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.no_sanitizers(reason="it measures memory")
@pytest.mark.thread_unsafe(reason="it counts the objects of the process")
def test_conversions_do_not_leak(library: Any) -> None:
    tensors = [
        tw.Tensor("n", np.arange(3)),
        tw.Tensor("rows", np.zeros((3, 2))),
        tw.Tensor("flags", np.array([True, False, True])),
        tw.Tensor("text", ["a", "b", "longer than twelve bytes"]),
    ]
    frame = tw.dataframe_from_tensors(tensors, library)
    assert not leak_of(lambda: tw.dataframe_from_tensors(tensors, library), 300)
    assert not leak_of(lambda: tw.tensors_from_dataframe(frame), 300)
