"""R5 for sharded checkpoints: the power fails at every point of a save by two ranks.

    python -m conformance.reliability.replayed_sharded_saves [--saves N] [--variants N] [--seed S]

As replayed_saves, with every file operation of both ranks in the order in which they happened. In
each state the newest committed checkpoint must load on two ranks as it was saved, and the next save
must work and leave nothing behind.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from conformance.reliability.replayed_saves import (
    STEPS,
    Recording,
    Tally,
    quiet,
    replay,
    without_syncs,
)
from conformance.reliability.saves import WatchedDisk
from conformance.reliability.sharded_saves import (
    fault_of_latest,
    latest_of,
    leftover_files,
    open_group,
    save_number,
)
from conformance.reliability.thread_ranks import ThreadRank, run_ranks
from onward.checkpoints.sharded.save_folders import MANIFEST
from onward.errors import OnwardError

RANKS = 2


def record(saves: int) -> Recording:
    """Save so many times into one folder, in groups of five saves that follow each other."""
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(Path(folder), lambda name: name.endswith("/" + MANIFEST))
        disk: Any = WatchedDisk(recording.record)
        numbered = list(zip(range(saves), itertools.cycle(STEPS)))
        for first in range(0, saves, 5):

            def save(group: ThreadRank, part: Any = numbered[first : first + 5]) -> None:
                checkpoints = open_group(Path(folder), group, disk)
                for number, step in part:
                    assert save_number(checkpoints, group, number, step)

            run_ranks(RANKS, save)
    return recording


def replay_all(saves: int, variants: int, seed: int, forgotten: str = "") -> Tally:
    """Replay every prefix of the operations; `forgotten` is a kind that the disk ignores."""
    return replay(record(saves), _fault, variants, seed, forgotten)


def _fault(folder: Path, committed: int) -> str:
    disk: Any = WatchedDisk(without_syncs)
    try:
        found = latest_of(folder, RANKS, disk)
        if found is None and committed < 0:
            return ""
        number = -1 if found is None else found.properties["number"]
        if number < committed:
            return f"save {number} was found where {committed} was committed"
        fault = fault_of_latest(found)

        def save(group: ThreadRank) -> Path | None:
            return save_number(open_group(folder, group, disk), group, 99, 99)

        if None in run_ranks(RANKS, save):
            return "the next save failed"
        fault = fault or fault_of_latest(latest_of(folder, RANKS, disk))
        return fault or " ".join(f"{each} was left" for each in leftover_files(folder))
    except OnwardError as error:
        return f"save {committed} was committed: {str(error).splitlines()[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--saves", type=int, default=15)
    parser.add_argument("--variants", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with quiet():
        tally = replay_all(given.saves, given.variants, given.seed)
    print(tally.line().replace("R5:", "R5, sharded, 2 ranks:"))
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
