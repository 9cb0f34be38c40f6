"""Memory of a model: planned for given sizes of its inputs, and measured with given feeds.

Both are the bytes that opening a model and running it add to a process in which the engine is
already loaded and warm. Feeds belong to the caller and do not count; results do. A child process
opens and runs the model; which values live when is estimated from the graph.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import OptionError, ProviderError
from onward.formatting import show_megabytes
from onward.lazy import LazyModule
from onward.measure.memory.resident_memory import MEASURABLE
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.providers.ort.ort_format import is_ort_format
from onward.workers import messages
from onward.workers.option_messages import pack_options
from onward.workers.worker import Worker

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.measure.memory import estimate
    from onward.workers import model_transfer
else:  # onnx and the graph are loaded when there is something to plan
    estimate = LazyModule("onward.measure.memory.estimate")
    model_transfer = LazyModule("onward.workers.model_transfer")

Weights = str | os.PathLike[str] | None

_RUNS = 4  # onnxruntime may take more in the second run, when it has learnt the tensors' sizes
_SHOWN = 5  # nodes in a plan's text
_SMALL = 4 << 20  # bytes


@dataclass(frozen=True)
class NodeMemory:
    """One node, and the bytes of activations that are alive while it runs."""

    node: str
    op_type: str
    live: int


@dataclass(frozen=True)
class MemoryPlan:
    """What opening a model and running it adds to a process. All in bytes.

    `opening_peak`, `held` and `running` are measured, `activations`, `outputs` and `timeline`
    estimated from the graph. `peak` is the greater of `opening_peak` and `held` + `running`.
    """

    providers: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]  # of the inputs
    weights: int  # of the graph
    engine: int  # held in addition: packed weights, kernels, the engine's graph
    opening_peak: int  # while the model is read, optimised and packed
    activations: int | None  # at most alive at once, results included; None: an ORT-format model
    outputs: int | None  # only the results
    running: int  # what runs add: activations, kernels' buffers, what the engine's arena keeps
    timeline: tuple[NodeMemory, ...] = field(repr=False)  # node by node
    unknown: tuple[str, ...] = ()  # values whose size only a run shows; estimated as 0
    run_error: str = ""  # why the run failed; `running` is then the estimate, `activations`

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
        error = self.run_error.partition("\n")[0]
        rows = [
            ("weights", self.weights, "of the graph"),
            ("engine", self.engine, "packed weights, kernels, graph"),
            ("opening", self.opening_peak, "at most while the model is opened"),
            (
                "activations",
                self.activations,
                f"at most alive at once, outputs {_show(self.outputs)}",
            ),
            ("running", self.running, f"estimated: {error}" if error else "added by runs"),
            ("peak", self.peak, "while opening" if opens else "while running"),
        ]
        lines = [f"memory plan: {', '.join(self.providers)}; {shapes or 'no inputs'}"]
        lines += [f"  {name:<12}{_show(size):>14}  {note}" for name, size, note in rows]
        fullest = sorted(self.timeline, key=lambda node: -node.live)[:_SHOWN]
        lines += [
            f"  fullest: {_show(node.live)} at {node.op_type} {node.node}" for node in fullest
        ]
        if self.unknown:
            names = ", ".join(self.unknown[:3]) + (", ..." if len(self.unknown) > 3 else "")
            lines.append(f"  not estimated: {len(self.unknown)} values of unknown size: {names}")
        return "\n".join(lines)


@dataclass(frozen=True)
class MeasuredMemory:
    """What opening a model and running it added to a process. All in bytes."""

    opening_peak: int
    held: int
    running_peaks: tuple[int, ...]  # of each run, what was held included

    @property
    def peak(self) -> int:
        return max(self.opening_peak, *self.running_peaks)


def plan_memory(
    source: Source,
    sizes: Mapping[str, Any] | None = None,
    providers: Asked = None,
    options: Any = None,
    *,
    weights: Weights = None,
) -> MemoryPlan:
    """What opening and running a model takes, found by a child process that does both.

    `sizes` gives each dynamic dimension a size: by its name ("batch"), or by input and place
    ("image:0"); the child then runs with random feeds. Or it is a dict of feeds.
    """
    settings = _plain(SessionOptions.of(options))
    given = dict(sizes or {})
    request: dict[str, Any] = {"sizes": given, "feeds": None, "runs": _RUNS}
    if any(not isinstance(size, (int, np.integer)) for size in given.values()):
        request |= {"sizes": None, "feeds": _as_arrays(given)}
    answer = _ask_often(source, providers, settings, weights, request)
    shapes = {name: tuple(shape) for name, shape in answer["shapes"].items()}
    held, error = max(0, answer["held"]), answer["run_error"]
    if is_ort_format(source):
        if error:
            raise ProviderError(f"{error}\ngive feeds instead of sizes")
        values = None
    else:
        values = estimate.estimate_source(source, shapes, settings, weights)
    known = min(values.weights, held) if values else 0  # an engine may map or share weights
    lives = values.lives if values else None
    return MemoryPlan(
        providers=tuple(answer["providers"]),
        shapes=shapes,
        weights=known,
        engine=held - known,
        opening_peak=answer["opening"],
        activations=lives.peak if lives else None,
        outputs=lives.outputs if lives else None,
        running=lives.peak if error and lives else max(held, *answer["runs"]) - held,
        timeline=tuple(
            NodeMemory(step.name, step.op_type, step.live)
            for step in (lives.steps if lives else ())
        ),
        unknown=tuple(values.unknown) if values else (),
        run_error=error,
    )


def measure_memory(
    source: Source,
    feeds: Mapping[str, Any],
    providers: Asked = None,
    options: Any = None,
    *,
    runs: int = _RUNS,
) -> MeasuredMemory:
    """What opening a model and running it with these feeds takes, measured in a child process."""
    if runs < 1:
        raise OptionError(f"runs must be a number above 0, not {runs}")
    settings = _plain(SessionOptions.of(options))
    request = {"sizes": None, "feeds": _as_arrays(feeds), "runs": runs}
    answer = _ask_often(source, providers, settings, None, request)
    return MeasuredMemory(int(answer["opening"]), int(answer["held"]), tuple(answer["runs"]))


def _as_arrays(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Feeds as a child can read them; sequences stay lists."""
    return {
        name: feed if isinstance(feed, (list, tuple)) else np.asarray(feed)
        for name, feed in feeds.items()
    }


def _plain(options: SessionOptions) -> SessionOptions:
    """Options that a child can have: no objects of this process, no limits, no files."""
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
    """The child's answer; for a small model the median of three, as heaps differ by some pages."""
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
    buffers: list[Any] = []
    feeds = request["feeds"] or {}
    with model_transfer.model_file(source) as path:
        whole = {
            "do": "measure",
            "path": str(path),
            "options": pack_options(options, buffers),
            "providers": providers,
            "weights": None if weights is None else os.path.abspath(weights),
            "sizes": request["sizes"],
            "feeds": [[name, messages.pack(feed, buffers)] for name, feed in feeds.items()],
            "runs": request["runs"],
        }
        with Worker("onward.measure.memory_worker", "the process that opened the model") as worker:
            return worker.ask(whole, buffers)[0]


def _show(size: int | None) -> str:
    return "unknown" if size is None else show_megabytes(size)
