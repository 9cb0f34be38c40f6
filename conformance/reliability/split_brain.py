"""Split brain: a group that is taken for dead wakes up, and can commit no checkpoint any more.

    python -m conformance.reliability.split_brain [--count N] [--seed S]

Two processes save one checkpoint after another. They are stopped (SIGSTOP) at a random moment, as
if their machine were cut off, and two others take the run over. When these have committed, the
first two continue: both must end with RunFenced, which names the new owner, and none of their
checkpoints may appear after the new group took the run over. Then the new group is stopped in turn.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from conformance.reliability.process_ranks import ProcessRank
from conformance.reliability.saves import fault_of
from conformance.reliability.sharded_saves import open_group, save_number
from onward.checkpoints.disk import DISK
from onward.checkpoints.folder import LOCK
from onward.checkpoints.sharded.newest import list_checkpoints, read_newest
from onward.errors import PeerLost, RunFenced

ELEMENTS = 40_000
FENCED = 3  # exit code of a process that was refused
LIMIT = 120.0  # seconds for anything; a guard


@dataclass
class Tally:
    """The outcomes of the takeovers."""

    takeovers: int = 0
    locked: int = 0  # in which the old group was stopped while it held the lock
    saved: int = 0  # checkpoints that a group committed before it was stopped
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = self.takeovers
        failures = f"{len(self.faults)} in {n}" if self.faults else f"0 in {n}: < 3/{n}"
        return (
            f"split brain: {n} groups of 2 stopped while saving and replaced, {self.locked} of "
            f"them in the midst of a commit, {self.saved} checkpoints committed; committed by a "
            f"group that was replaced, or not refused: {failures}"
        )


def save_until_fenced(folder: Path, address: str, rank: int) -> int:
    """A child: take the run over, and save without end."""
    with ProcessRank(rank, address) as group:
        checkpoints = open_group(folder, group)
        print("owns", checkpoints.take_over(), flush=True)
        found = checkpoints.latest()
        number = 0 if found is None else found.properties["number"]
        try:
            while True:
                number += 1
                save_number(checkpoints, group, number, number, ELEMENTS)
                print("saved", number, flush=True)
        except RunFenced as error:
            print("fenced", str(error).splitlines()[0], flush=True)
            return FENCED
        except PeerLost:
            return 4


class Group:
    """Two processes that save into a folder; what they print goes to files."""

    def __init__(self, folder: Path, place: Path) -> None:
        self._outputs = [place / f"output-{rank}" for rank in range(2)]
        self._processes = []
        for rank, output in enumerate(self._outputs):
            command = [sys.executable, "-m", "conformance.reliability.split_brain", "--child"]
            command += [str(folder), str(place / "socket"), str(rank)]
            with output.open("w") as file:
                self._processes.append(
                    subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
                )

    def lines(self, word: str, rank: int = 0) -> list[str]:
        printed = self._outputs[rank].read_text().splitlines(keepends=True)
        return [line.strip() for line in printed if line.endswith("\n") and line.startswith(word)]

    def send(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)

    def stop(self) -> None:
        """Stop both, and wait until they are."""
        self.send(signal.SIGSTOP)
        for process in self._processes:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def codes(self) -> list[int]:
        """The exit codes, when both have ended."""
        return [process.wait(LIMIT) for process in self._processes]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _until(ready: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _committed(folder: Path, token: int) -> set[str]:
    listed = list_checkpoints(folder)
    return {e.path.name for e in listed if e.committed and e.save and e.save.token == token}


def take_over_once(
    folder: Path, place: Path, old: Group, draw: random.Random, tally: Tally
) -> Group:
    """Replace a group that saves by another, and let it wake up."""
    place.mkdir()
    time.sleep(draw.uniform(0, 0.3))
    old.stop()
    held = not DISK.is_abandoned(folder / LOCK)
    new = Group(folder, place)
    try:
        if held:  # the new group waits until the commit of the old one is done
            tally.locked += 1
            old.send(signal.SIGCONT)
        _until(lambda: new.lines("owns"), LIMIT)
        token = int(old.lines("owns")[0].split()[1])
        before = _committed(folder, token)
        _until(lambda: new.lines("saved"), LIMIT)
        old.send(signal.SIGCONT)
        codes = old.codes()
        tally.takeovers += 1
        tally.saved += len(old.lines("saved"))
        tally.faults += _faults(folder, old, codes, token, before)
    except BaseException:
        new.kill()
        raise
    return new


def _faults(folder: Path, old: Group, codes: list[int], token: int, before: set[str]) -> list[str]:
    faults = []
    errors = [old.lines("fenced", rank) for rank in range(2)]
    if codes != [FENCED, FENCED]:
        faults.append(f"token {token}: the processes ended with {codes}")
    elif not all(f"owns the run now, with token {token + 1}" in lines[0] for lines in errors):
        faults.append(f"token {token}: the error does not name the owner: {errors}")
    if late := _committed(folder, token) - before:
        faults.append(f"token {token}: {late} was committed after the run was taken over")
    fault = fault_of(read_newest(folder), ELEMENTS)
    return [*faults, fault] if fault else faults


def take_over_all(count: int, seed: int) -> Tally:
    """Replace the group of one run so often."""
    tally, draw = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder, place = Path(name) / "run", Path(name) / "0"
        place.mkdir()
        group = Group(folder, place)
        try:
            for number in range(1, count + 1):
                if not _until(lambda group=group: group.lines("saved"), LIMIT):  # type: ignore[misc]
                    tally.faults.append("a group saved nothing")
                    break
                group = take_over_once(folder, Path(name) / str(number), group, draw, tally)
        finally:
            group.kill()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        folder, address, rank = given.child
        return save_until_fenced(Path(folder), address, int(rank))
    tally = take_over_all(given.count, given.seed)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
