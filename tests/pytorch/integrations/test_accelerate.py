"""Accelerate with a wrapped module: accumulation, clipping and mixed precision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import onward
from tests.pytorch.integrations.small_nets import make_batch, make_net

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerate keeps its settings for the whole process."""
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def train(module: nn.Module, precision: str) -> None:
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=2
    )
    model, optimizer, loader = accelerator.prepare(
        module,
        torch.optim.SGD(module.parameters(), 0.1),
        DataLoader(TensorDataset(*make_batch()), batch_size=2),
    )
    updates = 0
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                updates += 1
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    assert updates == 2 and accelerator.unwrap_model(model) is module


@pytest.mark.parametrize(
    ("precision", "provider", "tolerance"), [("no", "auto", 1e-5), ("bf16", "torch", 1e-2)]
)
def test_training_as_the_bare_module(precision: str, provider: str, tolerance: float) -> None:
    module, bare = onward.Module(make_net(), {"provider": provider}), make_net()
    train(module, precision)
    fresh = accelerate.state.AcceleratorState
    fresh._reset_state(True)
    train(bare, precision)
    for found, expected in zip(module.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert not module.fallbacks
