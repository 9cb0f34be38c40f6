"""Interrupt `onward train` at random moments, and compare with a run that was left alone.

    python -m conformance.reliability.interruptions                    # 3 runs, 20 times each
    python -m conformance.reliability.interruptions --times 5 tabular

Each run is interrupted by Ctrl-C or kill -9, at random, and resumed with the same command, until
it has been interrupted so many times and is finished. Its weights must then be equal, bit for bit,
to those of the same run without interruptions.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import onward

_LONGEST = 300.0  # seconds of one process


def _tabular(folder: Path) -> list[str]:
    """An MLP with dropout on a CSV file; a small optimizer state, many epochs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 8))
    kinds = np.array(["low", "middle", "high"])[
        np.digitize(x[:, 0] + x[:, 1] * x[:, 2], [-0.5, 0.5])
    ]
    lines = [",".join([*(f"{v:.5f}" for v in row), kind]) for row, kind in zip(x, kinds)]
    (folder / "rows.csv").write_text(
        "\n".join([",".join([*(f"f{i}" for i in range(8)), "kind"]), *lines])
    )
    onward.save(onward.new_model("mlp", inputs=8, hidden=[64, 64], outputs=3), folder / "m.onnx")
    return [
        "--data",
        "rows.csv",
        "--target",
        "kind",
        "--epochs",
        "400",
        "--batch-size",
        "32",
        "--ema",
        "0.99",
    ]


def _images(folder: Path) -> list[str]:
    """A CNN on images that are augmented and mixed, with accumulated gradients."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    images = rng.integers(0, 80, (400, 1, 12, 12), np.uint8)
    for image, label in zip(images, labels):
        image[
            0, (label // 2) * 6 : (label // 2) * 6 + 6, (label % 2) * 6 : (label % 2) * 6 + 6
        ] += 90
    np.savez(folder / "images.npz", image=images, label=labels)
    model = onward.new_model("cnn", image=(1, 12, 12), classes=4)
    onward.save(model, folder / "m.onnx")
    flags = "--data images.npz --target label --epochs 60 --batch-size 16 --flip --crop 1"
    return f"{flags} --brightness 0.2 --gradient-accumulation-steps 2 --optimizer sgd".split()


def _text(folder: Path) -> list[str]:
    """A small GPT-2 on characters, with a warm-up and a cosine schedule."""
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "while",
        "rain",
        "falls",
        "on",
        "the",
        "plain",
    ]
    chosen = np.random.default_rng(0).choice(words, 6000)
    (folder / "words.txt").write_text(" ".join(chosen))
    characters = len(set(" ".join(words)))
    model = onward.new_model("gpt2", vocabulary=characters, layers=2, width=32, heads=2, context=32)
    onward.save(model, folder / "m.onnx")
    flags = "--data words.txt --epochs 12 --batch-size 16 --warmup 0.1 --max-grad-norm 1"
    return f"{flags} --learning-rate 0.003".split()


RUNS: dict[str, Callable[[Path], list[str]]] = {
    "tabular": _tabular, "images": _images, "text": _text,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--times", type=int, default=20, help="interruptions of each run (20)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for name in given.runs or RUNS:
        with tempfile.TemporaryDirectory() as place:
            if not _compare(name, Path(place), given.times, random.Random(given.seed)):
                return 1
    return 0


def _compare(name: str, folder: Path, times: int, chance: random.Random) -> bool:
    flags = [*RUNS[name](folder), "--save-every", "7"]
    started = time.perf_counter()
    _run(folder, [*flags, "--name", "alone"])
    seconds = time.perf_counter() - started
    counts = {signal.SIGINT: 0, signal.SIGKILL: 0}
    flags += ["--name", "interrupted"]
    while sum(counts.values()) < times:
        resume = ["--resume"] if (folder / "runs" / "interrupted" / "run.json").exists() else []
        chosen = chance.choice(list(counts))
        delay = chance.uniform(0.0, seconds / times)
        if not _interrupt(folder, [*flags, *resume], chosen, delay):
            break  # it was finished before
        counts[chosen] += 1
    _run(folder, [*flags, "--resume"])
    same = _weights(folder, "alone") == _weights(folder, "interrupted")
    how = f"{counts[signal.SIGINT]} times by Ctrl-C and {counts[signal.SIGKILL]} by kill -9"
    print(f"{name}: interrupted {how}; weights {'equal' if same else 'DIFFER'}", flush=True)
    return same


def _command(flags: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "onward", "train", "m.onnx", *flags]


def _run(folder: Path, flags: Sequence[str]) -> None:
    done = subprocess.run(_command(flags), cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(flags)}: {done.stderr}")


def _interrupt(folder: Path, flags: Sequence[str], how: signal.Signals, delay: float) -> bool:
    """Start the run and interrupt it so many seconds after its first step; whether it ran."""
    record = folder / "runs" / "interrupted" / "metrics.csv"
    before = record.stat().st_mtime_ns if record.exists() else 0
    process = subprocess.Popen(
        _command(flags), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    limit = time.perf_counter() + _LONGEST
    while process.poll() is None and time.perf_counter() < limit:
        if record.exists() and record.stat().st_mtime_ns > before:
            time.sleep(delay)
            break
        time.sleep(0.01)
    process.send_signal(how)
    return process.wait(_LONGEST) != 0


def _weights(folder: Path, name: str) -> dict[str, bytes]:
    model = onward.load(folder / "runs" / name / "model.onnx")
    found = model.graph.initializers.items()
    return {key: value.const_value.numpy().tobytes() for key, value in found if value.const_value}


if __name__ == "__main__":
    sys.exit(main())
