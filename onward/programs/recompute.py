"""Recompute cheap values in the backward pass instead of saving them from the forward pass.

Of all values that the backward could start from, those are saved that take the fewest bytes: the
minimum cut of the network of cheap operators between what must be saved (results of products,
reductions, random draws) and what the backward reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import onnx_ir as ir

from onward.graph.operators import ELEMENTWISE, REARRANGING, VIEWS
from onward.graph.scopes import COMPOSITES, ancestors, bodies, reads
from onward.passes.random_functions import MASKED_SCALE
from onward.passes.rewrite import Names, copy_node
from onward.programs.memory.minimum_cut import INFINITE, FlowNetwork

CHEAP = ELEMENTWISE | REARRANGING - {"Compress"} | {MASKED_SCALE}
_SUMS = {"Add", "Sum"}
_UNKNOWN_BYTES = 1 << 24
_DEPTHS = 1 << 12  # more than there are cheap operators in a chain
_SOURCE, _SINK = "source", "sink"


def recompute_cheap_values(
    model: ir.Model,
    outputs: Sequence[str],
    bytes_of: Callable[[ir.Value], int | None],
    operators: Collection[str] = CHEAP,
) -> ir.Model:
    """Repeat cheap nodes of the forward in the backward, in place.

    `outputs` are the forward's; all other outputs are the backward's. `operators` are those that
    count as cheap.
    """
    graph = model.graph
    names = {str(value.name): value for value in graph.outputs}
    forward_values = ancestors(graph, [names[name] for name in outputs])
    forward = {node for node in graph if any(value in forward_values for value in node.outputs)}
    backward = [node for node in graph if node not in forward]
    needed = {
        value
        for node in backward
        for value in reads(node)
        if value.producer() in forward and value.const_value is None
    }
    cheap = {node for node in forward if _is_cheap(node, operators)}
    saved = _cheapest_cut(needed, _Recomputable(cheap), bytes_of)
    _Copies(model, cheap, saved).insert(backward)
    return model


class _Recomputable:
    """Whether a value may be computed again, from which others."""

    def __init__(self, cheap: set[ir.Node]) -> None:
        self._cheap = cheap
        self._roots: dict[ir.Value, frozenset[ir.Value]] = {}
        self._efforts: dict[ir.Value, int] = {}

    def sources(self, value: ir.Value) -> list[ir.Value] | None:
        """The values that a cheap node reads to compute this one; None: it must be saved."""
        node = value.producer()
        if node not in self._cheap or node is None:
            return None
        found = [each for each in reads(node) if each.const_value is None]
        return None if node.op_type in _SUMS and self._joins(found) else found

    def _joins(self, terms: list[ir.Value]) -> bool:
        """Whether a sum joins separate branches, as the residual stream of a transformer does.

        To compute it again would need all sums before it.
        """
        roots = [self.roots(term) for term in terms]
        return len(roots) > 1 and not roots[0] & roots[1]

    def effort(self, value: ir.Value) -> int:
        """Which of several values of one size to save: the one with the least effort.

        The last that is computed, since it is not computed again; of views, the one that they
        share, since a view costs nothing to compute, but may cost a copy to save.
        """
        if value not in self._efforts:
            sources = self.sources(value)
            found = min((self.effort(each) for each in sources or ()), default=_DEPTHS)
            node = value.producer()
            step = 1 if node is not None and node.op_type in VIEWS else -1
            self._efforts[value] = _DEPTHS if sources is None else max(found + step, 1)
        return self._efforts[value]

    def roots(self, value: ir.Value) -> frozenset[ir.Value]:
        """The values that must be saved to compute this one."""
        if value not in self._roots:
            sources = self.sources(value)
            own = frozenset([value])
            parts = [self.roots(each) for each in sources or ()]
            self._roots[value] = own if sources is None else frozenset().union(*parts)
        return self._roots[value]


def _is_cheap(node: ir.Node, operators: Collection[str]) -> bool:
    if bodies(node) or _narrows_input(node):
        return False
    return node.domain in ("", COMPOSITES) and node.op_type in operators


def _narrows_input(node: ir.Node) -> bool:
    """Whether a node casts an input to fewer bits, as mixed precision casts each weight.

    To cast each weight again would be one more kernel, which reads twice as many bytes.
    """
    value = node.inputs[0] if node.op_type == "Cast" else None
    if value is None or not value.is_graph_input():
        return False
    before, after = value.dtype, node.outputs[0].dtype
    return before is not None and after is not None and after.bitwidth < before.bitwidth


def _cheapest_cut(
    needed: set[ir.Value],
    recomputable: _Recomputable,
    bytes_of: Callable[[ir.Value], int | None],
) -> set[ir.Value]:
    """The values to save: from them, cheap nodes compute all that is needed."""
    network = FlowNetwork()
    network.add(_SOURCE, _SINK, 0)
    todo, seen = list(needed), set(needed)
    while todo:
        value = todo.pop()
        known = bytes_of(value)
        size = _UNKNOWN_BYTES if known is None else known
        is_given = value.producer() is None  # an input: it is there anyway
        capacity = 0 if is_given else 2 * size * _DEPTHS + recomputable.effort(value)
        network.add((value, "in"), (value, "out"), capacity)
        if value in needed:
            network.add((value, "out"), _SINK, INFINITE)
        sources = recomputable.sources(value)
        if sources is None:
            network.add(_SOURCE, (value, "in"), INFINITE)
        for source in sources or ():
            network.add((source, "out"), (value, "in"), INFINITE)
            if source not in seen:
                seen.add(source)
                todo.append(source)
    far = network.far_side(_SOURCE, _SINK)
    return {value for value in seen if (value, "in") not in far and (value, "out") in far}


class _Copies:
    """Copies of cheap forward nodes for the backward pass."""

    def __init__(self, model: ir.Model, cheap: set[ir.Node], saved: set[ir.Value]) -> None:
        self._graph, self._cheap, self._saved = model.graph, cheap, saved
        self._names = Names(model)
        self._copied: dict[ir.Value, ir.Value] = {}

    def insert(self, backward: Sequence[ir.Node]) -> None:
        """Let the backward's nodes read copies of what is not saved; each before its first use."""
        for node in backward:
            if bodies(node):
                continue
            for index, value in enumerate(node.inputs):
                if value is not None and self._is_dropped(value):
                    node.replace_input_with(index, self._copy(value, node))

    def _is_dropped(self, value: ir.Value) -> bool:
        if value.const_value is not None or value in self._saved or value.is_graph_output():
            return False
        return value.producer() in self._cheap

    def _copy(self, value: ir.Value, before: ir.Node) -> ir.Value:
        if value not in self._copied:
            node = value.producer()
            assert node is not None
            inputs = [
                self._copy(each, before) if each is not None and self._is_dropped(each) else each
                for each in node.inputs
            ]
            copy = copy_node(node, inputs, self._names, "again")
            self._copied.update(zip(node.outputs, copy.outputs))
            self._graph.insert_before(before, copy)
        return self._copied[value]
