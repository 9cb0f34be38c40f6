"""Measure what a Memory option costs and saves: time of a step, planned and measured memory.

    python benchmarks/memory_budget.py                        # a transformer on onnxruntime, CPU
    python benchmarks/memory_budget.py --provider torch --small
    python benchmarks/memory_budget.py --device cuda          # GPT-2 124M, 16 x 1024, float32
    python benchmarks/memory_budget.py --device cuda --largest --limit 24   # the largest batch

A process for each row; on CUDA the rows compile in parallel, then each is measured while the others
wait. CPU: a transformer of 4 layers, or with --small of 2, its time the least of
several steps; memory is what the first step adds to the resident set (onnxruntime), or what torch
allocates during a step: activations without parameters and slots. CUDA: GPT-2 from transformers,
compiled by Inductor and recorded as a CUDA graph; `eager` is torch without a compiler, the same
module and AdamW. Time is the median step; memory is the peak that torch allocated, or what recorded
graphs hold, whichever is more. `planned` is memory_report's figure for the same. `loss` is the
largest difference from the first row's losses. --largest searches the largest batch that trains
within --limit GiB, row after row: four batches at once, each of twice as many samples until one
fails, then batches between.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import report

ROWS = {
    "none": None,
    "75%": {"budget": "75%"},
    "50%": {"budget": "50%"},
    "level 1": {"level": 1},
    "level 2": {"level": 2},
    "offload": {"offload": True},
    "int8": {"stash": "int8"},
}
EAGER = "eager"  # a row of torch alone, on CUDA
ON_CUDA = (*ROWS, EAGER)
SEARCHED = ("none", "50%", "level 2", EAGER)
PROVIDERS = {
    "onnxruntime": "CPUExecutionProvider",
    "torch": "TorchExecutionProvider",
    "inductor": "InductorExecutionProvider",
}
STEPS = 10
WARM = 4  # steps that compile and record
READY = "ready"  # a child's line when it has compiled; it measures after a line of input


def on_cpu(row: str, provider: str, small: bool) -> dict[str, Any]:
    """Train the transformer on the CPU."""
    import models
    import numpy as np

    from onward.graph.graph_ops import extend
    from onward.measure.memory import resident_memory

    sizes = (8, 32, 2, 64) if small else (16, 128, 4, 128)
    model, feeds = models.transformer(*sizes)
    graph = model.graph
    logits = graph.outputs[0]
    flat = extend(model).Reshape(logits, np.array([-1, 1000]))
    logits.name, flat.name = "scores", logits.name
    graph.outputs[:] = [flat]
    feeds["labels"] = np.random.default_rng(0).integers(0, 1000, sizes[0] * sizes[1])
    step, planned = open_session(model, row, PROVIDERS[provider], feeds)
    resident_memory.settle()
    before = resident_memory.resident()
    resident_memory.reset_peak()
    losses = [step()]
    peak = resident_memory.most_resident() - before
    if provider != "onnxruntime":
        peak = torch_peak(step)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    figures = {"ms": 1e3 * min(seconds), "peak": peak, "planned": planned.activations.peak}
    return {**figures, "losses": losses}


def torch_peak(step: Callable[[], float]) -> int:
    """The most bytes that torch holds at once during a step on the CPU, less those before it."""
    import torch

    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    events = profile.profiler.kineto_results.events()
    held = peak = 0
    for event in (each for each in events if each.name() == "[memory]"):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def on_cuda(
    row: str, provider: str, small: bool, batch: int = 16, limit: float | None = None
) -> dict[str, Any]:
    """Train GPT-2 on a GPU, in at most `limit` GiB."""
    import gpu_training
    import torch

    if limit is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit * 2**30 / total))
    module, (given, _) = gpu_training.module("gpt2", small)
    x = torch.randint(int(given.max()) + 1, (batch, given.shape[1]))
    labels = x.roll(-1, 1).reshape(-1)
    if row == EAGER:
        step, planned = eager_step(module, x, labels), 0
    else:
        exported = torch.onnx.export(
            module.train(), (x,), dynamo=True, optimize=False, verbose=False, opset_version=23
        )
        assert exported is not None
        name = exported.model.graph.inputs[0].name
        feeds = {name: x.cuda(), "labels": labels.cuda()}
        chosen = (PROVIDERS[provider], {"device": "cuda"})
        step, memory = open_session(exported.model, row, chosen, feeds)
        planned = memory.peak
    losses = [step() for _ in range(WARM)]
    torch.cuda.synchronize()
    print(READY, flush=True)
    sys.stdin.readline()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses.append(step())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    ms = 1e3 * statistics.median(seconds)
    peak = gpu_training.used_memory()
    return {"ms": ms, "peak": peak, "planned": planned, "losses": losses}


def eager_step(module: Any, x: Any, labels: Any) -> Callable[[], float]:
    """A step of torch without a compiler."""
    import torch

    module, x, labels = module.cuda().train(), x.cuda(), labels.cuda()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        loss = torch.nn.functional.cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def open_session(
    model: Any, row: str, provider: Any, feeds: dict[str, Any]
) -> tuple[Callable[[], float], Any]:
    """A function that trains one step, and the memory report."""
    import onward
    from onward import losses, optimizers

    settings = ROWS[row]
    memory = None if settings is None else onward.Memory(**settings)
    options = {"memory": memory, "outputs": []}
    loss, optimizer = losses.CrossEntropy(), optimizers.AdamW(lr=1e-4)
    program = onward.compile_training(model, loss, optimizer, options, providers=[provider])
    planned = onward.memory_report(program)
    session = onward.TrainingSession(program, providers=[provider])
    if provider == PROVIDERS["onnxruntime"]:  # the memory of the opened graph does not count
        session._engine._open_fused_step()
    return lambda: float(session.step(feeds)["loss"]), planned


# -- the largest batch -----------------------------------------------------------------------------


WAYS = 4  # batches that are tried at once: each compiles for a minute


def find_largest(
    fit: Callable[[list[int]], list[bool]], first: int, share: float = 0.15, ways: int = WAYS
) -> int:
    """The largest number that fits, to within a share of it; 0 if 1 does not.

    `fit` tells of several numbers at once: first of ones that double, then of ones between the
    largest that fits and the smallest that does not.

    >>> find_largest(lambda batches: [batch <= 43 for batch in batches], 8, 0.0)
    43
    """
    most, too_many = 0, math.inf
    while too_many - most > max(1, int(share * most)):
        if too_many == math.inf:
            begin = 2 * most or first
            batches = [begin << i for i in range(ways)]
        else:
            step = (too_many - most) / (ways + 1)
            batches = sorted({most + math.ceil(step * (i + 1)) for i in range(ways)})
            batches = [batch for batch in batches if batch < too_many]
        for batch, fits in zip(batches, fit(batches)):
            most = max(most, batch) if fits else most
            too_many = too_many if fits else min(too_many, batch)
    return most


def search_largest(row: str, given: argparse.Namespace) -> dict[str, Any]:
    """The largest batch with which a row trains, in a process for each batch."""
    tried: dict[int, str] = {}

    def fits(batch: int) -> bool:
        child = start(row, given, ["--batch", str(batch), "--limit", str(given.limit)])
        _, errors = child.communicate("go\n")
        if child.returncode and "out of memory" not in errors.lower():
            raise RuntimeError(f"{row}, batch {batch}: {last_line(errors)}")
        tried[batch] = "too large" if child.returncode else "trains"
        print(f"  {row:8}  batch {batch:5}  {tried[batch]}", flush=True)
        return not child.returncode

    with ThreadPoolExecutor(WAYS) as pool:
        largest = find_largest(lambda batches: list(pool.map(fits, batches)), given.batch)
    print(f"{row:8}  {largest:5} samples in {given.limit:g} GiB", flush=True)
    return {"row": row, "largest": largest, "gib": given.limit, "tried": tried}


# -- all of them -----------------------------------------------------------------------------------


def start(row: str, given: argparse.Namespace, more: list[str]) -> subprocess.Popen[str]:
    """Open a row in a separate process."""
    command = [sys.executable, __file__, "--one", row, "--device", given.device]
    command += ["--provider", given.provider, *["--small"] * given.small, *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def measure_all(given: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Each row with what its process printed and its errors: measured one after the other."""
    more = ["--batch", str(given.batch)]
    if given.device == "cpu":
        for row in given.rows:
            yield row, *start(row, given, more).communicate()
        return
    children = {row: start(row, given, more) for row in given.rows}
    for child in children.values():
        wait_until_ready(child)
    for row, child in children.items():
        yield row, *child.communicate("go\n")


