"""shared_weights: one file for several workers, the same answers, and what cannot be shared."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import onward
from onward.providers.options import SessionOptions
from onward.serving.worker_processes import shared_weights
from onward.serving.worker_processes.shared_weights import (
    CPU,
    file_states,
    model_files,
    open_shared_model,
    shared_model,
    write_shared_model,
)


def write_model(path: Path, *, random: bool = False) -> Path:
    op = onward.OpBuilder()
    draw = np.random.default_rng(0)
    w = op.initializer("w", draw.normal(size=(64, 128)).astype(np.float32))
    kernel = op.initializer("kernel", draw.normal(size=(16, 16, 3, 3)).astype(np.float32))
    h = op.MatMul(op.input("x", "float32", ("n", 64)), w)
    h = op.Conv(op.Reshape(h, np.array([-1, 16, 2, 4])), kernel, pads=[1, 1, 1, 1])
    if random:
        h = op.Add(h, op.RandomNormalLike(h))
    onward.save(op.model(y=op.Relu(h)), path)
    return path


def test_a_shared_model_answers_with_the_same_bits(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx")
    folder = tmp_path / "shared"
    folder.mkdir()
    assert write_shared_model(str(path), str(folder))
    x = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    (expected,) = onward.InferenceSession(path).run(None, {"x": x})
    shared = open_shared_model(str(folder / "model.onnx"), SessionOptions(), CPU)
    np.testing.assert_array_equal(shared.run(None, {"x": x})[0], expected)
    assert b"prepacked" in (folder / "model.onnx").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_weights_are_mapped(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx")
    folder = tmp_path / "shared"
    folder.mkdir()
    write_shared_model(str(path), str(folder))
    kept = open_shared_model(str(folder / "model.onnx"), SessionOptions(), CPU)
    assert str(folder / "model.data") in Path("/proc/self/maps").read_text()
    assert kept.get_providers() == CPU


def test_a_random_model_is_not_shared(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    assert not write_shared_model(
        str(write_model(tmp_path / "model.onnx", random=True)), str(folder)
    )


def test_an_entry_is_written_once_for_each_state_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = write_model(tmp_path / "model.onnx"), tmp_path / "cache"
    written = []

    def pack(source: Path, folder: Path) -> bool:
        written.append(source)
        return write_shared_model(str(source), str(folder))

    monkeypatch.setattr(shared_weights, "_pack_weights", pack)
    files = model_files(path)
    assert shared_model(path, files, cache) is None  # too small to be worth it
    monkeypatch.setattr(shared_weights, "MIN_BYTES", 1)
    first = shared_model(path, files, cache)
    assert first is not None and shared_model(path, files, cache) == first
    assert written == [path]
    write_model(path, random=True)
    assert shared_model(path, files, cache) is None
    assert shared_model(path, files, cache) is None
    assert written == [path, path]
    assert not list(cache.glob(".new-*"))


def test_an_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "model.onnx")
    (tmp_path / "file").touch()
    monkeypatch.setattr(shared_weights, "MIN_BYTES", 1)
    assert shared_model(path, [path], tmp_path / "file" / "cache") is None


def test_files_of_external_data_belong_to_the_state(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(write_model(tmp_path / "model.onnx"))
    path = tmp_path / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    files = model_files(path)
    assert [each.name for each in files] == ["external.onnx", "weights.bin"]
    before = file_states(files)
    (tmp_path / "weights.bin").write_bytes(b"other")
    assert file_states(files) != before
