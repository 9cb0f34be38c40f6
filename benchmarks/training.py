"""Measure a training step with AdamW, on stock onnxruntime and on torch: time and memory.

    python benchmarks/training.py            # every model, every engine, and a file of results
    python benchmarks/training.py mlp1 cnn32 --engines ours,eager --pin 0,1 --output FILE
    python benchmarks/training.py one mlp32 ours FOLDER

Ours: the model exported by torch, compiled beforehand (in another process) to a training program
and to artifacts, then trained in a process that has only numpy and onnxruntime: `ours`
by TrainingSession, `artifacts` by onward.training.api. `auto` opens the exported model with
providers="auto": it measures the installed engines, torch's too, and trains on the fastest
(`chosen` in the file).
Peers: torch eager with fused AdamW, and torch.compile. 2 threads, each in a separate process, in
turns; figures are medians of medians. Memory is the peak of the process. The first step counts from
the start of the process.

A second peer is onnxsim (onnxsim_peer.py), which has Adam and no AdamW: `ours-adam` is ours with
that. `onnxsim` is its loop as it is; `onnxsim-optimized` has onnxruntime's graph optimizations,
which the loop turns off. For `ours`, step_costs.py tells what bounds the step.
"""

from __future__ import annotations

import json
import os
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
import onnxsim_peer
import racing
import report

MODELS = ("mlp1", "mlp32", "cnn32", "tf8", "resnet", "lstm")
OURS = ("ours", "artifacts", "auto", "ours-adam")
TORCH = ("eager", "compile")
ONNXSIM = ("onnxsim", "onnxsim-optimized")
ADAMW, ADAM = ("ours", "artifacts", "auto", *TORCH), ("ours-adam", *ONNXSIM)
ENGINES = (*ADAMW, *ADAM)


def prepare(name: str, folder: str, engines: str = "ours,artifacts") -> None:
    """Write what these engines need of a model: programs, artifacts, feeds."""
    import onnx_ir as ir
    import torch
    from backward import modules

    import onward
    from onward import losses, optimizers
    from onward.training import artifacts

    module, x, labels = modules(name)
    where, wanted = Path(folder), engines.split(",")
    if set(wanted) & set(ONNXSIM):
        onnxsim_peer.prepare(name, folder)
    if not set(wanted) & set(OURS):
        return
    exported = torch.onnx.export(module.eval(), (x,), dynamo=True, optimize=False, verbose=False)
    assert exported is not None
    feeds = {exported.model.graph.inputs[0].name: x.numpy(), "labels": labels.numpy()}
    np.savez(where / "feeds.npz", **feeds)
    for engine, optimizer in (("ours", optimizers.AdamW()), ("ours-adam", optimizers.Adam())):
        if engine in wanted:
            loss, model = losses.CrossEntropy(), exported.model.clone()
            program = onward.compile_training(model, loss, optimizer, {"outputs": []})
            program.save(where / engine)
    if "auto" in wanted:
        onward.save(exported.model, where / "model.onnx")
    if "artifacts" in wanted:
        artifacts.generate_artifacts(
            ir.to_proto(exported.model),
            requires_grad=[name for name, _ in module.named_parameters()],
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )


def session(engine: str, folder: str) -> Callable[[], Any]:
    from onward.providers.options import SessionOptions
    from onward.sessions.training.session import TrainingSession

    options = SessionOptions(intra_op_num_threads=2)
    session = TrainingSession(Path(folder) / engine, sess_options=options)
    feeds = dict(np.load(Path(folder) / "feeds.npz"))
    return lambda: session.step(feeds)["loss"]


def fastest(folder: str) -> tuple[Callable[[], Any], Any]:
    """A step of providers="auto", and its session."""
    import onward
    from onward import losses, optimizers

    session = onward.TrainingSession(
        Path(folder) / "model.onnx",
        losses.CrossEntropy(),
        optimizers.AdamW(),
        {"outputs": []},
        sess_options=onward.SessionOptions(intra_op_num_threads=2),
        providers=[("auto", {"folder": str(Path(folder) / "tuning")})],  # measured in this run
    )
    feeds = dict(np.load(Path(folder) / "feeds.npz"))
    return lambda: session.step(feeds)["loss"], session


def artifacts(folder: str) -> Callable[[], Any]:
    from onward.providers.options import SessionOptions
    from onward.training.api import CheckpointState, Module, Optimizer

    where, options = Path(folder), SessionOptions(intra_op_num_threads=2)
    state = CheckpointState.load_checkpoint(where / "checkpoint")
    model = Module(where / "training_model.onnx", state, session_options=options)
    optimizer = Optimizer(where / "optimizer_model.onnx", model)
    feeds = list(np.load(where / "feeds.npz").values())
    model.train()

    def step() -> Any:
        loss = model(*feeds)
        optimizer.step()
        model.lazy_reset_grad()
        return loss

    return step


