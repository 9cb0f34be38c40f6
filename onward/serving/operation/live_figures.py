"""The last minutes of a server in numbers: throughput, latencies, batches and queues, by model.

figures = LiveFigures(time.monotonic)   # an Observer
figures.snapshot(memory)                # plain data for the live page

Time is divided into slots of a few seconds; each counts latencies in buckets 8 % apart. Memory is
bounded: old slots are replaced, and only models that exist are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from onward.errors import ModelNotFound
from onward.serving.observer import Answered, RequestTimes

WIDTH = 2.0  # seconds of a slot
SLOTS = 150  # 5 minutes
WINDOW = 30  # slots of a model's numbers in the table: the last minute
_MOST_MODELS = 512  # with numbers of their own
_STEP = 1.08
_SCALE = 1 / math.log(_STEP)
_SHORTEST = 1e-6
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Slot:
    """What happened in one slot of time."""

    __slots__ = (
        "answered", "batches", "failed", "latencies", "memory", "number", "percentiles", "queue",
        "rows",
    )  # fmt: skip

    def __init__(self, number: int, queue: int = 0) -> None:
        self.number, self.queue = number, queue  # the longest queue
        self.answered = self.failed = self.batches = self.rows = self.memory = 0
        self.latencies: dict[int, int] = {}
        self.percentiles: dict[str, float] | None = None  # kept once the slot is over


class Timeline:
    """The slots of one model, or of all together."""

    def __init__(self) -> None:
        self.slots: list[Slot | None] = [None] * SLOTS
        self.queue = 0

    def at(self, number: int) -> Slot:
        """The slot of this number, which replaces the one of five minutes ago."""
        slot = self.slots[number % SLOTS]
        if slot is None or slot.number != number:
            slot = self.slots[number % SLOTS] = Slot(number, self.queue)
        return slot

    def last(self, now: int, count: int) -> list[Slot | None]:
        """The slots up to now, oldest first; None where nothing happened."""
        found = (self.slots[number % SLOTS] for number in range(now - count + 1, now + 1))
        return [slot if slot is not None and slot.number > now - count else None for slot in found]


class LiveFigures:
    """Counts what the live page shows; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = clock()
        self._all, self._others = Timeline(), Timeline()
        self._models: dict[tuple[str, str], Timeline] = {}

    def on_request(
        self,
        model: str,
        version: str,
        request_id: str,
        times: RequestTimes,
        error: Exception | None,
    ) -> None:
        number = int(self._clock() / WIDTH)
        timelines = [self._all]
        if not isinstance(error, ModelNotFound):
            timelines.append(self._timeline(model, version))
        if error is not None:
            for timeline in timelines:
                timeline.at(number).failed += 1
            return
        latency = times.queue + times.join + times.run + times.split
        bucket = math.floor(math.log(max(latency, _SHORTEST)) * _SCALE)
        for timeline in timelines:
            slot = timeline.at(number)
            slot.answered += 1
            slot.latencies[bucket] = slot.latencies.get(bucket, 0) + 1

    def on_answers(self, model: str, version: str, answers: Sequence[Answered]) -> None:
        number = int(self._clock() / WIDTH)
        slots = (self._all.at(number), self._timeline(model, version).at(number))
        for request_id, times, error in answers:
            if error is not None:
                self.on_request(model, version, request_id, times, error)
                continue
            latency = times.queue + times.join + times.run + times.split
            bucket = math.floor(math.log(max(latency, _SHORTEST)) * _SCALE)
            for slot in slots:
                slot.answered += 1
                slot.latencies[bucket] = slot.latencies.get(bucket, 0) + 1

    def on_batch(self, model: str, version: str, requests: int, rows: int, run: float) -> None:
        number = int(self._clock() / WIDTH)
        for timeline in (self._all, self._timeline(model, version)):
            slot = timeline.at(number)
            slot.batches += 1
            slot.rows += rows

    def on_queue(self, model: str, version: str, length: int) -> None:
        number = int(self._clock() / WIDTH)
        timeline = self._timeline(model, version)
        self._all.queue += length - timeline.queue
        timeline.queue = length
        for each in (timeline, self._all):
            slot = each.at(number)
            slot.queue = max(slot.queue, each.queue)

    def snapshot(self, memory: int, model: tuple[str, str] | None = None) -> dict[str, Any]:
        """The numbers of now: series of all models (or of one), and a row for each model."""
        now = int(self._clock() / WIDTH)
        self._all.at(now).memory = memory
        timeline = self._all if model is None else self._models.get(model, Timeline())
        return {
            "up_seconds": self._clock() - self._start,
            "slot_seconds": WIDTH,
            "memory": memory,
            "series": _series(timeline, now),
            "memory_series": [slot.memory or None if slot else None
                              for slot in self._all.last(now, SLOTS)],
            "total": _row(self._all, now),
            "models": {key: _row(each, now) for key, each in self._models.items()},
        }  # fmt: skip

    def _timeline(self, model: str, version: str) -> Timeline:
        timeline = self._models.get((model, version))
        if timeline is not None:
            return timeline
        if len(self._models) >= _MOST_MODELS:
            return self._others
        return self._models.setdefault((model, version), Timeline())


def _series(timeline: Timeline, now: int) -> dict[str, list[float | None]]:
    """A number for each slot; None where there is none. The slot of now is not over yet."""
    found: dict[str, list[float | None]] = {
        name: [] for name in ("throughput", "failures", *_SHARES, "rows", "queue")
    }
    for slot in timeline.last(now - 1, SLOTS - 1):
        found["throughput"].append(slot.answered / WIDTH if slot else 0.0)
        found["failures"].append(slot.failed / WIDTH if slot else 0.0)
        found["rows"].append(slot.rows / slot.batches if slot and slot.batches else None)
        found["queue"].append(float(slot.queue) if slot else 0.0)
        if slot is not None and slot.percentiles is None:
            slot.percentiles = percentiles(slot.latencies)
        for name in _SHARES:
            found[name].append(slot.percentiles.get(name) if slot and slot.percentiles else None)
    return found


def _row(timeline: Timeline, now: int) -> dict[str, float | None]:
    """The numbers of the last minute."""
    slots = [slot for slot in timeline.last(now - 1, WINDOW) if slot is not None]
    seconds = WINDOW * WIDTH
    batches = sum(slot.batches for slot in slots)
    merged: dict[int, int] = {}
    for slot in slots:
        for bucket, count in slot.latencies.items():
            merged[bucket] = merged.get(bucket, 0) + count
    found = percentiles(merged)
    return {
        "throughput": sum(slot.answered for slot in slots) / seconds,
        "failures": sum(slot.failed for slot in slots) / seconds,
        **{name: found.get(name) for name in _SHARES},
        "rows": sum(slot.rows for slot in slots) / batches if batches else None,
        "queue": float(timeline.queue),
    }


def percentiles(latencies: dict[int, int]) -> dict[str, float]:
    """p50, p90 and p99 in seconds, to 4 %; empty without latencies."""
    total = sum(latencies.values())
    if not total:
        return {}
    found, seen = {}, 0
    wanted = iter(_SHARES.items())
    name, share = next(wanted)
    for bucket in sorted(latencies):
        seen += latencies[bucket]
        while seen >= share * total:
            found[name] = math.exp((bucket + 0.5) / _SCALE)  # its middle
            name, share = next(wanted, ("", math.inf))
    return found
