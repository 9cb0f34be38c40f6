"""R4: kill -9 while a checkpoint is saved over others. None that was committed is lost or torn.

    python -m conformance.reliability.torn_saves [--count N] [--seed S]

Processes save one checkpoint after another into one folder. Half of them are killed by us, at a
random moment; the others kill themselves at a random operation, a write half done. Whoever comes
next finds the newest checkpoint that was committed, or the one after it, as it was saved.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.reliability.saves import (
    CHANGES,
    KEEP,
    WatchedDisk,
    fault_of,
    leftovers,
    metric_of,
    properties_of,
    tensors_of,
    write_half,
)
from onward.checkpoints.disk import DISK
from onward.checkpoints.folder import Checkpoints

SIZE = 40_000  # elements: about a megabyte and a half in one checkpoint
OPERATIONS = 40  # of a child's first two saves


@dataclass
class Tally:
    """The outcomes of the kills."""

    kills: int = 0
    midway: int = 0  # that left a file half written
    saved: int = 0  # checkpoints that were committed before their writer died
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = self.kills
        failures = f"{len(self.faults)} in {n}" if self.faults else f"0 in {n}: < 3/{n}"
        return (
            f"R4: {n} writers killed, {self.midway} of them with a file half written, "
            f"{self.saved} checkpoints committed; lost or torn: {failures}"
        )


def save_on(folder: Path, operation: int) -> None:
    """The child: save without end, or until this operation (0: none)."""
    seen = 0

    def hook(name: str, arguments: tuple[Any, ...], do: Any) -> Any:
        nonlocal seen
        seen += name in CHANGES
        if seen == operation and name in CHANGES:
            if name == "write":
                write_half(arguments, do)
            os.kill(os.getpid(), signal.SIGKILL)
        return do(*arguments)

    disk: Any = WatchedDisk(hook) if operation else DISK
    checkpoints = Checkpoints(folder, keep=KEEP, keep_best=1, disk=disk)
    found = checkpoints.latest()
    number = 0 if found is None else found.properties["number"]
    while True:
        number += 1
        print("saving", number, flush=True)
        checkpoints.save(tensors_of(number, SIZE), properties_of(number), number, metric_of(number))
        print("saved", number, flush=True)


def kill_one(folder: Path, draw: random.Random, by_clock: bool, tally: Tally) -> None:
    """Start a writer, let it die, and look at what it leaves."""
    operation = 0 if by_clock else draw.randrange(1, OPERATIONS)
    command = [sys.executable, "-m", "conformance.reliability.torn_saves", "--child"]
    command += [str(folder), str(operation)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    printed = [writer.stdout.readline()]
    if by_clock:
        time.sleep(draw.uniform(0, 0.15))
        writer.kill()
    printed += writer.stdout.readlines()
    writer.stdout.close()
    if writer.wait() != -signal.SIGKILL:
        tally.faults.append(f"the writer ended by itself, with exit code {writer.returncode}")
    tally.kills += 1
    tally.midway += bool(leftovers(folder))
    _check_folder(folder, [line.split() for line in printed if line.endswith("\n")], tally)


def _check_folder(folder: Path, printed: list[list[str]], tally: Tally) -> None:
    committed = [int(words[1]) for words in printed if words[:1] == ["saved"]]
    begun = [int(words[1]) for words in printed if words[:1] == ["saving"]]
    tally.saved += len(committed)
    least = committed[-1] if committed else begun[0] - 1 if begun else 0
    checkpoints = Checkpoints(folder, keep=KEEP, keep_best=1)
    found = checkpoints.latest()
    if found is None:
        if least:
            tally.faults.append(f"save {least} was committed, and is gone")
        return
    number = found.properties["number"]
    if not least <= number <= max(begun, default=least):
        tally.faults.append(f"save {number} was found where {least} was committed last")
    for step in checkpoints.steps():
        fault = fault_of(checkpoints.load(step), SIZE)
        tally.faults += [fault] if fault else []


def kill_all(count: int, seed: int, *, by_clock: bool | None = None) -> Tally:
    """Kill so many writers of one folder: by the clock, by operations, or (None) in turn."""
    tally, draw = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            clock = number % 2 == 0 if by_clock is None else by_clock
            kill_one(Path(folder), draw, clock, tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        save_on(Path(given.child[0]), int(given.child[1]))
    tally = kill_all(given.count, given.seed)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
