"""Apply rewrite rules to a model: a rule looks at one node, `rewrite` does the rest.

A rule takes `op`, which makes nodes (`op.Mul(a, b)`), and the node; it returns the values that
replace the node's outputs, or None. `rewrite` takes care of names, graph outputs, subgraphs and new
constants; rules do not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.initializer_names import rename
from onward.graph.scopes import bodies, graphs_of, walk
from onward.graph.shapes.fast import infer_fast
from onward.passes.value_facts import Array

Values = tuple[ir.Value, ...]
Replacement = ir.Value | Sequence[ir.Value] | None
Rule = Callable[["Ops", ir.Node], Replacement]
_MOST_SWEEPS = 32  # rules that still change the model then undo each other


class Ops:
    """Makes nodes by their operator's name: `op.Softmax(x, axis=0)`.

    An input is a value, None, or data for a new constant: a numpy array, or integers.
    """

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def __getattr__(self, operator: str) -> Callable[..., ir.Value]:
        return functools.partial(self.one, operator)

    def one(self, operator: str, *inputs: Any, **attributes: Any) -> ir.Value:
        """Make a node with one output."""
        (value,) = self.many(operator, 1, *inputs, **attributes)
        return value

    def many(self, operator: str, outputs: int, *inputs: Any, **attributes: Any) -> Values:
        """Make a node with several outputs. An attribute that is None is left out."""
        node = ir.node(
            operator,
            [self._input(value) for value in _without_trailing_none(inputs)],
            {name: value for name, value in attributes.items() if value is not None},
            num_outputs=outputs,
        )
        self.nodes.append(node)
        return tuple(node.outputs)

    def constant(self, array: Array | ir.TensorProtocol) -> ir.Value:
        """A new initializer."""
        tensor = ir.tensor(array) if isinstance(array, (np.ndarray, np.generic)) else array
        shape = ir.Shape(tensor.shape)  # type: ignore[arg-type]
        value = ir.Value(shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.constants.append(value)
        return value

    def _input(self, value: Any) -> ir.Value | None:
        if value is None or isinstance(value, ir.Value):
            return value
        if isinstance(value, (np.ndarray, np.generic)):
            return self.constant(np.asarray(value))
        return self.constant(np.asarray(value, np.int64))


class Rules:
    """A set of rules, by the operator of the node that they look at; `|` combines two sets."""

    def __init__(self) -> None:
        self._rules: dict[str, list[Rule]] = {}

    def __call__(self, *operators: str) -> Callable[[Rule], Rule]:
        def register(rule: Rule) -> Rule:
            for operator in operators:
                self._rules.setdefault(operator, []).append(rule)
            return rule

        return register

    def of(self, node: ir.Node) -> Sequence[Rule]:
        return self._rules.get(node.op_type, ()) if node.domain == "" else ()

    def __or__(self, other: Rules) -> Rules:
        both = Rules()
        for rules in (self, other):
            for operator, entries in rules._rules.items():
                both._rules.setdefault(operator, []).extend(entries)
        return both


class Names:
    """Makes names that no value and no node of the model has."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._counts: dict[str, int] = {}

    @functools.cached_property
    def _taken(self) -> set[str | None]:
        """Collected when the first name is needed: most passes change nothing."""
        taken: set[str | None] = set()
        for graph in graphs_of(self._model):
            taken.update(value.name for value in graph.inputs)
            taken.update(graph.initializers)
            for node in graph:
                taken.add(node.name)
                taken.update(value.name for value in node.outputs)
        return taken

    def fresh(self, wish: str) -> str:
        name = wish
        while name in self._taken:
            self._counts[wish] = self._counts.get(wish, 0) + 1
            name = f"{wish}_{self._counts[wish]}"
        self._taken.add(name)
        return name


def rewrite(model: ir.Model, rules: Rules) -> int:
    """Apply rules to every node, subgraphs included, until nothing changes; the replacements."""
    names, total = Names(model), 0
    for _ in range(_MOST_SWEEPS):
        replaced: dict[ir.Graph, list[ir.Node]] = {}
        for node in list(nodes_of(model)):
            graph = node.graph
            if graph is not None and _rewrite_node(node, rules, names):
                replaced.setdefault(graph, []).append(node)
        for graph, nodes in replaced.items():  # at once: onnx-ir checks every output per call
            graph.remove(nodes)
        total += sum(map(len, replaced.values()))
        if not replaced:
            break
    return total


