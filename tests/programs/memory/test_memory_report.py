"""The report of a step's memory agrees with what torch allocates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import onward
from onward import Memory, losses, optimizers
from onward.errors import OptionError
from onward.sessions.training.training_program import TrainingProgram
from tests.programs.memory.models import transformer, transformer_feeds
from tests.programs.memory.test_optimize_memory import build

torch = pytest.importorskip("torch")


def torch_peak(program: TrainingProgram, feeds: Mapping[str, Any]) -> int:
    """The most bytes that torch allocates at once during a step, less those before it."""
    session = onward.TrainingSession(program, providers=["TorchExecutionProvider"])
    session.step(feeds)
    with torch.profiler.profile(profile_memory=True) as profile:
        session.step(feeds)
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        held += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, held)
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, Memory(budget="60%"), Memory(level=2)], ids=str)
def test_planned_activations_are_within_a_tenth_of_torch(memory: Memory | None) -> None:
    options = {"memory": memory, "outputs": []}
    loss, optimizer = losses.CrossEntropy(), optimizers.SGD(lr=0.1)
    program = onward.compile_training(transformer(64, 32), loss, optimizer, options)
    planned = onward.memory_report(program).activations.peak
    assert planned == pytest.approx(torch_peak(program, transformer_feeds(64, 32)), rel=0.1)


def test_report_counts_parameters_gradients_and_slots() -> None:
    report = onward.memory_report(build(transformer(), None))
    assert report.gradients == report.parameters and report.optimizer == 2 * report.parameters
    assert report.activations == report.unlimited and report.repeated_flops == 0
    assert report.peak == report.unlimited_peak == 4 * report.parameters + report.activations.peak


@pytest.mark.integration
def test_report_takes_sizes_or_feeds() -> None:
    program = build(transformer("batch", layers=1), None)
    by_size = onward.memory_report(program, {"batch": 8})
    assert by_size == onward.memory_report(program, transformer_feeds(8)) and not by_size.assumed
    assumed = onward.memory_report(program)
    assert "batch" in assumed.assumed and "batch=64" in str(assumed)
    assert assumed.activations.peak == pytest.approx(8 * by_size.activations.peak, rel=0.05)


def test_report_is_a_table() -> None:
    text = str(onward.memory_report(build(transformer(layers=1), Memory(level=2)), inlined=True))
    assert "wait for the backward" in text and "computed again: " in text


def test_saved_programs_have_no_report(tmp_path: Any) -> None:
    loss, optimizer = losses.CrossEntropy(), optimizers.SGD(lr=0.1)
    options = {"memory": Memory(level=1)}
    program = onward.compile_training(transformer(layers=1), loss, optimizer, options)
    program.save(tmp_path / "p")
    loaded = onward.TrainingSession(tmp_path / "p").program
    assert loaded.lowered.keeps_order
    feeds = transformer_feeds()
    expected = onward.TrainingSession(program).step(feeds)["loss"]
    np.testing.assert_array_equal(
        onward.TrainingSession(tmp_path / "p").step(feeds)["loss"], expected
    )
    with pytest.raises(OptionError, match="a program that was saved has no graphs"):
        onward.memory_report(loaded)


@pytest.mark.integration
def test_report_counts_the_graph_that_onnxruntime_runs() -> None:
    """It runs a Gelu and its gradient in pieces, whose values wait in addition."""
    given = (transformer(16), losses.CrossEntropy(), optimizers.SGD(lr=0.1), {"outputs": []})
    neutral = onward.compile_training(*given)
    lowered = onward.compile_training(*given, providers=["CPUExecutionProvider"])
    inlined = onward.memory_report(neutral, inlined=True)
    report = onward.memory_report(lowered)
    assert report.activations.peak > onward.memory_report(neutral).activations.peak
    assert report.activations.peak >= inlined.activations.peak and not report.unknown
