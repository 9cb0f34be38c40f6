"""A process of test_mpi_group.py: calls every collective, and prints what it found.

mpirun -n 2 python mpi_worker.py BACKEND SHARD
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from torch import distributed as dist

from onward.distributed.parallel import Parallel
from onward.distributed.process_groups import join_groups


def main() -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    groups = join_groups(Parallel(backend=sys.argv[1], shard=int(sys.argv[2]), timeout=120.0))
    group = groups.whole
    rank, size = group.rank, group.size
    sums = {}
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8"):
        tensor = torch.full((3,), rank + 1).to(getattr(torch, name))
        group.all_reduce(tensor).wait()
        sums[name] = tensor.double().tolist()
    average = torch.full((3, 2), float(rank + 1)).t()  # not contiguous
    if sys.argv[1] == "gloo":
        average = average.contiguous()
    group.all_reduce(average, "avg").wait()
    least, most = torch.tensor(rank), torch.tensor(rank)
    group.all_reduce(least, "min").wait()
    group.all_reduce(most, "max").wait()
    part = torch.zeros(2)
    group.reduce_scatter(part, torch.arange(2.0 * size) * (rank + 1)).wait()
    joined = torch.zeros(2 * size)
    group.all_gather(joined, torch.full((2,), float(rank))).wait()
    halves = torch.zeros(size, dtype=torch.bfloat16)
    group.all_gather(halves, torch.full((1,), rank, dtype=torch.bfloat16)).wait()
    received = torch.zeros(size)
    group.all_to_all(received, 10.0 * rank + torch.arange(float(size))).wait()
    given_sizes = [rank + 1] * size
    received_sizes = [r + 1 for r in range(size)]
    uneven = torch.zeros(sum(received_sizes))
    group.all_to_all(
        uneven, torch.full((sum(given_sizes),), float(rank)), received_sizes, given_sizes
    ).wait()
    copied = torch.tensor([float(rank)])
    group.broadcast(copied, 1).wait()
    scattered: list[int] = [-1]
    dist.scatter_object_list(scattered, [2 * r for r in range(size)] if rank == 0 else None, 0)
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, 0)
    neighbour = torch.zeros(1)
    sent = dist.isend(torch.tensor([float(rank)]), (rank + 1) % size)
    dist.recv(neighbour, (rank - 1) % size)
    assert sent is not None
    sent.wait()
    polled = torch.ones(100_000)
    work = dist.all_reduce(polled, async_op=True)
    assert work is not None
    while not work.is_completed():
        pass
    work.wait()
    empty = torch.zeros(0)
    group.all_reduce(empty).wait()
    group.barrier()
    found = {
        "rank": rank,
        "launcher": groups.ranks.launcher,
        "backend": dist.get_backend(),
        "sums": sums,
        "average": average.tolist(),
        "least": least.item(),
        "most": most.item(),
        "reduce_scatter": part.tolist(),
        "all_gather": joined.tolist(),
        "half_gather": halves.tolist(),
        "all_to_all": received.tolist(),
        "uneven": uneven.tolist(),
        "broadcast": copied.tolist(),
        "objects": group.gather_objects({"rank": rank}),
        "scattered": scattered[0],
        "gathered": gathered,
        "received": neighbour.item(),
        "polled": polled.min().item(),
        "empty": empty.numel(),
        "shards": groups.shards.gather_objects(rank),
        "copies": groups.copies.gather_objects(rank),
    }
    sys.stdout.write(json.dumps(found) + "\n")  # one write, so that lines stay whole
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
