"""profile_model: run a model, divide its time among operators, and say what bounds it.

profile = onward.profile_model("model.onnx", sizes={"batch": 8})
print(profile.verdict)
profile.save_page("profile.html")
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import OptionError
from onward.graph.paths import writing
from onward.graph.random_feeds import random_feeds
from onward.measure.machine import machine, usable_cores, versions
from onward.measure.profile.bottlenecks import Analysis, Figures, analyse, number_type
from onward.measure.profile.diagnosis import Diagnosis, diagnose
from onward.measure.profile.html_page import render
from onward.measure.profile.roofline import Ceilings, find_ceilings
from onward.measure.profile.timed_runs import Feeds, Measurement, Progress, RunSettings, measure
from onward.measure.profile.timeline import memory_lines, timeline
from onward.measure.profile.trace import PART, Record
from onward.providers.choose import Asked, mentions_auto, named_options
from onward.providers.options import SessionOptions

if TYPE_CHECKING:
    from onward.graph.files import Source


@dataclass(frozen=True)
class Profile:
    """A model's profile: figures by operator and by node, the diagnosis, a trace and a page."""

    name: str  # of the model
    verdict: Diagnosis
    analysis: Analysis
    measured: Measurement
    ceilings: dict[str, Ceilings]  # by provider
    first: int  # the iterations that were analysed: from here ...
    last: int  # ... up to, not including, here
    threads: int

    @property
    def operators(self) -> list[Figures]:
        """Time, FLOPs and bytes of each operator in one run, the longest first."""
        return self.analysis.operators

    @property
    def nodes(self) -> list[Figures]:
        """Time, FLOPs and bytes of each node in one run, the longest first."""
        return self.analysis.nodes

    @property
    def latency(self) -> float:
        """Seconds of one run without profiling."""
        return self.analysis.latency

    @property
    def notes(self) -> list[str]:
        """What to know when reading the figures."""
        return _notes(self)

    def to_json(self) -> dict[str, Any]:
        """All figures as plain numbers, texts, lists and dicts; times are in seconds."""
        timing, analysis = self.measured.timing, self.analysis
        return {
            "model": self.name,
            "verdict": asdict(self.verdict),
            "shares": analysis.shares,
            "waiting": analysis.waiting,
            "latency": {
                "typical": analysis.latency,
                "fastest": min(timing.times),
                "slowest": max(timing.times),
                "profiled": analysis.profiled,
                "outside": analysis.outside,
                "opening": timing.opening,
                "first": timing.first,
            },
            "flops": sum(node.flops for node in self.nodes),
            "bytes": sum(node.bytes for node in self.nodes),
            "iterations": {"first": self.first, "last": self.last},
            "providers": self.measured.providers,
            "threads": self.threads,
            "feeds": {name: _describe(feed) for name, feed in self.measured.feeds.items()},
            "ceilings": {name: asdict(ceilings) for name, ceilings in self.ceilings.items()},
            "operators": [_row(figures) for figures in self.operators],
            "nodes": [_row(figures) for figures in self.nodes],
            "notes": self.notes,
            "machine": machine(),
            "versions": versions(),
        }

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the records as a trace that chrome://tracing and ui.perfetto.dev open."""
        events = [_event(record) for record in self.measured.trace.records]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
        with writing(Path(path)):
            Path(path).write_text(text, encoding="utf-8")

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write a page with plots and tables: one file that needs no network."""
        data = self.to_json()
        data["timeline"] = timeline(self.measured, self.analysis)
        data["memory"] = memory_lines(self.measured)
        with writing(Path(path)):
            Path(path).write_text(render(data), encoding="utf-8")


def profile_model(
    model: Source,
    feeds: Mapping[str, Any] | Feeds | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    providers: Asked = None,
    threads: int = 0,
    iterations: int = 20,
    warm_up: int = 3,
    between: tuple[int, int] | None = None,
    sess_options: SessionOptions | None = None,
    fresh: bool = False,
    progress: Progress = lambda *_: None,
) -> Profile:
    """Run a model repeatedly, and divide its time among its operators.

    Inputs that `feeds` does not have get random values; `sizes` gives their dynamic dimensions,
    which are 1 otherwise. Feeds may also be a function of a session's inputs. `between=(5, 15)`
    analyses the iterations from 5 up to 15, counted after the warm-up. The machine's ceilings are
    measured once and cached; `fresh` measures them again.
    """
    first, last = between or (0, iterations)
    if not 0 <= first < last <= iterations or warm_up < 1:
        raise OptionError(
            f"{warm_up} runs to warm up and the iterations {first} to {last} of {iterations}: "
            "nothing to analyse\nwarm up once at least, and name a range inside the iterations"
        )

    def make_feeds(inputs: Sequence[Any]) -> Mapping[str, Any]:
        if callable(feeds):
            return feeds(inputs)
        given = feeds or {}
        left = [arg for arg in inputs if arg.name not in given]
        return {**random_feeds(left, sizes), **given}

    settings = RunSettings(
        providers=providers,
        threads=threads,
        iterations=iterations,
        warm_up=warm_up,
        sess_options=sess_options,
    )
    threads = settings.options().intra_op_num_threads
    measured = measure(model, make_feeds, settings, progress)
    measured, first, last = _narrow(measured, first, last)
    progress("measuring this machine's ceilings", 0.0)
    name = str(model) if isinstance(model, (str, os.PathLike)) else "model"
    return profile_runs(
        measured, Path(name).name, (first, last), providers=providers, threads=threads, fresh=fresh
    )


def profile_runs(
    measured: Measurement,
    name: str,
    between: tuple[int, int],
    *,
    providers: Asked = None,
    threads: int = 0,
    fresh: bool = False,
) -> Profile:
    """The profile of runs that were measured; `between` are their numbers, for the page."""
    ceilings = _ceilings(measured, providers, threads, fresh)
    analysis = analyse(measured, ceilings)
    verdict = diagnose(analysis, measured, ceilings)
    used = threads or usable_cores()
    return Profile(name, verdict, analysis, measured, ceilings, *between, used)


def _narrow(measured: Measurement, first: int, last: int) -> tuple[Measurement, int, int]:
    """The iterations of the range; fewer if Ctrl-C ended the run before its end."""
    last = min(last, len(measured.walls))
    first = min(first, last - 1)
    return measured.between(first, last), first, last


def _ceilings(
    measured: Measurement, providers: Asked, threads: int, fresh: bool
) -> dict[str, Ceilings]:
    """Of every provider that ran a node, for the types of numbers that it multiplied."""
    options = {} if mentions_auto(providers) else named_options(providers)
    kinds: dict[str, set[str]] = {}
    for record in measured.trace.records:
        kind = number_type(record.inputs or record.outputs)
        kinds.setdefault(record.provider, set()).add(kind)
    return {
        name: find_ceilings(name, options.get(name, {}), threads, found, fresh=fresh)
        for name, found in kinds.items()
    }


def _row(figures: Figures) -> dict[str, Any]:
    return {
        **asdict(figures),
        "flops_per_second": figures.flops_per_second,
        "bytes_per_second": figures.bytes_per_second,
        "intensity": figures.intensity,
    }


def _event(record: Record) -> dict[str, Any]:
    return {
        "name": record.node,
        "cat": record.operator,
        "ph": "X",
        "pid": record.provider,
        "tid": record.thread,
        "ts": record.start * 1e6,
        "dur": record.duration * 1e6,
        "args": {"operator": record.operator, "iteration": record.iteration},
    }


def _describe(feed: Any) -> str:
    shape = "x".join(map(str, getattr(feed, "shape", ()))) or "1"
    return f"{getattr(feed, 'dtype', type(feed).__name__)} {shape}"


def _notes(profile: Profile) -> list[str]:
    found = []
    if profile.measured.interrupted:
        found.append("The run was ended early: the figures are of what was measured by then.")
    if any(node.operator == PART for node in profile.nodes):
        found.append(
            "A compiled part is one record: its engine does not measure single nodes. "
            "Its bytes are those of its inputs and outputs."
        )
    for basis, words in (
        ("estimate", "estimated: elementwise, or from the shapes that the engine recorded"),
        ("unknown", "unknown, because their shapes are, and counted as 0"),
    ):
        count = sum(node.basis == basis for node in profile.nodes if node.operator != PART)
        if count:
            found.append(f"FLOPs and bytes of {count} node{'s' * (count > 1)} are {words}.")
    if any(n.bound == "compute" and n.reached > 1.1 and n.share > 0.05 for n in profile.nodes):
        found.append(
            "Some nodes do more FLOP/s than the ceiling: either their algorithm multiplies less "
            "than the operator's definition, or the ceiling was measured on a busy machine "
            "(measure it again with --fresh)."
        )
    if profile.analysis.profiled > 1.25 * profile.analysis.latency:
        slower = profile.analysis.profiled / profile.analysis.latency
        found.append(
            f"Profiling made a run {slower:.1f} times as long; the latency and the gaps are those "
            "of runs without it."
        )
    return found
