"""Search for the plan that is as small and fast as possible, within the budget of quality."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.quality import Quality
from onward.compress.quantization.faster_kinds import choose_kinds
from onward.compress.quantization.fusion_check import drop_unfused, is_widened_at_load
from onward.compress.quantization.lossy_groups import RatedPlan, undo_lossy
from onward.compress.quantization.quantization_plan import Plan, Quantizer
from onward.compress.quantization.quantize_settings import QuantizeSettings
from onward.compress.quantization.slow_groups import undo_slow
from onward.compress.quantization.subject import Subject
from onward.compress.timing import time_in_turns
from onward.graph.files import saved_bytes
from onward.lazy import LazyModule

if TYPE_CHECKING:
    from onward.compress.learned_rounding import carry_over
    from onward.compress.learned_rounding.tune_rounding import Learned
else:
    carry_over = LazyModule("onward.compress.learned_rounding.carry_over")

SLOWEST = 0.97  # times as fast as float that a result must be
_FASTER, _SMALLER = 1.03, 0.98  # what counts as a gain
_SECONDS = 0.6  # of the last measurement of a model
_SURE = (0.9, 1.1)  # a ratio between these is measured again, for longer

Tuner = Callable[[ir.Model], "Learned"]  # a quantized model to one with learned rounding


@dataclass(frozen=True)
class PlanSearchResult:
    """The outcome of a search.

    Attributes:
        plan, model, quality: the best plan, its model, and how good it is (None: not measured)
        seconds: the median times of the float model and of this one; None: not measured
        bytes: the size of its file
        undone: why nodes were taken out of the quantizer's plan
        is_within: whether it keeps the budget
        tuned: whether its rounding was learned
        notes: sentences about learning the rounding
    """

    plan: Plan
    model: ir.Model
    bytes: int
    quality: Quality | None = None
    seconds: tuple[float, float] | None = None
    undone: dict[str, str] = field(default_factory=dict)
    is_within: bool = True
    tuned: bool = False
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float | None:
        return None if self.seconds is None else self.seconds[0] / self.seconds[1]

    def helps(self, subject: Subject, settings: QuantizeSettings) -> bool:
        """Whether it is smaller or faster, not slower, and within the budget."""
        if not self.plan or not (self.is_within or settings.is_sized):
            return False
        if self.quality is not None and self.quality.is_nan:
            return False  # not even if bits were asked for
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
) -> PlanSearchResult:
    """The best plan of a quantizer.

    What the engine does not fuse and what is slower is undone first; then the rounding of the whole
    is learned (with `tune`); if it loses more than the budget, its most costly nodes are undone.
    """
    plan, undone = quantizer.plan, dict[str, str]()
    if not plan or subject.is_large:
        model = quantizer.write(plan)
        return PlanSearchResult(plan, model, saved_bytes(model))
    subject.judge  # noqa: B018  a metric that fails should do so before the search
    if settings.is_for_size:
        model = quantizer.write(plan)
    else:
        progress("reading the engine's optimised graph", 0, None)
        plan, model = drop_unfused(quantizer, plan, undone, subject.provider)
        if not is_widened_at_load(model, plan, subject.provider):
            first, run_by = plan, (subject.feeds, subject.providers)
            plan = choose_kinds(quantizer, plan, *run_by, progress)
            plan = undo_slow(quantizer, plan, *run_by, undone, progress)
            model = model if plan == first else quantizer.write(plan)
    if not plan:
        return PlanSearchResult(plan, model, saved_bytes(model), undone=undone)
    progress("comparing outputs with float", 0, None)
    full = RatedPlan(plan, model, subject.judge.rate(model))
    whole, notes, tuned = full, tuple[str, ...](), False
    if tune is not None:
        learned = tune(model)
        notes = (learned.note,)
        if learned.helped:
            whole = RatedPlan(plan, learned.model, subject.judge.rate(learned.model))
    found = _keep_budget(subject, quantizer, settings, (full, whole), undone, progress)
    lost = tuple[str, ...]()
    if whole is not full:
        kept, total = carry_over.count_learned(whole.model, found.model)
        lost = _name_lost_rounding(found is full, kept, total, settings.drop)
        tuned = found is not full and kept > 0
    if found.plan:
        progress("timing the result against float", 0, None)
        result = PlanSearchResult(
            found.plan,
            found.model,
            saved_bytes(found.model),
            found.quality,
            time_against_float(subject, found.model),
            undone,
            is_within=subject.judge.is_within(found.quality, settings.drop),
            tuned=tuned,
            notes=(*notes, *lost),
        )
        if found.plan == plan or result.helps(subject, settings):
            return result
    return replace(_best_over_budget(subject, whole, undone), tuned=whole is not full, notes=notes)


def _keep_budget(
    subject: Subject,
    quantizer: Quantizer,
    settings: QuantizeSettings,
    rated: tuple[RatedPlan, RatedPlan],
    undone: dict[str, str],
    progress: Progress,
) -> RatedPlan:
    """The plan within the budget.

    Args:
        rated: the whole plan as it was rounded, and with learned rounding (or the same again)
    """
    full, whole = rated
    for each in (whole, full):
        if subject.judge.is_within(each.quality, settings.drop):
            return each
    if settings.is_sized:
        return whole
    is_plain = whole is full
    writer = quantizer if is_plain else carry_over.LearnedWeights(quantizer, whole.model)
    judges = (subject.judge, subject.quick_judge)
    feeds = None if settings.is_for_size else subject.feeds
    return undo_lossy(writer, whole, judges, settings.drop, undone, progress, feeds)


def _name_lost_rounding(is_before: bool, kept: int, total: int, drop: float) -> tuple[str, ...]:
    """A note if weights do not have the rounding that was learned."""
    if is_before:
        return (
            "the model before tuning is kept: on the data of the budget, it loses no more than "
            f"{drop:.2%} (drop), and the tuned one does",
        )
    if kept == total:
        return ()
    return (
        f"{kept} of {total} weights have the rounding that was learned: to lose no more than "
        f"{drop:.2%} (drop), the others got more bits or stayed float",
    )


def _best_over_budget(
    subject: Subject, full: RatedPlan, undone: dict[str, str]
) -> PlanSearchResult:
    """The whole plan, which loses too much, where undoing enough of it leaves no gain."""
    seconds = time_against_float(subject, full.model) if full.plan else None
    size = saved_bytes(full.model)
    left = {name: reason for name, reason in undone.items() if name not in full.plan}
    return PlanSearchResult(
        full.plan, full.model, size, full.quality, seconds, left, is_within=False
    )


def time_against_float(subject: Subject, model: ir.Model) -> tuple[float, float]:
    """The seconds of a run of the float model and of this one, freshly measured."""
    models = {"float": subject.source, "quantized": model}
    times = time_in_turns(models, subject.feeds, providers=subject.providers, seconds=_SECONDS)
    if _SURE[0] < times["float"] / times["quantized"] < _SURE[1]:
        times = time_in_turns(
            models, subject.feeds, providers=subject.providers, seconds=2 * _SECONDS
        )
    return times["float"], times["quantized"]
