"""Measure what a Memory option costs and saves: time of a step, planned and measured memory.

    python benchmarks/memory_budget.py                        # a transformer on onnxruntime, CPU
    python benchmarks/memory_budget.py --provider torch --small
    python benchmarks/memory_budget.py --device cuda          # GPT-2 124M, 16 x 1024, float32
    python benchmarks/memory_budget.py --device cuda --provider inductor

A process for each row. CPU: a transformer of 4 layers, or with --small of 2, its time the least of
several steps; memory is what the first step adds to the resident set (onnxruntime), or what torch
allocates during a step: activations without parameters and slots. CUDA: GPT-2 from transformers;
time is the median step, memory all that torch allocated at most. `planned` is memory_report's
figure for the same. `loss` is the largest difference from
the first row's losses.
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
PROVIDERS = {
    "onnxruntime": "CPUExecutionProvider",
    "torch": "TorchExecutionProvider",
    "inductor": "InductorExecutionProvider",
}
STEPS = 10


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


def on_cuda(row: str, provider: str, small: bool) -> dict[str, Any]:
    """Train GPT-2 on a GPU."""
    import gpu_training
    import torch

    module, (x, labels) = gpu_training.module("gpt2", small)
    exported = torch.onnx.export(module.train(), (x,), dynamo=True, optimize=False, verbose=False)
    assert exported is not None
    name = exported.model.graph.inputs[0].name
    feeds = {name: x.cuda(), "labels": labels.cuda()}
    options = {"device": "cuda"}
    step, planned = open_session(exported.model, row, (PROVIDERS[provider], options), feeds)
    losses = [step() for _ in range(3)]
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses.append(step())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated()
    ms = 1e3 * statistics.median(seconds)
    return {"ms": ms, "peak": peak, "planned": planned.peak, "losses": losses}


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
    program = onward.compile_training(model, loss, optimizer, options)
    inlined = provider == PROVIDERS["onnxruntime"]
    planned = onward.memory_report(program, inlined=inlined)
    session = onward.TrainingSession(program, providers=[provider])
    if inlined:  # the memory of the opened graph does not count
        session._engine._open_fused_step()
    return lambda: float(session.step(feeds)["loss"]), planned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--provider", choices=tuple(PROVIDERS))
    parser.add_argument("--rows", nargs="+", choices=tuple(ROWS), default=list(ROWS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one", choices=tuple(ROWS), help="measure one row in this process")
    given = parser.parse_args()
    provider = given.provider or ("onnxruntime" if given.device == "cpu" else "torch")
    if given.one:
        warnings.simplefilter("ignore")
        measure = on_cpu if given.device == "cpu" else on_cuda
        print(json.dumps(measure(given.one, provider, given.small)))
        return
    found: list[dict[str, Any]] = []
    for row in given.rows:
        command = [sys.executable, __file__, "--one", row, "--device", given.device]
        command += ["--provider", provider, *["--small"] * given.small]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{row:8}  failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
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
    if not given.small:
        path = report.write("memory_budget", found, device=given.device, provider=provider)
        print(Path(path).name)


if __name__ == "__main__":
    main()
