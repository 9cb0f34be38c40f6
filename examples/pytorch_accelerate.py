"""Train a PyTorch module with Accelerate: accumulation, clipping, bfloat16.

python examples/pytorch_accelerate.py

In bfloat16, the engine of a CPU is torch: onnxruntime has no kernels of this type there.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import onward

if __name__ == "__main__":
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    wrapped = onward.Module(net, onward.ModuleOptions(provider="torch"))
    x = torch.randn(64, 8)
    rows = TensorDataset(x, (x.sum(1) > 0).long())
    optimizer = torch.optim.AdamW(wrapped.parameters(), 0.02)
    model, optimizer, loader = accelerator.prepare(
        wrapped, optimizer, DataLoader(rows, batch_size=16)
    )
    for epoch in range(4):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    print("captured programs:", len(wrapped.programs), "fallbacks:", wrapped.fallbacks)
