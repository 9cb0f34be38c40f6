"""ParameterServerCore: a parameter server as a state machine, without I/O, threads or a clock.

    join, leave       a worker comes, goes
    pull              the parameters, at a version; the worker now holds that version
    push              the gradients that were computed at it; the worker holds nothing any more

The version is the number of updates. The staleness of a gradient is the number of updates between
its pull and its push.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from onward.distributed.parameter_server.gradient_average import GradientAverage, refuse_push
from onward.distributed.parameter_server.server_settings import ServerSettings
from onward.programs.program import Array, Spec

Status = Literal[
    "applied",  # the update was made
    "kept",  # for the next update, which needs more gradients
    "skipped",  # the average is not finite, so there was no update
    "nonfinite",  # refused: a number is infinite or not a number
    "stale",  # refused: not of the version that the worker holds, or too old
    "unknown",  # refused: the worker has not joined, or was dropped
    "malformed",  # refused: names, types or shapes are not those of the model
    "ended",  # refused: training is over
]

_MAX_ANSWERS = 10_000  # workers, living or gone, whose last push is remembered


class Updates(Protocol):
    """The tensors that a parameter server holds, and their optimizer."""

    @property
    def parameters(self) -> Mapping[str, Spec]:
        """Type and shape of each parameter, by name."""
        ...

    @property
    def statistics(self) -> Mapping[str, Spec]:
        """Type and shape of each running statistic, by name."""
        ...

    @property
    def version(self) -> int:
        """The number of updates."""
        ...

    def apply(
        self, gradients: Mapping[str, Array], statistics: Mapping[str, Array], rate: float
    ) -> bool:
        """Update with the learning rate times `rate`; whether there was an update."""
        ...

    def read(self) -> Mapping[str, Array]:
        """The parameters and statistics; the next update may change these arrays."""
        ...


@dataclass
class _Worker:
    """A living worker."""

    heard: float  # when it was last heard of
    holds: int | None = None  # the version that it computes gradients at


@dataclass(frozen=True)
class Pulled:
    """Parameters at a version; `draw` is the number of this pull among those of the version."""

    version: int
    tensors: dict[str, Array]
    draw: int


@dataclass(frozen=True)
class Pushed:
    """What became of a push."""

    status: Status
    version: int  # after it
    repeated: bool = False  # whether this is the answer to an earlier try of the same push


class ParameterServerCore:
    """The state of a parameter server; every method gets the time.

    `history` names this life of the server: versions of another life may have other contents.
    `counts` and `staleness` (of the gradients that were used: how many of each) are to be read.
    """

    def __init__(self, updates: Updates, settings: ServerSettings, history: str) -> None:
        self.settings, self.history = settings, history
        self.counts: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()
        self._updates = updates
        self._workers: dict[str, _Worker] = {}
        self._waiting: dict[str, float] = {}  # worker: its last try to pull; the first one first
        self._group = GradientAverage()
        self._answers: dict[str, tuple[int, Status]] = {}  # of the last push of each worker
        self._draws = 0  # pulls of this version
        self._snapshot: dict[str, tuple[int, Array]] = {}  # version of the last change, tensor
        self._snapshot_version = -1

    @property
    def version(self) -> int:
        return self._updates.version

    @property
    def workers(self) -> list[str]:
        """The living workers."""
        return list(self._workers)

    @property
    def is_ended(self) -> bool:
        """Whether all updates of the settings were made."""
        return self.settings.updates is not None and self.version >= self.settings.updates

    # -- workers -------------------------------------------------------------------------------

    def join(self, worker: str, now: float) -> None:
        """Take a worker in; joining again changes nothing."""
        self.expire(now)
        if worker not in self._workers:
            self.counts["joined"] += 1
            self._workers[worker] = _Worker(now)
        self._workers[worker].heard = now

    def leave(self, worker: str, now: float) -> None:
        """Let a worker go; what it pushed stays."""
        self.expire(now)
        if self._workers.pop(worker, None) is not None:
            self.counts["left"] += 1
        self._waiting.pop(worker, None)

    def hear(self, worker: str, now: float) -> bool:
        """Note that a worker is alive; whether it is known."""
        self.expire(now)
        if worker not in self._workers:
            return False
        self._workers[worker].heard = now
        return True

    def expire(self, now: float) -> None:
        """Drop the workers that were not heard of for too long."""
        for name, worker in list(self._workers.items()):
            if now - worker.heard > self.settings.timeout:
                del self._workers[name]
                self._waiting.pop(name, None)
                self.counts["expired"] += 1

    def next_expiry(self) -> float | None:
        """When the next worker will be dropped, if it is not heard of; None: there is none."""
        heard = [worker.heard for worker in self._workers.values()]
        return min(heard) + self.settings.timeout if heard else None

    # -- pulling -------------------------------------------------------------------------------

    def pull(
        self, worker: str, now: float, known: tuple[str, int] | None = None
    ) -> Pulled | Literal["wait", "unknown", "ended"]:
        """The tensors that changed since the `known` history and version; None: all of them.

        "wait": an update must be made, or a worker be dropped, before this pull is answered.
        """
        if not self.hear(worker, now):
            return "unknown"
        if self.is_ended:
            return "ended"
        own = self._workers[worker]
        own.holds = None  # a pull replaces an earlier one whose answer was lost
        if not self._is_next(worker, now):
            self.counts["waits"] += worker not in self._waiting
            self._waiting[worker] = now
            return "wait"
        self._waiting.pop(worker, None)
        self.counts["pulls"] += 1
        own.holds = self.version
        draw, self._draws = self._draws, self._draws + 1
        since = known[1] if known is not None and known[0] == self.history else -1
        self._refresh()
        statistics = self._updates.statistics  # a worker's own forward pass changes its copies
        tensors = {
            name: tensor
            for name, (changed, tensor) in self._snapshot.items()
            if changed > since or name in statistics
        }
        return Pulled(self.version, tensors, draw)

    def _is_next(self, worker: str, now: float) -> bool:
        """Whether a pull may be answered now, and no earlier one that waits may be."""
        if not self._is_within_bound(worker):
            return False
        for earlier, tried in self._waiting.items():
            if earlier == worker:
                return True
            gone = now - tried > self.settings.timeout / 2  # one that waits tries more often
            if not gone and self._is_within_bound(earlier):
                return False
        return True

    def _is_within_bound(self, worker: str) -> bool:
        """Whether no gradient can become too stale if this worker starts at the current version.

        The oldest gradient that is being computed may come after all others. Of those and of what
        was pushed already, every `average` gradients make an update.
        """
        most = self.settings.staleness
        if most is None:
            return True
        holds = [w.holds for w in self._workers.values() if w.holds is not None]
        started = len(holds) + 1 + len(self._group)
        if worker in self._group.workers:  # leave room for those who have not pushed yet
            others = self._workers.keys() - self._group.workers
            started += sum(self._workers[name].holds is None for name in others)
        oldest = min([*holds, self.version])
        return self.version - oldest + (started - 1) // self.settings.average <= most

    def _refresh(self) -> None:
        """Copy the tensors that changed since the last snapshot."""
        if self._snapshot_version == self.version:
            return
        for name, tensor in self._updates.read().items():
            held = self._snapshot.get(name)
            if held is None or not np.array_equal(held[1], tensor):
                self._snapshot[name] = self.version, np.array(tensor)
        self._snapshot_version = self.version

    # -- pushing -------------------------------------------------------------------------------

    def push(
        self,
        worker: str,
        number: int,
        version: int,
        gradients: Mapping[str, Array] | None,
        weight: float,
        now: float,
        statistics: Mapping[str, Array] | None = None,
    ) -> Pushed:
        """Take the gradients that a worker computed at a version, weighted by its rows.

        `number` counts the pushes of a worker: the same number again is the same push, and gets the
        same answer. Gradients of None: the worker found numbers that are not finite.
        """
        known = self.hear(worker, now)
        last = self._answers.get(worker)
        if last is not None and number <= last[0]:
            self.counts["repeated"] += 1
            status: Status = last[1] if number == last[0] else "stale"
            return Pushed(status, self.version, repeated=True)
        status = self._take(worker, version, gradients, weight, statistics or {}, known)
        self.counts[status] += 1
        if known:
            self._workers[worker].holds = None
            self._remember(worker, number, status)
        return Pushed(status, self.version)

    def _take(
        self,
        worker: str,
        version: int,
        gradients: Mapping[str, Array] | None,
        weight: float,
        statistics: Mapping[str, Array],
        known: bool,
    ) -> Status:
        if not known:
            return "unknown"
        if self.is_ended:
            return "ended"
        most, staleness = self.settings.staleness, self.version - version
        if self._workers[worker].holds != version or (most is not None and staleness > most):
            return "stale"
        if gradients is None:
            return "nonfinite"
        refused = refuse_push(gradients, statistics, weight, self._updates)
        if refused is not None:
            return refused
        self._group.add(worker, gradients, statistics, weight, staleness)
        if len(self._group) < self.settings.average:
            return "kept"
        return "applied" if self._apply() else "skipped"

    def _apply(self) -> bool:
        """Update with the gradients of the group."""
        group, self._group = self._group, GradientAverage()
        gradients, statistics = group.result()
        rate = group.rate() if self.settings.scale_by_staleness else 1.0
        finite = all(np.isfinite(gradient).all() for gradient in gradients.values())
        if not finite or not self._updates.apply(gradients, statistics, rate):
            return False
        self._draws = 0
        self.counts["updates"] += 1
        self.counts["gradients"] += len(group)
        self.staleness.update(group.staleness)
        return True

    def _remember(self, worker: str, number: int, status: Status) -> None:
        self._answers.pop(worker, None)
        self._answers[worker] = number, status
        while len(self._answers) > _MAX_ANSWERS:
            gone = next((name for name in self._answers if name not in self._workers), None)
            if gone is None:
                return
            del self._answers[gone]

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, right after an update: no gradient waits then."""
        return {
            "answers": {name: list(answer) for name, answer in self._answers.items()},
            "counts": dict(self.counts),
            "staleness": {str(key): count for key, count in self.staleness.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned; workers join again."""
        self._answers = {name: (int(n), s) for name, (n, s) in state["answers"].items()}
        self.counts = Counter(state["counts"])
        self.staleness = Counter({int(key): count for key, count in state["staleness"].items()})
