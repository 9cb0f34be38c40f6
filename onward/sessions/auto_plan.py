"""Auto: the plan of a session that measures which way is fastest for the shapes it is fed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import FeedError, OptionError
from onward.graph.random_feeds import random_feeds
from onward.measure.tuning.trials import Candidate
from onward.measure.tuning.tune import TuningOptions, Verdict, bucket, tune
from onward.names import suggest_names
from onward.providers.choose import Choice, choose
from onward.providers.options import SessionOptions
from onward.providers.ort.ort_values import to_numpy
from onward.providers.session_log import log_of

if TYPE_CHECKING:
    from onward.graph.files import Source

MOST_VERDICTS = 4  # kinds of shapes that one session measures; others take the nearest verdict

_CARRIED = (
    "graph_optimization_level",
    "execution_mode",
    "enable_cpu_mem_arena",
    "disable_fallback",
    "free_dimensions",
    "free_dimension_denotations",
    "config_entries",
    "custom_op_libraries",
)

Open = Callable[[Choice, SessionOptions], Any]  # opens the session's model as a plan
Shapes = dict[str, tuple[int, ...]]


def tuning_options(providers: Any) -> TuningOptions:
    """The options of "auto", which stands alone in the list of providers."""
    listed = [providers] if isinstance(providers, str) else list(providers)
    if len(listed) > 1:
        raise OptionError(
            '"auto" stands alone in providers\n'
            'to choose among a few: [("auto", {"providers": ["CPUExecutionProvider", ...]})]'
        )
    given = {} if isinstance(listed[0], str) else dict(listed[0][1])
    known = TuningOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            raise OptionError(
                f"auto has no option {name!r}; {suggest_names(name, known, 'it has')}"
            )
    return TuningOptions(**given)


class Auto:
    """A model on the fastest of the ways that were measured, shapes by shapes."""

    def __init__(
        self,
        source: Source,
        options: SessionOptions,
        tuning: TuningOptions,
        weights: Any,
        open_plan: Open,
    ) -> None:
        if options.isolated:
            raise OptionError(
                "auto would run an isolated model outside its isolation\n"
                "name the providers, or leave isolated out"
            )
        self._source, self._options, self._weights, self._open = source, options, weights, open_plan
        self._settling = threading.RLock()  # one thread measures, the others wait for its verdict
        if options.intra_op_num_threads:
            given = {**vars(tuning), "threads": options.intra_op_num_threads}
            tuning = TuningOptions(**given)
        self._tuning, self._log = tuning, log_of(options)
        self._plans: dict[str, Any] = {}  # opened, by the candidate's name
        self._chosen: dict[tuple[Any, ...], Any] = {}  # by the feeds' shapes
        self._verdicts: list[Verdict] = []
        self._first = self._current = open_plan(choose(None, None, options), options)
        self._inputs = self._first.get_inputs()
        if all(isinstance(size, int) for arg in self._inputs for size in arg.shape or ()):
            self._settle_now()

    @property
    def verdicts(self) -> list[Verdict]:
        """What was measured or remembered so far, one verdict for each kind of shapes."""
        return list(self._verdicts)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a plan has is the current plan's."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._current, name)

    def run(self, names: Any, feeds: Any, run_options: Any = None) -> Any:
        return self._for(feeds).run(names, feeds, run_options)

    def run_async(
        self, names: Any, feeds: Any, callback: Any, user_data: Any, run_options: Any
    ) -> None:
        self._for(feeds).run_async(names, feeds, callback, user_data, run_options)

    def run_with_dlpack(self, names: Any, feeds: Any, run_options: Any = None) -> Any:
        return self._for(feeds).run_with_dlpack(names, feeds, run_options)

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> Any:
        shapes = {name: tuple(value.shape()) for name, value in feeds.items()}
        return self._at(shapes, feeds).run_with_ort_values(names, feeds, run_options)

    def io_binding(self) -> Any:
        return (self._first or self._current).io_binding()

    def run_with_iobinding(self, binding: Any, run_options: Any) -> None:
        """A binding is one plan's own: while shapes are open, that of the plan it began with."""
        (self._first or self._current).run_with_iobinding(binding, run_options)

    def _for(self, feeds: Mapping[str, Any]) -> Any:
        """The plan for these feeds."""
        if self._first is None:
            return self._current  # every shape is the model's own
        return self._at({name: _shape(feed) for name, feed in feeds.items()}, feeds)

    def _at(self, shapes: Shapes, feeds: Mapping[str, Any]) -> Any:
        key = tuple(sorted(shapes.items()))
        plan = self._chosen.get(key)
        if plan is None:
            with self._settling:
                plan = self._chosen.get(key) or self._settle(shapes, feeds)
                self._chosen[key] = self._current = plan
        return plan

    def _settle_now(self) -> None:
        """Every size is fixed: no feed needs to be waited for."""
        try:
            feeds = random_feeds(self._inputs)
        except FeedError:
            return  # sequences: wait for real ones
        self._current = self._settle({n: f.shape for n, f in feeds.items()}, feeds)
        self._first = None

    def _settle(self, shapes: Shapes, feeds: Mapping[str, Any]) -> Any:
        verdict = self._verdict(shapes, feeds)
        if verdict is None:
            return self._first
        candidate = verdict.best(shapes)
        self._log.info("auto: %s", candidate)
        return self._plan(candidate)

    def _verdict(self, shapes: Shapes, feeds: Mapping[str, Any]) -> Verdict | None:
        """The verdict for shapes like these: known, measured now, or that of the nearest."""
        kind = {name: bucket(shape) for name, shape in shapes.items()}
        for verdict in self._verdicts:
            if kind == {name: bucket(shape) for name, shape in verdict.shapes.items()}:
                return verdict
        if len(self._verdicts) >= MOST_VERDICTS:
            return min(self._verdicts, key=lambda verdict: _distance(verdict.shapes, shapes))
        try:
            verdict = tune(
                self._source,
                {name: _numpy(feed) for name, feed in feeds.items()},
                self._tuning,
                weights=self._weights,
                settings=_carried(self._options),
                progress=self._say,
            )
        except FeedError as error:
            self._log.warning("auto cannot measure these feeds: %s", error)
            return None
        self._verdicts.append(verdict)
        return verdict

    def _say(self, done: int, total: int, what: str) -> None:
        if done == 0:
            self._log.warning(
                "auto: measuring %d ways to run this model, once; the verdict is kept", total - 1
            )
        self._log.info("auto: %d of %d: %s", done + 1, total, what)

    def _plan(self, candidate: Candidate) -> Any:
        name = str(candidate)
        if name not in self._plans:
            options = copy.copy(self._options)
            options.intra_op_num_threads = candidate.threads
            options.own_passes = candidate.own_passes
            named = (candidate.provider, candidate.provider_options)
            self._plans[name] = self._open(choose([named], None, options), options)
        return self._plans[name]


def _carried(options: SessionOptions) -> dict[str, Any]:
    """What of a session's options its trials must share."""
    plain = SessionOptions()
    pairs = [(name, getattr(options, name)) for name in _CARRIED]
    return {name: value for name, value in pairs if value != getattr(plain, name)}


def _numpy(feed: Any) -> Any:
    return to_numpy(feed) if hasattr(feed, "__dlpack__") else np.asarray(feed)


def _shape(feed: Any) -> tuple[int, ...]:
    shape = getattr(feed, "shape", None)
    return tuple(shape()) if callable(shape) else np.shape(feed)  # an OrtValue's is a method


def _distance(measured: Mapping[str, Sequence[int]], shapes: Shapes) -> float:
    """How many doublings lie between two kinds of shapes."""
    sizes = [(np.prod(measured.get(n, ())), np.prod(shape)) for n, shape in shapes.items()]
    return sum(abs(float(np.log2((a + 1) / (b + 1)))) for a, b in sizes)
