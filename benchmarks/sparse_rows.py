"""Measure a step that trains a large embedding table: rows that the batch reads, or all of them.

    python benchmarks/sparse_rows.py                  # 1,000,000 rows of 64, batches of 1024 x 8
    python benchmarks/sparse_rows.py --device cuda
    python benchmarks/sparse_rows.py --rows 20000 --steps 3   # to try the script

`rows` is ours compiled by Inductor; `table` is the same with the update of all rows. Peers: torch
with nn.Embedding, `eager` and `eager sparse` (sparse=True, gradients of rows). The optimizer is
Adagrad. Each has a separate process; times are medians of steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import report
import torch

ENGINES = ("rows", "table", "eager", "eager sparse")
SIZE, CLASSES, BATCH, READ = 64, 10, 1024, 8


class Bag(torch.nn.Module):
    """The mean of embeddings, and a linear layer."""

    def __init__(self, rows: int, sparse: bool = False) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(rows, SIZE, sparse=sparse)
        self.head = torch.nn.Linear(SIZE, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).mean(1))


def batches(rows: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [
        (
            torch.randint(rows, (BATCH, READ), generator=draw),
            torch.randint(CLASSES, (BATCH,), generator=draw),
        )
        for _ in range(count)
    ]


def ours(rows: int, device: str, sparse: bool) -> Callable[..., Any]:
    import onward
    from onward import losses, optimizers
    from onward.programs import row_gradients

    row_gradients.SMALLEST_TABLE = 1 if sparse else 1 << 62
    torch.manual_seed(0)
    module = Bag(rows)
    [(ids, _)] = batches(rows, 1)
    exported = torch.onnx.export(module, (ids,), dynamo=True, verbose=False)
    assert exported is not None
    session = onward.TrainingSession(
        exported.model,
        losses.CrossEntropy(),
        optimizers.Adagrad(lr=0.01),
        {"outputs": []},
        providers=[("InductorExecutionProvider", {"device": device})],
    )
    assert any(each.sparse for each in session.program.layout.updates) is sparse
    names = session.input_names
    return lambda *batch: session.step(dict(zip(names, batch)))["loss"]


def eager(rows: int, device: str, sparse: bool) -> Callable[..., Any]:
    torch.manual_seed(0)
    module = Bag(rows, sparse).to(device)
    optimizer = torch.optim.Adagrad(module.parameters(), lr=0.01)

    def step(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(module(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(engine: str, rows: int, device: str, steps: int) -> dict[str, Any]:
    """Time and losses of an engine, in this process."""
    warnings.simplefilter("ignore")
    makers = {
        "rows": lambda: ours(rows, device, True),
        "table": lambda: ours(rows, device, False),
        "eager": lambda: eager(rows, device, False),
        "eager sparse": lambda: eager(rows, device, True),
    }
    step = makers[engine]()
    losses, seconds = [], []
    for ids, labels in batches(rows, steps):
        batch = ids.to(device), labels.to(device)
        _wait(device)
        start = time.perf_counter()
        loss = step(*batch)
        _wait(device)
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss))
    warm = min(3, steps - 1)
    return {"engine": engine, "ms": 1e3 * statistics.median(seconds[warm:]), "losses": losses}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", choices=ENGINES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.rows, given.device, given.steps)))
        return
    found = []
    for engine in ENGINES:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", engine]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        first = found[0]["losses"] if found else row["losses"]
        row["difference"] = float(np.abs(np.subtract(row["losses"], first)).max())
        found.append(row)
        print(f"{engine:14} {row['ms']:9.2f} ms  losses differ by {row['difference']:.1e}")
    if given.rows >= 1_000_000:
        print(report.write("sparse_rows", found, device=given.device, table=[given.rows, SIZE]))


if __name__ == "__main__":
    main()
