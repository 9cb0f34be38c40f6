"""Interrupt `onward train` at random moments, and compare with a run that was left alone.

    python -m conformance.reliability.interruptions                    # 3 runs, 20 times each
    python -m conformance.reliability.interruptions --times 5 tabular

Each run is interrupted by Ctrl-C or kill -9, at random, and resumed with the same command, until
it has been interrupted so many times; then it is finished. Its weights must be equal, bit for bit,
to those of the same run without interruptions. Every attempt is a process of its own, forked from
this one, since loading Onward takes longer than these trainings.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import onward
from onward.cli.main import INTERRUPTED, app
from onward.runner.run_folder import RunFolder

TIMES = 20
WORDS = "the quick brown fox jumps over a lazy dog while rain falls on the plain"
OUTPUT = "output.txt"  # of the newest process
LONGEST = 300.0  # seconds of one process
ANYWHERE = 0.25  # the share of interruptions that may come before the first step


def _tabular(folder: Path) -> str:
    """An MLP on a CSV file, with an average of the weights."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 8))
    kinds = np.array(["low", "middle", "high"])[
        np.digitize(x[:, 0] + x[:, 1] * x[:, 2], [-0.5, 0.5])
    ]
    lines = [",".join([*(f"{v:.5f}" for v in row), kind]) for row, kind in zip(x, kinds)]
    head = ",".join([*(f"f{i}" for i in range(8)), "kind"])
    (folder / "data.csv").write_text("\n".join([head, *lines]))
    onward.save(onward.new_model("mlp", features=8, hidden=(32, 32), classes=3), folder / "m.onnx")
    return "--data data.csv --target kind --epochs 20 --batch-size 16 --ema 0.99 --balance"


