"""Continuous training: new files, decisions, promotion, restarts. No time passes here."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onward.errors import DataError, FileMissing, OptionError
from onward.runner.watch import WatchSettings, list_new_files, watch
from onward.runner.watch_journal import WatchJournal, file_digest

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


class Bench:
    """A model is a number in a file. A data file's number is the model after training on it."""

    def __init__(self, folder: Path) -> None:
        self.model, self.incoming = folder / "model.onnx", folder / "incoming"
        self.candidate = folder / "candidate.onnx"
        self.model.write_text("0.5")
        self.incoming.mkdir()
        self.trained: list[list[str]] = []
        self.looks = 0

    def put(self, name: str, content: str) -> Path:
        path = self.incoming / name
        path.write_text(content)
        return path

    def train(self, model: Path, data: Sequence[Path]) -> Path:
        self.trained.append([path.name for path in data])
        if "broken" in data[0].read_text():
            raise DataError("line 3 has 2 fields, not 5\nfix the line")
        self.candidate.write_text(data[0].read_text())
        return self.candidate

    def evaluate(self, model: Path) -> float:
        return float(model.read_text().split()[0])

    def watch(self, once: bool = True, **options: Any) -> list[tuple[str, str]]:
        functions = {"train": self.train, "evaluate": self.evaluate, "sleep": lambda _: None}
        given = {**functions, "now": lambda: NOON, **options}
        given.setdefault("options", WatchSettings(monitor="accuracy", higher_is_better=True))
        return [(e.file, e.decision) for e in watch(self.model, self.incoming, once=once, **given)]

    @property
    def work(self) -> Path:
        return self.model.with_name("model.onnx.watch")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_only_a_better_candidate_is_promoted(bench: Bench, caplog: Any) -> None:
    bench.put("a", "0.7")
    assert bench.watch() == [("a", "promoted")]
    bench.put("b", "0.6")
    with caplog.at_level(logging.INFO, "onward"):
        assert bench.watch() == [("b", "kept")]
    assert "b: kept (accuracy 0.7 -> 0.6)" in caplog.text
    assert bench.model.read_text() == "0.7"
    assert (bench.work / "history/model.1.onnx").read_text() == "0.5"
    lines = (bench.work / "watch.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {
        "file": "b", "digest": file_digest(bench.incoming / "b"), "decision": "kept",
        "current": 0.7, "candidate": 0.6, "monitor": "accuracy",
        "time": "2026-01-02T12:00:00+00:00",
    }  # fmt: skip
    assert json.loads(lines[0])["model"] == file_digest(bench.model)


@pytest.mark.parametrize(
    ("higher", "least", "candidate", "decision"),
    [
        (True, 0.1, "0.625", "promoted"),
        (True, 0.25, "0.625", "kept"),
        (True, 0.0, "0.5", "kept"),
        (True, 0.0, "nan", "kept"),
        (False, 0.0, "0.4", "promoted"),
        (False, 0.2, "0.4", "kept"),
        (False, 0.0, "0.6", "kept"),
    ],
)
def test_the_improvement_must_be_large_enough(
    bench: Bench, higher: bool, least: float, candidate: str, decision: str
) -> None:
    options = WatchSettings(monitor="m", higher_is_better=higher, min_improvement=least)
    bench.put("a", candidate)
    assert bench.watch(options=options) == [("a", decision)]
    assert bench.model.read_text() == (candidate if decision == "promoted" else "0.5")


def test_no_file_is_processed_twice(bench: Bench) -> None:
    bench.put("a", "0.7")
    bench.watch()
    bench.put("copy-of-a", "0.7")
    assert bench.watch() == [] and bench.watch() == []
    assert bench.trained == [["a"]]
    bench.put("a", "0.9")  # new contents under an old name are new data
    assert bench.watch() == [("a", "promoted")]


def test_a_broken_file_is_rejected_and_the_others_go_on(bench: Bench) -> None:
    bench.put("a", "broken")
    bench.put("b", "0.8")
    assert sorted(bench.watch()) == [("a", "rejected"), ("b", "promoted")]
    journal = WatchJournal(bench.work / "watch.jsonl")
    [error] = [each.error for each in journal.decisions if each.file == "a"]
    assert error == "line 3 has 2 fields, not 5" and bench.watch() == []


