"""R8 for sharded checkpoints: the disk of one rank is full, or fails, while a group saves.

    python -m conformance.reliability.full_shard_disks

Two ranks train and save; one file operation of one of them fails with ENOSPC or EIO: each in turn,
once, or from then on, or as half a write. Both ranks must report the same error and train on, the
old checkpoints must load, and once the disk works again the next save must succeed and leave
nothing behind.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from conformance.reliability.bit_flips import captured_log
from conformance.reliability.full_disks import ERRORS, MODES, Failing, Tally
from conformance.reliability.replayed_saves import without_syncs
from conformance.reliability.saves import WatchedDisk
from conformance.reliability.sharded_saves import (
    fault_of_latest,
    latest_of,
    leftover_files,
    open_group,
    save_number,
    step_of,
)
from conformance.reliability.thread_ranks import ThreadRank, run_ranks
from onward.checkpoints.sharded.newest import open_newest
from onward.errors import OnwardError

RANKS = 2
EARLIER = 3  # saves before the disk fails
QUICK: Any = WatchedDisk(without_syncs)


def fail_all(every: int = 1) -> Tally:
    """Each operation of each rank (or every so many) fails in each way."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as name, captured_log():
        before, now = Path(name) / "before", Path(name) / "now"

        def save_earlier(group: ThreadRank) -> None:
            checkpoints = open_group(before, group, QUICK)
            for number in range(1, EARLIER + 1):
                assert save_number(checkpoints, group, number, number)

        run_ranks(RANKS, save_earlier)
        for failing_rank in range(RANKS):
            shutil.copytree(before, now)
            operations = _group_saves(now, failing_rank, Failing(0, 0, "once"))[0][-1]
            shutil.rmtree(now)
            for at in range(1, operations + 1, every):
                for kind in ERRORS:
                    for mode in MODES:
                        shutil.copytree(before, now)
                        failing = Failing(at, ERRORS[kind], mode)
                        fault = _fault(now, failing_rank, failing, mode, tally)
                        if fault:
                            where = f"{kind} at operation {at} ({failing.failed})"
                            tally.faults.append(f"rank {failing_rank}, {where}, {mode}: {fault}")
                        shutil.rmtree(now)
    return tally


def _group_saves(folder: Path, failing_rank: int, failing: Failing) -> list[Any]:
    """Both ranks save, one on a disk that fails, and again when it works; what they report."""

    def save(group: ThreadRank) -> Any:
        disk: Any = WatchedDisk(failing) if group.rank == failing_rank else QUICK
        checkpoints = open_group(folder, group, QUICK)
        checkpoints.take_over()
        checkpoints._disk = disk  # it fails from here on
        first = save_number(checkpoints, group, EARLIER + 1, EARLIER + 1)
        texts = [str(error) for error in checkpoints.failures]
        left, between = leftover_files(folder), step_of(open_newest(folder))
        seen = failing.seen
        failing.heal()
        second = save_number(checkpoints, group, EARLIER + 2, EARLIER + 2)
        after = [str(error) for error in checkpoints.failures]
        return first, texts, left, between, second, after, seen

    return run_ranks(RANKS, save)


def _fault(folder: Path, rank: int, failing: Failing, mode: str, tally: Tally) -> str:
    """A save with a failing disk, and the next one when the disk works again."""
    try:
        outcomes = _group_saves(folder, rank, failing)
    except OnwardError as error:
        return f"a rank ended: {error}"
    (first, texts, left, between, second, after, _), other = outcomes
    (tally.reported if first is None else tally.saved)[failing.failed] += 1
    if (first is None) != (other[0] is None) or texts != other[1]:
        return f"the ranks disagree: {texts} and {other[1]}"
    if first is None:
        if len(texts) != 1 or str(folder) not in texts[0] or texts[0].count("\n") != 1:
            return f"the error is not clear: {texts}"
        if f"rank {rank}: " not in texts[0]:
            return f"the error does not name the rank: {texts}"
        if mode != "from then on" and failing.failed not in ("remove", "close") and left:
            return f"{left} was left behind"
    if between not in ((EARLIER + 1,) if first else (EARLIER, EARLIER + 1)):
        return f"step {between} was found after the failed save"
    if second is None:
        return f"the next save failed: {after[-1]}"
    if leftover_files(folder):
        return f"{leftover_files(folder)} was left behind by the next save"
    return fault_of_latest(latest_of(folder, RANKS, QUICK))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.parse_args()
    tally = fail_all()
    print(tally.line().replace("R8:", "R8, sharded, one of 2 ranks:"))
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
