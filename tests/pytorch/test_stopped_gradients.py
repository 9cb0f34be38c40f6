"""detach, no_grad and padding rows: no gradient flows through them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_as_eager


def stopped(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().sum(-1, keepdim=True)
        shift = scale + 1
    return x / scale + shift * x + x.detach() * x


def test_detach_and_no_grad_stop_gradients() -> None:
    assert_as_eager(Calls(stopped), torch.rand(3, 4, requires_grad=True))


def test_padding_rows_of_an_embedding_get_no_gradient() -> None:
    assert_as_eager(nn.Embedding(5, 3, padding_idx=1), torch.tensor([[0, 1], [4, 1]]))


def test_the_captured_model_has_standard_operators() -> None:
    module = Module(Calls(stopped))
    module(torch.ones(3, 4, requires_grad=True))
    [program] = module.programs
    assert {node.domain for node in program.capture.model.graph} == {""}
    assert program.capture.model.opset_imports.keys() == {""}
