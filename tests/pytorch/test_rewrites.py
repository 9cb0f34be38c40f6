"""rewrites: a user's function changes the captured graph, and the gradient follows it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch

import onward
from onward.errors import OptionError


def double_tanh(model: ir.Model) -> None:
    """Tanh(x) -> Tanh(2 x)"""
    for node in list(model.graph):
        if node.op_type == "Tanh":
            twice = ir.node("Add", [node.inputs[0], node.inputs[0]])
            model.graph.insert_before(node, twice)
            node.replace_input_with(0, twice.outputs[0])


def test_a_rewrite_changes_values_and_gradients() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    model = onward.Module(torch.nn.Tanh(), {"rewrites": [double_tanh]})
    y = model(x)
    torch.testing.assert_close(y, torch.tanh(2 * x))
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * (1 - torch.tanh(2 * x.detach()) ** 2))


def test_a_rewrite_must_keep_the_interface() -> None:
    def rename(model: ir.Model) -> None:
        model.graph.outputs[0].name = "other"

    options = onward.ModuleOptions(rewrites=[rename], fallback="forbid")
    with pytest.raises(onward.OnwardError, match="rewrite rename changed the names"):
        onward.Module(torch.nn.Tanh(), options)(torch.ones(2, 2))


def test_rewrites_must_be_functions() -> None:
    with pytest.raises(OptionError, match=r"rewrites\[0\] must be a function"):
        onward.ModuleOptions(rewrites=["fuse"])


def test_a_registered_graph_optimizer_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.training.ortmodule import ORTModule, graph_optimizer_registry

    registry = graph_optimizer_registry.GraphOptimizerRegistry
    monkeypatch.setattr(registry, "OPTIMIZERS", {})
    seen: list[str] = []

    @graph_optimizer_registry.register_graph_optimizer()
    def tanh_to_sigmoid(graph: Any) -> None:
        for node in graph.node:
            seen.append(node.op_type)
            if node.op_type == "Tanh":
                node.op_type = "Sigmoid"

    @graph_optimizer_registry.register_graph_optimizer(devices="cuda")
    def for_cuda(graph: Any) -> None:
        raise AssertionError("the module is on a CPU")

    x = torch.randn(3, 4)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    torch.testing.assert_close(ORTModule(module)(x), torch.sigmoid(module[0](x)))
    assert "Tanh" in seen
