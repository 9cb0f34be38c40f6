"""Reductions, order statistics and running reductions: results and gradients of torch."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onward.passes.value_facts import made_by
from onward.pytorch import reduction_translations
from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from onward.pytorch.module_options import ModuleOptions
from tests.pytorch.eager import Calls, assert_elementwise, assert_results

ZEROS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, -2.0], [3.0, 4.0, 0.0]])
TIES = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0] * 4, [0.0, -1.0, -1.0, 0.0]])
MIXED = torch.tensor([[1.0, nan, 3.0, 2.0], [5.0] * 4, [0.0, -1.0, -1.0, 0.0]])
DISTINCT = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, inf, -inf])
def test_norms_of_zero_rows_have_the_gradients_of_torch(p: float) -> None:
    assert_elementwise(lambda x: torch.linalg.vector_norm(x, p, dim=1), ZEROS)
    assert_elementwise(lambda x: x.norm(p), ZEROS[1:])


def test_norms_of_other_shapes_are_those_of_torch() -> None:
    for x in (torch.tensor(-3.0), torch.ones(0, 3), DISTINCT.double()):
        assert_results(lambda x: torch.linalg.vector_norm(x, 3, dim=0), x)
    assert_results(lambda x: torch.linalg.vector_norm(x, 0, dim=1), ZEROS)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dim", [0, -1])
def test_the_first_extreme_of_an_axis_has_the_gradient(name: str, dim: int) -> None:
    assert_elementwise(lambda x: getattr(x, name)(dim)[0], TIES)
    assert_elementwise(lambda x: getattr(x, name)(dim, keepdim=True)[0], TIES)
    assert_results(lambda x: getattr(x, name)(dim)[1], TIES)


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_equal_extremes_of_all_axes_share_the_gradient(name: str) -> None:
    assert_elementwise(lambda x: getattr(x, name)(), TIES)
    assert_elementwise(lambda x: torch.stack(torch.aminmax(x)), TIES)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_products_are_those_of_torch(dim: int) -> None:
    x = DISTINCT.clone()
    x[1, 2] = x[1, 4] = x[2, 0] = 0
    assert_elementwise(lambda x: x.cumprod(dim), x)
    assert_elementwise(lambda x: x.double().cumprod(dim), x)
    assert_results(lambda x: x.cumprod(dim), torch.tensor([[1, 2], [3, 4]]))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_extremes_are_those_of_torch(name: str, dim: int) -> None:
    assert_elementwise(lambda x: getattr(x, name)(dim)[0], TIES)
    for x in (MIXED, TIES.long(), TIES.int()):
        assert_results(lambda x: tuple(getattr(x, name)(dim)), x)


def test_running_extremes_of_short_integers_run_in_torch() -> None:
    with pytest.raises(RuntimeError, match="cummax and cummin of INT8 have no ONNX operators"):
        assert_results(lambda x: x.cummax(0)[0], TIES.to(torch.int8))


@pytest.mark.parametrize("dim", [0, 1])
def test_running_logarithms_of_sums_are_finite(dim: int) -> None:
    x = (DISTINCT * 100).requires_grad_()
    x64 = (DISTINCT.double() * 100).requires_grad_()
    found = Module(Calls(lambda x: x.logcumsumexp(dim)), {"fallback": "forbid"})(x)
    expected = x64.logcumsumexp(dim)  # torch's own gradients of 32 bits are not precise
    slopes = [torch.autograd.grad(y.square().sum(), z) for y, z in ((found, x), (expected, x64))]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(slopes[0][0].double(), slopes[1][0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_medians_of_an_axis_are_those_of_torch(dim: int) -> None:
    assert_elementwise(lambda x: x.median(dim)[0], DISTINCT)
    assert_elementwise(lambda x: x.median(dim, keepdim=True)[0], DISTINCT.double())
    assert_results(lambda x: x.median(dim)[1], DISTINCT)
    assert_results(lambda x: x.median(dim)[0], MIXED)


@pytest.mark.parametrize("x", [[1.0, 2.0, 2.0, 3.0, 2.0], [4.0, 1.0, 3.0, 2.0], [[4.0]]])
def test_equal_medians_share_the_gradient(x: Any) -> None:
    assert_elementwise(torch.median, torch.tensor(x))


def test_medians_of_nan_and_of_integers() -> None:
    assert_results(torch.median, MIXED)
    assert_results(torch.median, TIES.long())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_kth_values_are_those_of_torch(dim: int) -> None:
    assert_elementwise(lambda x: x.kthvalue(2, dim)[0], DISTINCT)
    assert_results(lambda x: tuple(x.kthvalue(3, dim, keepdim=True)), DISTINCT)
    assert_results(lambda x: x.kthvalue(3, dim)[0], MIXED)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumprod(0),
        lambda x: x.cummax(0)[0],
        lambda x: x.cumprod(1),
        lambda x: x.median(1)[0],
        lambda x: x.kthvalue(1, 1)[0],
    ],
)
def test_a_batch_of_any_size_is_one_capture(function: Any) -> None:
    captured = Module(Calls(function), {"fallback": "forbid"})
    for rows in (5, 2, 33, 9):
        x: Tensor = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(captured(x), function(x))
    assert len(captured.programs) == 2


@pytest.mark.parametrize("name", ["cumprod", "cummax", "logcumsumexp"])
def test_running_reductions_of_an_empty_axis(name: str) -> None:
    function = getattr(torch, name)
    assert_results(
        lambda x: function(x, 0)[0] if name == "cummax" else function(x, 0), torch.ones(0, 3)
    )


class Running(nn.Module):
    """Running reductions over the batch, whose size is free."""

    def forward(self, x: Any) -> Any:
        largest, index = torch.cummax(x, 0)
        return torch.cumprod(x, 0), torch.logcumsumexp(x, 0), largest, index


@pytest.mark.integration
def test_running_reductions_over_a_free_axis_need_no_more_than_its_memory() -> None:
    ours, theirs = Module(Running(), ModuleOptions(fallback="forbid")), Running()
    for size in (6, 9, 1, 17):
        x = torch.rand(size, 2) + 0.5
        for found, expected in zip(ours(x), theirs(x)):
            torch.testing.assert_close(found, expected)
    pads = [n for n in ours.programs[1].capture.model.graph if n.op_type == "Pad"]
    widths = [node.inputs[1] for node in pads]
    assert widths
    # each of them is limited by the axis' size
    assert all(width is not None and made_by(width, "Concat") for width in widths)


@pytest.mark.integration
def test_running_reductions_over_more_elements_than_they_have_steps_for_run_in_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reduction_translations, "_LONGEST", 16)
    ours, theirs = Module(Running()), Running()
    for size in (6, 9, 16):
        ours(torch.rand(size, 2))
    assert ours.fallbacks == {}
    x = torch.rand(17, 2) * 0.01 + 1
    with pytest.warns(FallbackWarning, match="runs over an axis of more than"):
        found = ours(x)
    for ours_, theirs_ in zip(found, theirs(x)):
        torch.testing.assert_close(ours_, theirs_)
