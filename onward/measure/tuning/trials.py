"""Trial: one way to run a model, measured in a separate process.

Thread pools of several engines slow each other down in one process, memory is counted by process,
and an engine that crashes ends only its own trial. The child can be asked again, so that candidates
can take turns and other load on the machine affects them alike.

    with Trial(path, Candidate("CPUExecutionProvider"), feeds) as trial:
        opening = trial.open()          # time to the first result, and the result
        times = trial.measure(0.5)      # seconds of each call
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import FeedError
from onward.workers import messages
from onward.workers.worker import Worker

BARE = "onnxruntime alone"  # a Candidate's provider: onnxruntime without Onward


@dataclass(frozen=True)
class Candidate:
    """One way to run a model."""

    provider: str
    threads: int = 0  # 0: the engine's default
    provider_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    own_passes: bool = False  # run Onward's passes before the engine's

    def __str__(self) -> str:
        words = [self.provider.removesuffix("ExecutionProvider")]
        words += [f"{name}={value}" for name, value in self.provider_options.items()]
        words += [f"{self.threads} thread{'s' * (self.threads > 1)}"] if self.threads else []
        words += ["own passes"] if self.own_passes else []
        return ", ".join(words)


@dataclass(frozen=True)
class FirstRun:
    """The result of the first run."""

    seconds: float  # from an empty process to the first result
    outputs: list[Any]


@dataclass(frozen=True)
class CallTimes:
    """Times of single calls, in seconds, and the process's peak memory, in bytes."""

    times: list[float]
    memory: int

    @property
    def median(self) -> float:
        return float(np.median(self.times))

    @property
    def p99(self) -> float:
        return float(np.quantile(self.times, 0.99))

    @property
    def throughput(self) -> float:
        """Calls per second, one after the other."""
        return len(self.times) / sum(self.times)


class Trial:
    """A candidate in its own process; a context that ends it."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        candidate: Candidate,
        feeds: Mapping[str, Any],
        *,
        weights: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        child: Sequence[str] | None = None,
        module: str = "onward.measure.trial_worker",  # of the child
    ) -> None:
        self.candidate, self._child, self._module = candidate, child, module
        self._request: dict[str, Any] = {
            "do": "open",
            "model": str(Path(model).resolve()),
            "weights": None if weights is None else str(Path(weights).resolve()),
            "candidate": asdict(candidate),
            "settings": dict(settings or {}),
        }
        self._feeds = feeds
        self._worker: Worker | None = None

    def open(self, timeout: float = 600.0) -> FirstRun:
        """Start the child, open the model there and run it once."""
        for name, feed in self._feeds.items():
            if not isinstance(feed, (np.ndarray, np.generic)):
                raise FeedError(f"{name!r} is a {type(feed).__name__}: trials take numpy arrays")
        buffers: list[Any] = []
        packed = [[name, messages.pack(feed, buffers)] for name, feed in self._feeds.items()]
        self._worker = Worker(self._module, str(self.candidate), arguments=self._child)
        reply, data = self._worker.ask(
            {**self._request, "feeds": packed}, buffers, doing="opened the model", timeout=timeout
        )
        outputs = [messages.unpack(result, data) for result in reply["outputs"]]
        return FirstRun(reply["seconds"], outputs)

    def measure(self, seconds: float, *, most: int = 10_000, timeout: float = 600.0) -> CallTimes:
        """Call repeatedly for about so many seconds, three times at least."""
        assert self._worker is not None
        request = {"do": "measure", "seconds": seconds, "most": most}
        reply, _ = self._worker.ask(request, doing="ran the model", timeout=timeout)
        return CallTimes(reply["times"], reply["memory"])

    def close(self) -> None:
        """End the child."""
        if self._worker is not None:
            self._worker.close()

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
