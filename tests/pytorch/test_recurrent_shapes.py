"""A recurrent layer is traced without its loop over time, for every length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import onward
from onward.pytorch.recurrent_shapes import recurrent_shapes


class Tagger(nn.Module):
    """Tokens of a text to classes, by a recurrent layer."""

    def __init__(self, layer: type[Any], **settings: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.layer = layer(6, 5, **settings)
        self.last = nn.Linear(10 if settings.get("bidirectional") else 5, 3)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found, state = self.layer(self.table(tokens))
        return self.last(found), state[0] if isinstance(state, tuple) else state


def gradients(module: Any, tokens: torch.Tensor) -> list[torch.Tensor]:
    scores, state = module(tokens)
    parameters = list(module.parameters())
    loss = scores.square().mean() + state.sum()
    return [scores, state, *torch.autograd.grad(loss, parameters)]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("layer", "settings"),
    [
        (nn.LSTM, {"batch_first": True, "bidirectional": True, "num_layers": 2}),
        (nn.LSTM, {"bias": False}),
        (nn.GRU, {"batch_first": True, "bidirectional": True}),
        (nn.RNN, {"num_layers": 2, "bidirectional": True}),
        (nn.RNN, {"bias": False}),
        (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
    ],
)
def test_two_programs_for_all_lengths(layer: type[Any], settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = Tagger(layer, **settings)
    wrapped = onward.Module(module)
    for batch, length in ((4, 7), (2, 12), (3, 5)):
        tokens = torch.randint(0, 11, (batch, length))
        for found, expected in zip(gradients(wrapped, tokens), gradients(module, tokens)):
            torch.testing.assert_close(found, expected)
    assert len(wrapped.programs) == 2  # the first sizes have their own


def test_other_traces_see_the_layer_as_it_is() -> None:
    kernels = torch.ops.aten.lstm.input.py_kernels
    before = dict(kernels)
    with recurrent_shapes():
        assert dict(kernels) != before
        layer = nn.LSTM(3, 2)
        found, _ = layer(torch.ones(4, 1, 3))
    assert dict(kernels) == before
    torch.testing.assert_close(found, layer(torch.ones(4, 1, 3))[0])
