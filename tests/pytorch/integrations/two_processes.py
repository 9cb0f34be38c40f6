"""What each of two processes does for test_data_parallel.py, and the results that it leaves."""

from __future__ import annotations

import copy
import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import onward
from onward.pytorch import autograd

PROCESSES = 2
DEADLINE = datetime.timedelta(seconds=300)  # for a process that waits for another


def make_blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2))
    )


def make_rows() -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def compute_loss(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x).square().mean()


def work(rank: int, folder: str) -> None:
    """Train in each way; the first process writes what it found."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=PROCESSES,
        timeout=DEADLINE,
    )
    x = make_rows().chunk(PROCESSES)[rank]
    found = {
        "ddp": train_with_ddp(x),
        "whole": train_sharded(onward.Module(make_blocks()), x),
        "blocks": train_sharded(nn.Sequential(*map(onward.Module, make_blocks())), x, blocks=True),
        "wrapped last": train_sharded(make_blocks(), x, blocks=True, wrap=True),
    }
    if rank == 0:
        torch.save(found, Path(folder, "found.pt"))
    dist.barrier()
    dist.destroy_process_group()


def train_with_ddp(x: torch.Tensor) -> dict[str, Any]:
    """One step on two halves of the rows, the gradients of which are accumulated."""
    events: list[str] = []
    module = onward.Module(make_blocks(), onward.ModuleOptions(segments=3))
    parallel = DistributedDataParallel(module, bucket_cap_mb=1e-4)

    def reduce(_, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and no strings
        events.append("bucket")
        sent = dist.all_reduce(bucket.buffer(), async_op=True)
        return sent.get_future().then(lambda future: future.value()[0] / PROCESSES)

    parallel.register_comm_hook(None, reduce)
    compute_loss(parallel, x).backward()  # DDP has one bucket, and makes others for the next step
    parallel.zero_grad()
    events.clear()
    run_segment = autograd._run_segment

    def run_and_record(*args: Any) -> Any:
        events.append("segment")
        return run_segment(*args)

    first, second = x.chunk(2)
    with parallel.no_sync():
        (compute_loss(parallel, first) / 2).backward()
    autograd._run_segment = run_and_record
    (compute_loss(parallel, second) / 2).backward()
    autograd._run_segment = run_segment
    return {
        "events": events,
        "gradients": {name: p.grad for name, p in module.named_parameters()},
        "fallbacks": module.fallbacks,
    }


def train_sharded(
    module: nn.Module, x: torch.Tensor, *, blocks: bool = False, wrap: bool = False
) -> dict[str, Any]:
    """Two steps of SGD under FSDP2: of the whole module, or of each block by itself."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for block in module if blocks else ():
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    called = onward.Module(module) if wrap else module
    optimizer = torch.optim.SGD(called.parameters(), 0.1)
    sharded = []
    for _ in range(2):
        loss = compute_loss(called, x)
        sharded.append(all(isinstance(p, DTensor) for p in called.parameters()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wrapped = [each for each in (called, *called.children()) if isinstance(each, onward.Module)]
    return {
        "sharded after forward": sharded,
        "gradients": {name: p.grad.full_tensor() for name, p in called.named_parameters()},
        "parameters": {name: p.full_tensor().detach() for name, p in called.named_parameters()},
        "fallbacks": [each.fallbacks for each in wrapped],
        "programs": [len(each.programs) for each in wrapped],
    }


def train_alone(steps: int) -> tuple[dict[str, torch.Tensor | None], dict[str, torch.Tensor]]:
    """The gradients of the last step, and the parameters after it, of one process in PyTorch."""
    module, x = make_blocks(), make_rows()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        compute_loss(module, x).backward()
        gradients = {name: copy.copy(p.grad) for name, p in module.named_parameters()}
        optimizer.step()
    return gradients, {name: p.detach() for name, p in module.named_parameters()}
