"""The engine of `providers="auto"`: measured on the first batch that a session trains on."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import FeedError, OnwardError
from onward.lazy import LazyModule
from onward.measure.tuning.common_results import Gather, alone
from onward.measure.tuning.trials import Candidate
from onward.measure.tuning.tune_training import training_engines, tune_training
from onward.measure.tuning.tuning_options import trial_settings, tuning_options
from onward.measure.tuning.tuning_result import CPU, TuningResult
from onward.programs.arrays import to_plain_array
from onward.programs.feed_rules import FeedRules
from onward.programs.program import Array
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.sessions.training.open_program import OpenedTraining, open_training
from onward.sessions.training.training_program import TrainingProgram

if TYPE_CHECKING:
    from onward.graph import node_args
else:  # it loads onnx-ir, which a device may not have
    node_args = LazyModule("onward.graph.node_args")

log = logging.getLogger("onward")


@dataclass(frozen=True)
class EngineOpener:
    """How a session opens its engine, in one process or with others that choose the same one."""

    program: TrainingProgram  # that is measured
    open: Callable[[Asked], OpenedTraining]
    gather: Gather = alone  # the values of all processes
    limit: float = math.inf  # seconds that the others wait for this process
    is_first: bool = True  # of the processes: the one that logs


def opener_of_one(program: TrainingProgram, options: SessionOptions) -> EngineOpener:
    """The opener of a session that trains in this process alone."""
    return EngineOpener(program, lambda providers: open_training(program, options, providers))


class AutoEngine:
    """The choice of an engine for a session, which holds the default engine until it is made.

    Processes that train together make it together: every method is called by all of them.
    """

    def __init__(self, opener: EngineOpener, options: SessionOptions, providers: Any) -> None:
        tuning = tuning_options(providers, options)
        tuning = replace(tuning, limit=min(tuning.limit, opener.limit))
        self._opener, self._options, self._tuning = opener, options, tuning
        self._program, self._gather = opener.program, opener.gather
        has_choice = self._program.neutral is not None and training_engines(tuning) != [CPU]
        self._has_choice = all(self._gather(has_choice))
        self.result: TuningResult | None = None  # None: nothing was measured

    def read_batch(self, feeds: Mapping[str, Any]) -> dict[str, Array] | None:
        """The feeds as arrays, refused where they do not fit; None if any process has no rows."""
        if not self._has_choice:
            return {}
        assert self._program.neutral is not None
        train = self._program.neutral.train
        rules = FeedRules(map(node_args.describe, train.graph.inputs), self._program.layout)
        rules.check_mapping(feeds)
        arrays = {
            name: to_plain_array(value, f"input {name!r}", FeedError)
            for name, value in feeds.items()
        }
        rules.check(arrays)
        rules.check_labels(arrays)
        return None if any(self._gather(rules.is_empty(arrays))) else arrays

    def choose(
        self, batch: Mapping[str, Array], write_state: Callable[[Path], None], current: list[str]
    ) -> OpenedTraining | None:
        """Open the fastest engine for a batch; None: it is the `current` one, or none was found.

        `write_state` writes a checkpoint of the session, which trials start from.
        """
        if not self._has_choice:
            return None
        for fresh in (self._tuning.fresh, True):  # a cached choice may not open any longer
            candidate = self._measure(batch, write_state, fresh=fresh)
            if candidate is None or [candidate.provider] == current:
                return None
            named = (candidate.provider, candidate.provider_options)
            try:
                return self._opener.open([named])
            except OnwardError as error:
                first = str(error).partition("\n")[0]
                log.warning("auto: %s does not open here: %s", candidate, first)
        return None

    def _measure(
        self, batch: Mapping[str, Array], write_state: Callable[[Path], None], *, fresh: bool
    ) -> Candidate | None:
        """The fastest engine that trains as onnxruntime does; None if all of them failed."""
        assert self._program.neutral is not None
        try:
            self.result = tune_training(
                self._program.neutral,
                batch,
                write_state,
                replace(self._tuning, fresh=fresh),
                settings=trial_settings(self._options),
                progress=self._log_progress,
                gather=self._gather,
            )
        except (OnwardError, OSError) as error:  # the disk is full, for example
            log.warning("auto: engines cannot be measured: %s", str(error).partition("\n")[0])
            return None
        best = self.result.rows[0]
        for row in self.result.rows:
            log.info("auto: %s: %s", row.candidate, row.error or f"{row.median * 1000:.3g} ms")
        if best.error:
            log.warning("auto: no engine could be measured (%s): %s", best.candidate, best.error)
            return None
        return best.candidate

    def _log_progress(self, done: int, total: int, what: str) -> None:
        limit = self._tuning.limit
        if done == 0 and self._opener.is_first:
            log.warning(
                "auto: measuring %d engines on the first batch, each in at most %g s; "
                "the result is cached",
                *(total - 1, limit),
            )
        log.info("auto: %d of %d: %s", done + 1, total, what)
