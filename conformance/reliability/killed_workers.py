"""R9: workers of a run of two processes are killed, and the run ends in the same weights.

    python -m conformance.reliability.killed_workers [--times N] [--seed S]

`onward.train` runs in two processes with dropout, an average of the weights and shuffled data. One
of them, chosen at random, is killed (kill -9) a random number of steps after each start; the
launcher starts both again, and they continue from the last checkpoint. The last kill comes after
the last step, when the run is complete. The weights, and the numbers of every step and evaluation,
must be those of an undisturbed run, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import onward
from conformance.reliability.interruptions import run_difference
from onward.distributed.launchers.local_processes import run_local
from onward.runner.callback import Callback
from onward.runner.run_folder import RunFolder

TIMES, PROCESSES = 20, 2
STEPS = 240  # more than the steps between two kills, times their number
MOST_STEPS = 9  # of a process, until it is killed
ROOT = Path(__file__).parents[2]


class KillLater(Callback):
    """Kills this process some steps after its start, a few milliseconds after a step."""

    def __init__(self, steps: int, delay: float, log: Path) -> None:
        self._left, self._delay, self._log = steps, delay, log

    def on_step(self, run: Any, step: Any) -> None:
        self._left -= 1
        if self._left == 0:
            threading.Timer(self._delay, self._kill, [step.number]).start()

    def _kill(self, step: int) -> None:
        kill_this_process(step, self._log)


def kill_this_process(step: int, log: Path) -> None:
    with log.open("a") as file:
        file.write(f"{step}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def write_files(folder: Path) -> None:
    """A table whose largest number is the class, and a model with dropout."""
    rng = np.random.default_rng(0)
    with open(folder / "rows.csv", "w") as file:
        file.write("a,b,c,d,kind\n")
        for row in rng.normal(size=(107, 4)):
            file.write(",".join(f"{each:.6f}" for each in row) + f",{'pqrs'[row.argmax()]}\n")
    model = onward.new_model("mlp", features=4, hidden=(16,), classes=4, dropout=0.2)
    onward.save(model, folder / "m.onnx")


def train_worker(folder: Path, name: str, times: int, steps: int, seed: int) -> None:
    """One process of the run; the first `times` starts end with a kill, the last after the run."""
    start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    chance = random.Random(f"{seed} {start}")  # both processes draw the same
    killed, after, delay = (
        chance.randrange(PROCESSES),
        chance.randint(1, MOST_STEPS),
        chance.random(),
    )
    log = folder / "kills"
    is_killed = start < times and rank == killed
    within = is_killed and start < times - 1
    run = onward.train(
        folder / "m.onnx",
        folder / "rows.csv",
        target="kind",
        batch_size=16,
        epochs=steps,
        max_steps=steps,
        save_every=5,
        ema=0.9,
        threads=1,
        name=name,
        runs=str(folder / "runs"),
        callbacks=[KillLater(after, delay / 50, log)] if within else (),
    )
    if is_killed:
        kill_this_process(run.steps, log)


@dataclass
class Tally:
    """The kills of a run, and what was wrong with it."""

    steps: list[int] = field(default_factory=list)  # at which a process was killed
    fault: str = ""

    def line(self) -> str:
        many, places = len(self.steps), len(set(self.steps))
        return (
            f"R9: a run of {PROCESSES} processes, one of which was killed {many} times (kill -9, "
            f"after {places} different steps) and started again: {self.fault or 'the same bits'}"
        )


def kill_workers(times: int, steps: int = STEPS, seed: int = 0) -> Tally:
    """Train a run whose processes are killed so many times, and one that is left alone."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_files(folder)
        for name, kills in (("alone", 0), ("killed", times)):
            code = run_local(
                worker_command(folder, name, kills, steps, seed),
                PROCESSES,
                variables=worker_variables(os.environ),
                max_restarts=times,
            )
            if code:
                tally.fault = f"the run {name!r} ended with exit code {code}"
                return tally
        log = folder / "kills"
        tally.steps = [int(line) for line in log.read_text().split()] if log.exists() else []
        alone, killed = (RunFolder(folder / "runs" / name) for name in ("alone", "killed"))
        tally.fault = run_difference(alone, killed)
        if not tally.fault and len(tally.steps) != times:
            tally.fault = f"{len(tally.steps)} KILLS, NOT {times}"
        if not tally.fault and killed.read_record()["step"] != steps:
            tally.fault = "IT DID NOT END"
    return tally


def worker_command(folder: Path, name: str, times: int, steps: int, seed: int) -> list[str]:
    module = [sys.executable, "-m", "conformance.reliability.killed_workers", "--child"]
    return [*module, str(folder), name, str(times), str(steps), str(seed)]


def worker_variables(variables: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))
    return {**variables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        folder, name, *numbers = given.child
        train_worker(Path(folder), name, *map(int, numbers))
        return 0
    tally = kill_workers(given.times, given.steps, given.seed)
    print(tally.line())
    return 1 if tally.fault else 0


if __name__ == "__main__":
    sys.exit(main())
