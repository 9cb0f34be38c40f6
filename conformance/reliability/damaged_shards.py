"""R6 for sharded checkpoints: damage to any file of the newest is detected, named, and skipped.

    python -m conformance.reliability.damaged_shards [--flips N] [--cuts N] [--seed S]

Three ranks have saved three checkpoints; one bit of the newest is flipped, one of its files is cut
short, or some of its files are missing. Two ranks must name the file and what of it is damaged, and
both must use the checkpoint before it, as it was saved.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from conformance.reliability.bit_flips import Tally, captured_log
from conformance.reliability.replayed_saves import without_syncs
from conformance.reliability.saves import WatchedDisk
from conformance.reliability.sharded_saves import (
    fault_of_latest,
    latest_of,
    open_group,
    save_number,
    step_of,
)
from conformance.reliability.thread_ranks import ThreadRank, run_ranks
from onward.checkpoints.file_header import Header, decode_header
from onward.checkpoints.sharded.save_folders import MANIFEST
from onward.errors import OnwardError

SAVES = 3
WRITERS, READERS = 3, 2
DISK: Any = WatchedDisk(without_syncs)


class Folder:
    """Three checkpoints of three ranks, and what the files of the newest look like inside."""

    def __init__(self, path: Path) -> None:
        self.path = path

        def save(group: ThreadRank) -> None:
            checkpoints = open_group(path, group, DISK)
            for number in range(1, SAVES + 1):
                assert save_number(checkpoints, group, number, number)

        run_ranks(WRITERS, save)
        [newest] = path.glob(f"step-{SAVES:012d}-*")
        self.files = sorted(newest.iterdir())
        self._headers = {file: _header(file) for file in self.files if file.name != MANIFEST}

    def part_at(self, file: Path, offset: int) -> str:
        """What lies at a byte of a file, as an error would call it."""
        if file.name == MANIFEST:
            return f"{MANIFEST} is damaged"
        header = self._headers[file]
        for name, entry in header.entries.items():
            if entry.begin <= offset - header.length < entry.end:
                return f"{file.name}: tensor {name!r} is damaged"
        return f"{file.name}: "

    def cut_at(self, file: Path) -> str:
        """What the error about a file that is cut short contains."""
        return f"{MANIFEST} is damaged" if file.name == MANIFEST else f"{file.name}: "


def _header(file: Path) -> Header:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return decode_header(data[:8], data[8 : 8 + length], len(data), "here")


def damage_all(flips: int, cuts: int, seed: int) -> Tally:
    """So many flipped bits and cuts, and every set of missing files."""
    tally, draw = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name, captured_log() as lines:
        folder = Folder(Path(name))
        for _ in range(flips):
            file = draw.choice(folder.files)
            data = file.read_bytes()
            bit = draw.randrange(8 * len(data))
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            named = folder.part_at(file, bit // 8)
            _try(folder, {file: bytes(changed)}, named, lines, tally, "flipped bits")
        for _ in range(cuts):
            file = draw.choice(folder.files)
            data = file.read_bytes()
            cut = data[: draw.randrange(len(data))]
            _try(folder, {file: cut}, folder.cut_at(file), lines, tally, "cuts")
        for chosen in range(1, 1 << len(folder.files)):
            lost = [file for bit, file in enumerate(folder.files) if chosen >> bit & 1]
            manifest = any(file.name == MANIFEST for file in lost)
            named = f"{MANIFEST} is missing" if manifest else f"{lost[0].name}: there is no such"
            _try(folder, dict.fromkeys(lost), named, lines, tally, "sets of missing files")
    return tally


def _try(
    folder: Folder, damage: dict[Path, bytes | None], named: str, lines: list[str], tally: Tally,
    kind: str,
) -> None:  # fmt: skip
    """Damage the folder, load, and restore it."""
    tally.kinds[kind] += 1
    whole = {path: path.read_bytes() for path in damage}
    del lines[:]
    try:
        for path, data in damage.items():
            if data is None:
                path.unlink()
            else:
                path.write_bytes(data)
        fault = _fault(folder, named, lines)
    finally:
        for path, data in whole.items():
            path.write_bytes(data)
    if fault:
        tally.faults.append(f"{kind}, {', '.join(path.name for path in damage)}: {fault}")


def _fault(folder: Folder, named: str, lines: list[str]) -> str:
    try:
        found = latest_of(folder.path, READERS, DISK)
    except OnwardError as error:
        return f"refused: {error}"
    if step_of(found) != SAVES - 1:
        return f"step {step_of(found)} was used where {SAVES - 1} is whole"
    logged = "\n".join(lines)
    if named not in logged or f"step {SAVES - 1} is used instead" not in logged:
        return f"the log does not say {named!r} and what was used: {logged!r}"
    return fault_of_latest(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally = damage_all(given.flips, given.cuts, given.seed)
    print(tally.line().replace("R6:", "R6, sharded, saved by 3 ranks, read by 2:"))
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
