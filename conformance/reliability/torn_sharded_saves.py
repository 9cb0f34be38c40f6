"""R4 for sharded checkpoints: kill -9 of one or both writers while they save together.

    python -m conformance.reliability.torn_sharded_saves [--count N] [--seed S]

Two processes save one checkpoint after another into one folder. One of them, or both, are killed at
a random moment, or kill themselves at a random file operation, a write half done. Whoever comes
next finds the newest checkpoint that was committed, or the one after it, as it was saved.
"""

from __future__ import annotations

import argparse
import contextlib
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

from conformance.reliability.process_ranks import ProcessRank
from conformance.reliability.saves import CHANGES, WatchedDisk, fault_of, write_half
from conformance.reliability.sharded_saves import leftover_files, open_group, save_number
from onward.checkpoints.disk import DISK
from onward.checkpoints.sharded.newest import list_checkpoints, open_newest
from onward.checkpoints.sharded.sharded_checkpoint import open_checkpoint
from onward.errors import PeerLost

ELEMENTS = 40_000  # about a megabyte and a half in one checkpoint
OPERATIONS = 40  # of a child's first saves
LIMIT = 120.0  # seconds for one child; a guard


@dataclass
class Tally:
    """The outcomes of the kills."""

    kills: int = 0
    midway: int = 0  # that left a save unfinished
    saved: int = 0  # checkpoints that were committed before a writer died
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = self.kills
        failures = f"{len(self.faults)} in {n}" if self.faults else f"0 in {n}: < 3/{n}"
        return (
            f"R4, sharded: {n} times one or both of 2 writers killed, {self.midway} of them with a "
            f"save half written, {self.saved} checkpoints committed; lost or torn: {failures}"
        )


def save_on(folder: Path, address: str, rank: int, operation: int) -> None:
    """A child: save without end, or until this operation (0: none)."""
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
    with contextlib.suppress(PeerLost), ProcessRank(rank, address) as group:
        checkpoints = open_group(folder, group, disk)
        found = checkpoints.latest()
        number = 0 if found is None else found.properties["number"]
        while True:
            number += 1
            print("saving", number, flush=True)
            assert save_number(checkpoints, group, number, number, ELEMENTS)
            print("saved", number, flush=True)


def kill_one(folder: Path, draw: random.Random, by_clock: bool, tally: Tally) -> None:
    """Start two writers, let one or both die, and look at what they leave."""
    victims = draw.choice([{0}, {1}, {0, 1}])
    with tempfile.TemporaryDirectory() as place:
        writers = []
        for rank in range(2):
            operation = 0 if by_clock or rank not in victims else draw.randrange(1, OPERATIONS)
            command = [sys.executable, "-m", "conformance.reliability.torn_sharded_saves"]
            command += ["--child", str(folder), f"{place}/socket", str(rank), str(operation)]
            writers.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        try:
            printed, errors = _watch(writers, victims if by_clock else set(), draw)
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
    codes = [writer.returncode for writer in writers]
    if not set(codes) <= {0, -signal.SIGKILL} or -signal.SIGKILL not in codes:
        tally.faults.append(f"the writers ended with exit codes {codes}: {errors[-300:]}")
    tally.kills += 1
    tally.midway += bool(leftover_files(folder))
    _check_folder(folder, [line.split() for line in printed if line.endswith("\n")], tally)


def _watch(
    writers: list[subprocess.Popen[str]], victims: set[int], draw: random.Random
) -> tuple[list[str], str]:
    """What rank 0 printed until both ended; the victims are killed at a random moment."""
    assert writers[0].stdout is not None
    printed = [writers[0].stdout.readline()]
    if victims:
        time.sleep(draw.uniform(0, 0.3))
        for rank in victims:
            writers[rank].kill()
    rest, errors = writers[0].communicate(timeout=LIMIT)
    errors += writers[1].communicate(timeout=LIMIT)[1]
    return [*printed, *rest.splitlines(keepends=True)], errors


def _check_folder(folder: Path, printed: list[list[str]], tally: Tally) -> None:
    committed = [int(words[1]) for words in printed if words[:1] == ["saved"]]
    begun = [int(words[1]) for words in printed if words[:1] == ["saving"]]
    tally.saved += len(committed)
    least = committed[-1] if committed else begun[0] - 1 if begun else 0
    found = open_newest(folder)
    if found is None:
        if least:
            tally.faults.append(f"save {least} was committed, and is gone")
        return
    number = found.properties["number"]
    if begun and not least <= number <= begun[-1]:
        tally.faults.append(f"save {number} was found where {least} was committed last")
    for listed in list_checkpoints(folder):
        if listed.committed:
            fault = listed.problem or fault_of(open_checkpoint(listed.path).read_all(), ELEMENTS)
            tally.faults += [fault] if fault else []


def kill_all(count: int, seed: int, *, by_clock: bool | None = None) -> Tally:
    """Kill writers of one folder so often: by the clock, by operations, or (None) in turn."""
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
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        folder, address, rank, operation = given.child
        save_on(Path(folder), address, int(rank), int(operation))
        return 0
    tally = kill_all(given.count, given.seed)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
