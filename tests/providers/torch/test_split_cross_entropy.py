"""A cross entropy becomes scores less one number per row: loss and gradient stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.split_cross_entropy import split_cross_entropy

CLASSES = 5
LABELS = {2: [0, 3, 1, 4, 2, 3], 3: [[0, 3], [1, 4], [2, 3]]}
OPTIONS: list[dict[str, Any]] = [
    *({"reduction": reduction} for reduction in ("mean", "sum", "none")),
    *({"reduction": reduction, "ignore_index": 3} for reduction in ("mean", "none")),
]


def model(rank: int, options: dict[str, Any], *, is_weighted: bool, reads_log: bool) -> ir.Model:
    op = onward.OpBuilder()
    labels = np.asarray(LABELS[rank])
    x = op.input("x", "float32", (labels.shape[0], CLASSES, *labels.shape[1:]))
    given = [x, op.constant(labels)]
    if is_weighted:
        given.append(op.constant(np.linspace(0.5, 2, CLASSES, dtype=np.float32)))
    if not reads_log:
        return op.model(loss=op.SoftmaxCrossEntropyLoss(*given, **options))
    loss, log_prob = op.SoftmaxCrossEntropyLoss(*given, outputs=2, **options)
    return op.model(loss=loss, log_prob=log_prob)


def run(given: ir.Model, x: torch.Tensor) -> list[torch.Tensor]:
    provider = TorchProvider("TorchExecutionProvider", torch.device("cpu"))
    return list(provider.lower(given).forward(x))


@pytest.mark.parametrize("is_weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rank", [2, 3])
def test_loss_and_log_probabilities_are_the_same(
    rank: int, options: dict[str, Any], is_weighted: bool
) -> None:
    given = model(rank, options, is_weighted=is_weighted, reads_log=True)
    x = torch.randn(tuple(given.graph.inputs[0].shape.numpy()), generator=torch.manual_seed(0))  # type: ignore[union-attr]
    for scores in (x, 1e4 * x):  # large ones, whose exp overflows
        expected = run(given.clone(), scores)
        split = given.clone()
        split_cross_entropy(split)
        assert "SoftmaxCrossEntropyLoss" not in {node.op_type for node in split.graph}
        torch.testing.assert_close(run(split, scores), expected)


def test_a_loss_whose_log_probabilities_no_one_reads_stays() -> None:
    given = model(2, {"reduction": "mean"}, is_weighted=False, reads_log=False)
    split_cross_entropy(given)
    assert [node.op_type for node in given.graph] == ["SoftmaxCrossEntropyLoss"]
