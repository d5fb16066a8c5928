"""Data frames of pandas, polars and pyarrow to tensors and back: values, addresses, errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest

import tensorwire as tw
from support.array_samples import DTYPES
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
    arrays = {name: numbers.astype(dtype) for name, dtype in DTYPES.items() if name != "BF16"}
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


def nested(values: Any) -> Any:
    """Return lists instead of the arrays of objects in the cells of pandas."""
    return list(map(nested, values)) if isinstance(values, list | np.ndarray) else values


def test_text_and_binary(library: Any) -> None:
    rows: dict[str, list[Any]] = {
        "text": ["a", "", "longer than twelve bytes é"],
        "binary": [b"\xff", b"", b"longer than twelve bytes \xff"],
        "rows": [["a", "b"], ["c", "d"], ["e", "f"]],
        "cubes": [[["a"], ["b"]], [["c"], ["d"]], [["e"], ["f"]]],
    }
    tensors = [tw.Tensor(name, values) for name, values in rows.items()]
    frame = tw.dataframe_from_tensors(tensors, library)
    assert {name: nested(rows_of(frame[name])) for name in rows} == rows
    assert lists_of(tw.tensors_from_dataframe(frame)) == lists_of(tensors)
    if library == "polars":
        arrays = [pl.Array(pl.String, shape) for shape in (2, (2, 1))]
        assert frame.dtypes == [pl.String, pl.Binary, *arrays]
    if library == "pyarrow":
        text = pa.large_string()
        lists = [pa.list_(text, 2), pa.list_(pa.list_(text, 1), 2)]
        assert frame.schema.types == [text, pa.large_binary(), *lists]
    assert tw.tensors_from_dataframe(tw.dataframe_from_tensors([], library)) == []


def test_frame_keeps_the_body_alive(library: Any) -> None:
    def convert(body: Any) -> Any:
        spec = tw.TensorSpec("x", "INT32", [12])
        tensor = tw.decode_request(body, 0, raw_input=spec)["x"]
        lists = tw.Tensor("y", tensor.as_numpy().reshape(12, 1, 1))
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


# The dtype of a column, its values, and the datatype and the values of its tensor.
EXTENSIONS: dict[str, tuple[Any, list[Any], str, list[Any]]] = {
    "Int64": ("Int64", [1, 2], "INT64", [1, 2]),
    "Float32": ("Float32", [0.5, 1.5], "FP32", [0.5, 1.5]),
    "boolean": ("boolean", [True, False], "BOOL", [True, False]),
    "str": ("str", ["a", "é"], "BYTES", [b"a", "é".encode()]),
    "string": ("string", ["a", "b"], "BYTES", [b"a", b"b"]),
    "python": ("string[python]", ["c", "d"], "BYTES", [b"c", b"d"]),
    "pyarrow": ("string[pyarrow]", ["e", "f"], "BYTES", [b"e", b"f"]),
    "arrow int": ("int16[pyarrow]", [1, 2], "INT16", [1, 2]),
    "arrow bytes": ("binary[pyarrow]", [b"\xff", b""], "BYTES", [b"\xff", b""]),
}


def test_extension_columns_of_pandas() -> None:
    rows = [[1, 2], [3, 4]]
    columns = {name: pd.array(row[1], dtype=row[0]) for name, row in EXTENSIONS.items()}
    columns["arrow list"] = pd.array(rows, dtype=pd.ArrowDtype(pa.list_(pa.int8(), 2)))
    frame = pd.DataFrame(columns, index=["x", "y"])
    tensors = {tensor.name: tensor for tensor in tw.tensors_from_dataframe(frame)}
    expected = {name: row[2:] for name, row in EXTENSIONS.items()} | {"arrow list": ("INT8", rows)}
    assert lists_of(list(tensors.values())) == expected
    for name in ("Int64", "Float32", "boolean"):
        assert np.shares_memory(tensors[name].as_numpy(), frame[name].array._data)
    (buffer,) = frame["arrow int"].array.__arrow_array__().chunks
    assert address(tensors["arrow int"].data) == buffer.buffers()[1].address


def test_tensors_of_columns_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    package("pandas")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("Int64", "Float32", "boolean", "python"):
        dtype, values, *expected = EXTENSIONS[name]
        column = pd.Series(values, dtype=dtype)
        tensor, rows = tw.Tensor("x", column), tw.Tensor("x", [column, column])
        assert [tensor.datatype, tensor.tolist(), rows.shape] == [*expected, (2, 2)]
    assert tw.encode_bytes(column) == tw.encode_bytes(values)
    with pytest.raises(TypeError, match=r"tensor 'x' has the dtype category.*column.cat.codes"):
        tw.Tensor("x", pd.Series([1], dtype="category"))


FIRST = "but item 0 is FP64 [2]"
RAGGED = "is a ragged list: item 1 has shape [3], but the items before it have shape [2]"
SIZES = "row 1 of column 'x' has a list of size 3, but the first list has size 2"
TWO, THREE = [0.5, 1.5], [0.5, 1.5, 2.5]
UNEQUAL_ROWS: dict[str, tuple[Callable[[], Any], str]] = {
    "shapes": (lambda: [np.zeros(2), np.zeros(3)], f"item 1 of column 'x' is FP64 [3], {FIRST}"),
    "ranks": (lambda: [np.zeros(2), np.zeros((1, 2))], f"is FP64 [1, 2], {FIRST}"),
    "dtypes": (lambda: [np.zeros(2), np.zeros(2, int)], f"is INT64 [2], {FIRST}"),
    "text": (lambda: [np.zeros(2), np.array(["a", "b"])], f"is BYTES [2], {FIRST}"),
    "no array": (lambda: [np.zeros(2), TWO], "is list, but the items before it are arrays"),
    "lists": (lambda: [TWO, THREE], RAGGED),
    "lists of text": (lambda: [["a", "b"], ["c", "d", "e"]], RAGGED),
    "lists with None": (lambda: [TWO, [0.5, None]], "element 3 of column 'x' must be a number"),
    "large integers": (lambda: [[2**63], [-1]], "element 1 of column 'x' is -1, which is out of"),
    "larger integers": (lambda: [[2**64], [1]], "an integer of 65 bits, which is out of range"),
    "polars": (lambda: pl.Series([TWO, THREE]), SIZES),
    "polars lists": (lambda: pl.Series([[TWO, TWO], [TWO, THREE]]), SIZES),
    "pyarrow": (lambda: pa.array([TWO, THREE]), SIZES),
    "polars null": (lambda: pl.Series([TWO, [0.5, None]]), "contains 1 null"),
    "pyarrow null": (lambda: pa.array([TWO, [0.5, None]]), "contains 1 null"),
}


@pytest.mark.parametrize("case", UNEQUAL_ROWS)
def test_rows_that_do_not_fit_together(case: str) -> None:
    make, message = UNEQUAL_ROWS[case]
    with pytest.raises(tw.EncodeError, match=re.escape(message)) as caught:
        tw.tensors_from_dataframe(frame_of(make()))
    assert caught.value.tensor == "x"


ROWS: dict[str, tuple[str, list[Any]]] = {
    "numbers": ("FP64", [[0.5, 1], [2, 3]]),
    "texts": ("BYTES", [[b"a\0"], [b"b"]]),
    "nested": ("INT64", [[[1, 2]], [[3, 4]]]),
}


def test_columns_of_lists(library: Any) -> None:
    values = {name: rows for name, (_, rows) in ROWS.items()}
    if library == "pandas":
        frame = pd.DataFrame(values | {"tuples": [(1, 2), (3, 4)]})
    else:
        frame = pl.DataFrame(values) if library == "polars" else pa.table(values)
    found = lists_of(tw.tensors_from_dataframe(frame))
    assert found.pop("tuples", None) in (None, ("INT64", [[1, 2], [3, 4]]))
    assert found == ROWS
    if library == "pyarrow":
        assert lists_of(tw.tensors_from_dataframe(pa.concat_tables([frame] * 2)[1:3])) == {
            name: (datatype, rows[::-1]) for name, (datatype, rows) in ROWS.items()
        }


def test_lists_of_large_integers_are_not_rounded() -> None:
    rows: Any = [[2**63 + 1, 1], [np.int64(0), 2**64 - 1]]
    assert lists_of(tw.tensors_from_dataframe(frame_of(rows))) == {"x": ("UINT64", rows)}


def test_lists_of_floats_of_numpy_keep_their_size() -> None:
    for kind, datatype in ((np.float16, "FP16"), (np.float32, "FP32")):
        rows: Any = [[kind(1.5), kind("inf")]]
        assert lists_of(tw.tensors_from_dataframe(frame_of(rows))) == {"x": (datatype, rows)}


def test_columns_of_empty_lists() -> None:
    kind = pl.List(pl.List(pl.Int8))
    for rows, shape in ([], (0, 0, 0)), ([[], []], (2, 0, 0)), ([[[]], [[]]], (2, 1, 0)):
        frame = pl.DataFrame({"x": pl.Series(rows, dtype=kind)})
        for made in (frame, frame.to_arrow()):
            (tensor,) = tw.tensors_from_dataframe(made)
            assert (tensor.datatype, tensor.shape) == ("INT8", shape)


def test_column_vectors(library: Any) -> None:
    tensors = [tw.Tensor("n", np.arange(3)), tw.Tensor("s", ["a", "b", "c"])]
    rows = tw.Tensor("rows", np.zeros((3, 2)))
    frame = tw.dataframe_from_tensors([*tensors, rows], library)
    made = tw.tensors_from_dataframe(frame, column_vectors=True)
    assert [tensor.shape for tensor in made] == [(3, 1), (3, 1), (3, 2)]
    for message in (tw.InferRequest(made), tw.InferResponse(made)):
        again = tw.dataframe_from_tensors(message, library)
        assert lists_of(tw.tensors_from_dataframe(again)) == lists_of([*tensors, rows])


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


# The number of missing values, the first one, and the column. test_arrow_numbers.py has more nulls.
MISSING_VALUES: dict[str, tuple[int, int, Callable[[], Any]]] = {
    "Int64": (2, 1, lambda: pd.array([1, None, None], dtype="Int64")),
    "boolean": (1, 1, lambda: pd.array([True, None], dtype="boolean")),
    "str": (1, 2, lambda: pd.array(["a", "b", None], dtype="str")),
    "python": (1, 0, lambda: pd.array([None], dtype="string[python]")),
    "ArrowDtype": (1, 1, lambda: pd.array([1, None], dtype="int8[pyarrow]")),
    "decimal": (1, 1, lambda: pd.array([Decimal(1), None], pd.ArrowDtype(pa.decimal128(5, 2)))),
    "object": (1, 1, lambda: pd.Series(["a", np.nan], dtype=object)),
    "arrays": (1, 1, lambda: pd.Series([np.zeros(2), None], dtype=object)),
    "lists": (1, 1, lambda: [[0], None]),
    "polars lists": (1, 1, lambda: pl.Series([[0], None])),
    "pyarrow lists": (1, 1, lambda: pa.array([[0], None])),
}


def frame_of(column: Any, name: Any = "x") -> Any:
    """Return a frame with a column, of the package of the column."""
    library = type(column).__module__.partition(".")[0]
    if library == "polars":
        return pl.DataFrame({name: column})
    if library == "pyarrow":
        return pa.table({name: column})
    column = pd.Series(column, dtype=object) if isinstance(column, list) else column
    return pd.DataFrame({name: column})


@pytest.mark.parametrize("case", MISSING_VALUES)
def test_missing_values_are_rejected(case: str) -> None:
    n_missing, first, make = MISSING_VALUES[case]
    counted = f"{n_missing} missing value{'s' if n_missing > 1 else ''}"
    of_pandas = f"^column 'x' contains {counted}, which tensors cannot have; the first is element"
    message = f"{of_pandas} {first}|'x' contains . null"
    with pytest.raises(tw.EncodeError, match=message) as caught:
        tw.tensors_from_dataframe(frame_of(make()))
    assert (caught.value.tensor, caught.value.element) == ("x", first)


INT64 = "astype('int64')"
AS_INT64 = f"column.{INT64}"
CONVERT = "convert it to numbers"
WITHOUT_DATATYPE: dict[str, tuple[str, Callable[[], Any]]] = {  # the advice, and the column
    "pandas category": ("send its codes, column.cat.codes, or", lambda: pd.Categorical(["a"])),
    "pandas datetime": (AS_INT64, lambda: pd.to_datetime(["2020-01-02"])),
    "pandas time zone": (AS_INT64, lambda: pd.to_datetime(["2020-01-02"]).tz_localize("UTC")),
    "pandas timedelta": (AS_INT64, lambda: pd.to_timedelta([1], "s")),
    "pandas period": (CONVERT, lambda: pd.period_range("2020", periods=1, freq="D")),
    "pandas interval": (CONVERT, lambda: pd.interval_range(0, 1)),
    "arrow timestamp": (AS_INT64, lambda: pd.array([WHEN], dtype="timestamp[us][pyarrow]")),
    "pandas date": (f"pandas.to_datetime(column).{INT64}", lambda: [WHEN.date()]),
    "pandas time": ("convert it with column.astype(str)", lambda: [WHEN.time()]),
    "pandas Decimal": ("column.astype('float64') or", lambda: [Decimal("0.5")]),
    "pandas UUID": (
        "cell of type UUID, which has no datatype: convert it with",
        lambda: [UUID(int=1)],
    ),
    "pandas ints": (f"{AS_INT64} or column.astype(str)", lambda: [2, 1]),
    "pandas numbers": ("column.astype('float64') or column.astype(str)", lambda: [1, 0.5]),
    "pandas text": ("type int, which has no datatype: convert it with c", lambda: ["a", 1]),
    "pandas objects": (CONVERT, lambda: [{"a": 1}]),
    "arrow date": (
        f"pandas.to_datetime(column).{INT64}",
        lambda: pd.array([WHEN.date()], "date32[day][pyarrow]"),
    ),
    "polars category": ("or send to_physical()", lambda: pl.Series(["a"], dtype=pl.Categorical)),
    "polars enum": ("or send to_physical()", lambda: pl.Series(["a"], dtype=pl.Enum(["a"]))),
    "polars datetime": ("cast it to Int64, or format it as text", lambda: pl.Series([WHEN])),
    "polars date": ("cast it to Int32, or format it as text", lambda: pl.Series([WHEN.date()])),
    "polars Decimal": ("cast it to Float64, or to String", lambda: pl.Series([Decimal("0.5")])),
    "polars UUID": ("make a column of numbers or of text", lambda: pl.Series([UUID(int=1)])),
    "polars struct": (CONVERT, lambda: pl.Series([{"a": 1}])),
    "pyarrow timestamp": ("of format 'tsu:' (timestamp)", lambda: pa.array([WHEN])),
    "pyarrow dictionary": ("with a dictionary", lambda: pa.array(["a"]).dictionary_encode()),
}


@pytest.mark.parametrize("case", WITHOUT_DATATYPE)
def test_columns_without_a_datatype_are_rejected(case: str) -> None:
    advice, make = WITHOUT_DATATYPE[case]
    frame = frame_of(make())
    with pytest.raises(TypeError, match=f"column 'x'.*{re.escape(advice)}") as caught:
        tw.tensors_from_dataframe(frame)
    for expression in re.findall(r"\S*column\S*\)", str(caught.value)):
        tw.Tensor("x", eval(expression, {"column": frame["x"], "pandas": pd}))


ONE_OF = "a data frame must be one of pandas, polars or pyarrow"
NO_FRAMES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: pd.DataFrame([[1]]), TypeError, "the name of column 0 must be a str, not 0"),
    (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError, "two columns are named 'a'"),
    (lambda: pa.table([[1], [2]], ["a", "a"]), ValueError, "two columns are named 'a'"),
    *((lambda value=value: value, TypeError, ONE_OF) for value in ({"a": [1]}, None)),
    (lambda: pd.Series([1]), TypeError, ONE_OF),
    (lambda: pl.Series([1]), TypeError, ONE_OF),
]


@pytest.mark.parametrize(("make", "kind", "message"), NO_FRAMES)
def test_other_objects_and_names_of_columns(
    make: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        tw.tensors_from_dataframe(make())


# --- to frames ---


def test_text_columns_of_pandas_do_not_require_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["a", "é", ""]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pd.option_context("mode.string_storage", "python"):
        frame = tw.dataframe_from_tensors([tw.Tensor("s", words)], "pandas")
        assert frame["s"].tolist() == words


@pytest.mark.parametrize("name", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.table"])
def test_data_frame_in_place_of_tensors(name: str) -> None:
    module, _, function = name.partition(".")
    frame: Any = getattr(package(module), function)({"a": [1, 2], "b": [0.5, 2]})
    for make, what in ((tw.InferRequest, "inputs"), (tw.InferResponse, "outputs")):
        with pytest.raises(TypeError) as caught:
            make(frame)
        assert str(caught.value) == (
            f"{what} must be a mapping or an iterable of tensors, not {type(frame).__name__}: pass "
            f"tensors_from_dataframe({what})"
        )
    hint = r"tensor 'x' is a data frame .* dataframe.to_numpy\(\), or .* tensors_from_dataframe"
    for data in (lambda: tw.Tensor("x", frame), lambda: tw.InferRequest({"x": frame})):
        with pytest.raises(TypeError, match=hint):
            data()


@pytest.mark.thread_unsafe(reason="it sets an option of pandas")
@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
@pytest.mark.parametrize("storage", ["pyarrow", "python", None])
def test_text_columns_of_pandas_have_the_dtype_of_pandas(storage: str | None) -> None:
    """None is the object dtype of pandas 2."""
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


def test_choice_of_text_or_bytes(library: Any) -> None:
    tensors = [tw.Tensor("a", ["x", "y"]), tw.Tensor("b", [b"x", b"\xff"])]
    tensors.append(tw.Tensor("rows", [["p", "q"], ["r", "s"]]))

    def rows(text: Any) -> list[Any]:
        frame = tw.dataframe_from_tensors(tensors, library, text=text)
        return [nested(rows_of(frame[t.name])) for t in tensors]

    a, b, binary = (tensor.tolist() for tensor in tensors)
    assert rows(False) == [a, b, binary]
    assert rows(["a"]) == [["x", "y"], b, binary]
    assert rows(iter(["rows"])) == [a, b, [["p", "q"], ["r", "s"]]]
    for text in (True, ["b"]):
        with pytest.raises(tw.ElementError, match="element 1 of tensor 'b' is not valid UTF-8"):
            rows(text)
    with pytest.raises(ValueError, match=r"text contains 'c', but the tensors are \['a', 'b'"):
        rows(["c"])
    with pytest.raises(TypeError, match="text must be a bool or a list of names: pass \\['a'\\]"):
        rows("a")


def test_columns_of_pandas_are_views_of_the_tensors() -> None:
    package("pandas")
    rows = np.arange(6.0).reshape(3, 2)
    misaligned = np.zeros(25, np.uint8)[1:].view("<f8")
    tensors = [tw.Tensor("rows", rows), tw.Tensor("misaligned", misaligned)]
    frame = tw.dataframe_from_tensors(tensors, "pandas")
    assert address(frame["rows"][1]) == address(rows) + 16
    assert frame["misaligned"].to_numpy().flags.aligned
    assert frame.index.tolist() == [0, 1, 2]


A, B = tw.Tensor("a", np.zeros(2)), tw.Tensor("b", np.zeros((3, 2)))
NO_COLUMNS: list[tuple[list[Any], str, type[Exception], str]] = [
    ([A, B], "pandas", ValueError, "tensor 'b' has 3 rows, but tensor 'a' has 2"),
    ([B, A], "pandas", ValueError, "tensor 'a' has 2 rows, but tensor 'b' has 3"),
    ([A, A], "polars", ValueError, "two tensors are named 'a'"),
    (
        *([tw.Tensor("s", np.zeros(()))], "pyarrow", ValueError),
        "tensor 's' has no dimensions, but a column requires one",
    ),
    ([A, np.zeros(2)], "pandas", TypeError, r"tensors\[1\] must be a Tensor, not ndarray"),
    ([A], "xarray", ValueError, "library must be 'pandas', 'polars' or 'pyarrow', not 'x"),
]


@pytest.mark.parametrize(("tensors", "library", "kind", "message"), NO_COLUMNS)
def test_tensors_that_are_not_columns(
    tensors: list[Any], library: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        tw.dataframe_from_tensors(tensors, library)


def test_tensors_without_a_column_type(library: Any) -> None:
    bf16 = tw.Tensor("b", np.zeros(2, np.uint16), datatype="BF16")
    with pytest.raises(tw.EncodeError, match="tensor 'b' is BF16, which data frames do not supp"):
        tw.dataframe_from_tensors([bf16], library)
    parameters = {"shared_memory_region": "m"}
    region = tw.Tensor("r", None, datatype="FP32", shape=[2], parameters=parameters)
    with pytest.raises(tw.TensorwireError, match="tensor 'r' is in shared memory"):
        tw.dataframe_from_tensors([region], library)


def test_packages_are_imported_on_use() -> None:
    package("polars")
    code = """
import sys
import numpy as np
import tensorwire as tw

try:
    tw.tensors_from_dataframe(np.zeros(2))
except TypeError:
    assert not {"pandas", "polars", "pyarrow"} & set(sys.modules)
tw.dataframe_from_tensors([tw.Tensor("x", np.zeros(2))], "polars")
assert {"pandas", "polars", "pyarrow"} & set(sys.modules) == {"polars"}
"""
    done = run_script(code)
    assert done.returncode == 0, done.stderr
