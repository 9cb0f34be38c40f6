"""Compare a training step before and after a change: two checkouts on one machine, in turns.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before             # this checkout against that one
    python benchmarks/before_after.py ../before --models mlp1 mlp32 --rounds 7

`step` is TrainingSession's, `artifacts` that of onward.training.api (benchmarks/training.py),
`backward` only forward and backward on onnxruntime (benchmarks/backward.py). Each runs in a
separate process on 2 threads; figures are medians of medians, and after / before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import racing
import report

HERE = Path(__file__).resolve().parent.parent
MODELS = ("mlp1", "mlp32", "cnn32", "tf8")
KINDS = {"step": ("training.py", "ours"), "artifacts": ("training.py", "artifacts")}
KINDS["backward"] = ("backward.py", "ours")


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


def start(tree: Path, kind: str, model: str, folder: Path) -> subprocess.Popen[str]:
    """Start a child process of one checkout; it is ready to measure."""
    script, engine = KINDS[kind]
    words = [model, engine, *([str(folder)] if script == "training.py" else [])]
    child = subprocess.Popen(
        [sys.executable, str(tree / "benchmarks" / script), "one", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(tree),
    )
    assert child.stdout is not None
    if script == "training.py" and child.stdout.readline().strip() != "ready":
        raise SystemExit(f"{model}, {kind} in {tree}: no first step")
    return child


def milliseconds(answers: list[Any]) -> float:
    each = [answer["ms"] if isinstance(answer, dict) else answer for answer in answers]
    return statistics.median(each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    trees = {"before": given.before.resolve(), "after": HERE}
    rows = []
    print(f"{'model':8} {'kind':10} {'before':>9} {'after':>9} {'ratio':>6}")
    for model in given.models:
        with tempfile.TemporaryDirectory() as scratch:
            for side, tree in trees.items():
                where = Path(scratch) / side
                where.mkdir()
                script = str(tree / "benchmarks" / "training.py")
                words = [sys.executable, script, "prepare", model, str(where)]
                subprocess.run(words, env=environment(tree), check=True, capture_output=True)
            for kind in given.kinds:
                children = {
                    side: start(tree, kind, model, Path(scratch) / side)
                    for side, tree in trees.items()
                }
                found = {n: milliseconds(a) for n, a in racing.race(children, given.rounds).items()}
                ratio = found["after"] / found["before"]
                rows.append({"model": model, "kind": kind, **found, "ratio": ratio})
                figures = f"{found['before']:9.3f} {found['after']:9.3f} {ratio:6.2f}"
                print(f"{model:8} {kind:10} {figures}", flush=True)
    print("written to", report.write("before_after", rows))


if __name__ == "__main__":
    main()
