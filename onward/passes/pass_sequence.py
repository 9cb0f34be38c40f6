"""PassSequence: passes in order, run by one call, with an optional report of each pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.scopes import graphs_of

Pass = Callable[[ir.Model], ir.Model]


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: its nodes and its time."""

    name: str
    nodes_before: int
    nodes_after: int
    seconds: float


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

    def __call__(self, model: ir.Model, report: list[PassRecord] | None = None) -> ir.Model:
        """Run every pass; `report`, if given, gets one PassRecord for each."""
        if self.rounds == 1:
            return self._once(model, report)
        nodes = count_nodes(model)
        for _ in range(self.rounds):
            before, model = nodes, self._once(model, report)
            nodes = count_nodes(model)
            if nodes == before:
                break
        return model

    def _once(self, model: ir.Model, report: list[PassRecord] | None) -> ir.Model:
        for each in self.passes:
            if isinstance(each, PassSequence):
                model = each(model, report)
                continue
            if report is None:
                model = each(model)
                continue
            before, start = count_nodes(model), time.perf_counter()
            model = each(model)
            seconds = time.perf_counter() - start
            report.append(PassRecord(_name(each), before, count_nodes(model), seconds))
        return model

    def __add__(self, other: PassSequence) -> PassSequence:
        """This pipeline, then the other."""
        return PassSequence(f"{self.name}, {other.name}", (self, other))


def count_nodes(model: ir.Model) -> int:
    """Nodes of the graph, its subgraphs and its functions."""
    return sum(len(graph) for graph in graphs_of(model))


def _name(each: Pass) -> str:
    name: str = (
        each.name if isinstance(each, PassSequence) else getattr(each, "__name__", repr(each))
    )
    return name
