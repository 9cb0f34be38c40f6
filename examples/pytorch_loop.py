"""A loop of your own with torch.optim: warm-up, clipping, float16, averaged weights, checkpointing.

python examples/pytorch_loop.py

Each block is recomputed in the backward pass (torch.utils.checkpoint): blocks run on captured
graphs, and keep only their inputs between forward and backward.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import onward


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
            for _ in range(2)
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = (x.sum(1) > 0).long()
    model = onward.Module(Net())
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    scaler = torch.amp.GradScaler("cpu")
    for step in range(12):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        averaged.update_parameters(model)
        if step % 4 == 0:
            print(f"step {step}: loss {loss.item():.3f}, norm of the gradients {norm.item():.2f}")
    with torch.inference_mode():
        right = (averaged(x).argmax(1) == y).float().mean()
    print(f"averaged weights: {right:.0%} right")
    print("captured programs:", len(model.programs), "fallbacks:", model.fallbacks)
