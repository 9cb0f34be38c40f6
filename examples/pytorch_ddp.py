"""Train a PyTorch module on two processes with DistributedDataParallel.

python examples/pytorch_ddp.py

`ModuleOptions(segments=3)` divides the backward pass into three parts. DDP sends the gradients of
one part to the other process while the next part is computed. Each process has half of the rows;
together they train as one process on all of them would, which the last line shows.
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import onward

PROCESSES = 2


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 2)
    )


def make_rows() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return x, (x.sum(1) > 0).long()


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 10) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES
    )
    x, y = (rows[rank::PROCESSES] for rows in make_rows())  # half of the rows
    loss = torch.tensor(train(parallelise(make_model()), x, y))
    dist.all_reduce(loss)
    if rank == 0:
        alone = train(make_model(), *make_rows())
        print(f"loss of two processes {loss.item() / PROCESSES:.4f}, of one process {alone:.4f}")
    dist.barrier()
    dist.destroy_process_group()


def parallelise(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(onward.Module(model, onward.ModuleOptions(segments=3)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (folder,), PROCESSES)
