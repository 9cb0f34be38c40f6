"""The figures of all candidates, and the files that cache them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from onward.measure.machine import machine, read_record, versions, write_record
from onward.measure.tuning.trials import Candidate
from onward.providers.choose import INDUCTOR

CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Row:
    """A candidate's figures; `error` says why it was excluded."""

    candidate: Candidate
    median: float = 0.0
    p99: float = 0.0
    first: float = 0.0  # seconds to the first result
    memory: int = 0
    error: str = ""


@dataclass(frozen=True)
class TuningResult:
    """Every candidate's figures, the best one first, and the shapes they were measured on."""

    rows: list[Row]
    shapes: dict[str, list[int]]
    measured: str = ""  # the date
    circumstances: dict[str, Any] = field(default_factory=dict)
    kept: bool = True  # whether it was cached

    def best(self, shapes: Mapping[str, Sequence[int]]) -> Candidate:
        """The fastest for these shapes: code compiled for others would be compiled again."""
        exact = {name: list(shape) for name, shape in shapes.items()} == self.shapes
        for row in self.rows:
            if not row.error and (exact or row.candidate.provider != INDUCTOR):
                return row.candidate
        return Candidate(CPU)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TuningResult:
        rows = [
            Row(**{**row, "candidate": Candidate(**row["candidate"])}) for row in record["rows"]
        ]
        return cls(rows, record["shapes"], record["measured"], record["circumstances"])


def read_result(place: Path) -> TuningResult | None:
    """A cached result, or None if there is none or its file is damaged."""
    try:
        result = TuningResult.from_json(read_record(place) or {})
    except (AttributeError, KeyError, TypeError):
        return None
    return result if result.rows else None


def keep_result(rows: list[Row], shapes: dict[str, list[int]], place: Path) -> TuningResult:
    """The result of a measurement, cached unless every candidate failed."""
    circumstances = {"machine": machine(), "versions": versions()}
    result = TuningResult(rows, shapes, time.strftime("%Y-%m-%d"), circumstances)
    if any(not row.error for row in rows):
        return replace(result, kept=write_record(place, result.to_json()))
    return result
