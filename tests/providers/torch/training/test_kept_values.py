"""The memory of a step is planned for what the engine keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import onward
from onward import Memory, losses, optimizers
from onward.passes.random_functions import DROPOUT_MASK, calls
from onward.programs.build import build_program
from onward.programs.program import Program
from onward.providers.torch import fused_cross_entropy
from onward.providers.torch.fused_cross_entropy import fuse_cross_entropy
from onward.providers.torch.kernels.linear_cross_entropy import CHUNK
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.kept_values import find_kept_values
from onward.providers.torch.training.lowering import lower_program
from tests.programs.memory.models import transformer

CLASSES = 40  # fewer than the model has: its loss is fused


class FusingProvider(TorchProvider):
    """torch on a CPU, with what only CUDA fuses."""

    fuses_cross_entropy = True  # type: ignore[assignment]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TorchProvider:
    for name in ("find_fused_scores", "fuse_cross_entropy"):
        function = getattr(fused_cross_entropy, name)
        monkeypatch.setattr(function, "__defaults__", (CLASSES,))
    return FusingProvider("InductorExecutionProvider", torch.device("cpu"), step_compiler=id)  # type: ignore[arg-type]


def build(memory: Memory | None, provider: TorchProvider | None) -> Program:
    engine = None if provider is None else (lambda train: find_kept_values(train, provider))
    options: dict[str, Any] = {"memory": memory, "outputs": []}
    loss, optimizer = losses.CrossEntropy(), optimizers.SGD(lr=0.1)
    return build_program(transformer(16, biased=False), loss, optimizer, options, engine=engine)


@pytest.mark.integration
def test_masks_and_fused_scores_are_not_kept(provider: TorchProvider) -> None:
    program = build(None, provider)
    masks = {str(call.outputs[0].name) for call in calls(program.train.graph, DROPOUT_MASK)}
    kept = program.memory
    assert masks and all(kept.most_bytes[name] == 0 for name in masks)
    assert sorted(set(kept.most_bytes.values())) == [0, CHUNK] and len(kept.fixed) == 1
    plain, planned = (onward.memory_report(build(None, each)) for each in (None, provider))
    assert planned.activations.peak < plain.activations.peak
    assert planned.parameters == plain.parameters


eager = TorchProvider("TorchExecutionProvider", torch.device("cpu"))


def test_eager_torch_on_a_processor_keeps_everything() -> None:
    program = build(None, eager)
    assert not program.memory.most_bytes and not program.memory.fixed


@pytest.mark.parametrize("memory", [Memory(level=2), Memory(budget="60%"), Memory(stash="int8")])
def test_the_fused_loss_survives_the_memory_option(memory: Memory, provider: TorchProvider) -> None:
    """The layer before the scores is not computed again: the fused operator reads it once."""
    graphs = lower_program(build(memory, provider), provider)
    assert graphs is not None
    train = graphs.train.model.clone()
    fuse_cross_entropy(train)
    assert [node.op_type for node in train.graph].count("LinearCrossEntropy") == 1


def test_views_of_parameters_take_no_memory_and_are_not_computed_again() -> None:
    """A fused loss does not recognise a weight that waits for the backward pass."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 8))
    head = op.initializer("head", np.ones((8, 4), np.float32))
    rows = op.Reshape(op.Transpose(head, perm=[1, 0]), np.array([8, 4]))
    scores = op.MatMul(op.Transpose(op.Tanh(x), perm=[0, 1]), rows)
    program = build_program(
        op.model(scores=scores),
        losses.CrossEntropy(),
        optimizers.SGD(lr=0.1),
        engine=lambda train: find_kept_values(train, eager),
    )
    views = {value.name for value in (rows, rows.producer().inputs[0])}
    assert program.memory.fixed == views and program.memory.most_bytes == dict.fromkeys(views, 0)


@pytest.mark.integration
def test_budgets_are_shares_of_what_the_engine_keeps(provider: TorchProvider) -> None:
    report = onward.memory_report(build(Memory(budget="60%"), provider))
    assert report.activations.peak <= 0.6 * report.unlimited.peak
    assert report.unlimited == onward.memory_report(build(None, provider)).activations


def test_sessions_plan_for_their_provider() -> None:
    session = onward.TrainingSession(
        transformer(),
        losses.CrossEntropy(),
        optimizers.SGD(lr=0.1),
        {"memory": Memory(level=1)},
        providers=[("InductorExecutionProvider", {"device": "cpu"})],
    )
    program = session.program.neutral
    assert program is not None and program.memory.most_bytes
    plain = onward.compile_training(transformer(), losses.CrossEntropy(), optimizers.SGD(lr=0.1))
    assert plain.neutral is not None and not plain.neutral.memory.most_bytes
