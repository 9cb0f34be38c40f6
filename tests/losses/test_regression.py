"""onward/losses/regression.py against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F

from onward.errors import OptionError
from onward.losses.regression import L1, MSE, Huber, SmoothL1
from tests.losses.case import (
    DOUBLE,
    Case,
    check,
    echo,
    inputs_of,
    measured,
    normal,
    with_loss,
)

FEEDS = {"y": 2 * normal(3, 4), "target": normal(3, 4, seed=1)}
KINDS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "MSE": (MSE, {}, F.mse_loss),
    "L1": (L1, {}, F.l1_loss),
    "Huber": (Huber, {}, F.huber_loss),
    "Huber, delta": (Huber, {"delta": 0.4}, F.huber_loss),
    "SmoothL1": (SmoothL1, {}, F.smooth_l1_loss),
    "SmoothL1, beta": (SmoothL1, {"beta": 0.3}, F.smooth_l1_loss),
    "SmoothL1, beta 0": (SmoothL1, {"beta": 0.0}, F.smooth_l1_loss),
}


def _case(name: str, reduction: str, feeds: Any = FEEDS) -> Case:
    kind, settings, function = KINDS[name]

    def torch_loss(y: Any, target: Any) -> Any:
        return function(y, target, reduction=reduction, **settings)

    return Case(f"{name}, {reduction}", kind(reduction=reduction, **settings), feeds, torch_loss)


CASES = [_case(name, reduction) for name in KINDS for reduction in ("mean", "sum", "none")]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_regression_losses_match_torch_on_stock_onnxruntime(case: Case, dynamic: bool) -> None:
    check(case, np.float32, 1e-5, dynamic=dynamic)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_regression_losses_match_torch_in_float64(case: Case) -> None:
    check(case, np.float64, 1e-10, dynamic=True, providers=DOUBLE)


@pytest.mark.parametrize("name", KINDS)
def test_large_differences_keep_their_gradient(name: str) -> None:
    feeds = {"y": np.array([1e4, -1e4, 0.0, 1e30 if "MSE" not in name else 1.0])}
    check(_case(name, "sum", feeds | {"target": np.zeros(4)}), np.float32, 1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_sixteen_bits_are_widened(name: str) -> None:
    """300 squared is more than float16 holds."""
    case = _case(name, "mean", {"y": 300 * normal(3, 4), "target": normal(3, 4, seed=1)})
    outputs = {"y": case.feeds["y"].astype(np.float16)}
    model = with_loss(echo(outputs), case.loss)
    assert inputs_of(model)["target"] == ("FLOAT", [3, 4])
    wide = Case(case.name, case.loss, outputs | {"target": case.feeds["target"]}, case.torch)
    loss, gradients = measured(wide, np.float32)
    exact, _ = measured(case, np.float32)
    assert loss.dtype == np.float32 and gradients["y"].dtype == np.float16
    np.testing.assert_allclose(loss, exact, rtol=1e-3)


def test_the_target_is_an_input_of_the_outputs_shape() -> None:
    feeds = {"y": FEEDS["y"], "y2": normal(2, 5)}
    model = with_loss(echo(feeds, dynamic=True), MSE(output="y2", target="wanted"))
    assert inputs_of(model)["wanted"] == ("DOUBLE", ["n2", "n5"])


def test_a_value_of_the_model_can_be_the_target() -> None:
    feeds = {"y": FEEDS["y"], "y2": FEEDS["target"]}
    case = Case("two outputs", MSE(target="y2"), feeds, lambda y, y2: F.mse_loss(y, y2))
    check(case, np.float32, 1e-5)


@pytest.mark.parametrize("kind", [MSE, L1, Huber, SmoothL1])
def test_an_unknown_reduction_is_refused(kind: Any) -> None:
    message = rf"{kind.__name__}.reduction must be one of 'mean', 'sum', 'none', not 'avg'"
    with pytest.raises(OptionError, match=message):
        kind(reduction="avg")


def test_wrong_widths_are_refused() -> None:
    with pytest.raises(OptionError, match=r"Huber.delta must be a number above 0, not 0"):
        Huber(delta=0)
    with pytest.raises(OptionError, match=r"SmoothL1.beta must be a number, at least 0, not -1"):
        SmoothL1(beta=-1)
    with pytest.raises(OptionError, match=r"Huber.delta must be a number above 0, not nan"):
        Huber(delta=float("nan"))
