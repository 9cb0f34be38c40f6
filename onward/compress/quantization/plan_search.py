"""Search for the plan that is as small and fast as possible, within the budget of quality."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.quality import Quality
from onward.compress.quantization.faster_kinds import choose_kinds
from onward.compress.quantization.fusion_check import drop_unfused
from onward.compress.quantization.lossy_groups import RatedPlan, undo_lossy
from onward.compress.quantization.plan import Plan, Quantizer
from onward.compress.quantization.quantize_settings import QuantizeSettings
from onward.compress.quantization.slow_groups import undo_slow
from onward.compress.quantization.subject import Subject, size_of
from onward.compress.timing import time_in_turns

SLOWEST = 0.97  # times as fast as float that a result must be
_FASTER, _SMALLER = 1.03, 0.98  # what counts as a gain
_SECONDS = 0.6  # of the last measurement of a model
_SURE = (0.9, 1.1)  # a ratio between these is measured again, for longer

Tuner = Callable[[ir.Model], ir.Model]  # a quantized model to one with learned rounding


@dataclass(frozen=True)
class Found:
    """The outcome of a search.

    Attributes:
        plan, model, quality: the best plan, its model, and how good it is (None: not measured)
        seconds: the median times of the float model and of this one; None: not measured
        bytes: the size of its file
        undone: why nodes were taken out of the quantizer's plan
        is_within: whether it keeps the budget
        tuned: whether its rounding was learned
    """

    plan: Plan
    model: ir.Model
    bytes: int
    quality: Quality | None = None
    seconds: tuple[float, float] | None = None
    undone: dict[str, str] = field(default_factory=dict)
    is_within: bool = True
    tuned: bool = False

    @property
    def speedup(self) -> float | None:
        return None if self.seconds is None else self.seconds[0] / self.seconds[1]

    def helps(self, subject: Subject, settings: QuantizeSettings) -> bool:
        """Whether it is smaller or faster, not slower, and within the budget."""
        if not self.plan or not (self.is_within or settings.is_sized):
            return False
        if settings.size is not None and self.bytes > settings.size:
            return False
        smaller, speedup = self.bytes <= _SMALLER * subject.bytes, self.speedup
        if speedup is None or settings.is_for_size:
            return smaller
        return speedup >= _FASTER or (smaller and speedup >= SLOWEST)


def search_plan(
    subject: Subject,
    quantizer: Quantizer,
    settings: QuantizeSettings,
    tune: Tuner | None,
    progress: Progress,
) -> Found:
    """The best plan of a quantizer.

    What the engine does not fuse and what is slower is undone first; then, if the whole loses more
    than the budget, its rounding is learned (with `tune`), or its most costly nodes are undone.
    """
    plan, undone = quantizer.plan, dict[str, str]()
    if not plan or subject.is_large:
        model = quantizer.write(plan)
        return Found(plan, model, size_of(model))
    subject.judge  # noqa: B018  a metric that fails should do so before the search
    if settings.is_for_size:
        model = quantizer.write(plan)
    else:
        progress("reading the engine's optimised graph", 0, None)
        plan, model = drop_unfused(quantizer, plan, undone, subject.provider)
        first = plan
        plan = choose_kinds(quantizer, plan, subject.feeds, subject.providers, progress)
        model = model if plan == first else quantizer.write(plan)
        faster = undo_slow(quantizer, plan, subject.feeds, subject.providers, undone, progress)
        plan, model = (plan, model) if faster == plan else (faster, quantizer.write(faster))
    if not plan:
        return Found(plan, model, size_of(model), undone=undone)
    progress("comparing outputs with float", 0, None)
    full = RatedPlan(plan, model, subject.judge.rate(model))
    found, tuned = _keep_budget(subject, quantizer, settings, full, undone, tune, progress)
    result = Found(found.plan, found.model, size_of(found.model), found.quality, undone=undone)
    result = replace(result, is_within=subject.judge.is_within(found.quality, settings.drop))
    result = replace(result, tuned=tuned)
    if not found.plan:
        return _best_over_budget(subject, full, undone)
    progress("timing the result against float", 0, None)
    result = replace(result, seconds=time_against_float(subject, result.model))
    if found.plan != full.plan and not result.helps(subject, settings):
        return _best_over_budget(subject, full, undone)
    return result


def _keep_budget(
    subject: Subject,
    quantizer: Quantizer,
    settings: QuantizeSettings,
    full: RatedPlan,
    undone: dict[str, str],
    tune: Tuner | None,
    progress: Progress,
) -> tuple[RatedPlan, bool]:
    """The plan within the budget, and whether its rounding was learned."""
    judge, best, tuned = subject.judge, full, False
    if tune is not None and full.plan:
        model = tune(full.model)
        rated = RatedPlan(full.plan, model, judge.rate(model))
        tuned = rated.quality.error < full.quality.error
        best = rated if tuned else full
    if judge.is_within(best.quality, settings.drop) or settings.is_sized:
        return best, tuned
    judges = (judge, subject.quick_judge)
    feeds = None if settings.is_for_size else subject.feeds
    found = undo_lossy(quantizer, full, judges, settings.drop, undone, progress, feeds)
    return found, False


def _best_over_budget(subject: Subject, full: RatedPlan, undone: dict[str, str]) -> Found:
    """The whole plan, which loses too much, where undoing enough of it leaves no gain."""
    seconds = time_against_float(subject, full.model) if full.plan else None
    size = size_of(full.model)
    return Found(full.plan, full.model, size, full.quality, seconds, undone, is_within=False)


def time_against_float(subject: Subject, model: ir.Model) -> tuple[float, float]:
    """The seconds of a run of the float model and of this one, freshly measured."""
    models = {"float": subject.source, "quantized": model}
    times = time_in_turns(models, subject.feeds, providers=subject.providers, seconds=_SECONDS)
    if _SURE[0] < times["float"] / times["quantized"] < _SURE[1]:
        times = time_in_turns(
            models, subject.feeds, providers=subject.providers, seconds=2 * _SECONDS
        )
    return times["float"], times["quantized"]