def _images(folder: Path) -> str:
    """A CNN on images that are augmented, with accumulated gradients."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    images = rng.integers(0, 80, (200, 1, 12, 12), np.uint8)
    for image, label in zip(images, labels):  # one bright quarter
        top, left = (label // 2) * 6, (label % 2) * 6
        image[0, top : top + 6, left : left + 6] += 90
    np.savez(folder / "data.npz", image=images, label=labels)
    model = onward.new_model("cnn", image=(1, 12, 12), classes=4, channels=(4, 8), hidden=16)
    onward.save(model, folder / "m.onnx")
    return (
        "--data data.npz --target label --epochs 15 --batch-size 4 --optimizer sgd --flip --crop 1 "
        "--brightness 0.2 --gradient-accumulation-steps 2 --evaluate-every 11"
    )


def _text(folder: Path) -> str:
    """A small GPT-2 with dropout on characters, with a warm-up and clipped gradients."""
    text = " ".join(np.random.default_rng(0).choice(WORDS.split(), 1500))
    (folder / "data.txt").write_text(text)
    model = onward.new_model(
        "gpt2", vocabulary=len(set(text)), layers=1, width=16, heads=2, context=16
    )
    onward.save(model, folder / "m.onnx")
    return (
        "--data data.txt --epochs 6 --batch-size 8 --warmup 0.1 --max-grad-norm 1 "
        "--learning-rate 0.003 --seed 3"
    )


RUNS: dict[str, Callable[[Path], str]] = {"tabular": _tabular, "images": _images, "text": _text}


@dataclass
class Tally:
    """How a run was interrupted, and whether it ended as the one that was left alone."""

    name: str
    counts: Counter[signal.Signals] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)  # where it was resumed
    fault: str = ""

    def line(self) -> str:
        how = f"{self.counts[signal.SIGINT]} times by Ctrl-C, {self.counts[signal.SIGKILL]} by kill"
        resumed = f"resumed at {len(set(self.steps))} different steps"
        return f"{self.name}: interrupted {how} -9, {resumed}; {self.fault or 'weights equal'}"


def interrupt_run(name: str, times: int = TIMES, seed: int = 0, flags: str = "") -> Tally:
    """Interrupt one of RUNS so many times, and compare it with an uninterrupted one."""
    tally, chance = Tally(name), random.Random(f"{seed} {name}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        given = ["train", "m.onnx", *RUNS[name](folder).split(), "--save-every", "7"]
        given += flags.split()
        alone, interrupted = (RunFolder(folder / "runs" / each) for each in ("alone", "other"))
        if code := _wait(_start(folder, [*given, "--name", alone.name])):
            tally.fault = f"the run alone ended with exit code {code}"
            return tally
        seconds = float(alone.read_record()["seconds"])
        given += ["--name", interrupted.name]
        for _ in range(3 * times):
            if tally.counts.total() == times:
                break
            how = chance.choice((signal.SIGINT, signal.SIGKILL))
            delay = chance.uniform(0.0, 1.5 * seconds / times)
            code = _interrupt(interrupted, given, how, delay, chance.random() < ANYWHERE)
            if code == 0:
                continue  # it ended before: at the next attempt, what follows the last step
            if code not in (-signal.SIGKILL, INTERRUPTED):
                log = (folder / OUTPUT).read_text()[-500:]
                tally.fault = f"exit code {code} after {tally.counts.total()} interruptions: {log}"
                return tally
            tally.counts[how] += 1
            tally.steps.append(int(interrupted.read_record().get("step", 0)))
        code = _wait(_start(folder, [*given, *_resume(interrupted)]))
        tally.fault = f"it ended with exit code {code}"
        if not code:
            tally.fault = run_difference(alone, interrupted)
    return tally


def _resume(run: RunFolder) -> list[str]:
    """Nothing to resume if the process was killed before it had a folder."""
    return ["--resume"] if run.record.exists() else []


def _start(folder: Path, arguments: Sequence[str]) -> int:
    """The command in a new process: its number."""
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # in the child until the command runs
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return process
    code = 1
    try:  # the child never returns into the code of its parent
        os.chdir(folder)
        with open(OUTPUT, "w") as output:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
        code = _call(arguments)
    finally:
        os._exit(code)


def _call(arguments: Sequence[str]) -> int:
    sys.argv = ["onward", *arguments]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        code = app(list(arguments), prog_name="onward", standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    return code if isinstance(code, int) else 0


def _wait(process: int) -> int:
    limit = time.monotonic() + LONGEST
    while time.monotonic() < limit:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -signal.SIGALRM


def _interrupt(
    run: RunFolder, flags: Sequence[str], how: signal.Signals, delay: float, anywhere: bool
) -> int:
    """Interrupt a run, so many seconds after it started (anywhere) or opened its session.

    Returns the exit code.
    """
    before = _changed(run.metrics)
    process = _start(run.path.parents[1], [*flags, *_resume(run)])
    limit = time.monotonic() + LONGEST
    while not anywhere and _changed(run.metrics) == before and time.monotonic() < limit:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(process, how)
    return _wait(process)


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def run_difference(alone: RunFolder, other: RunFolder) -> str:
    """What differs between two runs; empty if nothing does."""
    first, second = _weights(alone), _weights(other)
    if wrong := [name for name in first if first[name] != second.get(name)]:
        return f"WEIGHTS DIFFER: {', '.join(wrong)}"
    if _numbers(alone) != _numbers(other):
        return "METRICS DIFFER"
    return ""


def _weights(run: RunFolder) -> dict[str, bytes]:
    found = onward.load(run.model).graph.initializers.items()
    return {key: each.const_value.numpy().tobytes() for key, each in found if each.const_value}


def _numbers(run: RunFolder) -> list[list[str]]:
    """The lines of metrics.csv, but for what depends on the machine."""
    lines = [line.split(",") for line in run.metrics.read_text().splitlines()]
    measured = ("samples_per_second", "data_wait", "memory")
    kept = [place for place, name in enumerate(lines[0]) if name not in measured]
    return [[line[place] for place in kept] for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--times", type=int, default=TIMES, help=f"each ({TIMES})")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tallies = [interrupt_run(name, given.times, given.seed) for name in given.runs or RUNS]
    bad = sum(bool(each.fault) for each in tallies)
    total = sum(each.counts.total() for each in tallies)
    print(
        f"R7b: {len(tallies)} runs of `onward train`, interrupted {total} times by Ctrl-C and "
        f"kill -9; runs that ended in other bits: {bad}"
    )
    for tally in tallies:
        print(f"  {tally.line()}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
