"""Measure a user's own training loop on one GPU: eager, torch.compile and onward.Module.

    python benchmarks/module.py --device cuda [--models gpt2] [--engines ours compile]
    python benchmarks/module.py --device cpu --small          # tiny models, to try the script

The models and sizes of gpu_training.py, their loss in the module, under bfloat16 autocast, with
torch's fused AdamW.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_training
import report
import torch
from module import wrap

MODELS = gpu_training.MODELS
ENGINES = ("ours", "eager", "compile")


class WithLoss(torch.nn.Module):
    """Scores and their cross entropy, as models of transformers compute it from labels."""

    def __init__(self, scores: torch.nn.Module) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.scores(x), labels)


def make_step(name: str, engine: str, small: bool, device: str) -> Callable[[], Any]:
    """A step of the user's loop."""
    net, (x, labels) = gpu_training.module(name, small)
    net, x, labels = WithLoss(net).to(device).train(), x.to(device), labels.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    module = wrap(net, engine)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = module(x, labels)
        loss.backward()
        optimizer.step()

    return step


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="module.py", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "ENGINE"), help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.one:
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        step = make_step(*given.one, given.small, given.device)
        gpu_training.answer_requests(step, given.device, began)
        return
    rows = []
    print(f"{'model':10} {'engine':10} {'ms':>8} {'GiB':>7} {'ready s':>8}")
    for name in given.models:
        children = {engine: start(name, engine, given) for engine in given.engines}
        ready = {engine: gpu_training.answer(child) for engine, child in children.items()}
        for engine, child in children.items():
            found = {**ready[engine], **gpu_training.answer(child, "go\n")}
            rows.append({"model": name, "engine": engine, **found})
            ms, gib, seconds = (str(found.get(key, "-")) for key in ("ms", "gib", "ready"))
            print(f"{name:10} {engine:10} {ms:>8} {gib:>7} {seconds:>8}", flush=True)
            child.kill()
            child.wait()
    for name, ratio in ratios(rows).items():
        print(f"{name}: {ratio:.3f} times torch.compile's step")
    if not given.small:
        gpu = torch.cuda.get_device_name() if given.device == "cuda" else given.device
        print(report.write("module_gpu", rows, gpu=gpu, ratios=ratios(rows)))


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The time of our step relative to torch.compile's, by model."""
    times = {(row["model"], row["engine"]): row["ms"] for row in rows if "ms" in row}
    return {
        name: times[name, "ours"] / times[name, "compile"]
        for name in MODELS
        if (name, "ours") in times and (name, "compile") in times
    }


def start(name: str, engine: str, given: argparse.Namespace) -> subprocess.Popen[str]:
    """Start an engine in a separate process."""
    script = Path(__file__).with_name("module.py")
    command = [sys.executable, str(script), "--device", given.device, "--one", name, engine]
    command += ["--small"] if given.small else []
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
