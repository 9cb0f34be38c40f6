"""CSV and TSV files: types, quotes, missing values, and errors with the line."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import ColumnMissing, DataError, OptionError
from onward.runner.data.csv_files import CsvDataset
from onward.runner.data.line_index import LineIndex

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(text: str, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write_text


def test_types_are_guessed(write: Write) -> None:
    data = CsvDataset(write("i,f,b,t,m,zip\n1,0.5,true,a,1,01\n-2,1e3,False,b,,02\n"))
    assert {name: str(column) for name, column in data.columns.items()} == {
        "i": "int64", "f": "float64", "b": "bool", "t": "text", "m": "float64", "zip": "text"
    }  # fmt: skip
    batch = data.read([1, 0, 1])
    assert batch["i"].tolist() == [-2, 1, -2] and batch["f"].tolist() == [1000, 0.5, 1000]
    assert batch["b"].tolist() == [False, True, False] and batch["t"].tolist() == ["b", "a", "b"]
    np.testing.assert_array_equal(batch["m"], [np.nan, 1, np.nan])


def test_a_column_without_a_name_gets_one(write: Write) -> None:
    data = CsvDataset(write(",a\n0,x\n1,y\n"))  # as pandas writes tables
    assert list(data.columns) == ["unnamed_0", "a"]


def test_0_and_1_are_true_and_false_if_the_user_says_so(write: Write) -> None:
    path = write("a,b\n0,1\n")
    data = CsvDataset(path, types={"a": "bool"})
    assert data.read([0])["a"].tolist() == [False] and str(data.columns["b"]) == "int64"


def test_quoted_fields_may_have_delimiters_quotes_and_lines(write: Write) -> None:
    data = CsvDataset(write('a,b\r\n1,"x, ""y"""\r\n\r\n2,"two\nlines"\r\n3,z'))
    assert data.read(range(3))["b"].tolist() == ['x, "y"', "two\nlines", "z"]
    assert data.read([], ["a"])["a"].shape == (0,)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))))
@settings(max_examples=40, deadline=None)
def test_every_text_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    import csv

    path = tmp_path_factory.mktemp("csv") / "data.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([["name", "other"], *([text, "x"] for text in [*texts, "last"])])
    data = CsvDataset(path, types={"name": "text"})
    assert data.read(range(len(data)))["name"].tolist() == [*texts, "last"]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_delimiter_is_found_in_the_header(write: Write, delimiter: str) -> None:
    data = CsvDataset(write(f"a{delimiter}b\n1{delimiter}x,y\n"))
    assert data.read([0])["b"].tolist() == ["x,y"]


def test_spaces_after_the_delimiters_of_all_names(write: Write) -> None:
    data = CsvDataset(write('a, kind\n1, "x, y"\n2, z\n'))
    assert data.read([0, 1])["kind"].tolist() == ["x, y", "z"]
    data = CsvDataset(write("kind\n x\n"))
    assert data.read([0])["kind"].tolist() == [" x"]
    data = CsvDataset(write("a,kind\n1, x\n"))  # a value of its own
    assert data.read([0])["kind"].tolist() == [" x"]


