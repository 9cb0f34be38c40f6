"""Take the nodes out of a plan that cost the most quality, until the rest is within the budget.

Each group is quantized alone to see what it costs; then the search finds how many of the worst
must be undone. Weights of few bits get more bits first, and stay float only if 8 do not help.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.quality import Judge, Quality
from onward.compress.quantization.node_clusters import Group, elements_of, make_groups
from onward.compress.quantization.plan import NodeFormat, Plan, Quantizer
from onward.graph.files import weight_bytes

_GROUPS = 40  # that are tried alone; neighbours are joined if there are more
_GROUPS_OF_LARGE = 12
_LARGE = 200 << 20  # bytes of weights

TOO_LOSSY = "quantized, it costs too much quality"


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
) -> RatedPlan:
    """The plan within the budget with the fewest nodes taken out; an empty one if need be.

    Args:
        quantizer: writes the plans
        start: the whole plan, which loses too much
        judges: one that rates plans on all data, and one that rates groups on a part of it
        drop: the share of quality that may be lost
        undone: receives the reason of each node that is taken out
        progress: gets each step
    """
    judge, quick = judges
    at_most = _GROUPS_OF_LARGE if weight_bytes(quantizer.model) > _LARGE else _GROUPS
    groups = make_groups(quantizer, start.plan, at_most)
    order = _worst_first(quantizer, start.plan, groups, quick, progress)

    def rate(plan: Plan) -> RatedPlan:
        model = quantizer.write(plan)
        return RatedPlan(plan, model, judge.rate(model))

    def is_good(rated: RatedPlan) -> bool:
        return judge.is_within(rated.quality, drop)

    plan, best = start.plan, start
    while plan and not is_good(best):
        best = _soften_fewest(plan, order, rate, is_good, progress)
        plan = best.plan
    undone.update({name: TOO_LOSSY for name in start.plan if name not in plan})
    return best


def _worst_first(
    quantizer: Quantizer, plan: Plan, groups: Sequence[Group], quick: Judge, progress: Progress
) -> list[Group]:
    """Groups in the order of what they cost alone, for each weight that they make smaller."""
    total = max(elements_of(quantizer.model, plan), 1)
    costs = []
    for number, group in enumerate(groups):
        progress("measuring what each group of nodes costs", number, len(groups))
        alone = quantizer.write({name: plan[name] for name in group})
        share = elements_of(quantizer.model, group) / total
        costs.append(_loss(quick.rate(alone)) / (share + 1 / len(groups)))
    order = sorted(range(len(groups)), key=lambda number: -costs[number])
    return [groups[number] for number in order]


def _loss(quality: Quality) -> float:
    """What was lost, finer than a metric shows it on little data."""
    loss = 1 - quality.similarity + 0.01 * quality.error
    return loss if loss == loss else float("inf")


def _soften_fewest(
    plan: Plan,
    order: Sequence[Group],
    rate: Callable[[Plan], RatedPlan],
    is_good: Callable[[RatedPlan], bool],
    progress: Progress,
) -> RatedPlan:
    """The plan with the fewest of the worst groups softened that is good; else with all of them."""
    tried: dict[int, RatedPlan] = {}

    def works(count: int) -> bool:
        if count not in tried:
            progress(f"trying without the {count} most costly groups", len(tried), None)
            tried[count] = rate(_soften(plan, order[:count]))
        return is_good(tried[count])

    low, high = 0, 1  # `low` groups are too few
    while high < len(order) and not works(high):
        low, high = high, 2 * high
    high = min(high, len(order))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
    works(high)
    return tried[high]


def _soften(plan: Plan, groups: Sequence[Group]) -> Plan:
    """A plan in which these groups have more bits, or are taken out."""
    changed = {name for group in groups for name in group}
    softened = {}
    for name, form in plan.items():
        softer = _softer(form) if name in changed else form
        if softer is not None:
            softened[name] = softer
    return softened


def _softer(form: NodeFormat) -> NodeFormat | None:
    if form.kind == "weights" and form.bits < 8:
        return replace(form, bits=2 * form.bits)
    return None
