"""Programs: compiled once, saved, and trained where onnx is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onward.errors import InvalidModel, OptionError
from onward.losses import CrossEntropy
from onward.optimizers import LAMB, AdamW, Group
from onward.optimizers.schedules import Cosine
from onward.programs.training_options import TrainingOptions
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import (
    TrainingProgram,
    compile_training,
    load_program,
)
from tests.sessions.training.small import batches, mlp


@pytest.fixture
def program() -> TrainingProgram:
    options = TrainingOptions(
        groups=[Group(parameters="b*", optimizer=LAMB(lr=0.01))],
        schedule=Cosine(steps=9),
        clip_norm=1.0,
    )
    return compile_training(mlp(dropout=0.2), CrossEntropy(), AdamW(lr=0.02), options)


def test_a_saved_program_trains_as_the_compiled_one(
    program: TrainingProgram, tmp_path: Path
) -> None:
    one = TrainingSession(program)
    two = TrainingSession(program.save(tmp_path / "program"))
    for feeds in batches(5):
        assert one.step(feeds)["loss"] == two.step(feeds)["loss"]
    two.export(tmp_path / "trained.onnx")
    assert load_program(tmp_path / "program").names == program.names


def test_a_saved_program_needs_only_numpy_onnxruntime_and_safetensors(
    program: TrainingProgram, tmp_path: Path
) -> None:
    program.save(tmp_path / "program")
    np.savez(tmp_path / "feeds.npz", **batches(1)[0])
    script = """
import sys
import numpy as np
from onward.sessions.training.session import TrainingSession

session = TrainingSession("program")
feeds = dict(np.load("feeds.npz"))
session.step(feeds)
session.run = session.evaluate(feeds), session.predict({"x": feeds["x"]})
session.save("checkpoint")
session.load("checkpoint")
heavy = {"onnx", "onnx_ir", "onnxscript", "torch", "openvino", "google", "rich", "typer"}
print(sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_folders_without_a_program_are_refused(program: TrainingProgram, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="holds no training program"):
        load_program(tmp_path)
    program.save(tmp_path / "program")
    (tmp_path / "program" / "update_0.onnx").unlink()
    with pytest.raises(InvalidModel, match=r"holds no training program.*update_0"):
        load_program(tmp_path / "program")


def test_a_program_has_its_loss_already(program: TrainingProgram) -> None:
    with pytest.raises(OptionError, match="a compiled program has its loss, optimizer and options"):
        TrainingSession(program, CrossEntropy())
