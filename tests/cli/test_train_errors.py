"""onward train with bad input: one line with what to do, exit code 2, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import onward
from onward.checkpoints.disk import RealDisk
from onward.runner.callbacks import csv_log
from onward.runner.run_process import this_process
from tests.cli.conftest import Call, is_one_line
from tests.cli.training_rows import GIVEN, write_rows

FIRST = ("m.onnx", "--epochs", "1", "--target", "kind")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good and bad data, models and configs."""
    folder = tmp_path_factory.mktemp("files")
    onward.save(onward.new_model("mlp", features=4, hidden=(8,), classes=3), folder / "m.onnx")
    images = onward.new_model("cnn", image=(1, 8, 8), channels=(2,), hidden=4, classes=2)
    onward.save(images, folder / "cnn.onnx")
    (folder / "bad.onnx").write_bytes(b"no model")

    def rows(name: str, **changes: object) -> None:
        write_rows(folder / name, **changes)  # type: ignore[arg-type]

    rows("rows.csv")
    rows("typed.csv", count=800, edit=_set(698, 1, "tall"))
    rows("labels.csv", edit=lambda row, n: [*row[:4], "7" if n == 40 else str(n % 3)])
    rows("negative.csv", edit=lambda row, n: [*row[:4], "-1" if n == 40 else str(n % 3)])
    rows("four.csv", edit=lambda row, n: [*row[:4], "wxyz"[n % 4]])
    rows("narrow.csv", edit=lambda row, n: row[1:], header="b,c,d,kind")
    rows("short.csv", edit=lambda row, n: row[:3] if n == 30 else row)
    rows("alike.csv", edit=lambda row, n: [*row[:4], "x"])
    rows("number.csv", edit=lambda row, n: [*row[:4], "nan" if n == 9 else "1.5"])
    rows("header.csv", count=0)
    rows("one.csv", count=1)
    gpt2 = onward.new_model("gpt2", layers=1, heads=1, width=4, vocabulary=9, context=4)
    onward.save(gpt2, folder / "gpt.onnx")
    (folder / "stories.jsonl").write_text('{"id": 1, "story": ""}\n' * 9)
    (folder / "empty.csv").write_text("")
    (folder / "rows.xyz").write_text("a")
    (folder / "nothing").mkdir()
    (folder / "key.toml").write_text('model = "m.onnx"\ndata = "rows.csv"\nlearning_rat = 0.1\n')
    (folder / "key.yaml").write_text("model: m.onnx\ndata: rows.csv\nlearning_rat: 0.1\n")
    (folder / "value.toml").write_text('epochs = 3\noptimizer = "adamv"\n')
    (folder / "syntax.toml").write_text("epochs = 3\nseed = = 1\n")
    _write_photos(folder / "photos")
    shutil.copytree(folder / "photos", folder / "broken")
    (folder / "broken" / "q" / "4.png").write_bytes(b"no image")
    return folder


def _set(row: int, place: int, text: str) -> object:
    def edit(fields: list[str], number: int) -> list[str]:
        return [*fields[:place], text, *fields[place + 1 :]] if number == row else fields

    return edit


def _write_photos(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in "pq":
        (folder / name).mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 255, (8, 8), np.uint8)
            image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.fixture(autouse=True)
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of this test with all files, which is the current one."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


