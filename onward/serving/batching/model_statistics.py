"""The statistics of one model, in the JSON form of Triton's statistics extension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_STATES = (
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
    "cache_hit", "cache_miss",
)  # fmt: skip
_STEPS = ("compute_input", "compute_infer", "compute_output")


class Duration:
    """How often something happened, and how long it took in all."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count it `count` times, `seconds` in all."""
        self.count += count
        self.seconds += seconds

    def to_json(self) -> dict[str, int]:
        """Triton's StatisticDuration."""
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


class ModelStatistics:
    """Counts and times of requests and batches. Not thread-safe: used in the loop's thread."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version
        self.last_inference = 0.0  # seconds since 1970
        self.inference_count = self.execution_count = 0
        self._durations = {state: Duration() for state in _STATES}
        self._batches: dict[int, tuple[Duration, Duration, Duration]] = {}

    def add_batch(
        self, requests: int, rows: int, batch_size: int, steps: Sequence[float], executions: int
    ) -> None:
        """Count a batch: `steps` are the seconds to join, run and split it."""
        self.inference_count += rows
        self.execution_count += executions
        durations = self._durations
        for state, seconds in zip(_STEPS, steps):
            durations[state].add(seconds * requests, requests)  # as Triton: each waited for all
        sizes = self._batches.get(batch_size)
        if sizes is None:
            sizes = self._batches[batch_size] = (Duration(), Duration(), Duration())
        for duration, seconds in zip(sizes, steps):
            duration.add(seconds, executions)

    def add_requests(self, queue: float, total: float, requests: int) -> None:
        """Count requests that were answered: seconds of all of them together."""
        self._durations["success"].add(total, requests)
        self._durations["queue"].add(queue, requests)

    def add_failure(self, seconds: float) -> None:
        """Count a request that got an error."""
        self._durations["fail"].add(seconds)

    def add_cache_lookup(self, seconds: float, *, is_hit: bool) -> None:
        """Count a lookup in the result cache."""
        self._durations["cache_hit" if is_hit else "cache_miss"].add(seconds)

    def to_json(self) -> dict[str, Any]:
        """Triton's ModelStatistics."""
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": round(self.last_inference * 1e3),
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                state: duration.to_json() for state, duration in self._durations.items()
            },
            "batch_stats": [
                {
                    "batch_size": size,
                    **{step: each.to_json() for step, each in zip(_STEPS, durations)},
                }
                for size, durations in sorted(self._batches.items())
            ],
        }
