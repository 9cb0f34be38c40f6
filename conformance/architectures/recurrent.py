"""Sequences in plain torch: LSTM, GRU, a recurrent cell in a loop, convolutions over time."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from conformance.architectures.case import (
    Case,
    Sizes,
    classes,
    cross_entropy,
    squared_error,
    words,
)


class Tagger(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(s.words, s.hidden)
        self.lstm = nn.LSTM(s.hidden, s.hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * s.hidden, s.labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0])


def lstm_tagger(s: Sizes) -> Case:
    """Two layers in both directions, a tag for every word."""
    labels = classes(s, s.batch, s.length)
    return Case(Tagger(s), (words(s),), {}, cross_entropy(labels))


class Forecaster(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.gru = nn.GRU(3, s.hidden)
        self.head = nn.Linear(s.hidden, 3)

    def forward(
        self, x: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y, state = self.gru(x, state)
        return self.head(y), state


def gru(s: Sizes) -> Case:
    """Time first, with a state that goes in and comes out."""
    x, state = torch.randn(s.length, s.batch, 3), torch.randn(1, s.batch, s.hidden)

    def loss(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        y, last = outputs
        return f.mse_loss(y[:-1], x[1:]) + 0.01 * last.square().mean()

    return Case(Forecaster(s), (x,), {"state": state}, loss)


class CellLoop(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, s.hidden)
        self.head = nn.Linear(s.hidden, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), self.cell.hidden_size)
        outputs = []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            outputs.append(self.head(state))
        return torch.stack(outputs, 1)


def rnn_cell(s: Sizes) -> Case:
    """A cell in a loop of Python."""
    target = torch.randn(s.batch, 6, 3)
    return Case(CellLoop(s), (torch.randn(s.batch, 6, 3),), {}, squared_error(target))


class CausalBlock(nn.Module):
    """Two dilated convolutions that see the past alone, weight-normalised."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = norm(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.second = norm(nn.Conv1d(outputs, outputs, 3, dilation=dilation))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.past = 2 * dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(f.pad(x, (self.past, 0))))
        y = torch.relu(self.second(f.pad(y, (self.past, 0))))
        return torch.relu(y + self.skip(x))


def tcn(s: Sizes) -> Case:
    blocks = [CausalBlock(3 if i == 0 else s.hidden, s.hidden, 1 << i) for i in range(3)]
    module = nn.Sequential(*blocks, nn.Conv1d(s.hidden, 3, 1))
    x = torch.randn(s.batch, 3, 2 * s.length)
    return Case(module, (x,), {}, squared_error(x.roll(-1, -1)))


RECURRENT = (lstm_tagger, gru, rnn_cell, tcn)
