"""What compressing gradients costs, and the networks below which it is worth it.

    OMP_NUM_THREADS=1 python benchmarks/gradient_compression.py

Two processes of one thread each reduce a bucket of 25 MB over gloo. `cpu_ms` is the time that the
calling thread computes, the best of 10; what it sends is counted. A network is worth compressing
for if sending the bytes that are saved would take longer than that: below `break_even_gbit_s`.
Collectives that cannot overlap with the backward pass any more are left out of it.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import report
import torch
from torch import distributed as dist

from onward.distributed import HalfPrecision, Int8, PowerSGD, TopK
from onward.distributed.communicator import Communicator
from onward.distributed.compression.uncompressed import SumReducer
from onward.programs.vector_offsets import place

SIZE = 2
SHAPES = {f"w{i}": (1024, 1024) for i in range(6)} | {f"b{i}": (1024,) for i in range(6)}
PLACES = place(SHAPES, np.dtype("float32"))
KINDS: dict[str, Any] = {
    "uncompressed": None,
    "HalfPrecision()": HalfPrecision(),
    "Int8()": Int8(),
    "TopK(share=0.01)": TopK(share=0.01),
    "PowerSGD(rank=4)": PowerSGD(rank=4),
}


def measure(rank: int, folder: str, found: Any) -> None:
    """Reduce the bucket with each compression, in one process; rank 0 reports."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    group, gradients = Communicator(), torch.randn(PLACES.size)
    rows = []
    for name, kind in KINDS.items():
        reducer = SumReducer(group) if kind is None else kind.open(group, PLACES)
        seconds, sent = [], 0
        for _ in range(10):
            vector = gradients.clone()
            group.barrier()
            before, start = sum(group.sent.values()), time.thread_time()
            reducer.reduce(vector).wait()
            seconds.append(time.thread_time() - start)
            sent = sum(group.sent.values()) - before
        rows.append({"compression": name, "cpu_ms": 1e3 * min(seconds), "sent_mb": sent / 1e6})
    if rank == 0:
        found.put(rows)
    dist.destroy_process_group()


def main() -> None:
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    with TemporaryDirectory() as folder:
        arguments = [(rank, folder, found) for rank in range(SIZE)]
        processes = [context.Process(target=measure, args=each) for each in arguments]
        for process in processes:
            process.start()
        rows = found.get(timeout=300)
        for process in processes:
            process.join(60)
    plain = rows[0]
    for row in rows[1:]:
        saved, spent = plain["sent_mb"] - row["sent_mb"], row["cpu_ms"] - plain["cpu_ms"]
        row["break_even_gbit_s"] = 8 * saved / spent
    for row in rows:
        print({name: round(v, 2) if isinstance(v, float) else v for name, v in row.items()})
    if "--write" in sys.argv:
        print("written to", Path(report.write("gradient_compression", rows)).name)


if __name__ == "__main__":
    main()
