"""What grows in 2,000 steps of onward.Module over 300 different sequence lengths.

    python benchmarks/module.py --flat [--steps 2000] [--lengths 300] [--engine ours]

A small GPT-2 in one process, with AdamW. Memory, threads and compiled programs are read after a
tenth of the steps, when every kind of program has been made, and at the end.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import report


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="module.py --flat", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lengths", type=int, default=300)
    parser.add_argument("--engine", default="ours", choices=("ours", "eager"))
    parser.add_argument("--output", type=Path, help="write the results to this file")
    given = parser.parse_args(words)
    warnings.simplefilter("ignore")
    rows = train(given.steps, given.lengths, given.engine)
    for row in rows:
        print(json.dumps(row))
    before, after = rows[0], rows[-1]
    print(f"memory {after['mb'] - before['mb']:+.1f} MB, threads", end=" ")
    print(f"{after['threads'] - before['threads']:+d}, programs {after['programs']}")
    if given.output or (given.steps, given.lengths, given.engine) == (2000, 300, "ours"):
        print("written to", report.write("module-flat", rows, given.output))


def train(steps: int, lengths: int, engine: str) -> list[dict[str, Any]]:
    """Samples after a tenth of the steps, half of them and all."""
    import torch
    from module import THREADS, load_case, wrap

    torch.set_num_threads(THREADS)
    case = load_case("gpt2", "test")
    module = wrap(case.module, engine)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    choose, rows = random.Random(0), []
    count = case.module.config.vocab_size
    for step in range(1, steps + 1):
        ids = torch.randint(count, (2, 8 + choose.randrange(lengths)))
        optimizer.zero_grad()
        loss = module(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        if step in (steps // 10, steps // 2, steps):
            rows.append({"step": step, **sample(module)})
    return rows


def sample(module: Any) -> dict[str, Any]:
    """The memory, threads and programs of this process now."""
    from onward.measure.memory.resident_memory import release_free_memory, resident

    gc.collect()
    release_free_memory()
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
    programs = len(getattr(module, "programs", ()))
    return {"mb": resident() / (1 << 20), "threads": threads, "programs": programs}
