"""What a load test counts, in one process or merged from several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from onward.serving.load_test.latency_histogram import LatencyHistogram

REFUSED, LOST, TIMED_OUT = "connection refused", "connection lost", "timed out"


@dataclass
class LoadFigures:
    """Answers and latencies of the requests that started in the measured time."""

    seconds: float = 0.0  # measured
    outcomes: Counter[str] = field(default_factory=Counter)  # by status, or LOST, TIMED_OUT, ...
    in_time: int = 0  # good answers that came within the measured time
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)  # of good answers
    error_latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    lateness: LatencyHistogram = field(default_factory=LatencyHistogram)  # of the client's own loop
    cpu_share: float = 0.0  # of one core: of the busiest client process
    processes: int = 1
    unsent: int = 0  # open loop: requests whose time came, and which found no connection
    is_complete: bool = True  # not interrupted

    def count(self, outcome: str, is_good: bool, latency: float, is_in_time: bool) -> None:
        """Count an answer, or a request without one."""
        self.outcomes[outcome] += 1
        if is_good:
            self.in_time += is_in_time
            self.latencies.add(latency)
        else:
            self.error_latencies.add(latency)

    @property
    def errors(self) -> int:
        return self.error_latencies.count

    @property
    def throughput(self) -> float:
        """Good answers per second."""
        return self.in_time / self.seconds if self.seconds else 0.0

    def merge(self, other: LoadFigures) -> None:
        """Add the figures of another process, which ran at the same time."""
        self.seconds = max(self.seconds, other.seconds)
        self.outcomes += other.outcomes
        self.in_time += other.in_time
        self.latencies.merge(other.latencies)
        self.error_latencies.merge(other.error_latencies)
        self.lateness.merge(other.lateness)
        self.cpu_share = max(self.cpu_share, other.cpu_share)
        self.processes += other.processes
        self.unsent += other.unsent
        self.is_complete = self.is_complete and other.is_complete

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "outcomes": dict(self.outcomes),
            "in_time": self.in_time,
            "latencies": self.latencies.to_json(),
            "error_latencies": self.error_latencies.to_json(),
            "lateness": self.lateness.to_json(),
            "cpu_share": self.cpu_share,
            "unsent": self.unsent,
            "is_complete": self.is_complete,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LoadFigures:
        histograms = {
            name: LatencyHistogram.from_json(data[name])
            for name in ("latencies", "error_latencies", "lateness")
        }
        return cls(**(data | histograms | {"outcomes": Counter(data["outcomes"])}))


def merge_figures(parts: list[LoadFigures]) -> LoadFigures:
    """The figures of all processes together."""
    merged = LoadFigures(processes=0)
    for part in parts:
        merged.merge(part)
    return merged
