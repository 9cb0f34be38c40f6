"""WatchJournal: what was decided about each new data file, one line of JSON each.

A line has "file", "digest", "decision" (promoted, kept or rejected), "current" and "candidate" (the
monitored number of both models), "error", "model" (the digest of a promoted one) and "time".
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onward.graph.paths import writing

PROMOTED, KEPT, REJECTED = "promoted", "kept", "rejected"
_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class WatchDecision:
    """What was decided about a data file, and why."""

    file: str
    digest: str
    decision: str  # promoted, kept (the current model) or rejected (the data)
    current: float | None = None
    candidate: float | None = None
    monitor: str = ""
    error: str = ""
    model: str = ""  # the digest of the model that is served from now on
    time: str = ""

    def __str__(self) -> str:
        if self.decision == REJECTED:
            return f"{self.file}: rejected ({self.error})"
        numbers = f"{self.monitor} {self.current:.6g} -> {self.candidate:.6g}"
        return f"{self.file}: {self.decision} ({numbers})"


class WatchJournal:
    """The decisions so far, in a file that is only appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decisions = list(_read(path))

    def has(self, digest: str) -> bool:
        """Whether a file of these contents was processed, under whatever name."""
        return any(each.digest == digest for each in self.decisions)

    def files(self, *decisions: str) -> list[str]:
        """The files with these decisions, the oldest first."""
        return [each.file for each in self.decisions if each.decision in decisions]

    def add(self, decision: WatchDecision) -> None:
        """Append a decision, on the disk before this returns."""
        line = json.dumps({k: v for k, v in asdict(decision).items() if v not in ("", None)})
        with writing(self.path), open(self.path, "a+b") as file:
            if file.tell():  # after a line that was cut off, start a new one
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.decisions.append(decision)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, or of the names and contents of a folder's files."""
    total = hashlib.sha256()
    for each in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        if each != path:
            total.update(each.relative_to(path).as_posix().encode() + b"\0")
        with open(each, "rb") as file:
            while chunk := file.read(_CHUNK):
                total.update(chunk)
    return total.hexdigest()


def _read(path: Path) -> Iterator[WatchDecision]:
    """The decisions of a journal; lines that were cut off by a crash are left out."""
    known = WatchDecision.__dataclass_fields__
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found: Any = json.loads(line)
            yield WatchDecision(**{k: v for k, v in found.items() if k in known})
        except (ValueError, TypeError, AttributeError):
            continue
