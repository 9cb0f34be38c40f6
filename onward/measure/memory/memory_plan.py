"""What a model takes: planned for given sizes before it runs, and measured when it does.

Both speak of the same number: the bytes that opening a model and running it add to a process in
which the engine is already loaded and warm. Feeds are the caller's and do not count; results do.
Opening is watched once, in a child process; what runs will take is worked out from the graph.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward import errors
from onward.errors import OnwardError, OptionError, ProviderError
from onward.formatting import show_megabytes
from onward.graph.random_feeds import input_shapes
from onward.lazy import LazyModule
from onward.measure.machine import usable_cores
from onward.measure.memory.resident_memory import MEASURABLE
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.measure.memory import estimate
    from onward.providers.ort import forecast, optimized
    from onward.workers import model_transfer
else:  # onnx and the graph are loaded when there is something to plan
    estimate = LazyModule("onward.measure.memory.estimate")
    forecast = LazyModule("onward.providers.ort.forecast")
    optimized = LazyModule("onward.providers.ort.optimized")
    model_transfer = LazyModule("onward.workers.model_transfer")

_ROOT = str(Path(__file__).parents[2])
_SHOWN = 5  # steps in a plan's text
_SMALL = 4 << 20  # bytes


@dataclass(frozen=True)
class Moment:
    """One node: the bytes of activations that live while it runs, and its scratch."""

    node: str
    op_type: str
    live: int
    scratch: int


@dataclass(frozen=True)
class MemoryPlan:
    """What opening a model and running it will add to a process. All in bytes.

    `peak` is the greater of `opening_peak` and `held` + `running`.
    """

    providers: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]  # of the inputs
    weights: int  # of the graph as the engine runs it
    engine: int  # held beside them: packed weights, kernels, the engine's graph
    opening_peak: int  # while the model is read, optimised and packed
    activations: int  # at most alive at once, results included
    outputs: int  # the results alone
    scratch: int | None  # of the hungriest kernel; None: the engine does not say
    running: int  # what runs add: activations and scratch as the arena lays them out
    timeline: tuple[Moment, ...] = field(repr=False)  # node by node
    unknown: tuple[str, ...] = ()  # values whose size only a run can tell; they count as nothing

    @property
    def held(self) -> int:
        """What an open session keeps before it has run."""
        return self.weights + self.engine

    @property
    def peak(self) -> int:
        return max(self.opening_peak, self.held + self.running)

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        opens = self.opening_peak >= self.held + self.running
        rows = [
            ("weights", self.weights, "as the engine holds them"),
            ("engine", self.engine, "packed weights, kernels, graph"),
            ("opening", self.opening_peak, "at most while the model is opened"),
            (
                "activations",
                self.activations,
                f"at most alive at once, outputs {show_megabytes(self.outputs)}",
            ),
            ("scratch", self.scratch, "the hungriest kernel's"),
            ("running", self.running, "activations and scratch as they will lie"),
            ("peak", self.peak, "while opening" if opens else "while running"),
        ]
        lines = [f"memory plan: {', '.join(self.providers)}; {shapes or 'no inputs'}"]
        for name, size, note in rows:
            text = "unknown" if size is None else show_megabytes(size)
            lines.append(f"  {name:<12}{text:>14}  {note}")
        fullest = sorted(self.timeline, key=lambda m: -(m.live + m.scratch))[:_SHOWN]
        lines += [
            f"  fullest: {show_megabytes(m.live + m.scratch)} at {m.op_type} {m.node}"
            for m in fullest
        ]
        if self.unknown:
            some = ", ".join(self.unknown[:3]) + (", ..." if len(self.unknown) > 3 else "")
            lines.append(f"  not counted: {len(self.unknown)} values of unknown size: {some}")
        return "\n".join(lines)


@dataclass(frozen=True)
class MeasuredMemory:
    """What opening a model and running it did add to a process. All in bytes."""

    opening_peak: int
    held: int
    running_peaks: tuple[int, ...]  # of each run, what was held included

    @property
    def peak(self) -> int:
        return max(self.opening_peak, *self.running_peaks)


class Observed:
    """A model that a child process has opened: what that took, and the graph that came of it."""

    def __init__(
        self,
        source: Source,
        providers: Asked = None,
        options: Any = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> None:
        self.source, self.weights = source, weights
        self.options = _plain(SessionOptions.of(options))
        with tempfile.TemporaryDirectory(prefix="onward-") as folder:
            path = Path(folder) / "optimized.onnx"
            writing = optimized.writing(replace(self.options, log_severity_level=4), path)
            request = {"writing": writing, "feeds": {}, "runs": 0}
            answer = _ask_often(source, providers, self.options, weights, request)
            is_whole = bool(answer["whole"]) and path.exists()
            self._graph = optimized.Optimized(path, self.options) if is_whole else None
        self.opening, self.held = int(answer["opening"]), int(answer["held"])
        self.providers = tuple(answer["providers"])
        self.inputs = [(name, kind, shape) for name, kind, shape in answer["inputs"]]

    def plan(self, sizes: Mapping[str, Any] | None = None) -> MemoryPlan:
        """The plan for these sizes, by dimension, or for these feeds."""
        shapes = input_shapes(self.inputs, sizes or {})
        threads = self.options.intra_op_num_threads or usable_cores()
        if self._graph is not None:
            found = forecast.forecast(self._graph, shapes, self.options, threads)
            weights, lives, running = found.weights, found.lives, found.resident
            kernels: list[int] | None = found.scratch
            unknown = found.unknown
        else:
            guess = estimate.estimate(self.source, shapes, self.options, self.weights)
            weights, lives, unknown = guess.weights, guess.lives, guess.unknown
            kernels, running = None, lives.peak
        weights = min(weights, self.held)  # an engine may map them, or share them with others
        each = kernels or [0] * len(lives.steps)
        return MemoryPlan(
            providers=self.providers,
            shapes=shapes,
            weights=weights,
            engine=self.held - weights,
            opening_peak=self.opening,
            activations=lives.peak,
            outputs=lives.outputs,
            scratch=None if kernels is None else max(kernels, default=0),
            running=running,
            timeline=tuple(
                Moment(step.name, step.op_type, step.live, scratch)
                for step, scratch in zip(lives.steps, each, strict=True)
            ),
            unknown=tuple(unknown),
        )


def plan_memory(
    source: Source,
    sizes: Mapping[str, Any] | None = None,
    providers: Asked = None,
    options: Any = None,
) -> MemoryPlan:
    """What opening and running a model will take, before it runs.

    `sizes` gives each open dimension a size: by its name ("batch"), or by input and place
    ("image:0"); or it is a dict of feeds.
    """
    return Observed(source, providers, options).plan(sizes)


def measure_memory(
    source: Source,
    feeds: Mapping[str, Any],
    providers: Asked = None,
    options: Any = None,
    *,
    runs: int = 4,
) -> MeasuredMemory:
    """What opening a model and running it takes, measured in a child process."""
    if runs < 1:
        raise OptionError(f"runs is a number above 0, not {runs}")
    settings = _plain(SessionOptions.of(options))
    arrays = {name: np.asarray(feed) for name, feed in feeds.items()}
    request = {"writing": None, "feeds": arrays, "runs": runs}
    answer = _ask_often(source, providers, settings, None, request)
    return MeasuredMemory(int(answer["opening"]), int(answer["held"]), tuple(answer["runs"]))


def _plain(options: SessionOptions) -> SessionOptions:
    """Options as a child can have them: nothing of this process, no limits, no files."""
    return replace(
        options,
        native=None,
        initializers={},
        shared=None,
        memory_limit=None,
        isolated=False,
        run_timeout=None,
        enable_profiling=False,
        optimized_model_filepath="",
        result_cache_bytes=0,
    )


def _ask_often(*request: Any) -> dict[str, Any]:
    """The child's answer; for a small model the middle of three, as heaps differ by some pages."""
    answers = [_ask(*request)]
    if _most(answers[0]) < _SMALL:
        answers += [_ask(*request) for _ in range(2)]
    return sorted(answers, key=_most)[len(answers) // 2]


def _most(answer: Mapping[str, Any]) -> int:
    most: int = max(0, answer["opening"], *answer["runs"])
    return most


def _ask(
    source: Source,
    providers: Asked,
    options: SessionOptions,
    weights: str | os.PathLike[str] | None,
    request: Mapping[str, Any],
) -> dict[str, Any]:
    """The child's answer; its errors are raised here."""
    if not MEASURABLE:
        raise ProviderError(
            f"the memory of a process is read from Linux's /proc, not {sys.platform}"
        )
    with tempfile.TemporaryDirectory(prefix="onward-") as folder:
        path = _as_file(source, Path(folder))
        where = None if weights is None else os.path.abspath(weights)
        whole = {
            "path": path, "options": options, "providers": providers, "weights": where, **request
        }  # fmt: skip
        search = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            [sys.executable, "-P", "-m", "onward.measure.memory_worker"],
            input=pickle.dumps(whole),
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": search},
        )
    if not done.stdout:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ProviderError(
            f"the process that opened the model died with exit code {done.returncode}: "
            f"{''.join(words) or 'it printed nothing'}"
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        kind = getattr(errors, answer["error"], ProviderError)
        known = isinstance(kind, type) and issubclass(kind, OnwardError)
        raise (kind if known else ProviderError)(answer["text"])
    return answer


def _as_file(source: Source, folder: Path) -> str:
    """Where the child finds the model."""
    if isinstance(source, (str, os.PathLike)):
        return os.path.abspath(source)
    path = folder / "model.onnx"
    data = source if isinstance(source, bytes) else None
    if data is None:
        data, large = model_transfer.ship(source)
        if large is not None:
            with large:
                for file in Path(large.name).iterdir():
                    file.rename(folder / file.name)
    if data is not None:
        path.write_bytes(data)
    return str(path)
