"""TensorBoard events, read back with TensorBoard's own reader."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from onward.errors import PackageMissing
from onward.runner.callbacks.tensorboard import TensorBoard
from onward.runner.callbacks.tensorboard_summaries import histogram, picture_of
from onward.runner.events import Evaluation, Mistake
from onward.runner.figures.pixels import encode_png
from tests.runner.callbacks.fake_run import evaluate, fake_run, make_step


def read(run: Any) -> EventAccumulator:
    events = EventAccumulator(str(run.folder.path / "tensorboard"))
    return events.Reload()


def points(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_scalars(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), TensorBoard()
    callback.on_start(run)
    for _ in range(4):
        make_step(run, callback)
    evaluate(run, callback, val_accuracy=0.5, val_f1=float("nan"))
    callback.on_end(run)
    events = read(run)
    assert points(events, "train/loss") == [(2, 0.5), (4, 0.25)]
    assert points(events, "train/gradient_norm") == [(2, 0.5), (4, 0.5)]
    assert points(events, "evaluation/val_accuracy") == [(4, 0.5)]
    assert {"train/learning_rate", "speed/samples_per_second"} <= set(events.Tags()["scalars"])
    assert "evaluation/val_f1" not in events.Tags()["scalars"]


def test_settings_as_text_and_hyperparameters(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path, epochs=7), TensorBoard()
    callback.on_start(run)
    callback.on_end(run)
    events = read(run)
    [text] = events.Tensors("config/text_summary")
    assert b"| epochs | 7 |" in text.tensor_proto.string_val[0]
    assert "_hparams_/session_start_info" in events.Tags()["tensors"]


def test_resumed_run_is_one_curve(tmp_path: Path) -> None:
    first, callback = fake_run(tmp_path), TensorBoard()
    callback.on_start(first)
    for _ in range(8):
        make_step(first, callback)
    callback.on_end(first)
    second, callback = fake_run(tmp_path), TensorBoard()
    second.step = 4  # of the checkpoint
    callback.on_start(second)
    for _ in range(6):
        make_step(second, callback)
    callback.on_end(second)
    assert points(read(second), "train/loss") == [(s, np.float32(1 / s)) for s in range(2, 11, 2)]


def test_histograms_of_parameters(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), TensorBoard()
    run.session.parameters = {"w": np.linspace(-1, 1, 300_000, dtype=np.float32)}
    callback.on_start(run)
    evaluate(run, callback, val_loss=1.0)
    callback.on_end(run)
    [event] = read(run).Histograms("parameters/w")
    found = event.histogram_value
    assert found.num == 100_000 and found.min == -1
    assert sum(found.bucket) == found.num
    assert len(found.bucket) == len(found.bucket_limit) <= 65


def test_pictures_of_mistakes(tmp_path: Path) -> None:
    run, callback = fake_run(tmp_path), TensorBoard()
    callback.on_start(run)
    image = np.zeros((1, 3, 8, 6), np.float32)
    image[0, 0] = 1.0  # red
    mistakes = [
        Mistake(3, {"n": np.float32(1), "x": image}, "cat", "dog"),
        Mistake(4, {"n": np.float32(1)}, "cat", "dog"),
    ]
    callback.on_evaluate(run, Evaluation(5, 0, {}, mistakes=mistakes))
    callback.on_end(run)
    events = read(run)
    assert events.Tags()["images"] == ["mistakes/0"]
    [event] = events.Images("mistakes/0")
    pixels = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    assert pixels.shape == (8, 6, 3) and (pixels == [255, 0, 0]).all()
    [text] = events.Tensors("mistakes/0/label/text_summary")
    assert text.tensor_proto.string_val[0] == b"row 3: label cat, predicted dog"


@pytest.mark.parametrize("shape", [(5, 7, 1), (5, 7, 3), (2, 3, 1)])
def test_png_is_read_by_pillow(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    read_back = np.asarray(Image.open(io.BytesIO(encode_png(pixels))))
    np.testing.assert_array_equal(read_back.reshape(shape), pixels)


@pytest.mark.parametrize("shape", [(4,), (4, 4), (2, 3, 8, 8), (5, 8, 8), (3, 1, 1)])
def test_other_feeds_are_no_pictures(shape: tuple[int, ...]) -> None:
    assert picture_of({"x": np.zeros(shape, np.float32)}) is None


def test_histogram_of_odd_tensors() -> None:
    assert histogram(np.array([np.nan, np.inf])) is None
    assert histogram(np.zeros(0)) is None
    found = histogram(np.full(5, 2.0))
    assert found is not None and (found["min"], sum(found["bucket"])) == (2.0, 5)


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(PackageMissing, match=r"pip install 'onward\[train\]'"):
        TensorBoard().on_start(fake_run(tmp_path))