def test_a_wrong_setting_ends_the_watch_and_rejects_no_data(bench: Bench) -> None:
    bench.put("a", "0.7")

    def train(model: Path, data: Sequence[Path]) -> Path:
        raise OptionError("there is no setting 'epoch'\ndid you mean 'epochs'?")

    with pytest.raises(OptionError, match="no setting 'epoch'"):
        bench.watch(train=train)
    assert bench.watch() == [("a", "promoted")]


def test_a_file_that_is_still_written_is_left_alone(bench: Bench) -> None:
    path = bench.put("a", "0.7")
    sizes = iter([{path: (1, 1)}, {path: (2, 2)}, {path: (3, 2)}, {path: (3, 2)}])
    looks = 0

    def look(folder: Path) -> Any:
        nonlocal looks
        looks += 1
        found = next(sizes, None)
        if found is None:
            raise KeyboardInterrupt
        assert not bench.trained
        return found

    assert bench.watch(once=False, list_files=look) == [("a", "promoted")]
    assert looks == 5


def test_empty_hidden_and_removed_files_are_left_alone(bench: Bench) -> None:
    bench.put("empty", "")
    bench.put(".part", "0.9")
    assert bench.watch() == [] and set(list_new_files(bench.incoming)) == {bench.incoming / "empty"}
    gone = {bench.incoming / "gone": (1, 1)}
    assert bench.watch(list_files=lambda _: gone) == []


def test_a_folder_of_images_is_one_entry(bench: Bench) -> None:
    (bench.incoming / "photos/cat").mkdir(parents=True)
    (bench.incoming / "photos/cat/1.png").write_text("abc")
    [(path, (size, _))] = list_new_files(bench.incoming).items()
    assert path.name == "photos" and size == 3
    first = file_digest(path)
    (path / "cat/1.png").rename(path / "cat/2.png")
    assert file_digest(path) != first


def test_earlier_files_are_replayed(bench: Bench) -> None:
    for name, content in [("a", "0.6"), ("b", "broken"), ("c", "0.1"), ("d", "0.7")]:
        bench.put(name, content)
        bench.watch(options=WatchSettings(higher_is_better=True, replay=2))
    assert bench.trained == [["a"], ["b", "a"], ["c", "a"], ["d", "a", "c"]]


def test_ctrl_c_stops_and_a_restart_continues(bench: Bench) -> None:
    bench.put("a", "0.7")
    sleeps = 0

    def sleep(_: float) -> None:
        nonlocal sleeps
        sleeps += 1
        if sleeps == 3:
            raise KeyboardInterrupt

    assert bench.watch(once=False, sleep=sleep) == [("a", "promoted")]
    bench.put("b", "0.8")
    assert bench.watch() == [("b", "promoted")] and bench.model.read_text() == "0.8"
    assert (bench.work / "history/model.2.onnx").read_text() == "0.7"


def test_a_crash_while_promoting_is_made_good(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a", "0.7")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            bench.watch()
    assert bench.model.read_text() == "0.5"
    assert bench.watch() == [] and bench.model.read_text() == "0.7"
    staged = bench.model.with_name(".model.onnx.new")
    staged.write_text("left by a crash before the journal")
    assert bench.watch() == [] and bench.model.read_text() == "0.7" and not staged.exists()


def test_a_journal_line_that_was_cut_off_is_left_out(bench: Bench) -> None:
    bench.put("a", "0.7")
    bench.watch()
    journal = bench.work / "watch.jsonl"
    with journal.open("a") as file:
        file.write('{"file": "b", "dig')
    bench.put("b", "0.9")
    assert bench.watch() == [("b", "promoted")]
    assert [each.file for each in WatchJournal(journal).decisions] == ["a", "b"]


def test_wrong_arguments_are_refused(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not a folder"):
        watch(bench.model, tmp_path / "none", train=bench.train, evaluate=bench.evaluate)
    with pytest.raises(FileMissing, match="no model at"):
        watch("none.onnx", bench.incoming, train=bench.train, evaluate=bench.evaluate)
    with pytest.raises(OptionError, match=r"WatchSettings.min_improvement must be a number"):
        WatchSettings(min_improvement=-1)
