"""Loops of users' own around a wrapped module train as around the bare one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import onward
from tests.pytorch.integrations.small_nets import make_batch, make_net

schedulers = torch.optim.lr_scheduler


@pytest.fixture(scope="module")
def wrapped() -> onward.Module:
    """One captured module for all loops: each loads its own weights."""
    return onward.Module(make_net())


def both(wrapped: onward.Module) -> tuple[onward.Module, nn.Module]:
    wrapped.load_state_dict(make_net().state_dict())
    wrapped.zero_grad()
    return wrapped, make_net()


def assert_same_parameters(found: nn.Module, expected: nn.Module, tolerance: float = 1e-5) -> None:
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def compute_loss(module: nn.Module, seed: int = 1) -> torch.Tensor:
    x, y = make_batch(seed)
    return nn.functional.cross_entropy(module(x).float(), y)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "one_cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=4),
    "warm_up": lambda o: schedulers.LambdaLR(o, lambda step: min(1.0, (step + 1) / 3)),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "warm_restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=2),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_train_as_the_bare_module(schedule: str, wrapped: onward.Module) -> None:
    for module in (pair := both(wrapped)):
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        scheduler = SCHEDULES[schedule](optimizer)
        for step in range(4):
            loss = compute_loss(module, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step(*[loss.detach()] * (schedule == "plateau"))
    assert_same_parameters(*pair)
    assert not wrapped.fallbacks


def test_gradients_are_accumulated_and_clipped(wrapped: onward.Module) -> None:
    norms = []
    for module in (pair := both(wrapped)):
        optimizer = torch.optim.AdamW(module.parameters(), 0.01)
        for step in range(2):
            for part in range(3):
                (compute_loss(module, 3 * step + part) / 3).backward()
            norms.append(nn.utils.clip_grad_norm_(module.parameters(), 0.05))
            optimizer.step()
            optimizer.zero_grad()
    assert_same_parameters(*pair)
    torch.testing.assert_close(norms[:2], norms[2:])


def test_averages_of_weights(wrapped: onward.Module) -> None:
    averages = []
    for module in both(wrapped):
        averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad()
            compute_loss(module, step).backward()
            optimizer.step()
            averaged.update_parameters(module)
        averages.append(averaged)
    assert isinstance(averages[0].module, onward.Module)
    assert_same_parameters(*averages)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_autocast_and_a_gradient_scaler(dtype: str, tolerance: float) -> None:
    provider = "torch" if dtype == "bfloat16" else "auto"
    pair = onward.Module(make_net(), {"provider": provider}), make_net()
    for module in pair:
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for step in range(2):
            with torch.autocast("cpu", dtype=getattr(torch, dtype)):
                found = module(make_batch(step)[0])
                assert found.dtype == getattr(torch, dtype)
                loss = nn.functional.cross_entropy(found.float(), make_batch(step)[1])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert_same_parameters(*pair, tolerance)
    assert not pair[0].fallbacks and pair[0][0].weight.dtype == torch.float32
