"""Parquet, Arrow and folders of Hugging Face's `datasets`: through open_data, with only pyarrow."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import ColumnMissing, DataError
from onward.runner.data.arrow_files import ParquetDataset
from onward.runner.data.dataset import UNREADABLE, Column
from onward.runner.data.open_data import open_data

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'onward[data]'")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def table(count: int = 10) -> Any:
    return pa.table(
        {
            "n": pa.array(range(count), pa.int32()),
            "x": pa.array([None, *map(float, range(1, count))], pa.float32()),
            "b": [n % 2 == 0 for n in range(count)],
            "t": [None, *map(str, range(1, count))],
            "v": pa.array([[n, n] for n in range(count)], pa.list_(pa.float32(), 2)),
            "r": [[0] * n for n in range(count)],
            "d": pa.array([str(n % 3) for n in range(count)]).dictionary_encode(),
        }
    )


def write_stream(path: Path, data: Any) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, data.schema) as writer:
        writer.write_table(data)


@pytest.fixture(params=["parquet", "file", "stream", "memory"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return table()
    if request.param == "parquet":
        pq.write_table(table(), tmp_path / "a.parquet", row_group_size=3)
        return tmp_path / "a.parquet"
    path = tmp_path / "a.arrow"
    if request.param == "stream":
        write_stream(path, table())
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
            writer.write_table(table())
    return path


def test_string_views_are_texts(tmp_path: Path) -> None:
    texts = pa.array(["a", None], pa.string_view())
    kinds = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["b", "c"], pa.string_view()))
    pq.write_table(pa.table({"t": texts}), tmp_path / "views.parquet")
    assert open_data(tmp_path / "views.parquet").read([1, 0])["t"].tolist() == ["", "a"]
    write_stream(tmp_path / "views.arrow", pa.table({"t": texts, "d": kinds}))
    rows = open_data(tmp_path / "views.arrow").read([1, 0])
    assert rows["t"].tolist() == ["", "a"] and rows["d"].tolist() == ["c", "b"]


def test_missing_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"v": [[1.0, 2.0], None]}), path)
    with pytest.raises(
        DataError, match=r"row 1: column 'v' has no value, .*\nremove the row, or f"
    ):
        open_data(path).read([0, 1])


def test_columns_and_rows(source: Any) -> None:
    data = open_data(source, target="n")
    assert {name: str(column) for name, column in data.columns.items()} == {
        "n": "int32", "x": "float32", "b": "bool", "t": "text", "v": "float32[2]", "r": "int64[?]",
        "d": "text",
    }  # fmt: skip
    batch = data.read([9, 0, 4, 9])
    assert batch["n"].tolist() == [9, 0, 4, 9] and batch["t"].tolist() == ["9", "", "4", "9"]
    np.testing.assert_array_equal(batch["x"], np.float32([9, np.nan, 4, 9]))
    assert batch["v"].tolist() == [[9, 9], [0, 0], [4, 4], [9, 9]]
    assert [len(row) for row in batch["r"]] == [9, 0, 4, 9] and batch["d"].tolist() == list("0010")
    assert batch["b"].tolist() == [False, True, True, False]
    assert data.read([1], ["n"])["n"].tolist() == [1]
    assert data.read([], ["n"])["n"].shape == (0,)


def test_types_and_columns_may_be_chosen(source: Any) -> None:
    data = open_data(source, types={"n": "text"}, columns=["n"])
    assert data.read([3])["n"].tolist() == ["3"]
    with pytest.raises(ColumnMissing, match=r"no column 'nn'"):
        open_data(source, columns=["nn"])


def test_row_groups_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=2)
    data = ParquetDataset(tmp_path / "a.parquet", kept_bytes=1)
    for row in (0, 9, 5):
        assert data.read([row])["n"].tolist() == [row]
        assert len(data._kept) == 1


def test_missing_numbers_name_their_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, None, 3]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row 1: column 'n' has no value.*\n.*types={'n': 'float'"):
        open_data(tmp_path / "a.parquet").read([2, 1])
    data = open_data(tmp_path / "a.parquet", types={"n": "float"})
    np.testing.assert_array_equal(data.read([0, 1])["n"], [1, np.nan])


def test_a_wrong_type_names_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": ["1", "2x"], "f": [1.0, 2.5]}), tmp_path / "a.parquet")
    data = open_data(tmp_path / "a.parquet", types={"t": "int", "f": "int"})
    assert data.read([0])["t"].tolist() == [1]
    with pytest.raises(DataError, match=r"row 1: column 't' has '2x', which is not a whole number"):
        data.read([0, 1], ["t"])
    with pytest.raises(DataError, match=r"row 1: column 'f' has 2.5, which is not int64"):
        data.read([1], ["f"])


def test_types_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "s": [{"a": 1}]}), tmp_path / "a.parquet")
    data = open_data(tmp_path / "a.parquet")
    assert data.columns["s"] == Column(UNREADABLE) and list(data.read([0])) == ["n"]
    for read in (
        lambda: data.read([0], ["s"]),
        lambda: open_data(tmp_path / "a.parquet", columns=["s"]),
        lambda: open_data(tmp_path / "a.parquet", target="s"),
    ):
        with pytest.raises(DataError, match=r"column 's' is of Arrow's type struct<.*\nchoose"):
            read()
    assert len(open_data(tmp_path / "a.parquet", columns=["n"])) == 1


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_truncated_and_empty_files_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    pq.write_table(table(), path) if suffix == ".parquet" else write_stream(path, table())
    whole = path.read_bytes()
    for kept in (0, 8, len(whole) // 2):
        path.write_bytes(whole[:kept])
        with pytest.raises(DataError, match=rf"a{suffix} is (truncated|empty)"):
            open_data(path)


def test_a_folder_of_datasets_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    names = ["data-1.arrow", "data-0.arrow"]
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        for number, name in enumerate(names):
            write_stream(tmp_path / split / name, pa.table({"n": [number]}))
        state = {"_data_files": [{"filename": name} for name in names]}
        (tmp_path / split / "state.json").write_text(json.dumps(state))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert open_data(tmp_path).read([0, 1])["n"].tolist() == [0, 1]
    assert len(open_data(tmp_path, split="test")) == 2


def test_images_of_datasets_are_decoded(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image", reason="PIL is not installed")
    file = io.BytesIO()
    Image.fromarray(np.full((2, 4, 3), 9, np.uint8)).save(file, "png")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": file.getvalue(), "path": None}, {"bytes": None, "path": "a.png"}]
    data = open_data(pa.table({"image": pa.array(rows, kind)}))
    assert data.read([0])["image"][0].shape == (3, 2, 4)
    with pytest.raises(DataError, match="row 1: column 'image' has no image, only the path"):
        data.read([1])


def test_dates_are_texts(tmp_path: Path) -> None:
    days = pa.array([0, 1], pa.date32())
    table = pa.table({"day": days, "at": days.cast(pa.timestamp("us")), "n": [1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = open_data(tmp_path / "a.parquet").read([1])
    assert found["day"].tolist() == ["1970-01-02"]
    assert found["at"].tolist() == ["1970-01-02 00:00:00"]
