"""metrics.csv: its lines, its columns, and a run that was interrupted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from onward.errors import WriteFailed
from onward.runner.callbacks import logged_steps
from onward.runner.callbacks.csv_log import COLUMNS, MetricsCsv, read_metrics
from tests.runner.callbacks.fake_run import evaluate, fake_run, make_step


@pytest.fixture(autouse=True)
def fixed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged_steps.MemoryReader, "now", lambda self: 1024.0)


def train(run: Any, callback: MetricsCsv, steps: int) -> None:
    """Steps with an evaluation after every third."""
    for _ in range(steps):
        make_step(run, callback)
        if run.step % 3 == 0:
            evaluate(run, callback, val_loss=1 / run.step, val_accuracy=0.5)


def without_times(path: Path) -> list[list[str]]:
    """The fields of the file, without the samples per second."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    place = rows[0].index("samples_per_second")
    return [row[:place] + row[place + 1 :] for row in rows]


def test_lines_of_steps_and_evaluations(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), MetricsCsv()
    callback.on_start(run)
    train(run, callback, 4)
    lines = run.folder.metrics.read_text().splitlines()
    assert lines[0] == ",".join([*COLUMNS, "val_loss", "val_accuracy"])
    assert lines[1].startswith("2,0,0.5,0.1,0.5,")
    assert lines[2] == "3,0,,,,,,,0.333333333,0.5"
    assert lines[3].startswith("4,0,0.25,")
    assert len(lines) == 4


def test_columns_as_points(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), MetricsCsv()
    callback.on_start(run)
    train(run, callback, 4)
    found = read_metrics(run.folder.metrics)
    assert found["loss"] == [(2, 0.5), (4, 0.25)]
    assert found["val_accuracy"] == [(3, 0.5)]
    assert found["memory"][0] == (2, 1024.0)
    assert "step" not in found


def test_a_checkpoint_keeps_how_many_lines_were_written(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), MetricsCsv()
    callback.on_start(run)
    for _ in range(5):
        train(run, callback, 2)
        lines = run.folder.metrics.read_text().splitlines()[1:]
        assert callback.state() == {"rows": len(lines)}


def test_accumulated_batches_count_as_samples(tmp_path: Path) -> None:
    rates = []
    for count in (1, 3):
        run = fake_run(tmp_path / str(count), gradient_accumulation_steps=count)
        callback = MetricsCsv()
        callback.on_start(run)
        train(run, callback, 2)
        rates.append(read_metrics(run.folder.metrics)["samples_per_second"][0][1])
    assert rates[1] == 3 * rates[0]


@pytest.mark.parametrize("half", ["", "10,0,0.1", "9,0,x\n", "\x00\x00"])
@pytest.mark.parametrize("checkpoint", [1, 3, 6, 7])
def test_resumed_file_is_as_if_never_interrupted(
    tmp_path: Path, checkpoint: int, half: str
) -> None:
    whole, callback = fake_run(tmp_path / "whole"), MetricsCsv()
    callback.on_start(whole)
    train(whole, callback, 9)

    first, callback = fake_run(tmp_path / "parts"), MetricsCsv()
    callback.on_start(first)
    train(first, callback, checkpoint)
    state = callback.state()
    train(first, callback, 2)  # after the checkpoint
    with first.folder.metrics.open("a") as file:
        file.write(half)

    second, callback = fake_run(tmp_path / "parts"), MetricsCsv()
    second.step = checkpoint
    callback.restore(state)
    callback.on_start(second)
    train(second, callback, 9 - checkpoint)
    expected = without_times(whole.folder.metrics)
    assert without_times(second.folder.metrics) == expected


def test_checkpoint_before_the_evaluation_of_its_step(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), MetricsCsv()
    callback.on_start(run)
    make_step(run, callback)
    state = callback.state()
    evaluate(run, callback, val_loss=1.0)
    again = MetricsCsv()
    again.restore(state)
    again.on_start(run)
    evaluate(run, again, val_loss=1.0)
    assert read_metrics(run.folder.metrics)["val_loss"] == [(1, 1.0)]


def test_resume_without_a_file_starts_one(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), MetricsCsv()
    run.step = 4
    callback.on_start(run)
    assert run.folder.metrics.read_text() == ",".join(COLUMNS) + "\n"


def test_new_metric_adds_a_column(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), MetricsCsv()
    callback.on_start(run)
    train(run, callback, 3)
    evaluate(run, callback, val_f1=math.nan)
    lines = run.folder.metrics.read_text().splitlines()
    assert lines[0].endswith("val_loss,val_accuracy,val_f1")
    assert lines[2] == "3,0,,,,,,,0.333333333,0.5,"
    assert lines[3] == "3,0,,,,,,,,,nan"
    assert callback.state() == {"rows": 3}


def test_file_that_cannot_be_written(tmp_path: Path) -> None:
    run = fake_run(tmp_path)
    run.folder.metrics.mkdir()
    with pytest.raises(WriteFailed, match=r"metrics\.csv"):
        MetricsCsv().on_start(run)
