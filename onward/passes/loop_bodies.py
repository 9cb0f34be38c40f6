"""Loop bodies in one form: a body returns what its nodes make, and a loop carries what changes.

Exporters carry a loop's constants (weights, limits) through every trip: the body returns its input
as it came. Such a value is the same in every trip, so the body can read it from outside: weights
are then weights again, and a gradient does not keep a copy of them for each trip.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.operators import LOOPS
from onward.graph.scopes import bodies
from onward.passes.rewrite import Names, detach, nodes_of, substitute


def return_copies(model: ir.Model) -> ir.Model:
    """A subgraph returns what its nodes make, each value once: other outputs become an Identity.

    onnxruntime's Scan gives garbage for an input that its body returns as it came; and whoever
    replaces a body's inputs by other values need not look at its outputs.
    """
    names = Names(model)
    for node in list(nodes_of(model)):
        for body in bodies(node):
            seen: set[ir.Value] = set()
            for index, value in enumerate(body.outputs):
                maker = value.producer()
                if maker is None or maker.graph is not body or value in seen:
                    body.outputs[index] = _copied(body, value, names)
                seen.add(value)
    return model


def _copied(body: ir.Graph, value: ir.Value, names: Names) -> ir.Value:
    copy = ir.node("Identity", [value], name=names.fresh(f"{value.name}/Identity"))
    result = copy.outputs[0]
    result.name = names.fresh(f"{value.name}/copy")
    result.type, result.shape = value.type, value.shape
    body.append(copy)
    return result


def release_invariants(model: ir.Model) -> ir.Model:
    """Loop and Scan carry no value that their body returns unchanged: it is read from outside.

    Loop(n, c, k, x) {(i, c, k, x) -> c, k, f(k, x)} = k, Loop(n, c, x) {(i, c, x) -> c, f(k, x)}
    """
    names = Names(model)
    for node in reversed(list(nodes_of(model))):  # those inside first: they may return an input
        if node.op_type in LOOPS and node.domain == "" and "body" in node.attributes:
            _release(node, names)
    return model


def _release(node: ir.Node, names: Names) -> None:
    body, graph = node.attributes["body"].as_graph(), node.graph
    assert graph is not None
    # of a Loop, the trip count and the condition come before the states
    first_input, first_output = (2, 1) if node.op_type == "Loop" else (0, 0)
    unchanged = _unchanged(node, body, first_input, first_output)[: len(node.outputs)]
    kept = [i for i in range(len(node.outputs)) if i not in unchanged]
    if not kept:  # a node gives at least one output
        kept = [unchanged.pop()]
    if not unchanged:
        return
    carried = [(body.inputs[first_input + i], node.inputs[first_input + i]) for i in unchanged]
    results = [y for i, y in enumerate(body.outputs) if i - first_output not in unchanged]
    body.outputs.clear()
    body.outputs.extend(results)
    for inner, outer in carried:
        assert outer is not None
        outer.type = outer.type or inner.type
        inner.replace_all_uses_with(outer)
        body.inputs.remove(inner)
    inputs = [x for i, x in enumerate(node.inputs) if i - first_input not in unchanged]
    made = ir.Node("", node.op_type, inputs, node.attributes.values(), num_outputs=len(kept))
    made.name, made.version = node.name, node.version
    made.metadata_props.update(node.metadata_props)
    replaced = dict(zip(unchanged, (outer for _, outer in carried)))
    for value, i in zip(made.outputs, kept):
        old = node.outputs[i]
        value.name = names.fresh(old.name) if old.name else ""
        value.type, value.shape = old.type, old.shape
        replaced[i] = value
    graph.insert_before(node, made)
    for i, old in enumerate(node.outputs):
        new = replaced[i]
        assert new is not None
        if old.name:
            substitute(old, new, names)
    detach(node)
    graph.remove(node)


def _unchanged(node: ir.Node, body: ir.Graph, first_input: int, first_output: int) -> list[int]:
    """Which of the carried values the body returns as they came."""
    states = len(node.inputs) - first_input
    if node.op_type == "Scan":
        states -= node.attributes["num_scan_inputs"].as_int()
    return [
        i
        for i in range(states)
        if node.inputs[first_input + i] is not None
        and _origin(body.outputs[first_output + i]) is body.inputs[first_input + i]
    ]


def _origin(value: ir.Value) -> ir.Value:
    """What a value is a copy of."""
    maker = value.producer()
    while maker is not None and maker.op_type == "Identity" and maker.domain == "":
        (x,) = maker.inputs
        if x is None:
            break
        value, maker = x, x.producer()
    return value