def nodes_of(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of the graph and its subgraphs, in order."""
    return walk(model.graph)


def _rewrite_node(node: ir.Node, rules: Rules, names: Names) -> bool:
    op = Ops()
    for rule in rules.of(node):
        found = rule(op, node)
        if found is None:
            if op.nodes or op.constants:
                discard(op)
                op = Ops()
            continue
        values = [found] if isinstance(found, ir.Value) else list(found)
        _replace_reads(node, values, op, names)
        return True
    return False


def discard(op: Ops) -> None:
    """Discard the nodes of an unused `op`, so that they do not count as readers."""
    for node in reversed(op.nodes):
        detach(node)


def replace(node: ir.Node, values: Sequence[ir.Value], op: Ops, names: Names) -> None:
    """Replace a node by the nodes that `op` made; its outputs become `values`."""
    _replace_reads(node, values, op, names).remove(node)


def _replace_reads(node: ir.Node, values: Sequence[ir.Value], op: Ops, names: Names) -> ir.Graph:
    """`replace`, but the node stays in the graph, without inputs and readers."""
    graph = insert_made_nodes(node, op, names)
    for old, new in zip(node.outputs, values, strict=True):
        substitute(old, new, names)
    detach(node)
    return graph


def remove_node(node: ir.Node, graph: ir.Graph) -> None:
    """Remove an unused node. (onnx-ir's `safe=True` would check every graph output.)"""
    detach(node)
    graph.remove(node)


def detach(node: ir.Node) -> None:
    """Remove all inputs of a node."""
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)


def detach_with_subgraphs(node: ir.Node) -> None:
    """Remove all inputs of a node and everything in its subgraphs, before it is removed."""
    for body in bodies(node):
        inside = list(body)
        for inner in inside:
            detach_with_subgraphs(inner)
        body.outputs.clear()
        body.remove(inside)
    detach(node)


def insert_made_nodes(node: ir.Node, op: Ops, names: Names) -> ir.Graph:
    """Insert what `op` made before the node, with new names; constants go into the same graph."""
    graph = node.graph
    assert graph is not None
    hint = node.outputs[0].name or node.op_type
    for constant in op.constants:
        rename(constant, names.fresh(f"{hint}/constant"))
        graph.register_initializer(constant)
    for made in op.nodes:
        made.name = names.fresh(f"{node.name or hint}/{made.op_type}")
        made.metadata_props.update(node.metadata_props)
        for value in made.outputs:
            value.name = names.fresh(f"{hint}/{made.op_type}")
        infer_fast(made)
    graph.insert_before(node, op.nodes)
    return graph


def copy_node(
    node: ir.Node, inputs: Sequence[ir.Value | None], names: Names, suffix: str
) -> ir.Node:
    """A node of the same operator and attributes, with other inputs and new names.

    It is in no graph yet; its outputs have the types and shapes of the node's.
    """
    copy = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        overload=node.overload,
        num_outputs=len(node.outputs),
        name=names.fresh(f"{node.name or node.op_type}/{suffix}"),
    )
    for old, new in zip(node.outputs, copy.outputs):
        new.name = names.fresh(f"{old.name}/{suffix}") if old.name else ""
        new.type, new.shape = old.type, old.shape
    return copy


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Give `new` the name, type, shape and uses of `old`, graph outputs included."""
    name, old.name = old.name, None
    new.name, new.type, new.shape = name, old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def substitute(old: ir.Value, new: ir.Value, names: Names) -> None:
    """Replace a value by another one; a graph output keeps its name, type and shape."""
    producer = old.producer()
    assert producer is not None and producer.graph is not None
    graph = producer.graph
    if new.type is None:
        new.type = old.type
    if new.shape is None:
        new.shape = old.shape
    if not old.is_graph_output():
        old.replace_all_uses_with(new)
        return
    maker = new.producer()
    if maker is None or maker.graph is not graph or new.is_graph_output():
        identity = ir.node("Identity", [new], name=names.fresh(f"{old.name}/Identity"))
        graph.insert_before(producer, identity)
        new, inner = identity.outputs[0], new
    else:
        inner = new
    name, old.name = old.name, names.fresh(f"{old.name}/replaced")
    new.name, new.type, new.shape, new.doc_string = name, old.type, old.shape, old.doc_string
    new.metadata_props.update(old.metadata_props)
    outputs: list[ir.Value] = graph.outputs.data  # type: ignore[attr-defined]  # there may be many
    while old in outputs:
        graph.outputs[outputs.index(old)] = new
    old.replace_all_uses_with(inner)


def _without_trailing_none(inputs: Iterable[Any]) -> list[Any]:
    kept = list(inputs)
    while kept and kept[-1] is None:
        kept.pop()
    return kept
