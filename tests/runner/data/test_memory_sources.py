"""What a Python program holds: pairs, tables, rows of torch; functions that were not called."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onward.errors import DataError
from onward.runner.data.in_memory import paired_target
from onward.runner.data.memory_sources import check_is_data, read_once
from onward.runner.data.open_data import open_data

X, Y = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4) % 2


class Series:
    """A column with a name, as pandas and polars have them."""

    def __init__(self, values: Any, name: str) -> None:
        self.values, self.name, self.shape = np.asarray(values), name, np.shape(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


class Rows:
    """A dataset of torch: rows by position."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        return X[place], int(Y[place])  # of any place, without an end


def described(source: Any) -> dict[str, str]:
    return {name: str(column) for name, column in open_data(source).columns.items()}


@pytest.mark.parametrize(
    ("pair", "columns"),
    [
        ((X, Y), {"x": "float32[3]", "y": "int64"}),
        ([X, Y], {"x": "float32[3]", "y": "int64"}),
        ((X.tolist(), Y.tolist()), {"x": "float64[3]", "y": "int64"}),
        (((X, X[:, :2]), Y), {"x_0": "float32[3]", "x_1": "float32[2]", "y": "int64"}),
        (({"a": X, "y": Y}, Y), {"a": "float32[3]", "y": "int64", "target": "int64"}),
        (({"a": X}, {"u": Y, "v": X[:, 0]}), {"a": "float32[3]", "y": "float64[2]"}),
        ((X, Series(Y, "kind")), {"x": "float32[3]", "kind": "int64"}),
    ],
)
def test_pair_is_inputs_and_a_target(pair: Any, columns: dict[str, str]) -> None:
    data = open_data(pair)
    assert {name: str(column) for name, column in data.columns.items()} == columns
    assert paired_target(data) == list(columns)[-1]
    assert data.read([3, 1]).keys() == columns.keys()


def test_two_rows_are_no_pair() -> None:
    assert len(open_data(({"a": 1.0}, {"a": 2.0}))) == 2
    assert len(open_data([({"a": 1.0}, 0), ({"a": 2.0}, 1), ({"a": 3.0}, 1)])) == 3
    assert described(((1.0, "a"), (2.0, "b"))) == {"x": "float64", "y": "text"}


def test_rows_by_position() -> None:
    data = open_data(Rows())
    assert len(data) == 4 and data.read([2])["x"].tolist() == [X[2].tolist()]


def test_rows_with_several_inputs() -> None:
    assert described([((X[0], Y), 1)]) == {"x_0": "float32[3]", "x_1": "int64[4]", "y": "int64"}
    of_a_dict = {"ids": "int64[4]", "text": "text", "y": "int64"}
    assert described([({"ids": Y, "text": "a"}, 1)]) == of_a_dict


def test_datasets_and_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.tensor(X, requires_grad=True), torch.tensor(Y)
    pairs = torch.utils.data.TensorDataset(x.detach(), y)
    assert described(pairs) == {"x": "float32[3]", "y": "int64"}
    assert len(open_data(torch.utils.data.Subset(pairs, [1, 3]))) == 2
    assert described((x, y)) == {"x": "float32[3]", "y": "int64"}
    assert described({"a": x.bfloat16(), "b": y}) == {"a": "float32[3]", "b": "int64"}


def test_table_in_the_form_of_arrow() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    kinds = pyarrow.array(["u", None, "v"], pyarrow.string_view())
    table = pyarrow.table({"n": [1, None, 3], "kind": kinds, "sure": [True, None, False]})

    class DataFrame:
        __module__ = "polars.dataframe.frame"
        columns = ("n", "kind", "sure")

        def __arrow_c_stream__(self, schema: Any = None) -> Any:
            return table.__arrow_c_stream__(schema)

    class LazyFrame:
        __module__ = "polars.lazyframe.frame"

        def collect(self) -> DataFrame:
            return DataFrame()

    for source in (DataFrame(), LazyFrame(), table):
        assert described(source) == {"n": "float64", "kind": "text", "sure": "float64"}
        batch = open_data(source).read([0, 1])
        assert np.isnan(batch["n"][1]) and batch["kind"].tolist() == ["u", ""]
    assert paired_target(open_data((DataFrame(), np.arange(3)))) == "y"


