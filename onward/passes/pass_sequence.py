"""PassSequence: passes in order, run by one call, with an optional report of each pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onward.graph.scopes import graphs_of, walk

Pass = Callable[[ir.Model], ir.Model]


Structures = dict["IfChanged", list[Any]]


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: its nodes and its time."""

    name: str
    nodes_before: int
    nodes_after: int
    seconds: float


Report = list[PassRecord] | None


@dataclass(frozen=True)
class IfChanged:
    """A pass that a sequence skips where no node has changed since it last ran there."""

    run: Pass

    @property
    def __name__(self) -> str:
        return _name(self.run)

    def __call__(self, model: ir.Model) -> ir.Model:
        return self.run(model)


@dataclass(frozen=True)
class PassSequence:
    """Passes in order; a pass itself. Passes change the model in place and return it.

    >>> def nothing(model):
    ...     return model
    >>> PassSequence("both", (nothing, nothing)).names
    ('nothing', 'nothing')
    """

    name: str
    passes: tuple[Pass, ...]
    rounds: int = 1  # the most rounds; another one runs only if the number of nodes changed

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(_name, self.passes))

    def __call__(self, model: ir.Model, report: Report = None) -> ir.Model:
        """Run every pass; `report`, if given, gets one PassRecord for each."""
        return self._run(model, report, {})

    def _run(self, model: ir.Model, report: Report, left: Structures) -> ir.Model:
        if self.rounds == 1:
            return self._once(model, report, left)
        nodes = count_nodes(model)
        for _ in range(self.rounds):
            before, model = nodes, self._once(model, report, left)
            nodes = count_nodes(model)
            if nodes == before:
                break
        return model

    def _once(self, model: ir.Model, report: Report, left: Structures) -> ir.Model:
        """Run every pass once; `left` is the structure that a pass left when it last ran."""
        for each in self.passes:
            if isinstance(each, PassSequence):
                model = each._run(model, report, left)
                continue
            before, start = count_nodes(model) if report is not None else 0, time.perf_counter()
            if not isinstance(each, IfChanged):
                model = each(model)
            elif left.get(each) != structure(model):
                model = each(model)
                left[each] = structure(model)
            if report is not None:
                seconds = time.perf_counter() - start
                report.append(PassRecord(_name(each), before, count_nodes(model), seconds))
        return model

    def __add__(self, other: PassSequence) -> PassSequence:
        """This pipeline, then the other."""
        return PassSequence(f"{self.name}, {other.name}", (self, other))


def structure(model: ir.Model) -> list[Any]:
    """Everything about a model's nodes that decides what a pass does, to compare by identity."""
    nodes = [
        (node, node.op_type, node.inputs, node.outputs, (*node.attributes.data.values(),))
        for node in walk(model.graph)
    ]
    return [nodes, *((tuple(g.inputs), tuple(g.outputs)) for g in graphs_of(model))]


def count_nodes(model: ir.Model) -> int:
    """Nodes of the graph, its subgraphs and its functions."""
    return sum(len(graph) for graph in graphs_of(model))


def _name(each: Pass) -> str:
    name: str = (
        each.name if isinstance(each, PassSequence) else getattr(each, "__name__", repr(each))
    )
    return name
