"""Choose how many instances of a model run at once, their threads and their provider: measured.

settings = choose_instances("model.onnx", ModelSettings(instances="auto"))

Two instances with one thread each often answer more requests than one with two threads; which is
better depends on the model and the machine. Measuring takes a few seconds at most, in a process of
its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from onward.errors import OnwardError
from onward.measure.machine import usable_cores
from onward.providers.choose import OPENVINO, available
from onward.providers.ort import session as ort
from onward.serving.settings import ModelSettings
from onward.workers.worker import Worker

BUDGET = 5.0  # seconds for all measurements
_SECONDS = 0.3  # of each measurement
_MAX_INSTANCES = 8  # each holds a copy of the weights
_LEAST_GAIN = 1.05  # more instances must answer 5 % more requests: they take more memory

log = logging.getLogger("onward.serving")


@dataclass(frozen=True, slots=True)
class InstanceCandidate:
    """One way to run a model."""

    instances: int
    threads: int  # of each instance; 0: the engine's choice
    providers: tuple[str, ...] | None  # None: the default of this machine

    def __str__(self) -> str:
        threads = f" x {self.threads} threads" if self.threads else ""
        where = f" on {', '.join(self.providers)}" if self.providers else ""
        return f"{self.instances} instance{'s' * (self.instances > 1)}{threads}{where}"


Measure = Callable[
    [InstanceCandidate, float], float | None
]  # runs per second within so many seconds


def choose_instances(
    path: str | os.PathLike[str],
    settings: ModelSettings,
    *,
    budget: float = BUDGET,
    measure: Measure | None = None,
    cores: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ModelSettings:
    """Settings without "auto" for instances and providers. With worker processes, each is one."""
    if settings.instances != "auto" and settings.providers != "auto":
        return settings
    source = os.path.abspath(path)
    if measure is not None:
        best = _search(source, settings, budget, measure, cores or usable_cores(), clock)
    else:
        with _Measurer(source) as measurer:
            cores = cores or usable_cores()
            best = _search(source, settings, budget, measurer.measure, cores, clock)
    return settings.model_copy(
        update={
            "instances": best.instances,
            "threads": best.threads,
            "providers": None if best.providers is None else list(best.providers),
        }
    )


def _search(
    path: str,
    settings: ModelSettings,
    budget: float,
    measure: Measure,
    cores: int,
    clock: Callable[[], float],
) -> InstanceCandidate:
    """The fastest provider first, then how many instances of it."""
    end = clock() + budget
    measured: dict[InstanceCandidate, float] = {}

    def fastest(candidates: Iterable[InstanceCandidate]) -> InstanceCandidate | None:
        best: InstanceCandidate | None = None
        for each in candidates:
            if clock() >= end:
                break
            if each not in measured:
                measured[each] = measure(each, end - clock()) or 0.0
            needed = measured[best] * _LEAST_GAIN if best is not None else 0.0
            if measured[each] > needed:
                best = each
        return best

    first = _first(settings)
    chosen = first
    if settings.providers == "auto":
        chosen = (
            fastest(
                InstanceCandidate(first.instances, first.threads, each) for each in provider_lists()
            )
            or first
        )
    if settings.instances == "auto" and settings.workers == 0:
        counts = instance_counts(cores, settings.threads)
        chosen = fastest(InstanceCandidate(n, t, chosen.providers) for n, t in counts) or chosen
    found = sorted(measured.items(), key=lambda pair: -pair[1])
    shown = "; ".join(f"{each}: {rate:,.0f}" for each, rate in found) or "no time to measure"
    log.info("%s: chose %s (runs per second: %s)", os.path.basename(path), chosen, shown)
    return chosen


def _first(settings: ModelSettings) -> InstanceCandidate:
    """What the settings name, with the defaults for what is to be chosen."""
    instances = 1 if settings.instances == "auto" else settings.instances
    named = settings.providers if isinstance(settings.providers, list) else None
    providers = None if named is None else tuple(named)
    return InstanceCandidate(max(instances, settings.workers), settings.threads, providers)


def instance_counts(cores: int, threads: int) -> list[tuple[int, int]]:
    """Numbers of instances to try, and the threads of each: the cores are divided among them.

    >>> instance_counts(4, 0)
    [(1, 0), (2, 2), (4, 1)]
    """
    found, count = [(1, threads)], 2
    most = min(_MAX_INSTANCES, max(cores // max(threads, 1), 1))
    while count <= most:
        found.append((count, threads or max(cores // count, 1)))
        count *= 2
    return found


def provider_lists() -> list[tuple[str, ...]]:
    """Providers to try, each with the processor as its fallback. torch is not among them."""
    cpu = "CPUExecutionProvider"
    names = [name for name in available() if name in ort.available() or name == OPENVINO]
    return [(cpu,), *((name, cpu) for name in names if name != cpu)]


class _Measurer:
    """A process that measures candidates; a new one after a crash."""

    def __init__(self, path: str) -> None:
        self._path, self._worker = path, self._new()

    def __enter__(self) -> _Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def _new(self) -> Worker:
        return Worker("onward.serving.worker_processes.worker_process", "the process that measures")

    def measure(self, candidate: InstanceCandidate, seconds: float) -> float | None:
        """Runs per second; None if the candidate fails or does not answer in time."""
        request: dict[str, Any] = {
            "do": "measure", "path": self._path, "seconds": min(_SECONDS, seconds),
            "instances": candidate.instances, "threads": candidate.threads,
            "providers": None if candidate.providers is None else list(candidate.providers),
        }  # fmt: skip
        try:
            reply, _ = self._worker.ask(request, timeout=seconds + 2.0)  # it has to start
            rate = reply["runs_per_second"]
        except (OnwardError, KeyError) as error:
            log.debug("%s cannot be measured: %s", candidate, error)
            if not self._worker.alive:
                self._worker.close()
                self._worker = self._new()
            return None
        return float(rate) if isinstance(rate, (int, float)) else None
