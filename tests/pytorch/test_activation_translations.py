"""Functions of one element: results and gradients of torch at bounds, zeros and infinities."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from onward.pytorch.capture import capture
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_elementwise, assert_results

POINTS = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 7.0])
FAR = torch.tensor([-1e4, -300.0, -100.0, -30.0, -1e-3, 0.0, 1e-3, 30.0, 100.0, 300.0, 1e4])


@pytest.mark.parametrize(
    "function",
    [F.relu6, F.hardtanh, lambda x: F.hardtanh(x, -0.5, 2.0), F.hardsigmoid, torch.sinc],
)
def test_activations_have_the_gradients_of_torch_at_their_bounds(function: Any) -> None:
    assert_elementwise(function, POINTS)


def test_relu6_is_one_node() -> None:
    model = capture(Calls(F.relu6), [POINTS.clone().requires_grad_()], {}).model
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == ["Clip"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(min=0),
        lambda x: x.clamp(max=2),
        lambda x: torch.clamp_min(x, 0.0),
        lambda x: torch.clamp_max(x, 2.0),
        lambda x: torch.clamp_min(x, torch.zeros(12)),
        lambda x: torch.clamp_max(x, torch.full((12,), 2.0)),
    ],
)
def test_a_bound_on_one_side_keeps_infinities(function: Any) -> None:
    assert_elementwise(function, torch.cat([POINTS, torch.tensor([inf, -inf])]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_are_clamped_on_one_side(dtype: torch.dtype) -> None:
    x = torch.tensor([-5, 0, 7], dtype=dtype)
    captured = Module(Calls(lambda x: (x.clamp(min=1), x.clamp(max=1))), {"fallback": "forbid"})
    for found, expected in zip(captured(x), (x.clamp(min=1), x.clamp(max=1)), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "function",
    [
        F.logsigmoid,
        lambda x: torch.logaddexp(x, x.flip(0)),
        lambda x: torch.logaddexp(x, x),
        lambda x: torch.logaddexp2(x, x.flip(0)),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(11), reduction="none"),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros(11), reduction="none"),
        lambda x: F.binary_cross_entropy_with_logits(
            x, torch.full((11,), 0.3), pos_weight=torch.tensor(2.0), reduction="none"
        ),
    ],
)
def test_logarithms_of_exponentials_are_finite_far_from_0(function: Any) -> None:
    assert_elementwise(function, FAR)


def test_logaddexp_of_infinities() -> None:
    assert_results(
        torch.logaddexp, torch.tensor([1.0, -inf, 0.0, inf]), torch.tensor([-inf, -inf, 0.0, inf])
    )


def test_angles_of_all_quadrants() -> None:
    y, x = torch.cartesian_prod(*[torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, 1e20])] * 2).T
    assert_elementwise(torch.atan2, y, x)
    assert_results(
        torch.atan2, *torch.cartesian_prod(*[torch.tensor([-inf, -1, 0, 1, inf, nan])] * 2).T
    )


def test_logit_has_the_gradient_of_torch_at_its_ends() -> None:
    assert_elementwise(torch.logit, torch.tensor([0.0, 0.25, 0.5, 1.0]))
    assert_elementwise(lambda x: torch.logit(x, eps=0.25), torch.tensor([0.0, 0.25, 0.5, 0.8, 1.0]))
    assert_results(lambda x: torch.logit(x, eps=0.25), torch.tensor([nan, 0.3]))


def test_xlogy_has_the_gradient_of_torch_at_0() -> None:
    assert_elementwise(
        lambda x: torch.xlogy(x, torch.tensor([1.0, 0.0, 2.0, 3.0])),
        torch.tensor([0.0, 0.0, 0.0, 2.0]),
    )


@pytest.mark.parametrize("function", [torch.fmax, torch.fmin])
def test_fmax_and_fmin_ignore_nan_and_give_ties_to_the_first(function: Any) -> None:
    assert_elementwise(
        function, torch.tensor([1.0, nan, 1.0, nan, 2.0]), torch.tensor([1.0, 1.0, nan, nan, 3.0])
    )
    assert_elementwise(function, torch.randn(3, 4), torch.zeros(4))


def test_signs_are_copied_also_from_zeros() -> None:
    signs = torch.tensor([1.0, -1.0, 0.0, -0.0, -0.0, -inf])
    x = torch.tensor([1.0, 2.0, -3.0, 4.0, 0.0, 5.0])
    assert_elementwise(lambda x: torch.copysign(x, signs), x)
    assert_elementwise(lambda x: torch.copysign(x, -2), x)


def test_hypotenuses_do_not_overflow() -> None:
    x = torch.tensor([0.0, 3.0, 1e30, 1e-30, -5.0])
    assert_elementwise(torch.hypot, x, torch.tensor([0.0, -4.0, 1e30, 1e-30, 0.0]))
    assert_results(torch.hypot, torch.tensor([inf, 1.0]), torch.tensor([1.0, -inf]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_those_of_torch(dtype: torch.dtype) -> None:
    """In 16 bits, slopes are products of rounded numbers in ONNX: results only."""
    x = torch.tensor([[0.25, -1.5], [0.0, 2.0]], dtype=dtype)
    for function in (F.relu6, F.logsigmoid, torch.sinc, lambda x: x.clamp(min=0)):
        (assert_elementwise if dtype == torch.float64 else assert_results)(function, x)
    for function in (torch.atan2, torch.hypot, torch.fmax, torch.logaddexp):
        assert_results(function, x, x.flip(0))
