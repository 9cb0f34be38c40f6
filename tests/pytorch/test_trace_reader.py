"""Inputs keep the names of tensors and arguments, which results in a trace may have, too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onward.pytorch.capture import capture
from onward.pytorch.module import Module


class Named(nn.Module):
    """A module whose tensors and arguments are called as torch.export calls results."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mul = nn.Parameter(torch.arange(6.0))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, cat: Tensor, add: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([cat, add], 1) * self.mul
        self.mean.add_(x.detach().mean(0))
        return x + self.mean.clone(), torch.cat([x, add], 1)


def test_names_that_a_trace_gives_to_results_are_free_for_inputs() -> None:
    module = Named()
    captured, results, gradients = Module(module, {"fallback": "forbid"}), [], []
    for each in (module, captured):
        module.mean.zero_()
        module.zero_grad()
        for rows in (2, 3):
            cat, add = (torch.arange(3.0 * rows).view(rows, 3) for _ in range(2))
            first, second = each(cat, add)
            (first.sum() + second.square().sum()).backward()
        results.append([first, second, module.mean.clone()])
        gradients.append(module.mul.grad)
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_names_of_inputs_are_those_of_the_module() -> None:
    found = capture(Named(), [torch.ones(2, 3), torch.ones(2, 3)], {})
    names = [value.name for value in found.model.graph.inputs]
    assert names == ["mul", "mean", "cat", "add"]
    made = [value.name for node in found.model.graph for value in node.outputs]
    assert len({*names, *made}) == len(names) + len(made)
