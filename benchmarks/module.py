"""Measure a user's own training loop: torch eager, torch.compile and onward.Module.

    python benchmarks/module.py                      # every model, and a file of results
    python benchmarks/module.py bert resnet --engines ours,eager --rounds 3 --pin 0,1
    python benchmarks/module.py --flat               # 2,000 steps of 300 lengths: what grows?
    python benchmarks/module.py --device cuda        # GPT-2, BERT, ResNet-50 in bfloat16
    python benchmarks/module.py one bert ours FOLDER

The loop is the same for all engines: zero_grad, forward, loss, backward, torch.optim.AdamW. `tf8`
is the transformer of training.py; the others are architectures of conformance/ at the size `bench`.
2 threads, each engine in a separate process, in turns; figures are medians of medians. Memory is
the peak of the process. The first step counts from the wrapping of the module. Inductor's cache
then holds its compiled headers, as after any use of torch.compile, and nothing of the model.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import racing
import report

MODELS = (
    "tf8", "bert", "gpt2", "llama", "vit", "convnext", "resnet", "unet", "lstm_tagger",
    "diffusion_unet", "mixture_of_experts",
)  # fmt: skip
ENGINES = ("ours", "fastest", "inductor", "eager", "compile")  # the first three: ours
THREADS = 2


def load_case(name: str, size: str = "bench") -> Any:
    """A model with a batch and a loss."""
    sys.path.append(str(Path(__file__).parents[1]))  # `conformance` is next to this folder
    from conformance.architectures.case import Case, cross_entropy
    from conformance.architectures.table import build

    if name != "tf8":
        return build(name, size)
    from backward import modules

    module, x, labels = modules(name)
    return Case(module.train(), (x,), {}, cross_entropy(labels))


def wrap(module: Any, engine: str) -> Any:
    """The module as an engine runs it."""
    import torch

    if engine in ("ours", "fastest", "inductor"):
        import onward

        return onward.Module(module, {"provider": "auto" if engine == "ours" else engine})
    return torch.compile(module) if engine == "compile" else module


def make_step(case: Any, engine: str) -> Callable[[], Any]:
    """A step of the user's loop."""
    import torch

    module = wrap(case.module, engine)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def step() -> Any:
        optimizer.zero_grad()
        loss = case.loss(module(*case.args, **case.kwargs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def compile_headers(folder: str) -> None:
    """Let Inductor compile the headers that all of its kernels share into a cache."""
    source = "import torch; torch.compile(torch.sin)(torch.ones(64))"
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
    subprocess.run([sys.executable, "-c", source], env=environment, check=True)


def one(name: str, engine: str, headers: str) -> None:
    """In a child process: the first step, then an answer for each line of input."""
    with tempfile.TemporaryDirectory() as cache:
        shutil.copytree(headers, cache, dirs_exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        import torch

        from onward.measure.memory.resident_memory import most_resident

        torch.set_num_threads(THREADS)
        case = load_case(name)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            began = time.perf_counter()
            step = make_step(case, engine)
            loss = float(step())
            seconds = time.perf_counter() - began
        texts = {str(each.message) for each in warned}
        fell_back = sorted(text for text in texts if "falls back" in text)
        ready = {"first_step_s": seconds, "loss": loss, "fell_back": fell_back}
        print(json.dumps(ready), flush=True)
        racing.answer(step, lambda ms: {"ms": ms, "peak": most_resident() / (1 << 20)})


def measure(
    name: str, engines: list[str], headers: str, starts: int, rounds: int
) -> list[dict[str, Any]]:
    """A row for each engine: step, memory, first step and its loss; or why it has none."""
    rows: dict[str, dict[str, Any]] = {}
    firsts: dict[str, list[float]] = {engine: [] for engine in engines}
    children: dict[str, Any] = {}
    for _ in range(starts):
        for engine in engines:
            if engine in children:
                racing.stop(children.pop(engine))
            if "failed" in rows.get(engine, {}):
                continue
            child = racing.start(__file__, name, engine, headers)
            try:
                ready = json.loads(racing.read_line(child))
            except racing.ChildFailed as error:
                racing.stop(child)
                rows[engine] = {"model": name, "engine": engine, "failed": str(error)}
                racing.tell(f"{name} {engine}: {error}")
                continue
            children[engine] = child
            firsts[engine].append(ready.pop("first_step_s"))
            rows[engine] = {"model": name, "engine": engine, **ready}
            racing.tell(f"{name} {engine}: first step of {firsts[engine][-1]:.1f} s")
    for engine, answers in racing.race(children, rounds).items():
        rows[engine] |= {
            "ms": statistics.median(each["ms"] for each in answers),
            "peak_mb": max(each["peak"] for each in answers),
            "first_step_s": statistics.median(firsts[engine]),
        }
        racing.tell(f"{name} {engine}: {rows[engine]['ms']:.2f} ms")
    return [rows[engine] for engine in engines]


def verdict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours against the better of the peers, and against each."""
    found = []
    for name in dict.fromkeys(row["model"] for row in rows):
        by = {row["engine"]: row for row in rows if row["model"] == name and "ms" in row}
        us, peers = by.get("ours"), [by[peer] for peer in ("eager", "compile") if peer in by]
        if us is None or not peers:
            continue
        best = min(peers, key=lambda row: row["ms"])
        row = {"model": name, "peer": best["engine"], "faster": best["ms"] / us["ms"]}
        row["memory"] = us["peak_mb"] / best["peak_mb"]
        if "eager" in by:
            row["faster_than_eager"] = by["eager"]["ms"] / us["ms"]
        if "compile" in by:
            row["first_step"] = us["first_step_s"] / by["compile"]["first_step_s"]
        found.append(row)
    return found


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def show(rows: list[dict[str, Any]], ahead: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    def text(row: dict[str, Any], *names: str) -> list[str]:
        return [f"{row[name]:.2f}" if name in row else "-" for name in names]

    console = Console()
    table = Table("model", "engine", "ms", "peak MB", "first step s", title="a user's own loop")
    for row in rows:
        table.add_row(row["model"], row["engine"], *text(row, "ms", "peak_mb", "first_step_s"))
    console.print(table)
    for row in rows:
        for remark in [row.get("failed"), *row.get("fell_back", [])]:
            if remark:
                print(f"{row['model']} {row['engine']}: {remark}")
    heads = ("model", "better peer", "times faster", "than eager", "of its memory")
    table = Table(*heads, "of compile's first step", box=None)
    for row in ahead:
        numbers = text(row, "faster", "faster_than_eager", "memory", "first_step")
        table.add_row(row["model"], row["peer"], *numbers)
    console.print(table)
    zoo = [row["faster"] for row in ahead if row["model"] != "tf8"]
    if zoo:
        print(f"geometric mean over {len(zoo)} architectures: {geometric_mean(zoo):.3f}")


def main() -> None:
    given = racing.arguments(__doc__ or "", MODELS, ENGINES)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as headers:
        racing.tell("Inductor's headers")
        compile_headers(headers)
        for name in given.models:
            rows += measure(name, given.engines, headers, given.starts, given.rounds)
    ahead = verdict(rows)
    show(rows, ahead)
    for line in differing_losses(rows):
        print("warning:", line)
    if given.whole or given.output:
        zoo = [row["faster"] for row in ahead if row["model"] != "tf8"]
        mean = geometric_mean(zoo) if zoo else None
        print("written to", report.write("module", rows, given.output, ahead=ahead, mean=mean))


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


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    elif sys.argv[1:2] == ["--flat"]:
        import module_flat

        module_flat.main(sys.argv[2:])
    elif sys.argv[1:2] == ["--device"]:
        import module_gpu

        module_gpu.main(sys.argv[1:])
    else:
        main()
