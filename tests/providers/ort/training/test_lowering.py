"""Lowering to stock onnxruntime: with draws in the graph, its random numbers are torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.passes import random_draws
from onward.programs.program import DRAW
from onward.providers.ort.training.lowering import lower_program
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import TrainingProgram, compile_training
from tests.sessions.training.small import batches, mlp

TORCH: list[Any] = [("TorchExecutionProvider", {"device": "cpu"})]


def sessions(**options: Any) -> tuple[TrainingSession, TrainingSession]:
    """A session on onnxruntime that draws in the graph, and one in torch."""
    import torch  # noqa: F401

    program = compile_training(
        mlp(dropout=0.5), CrossEntropy(), AdamW(lr=0.01), {"seed": 3, **options}
    )
    assert program.neutral is not None
    lowered = lower_program(program.neutral, draws_in_graph=True)
    return TrainingSession(TrainingProgram(lowered)), TrainingSession(program, providers=TORCH)


def test_the_input_of_draws_has_one_name() -> None:
    assert DRAW == random_draws.DRAW


@pytest.mark.parametrize("accumulate", [1, 2])
def test_draws_in_the_graph_are_those_of_torch(accumulate: int) -> None:
    one, other = sessions(accumulate=accumulate)
    for feeds in batches(6):
        np.testing.assert_allclose(one.step(feeds)["loss"], other.step(feeds)["loss"], rtol=1e-5)


def test_forward_and_backward_draw_in_the_graph() -> None:
    one, other = sessions()
    for feeds in batches(3):
        found, expected = one.run_forward(feeds), other.run_forward(feeds)
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
        for each in (one, other):
            each.run_backward()
            each.update_weights()
    np.testing.assert_allclose(one.parameters["w1"], other.parameters["w1"], atol=1e-6)
