"""Analysis: where the time of a run goes, and what bounds it.

The rule:

- A node is bound by whichever of three would take it longest at this machine's ceilings: its FLOPs
  at the measured FLOP/s (compute), its bytes at the measured bytes/s (memory bandwidth), or being
  dispatched at all, at the measured time of a node that does nothing (waiting).
- What a node's main thread waited for the other threads is waiting too.
- What a run takes outside its nodes is input and output (feeds and results converted, tensors
  carried between engines) where no engine was executing, and waiting (gaps between nodes) where
  one was.
- The model is bound by the kind with the largest share of the run.
- All figures are of one run, the one with the median time, so that the shares of the nodes, of the
  gaps between them and of input and output add up to 100 %.

A node whose time is far over all three of its bounds (LOW) still counts under the largest: it
is a kernel that uses the machine badly, and the diagnosis names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from onward.graph.costs.flops import Tensor
from onward.graph.costs.node_costs import Basis, Cost
from onward.measure.profile.roofline import Ceilings
from onward.measure.profile.timed_runs import Measurement
from onward.measure.profile.trace import Record

Bound = Literal["compute", "memory", "io", "waiting"]
BOUNDS: tuple[Bound, ...] = ("compute", "memory", "io", "waiting")

LOW = 0.25  # below this share of a ceiling, a kernel uses the machine badly
_TYPES = {
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.DOUBLE: "float64",
    ir.DataType.INT8: "int8",
    ir.DataType.UINT8: "int8",
}


@dataclass(frozen=True)
class Figures:
    """What a node, or all nodes of an operator, took in one run. Times are in seconds."""

    name: str
    operator: str
    provider: str
    calls: float  # in one run
    time: float
    share: float  # of the run: its nodes, the gaps between them, input and output
    flops: float
    bytes: float
    bound: Bound
    reached: float  # of the ceiling that bounds it; 0 where nothing is known
    basis: Basis
    shapes: str = ""

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.time if self.time else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.time if self.time else 0.0

    @property
    def intensity(self) -> float:
        """FLOPs for each byte that is moved."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Analysis:
    """A run, divided among nodes, operators and kinds of bounds."""

    latency: float  # seconds of a run that is not profiled, typically
    profiled: float  # ... of one that is
    nodes: list[Figures]  # the longest first
    operators: list[Figures]
    shares: dict[Bound, float]
    waiting: dict[str, float]  # what the waiting is made of: dispatch, gaps, threads
    outside: float  # seconds of a run where no engine was executing


@dataclass
class _Node:
    record: Record
    cost: Cost = field(default_factory=Cost)
    calls: int = 0
    time: float = 0.0
    waited: float = 0.0


