"""Measure a training step with AdamW, on stock onnxruntime and on torch: time and memory.

    python benchmarks/training.py            # every model, every engine, and a file of results
    python benchmarks/training.py one mlp32 ours FOLDER

Ours: the model exported by torch, compiled beforehand (in another process) to a training program
and to artifacts, then trained in a process that has only numpy and onnxruntime: `ours`
by TrainingSession, `artifacts` by onward.training.api. Peers: torch eager with fused AdamW, and
torch.compile. 2 threads, each in a separate process, in turns; figures are medians of medians.
Memory is the peak of the process. The first step counts from the start of the process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import racing
import report

MODELS = ("mlp1", "mlp32", "cnn32", "tf8")
ENGINES = ("ours", "artifacts", "eager", "compile")
ROUNDS, STARTS = 5, 3


def prepare(name: str, folder: str) -> None:
    """Write a model's program, its artifacts and its feeds."""
    import onnx_ir as ir
    import torch
    from backward import modules

    import onward
    from onward import losses, optimizers
    from onward.training import artifacts

    module, x, labels = modules(name)
    exported = torch.onnx.export(module.eval(), (x,), dynamo=True, optimize=False, verbose=False)
    assert exported is not None
    where = Path(folder)
    onward.compile_training(
        exported.model, losses.CrossEntropy(), optimizers.AdamW(), {"outputs": []}
    ).save(where / "program")
    artifacts.generate_artifacts(
        ir.to_proto(exported.model),
        requires_grad=[name for name, _ in module.named_parameters()],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(where),
    )
    feeds = {exported.model.graph.inputs[0].name: x.numpy(), "labels": labels.numpy()}
    np.savez(where / "feeds.npz", **feeds)


def ours(name: str, folder: str) -> Callable[[], Any]:
    from onward.providers.options import SessionOptions
    from onward.sessions.training.session import TrainingSession

    options = SessionOptions(intra_op_num_threads=2)
    session = TrainingSession(Path(folder) / "program", sess_options=options)
    feeds = dict(np.load(Path(folder) / "feeds.npz"))
    return lambda: session.step(feeds)


def artifacts(name: str, folder: str) -> Callable[[], Any]:
    from onward.providers.options import SessionOptions
    from onward.training.api import CheckpointState, Module, Optimizer

    where, options = Path(folder), SessionOptions(intra_op_num_threads=2)
    state = CheckpointState.load_checkpoint(where / "checkpoint")
    model = Module(where / "training_model.onnx", state, session_options=options)
    optimizer = Optimizer(where / "optimizer_model.onnx", model)
    feeds = list(np.load(where / "feeds.npz").values())
    model.train()

    def step() -> None:
        model(*feeds)
        optimizer.step()
        model.lazy_reset_grad()

    return step


def peer(name: str, compiled: bool) -> Callable[[], Any]:
    import torch
    from backward import modules
    from torch.nn import functional as f

    torch.set_num_threads(2)
    module, x, labels = modules(name)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    call = torch.compile(module) if compiled else module

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        f.cross_entropy(call(x), labels).backward()
        optimizer.step()

    return step


def one(name: str, engine: str, folder: str) -> None:
    """In a child process: print a line after the first step, then one for each line of input."""
    warnings.filterwarnings("ignore")
    if engine in ("ours", "artifacts"):
        step = {"ours": ours, "artifacts": artifacts}[engine](name, folder)
    else:
        step = peer(name, engine == "compile")
    step()
    print("ready", flush=True)
    from onward.measure.memory.resident_memory import most_resident

    racing.answer(step, lambda ms: {"ms": ms, "peak": most_resident() / (1 << 20)})


def start(name: str, engine: str, folder: str) -> tuple[subprocess.Popen[str], float]:
    """Start a child and wait for its first step; returns it and the seconds that took."""
    began = time.perf_counter()
    child = racing.start(__file__, name, engine, folder)
    assert child.stdout is not None
    if child.stdout.readline().strip() != "ready":
        raise SystemExit(f"{name} on {engine} did not get to its first step")
    return child, time.perf_counter() - began


def race(name: str, folder: str) -> list[dict[str, Any]]:
    """Every engine's step, memory and first step."""
    firsts: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    children: dict[str, subprocess.Popen[str]] = {}
    for _ in range(STARTS):
        for engine in ENGINES:
            if engine in children:
                racing.stop(children[engine])
            children[engine], seconds = start(name, engine, folder)
            firsts[engine].append(seconds)
    return [
        {
            "model": name,
            "engine": engine,
            "ms": statistics.median(each["ms"] for each in answers),
            "peak_mb": max(each["peak"] for each in answers),
            "first_step_s": statistics.median(firsts[engine]),
        }
        for engine, answers in racing.race(children, ROUNDS).items()
    ]


def verdict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our speed relative to the faster torch engine, and our memory to the smaller one."""
    found = []
    for name in MODELS:
        by = {row["engine"]: row for row in rows if row["model"] == name}
        torch = [by["eager"], by["compile"]]
        for engine in ("ours", "artifacts"):
            us = by[engine]
            found.append(
                {
                    "model": name,
                    "engine": engine,
                    "faster": min(row["ms"] for row in torch) / us["ms"],
                    "memory": us["peak_mb"] / min(row["peak_mb"] for row in torch),
                    "first_step": us["first_step_s"] / min(row["first_step_s"] for row in torch),
                }
            )
    return found


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            where = Path(folder) / name
            where.mkdir()
            script = str(Path(__file__).resolve())
            made = subprocess.run(
                [sys.executable, script, "prepare", name, str(where)],
                capture_output=True,
                text=True,
            )
            if made.returncode:
                raise SystemExit(made.stderr)
            rows += race(name, str(where))
    console = Console()
    table = Table("model", "engine", "ms", "peak MB", "first step s", title="a step with AdamW")
    for row in rows:
        numbers = (f"{row['ms']:.3f}", f"{row['peak_mb']:.0f}", f"{row['first_step_s']:.2f}")
        table.add_row(row["model"], row["engine"], *numbers)
    console.print(table)
    ahead = verdict(rows)
    table = Table("model", "engine", "times faster", "of torch's memory", "of torch's first step")
    for row in ahead:
        numbers = (f"{row['faster']:.2f}", f"{row['memory']:.2f}", f"{row['first_step']:.2f}")
        table.add_row(row["model"], row["engine"], *numbers)
    console.print(table)
    print("written to", report.write("training", rows, ahead=ahead))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    elif sys.argv[1:2] == ["prepare"]:
        prepare(*sys.argv[2:])
    else:
        main()
