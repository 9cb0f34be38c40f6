"""The plan of `providers="auto"`: measure which way to run is the fastest for the shapes fed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import FeedError
from onward.graph.random_feeds import random_feeds
from onward.measure.tuning.trials import Candidate
from onward.measure.tuning.tune import bucket, tune
from onward.measure.tuning.tuning_options import TuningOptions, trial_settings
from onward.measure.tuning.tuning_result import TuningResult
from onward.providers.choose import choose
from onward.providers.options import SessionOptions
from onward.providers.ort.ort_values import to_numpy
from onward.providers.session_log import log_of
from onward.sessions.model_reader import ModelReader
from onward.sessions.open_plan import open_plan
from onward.sessions.plan import Plan

if TYPE_CHECKING:
    from onward.graph.files import Source

MAX_MEASURED = 4  # kinds of shapes that one session measures; others use the nearest result

Shapes = dict[str, tuple[int, ...]]


class AutoPlan:
    """A model that runs in the way that was measured to be the fastest, for each kind of shapes."""

    def __init__(
        self,
        source: Source,
        options: SessionOptions,
        tuning: TuningOptions,
        weights: Any,
    ) -> None:
        self._source, self._options, self._weights = source, options, weights
        reader = ModelReader(source, options, weights)
        self._choosing = threading.RLock()  # one thread measures, the others wait for its result
        self._tuning, self._log = tuning, log_of(options)
        self._plans: dict[str, Plan] = {}  # by the candidate's name
        self._chosen: dict[tuple[Any, ...], Plan] = {}  # by the feeds' shapes
        self._results: list[TuningResult] = []
        self._default = self._current = open_plan(reader, choose(None, None, options), options)
        self._inputs = self._default.get_inputs()
        self._is_fixed = False  # whether every shape is fixed, and one plan serves all runs
        if all(isinstance(size, int) for arg in self._inputs for size in arg.shape or ()):
            self._choose_once(reader)

    @property
    def results(self) -> list[TuningResult]:
        """What was measured or read from the cache, one result for each kind of shapes."""
        return list(self._results)

    native = None  # the plan changes with the shapes

    # -- the current plan's ----------------------------------------------------------------------

    def get_inputs(self) -> Sequence[Any]:
        return self._current.get_inputs()

    def get_outputs(self) -> Sequence[Any]:
        return self._current.get_outputs()

    def get_overridable_initializers(self) -> Sequence[Any]:
        return self._current.get_overridable_initializers()

    def get_modelmeta(self) -> Any:
        return self._current.get_modelmeta()

    def get_providers(self) -> list[str]:
        return self._current.get_providers()

    def get_provider_options(self) -> Mapping[str, dict[str, str]]:
        return self._current.get_provider_options()

    def end_profiling(self) -> str:
        return self._current.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        return self._current.get_profiling_start_time_ns()

    def ensure_ready(self) -> None:
        self._current.ensure_ready()

    def close(self) -> None:
        """Close every plan that was opened."""
        for plan in {id(plan): plan for plan in (self._default, *self._plans.values())}.values():
            plan.close()

    # -- running -------------------------------------------------------------------------------

    def run(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        return self._plan_for(feeds).run(names, feeds, run_options)

    def run_async(
        self, names: Any, feeds: Any, callback: Any, user_data: Any, run_options: Any
    ) -> None:
        self._plan_for(feeds).run_async(names, feeds, callback, user_data, run_options)

    def run_with_dlpack(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        return self._plan_for(feeds).run_with_dlpack(names, feeds, run_options)

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> Sequence[Any]:
        shapes = {name: tuple(value.shape()) for name, value in feeds.items()}
        return self._plan_at(shapes, feeds).run_with_ort_values(names, feeds, run_options)

    def io_binding(self) -> Any:
        return self._binding_plan().io_binding()

    def run_with_iobinding(self, binding: Any, run_options: Any) -> None:
        self._binding_plan().run_with_iobinding(binding, run_options)

    def _binding_plan(self) -> Plan:
        """The plan of all bindings, which belong to one plan: the default while shapes vary."""
        return self._current if self._is_fixed else self._default

    def _plan_for(self, feeds: Mapping[str, Any]) -> Plan:
        if self._is_fixed:
            return self._current
        return self._plan_at({name: _shape(feed) for name, feed in feeds.items()}, feeds)

    def _plan_at(self, shapes: Shapes, feeds: Mapping[str, Any]) -> Plan:
        key = tuple(sorted(shapes.items()))
        plan = self._chosen.get(key)
        if plan is None:
            with self._choosing:
                plan = self._chosen.get(key) or self._choose(shapes, feeds, None)
                self._chosen[key] = self._current = plan
        return plan

    def _choose_once(self, reader: ModelReader) -> None:
        """Choose now, with random feeds: every size is fixed."""
        try:
            feeds = random_feeds(self._inputs)
        except FeedError:
            return  # sequences: choose at the first run
        shapes = {n: f.shape for n, f in feeds.items()}
        self._current = self._choose(shapes, feeds, reader)
        self._is_fixed = True

    def _choose(self, shapes: Shapes, feeds: Mapping[str, Any], reader: ModelReader | None) -> Plan:
        result = self._result(shapes, feeds)
        if result is None:
            return self._default
        candidate = result.best(shapes)
        self._log.info("auto: %s", candidate)
        return self._plan(candidate, reader)

    def _result(self, shapes: Shapes, feeds: Mapping[str, Any]) -> TuningResult | None:
        """The result for shapes like these: known, measured now, or that of the nearest."""
        kind = {name: bucket(shape) for name, shape in shapes.items()}
        for result in self._results:
            if kind == {name: bucket(shape) for name, shape in result.shapes.items()}:
                return result
        if len(self._results) >= MAX_MEASURED:
            return min(self._results, key=lambda result: _distance(result.shapes, shapes))
        try:
            result = tune(
                self._source,
                {name: _numpy(feed) for name, feed in feeds.items()},
                self._tuning,
                weights=self._weights,
                settings=trial_settings(self._options),
                progress=self._log_progress,
            )
        except FeedError as error:
            self._log.warning("auto cannot measure these feeds: %s", error)
            return None
        self._results.append(result)
        return result

    def _log_progress(self, done: int, total: int, what: str) -> None:
        if done == 0:
            self._log.warning(
                "auto: measuring %d ways to run this model; the result is cached", total - 1
            )
        self._log.info("auto: %d of %d: %s", done + 1, total, what)

    def _plan(self, candidate: Candidate, reader: ModelReader | None) -> Plan:
        name = str(candidate)
        if name not in self._plans:
            options = copy.copy(self._options)
            options.intra_op_num_threads = candidate.threads
            options.own_passes = candidate.own_passes
            named = (candidate.provider, candidate.provider_options)
            reader = reader or ModelReader(self._source, self._options, self._weights)
            self._plans[name] = open_plan(reader, choose([named], None, options), options)
        return self._plans[name]


def _numpy(feed: Any) -> Any:
    return to_numpy(feed) if hasattr(feed, "__dlpack__") else np.asarray(feed)


def _shape(feed: Any) -> tuple[int, ...]:
    shape = getattr(feed, "shape", None)
    return tuple(shape()) if callable(shape) else np.shape(feed)  # an OrtValue's is a method


def _distance(measured: Mapping[str, Sequence[int]], shapes: Shapes) -> float:
    """The number of doublings between two kinds of shapes."""
    sizes = [(np.prod(measured.get(n, ())), np.prod(shape)) for n, shape in shapes.items()]
    return sum(abs(float(np.log2((a + 1) / (b + 1)))) for a, b in sizes)
