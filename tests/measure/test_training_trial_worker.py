"""The child of a training trial: what it gives to compare, and that its steps lead nowhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.losses import CrossEntropy
from onward.measure.training_trial_worker import compare_steps, open_step
from onward.measure.tuning.training_agreement import TOLERANCES, StepResults, check_agreement
from onward.measure.tuning.trials import Candidate
from onward.optimizers import SGD
from onward.programs.program_files import read_program, write_program
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import TrainingProgram, compile_training
from tests.sessions.training.small import batches, mlp

CPU, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"
[FEEDS] = batches(1)


def random_mlp(**options: Any) -> TrainingProgram:
    return compile_training(mlp(dropout=0.5), CrossEntropy(), SGD(lr=0.1), options)


@pytest.fixture(params=[1, 2])
def request_of(request: Any, tmp_path: Path) -> Any:
    """The request that a trial of a program with Dropout sends for a candidate."""
    program = random_mlp(accumulate=request.param)
    assert program.neutral is not None
    write_program(program.neutral, tmp_path / "program")
    session = TrainingSession(program)
    session.set_parameters({"b1": np.ones(16, np.float32)})
    session.save(tmp_path / "state.safetensors")

    def make(candidate: Candidate) -> dict[str, Any]:
        return {
            "model": str(tmp_path / "program"),
            "weights": str(tmp_path / "state.safetensors"),
            "candidate": asdict(candidate),
            "settings": {},
        }

    return make


def test_steps_start_from_the_state_and_are_equal_in_torch(request_of: Any) -> None:
    import torch  # noqa: F401

    given = []
    for candidate in (Candidate(CPU), Candidate(TORCH, 0, {"device": "cpu"})):
        arrays = open_step(request_of(candidate))(None, FEEDS)
        given.append(StepResults.from_list(arrays, ["w1", "b1", "w2", "b2"], []))
    check_agreement(*given, TOLERANCES["f32"])
    request = request_of(Candidate(TORCH))
    program = TrainingProgram(read_program(Path(request["model"])))
    session = TrainingSession(program, providers=[(TORCH, {"device": "cpu"})])
    session.load(request["weights"])
    np.testing.assert_array_equal(compare_steps(session, FEEDS).losses, given[1].losses)


def test_the_gradient_is_that_of_the_first_step() -> None:
    found = compare_steps(TrainingSession(random_mlp()), FEEDS)
    other = TrainingSession(random_mlp())
    other.run_forward(FEEDS)
    other.run_backward()
    for name, gradient in other.get_gradients().items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-5, atol=1e-7)


def test_timed_steps_change_no_parameter(request_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[TrainingSession] = []
    step = TrainingSession.step

    def record(self: TrainingSession, feeds: Any) -> Any:
        opened.append(self)
        return step(self, feeds)

    monkeypatch.setattr(TrainingSession, "step", record)
    run = open_step(request_of(Candidate(CPU)))
    run(None, FEEDS)
    run(None, FEEDS)
    session = opened[-1]
    before, steps = session.parameters["w1"].copy(), session.steps
    [loss] = run(None, FEEDS)
    assert loss.shape == () and session.steps == steps + 1
    np.testing.assert_array_equal(session.parameters["w1"], before)