def wait_until_ready(child: subprocess.Popen[str]) -> None:
    """Read what a child prints until it is ready, or has failed."""
    assert child.stdout is not None
    while (line := child.stdout.readline()) and line.strip() != READY:
        pass


def last_line(text: str) -> str:
    return (text.strip() or "no message").splitlines()[-1]


def compare(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all rows against the first."""
    found: list[dict[str, Any]] = []
    for row, printed, errors in measure_all(given):
        if not printed.strip():
            print(f"{row:8}  failed: {last_line(errors)}", flush=True)
            continue
        figures = json.loads(printed.splitlines()[-1])
        losses = figures.pop("losses")
        first = found[0]["losses"] if found else losses
        figures["loss"] = max(abs(a - b) for a, b in zip(losses, first))
        found.append({"row": row, **figures, "losses": losses})
        base = found[0]
        print(
            f"{row:8}  {figures['ms']:8.1f} ms ({figures['ms'] / base['ms']:.2f}x)  measured "
            f"{figures['peak'] / 1e6:8.1f} MB ({figures['peak'] / base['peak']:.2f}x)  planned "
            f"{figures['planned'] / 1e6:8.1f} MB  loss {figures['loss']:.1e}",
            flush=True,
        )
    return found


def main() -> None:
    rows = [*ROWS, EAGER]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--provider", choices=tuple(PROVIDERS))
    parser.add_argument("--rows", nargs="+", choices=rows)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--batch", type=int, default=16, help="samples, on CUDA")
    parser.add_argument("--largest", action="store_true", help="search the largest batch, on CUDA")
    parser.add_argument("--limit", type=float, help="GiB of the GPU that a step may take")
    parser.add_argument("--one", choices=rows, help="measure one row in this process")
    given = parser.parse_args()
    is_cuda = given.device == "cuda"
    given.provider = given.provider or ("inductor" if is_cuda else "onnxruntime")
    if given.one:
        warnings.simplefilter("ignore")
        row = (given.one, given.provider, given.small)
        print(json.dumps(on_cuda(*row, given.batch, given.limit) if is_cuda else on_cpu(*row)))
        return
    if given.largest:
        given.limit = 24.0 if given.limit is None else given.limit
        found = [search_largest(row, given) for row in given.rows or SEARCHED]
    else:
        given.rows = given.rows or (ON_CUDA if is_cuda else list(ROWS))
        found = compare(given)
    if not given.small:
        name = "memory_batch" if given.largest else "memory_budget"
        path = report.write(name, found, device=given.device, provider=given.provider)
        print(Path(path).name)


if __name__ == "__main__":
    main()