def test_chunks_of_the_file_do_not_show(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.runner.data.line_index._CHUNK", 7)
    path = write("\ufeffa,b\r\n" + "".join(f'{n},"q\n{n}"\r\n\r\n' for n in range(20)))
    data = CsvDataset(path)
    assert data.read(range(20))["b"].tolist() == [f"q\n{n}" for n in range(20)]
    assert list(data.columns) == ["a", "b"]
    assert LineIndex(path, quotes=True).number_in_file(20) == 2 + 19 * 3


WRONG = {
    "empty": ("", "data.csv is empty"),
    "blank": ("\n\n", "data.csv is empty"),
    "only a mark": ("\ufeff", "data.csv is empty"),
    "no rows": ("a,b\n", "it has a header, but no rows"),
    "same names": ("a,a\n1,2\n", "the header names 'a' twice"),
    "few fields": (
        "a,b\n1,2\n3\n",
        "line 3 has 1 fields, but the first line has 2\nthe field of co",
    ),
    "many fields": ("a,b\n1,2,3\n", "line 2 has 3 fields, but the first line has 2\nquote fields"),
    "old line breaks": ("a,b\r1,2\r", "has line breaks of a carriage return alone"),
    "open quote": ('a,b\n1,"x\n2,y\n', "the field that is quoted in line 2 never ends"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_when_it_is_opened(write: Write, case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(DataError) as caught:
        CsvDataset(write(text))
    assert message in str(caught.value)


HEADERS = {
    "names over numbers": ("a,b\n1,x\n2,y\n", ["a", "b"], ""),
    "texts only": ("name,kind\nann,x\nbob,y\n", ["name", "kind"], ""),
    "numbers only": ("1,2\n3,4\n", ["column0", "column1"], "has the types of the rows below"),
    "a row": ("5.1,3.5,setosa\n4,3,virginica\n", ["column0", "column1", "column2"], "has the type"),
    "with a missing number": (
        "5.1,,b\n4,3,c\n",
        ["column0", "column1", "column2"],
        "has the types",
    ),
    "years": (
        "city,pop,1990,2000\na,1,2,3\n",
        ["city", "pop", "1990", "2000"],
        "'pop' in its first",
    ),
    "pixels": ("kind,0,1,2\ncat,5,6,7\n", ["kind", "0", "1", "2"], "its first line counts"),
    "numbers over texts": ("10115,x\n01067,y\n", ["column0", "column1"], "has the types"),
    "numbered names": ("column0,column1\n1,2\n", ["column0", "column1"], ""),
    "one line": ("a,1\n", None, "it has a header, but no rows"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_is_found_by_types(write: Write, case: str) -> None:
    text, names, why = HEADERS[case]
    if names is None:
        with pytest.raises(DataError, match=why):
            CsvDataset(write(text))
        return
    data = CsvDataset(write(text))
    assert list(data.columns) == names and why in data.header.why
    is_there = names[0] != "column0" or text.startswith("column0")
    assert len(data) == text.count("\n") - is_there
    assert str(data.read([0])[names[-1]][0]) == text.splitlines()[is_there].split(",")[-1]


def test_a_header_may_be_said(write: Write) -> None:
    path = write("5.1,setosa\n4,virginica\n")
    assert list(CsvDataset(path, header=True).columns) == ["5.1", "setosa"]
    path = write("a,b\n1,x\n")
    data = CsvDataset(path, header=False)
    assert len(data) == 2 and data.read([0])["column0"].tolist() == ["a"]
    path = write("name,1\nann,2\n")
    assert list(CsvDataset(path, types={"name": "text"}).columns) == ["name", "1"]


def test_a_wrong_type_names_its_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.runner.data.csv_files._SAMPLE", 1)
    data = CsvDataset(write("age,b,f\n1,true,1\n\n2x,true,1\n3,perhaps,\n,true,x\n5,true,1\n"))
    with pytest.raises(DataError, match=r"data.csv line 4: column 'age' has '2x', .* a whole numb"):
        data.read([0, 1])
    with pytest.raises(DataError, match=r"line 5: column 'b' has 'perhaps', .* not true or false"):
        data.read([2])
    with pytest.raises(DataError, match=r"line 6: column 'age' has a missing value.*\n.*'float'"):
        data.read([3], ["age"])
    again = CsvDataset(data.path, types={"age": "text", "b": "text", "f": "text"})
    assert again.read([1, 3])["age"].tolist() == ["2x", ""]


def test_types_must_exist(write: Write) -> None:
    path = write("age,b\n1,2\n")
    with pytest.raises(ColumnMissing, match=r"no column 'aeg'.*\ndid you mean 'age'"):
        CsvDataset(path, types={"aeg": "int"})
    with pytest.raises(OptionError, match=r"types\['age'\] must be 'int', 'float', .*, not 'i32'"):
        CsvDataset(path, types={"age": "i32"})


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,b\n1,\xff\n")
    with pytest.raises(DataError, match=r"line 2 is not UTF-8 text"):
        CsvDataset(path)


def test_memory_does_not_grow_with_the_length_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    with path.open("w") as file:
        file.write("n,text\n")
        file.writelines(f"{n},{'x' * 8000}\n" for n in range(1000))  # 8 MB
    tracemalloc.start()
    try:
        data = CsvDataset(path, types={"n": "int"})
        tracemalloc.reset_peak()
        total = 0
        for start in range(0, 1000, 20):
            total += int(data.read(np.arange(start, start + 20))["n"].sum())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 999 * 1000 // 2
    assert peak < 2_000_000


def test_whole_floats_are_read_as_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("kind\n1.0\n2\n")
    data = CsvDataset(tmp_path / "a.csv", types={"kind": "int"})
    assert data.read([0, 1])["kind"].tolist() == [1, 2]
    (tmp_path / "a.csv").write_text("kind\n1.0\n2.5\n")
    data = CsvDataset(tmp_path / "a.csv", types={"kind": "int"})
    with pytest.raises(DataError, match=r"has '2.5', which is not a whole number"):
        data.read([0, 1])
