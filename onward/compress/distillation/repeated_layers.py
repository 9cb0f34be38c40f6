"""Find the repeated layers of a model: blocks of equal structure, each fed by the one before.

Two values end equal blocks if a walk backward from both meets the same operators, attributes and
shapes of weights, until the walk from the later value arrives at the earlier one. Masks and other
values that both blocks read are the same value there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.scopes import bodies, origin, standard

_MOST_CANDIDATES = 400  # values of one kind; more are no layers
_COMPARED_ELEMENTS = 64  # of integer constants, such as shapes

Kinds = dict[ir.Node, Any]


@dataclass(frozen=True, eq=False)
class Chain:
    """Layers of equal structure, one after the other.

    Attributes:
        ends: the value that enters the first layer, then the output of each layer
        nodes: the nodes of each layer
    """

    ends: Sequence[ir.Value]
    nodes: Sequence[frozenset[ir.Node]]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.nodes)

    @property
    def size(self) -> int:
        """The number of nodes in all layers."""
        return sum(map(len, self.nodes))


def find_chains(graph: ir.Graph) -> list[Chain]:
    """The chains of repeated layers, in the order of the graph; none shares nodes with another."""
    kinds = {node: _node_kind(node) for node in graph}
    found = [
        chain
        for group in _candidates(graph, kinds)
        for chain in _chains_of(group, kinds)
        if _is_layer(chain)
    ]
    order = {node: place for place, node in enumerate(graph)}
    last = {id(chain): order[_producer(chain.ends[-1])] for chain in found}
    # of chains of one size the last: a layer ends in its normalisation, not in the sum before it
    found.sort(key=lambda chain: (-chain.size, -chain.layers, -last[id(chain)]))
    used: set[ir.Node] = set()
    kept: list[Chain] = []
    for chain in found:
        nodes = {node for each in chain.nodes for node in each}
        if used.isdisjoint(nodes):
            used |= nodes
            kept.append(chain)
    return sorted(kept, key=lambda chain: min(order[node] for node in chain.nodes[0]))


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _candidates(graph: ir.Graph, kinds: Kinds) -> Iterator[list[ir.Value]]:
    """Values that may end a layer, those of one kind together, in the order of the graph."""
    groups: dict[Any, list[ir.Value]] = defaultdict(list)
    for node in graph:
        if node.op_type == "Constant" or bodies(node) or all(map(_is_fixed, node.inputs)):
            continue
        for value in node.outputs:
            if value.uses() or value.is_graph_output():
                groups[kinds[node], value.index()].append(value)
    for group in groups.values():
        if 2 <= len(group) <= _MOST_CANDIDATES:
            yield group


def _chains_of(group: Sequence[ir.Value], kinds: Kinds) -> Iterator[Chain]:
    """The chains whose layers end in values of the group that are equally far from each other."""
    for period in range(1, len(group) // 2 + 1):
        for start in range(period):
            ends: list[ir.Value] = []
            blocks: list[frozenset[ir.Node]] = []
            members = group[start::period]
            for earlier, later in pairwise(members):
                met = _match(earlier, later, kinds)
                if met is not None and not blocks:
                    ends, blocks = [met.entry, earlier, later], [met.earlier, met.later]
                elif met is not None and met.entry is ends[-2] and met.earlier == blocks[-1]:
                    ends.append(later)
                    blocks.append(met.later)
                elif blocks:
                    yield Chain(ends, blocks)
                    ends, blocks = [], []
            if blocks:
                yield Chain(ends, blocks)


@dataclass(frozen=True, eq=False)
class _Match:
    """Two equal blocks: what enters the earlier one, and the nodes of both."""

    entry: ir.Value
    earlier: frozenset[ir.Node]
    later: frozenset[ir.Node]


def _match(earlier: ir.Value, later: ir.Value, kinds: Kinds) -> _Match | None:
    """Walk backward from both values; None if the structures differ."""
    pairs: dict[ir.Value, ir.Value] = {later: earlier}
    waiting = [later]
    entry: ir.Value | None = None
    old, new = set(), set()
    while waiting:
        value = waiting.pop()
        node, other = value.producer(), pairs[value].producer()
        if node is None or other is None or node is other:
            return None
        if kinds[node] != kinds[other] or value.index() != pairs[value].index():
            return None
        new.add(node)
        old.add(other)
        for mine, its in zip(node.inputs, other.inputs):
            if mine is its or (_is_fixed(mine) and _is_fixed(its)):
                continue
            if mine is None or its is None:
                return None
            if mine is earlier:
                if entry not in (None, its):
                    return None
                entry = its
            elif mine in pairs:
                if pairs[mine] is not its:
                    return None
            else:
                pairs[mine] = its
                waiting.append(mine)
    if entry is None or _is_fixed(entry) or not new.isdisjoint(old):
        return None
    return _Match(entry, frozenset(old), frozenset(new))


def _is_layer(chain: Chain) -> bool:
    """Whether layers have weights, keep the shape, and are read only through their outputs."""
    for nodes, begin, end in zip(chain.nodes, chain.ends, chain.ends[1:]):
        types = {begin.dtype, end.dtype} - {None}
        if len(types) > 1 or not _may_be_equal(begin.shape, end.shape):
            return False
        if not any(_is_weight(value) for node in nodes for value in node.inputs):
            return False
        for value in (value for node in nodes for value in node.outputs if value is not end):
            readers = {reader for reader, _ in value.uses()}
            if value.is_graph_output() or not readers <= nodes:
                return False
    return True


def _may_be_equal(a: ir.Shape | None, b: ir.Shape | None) -> bool:
    if a is None or b is None:
        return True
    sizes = zip(a, b)
    return len(a) == len(b) and not any(
        isinstance(m, int) and isinstance(n, int) and m != n for m, n in sizes
    )


# -- kinds of nodes --------------------------------------------------------------------------------


def _node_kind(node: ir.Node) -> Any:
    """The operator, its attributes, and types and shapes of the weights that it reads."""
    if bodies(node):
        return node  # equal to no other
    attributes = tuple(sorted(f"{a.name}={a.value}" for a in node.attributes.values()))
    weights = tuple(map(_weight_kind, node.inputs))
    return node.domain, node.op_type, attributes, weights, len(node.outputs)


def _weight_kind(value: ir.Value | None) -> Any:
    """Type and shape of a constant; integers, which are shapes and axes, with their elements."""
    if value is None or not _is_fixed(value):
        return None if value is None else "computed"
    tensor = _tensor(value)
    if tensor is None:
        return "fixed"
    shape = tuple(tensor.shape.numpy())
    is_small = int(np.prod(shape)) <= _COMPARED_ELEMENTS
    content = tensor.tobytes() if is_small and not tensor.dtype.is_floating_point() else b""
    return tensor.dtype, shape, content


def _is_fixed(value: ir.Value | None) -> bool:
    """Whether a value is an initializer or of a Constant node, also through Identity."""
    if value is None or (value := _source(value)).is_initializer():
        return True
    node = value.producer()
    return node is not None and node.op_type == "Constant" and not node.domain


def _source(value: ir.Value) -> ir.Value:
    """What Identity nodes pass on: exporters write weights of equal content once, and copies so."""
    return origin(value, standard({"Identity"}))


def _is_weight(value: ir.Value | None) -> bool:
    if value is None or not _is_fixed(value):
        return False
    tensor = _tensor(value)
    return tensor is not None and tensor.dtype.is_floating_point() and tensor.size > 1


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    return ir.convenience.get_const_tensor(_source(value))
