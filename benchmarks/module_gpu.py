"""Measure a user's own training loop on one GPU: eager, torch.compile and onward.Module.

    python benchmarks/module.py --device cuda [--models gpt2] [--engines ours compile]
    python benchmarks/module.py --device cpu --small          # tiny models, to try the script
    python benchmarks/module.py --device cuda --one resnet50 ours --profile   # its kernels

The models and sizes of gpu_training.py, their loss in the module, under bfloat16 autocast, with
torch's fused AdamW.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_training
import report
import torch
from module import wrap

MODELS = ("gpt2", "bert", "resnet50", "mlp")
ENGINES = ("ours", "eager", "compile")


class WithLoss(torch.nn.Module):
    """Scores and their cross entropy, as models of transformers compute it from labels."""

    def __init__(self, scores: torch.nn.Module) -> None:
        super().__init__()
        self.scores = scores

    def forward(
        self, labels: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        scores = self.scores(x) if mask is None else self.scores(x, mask)
        return torch.nn.functional.cross_entropy(scores, labels)


def make_step(name: str, engine: str, small: bool, device: str) -> Callable[[], Any]:
    """A step of the user's loop."""
    net, feeds = gpu_training.module(name, small)
    net, (*given, labels) = WithLoss(net).to(device).train(), (x.to(device) for x in feeds)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    module = wrap(net, engine)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = module(labels, *given)
        loss.backward()
        optimizer.step()

    return step


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="module.py", description=__doc__.split("\n")[0])
    gpu_training.add_arguments(parser, MODELS, ENGINES)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "ENGINE"))
    given = parser.parse_args(words)
    if given.one:
        make = functools.partial(make_step, *given.one, given.small, given.device)
        gpu_training.one(make, given.device, given.profile)
        return
    rows = gpu_training.measure_all(given, functools.partial(start, given=given))
    for name, ratio in ratios(rows).items():
        print(f"{name}: {ratio:.3f} times torch.compile's step")
    if not given.small:
        gpu = gpu_training.gpu_name(given.device)
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
    command = [str(script), "--device", given.device, "--one", name, engine]
    return gpu_training.start_child(command, given)