def median_run(measured: Measurement) -> int:
    """The index of the profiled run with the median time."""
    order = np.argsort(measured.walls)
    return int(order[len(order) // 2])


def analyse(measured: Measurement, ceilings: Mapping[str, Ceilings]) -> Analysis:
    """Divide one run of a measurement by node and provider; `ceilings` are by provider."""
    turn = median_run(measured)
    latency = typical(measured.timing.times)
    gathered = _gather(measured, turn)
    executing = measured.trace.runs[turn].executing
    in_nodes = sum(node.time for node in gathered)
    outside = max(0.0, measured.walls[turn] - executing)
    # Both estimates of the gaps may be too large: a profiled run also writes records, and a run
    # without profiling may have waited for other programs. The smaller one is taken.
    gaps = max(0.0, min(latency - in_nodes - outside, executing - in_nodes))
    whole = in_nodes + outside + gaps
    shares: dict[Bound, float] = dict.fromkeys(BOUNDS, 0.0)
    waiting = {"gaps between nodes": gaps / whole, "dispatch": 0.0, "threads": 0.0}
    shares["io"] = outside / whole
    nodes = []
    for node in gathered:
        waited = min(node.time, node.waited)
        figures = _figures(node, whole, ceilings[node.record.provider])
        if figures.bound == "waiting":
            waiting["dispatch"] += (node.time - waited) / whole
        else:
            shares[figures.bound] += (node.time - waited) / whole
        waiting["threads"] += waited / whole
        nodes.append(figures)
    shares["waiting"] = sum(waiting.values())
    nodes.sort(key=lambda figures: -figures.time)
    profiled = typical(measured.walls)
    operators = by_operator(nodes, ceilings)
    return Analysis(latency, profiled, nodes, operators, shares, waiting, outside)


def _gather(measured: Measurement, turn: int) -> list[_Node]:
    """The records of each node in one run."""
    found: dict[tuple[str, str, str], _Node] = {}
    for record in measured.trace.records:
        if record.iteration != turn:
            continue
        node = found.setdefault((record.provider, record.operator, record.node), _Node(record))
        node.cost += measured.graphs.cost(record)
        node.calls += 1
        node.time += record.duration
        node.waited += record.waited
    return list(found.values())


def _figures(node: _Node, whole: float, limits: Ceilings) -> Figures:
    record, time = node.record, node.time
    kind = number_type(record.inputs or record.outputs)
    bound, least = find_bound(node.cost.flops, node.cost.bytes, node.calls, limits, kind)
    return Figures(
        name=record.node,
        operator=record.operator,
        provider=record.provider,
        calls=node.calls,
        time=time,
        share=time / whole,
        flops=node.cost.flops,
        bytes=node.cost.bytes,
        bound=bound,
        reached=least / time if time else 0.0,
        basis=node.cost.basis,
        shapes=show_shapes(record.inputs, record.outputs),
    )


def find_bound(
    flops: float, moved: float, calls: float, limits: Ceilings, kind: str = "float32"
) -> tuple[Bound, float]:
    """What bounds a node, and the least time that it could take because of it."""
    least: dict[Bound, float] = {
        "compute": flops / limits.flops_per_second(kind),
        "memory": moved / limits.bytes_per_second,
        "waiting": calls * limits.dispatch,
    }
    bound = max(least, key=lambda kind: least[kind])
    return bound, least[bound]


def by_operator(nodes: Iterable[Figures], ceilings: Mapping[str, Ceilings]) -> list[Figures]:
    """The sums of each operator's nodes, bound by what bounds most of their time."""
    groups: dict[tuple[str, str], list[Figures]] = {}
    for node in nodes:
        groups.setdefault((node.provider, node.operator), []).append(node)
    found = []
    for (provider, operator), members in groups.items():
        time = sum(node.time for node in members)
        spent = {b: sum(node.time for node in members if node.bound == b) for b in BOUNDS}
        least = sum(node.reached * node.time for node in members)
        found.append(
            Figures(
                name=operator,
                operator=operator,
                provider=provider,
                calls=sum(node.calls for node in members),
                time=time,
                share=sum(node.share for node in members),
                flops=sum(node.flops for node in members),
                bytes=sum(node.bytes for node in members),
                bound=max(BOUNDS, key=lambda b: spent[b]),
                reached=least / time if time else 0.0,
                basis=worst([node.basis for node in members]),
            )
        )
    return sorted(found, key=lambda figures: -figures.time)


def worst(bases: Iterable[Basis]) -> Basis:
    """The least certain of several."""
    return sum((Cost(basis=basis) for basis in bases), Cost()).basis


def number_type(tensors: Sequence[Tensor]) -> str:
    """The type whose arithmetic a node does: its first tensor's."""
    return _TYPES.get(tensors[0].dtype, "float32") if tensors and tensors[0].dtype else "float32"


def typical(times: Sequence[float]) -> float:
    """The mean of the middle half: smoother than a median, and as robust against outliers."""
    if not times:
        return 0.0
    ordered = np.sort(np.asarray(times, np.float64))
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())


def show_shapes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Shapes in one line: 1x3x224x224, 64x3x7x7 -> 1x64x112x112."""

    def show(tensors: Sequence[Tensor]) -> str:
        return ", ".join("x".join(map(str, t.shape)) or "1" for t in tensors if t.shape is not None)

    given = show(inputs)
    return f"{given} -> {show(outputs)}" if given else show(outputs)
