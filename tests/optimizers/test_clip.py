"""Clipping is torch's, as numbers and as graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from onward.errors import OptionError
from onward.graph.builder import OpBuilder
from onward.graph.graph_ops import extend
from onward.optimizers.clip import ClipByNorm, ClipByValue
from onward.optimizers.sgd import SGD
from onward.optimizers.update_models import flat_update
from tests.optimizers.case import (
    VECTOR,
    Array,
    by_graph,
    distance,
    gradients,
    passes,
    session,
    start,
)

RNG = np.random.default_rng(0)
GRADIENTS = [RNG.normal(size=shape) * 3 for shape in ((4, 5), (7,), ())]


@pytest.mark.parametrize("max_norm", [0.5, 1000.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_clip_scale_matches_torch(max_norm: float, dtype: str) -> None:
    arrays = [g.astype(dtype) if g.shape else np.array(g, dtype) for g in map(np.array, GRADIENTS)]
    tensors = [torch.zeros(g.shape, dtype=torch.from_numpy(g).dtype) for g in arrays]
    for tensor, g in zip(tensors, arrays):
        tensor.grad = torch.from_numpy(g.copy())
    norm = float(torch.nn.utils.clip_grad_norm_(tensors, max_norm))
    clip = ClipByNorm(max_norm=max_norm)
    for tensor, g in zip(tensors, arrays):
        assert tensor.grad is not None
        np.testing.assert_allclose(g * clip.scale(norm), tensor.grad.numpy(), rtol=1e-6)
    empty = OpBuilder(opset=21)
    inputs = [empty.input(f"g{i}", dtype, g.shape) for i, g in enumerate(arrays)]
    op = extend(empty.model())
    found, scale = clip.build(op, inputs)
    run = session(op.model(norm=found, scale=scale))
    values = run.run(None, {f"g{i}": g for i, g in enumerate(arrays)})
    np.testing.assert_allclose(values, [norm, clip.scale(norm)], rtol=1e-6)


def test_one_gradient_needs_no_sum() -> None:
    empty = OpBuilder(opset=21)
    g = empty.input("g", "float32", ("n",))
    op = extend(empty.model())
    norm, _ = ClipByNorm(max_norm=1.0).build(op, [g])
    assert [node.op_type for node in op.graph][:2] == ["ReduceSumSquare", "Sqrt"]
    assert norm.shape == ()


def test_a_norm_that_is_not_finite_is_returned() -> None:
    assert ClipByNorm(max_norm=1.0).scale(math.inf) == 0.0
    assert math.isnan(ClipByNorm(max_norm=1.0).scale(math.nan))
    assert ClipByNorm(max_norm=1.0).scale(0.0) == 1.0


@pytest.mark.parametrize("scale", [None, 0.25])
def test_clipping_by_value_matches_torch(scale: float | None) -> None:
    """The limit holds for the gradient as it is once scaled."""
    found = by_graph(SGD(lr=0.1), dtype="float64", scale=scale, clip=ClipByValue(limit=0.5))
    assert distance(found, {"w": torch_clipped()}) < 1e-12


def torch_clipped() -> Array:
    p = torch.from_numpy(start(VECTOR, "float64")["w"])
    optimizer = torch.optim.SGD([p], lr=0.1)
    for given in gradients(VECTOR, "float64"):
        p.grad = torch.from_numpy(given["w"])
        torch.nn.utils.clip_grad_value_([p], 0.5)
        optimizer.step()
    return p.numpy()


def test_clipping_by_value_is_one_pass() -> None:
    for scaled in (False, True):
        plain = passes(flat_update(SGD(), scaled=scaled))
        assert passes(flat_update(SGD(), scaled=scaled, clip=ClipByValue(limit=1.0))) == plain + 1


def test_wrong_limits_are_refused() -> None:
    with pytest.raises(OptionError, match=r"ClipByNorm\.max_norm must be a number above 0, not 0"):
        ClipByNorm(max_norm=0)
    with pytest.raises(OptionError, match=r"ClipByValue\.limit must be a number above 0, not inf"):
        ClipByValue(limit=math.inf)
