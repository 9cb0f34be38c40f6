"""ProfileSteps: show where the time of some steps of a run goes, operator by operator.

    onward train model.onnx --data data.csv --profile 100:120

An engine records only in a session that was opened for it. So a second session begins from the same
state before the first of these steps, and repeats each of them with the same batch; the run itself
is not slowed down by records, and its own times are those that the page shows. Engines that cannot
record a training step (torch) run the graph of its forward and backward pass instead.
"""

from __future__ import annotations

import gc
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.costs.flops import Tensor
from onward.graph.files import load
from onward.graph.paths import make_folder
from onward.measure.profile.record_costs import Graphs
from onward.measure.profile.report import Profile, profile_model, profile_runs
from onward.measure.profile.timed_runs import Measurement, Timing
from onward.measure.profile.trace import Trace, TracedRun, read_trace
from onward.providers.options import SessionOptions
from onward.runner.callback import Callback
from onward.runner.events import StepRecord
from onward.runner.run import Run
from onward.runner.training_graph import runs_in_torch, training_graph
from onward.sessions.training.session import TrainingSession

TRACE = "trace.json"  # next to the page


def read_steps(text: str) -> tuple[int, int]:
    """Read FIRST:LAST, the steps from FIRST up to, not including, LAST; the first step is 1.

    >>> read_steps("100:120")
    (100, 120)
    """
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal():
        raise OptionError(f"profile takes FIRST:LAST, such as 100:120, not {text!r}")
    found = int(first), int(last)
    if not 1 <= found[0] < found[1]:
        raise OptionError(
            f"profile: {text} contains no step\nthe first step is 1, and LAST is not profiled"
        )
    return found


class ProfileSteps(Callback):
    """Writes the folder `profile` of a run: a page, and a trace for ui.perfetto.dev."""

    def __init__(self, steps: str) -> None:
        self.first, self.last = read_steps(steps)
        self._recording: _Recording | None = None
        self._start = self.first
        self._mark = 0.0  # when the last step ended

    def on_start(self, run: Run) -> None:
        if self.first > run.plan.steps:
            raise OptionError(
                f"profile: the run has {run.plan.steps} steps, {self.first}:{self.last} are beyond "
                f"them\nchoose steps from 1 to {run.plan.steps}"
            )
        self._begin(run, run.step)

    def on_step(self, run: Run, step: StepRecord) -> None:
        seconds = run.clock() - self._mark
        if self._recording is not None:
            self._recording.repeat(run, step, self._mark, seconds)
        if step.number == self.last - 1:
            self._finish(run)
        self._begin(run, step.number)

    def on_end(self, run: Run) -> None:
        self._finish(run)

    def _begin(self, run: Run, done: int) -> None:
        """Open a recording if the next step is to be profiled: the first, or after a resume."""
        if self._recording is None and self.first - 1 <= done < self.last - 1:
            self._recording, self._start = _Recording(run), done + 1
        self._mark = run.clock()

    def _finish(self, run: Run) -> None:
        recording, self._recording = self._recording, None
        if recording is None or not recording.walls:
            return
        between = (self._start, self._start + len(recording.walls))
        found = recording.profile(run, f"{run.folder.name}, a step", between)
        page = run.folder.profile
        make_folder(page.parent)
        found.save_page(page)
        found.save_trace(page.with_name(TRACE))


class _Recording:
    """A second session from a run's state, which records the steps that it repeats."""

    def __init__(self, run: Run) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of traces
        self._state = run.session.checkpoint()
        self._session: TrainingSession | None = None
        self._feeds: dict[str, Any] = {}
        self._starts: list[float] = []
        self._times: list[float] = []
        self._opening = self._first = 0.0
        self.walls: list[float] = []

    def repeat(self, run: Run, step: StepRecord, began: float, seconds: float) -> None:
        """Repeat a step; `seconds` is its time in the run."""
        self._feeds = {name: np.asarray(feed) for name, feed in step.batch.feeds.items()}
        self._starts.append(began)
        self._times.append(seconds)
        if runs_in_torch(run.session):
            self.walls.append(seconds)
            return
        if self._session is None:
            self._session = self._open(run)
        start = run.clock()
        _make_step(self._session, self._feeds)
        self.walls.append(run.clock() - start)

    def _open(self, run: Run) -> TrainingSession:
        """A session that records, after a first step that opens its graphs and is not counted."""
        self._folder = tempfile.TemporaryDirectory(prefix="onward-profile-")
        options = SessionOptions(
            enable_profiling=True,
            profile_file_prefix=str(Path(self._folder.name) / "trace"),
            intra_op_num_threads=run.config.threads,
            log_severity_level=4,
        )
        start = run.clock()
        session = TrainingSession(
            run.session.program, sess_options=options, providers=run.session.get_providers()
        )
        session.restore(*self._state)
        opened = run.clock()
        _make_step(session, self._feeds)
        self._opening, self._first = opened - start, run.clock() - opened
        session.restore(*self._state)
        return session

    def profile(self, run: Run, name: str, between: tuple[int, int]) -> Profile:
        """Divide the time of the steps among operators."""
        providers, threads = run.session.get_providers(), run.config.threads
        if self._session is None or self._folder is None:
            model, feeds = training_graph(run.session, self._feeds)
            count = len(self.walls)
            found = profile_model(
                model, feeds, providers=providers, threads=threads, iterations=count
            )
            return replace(found, name=f"{name} (forward and backward)")
        self._session.close()  # which writes the traces
        self._session = None
        gc.collect()
        with self._folder as name_of_folder:
            traces = [read_trace(path) for path in sorted(Path(name_of_folder).glob("*.json"))]
        timing = Timing(self._opening, self._first, 0, self._starts, self._times, [])
        measured = Measurement(
            timing=timing,
            trace=join_traces(traces, len(self.walls)),
            walls=self.walls,
            graphs=_graphs(run.session, self._feeds),
            feeds=self._feeds,
            providers=providers,
        )
        return profile_runs(measured, name, between, threads=threads)


def _make_step(session: TrainingSession, feeds: dict[str, Any]) -> None:
    """One batch and its update, also where several batches are accumulated."""
    session.step(feeds)
    if session.program.settings.accumulate > 1:
        session.update_weights()


def join_traces(traces: list[Trace], steps: int) -> Trace:
    """The graphs that every step runs as one trace, one after the other in each step.

    A graph's trace has its own time origin, and one run more than `steps`: the first one,
    which is left out. Graphs that run less often (to count random numbers) are left out too.
    """
    each = [t.between(len(t.runs) - steps, len(t.runs)) for t in traces if len(t.runs) > steps]
    records, runs = [], []
    now = 0.0
    for number in range(steps):
        began, executing = now, 0.0
        for trace in each:
            run = trace.runs[number]
            records += [
                replace(record, start=record.start - run.start + now)
                for record in trace.records
                if record.iteration == number
            ]
            now += run.duration
            executing += run.executing
        runs.append(TracedRun(began, now - began, executing))
    return Trace(records, runs)


def _graphs(session: TrainingSession, feeds: dict[str, Any]) -> Graphs:
    """The graphs of a session's steps, for the costs of their nodes."""
    lowered = session.program.lowered_here
    updates = [each.graph for each in lowered.updates]
    found = [lowered.train, *updates] if lowered.step is None else [lowered.step]
    tensors = {
        name: Tensor(ir.DataType.from_numpy(feed.dtype), feed.shape) for name, feed in feeds.items()
    }
    return Graphs([load(graph, any_domain=True) for graph in found], tensors)
