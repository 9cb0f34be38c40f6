"""Run a model without profiling for its latency, then with profiling for its records.

Profiling slows a run down: the latency is that of the session without it, its division among nodes
that of the session with it.
"""

from __future__ import annotations

import copy
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.graph.costs.flops import Tensor
from onward.measure.profile.record_costs import Graphs, read_graphs
from onward.measure.profile.trace import Trace, read_trace
from onward.providers.choose import Asked
from onward.providers.model_sources import open_model
from onward.providers.options import SessionOptions
from onward.providers.ort.ort_format import is_ort_format
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.graph.files import Source

Feeds = Callable[[Sequence[Any]], Mapping[str, Any]]  # the feeds for a session's inputs
Progress = Callable[[str, float], None]  # what is being done, and how much of it is
_PAGE = 4096
_SAMPLE_INTERVAL = 0.002  # seconds
_WEIGHTS_FILE = "session.optimized_model_external_initializers_file_name"


@dataclass(frozen=True)
class Timing:
    """Runs without profiling. Times are in seconds."""

    opening: float  # from the model's file to a session
    first: float  # the first run
    given: int  # bytes of a run's outputs
    starts: list[float]  # of every run, by perf_counter
    times: list[float]
    resident: list[tuple[float, int]]  # time, and memory more than before opening


@dataclass(frozen=True)
class Measurement:
    """Everything that was measured of a model's runs."""

    timing: Timing
    trace: Trace  # the profiled iterations, warm-up left out
    walls: list[float]  # how long each of them took as its caller saw it
    graphs: Graphs
    feeds: Mapping[str, Any]
    providers: list[str]
    interrupted: bool = False

    def between(self, first: int, last: int) -> Measurement:
        """The iterations from `first` up to, not including, `last`, without and with profiling."""
        timing = self.timing
        if len(timing.times) >= last:
            starts, times = timing.starts[first:last], timing.times[first:last]
            timing = replace(timing, starts=starts, times=times)
        trace = self.trace.between(first, last)
        return replace(self, timing=timing, trace=trace, walls=self.walls[first:last])


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Providers, threads, options and number of the runs."""

    providers: Asked = None
    threads: int = 0  # 0: the engine's default
    iterations: int = 20
    warm_up: int = 3
    sess_options: SessionOptions | None = None  # other options of the sessions

    def options(self) -> SessionOptions:
        """A copy of the options, for one session."""
        options = copy.copy(self.sess_options or SessionOptions())
        options.config_entries = dict(options.config_entries)
        options.intra_op_num_threads = self.threads or options.intra_op_num_threads
        options.native, options.enable_profiling = None, False
        return options


def measure(
    model: Source, make_feeds: Feeds, settings: RunSettings, progress: Progress = lambda *_: None
) -> Measurement:
    """Run a model with these settings. Ctrl-C ends it early, with what was measured until then."""
    source = with_names(model, settings.options())
    feeds, timing, interrupted = _time(source, make_feeds, settings, progress)
    if interrupted:  # one more run, for its records
        settings = replace(settings, iterations=1, warm_up=1)
    with tempfile.TemporaryDirectory(prefix="onward-profile-") as name:
        folder = Path(name)
        options = settings.options()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "trace")
        options.log_severity_level = 3  # it warns that the optimised model is for this machine
        if not is_ort_format(source):
            options.optimized_model_filepath = str(folder / "optimised.onnx")
            options.add_session_config_entry(_WEIGHTS_FILE, "weights")
        progress("profiling", 0.0)
        session = InferenceSession(source, options, settings.providers)
        walls, stopped = _profile(session, feeds, settings, progress)
        trace = read_trace(session.end_profiling())
        graphs = read_graphs(folder, {name: _tensor(feed) for name, feed in feeds.items()})
        if not all(record.outputs for record in trace.records):
            graphs.infer()
        _store_shapes(graphs, trace)
        providers = session.get_providers()
    skipped = len(trace.runs) - len(walls)
    trace = trace.between(skipped, len(trace.runs))
    return Measurement(timing, trace, walls, graphs, feeds, providers, interrupted or stopped)


def _time(
    source: Source, make_feeds: Feeds, settings: RunSettings, progress: Progress
) -> tuple[Mapping[str, Any], Timing, bool]:
    progress("opening the model", 0.0)
    before = resident_bytes()
    clock = time.perf_counter
    opened = clock()
    session = InferenceSession(source, settings.options(), settings.providers)
    opening = clock() - opened
    feeds = make_feeds(session.get_inputs())
    start = clock()
    given = sum(getattr(result, "nbytes", 0) for result in session.run(None, feeds))
    first = clock() - start
    starts: list[float] = []
    times: list[float] = []
    interrupted = False
    with _Sampler(before) as sampler:
        try:
            for _ in range(settings.warm_up - 1):
                session.run(None, feeds)
            for number in range(settings.iterations):
                progress("timing", number / settings.iterations)
                start = clock()
                session.run(None, feeds)
                times.append(clock() - start)
                starts.append(start)
        except KeyboardInterrupt:
            interrupted = True
    if not times:
        starts, times = [start], [first]
    return feeds, Timing(opening, first, given, starts, times, sampler.samples), interrupted


def _profile(
    session: InferenceSession, feeds: Mapping[str, Any], settings: RunSettings, progress: Progress
) -> tuple[list[float], bool]:
    clock = time.perf_counter
    for _ in range(settings.warm_up):
        session.run(None, feeds)
    walls: list[float] = []
    try:
        while len(walls) < settings.iterations:
            progress("profiling", len(walls) / settings.iterations)
            start = clock()
            session.run(None, feeds)
            walls.append(clock() - start)
    except KeyboardInterrupt:
        if not walls:
            raise
        return walls, True
    return walls, False


def _store_shapes(graphs: Graphs, trace: Trace) -> None:
    """Give the graphs every recorded shape before the first cost is computed."""
    for record in trace.records:
        graphs.cost(record)


def with_names(source: Source, options: SessionOptions) -> Source:
    """The source if all its nodes have unique names; else a copy that has.

    Records identify nodes by name. A model in ORT format is not changed.
    """
    if is_ort_format(source):
        return source
    own = bool(options.custom_op_libraries)
    model = open_model(source, limits=options.limits, any_domain=own)
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    names = [node.name for node in nodes]
    if all(names) and len(set(names)) == len(names):
        return source
    taken: set[str | None] = set()
    for number, node in enumerate(nodes):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_{number}"
        taken.add(node.name)
    return model


def _tensor(feed: Any) -> Tensor:
    if isinstance(feed, (np.ndarray, np.generic)) and feed.dtype.kind not in "OSU":
        return Tensor(ir.DataType.from_numpy(feed.dtype), feed.shape)
    return Tensor(ir.DataType.STRING, np.shape(feed)) if feed is not None else Tensor(None, None)


class _Sampler:
    """Samples this process's memory in a separate thread."""

    def __init__(self, before: int) -> None:
        self.samples: list[tuple[float, int]] = []
        self._before, self._done = before, threading.Event()
        self._thread = threading.Thread(target=self._sample, name="onward-memory", daemon=True)

    def _sample(self) -> None:
        while not self._done.is_set():
            self.samples.append((time.perf_counter(), resident_bytes() - self._before))
            self._done.wait(_SAMPLE_INTERVAL)

    def __enter__(self) -> _Sampler:
        if resident_bytes():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0
