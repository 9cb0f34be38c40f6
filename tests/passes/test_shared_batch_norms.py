"""share_batch_norms changes no result in one process: the sum over processes is the identity."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import UnsupportedModel
from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.builder import OpBuilder
from onward.passes.composites import inline_calls
from onward.passes.pipelines import PREPARE
from onward.passes.shared_batch_norms import ALL_REDUCE, MOMENTS, share_batch_norms
from onward.passes.training_mode import train_mode

CHANNELS = 3
PROVIDERS = ["TorchExecutionProvider", "ReferenceExecutionProvider"]


def norm(sides: int, dtype: Any = np.float64, batch: Any = "n") -> ir.Model:
    op, rng = OpBuilder(21), np.random.default_rng(1)
    x = op.input("x", np.dtype(dtype).name, (batch, CHANNELS, *[2] * sides))
    given = [op.initializer(n, rng.normal(size=CHANNELS).astype(dtype)) for n in ("s", "t")]
    moments = {"mean": np.zeros(CHANNELS), "var": np.ones(CHANNELS)}
    given += [op.initializer(name, array.astype(dtype)) for name, array in moments.items()]
    return op.model(y=op.BatchNormalization(op.Mul(x, x), *given, epsilon=0.01, momentum=0.75))


def in_training(model: ir.Model, *, shares: bool, unbiased: bool = False) -> ir.Model:
    """The model in training mode, with the gradients of its input, its scale and its bias."""
    prepared = PREPARE(model)
    train_mode(prepared, unbiased=unbiased and not shares)
    if shares:
        assert share_batch_norms(prepared, unbiased=unbiased) == 1
    extend(prepared, {"y": "dy"}, ["x", "s", "t"], GRADIENTS, composites=True)
    return prepared


def calls(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type in (ALL_REDUCE, MOMENTS)]


def results(model: ir.Model, feeds: dict[str, Any]) -> dict[str, Any]:
    session = onward.InferenceSession(inline_calls(model.clone()), providers=PROVIDERS)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds)))


def random_feeds(sides: int, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    shape = (5, CHANNELS, *[2] * sides)
    return {name: rng.normal(size=shape).astype(dtype) for name in ("x", "dy")}


@pytest.mark.parametrize("sides", [0, 1, 2, 3])
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("batch", ["n", 5])
def test_results_and_gradients_stay_the_same(sides: int, unbiased: bool, batch: Any) -> None:
    feeds = random_feeds(sides)
    own = in_training(norm(sides, batch=batch), shares=False, unbiased=unbiased)
    shared = in_training(norm(sides, batch=batch), shares=True, unbiased=unbiased)
    assert calls(own) == []
    assert calls(shared) == [MOMENTS, ALL_REDUCE, ALL_REDUCE]
    expected, found = results(own, feeds), results(shared, feeds)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-12, err_msg=name)


def test_half_precision_is_normalised_in_float32() -> None:
    feeds = random_feeds(2, np.float16)
    own = results(in_training(norm(2, np.float16), shares=False), feeds)
    shared = results(in_training(norm(2, np.float16), shares=True), feeds)
    for name, array in own.items():
        assert shared[name].dtype == array.dtype
        np.testing.assert_allclose(shared[name], array, rtol=4e-3, atol=4e-3, err_msg=name)


def test_variance_of_large_means_is_right() -> None:
    feeds = random_feeds(2, np.float32)
    feeds["x"] = 100 + feeds["x"]  # squared in the model: a mean of 10,000
    found = results(in_training(norm(2, np.float32), shares=True), feeds)
    squares = (feeds["x"] * feeds["x"]).astype(np.float64)
    var = squares.var(axis=(0, 2, 3))
    np.testing.assert_allclose(found["var_updated"], 0.75 + 0.25 * var, rtol=1e-6)


def test_layer_without_slopes_before_it_has_one_sum() -> None:
    prepared = PREPARE(norm(2))
    train_mode(prepared)
    share_batch_norms(prepared)
    extend(prepared, {"y": "dy"}, ["s", "t"], GRADIENTS, composites=True)
    assert calls(prepared) == [MOMENTS, ALL_REDUCE]


def test_frozen_layers_keep_their_statistics() -> None:
    prepared = PREPARE(norm(2))
    train_mode(prepared, lambda node: True)
    assert share_batch_norms(prepared) == 0
    assert calls(prepared) == []


def test_scale_of_unknown_size_is_refused() -> None:
    op = OpBuilder(21)
    x, scale = op.input("x", "float32", ("n", "c")), op.input("s", "float32", ("c",))
    moments = [op.initializer(n, np.ones(3, np.float32)) for n in ("t", "mean", "var")]
    model = PREPARE(op.model(y=op.BatchNormalization(x, scale, *moments)))
    train_mode(model)
    with pytest.raises(UnsupportedModel, match="scale 's' of unknown size"):
        share_batch_norms(model)