BAD: dict[str, tuple[str, list[str]]] = {
    "no model": ("", ["there is no model to train", "onward train model.onnx"]),
    "no data": ("m.onnx", ["there is no data", "--data"]),
    "missing model": ("mm.onnx --data rows.csv", ["no model at mm.onnx", "did you mean 'm.onnx'?"]),
    "broken model": ("bad.onnx --data rows.csv", ["bad.onnx: not an ONNX model"]),
    "missing data": ("m.onnx --data row.csv", ["no data at row.csv", "'rows.csv'"]),
    "missing column": (
        "m.onnx --data rows.csv --target knd",
        ["no column 'knd'", "did you mean 'kind'?"],
    ),
    "missing column of an input": (
        "m.onnx --data rows.csv --target kind --inputs x=a+b+c+dd",
        ["no column 'dd'", "did you mean 'd'?"],
    ),
    "wrong type": (
        "m.onnx --data typed.csv --target kind",
        ["column 'b' has 'tall' among its numbers", "--types b=float shows the line"],
    ),
    "wrong type that was given": (
        "m.onnx --data typed.csv --target kind --types b=float",
        ["typed.csv line 700: column 'b' has 'tall'", "not a number", "--types b=text"],
    ),
    "empty file": ("m.onnx --data empty.csv", ["empty.csv is empty", "give a file with rows"]),
    "only a header": ("m.onnx --data header.csv", ["header.csv is empty", "no rows"]),
    "short line": ("m.onnx --data short.csv", ["short.csv line 32 has 3 fields", "'d' is missing"]),
    "unknown kind of file": ("m.onnx --data rows.xyz", [".xyz", "supported are .csv"]),
    "empty folder": ("m.onnx --data nothing", ["nothing has no data"]),
    "label out of range": (
        "m.onnx --data labels.csv --target kind",
        ["label 7 in row 40, column 'kind'", "0 to 2"],
    ),
    "negative label": (
        "m.onnx --data negative.csv --target kind",
        ["label -1 in row 40", "--ignore-index -1"],
    ),
    "too many classes": (
        "m.onnx --data four.csv --target kind",
        ["4 classes (w, x, y, z)", "--new-head 4"],
    ),
    "one class": (
        "m.onnx --data alike.csv --target kind",
        ["every row has 'x'", "nothing to learn", "--target NAME"],
    ),
    "target without a number": (
        "m.onnx --data number.csv --target kind",
        ["row 9 has no number in the target 'kind'"],
    ),
    "input that does not fit": (
        "m.onnx --data narrow.csv --target kind",
        ["input 'x' has 4 features", "b, c, d give 3"],
    ),
    "images for a table": ("m.onnx --data photos", ["input 'x'", "'image'"]),
    "table for images": ("cnn.onnx --data rows.csv --target kind", ["'image' has 64 features"]),
    "broken image": (
        "cnn.onnx --data broken",
        ["broken/q/4.png is a broken image: its bytes are those of no image", "--skip-broken"],
    ),
    "16 bits on onnxruntime": (
        "m.onnx --data rows.csv --target kind --precision fp16 --provider cpu",
        ["ONNX Runtime computes float16 in float32 on a CPU", "TorchExecutionProvider"],
    ),
    "unknown precision": (
        "m.onnx --data rows.csv --target kind --precision bf61",
        ["--mixed-precision cannot be 'bf61'", "did you mean 'bf16'?"],
    ),
    "one row": (
        "m.onnx --data one.csv --target kind",
        ["1 row: none is left to evaluate on", "--validation-split 0"],
    ),
    "validation columns": (
        "m.onnx --data rows.csv --target kind --validation narrow.csv",
        ["no column 'a'"],
    ),
    "validation classes": (
        "m.onnx --data rows.csv --target kind --validation four.csv",
        ["row 0, column 'kind': 'w' is not one of the 3", "'x', 'y', 'z'"],
    ),
    "key of TOML": (
        "--config key.toml",
        ["key.toml, line 3: there is no setting 'learning_rat'", "did you mean 'learning_rate'?"],
    ),
    "key of YAML": (
        "--config key.yaml",
        ["key.yaml, line 3: there is no setting 'learning_rat'", "did you mean 'learning_rate'?"],
    ),
    "value of TOML": (
        "--config value.toml",
        ["value.toml, line 2: optimizer cannot be 'adamv'", "did you mean 'adam' or 'adamw'?"],
    ),
    "syntax of TOML": ("--config syntax.toml", ["syntax.toml, line 2"]),
    "missing config": ("--config keys.toml", ["no config at keys.toml", "did you mean"]),
    "flag": ("m.onnx --learning-rat 0.1", ["No such option: --learning-rat", "--learning-rate"]),
    "value of a flag": ("m.onnx --optimizer adamm", ["--optimizer cannot be 'adamm'", "'adamw'"]),
    "number of a flag": (
        "m.onnx --batch-size 0",
        ["--batch-size cannot be '0': it must be greater than or equal to 1, or 'auto'"],
    ),
    "metric": (
        "m.onnx --data rows.csv --target kind --metrics acuracy",
        ["no metric 'acuracy'", "did you mean 'accuracy'"],
    ),
    "metric that does not fit": (
        "m.onnx --data rows.csv --target kind --metrics r2",
        ["'r2' compares numbers, but cross_entropy has classes", "'accuracy'"],
    ),
    "monitor": (
        "m.onnx --data rows.csv --target kind --monitor val_acc",
        ["'val_acc' is not measured", "did you mean 'val_accuracy'"],
    ),
    "profile": (
        "m.onnx --data rows.csv --target kind --profile nonsense",
        ["profile takes FIRST:LAST", "'nonsense'"],
    ),
    "profile after the end": (
        "m.onnx --data rows.csv --target kind --epochs 1 --profile 100:120",
        ["the run has 2 steps", "choose steps from 1 to 2"],
    ),
    "provider": (
        "m.onnx --data rows.csv --target kind --provider cppu",
        ["no provider 'cppu'", "did you mean 'cpu'?"],
    ),
    "zero without shards": (
        "m.onnx --data rows.csv --target kind --zero 3",
        ["zero says what processes share, but shard is 1", "give shard too"],
    ),
    "initials of an option": (
        "m.onnx --data rows.csv --target kind --lr 0.1",
        ["No such option: --lr", "--learning-rate"],
    ),
    "weights": ("m.onnx --data rows.csv --target kind --freeze enc.*", ["'enc.*' matches no"]),
    "augmented table": ("m.onnx --data rows.csv --target kind --flip", ["flip is for images"]),
    "folder to watch": (
        "m.onnx --data rows.csv --target kind --watch later",
        ["--watch: later is not a folder"],
    ),
    "name": (
        "m.onnx --data rows.csv --target kind --name a/b",
        ["a run cannot be called 'a/b'", "use letters"],
    ),
    "nothing to resume": (
        "m.onnx --data rows.csv --target kind --resume",
        ["no run in runs has the same settings", "without --resume"],
    ),
    "unknown run to resume": (
        "m.onnx --data rows.csv --target kind --resume --name nope",
        ["there is no run 'nope' in runs"],
    ),
    "missing column of texts": (
        "gpt.onnx --data stories.jsonl --inputs tokens=storys",
        ["no column 'storys'", "did you mean 'story'?"],
    ),
    "empty column of texts": (
        "gpt.onnx --data stories.jsonl",
        ["column 'story' has no text in any of 9 rows", "name another column"],
    ),
    "texts as a target": (
        "gpt.onnx --data stories.jsonl --target story",
        ["'story' has texts", "leave target out", "--inputs tokens=story"],
    ),
    "runs is a file": (
        "m.onnx --data rows.csv --target kind --runs rows.xyz",
        ["rows.xyz is not a folder"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_no_run(call: Call, name: str) -> None:
    words, expected = BAD[name]
    assert is_one_line(call("train", *words.split()), *expected)
    assert not Path("runs").exists() or not os.listdir("runs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into every folder")
def test_folder_that_is_not_writable(call: Call) -> None:
    os.chmod("nothing", 0o500)
    assert is_one_line(call("train", *GIVEN, "--runs", "nothing"), "Permission denied")


def test_run_that_exists_is_not_overwritten(call: Call) -> None:
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/notes.txt").write_text("mine")
    called = call("train", *GIVEN, "--name", "first")
    assert is_one_line(called, "runs/first exists", "--resume, or give another --name")
    assert os.listdir("runs/first") == ["notes.txt"]


def test_run_that_was_killed_before_its_record_is_started_again(call: Call) -> None:
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/config.toml").write_text("epochs =")
    assert call("train", *GIVEN, "--max-steps", "1", "--name", "first").code == 0


def test_run_of_another_process_is_not_resumed(call: Call) -> None:
    assert call("train", *GIVEN, "--max-steps", "1", "--name", "first").code == 0
    record = Path("runs/first/run.json")
    other = {**this_process(), "pid": os.getppid(), "status": "running"}
    record.write_text(json.dumps({**json.loads(record.read_text()), **other}))
    called = call("train", *GIVEN, "--max-steps", "1", "--name", "first", "--resume")
    assert is_one_line(called, f"being trained by process {os.getppid()}", "wait for it")


@pytest.mark.integration
def test_data_that_is_gone_loses_no_run(call: Call) -> None:
    given = ("train", *GIVEN, "--max-steps", "1", "--name", "first")
    assert call(*given).code == 0
    before = Path("runs/first/model.onnx").read_bytes()
    Path("rows.csv").rename("moved.csv")
    assert is_one_line(call(*given, "--resume"), "no data at rows.csv")
    Path("moved.csv").rename("rows.csv")
    assert call(*given, "--resume").code == 0
    assert Path("runs/first/model.onnx").read_bytes() == before


@pytest.mark.integration
def test_image_that_breaks_in_an_epoch_loses_no_step(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    # digests read all of so few images before the first step, and would find it there
    monkeypatch.setattr("onward.runner.plan.data_digests.digest_columns", lambda *_: {})
    given = ["train", "cnn.onnx", "--no-standardize", "--epochs", "1", "--batch-size", "2"]
    given += ["--data-threads", "0"]
    assert call(*given, "--data", "photos", "--name", "alone").code == 0
    whole = Path("photos/q/4.png").read_bytes()
    Path("photos/q/4.png").write_bytes(b"no image")
    given += ["--data", "photos", "--name", "first"]
    assert is_one_line(call(*given), "photos/q/4.png is a broken image", "--skip-broken")
    record = json.loads(Path("runs/first/run.json").read_text())
    assert record["status"] == "failed" and "q/4.png" in record["error"]
    Path("photos/q/4.png").write_bytes(whole)
    assert call(*given, "--resume").code == 0
    first, alone = (Path("runs", name, "model.onnx").read_bytes() for name in ("first", "alone"))
    assert first == alone


def test_exploding_run_names_the_first_bad_node(call: Call) -> None:
    given = ("train", *GIVEN, "--optimizer", "sgd", "--learning-rate", "1e30", "--name", "first")
    called = call(*given)
    assert called.code == 2 and "Traceback" not in called.err
    *_, last = called.err.splitlines()
    assert (
        "step 2 (epoch 1, batch 2)" in last and "Gemm" in last and "lower --learning-rate" in last
    )
    weights = onward.load("runs/first/model.onnx").graph.initializers.values()
    assert all(np.isfinite(each.const_value.numpy()).all() for each in weights)  # type: ignore[union-attr]
    assert json.loads(Path("runs/first/run.json").read_text())["status"] == "failed"


@pytest.mark.integration
def test_full_disk_at_metrics_keeps_what_was_trained(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("train", *GIVEN, "--name", "alone").code == 0
    with monkeypatch.context() as patched:
        patched.setattr(csv_log.MetricsCsv, "on_evaluate", _full)
        called = call("train", *GIVEN, "--name", "first")
    assert called.code == 2 and "No space left on device" in called.err
    assert "Traceback" not in called.err
    assert call("train", *GIVEN, "--name", "first", "--resume").code == 0
    first, alone = (Path("runs", name, "model.onnx").read_bytes() for name in ("first", "alone"))
    assert first == alone


def test_full_disk_at_report_keeps_the_model(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("onward.runner.callbacks.write_report.write_report", _full)
        called = call("train", *GIVEN, "--name", "first")
    assert is_one_line(called, "No space left on device")
    assert onward.load("runs/first/model.onnx")
    assert call("train", *GIVEN, "--name", "first", "--resume").code == 0
    assert Path("runs/first/report.html").exists()


def test_full_disk_at_checkpoints_lets_training_go_on(
    call: Call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RealDisk, "write", _full)
    called = call("train", *GIVEN, "--name", "first")
    assert called.code == 0 and onward.load("runs/first/model.onnx")
    assert "is not saved: No space left on device" in caplog.text


def _full(*given: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs")