def peer(name: str, compiled: bool) -> Callable[[], Any]:
    import torch
    from backward import modules
    from torch.nn import functional as f

    torch.set_num_threads(2)
    module, x, labels = modules(name)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    call = torch.compile(module) if compiled else module

    def step() -> Any:
        for parameter in module.parameters():
            parameter.grad = None
        loss = f.cross_entropy(call(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def one(name: str, engine: str, folder: str) -> None:
    """In a child process: print a line after the first step, then one for each line of input."""
    warnings.filterwarnings("ignore")
    choosing = None
    if engine in TORCH:
        step = peer(name, engine == "compile")
    elif engine in ONNXSIM:
        step = onnxsim_peer.step(folder, engine == "onnxsim-optimized")
    elif engine == "artifacts":
        step = artifacts(folder)
    elif engine == "auto":
        step, choosing = fastest(folder)
    else:
        step = session(engine, folder)
    found: dict[str, Any] = {"loss": float(step())}
    if choosing is not None:
        found["chosen"] = choosing.get_providers()[0]
    print("ready", flush=True)
    from onward.measure.memory.resident_memory import most_resident

    racing.answer(step, lambda ms: {"ms": ms, "peak": most_resident() / (1 << 20), **found})


def start(name: str, engine: str, folder: str) -> tuple[subprocess.Popen[str], float]:
    """Start a child and wait for its first step; returns it and the seconds that took."""
    began = time.perf_counter()
    child = racing.start(__file__, name, engine, folder)
    racing.read_line(child)
    return child, time.perf_counter() - began


def race(name: str, engines: list[str], folder: str, starts: int, rounds: int) -> list[Any]:
    """A row for each engine: step, memory, first step and its loss; or why it has none."""
    rows, children, firsts = {}, {}, {engine: [] for engine in engines}
    for _ in range(starts):
        for engine in engines:
            if engine in children:
                racing.stop(children.pop(engine))
            if engine in rows:
                continue
            try:
                children[engine], seconds = start(name, engine, folder)
            except racing.ChildFailed as error:
                if engine in OURS:
                    raise SystemExit(f"{name} on {engine}: {error}") from error
                rows[engine] = {"model": name, "engine": engine, "failed": str(error)}
                racing.tell(f"{name} {engine}: {error}")
                continue
            firsts[engine].append(seconds)
            racing.tell(f"{name} {engine}: first step after {seconds:.1f} s")
    racing.tell(f"{name}: {rounds} rounds of {len(children)} engines")
    for engine, answers in racing.race(children, rounds).items():
        rows[engine] = {
            "model": name,
            "engine": engine,
            "ms": statistics.median(each["ms"] for each in answers),
            "peak_mb": max(each["peak"] for each in answers),
            "first_step_s": statistics.median(firsts[engine]),
            "loss": answers[0]["loss"],
        }
        if "chosen" in answers[0]:
            rows[engine]["chosen"] = answers[0]["chosen"]
        racing.tell(f"{name} {rows[engine].get('chosen', engine)}: {rows[engine]['ms']:.3f} ms")
    return [rows[engine] for engine in engines]


def measure(name: str, engines: list[str], folder: str, starts: int, rounds: int) -> list[Any]:
    """A model's rows, with remarks about the model that onnxsim ran."""
    racing.tell(f"{name}: exported and compiled for {', '.join(engines)}")
    words = [sys.executable, str(Path(__file__).resolve()), "prepare", name, folder]
    made = subprocess.run([*words, ",".join(engines)], capture_output=True, text=True)
    if made.returncode:
        raise SystemExit(made.stderr)
    about = Path(folder) / "onnxsim.json"
    refused = json.loads(about.read_text())["refused"] if about.exists() else {}
    left_out = [engine for engine in engines if engine in ONNXSIM and len(refused) == 2]
    rows = []
    for group in (ADAMW, ADAM):  # next to onnxsim, ours and torch ran at half their speed
        together = [engine for engine in engines if engine in group and engine not in left_out]
        if together:
            rows += race(name, together, folder, starts, rounds)
    for row in rows:
        if row["engine"] in ONNXSIM and refused:
            row["rewritten"] = refused["as it is"]
    for engine in left_out:
        rows.append({"model": name, "engine": engine, "refused": refused["rewritten"]})
        racing.tell(f"{name} {engine}: refused: {refused['rewritten']}")
    return rows


def verdict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our speed relative to the faster torch engine and to onnxsim's; memory to the smaller one."""
    found = []
    pairs = [
        *((engine, TORCH) for engine in ("ours", "artifacts", "auto")),
        *(("ours-adam", (each,)) for each in ONNXSIM),
    ]
    for name in dict.fromkeys(row["model"] for row in rows):
        by = {row["engine"]: row for row in rows if row["model"] == name and "ms" in row}
        for engine, peers in pairs:
            them = [by[peer] for peer in peers if peer in by]
            if engine not in by or not them:
                continue
            us = by[engine]
            found.append(
                {
                    "model": name,
                    "engine": engine,
                    "peer": min(them, key=lambda row: row["ms"])["engine"],
                    "faster": min(row["ms"] for row in them) / us["ms"],
                    "memory": us["peak_mb"] / min(row["peak_mb"] for row in them),
                    "first_step": us["first_step_s"] / min(row["first_step_s"] for row in them),
                }
            )
    return found


def differing_losses(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each engine whose first loss is not that of the model's first row."""
    first: dict[str, float] = {}
    lines = []
    for row in rows:
        if "loss" in row:
            expected = first.setdefault(row["model"], row["loss"])
            if abs(row["loss"] - expected) > 1e-4 * abs(expected):
                lines.append(f"{row['model']} {row['engine']}: loss {row['loss']}, not {expected}")
    return lines


def show(rows: list[Any], ahead: list[Any], costs: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("model", "engine", "ms", "peak MB", "first step s", title="a training step")
    for row in rows:
        if "ms" in row:
            numbers = (f"{row['ms']:.3f}", f"{row['peak_mb']:.0f}", f"{row['first_step_s']:.2f}")
            table.add_row(row["model"], row["engine"], *numbers)
        else:
            table.add_row(row["model"], row["engine"], "-", "-", "-")
    console.print(table)
    for row in rows:
        for remark in ("refused", "rewritten", "failed"):
            if remark in row:
                print(f"{row['model']} {row['engine']}: {remark}: {row[remark]}")
    names = ("model", "engine", "peer", "times faster", "of its memory", "of its first step")
    table = Table(*names, box=None)
    for row in ahead:
        numbers = (f"{row['faster']:.2f}", f"{row['memory']:.2f}", f"{row['first_step']:.2f}")
        table.add_row(row["model"], row["engine"], row["peer"], *numbers)
    console.print(table)
    names = ("model", "nodes", "passes", "their MB", "GFLOP", "GFLOP/s")
    bounds = ("compute", "memory", "waiting")
    table = Table(*names, *bounds, box=None, title="ours, and its least ms by what bounds nodes")
    for row in costs:
        least = [f"{row['least_ms'][bound]:.2f}" for bound in bounds]
        counts = (str(row["nodes"]), str(row["passes"]), f"{row['passes_mb']:.1f}")
        rates = (f"{row['gflop']:.4f}", f"{row['gflop_per_s']:.1f}")
        table.add_row(row["model"], *counts, *rates, *least)
    console.print(table)


def main() -> None:
    given = racing.arguments(__doc__ or "", MODELS, ENGINES)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # `auto` would train there
    engines = [e for e in given.engines if e not in ONNXSIM or onnxsim_peer.is_installed()]
    if engines != given.engines:
        racing.tell(onnxsim_peer.INSTALL)
    rows, costs, more = [], [], {}
    if "ours" in engines:
        import step_costs

        racing.tell("the ceilings of this machine")
        limits = step_costs.machine_ceilings()
        more["ceilings"] = {
            "gflop_per_s": limits.flops_per_second("float32") / 1e9,
            "gb_per_s": limits.bytes_per_second / 1e9,
            "dispatch_us": limits.dispatch * 1e6,
        }
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(name, engines, folder, given.starts, given.rounds)
            rows += found
            for row in found:
                if row["engine"] == "ours":
                    cost = step_costs.step_costs(Path(folder) / "ours", limits)
                    rate = cost["gflop"] / row["ms"] * 1e3
                    costs.append({"model": name, **cost, "gflop_per_s": rate})
    ahead = verdict(rows)
    show(rows, ahead, costs)
    for line in differing_losses(rows):
        print("warning:", line)
    if given.whole or given.output:
        more |= {"ahead": ahead, "costs": costs}
        print("written to", report.write("training", rows, given.output, **more))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    elif sys.argv[1:2] == ["prepare"]:
        prepare(*sys.argv[2:])
    else:
        main()
