"""R6: flipped bits, truncated and missing files are detected, named, and an intact one is used.

    python -m conformance.reliability.bit_flips [--flips N] [--cuts N] [--seed S]

A folder of three checkpoints is damaged in one place at a time. The log must name the file and what
of it is damaged (the header, or the tensor that the bit lies in), and the newest checkpoint that is
whole must load as it was saved; damage to the manifest must cost no checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conformance.reliability.saves import fault_of, metric_of, properties_of, tensors_of
from onward.checkpoints.file_header import Header, decode_header
from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.manifest import NAME, file_of
from onward.errors import OnwardError

SAVES = 3


@dataclass
class Tally:
    """Counts of the damages, and those that were not detected."""

    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = sum(self.kinds.values())
        failures = f"{len(self.faults)} in {n:,}" if self.faults else f"0 in {n:,}: < 3/{n:,}"
        done = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.items())
        return f"R6: {done}; not detected, not named or no good one used: {failures}"


class Folder:
    """Three checkpoints, and what their newest file looks like inside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        checkpoints = Checkpoints(path, keep=SAVES)
        for number in range(1, SAVES + 1):
            checkpoints.save(tensors_of(number), properties_of(number), number, metric_of(number))
        self.newest = path / file_of(SAVES)
        data = self.newest.read_bytes()
        length = int.from_bytes(data[:8], "little")
        self._header: Header = decode_header(data[:8], data[8 : 8 + length], len(data), "here")

    def part_at(self, offset: int) -> str:
        """What lies at a byte of the newest file, as an error would call it."""
        for name, entry in self._header.entries.items():
            if entry.begin <= offset - self._header.length < entry.end:
                return f"tensor {name!r}"
        return "the header"

    def cut_at(self, size: int) -> str:
        """What is no longer whole where the newest file ends after so many bytes."""
        entries = sorted(self._header.entries.items(), key=lambda item: item[1].begin)
        if size < self._header.length:
            return "the header"
        ends = (name for name, entry in entries if self._header.length + entry.end > size)
        return f"tensor {next(ends)!r}"


def damage_all(flips: int, cuts: int, seed: int) -> Tally:
    """So many flipped bits and cuts, and every set of missing files."""
    tally, draw = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name, captured_log() as lines:
        folder = Folder(Path(name))
        manifest = folder.path / NAME
        for number in range(flips):
            path = manifest if number % 20 == 0 else folder.newest
            data = path.read_bytes()
            bit = draw.randrange(8 * len(data))
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            part = folder.part_at(bit // 8) if path == folder.newest else "damaged"
            _try(folder, {path: bytes(changed)}, part, lines, tally, "flipped bits")
        for number in range(cuts):
            path = manifest if number % 20 == 0 else folder.newest
            data = path.read_bytes()
            size = draw.randrange(len(data))
            part = folder.cut_at(size) if path == folder.newest else "damaged"
            _try(folder, {path: data[:size]}, part, lines, tally, "cuts")
        names = [manifest, *(folder.path / file_of(step) for step in range(1, SAVES + 1))]
        for chosen in range(1, 1 << len(names)):
            lost = {path: None for bit, path in enumerate(names) if chosen >> bit & 1}
            _try(folder, lost, "no such file", lines, tally, "sets of missing files")
    return tally


def _try(
    folder: Folder, damage: dict[Path, bytes | None], part: str, lines: list[str], tally: Tally,
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
        fault = _fault(folder, damage, part, lines)
    finally:
        for path, data in whole.items():
            path.write_bytes(data)
    if fault:
        tally.faults.append(f"{kind}, {', '.join(path.name for path in damage)}: {fault}")


def _fault(folder: Folder, damage: dict[Path, bytes | None], part: str, lines: list[str]) -> str:
    steps = [step for step in range(1, SAVES + 1) if folder.path / file_of(step) not in damage]
    manifest = folder.path / NAME in damage
    try:
        found = Checkpoints(folder.path).latest()
    except OnwardError as error:
        return "" if not steps and not manifest else f"refused: {error}"
    if found is None:
        return "" if not steps and manifest else "nothing was found"
    if found.step != steps[-1]:
        return f"step {found.step} was used where {steps[-1]} is whole"
    logged = "\n".join(lines)
    used = f"step {found.step} is used instead"
    if manifest and f"{NAME} is " not in logged:
        return f"the log does not name the manifest: {logged!r}"
    newest = folder.newest in damage and (damage[folder.newest] is not None or not manifest)
    if newest and not (folder.newest.name in logged and part in logged and used in logged):
        return f"the log does not name {part} and what was used: {logged!r}"
    return fault_of(found)


@contextlib.contextmanager
def captured_log() -> Iterator[list[str]]:
    """The lines of the log, which are not printed."""
    lines: list[str] = []
    log, handler = logging.getLogger("onward"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    log.propagate = False
    try:
        yield lines
    finally:
        log.propagate = True
        log.removeHandler(handler)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally = damage_all(given.flips, given.cuts, given.seed)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
