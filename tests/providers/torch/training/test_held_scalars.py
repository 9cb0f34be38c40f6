"""Scalars of an update are computed once in compiled code, and are the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward import losses, optimizers
from onward.programs.build import build_program
from onward.providers.options import SessionOptions
from onward.providers.torch.inductor import make_inductor
from onward.providers.torch.kernels.memory import HOLD
from onward.providers.torch.training.held_scalars import hold_scalars
from onward.providers.torch.training.lowering import lower_program

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")


def layer() -> ir.Model:
    op, rng = onward.OpBuilder(), np.random.default_rng(0)
    w = op.initializer("w", rng.normal(size=(8, 4)).astype(np.float32))
    return op.model(scores=op.MatMul(op.input("x", "float32", ("batch", 8)), w))


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "x": rng.normal(size=(16, 8)).astype(np.float32),
        "labels": rng.integers(0, 4, 16),
    }


def holds(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == HOLD]


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (optimizers.AdamW(), 3),  # the steps' sizes, epsilon, and 1 - rate decay
        (optimizers.SGD(momentum=0.9), 0),  # the rate is an input
        (optimizers.LAMB(), 2),  # ratios of norms are computed of vectors: they are not held
    ],
    ids=["adamw", "sgd", "lamb"],
)
def test_an_update_holds_what_it_computes_of_scalars(optimizer: Any, count: int) -> None:
    program = build_program(layer(), losses.CrossEntropy(), optimizer)
    provider = make_inductor({"device": "cpu"}, SessionOptions())
    graphs = lower_program(program, provider)
    assert graphs is not None
    (update,) = graphs.updates
    found = holds(update.model)
    assert sum(len(node.outputs) for node in found) == count and len(found) == bool(count)
    for node in found:
        held = set(node.outputs)
        assert not any(held & set(other.inputs) for other in found)
        for value in node.inputs:
            assert value is not None
            assert all(not r.outputs[0].shape or r is node for r in value.consumers())


def test_constants_and_subgraphs_are_left_as_they_are() -> None:
    op = onward.OpBuilder()
    x, rate = op.input("x", "float32", ("n",)), op.input("rate", "float32", ())
    model = op.model(y=op.Mul(x, op.Constant(value_float=2.0)), z=op.Mul(rate, rate))
    assert not holds(hold_scalars(model))


@pytest.mark.parametrize("clip", [None, 0.1])
def test_compiled_updates_equal_eager_ones(clip: float | None) -> None:
    def trained(provider: str) -> tuple[list[float], Any]:
        session = onward.TrainingSession(
            layer(),
            losses.CrossEntropy(),
            optimizers.AdamW(lr=0.1),
            {"clip_norm": clip},
            providers=[(provider, {"device": "cpu"})],
        )
        seen = [float(session.step(feeds())["loss"]) for _ in range(6)]
        return seen, np.asarray(session.parameters["w"])

    ours, weights = trained("InductorExecutionProvider")
    wanted, expected = trained("TorchExecutionProvider")
    assert ours == pytest.approx(wanted, rel=1e-6)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)
