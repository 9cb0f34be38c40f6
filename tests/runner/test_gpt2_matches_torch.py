"""GPT-2 trained by Onward has the loss curve of the same model in torch, written by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import onward
from onward.runner.callback import Callback
from onward.runner.config import make_config
from onward.runner.events import StepRecord
from onward.runner.plan.make_plan import make_plan
from onward.runner.run import Run

pytestmark = pytest.mark.integration

STEPS, WARMUP, RATE, DECAY = 200, 0.1, 1e-3, 0.01
LAYERS, HEADS, WIDTH, CONTEXT = 2, 2, 16, 16
DOCS = Path(__file__).parents[2] / "docs"


class Losses(Callback):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, run: Run, record: StepRecord) -> None:
        self.losses.append(float(record.results["loss"]))


class GPT2(torch.nn.Module):
    """Radford et al. 2019, with the names of its checkpoints; a linear layer is x W + b."""

    def __init__(self, weights: dict[str, np.ndarray[Any, Any]]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterDict(
            {name.replace(".", "/"): torch.tensor(value) for name, value in weights.items()}
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.get("wte.weight")[tokens] + self.get("wpe.weight")[: tokens.shape[1]]
        for i in range(LAYERS):
            x = x + self.attention(self.norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
            hidden = self.linear(self.norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
            x = x + self.linear(F.gelu(hidden, approximate="tanh"), f"h.{i}.mlp.c_proj")
        return self.norm(x, "ln_f") @ self.get("wte.weight").T

    def attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        rows, time, width = x.shape
        parts = self.linear(x, f"{name}.c_attn").split(width, dim=2)
        q, k, v = (part.view(rows, time, HEADS, -1).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        shares = scores.masked_fill(future, -math.inf).softmax(3)
        return self.linear((shares @ v).transpose(1, 2).reshape(x.shape), f"{name}.c_proj")

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale, bias = self.get(f"{name}.weight"), self.get(f"{name}.bias")
        return F.layer_norm(x, x.shape[-1:], scale, bias, eps=1e-5)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def get(self, name: str) -> torch.Tensor:
        return self.weights[name.replace(".", "/")]


def rate(step: int) -> float:
    """The share of the learning rate: up over the warm-up, then a half cosine down to 0."""
    warm = round(STEPS * WARMUP)
    if step < warm:
        return (step + 1) / (warm + 1)
    return (1 + math.cos(math.pi * (step - warm) / (STEPS - warm))) / 2


def test_the_loss_curve_of_gpt2_is_that_of_torch(tmp_path: Path) -> None:
    page = (DOCS / "glossary.md").read_text("utf-8")
    shards = [tmp_path / "first.txt", tmp_path / "second.txt"]
    shards[0].write_text(page[: len(page) // 2])
    shards[1].write_text(page[len(page) // 2 :])
    vocabulary = len(set(page))
    model = onward.new_model(
        "gpt2",
        layers=LAYERS,
        heads=HEADS,
        width=WIDTH,
        vocabulary=vocabulary,
        context=CONTEXT,
        dropout=0.0,
    )
    settings = {
        "max_steps": STEPS, "epochs": 1000, "batch_size": 8, "warmup": WARMUP,
        "validation_split": 0.0,
    }  # fmt: skip
    weights = {
        name: np.array(value.const_value.numpy())
        for name, value in model.graph.initializers.items()
        if name.endswith((".weight", ".bias"))
    }
    kept = Losses()
    onward.train(model, shards, callbacks=[kept], runs=str(tmp_path / "runs"), **settings)

    network = GPT2(weights)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    plan = make_plan(make_config(settings), model, shards)
    for _, feeds in zip(range(STEPS), epochs(plan.training)):
        optimizer.zero_grad()
        scores = network(torch.from_numpy(feeds["tokens"]))
        loss = F.cross_entropy(scores.flatten(0, 1), torch.from_numpy(feeds[plan.target]).flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())

    assert len(kept.losses) == STEPS
    assert losses[-1] < losses[0] - 0.5
    assert np.abs(np.subtract(kept.losses, losses)).max() < 1e-4


def epochs(batches: Any) -> Iterator[dict[str, Any]]:
    """The feeds of one epoch after another."""
    number = 0
    while True:
        yield from (batch.feeds for batch in batches.epoch(number))
        number += 1
