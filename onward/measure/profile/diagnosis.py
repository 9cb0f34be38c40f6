"""Diagnosis: one sentence on what bounds a model, and one on what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onward.formatting import percent, show_rate
from onward.measure.profile.bottlenecks import LOW, Analysis, Bound, Figures
from onward.measure.profile.roofline import Ceilings
from onward.measure.profile.timed_runs import Measurement
from onward.measure.profile.trace import PART

NAMES: dict[Bound, str] = {
    "compute": "compute",
    "memory": "memory bandwidth",
    "io": "I/O",
    "waiting": "waiting",
}


@dataclass(frozen=True)
class Diagnosis:
    """What bounds a model."""

    bound: Bound
    sentence: str
    advice: str

    def __str__(self) -> str:
        return self.sentence


def diagnose(
    analysis: Analysis, measured: Measurement, ceilings: Mapping[str, Ceilings]
) -> Diagnosis:
    """Describe the kind of bound with the largest share of the run."""
    bound = max(analysis.shares, key=lambda kind: analysis.shares[kind])
    share = f"{percent(analysis.shares[bound])} of the time"
    if bound == "io":
        return Diagnosis(bound, _io(share, analysis, measured), _IO_ADVICE)
    if bound == "waiting":
        return Diagnosis(bound, _waiting(share, analysis), _WAITING_ADVICE)
    nodes = [node for node in analysis.nodes if node.bound == bound]
    time = sum(node.time for node in nodes)
    main = max(nodes, key=lambda node: node.time).provider
    reached = sum(node.reached * node.time for node in nodes) / time
    if bound == "compute":
        rate = f"do {show_rate(sum(node.flops for node in nodes) / time, 'FLOP/s')}"
        ceiling = show_rate(ceilings[main].flops_per_second("float32"), "FLOP/s")
    else:
        rate = f"move {show_rate(sum(node.bytes for node in nodes) / time, 'B/s')}"
        ceiling = show_rate(ceilings[main].bytes_per_second, "B/s")
    sentence = (
        f"Bound by {NAMES[bound]}: {share} is in nodes that {rate}, {percent(reached)} of what "
        f"this machine can ({ceiling}); most of it in {_main_operators(nodes)}."
    )
    return Diagnosis(bound, sentence, _node_advice(bound, reached))


def _main_operators(nodes: list[Figures]) -> str:
    """The operators with most of these nodes' time: "12 Relu and Add nodes"."""
    spent: dict[str, float] = {}
    for node in nodes:
        spent[node.operator] = spent.get(node.operator, 0.0) + node.time
    first = sorted(spent, key=lambda name: -spent[name])
    several = len(first) > 1 and spent[first[0]] < 0.5 * sum(spent.values())
    names = first[:2] if several else first[:1]
    count = sum(node.operator in names for node in nodes)
    what = " and ".join(names) + ("" if names == [PART] else " node")
    return f"{count} {what}{'s' * (count != 1)}"


def _io(share: str, analysis: Analysis, measured: Measurement) -> str:
    fed = sum(getattr(feed, "nbytes", 0) for feed in measured.feeds.values())
    return (
        f"Bound by I/O: {share} goes into handing tensors over, outside any node: "
        f"{show_rate(fed, 'B')} fed, {show_rate(measured.timing.given, 'B')} given, "
        f"{analysis.outside * 1e3:.3g} ms a run."
    )


def _waiting(share: str, analysis: Analysis) -> str:
    small = sum(node.calls for node in analysis.nodes if node.bound == "waiting")
    words = {
        "gaps between nodes": "in gaps between nodes",
        "dispatch": f"in dispatching {small:.0f} small nodes",
        "threads": "in threads that wait for each other",
    }
    largest = sorted(analysis.waiting.items(), key=lambda pair: -pair[1])
    parts = [f"{percent(part)} {words[name]}" for name, part in largest if part >= 0.005]
    return f"Bound by waiting: {share} is not the work of a node: {', '.join(parts)}."


_IO_ADVICE = (
    "Bind inputs and outputs (io_binding), feed tensors of the declared types, or keep the model "
    "on one provider so that nothing is carried between engines."
)
_WAITING_ADVICE = (
    "Do more in each run: a larger batch, fewer and larger nodes (graph optimisation, a provider "
    "that compiles the graph), or as many threads as the nodes can use."
)


def _node_advice(bound: Bound, reached: float) -> str:
    if reached < LOW:
        return (
            f"The kernels reach only {percent(reached)} of the ceiling: another provider, other "
            "thread counts or a larger batch may have room (onward bench compares them)."
        )
    if bound == "compute":
        return (
            "The kernels use the machine well: less arithmetic (quantisation, a smaller input or "
            "model) or a faster machine is what makes it faster."
        )
    return (
        "The kernels use the memory well: fewer passes over the data (fusion) or smaller types "
        "(float16, int8) are what makes it faster."
    )
