"""Undo the quantization that loses the most quality, until the model is within the budget.

Each group of nodes is quantized alone to measure what it loses; then the search finds how many of
the worst must be undone. Weights of few bits get more bits first, and stay float only if 8 bits do
not help.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.quality import Judge, Quality
from onward.compress.quantization.node_clusters import Group, elements_of, make_groups
from onward.compress.quantization.quantization_plan import NodeFormat, Plan, Quantizer
from onward.graph.costs.node_costs import model_costs
from onward.graph.files import weight_bytes

_GROUPS = 40  # that are tried alone; neighbours are joined if there are more
_GROUPS_OF_LARGE = 12
_LARGE = 200 << 20  # bytes of weights

TOO_LOSSY = "quantizing it loses too much quality"


@dataclass(frozen=True)
class RatedPlan:
    """A plan, its model and how good it is."""

    plan: Plan
    model: ir.Model
    quality: Quality


def undo_lossy(
    quantizer: Quantizer,
    start: RatedPlan,
    judges: tuple[Judge, Judge],
    drop: float,
    undone: MutableMapping[str, str],
    progress: Progress,
    feeds: Mapping[str, Any] | None = None,
) -> RatedPlan:
    """The plan within the budget with the fewest nodes taken out; an empty one if need be.

    Args:
        quantizer: writes the plans
        start: the whole plan, which loses too much
        judges: one that rates plans on all data, and one that rates groups on a part of it
        drop: the share of quality that may be lost
        undone: is filled with the name of each node that stays float, and the reason
        progress: gets each step
        feeds: what the model is timed with. If given, int8 groups are weighted by their FLOPs, as
            int8 is used for speed; else, and if only weights are quantized, by their size
    """
    judge, quick = judges
    at_most = _GROUPS_OF_LARGE if weight_bytes(quantizer.model) > _LARGE else _GROUPS
    groups = make_groups(quantizer, start.plan, at_most)
    shares = _shares(quantizer.model, start.plan, groups, feeds)
    costs = _measure_costs(quantizer, start.plan, groups, shares, quick, progress)
    steps = _order_steps(start.plan, groups, costs)

    def rate(count: int) -> RatedPlan:
        progress(f"trying with {count} of {len(steps)} steps undone", count, len(steps))
        plan = _take_steps(start.plan, steps[:count])
        model = quantizer.write(plan)
        return RatedPlan(plan, model, judge.rate(model))

    best = _take_fewest(len(steps), rate, lambda rated: judge.is_within(rated.quality, drop))
    undone.update({name: TOO_LOSSY for name in start.plan if name not in best.plan})
    return best


def _shares(
    model: ir.Model, plan: Plan, groups: Sequence[Group], feeds: Mapping[str, Any] | None
) -> list[float]:
    """The share of each group: of the FLOPs if int8 is used for speed, else of the weights."""
    if feeds is None or all(form.kind == "weights" for form in plan.values()):
        total = max(elements_of(model, plan), 1)
        return [elements_of(model, group) / total for group in groups]
    sizes = {f"{n}:{k}": size for n, feed in feeds.items() for k, size in enumerate(np.shape(feed))}
    work = {each.name: each.cost.flops for each in model_costs(model, sizes).nodes}
    flops = [sum(work.get(name, 0.0) for name in group) for group in groups]
    return [each / max(sum(flops), 1.0) for each in flops]


def _measure_costs(
    quantizer: Quantizer,
    plan: Plan,
    groups: Sequence[Group],
    shares: Sequence[float],
    quick: Judge,
    progress: Progress,
) -> list[float]:
    """The quality that is lost if only one group is quantized, divided by the group's share."""
    costs = []
    for number, (group, share) in enumerate(zip(groups, shares, strict=True)):
        progress("measuring what each group of nodes loses", number, len(groups))
        alone = quantizer.write({name: plan[name] for name in group})
        costs.append(_loss(quick.rate(alone)) / (share + 1 / len(groups)))
    return costs


def _loss(quality: Quality) -> float:
    """A continuous loss of quality: a metric changes too coarsely on few rows."""
    loss = 1 - quality.similarity + 0.01 * quality.error
    return loss if math.isfinite(loss) else math.inf


def _order_steps(plan: Plan, groups: Sequence[Group], costs: Sequence[float]) -> list[Group]:
    """The groups in the order of undoing; one of few bits comes several times.

    A step doubles the bits of weights, which is expected to divide their cost by 4 ** bits; the
    last one takes a group out.
    """
    waiting = [(-cost, place) for place, cost in enumerate(costs)]
    heapq.heapify(waiting)
    formats = [plan[group[0]] for group in groups]
    steps = []
    while waiting:
        cost, place = heapq.heappop(waiting)
        steps.append(groups[place])
        softer = _step_back(formats[place])
        if softer is not None:
            heapq.heappush(waiting, (cost / 4 ** formats[place].bits, place))
            formats[place] = softer
    return steps


def _take_fewest(
    most: int, rate: Callable[[int], RatedPlan], is_good: Callable[[RatedPlan], bool]
) -> RatedPlan:
    """The plan with the fewest steps back that is good: double their number, then bisect."""
    low, high, best = 0, 1, rate(1)
    while high < most and not is_good(best):
        low, high = high, min(2 * high, most)
        best = rate(high)
    while high - low > 1:
        middle = (low + high) // 2
        rated = rate(middle)
        if is_good(rated):
            high, best = middle, rated
        else:
            low = middle
    return best


def _take_steps(plan: Plan, steps: Sequence[Group]) -> Plan:
    """A plan in which the groups of these steps have more bits, or are taken out."""
    changed: dict[str, NodeFormat | None] = dict(plan)
    for group in steps:
        for name in group:
            form = changed[name]
            changed[name] = None if form is None else _step_back(form)
    return {name: form for name, form in changed.items() if form is not None}


def _step_back(form: NodeFormat) -> NodeFormat | None:
    if form.kind == "weights" and form.bits < 8:
        return replace(form, bits=2 * form.bits)
    return None
