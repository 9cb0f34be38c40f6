"""Clusters: groups of a plan's nodes that are alike, so that one measurement decides for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.compress.quantization.quantization_plan import Plan, Quantizer

Group = tuple[str, ...]  # names of nodes that are undone together


@dataclass(frozen=True)
class SimilarGroups:
    """Groups with the same operators, formats and sizes of weights."""

    text: str  # such as "MatMul (384, 1536)"
    groups: tuple[Group, ...]
    elements: int  # of all their weights: a proxy of their work

    @property
    def names(self) -> list[str]:
        return [name for group in self.groups for name in group]


def make_groups(quantizer: Quantizer, plan: Plan, at_most: int) -> list[Group]:
    """The quantizer's groups in the graph's order; neighbours are joined if there are too many."""
    place = {str(node.name): number for number, node in enumerate(_nodes(quantizer.model))}
    groups = [tuple(group) for group in quantizer.groups(plan) if group]
    groups.sort(key=lambda group: min(place.get(name, 0) for name in group))
    step = -(-len(groups) // at_most)
    return [
        tuple(name for group in groups[start : start + step] for name in group)
        for start in range(0, len(groups), max(step, 1))
    ]


def make_clusters(quantizer: Quantizer, plan: Plan, at_most: int) -> list[SimilarGroups]:
    """The groups of a plan by what they compute, the largest first; the rest is one cluster."""
    nodes = {str(node.name): node for node in _nodes(quantizer.model)}
    alike: dict[tuple[str, ...], list[Group]] = {}
    for group in quantizer.groups(plan):
        key = tuple(sorted(f"{_describe(nodes.get(name))} {plan[name]}" for name in group))
        alike.setdefault(key, []).append(tuple(group))
    clusters = [
        SimilarGroups(_text(groups[0], nodes), tuple(groups), _elements(groups, nodes))
        for groups in alike.values()
    ]
    clusters.sort(key=lambda cluster: -cluster.elements)
    if len(clusters) > at_most:
        rest = clusters[at_most - 1 :]
        groups = tuple(group for cluster in rest for group in cluster.groups)
        joined = SimilarGroups("the smaller nodes", groups, sum(each.elements for each in rest))
        clusters = [*clusters[: at_most - 1], joined]
    return clusters


def without(plan: Plan, names: Iterable[str]) -> Plan:
    """A plan with these nodes taken out."""
    left_out = set(names)
    return {name: form for name, form in plan.items() if name not in left_out}


def elements_of(model: ir.Model, names: Iterable[str] | None = None) -> int:
    """The elements of the weights that these nodes read, or all of them."""
    nodes = {str(node.name): node for node in _nodes(model)}
    return _elements([tuple(nodes if names is None else names)], nodes)


def _nodes(model: ir.Model) -> Iterable[ir.Node]:
    return ir.traversal.RecursiveGraphIterator(model.graph)


def _weights(node: ir.Node | None) -> list[tuple[int, ...]]:
    if node is None:
        return []
    tensors = [value.const_value for value in node.inputs if value is not None]
    return [tuple(tensor.shape.numpy()) for tensor in tensors if tensor is not None]


def _elements(groups: Sequence[Group], nodes: Mapping[str, ir.Node]) -> int:
    total = 0
    for group in groups:
        for name in group:
            for shape in _weights(nodes.get(name)):
                size = 1
                for each in shape:
                    size *= each
                total += size
    return total


def _describe(node: ir.Node | None) -> str:
    if node is None:
        return ""
    shapes = [shape for shape in _weights(node) if shape]
    largest = max(shapes, key=len, default=())
    return f"{node.op_type} {largest}" if largest else node.op_type


def _text(group: Group, nodes: Mapping[str, ir.Node]) -> str:
    first = _describe(nodes.get(group[0]))
    return first if len(group) == 1 else f"{first} and {len(group) - 1} nodes around it"
