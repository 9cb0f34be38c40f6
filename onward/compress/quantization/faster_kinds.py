"""Choose between measured ranges and ranges of each run, for the nodes that have both, by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from onward.compress.progress_steps import Progress
from onward.compress.quantization.node_clusters import make_clusters
from onward.compress.quantization.quantization_plan import Plan, Quantizer
from onward.compress.timing import time_in_turns
from onward.graph.files import weight_bytes

_CLUSTERS = 8  # variants that are timed
_GAIN = 0.01  # a variant must be this much faster: less is noise
_LARGE = 256 << 20  # bytes of weights; the variants of such a model would not fit into memory
_SECONDS = 0.25  # of measuring one variant


@runtime_checkable
class OffersKinds(Protocol):
    """A quantizer that can write nodes in another kind of format."""

    def other_kinds(self, plan: Plan) -> Plan:
        """The other format of each node of a plan that has one."""
        ...


def choose_kinds(
    quantizer: Quantizer,
    plan: Plan,
    feeds: Mapping[str, Any],
    providers: Sequence[str],
    progress: Progress,
) -> Plan:
    """The plan with the other format for each cluster of nodes that is faster with it."""
    others = quantizer.other_kinds(plan) if isinstance(quantizer, OffersKinds) else {}
    if not others or weight_bytes(quantizer.model) > _LARGE:
        return plan
    progress("timing measured ranges against ranges of each run", 0, None)
    clusters = make_clusters(quantizer, plan, _CLUSTERS)
    changes = [{name: others[name] for name in each.names if name in others} for each in clusters]
    changes = [each for each in changes if each]
    plans: dict[str, Plan] = {str(n): {**plan, **each} for n, each in enumerate(changes)}
    plans |= {"now": plan, "all": {**plan, **others}}
    times = _time(quantizer, plans, feeds, providers, _SECONDS)
    faster = dict(plan)
    for number, each in enumerate(changes):
        if times[str(number)] < (1 - _GAIN) * times["now"]:
            faster |= each
    last = {"now": plan, "all": plans["all"], "faster": faster}
    times = _time(quantizer, last, feeds, providers, 2 * _SECONDS)
    best = min(times, key=lambda name: times[name])
    return last[best] if times[best] < (1 - 2 * _GAIN) * times["now"] else plan


def _time(
    quantizer: Quantizer,
    plans: Mapping[str, Plan],
    feeds: Mapping[str, Any],
    providers: Sequence[str],
    seconds: float,
) -> dict[str, float]:
    models = {name: quantizer.write(plan) for name, plan in plans.items()}
    return time_in_turns(models, feeds, providers=providers, seconds=seconds)
