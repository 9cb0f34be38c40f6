"""Programs in files: another process trains as this one does; what the speed depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.losses import CrossEntropy
from onward.optimizers import SGD, AdamW
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.schedules import Cosine
from onward.programs.program import Program
from onward.programs.program_files import read_program, step_description, write_program
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import TrainingProgram, compile_training
from tests.sessions.training.small import batches, mlp, weights


def program(optimizer: Any = None, seed: int = 0, dropout: float = 0.0, **options: Any) -> Program:
    model = mlp(weights(seed), dropout=dropout)
    found = compile_training(model, CrossEntropy(), optimizer or AdamW(lr=0.01), options).neutral
    assert found is not None
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.5},
        {"accumulate": 2, "frozen": ["w1"], "clip_norm": 0.1},
        {"schedule": Cosine(steps=9), "loss_scale": DynamicLossScale(initial=8.0)},
    ],
    ids=["plain", "random", "frozen", "scheduled"],
)
def test_a_program_that_was_written_trains_alike(options: Any, tmp_path: Path) -> None:
    written = program(**options)
    write_program(written, tmp_path)
    read = read_program(tmp_path)
    assert read.layout.settings == written.layout.settings
    one, other = (TrainingSession(TrainingProgram(each)) for each in (written, read))
    for feeds in batches(3):
        np.testing.assert_array_equal(one.step(feeds)["loss"], other.step(feeds)["loss"])
    for name in one.parameters:
        np.testing.assert_array_equal(one.parameters[name], other.parameters[name])


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 7},
        {"seed": 7, "frozen": ["w1"]},
        {"optimizer": AdamW(lr=0.5)},
        {"schedule": Cosine(steps=9)},
    ],
    ids=["weights", "frozen weights", "learning rate", "schedule"],
)
def test_speed_depends_on_no_weight_and_no_learning_rate(other: Any) -> None:
    frozen = {"frozen": other["frozen"]} if "frozen" in other else {}
    assert step_description(program(**other)) == step_description(program(**frozen))


@pytest.mark.parametrize(
    "other",
    [{"optimizer": SGD(lr=0.01)}, {"dropout": 0.5}, {"accumulate": 2}, {"frozen": ["w1"]}],
    ids=["optimizer", "model", "accumulation", "frozen"],
)
def test_speed_depends_on_the_graphs_and_settings(other: Any) -> None:
    assert step_description(program(**other)) != step_description(program())
