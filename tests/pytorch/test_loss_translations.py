"""Cross entropy with every option of torch's, some of which its exporter ignores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.pytorch.eager import Calls, assert_as_eager, assert_elementwise, assert_results

WEIGHT = torch.tensor([1.0, 2.0, 0.5])
CLASSES = torch.tensor([[0, 2, 1, 2], [1, 1, 0, 2]])
OPTIONS: dict[str, dict[str, Any]] = {
    "smoothed": {"label_smoothing": 0.1},
    "smoothed, weighted, some ignored": {
        "label_smoothing": 0.1, "weight": WEIGHT, "ignore_index": 1
    },
    "smoothed, one by one": {"label_smoothing": 0.2, "reduction": "none"},
    "smoothed, weighted, summed": {"label_smoothing": 0.2, "weight": WEIGHT, "reduction": "sum"},
    "weighted": {"weight": WEIGHT},
}  # fmt: skip


@pytest.mark.sampled(last=True)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_classes(options: dict[str, Any]) -> None:
    module = Calls(lambda x, target: F.cross_entropy(x, target, **options))
    assert_as_eager(module, torch.rand(2, 3, 4, requires_grad=True), CLASSES)


@pytest.mark.sampled(last=True)
@pytest.mark.parametrize(
    "options", [{"label_smoothing": 0.1}, {"weight": WEIGHT, "reduction": "none"}]
)
def test_probabilities(options: dict[str, Any]) -> None:
    module = Calls(lambda x, target: F.cross_entropy(x, target, **options))
    x = torch.rand(2, 3, 4, requires_grad=True)
    assert_as_eager(module, x, torch.rand(2, 3, 4).softmax(1))


def test_an_ignored_class_that_is_a_size() -> None:
    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x.t(), target, ignore_index=x.size(0))

    assert_as_eager(Calls(loss), torch.rand(4, 3, requires_grad=True), torch.tensor([0, 4, 2]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_probabilities_of_0_and_1_have_finite_losses_and_gradients(reduction: str) -> None:
    x, target = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.3]), torch.tensor([0.0, 1.0, 1.0, 0.0, 0.6])
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert_elementwise(lambda x: F.binary_cross_entropy(x, target, weight, reduction=reduction), x)
    assert_elementwise(
        lambda x: F.binary_cross_entropy(x.sigmoid(), target),
        torch.tensor([-200.0, 200, -200, 200, 0]),
    )
    with torch.no_grad():
        assert_results(lambda x: F.binary_cross_entropy(x, target), x)


MARGIN_OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "squares, summed": {"p": 2, "reduction": "sum"},
    "weighted, one by one": {"weight": WEIGHT, "reduction": "none", "margin": 0.5},
}


@pytest.mark.parametrize("options", MARGIN_OPTIONS.values(), ids=MARGIN_OPTIONS)
def test_margins_that_are_just_kept_have_no_gradient(options: dict[str, Any]) -> None:
    x = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 0.5], [0.5, 0.5, 0.5]])
    target = torch.tensor([1, 0, 2])
    assert_elementwise(lambda x: F.multi_margin_loss(x, target, **options), x)
    assert_elementwise(lambda x: F.multi_margin_loss(x, target[0], **options), x[0])
