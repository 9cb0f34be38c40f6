"""Which reader a source gets; files that are joined; splits; settings that do not apply."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import ColumnMissing, DataError, FileMissing, OptionError, PackageMissing
from onward.runner.data.dataset import Column, read_chunks, read_column
from onward.runner.data.in_memory import ArrayDataset
from onward.runner.data.open_data import READERS, find_splits, open_data


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_suffix_chooses_the_reader(tmp_path: Path) -> None:
    assert len(open_data(write(tmp_path / "a.csv", "a,b\n1,2\n"))) == 1
    assert len(open_data(write(tmp_path / "a.TSV", "a\tb,c\n1\t2\n"))) == 1
    assert len(open_data(str(write(tmp_path / "a.jsonl", '{"a": 1}\n')))) == 1
    assert len(open_data(write(tmp_path / "a.txt", "a\nb\n"))) == 2
    assert len(open_data(tmp_path / "a.txt", block=1)) == 3
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    assert len(open_data(tmp_path / "a.npz")) == 3
    np.save(tmp_path / "a.npy", np.arange(9))
    assert len(open_data(tmp_path / "a.npy")) == 9
    assert open_data(tmp_path / "a.npy", block=4).read([1])["next_tokens"].tolist() == [
        [5, 6, 7, 8]
    ]
    data = open_data(tmp_path / "a.csv")
    assert open_data(data) is data


def test_files_of_a_folder_or_a_list_are_joined(tmp_path: Path) -> None:
    one = write(tmp_path / "parts/1.csv", "n,t\n1,a\n2,b\n")
    two = write(tmp_path / "parts/2.csv", "t,n\nc,3.5\n")
    for source in ([one, str(two)], tmp_path / "parts"):
        data = open_data(source)
        assert len(data) == 3 and data.columns["n"] == Column("float64")
        batch = data.read([2, 0, 1, 2])
        assert batch["n"].tolist() == [3.5, 1, 2, 3.5] and batch["t"].tolist() == list("cabc")
    assert len(open_data([one])) == 2


def test_files_with_other_columns_are_not_joined(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.csv", "a,b\n1,2\n"), write(tmp_path / "2.csv", "a,c\n1,2\n")
    with pytest.raises(ColumnMissing, match=r"2.csv and .*1.csv have different columns: 'b'"):
        open_data([one, two])
    write(two, "a,b\n1,x\n")
    with pytest.raises(DataError, match=r"column 'b' is int64 in .*, but text in .*\n.*types={'b"):
        open_data([one, two])
    assert open_data([one, two], types={"b": "text"}).read([0, 1])["b"].tolist() == ["2", "x"]


def test_a_folder_of_arrays_has_a_column_for_each(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", np.zeros(4))
    assert list(open_data(tmp_path, target="y").columns) == ["x", "y"]
    write(tmp_path / "z.csv", "a,b\n")
    with pytest.raises(DataError, match=r"has files of several kinds: .csv, .npy"):
        open_data(tmp_path)


def test_splits_may_be_arrays_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "digits.npz"
    x, y = np.arange(12).reshape(6, 2), np.arange(6)
    np.savez_compressed(path, x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    assert list(find_splits(path)) == ["train", "test"]
    assert list(open_data(path).columns) == ["x", "y"] and len(open_data(path)) == 4
    assert open_data(path, split="test").read([1])["x"].tolist() == [[10, 11]]
    with pytest.raises(DataError, match=r"has no split 'val'\n.*'train', 'test'"):
        open_data(path, split="val")
    np.savez(path, x_train=x, other=y)
    assert find_splits(path) == {} and list(open_data(path).columns) == ["x_train", "other"]


def test_splits_may_be_files(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "a,b\n1,2\n3,4\n")
    write(tmp_path / "test.csv", "a,b\n5,6\n")
    assert list(find_splits(tmp_path)) == ["test", "train"]
    assert len(open_data(tmp_path)) == 2 and len(open_data(tmp_path, split="test")) == 1
    assert find_splits({"x": 1}) == find_splits(tmp_path / "train.csv") == {}


def test_columns_and_the_target_must_exist(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "age,label,c\n1,2,x\n")
    assert list(open_data(path, columns=["label", "age"]).read([0])) == ["label", "age"]
    with pytest.raises(ColumnMissing, match=r"a.csv has no column 'lable'\ndid you mean 'label'"):
        open_data(path, target="lable")
    with pytest.raises(ColumnMissing, match=r"has no column 'q'\nits columns are 'age', 'label'"):
        open_data(path, columns=["q"])
    with pytest.raises(ColumnMissing, match="has no column 'label'"):
        open_data(path, columns=["age"], target="label")


def test_columns_that_are_not_wanted_may_hold_anything(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": {"c": []}}\n')
    assert open_data(path, columns=["a"]).read([0])["a"].tolist() == [1]


def test_a_missing_path_names_similar_ones(tmp_path: Path) -> None:
    write(tmp_path / "animals.csv", "a,b\n")
    with pytest.raises(FileMissing, match=r"no data at .*animal.csv\ndid you mean 'animals.csv'"):
        open_data(tmp_path / "animal.csv")


def test_an_unknown_suffix_lists_the_supported_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", "x")
    with pytest.raises(DataError) as caught:
        open_data(path)
    assert "a.xlsx: files of this kind (.xlsx) cannot be read" in str(caught.value)
    assert all(suffix in str(caught.value) for suffix in READERS)
    for name, advice in {"a.csv.gz": "unpack it first", "a.json": "into a .jsonl file"}.items():
        with pytest.raises(DataError, match=rf"cannot be read\n.*{advice}"):
            open_data(write(tmp_path / name, "x"))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    monkeypatch.setattr(Path, "open", refuse)  # root may read every file
    with pytest.raises(DataError, match=r"a.csv cannot be read: Permission denied\ncheck the path"):
        open_data(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt", ".npz", ".npy"])
def test_a_folder_with_the_name_of_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        READERS[suffix](path, _no_options())


def _no_options() -> Any:
    from onward.runner.data.reader_options import ReaderOptions

    return ReaderOptions()


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "saved"])
def test_without_pyarrow_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path / name, "x") if name != "saved" else tmp_path / name
    if name == "saved":
        write(path / "state.json", '{"_data_files": [{"filename": "data.arrow"}]}')
        write(path / "data.arrow", "x")
    with pytest.raises(
        PackageMissing, match=r"read with pyarrow.*\n.*pip install 'onward\[data\]'"
    ):
        open_data(path)


def test_a_damaged_state_of_a_saved_dataset(tmp_path: Path) -> None:
    for text in ("{", "{}", '{"_data_files": 1}'):
        write(tmp_path / "state.json", text)
        with pytest.raises(DataError, match=r"state.json does not list the files of the dataset"):
            open_data(tmp_path)
    write(tmp_path / "state.json", '{"_data_files": []}')
    with pytest.raises(DataError, match=r"is empty: state.json lists no files"):
        open_data(tmp_path)


def test_settings_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text")
    with pytest.raises(OptionError, match=r"is not read with a setting 'types'\nit takes 'block'"):
        open_data(path, types={"a": "int"})
    with pytest.raises(OptionError, match=r"data in memory is not read with a setting 'block'"):
        open_data({"x": [1]}, block=2)
    with pytest.raises(OptionError, match=r"split='val' is for folders"):
        open_data({"x": [1]}, split="val")
    with pytest.raises(OptionError, match="tokenize and vocabulary need block"):
        open_data(path, tokenize=lambda text: [1])
    with pytest.raises(OptionError, match="channels must be 1, 3 or 4, not 2"):
        open_data(tmp_path, channels=2)
    with pytest.raises(OptionError, match=r"image_size must be \(height, width\), not 3"):
        open_data(tmp_path, image_size=3)  # type: ignore[arg-type]


def test_columns_are_read_in_chunks() -> None:
    data = ArrayDataset({"x": np.arange(10), "y": np.zeros(10)})
    chunks = list(read_chunks(data, "x", np.arange(9, -1, -1), rows=4))
    assert [values.tolist() for _, values in chunks] == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    assert read_column(data, "x").tolist() == list(range(10))
    with pytest.raises(ColumnMissing, match="no column 'xx'"):
        read_column(data, "xx")
