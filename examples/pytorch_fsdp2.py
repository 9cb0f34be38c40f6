"""Train a PyTorch module whose parameters are divided between two processes, with FSDP2.

python examples/pytorch_fsdp2.py

Each block is an `onward.Module` and is sharded by itself: its parameters are gathered before its
forward and its backward, and freed after each.
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import onward

PROCESSES = 2


def make_block() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES
    )
    train(rank)
    dist.barrier()
    dist.destroy_process_group()  # after the model, which holds the group, is freed


def train(rank: int) -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    torch.manual_seed(0)
    model = nn.Sequential(*(onward.Module(make_block()) for _ in range(2)))
    whole = sum(parameter.numel() for parameter in model.parameters())
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mine = sum(parameter.to_local().numel() for parameter in model.parameters())

    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(rank))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(5):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    if rank == 0:
        print(f"{mine} of {whole} parameters in each process between the steps")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (folder,), PROCESSES)
