"""Sizes that torch knows stay known: what the backward pass saves is chosen by counting bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn

import onward
from onward.pytorch import captured_program, graphs
from onward.pytorch.graphs import GraphPair, JointGraph, split_joint
from onward.pytorch.sizes import known_shapes, restore_shapes

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),  # autocast without bf16 hardware
]
CLASSES = 64


class Heads(nn.Module):
    """A view whose sizes are computed in the graph, and a cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.linear(x.view(-1, x.shape[1], 16)))
        scores = self.last(hidden).view(-1, CLASSES)
        return nn.functional.cross_entropy(scores, labels.view(-1))


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[JointGraph, GraphPair]]:
    """The graphs of modules, before and after they are split."""
    found: list[tuple[JointGraph, GraphPair]] = []
    split: Callable[..., GraphPair] = split_joint

    def note(joint: JointGraph, *given: Any, **options: Any) -> GraphPair:
        pair = split(joint, *given, **options)
        found.append((joint, pair))
        return pair

    monkeypatch.setattr(captured_program, "split_joint", note)
    return found


@pytest.mark.integration
def test_scores_are_saved_in_16_bits_instead_of_log_probabilities(
    splits: list[tuple[JointGraph, GraphPair]],
) -> None:
    torch.manual_seed(0)
    module = Heads()
    wrapped = onward.Module(module, {"provider": "inductor", "fallback": "forbid"})
    x, labels = torch.randn(2, 4, 16), torch.randint(CLASSES, (2, 4))
    gradients = []
    for each in (module, wrapped):
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = each(x, labels)
        loss.backward()
        gradients.append([tensor.grad.clone() for tensor in module.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-2, atol=2e-3)
    joint, pair = splits[-1]
    views = [node.outputs[0] for node in joint.model.graph if node.op_type == "Reshape"]
    assert views and all(view.shape is not None and view.shape.is_static() for view in views)
    saved = pair.forward.graph.outputs
    assert all(value.shape is not None and value.shape.is_static() for value in saved)
    of_all_classes = [v for v in saved if math.prod(v.shape.numpy()) == 8 * CLASSES]  # type: ignore[union-attr]
    assert [value.dtype for value in of_all_classes] == [ir.DataType.BFLOAT16]


def test_sizes_that_passes_lose_are_known_to_the_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """onnx infers no sizes of a view whose target is computed in the graph."""

    def lose(model: ir.Model) -> ir.Model:
        read_by_exp(model).shape = ir.Shape(["unk__0", "unk__1"])
        return model

    op = onward.OpBuilder()
    x = op.input("x", "float32", (2, 4))
    model = op.model(y=op.Exp(op.Reshape(x, op.input("sizes", "int64", (2,)))))
    read_by_exp(model).shape = ir.Shape([2, 4])
    monkeypatch.setattr(graphs, "PREPARE", lose)
    joint = graphs.build_joint(model, ["y"], ["x"])
    assert str(read_by_exp(joint.model).shape) == "[2,4]"


def read_by_exp(model: ir.Model) -> ir.Value:
    (value,) = [node.inputs[0] for node in model.graph if node.op_type == "Exp"]
    assert value is not None
    return value


def test_shapes_are_restored_where_a_pass_lost_them() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 4))
    lost, kept, other = op.Relu(x), op.Neg(x), op.Abs(x)
    model = op.model(y=op.Add(op.Add(lost, kept), other))
    values = {str(v.name): v for node in model.graph for v in node.outputs}
    one, two, three = (values[str(v.name)] for v in (lost, kept, other))
    one.shape, two.shape, three.shape = (ir.Shape(["s0", 4]) for _ in range(3))
    shapes = known_shapes(model)
    one.shape, two.shape = ir.Shape(["unk__3", "unk__4"]), ir.Shape([2, 4])
    three.shape = ir.Shape(["unk__3"])  # of another rank: another value
    restore_shapes(model, shapes)
    assert [str(each.shape) for each in (one, two, three)] == ["[s0,4]", "[2,4]", "[unk__3]"]