def test_tables_of_polars() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    table = polars.DataFrame({"a": [1, None], "s": ["u", None], "l": [[1, 2], [3, 4]]})
    for source in (table, table.lazy()):
        assert described(source) == {"a": "float64", "s": "text", "l": "int64[?]"}
        assert open_data(source).read([1])["s"].tolist() == [""]
    assert paired_target(open_data((table, polars.Series("kind", [0, 1])))) == "kind"


def test_dataset_of_hugging_face_keeps_its_class_names() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    source = datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": [0, 1]})
    source = source.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    assert open_data(source).class_names == {"label": ("cat", "dog")}


def test_bunch_of_scikit_learn() -> None:
    bunch = {"data": X, "target": Y, "frame": None, "target_names": ["a"], "DESCR": "flowers"}
    assert described(bunch) == {"x": "float32[3]", "y": "int64"}


def test_structured_array() -> None:
    assert described(np.zeros(2, [("a", "i4"), ("b", "f4")])) == {"a": "int32", "b": "float32"}


def test_missing_and_other_values_of_tables() -> None:
    columns = {
        "text": np.array(["a", None, float("nan")], object),
        "number": np.array([1, None, 3], object),
        "day": np.array(["2020-01-01", "NaT", "2021-01-01"], "M8[D]"),
        "list": np.array([[1, 2], [3, 4], [5, 6], None], object)[:3],
    }
    data = open_data(columns)
    batch = data.read([1])
    assert batch["text"].tolist() == [""] and np.isnan(batch["number"]).all()
    assert batch["day"].tolist() == [""] and batch["list"].tolist() == [[3, 4]]


def test_arrays_of_other_kinds() -> None:
    masked = np.ma.masked_equal(np.array([1, 2, 3]), 2)
    assert np.isnan(open_data({"x": masked}).read([1])["x"]).all()  # not the 2
    assert described(X.astype(object)) == {"x": "float64[3]"}
    texts = np.array(["groß", "klein"])
    for given in (np.char.encode(texts, "utf-8"), texts):
        assert open_data({"kind": given}).read([0])["kind"].tolist() == ["groß"]


def test_iterators_are_read_once() -> None:
    def rows() -> Iterator[Any]:
        yield from zip(X, Y)

    held = read_once(rows())
    assert len(open_data(held)) == len(open_data(held)) == 4
    for source in ("rows.csv", ["a.csv"], X, {"x": X}, (X, Y), None):
        assert read_once(source) is source


def make_rows(path: str, *, limit: int, seed: int = 0) -> list[Any]:
    return []


NOT_CALLED = [
    (make_rows, r"function make_rows, not what it returns\ncall it: make_rows\(path, limit=...\)"),
    (lambda: [], r"function <lambda>, not what it returns\ncall it"),
    (functools.partial(make_rows, "a"), r"function make_rows, .*\ncall it: make_rows\(limit=...\)"),
    (Rows, r"class Rows, not an object of it\nmake one: Rows\(\)"),
]


@pytest.mark.parametrize(("source", "message"), NOT_CALLED)
def test_function_instead_of_its_result_is_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^data is the {message}"):
        check_is_data("data", source)
    with pytest.raises(DataError, match=f"^the data is the {message}"):
        open_data(source)


WRONG = [
    ((X, Y[:3]), "the pair has 4 rows of inputs, but 3 of the target\ngive as many of both"),
    (({"kind": Y}, Series(Y, "kind")), "the pair has column 'kind' twice"),
    (
        ({"a": X}, {"u": Y, "v": list("abcd")}),
        "target is made of 2 columns, of which 'v' is text",
    ),
    ({"x": np.full((2, 2), "a", object)}, "column 'x' is of the type object\na column holds"),
    (io.StringIO("a,b"), r"the data is an open file \(StringIO\)\ngive its path"),
    ((X, Y, Y), r"the data is 3 arrays, of which none is named\ngive a pair \(x, y\)"),
]


@pytest.mark.parametrize(("source", "message"), WRONG)
def test_wrong_data_is_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(source)


def test_sparse_array_is_refused() -> None:
    class Matrix:
        def toarray(self) -> Any:
            return X

    for source in (Matrix(), (Matrix(), Y)):
        with pytest.raises(DataError, match=r"sparse array \(Matrix\)\nmake it dense"):
            open_data(source)


def test_two_columns_of_one_name_are_refused() -> None:
    class DataFrame:
        __module__ = "pandas.core.frame"
        columns = ("a", "a")

    with pytest.raises(DataError, match="the table has two columns 'a'\nrename one"):
        open_data(DataFrame())
