"""R8: the disk is full, or fails, while a checkpoint is saved: training continues, old ones stay.

    python -m conformance.reliability.full_disks

A training loop saves into a folder of checkpoints, and one of the file operations fails with ENOSPC
or EIO: each operation in turn, once, or from then on, or as a partial write. Training must go on,
the error must be reported in one message, earlier checkpoints must load, no partial file may be
left, and once the disk works again the next save must succeed.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.reliability.bit_flips import captured_log
from conformance.reliability.saves import (
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
from onward.errors import CheckpointError

EARLIER = 3  # saves before the disk fails
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
MODES = ("once", "half a write", "from then on")


class Failing:
    """A hook that fails at one operation, by its number; 0 fails nowhere."""

    def __init__(self, at: int, number: int, mode: str) -> None:
        self._at, self._number, self._mode = at, number, mode
        self.seen, self.failed = 0, ""

    def __call__(self, name: str, arguments: tuple[Any, ...], do: Any) -> Any:
        self.seen += 1
        due = self.seen == self._at or (self._mode == "from then on" and self.seen > self._at > 0)
        if not due:
            return do(*arguments)
        self.failed = self.failed or name
        if self._mode == "half a write" and name == "write":
            write_half(arguments, do)
        if name in ("close", "commit"):  # the file is closed after them in any case
            DISK.close(arguments[0])
        raise OSError(self._number, os.strerror(self._number))

    def heal(self) -> None:
        self._at = 0


@dataclass
class Tally:
    """The outcomes of the saves."""

    reported: Counter[str] = field(default_factory=Counter)  # by the operation that failed
    saved: Counter[str] = field(default_factory=Counter)  # in spite of it
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        reported, saved = self.reported.total(), self.saved.total()
        n = reported + saved
        failures = f"{len(self.faults)} in {n:,}" if self.faults else f"0 in {n:,}: < 3/{n:,}"
        return (
            f"R8: ENOSPC and EIO at every operation of a save: {reported} reported, "
            f"{saved} saved in spite of it; a checkpoint lost or an error not reported: {failures}"
        )


def fail_all(every: int = 1) -> Tally:
    """Each operation (or every so many) fails in each way."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as name, captured_log():
        before = Path(name) / "before"
        for number in range(1, EARLIER + 1):
            _save(Checkpoints(before, keep=KEEP), number)
        counting = Failing(0, 0, "once")
        shutil.copytree(before, Path(name) / "counted")
        _save(_watched(Path(name) / "counted", counting), EARLIER + 1)
        for at in range(1, counting.seen + 1, every):
            for kind in ERRORS:
                for mode in MODES:
                    folder = Path(name) / "now"
                    shutil.copytree(before, folder)
                    fault = _fault(folder, Failing(at, ERRORS[kind], mode), mode, tally)
                    if fault:
                        tally.faults.append(f"{kind} at operation {at}, {mode}: {fault}")
                    shutil.rmtree(folder)
    return tally


def _watched(folder: Path, hook: Any) -> Checkpoints:
    disk: Any = WatchedDisk(hook)
    return Checkpoints(folder, keep=KEEP, disk=disk)


def _save(checkpoints: Checkpoints, number: int) -> Path | None:
    return checkpoints.try_save(
        tensors_of(number), properties_of(number), number, metric_of(number)
    )


def _fault(folder: Path, failing: Failing, mode: str, tally: Tally) -> str:
    """A save on a failing disk, and the next one when the disk works again."""
    checkpoints, number = _watched(folder, failing), EARLIER + 1
    old = {path.name: path.read_bytes() for path in folder.glob("step-*")}
    path = _save(checkpoints, number)
    (tally.reported if path is None else tally.saved)[failing.failed] += 1
    if path is None and len(checkpoints.failures) != 1:
        return f"reported {len(checkpoints.failures)} times"
    for error in checkpoints.failures:
        first, *rest = str(error).splitlines()
        if str(folder) not in first or len(rest) != 1:
            return f"the error is not clear: {error}"
    if mode != "from then on" and failing.failed not in ("remove", "close") and leftovers(folder):
        return f"{leftovers(folder)} was left behind"
    failing.heal()
    if path is None:
        lost = [name for name in old if (folder / name).read_bytes() != old[name]]
        if lost:
            return f"{lost[0]} was changed"
    found = Checkpoints(folder).latest()
    if found is None or found.step not in ((number,) if path else (number - 1, number)):
        return f"step {found and found.step} was found"
    fault = fault_of(found)
    if _save(checkpoints, number + 1) is None:
        return f"the next save failed: {checkpoints.failures[-1]}"
    if leftovers(folder):
        return f"{leftovers(folder)} was left behind by the next save"
    return fault or fault_of(Checkpoints(folder).latest())


SMALL = """
import resource, signal, sys
from conformance.reliability import full_disks
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
print(full_disks.save_in(sys.argv[1]))
"""


def save_in(folder: str) -> str:
    """The system's own error when there is no space."""
    try:
        Checkpoints(folder, keep=KEEP).save(tensors_of(9), properties_of(9), 9)
    except CheckpointError as error:
        return str(error)
    return "saved"


def real_limit() -> str:
    """A save by a process that may write 2,000 bytes only; what is wrong about it, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        _save(Checkpoints(folder, keep=KEEP), 1)
        command = [sys.executable, "-c", SMALL, folder]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if "is not saved: File too large" not in printed or "free " not in printed:
            return f"the error is not clear: {printed}"
        return fault_of(Checkpoints(folder).latest()) or " ".join(leftovers(Path(folder)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.parse_args()
    tally = fail_all()
    if sys.platform == "linux" and (fault := real_limit()):
        tally.faults.append(f"the system's own limit: {fault}")
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
