"""Composites: calls of model-local functions of domain `onward` with bodies of standard operators.

    outline(functions, opsets, nodes, "Attention", [q, k, v], [y], {"scale": 0.125})
    inline_calls(model)  # the nodes again

An engine that has a kernel for it keeps the call; every other engine gets the nodes of the body.
Each call has its own function (an overload), because bodies are written for the ranks and sizes of
their inputs. Inlining a body restores the nodes that were outlined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import onnx_ir as ir
from onnx_ir.convenience import convert_attributes

from onward.graph.scopes import COMPOSITES, bodies, graphs_of, reads, walk
from onward.passes.rewrite import Names, remove_node, substitute
from onward.passes.upgrade import upgrade_opset

DOMAIN = COMPOSITES
VERSION = 1
FIRST_IR = 10  # the IR version since which functions have overloads

Functions = dict[ir.OperatorIdentifier, ir.Function]


def is_call(node: ir.Node) -> bool:
    """Whether a node calls a composite."""
    return node.domain == DOMAIN


def has_calls(model: ir.Model) -> bool:
    """Whether a model has functions that are composites."""
    return any(function.domain == DOMAIN for function in model.functions.values())


def outline(
    functions: Functions,
    opsets: Mapping[str, int],
    nodes: Sequence[ir.Node],
    name: str,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, Any],
) -> list[ir.Value]:
    """Replace nodes of one graph by one call, inserted after the last of them.

    `nodes` are in the graph's order. The call's inputs are `inputs`, in the order that a kernel
    expects, then all other values that the nodes read; its outputs replace `outputs`, which the
    nodes make. No other node may read what the nodes make. Returns the call's outputs.
    """
    graph = nodes[-1].graph
    assert graph is not None
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in reads(node) if value not in made)
    given: list[ir.Value | None] = [*inputs, *(value for value in read if value not in inputs)]
    overload = _free_overload(functions, name)
    call = ir.Node(
        DOMAIN,
        name,
        given,
        convert_attributes(attributes),
        overload=overload,
        num_outputs=len(outputs),
        name=f"{name}_{overload}",
    )
    graph.insert_after(nodes[-1], call)
    for old, new in zip(outputs, call.outputs):
        new.type, new.shape = old.type, old.shape
        _replace_readers(old, new, {*nodes})
    graph.remove(nodes)
    formal = [_formal(value, i) for i, value in enumerate(given)]
    places = {value: place for value, place in zip(given, formal) if value is not None}
    for node in nodes:
        _rewire(node, places)
    used = {"", *(inner.domain for node in nodes for inner in (node, *_inside(node)))}
    imports = {domain: opsets[domain] for domain in sorted(used) if domain in opsets}
    body = ir.Graph(formal, list(outputs), nodes=nodes, opset_imports=imports, name=name)
    function = ir.Function(DOMAIN, name, overload, graph=body, attributes=())
    functions[function.identifier()] = function
    return list(call.outputs)


def inline_calls(
    model: ir.Model, keeps: Callable[[ir.Node], bool] = lambda call: False
) -> ir.Model:
    """Inline the calls of composites, except for the calls that are kept.

    If a body is in another opset than the model, the model is upgraded to the newest one.
    """
    waiting = [node for graph in graphs_of(model) for node in graph if is_call(node)]
    within = (node for function in model.functions.values() for node in walk(function.graph))
    callers = Counter(node.op_identifier() for node in (*waiting, *within) if is_call(node))
    names, mixed = Names(model), False
    while waiting:
        call = waiting.pop()
        key = call.op_identifier()
        if key not in model.functions or keeps(call):
            continue
        function = _function_to_inline(model.functions, key, callers)
        version = function.opset_imports.get("")
        if version != model.opset_imports.get(""):
            mixed = True
            for node in walk(function.graph):
                node.version = version if node.domain == "" else None
        made = _inline(call, function, names)
        waiting += [inner for node in made for inner in (node, *_inside(node)) if is_call(inner)]
    for key in [key for key in model.functions if key[0] == DOMAIN and not callers[key]]:
        del model.functions[key]
    if not has_calls(model):
        model.opset_imports.pop(DOMAIN, None)
    return upgrade_opset(model) if mixed else model


def _function_to_inline(
    functions: Functions, key: ir.OperatorIdentifier, callers: Counter[ir.OperatorIdentifier]
) -> ir.Function:
    """The function that replaces a call: the last call gets the function, others a copy."""
    callers[key] -= 1
    if not callers[key]:
        return functions.pop(key)
    function = functions[key].clone()
    callers.update(node.op_identifier() for node in walk(function.graph) if is_call(node))
    return function


def _inline(call: ir.Node, function: ir.Function, names: Names) -> list[ir.Node]:
    """Replace a call by the nodes of its function."""
    graph = call.graph
    assert graph is not None
    body = function.graph
    nodes, results = list(body), list(body.outputs)
    body.outputs.clear()
    body.remove(nodes)
    given = [*call.inputs, *[None] * (len(body.inputs) - len(call.inputs))]
    places = dict(zip(body.inputs, given))
    for node in nodes:
        _rewire(node, places)
        _rename(node, names)
        for each in (node, *_inside(node)):
            _resolve_references(each, call, function)
    graph.insert_before(call, nodes)
    for old, new in zip(call.outputs, results):
        if not old.name:
            continue
        is_output = old.is_graph_output()
        substitute(old, places.get(new) or new, names)
        if new not in places and not is_output:  # substitute has renamed an output
            new.name = old.name
    remove_node(call, graph)
    return nodes


def _resolve_references(node: ir.Node, call: ir.Node, function: ir.Function) -> None:
    """Replace references to the function's attributes by the call's values, or the defaults."""
    for name, reference in list(node.attributes.items()):
        if not reference.is_ref():
            continue
        wanted = str(reference.ref_attr_name)
        given = call.attributes.get(wanted) or function.attributes.get(wanted)
        if given is None or given.value is None:
            del node.attributes[name]
        else:
            node.attributes[name] = ir.Attr(name, given.type, given.value)


def _rename(node: ir.Node, names: Names) -> None:
    """Give a node, its outputs and the nodes of its subgraphs new unique names."""
    node.name = names.fresh(node.name or node.op_type)
    for value in node.outputs:
        if value.name:
            value.name = names.fresh(value.name)
    for body in bodies(node):
        for inner in body:
            _rename(inner, names)


def _replace_readers(old: ir.Value, new: ir.Value, nodes: set[ir.Node]) -> None:
    """Replace a value in all nodes except `nodes`, and in the graph's outputs; swap the names."""
    new.name, old.name = old.name, f"{old.name}.inner"
    for reader, index in list(old.uses()):
        if reader not in nodes:
            reader.replace_input_with(index, new)
    graph = new.producer().graph  # type: ignore[union-attr]
    assert graph is not None
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new


def _inside(node: ir.Node) -> list[ir.Node]:
    return [inner for body in bodies(node) for inner in walk(body)]


def _formal(value: ir.Value | None, index: int) -> ir.Value:
    if value is None:
        return ir.val(f"absent_{index}")
    return ir.val(f"input_{index}", type=value.type, shape=value.shape)


def _rewire(node: ir.Node, places: Mapping[ir.Value, ir.Value | None]) -> None:
    """Replace the values that a node and its subgraphs read."""
    for index, value in enumerate(node.inputs):
        if value is not None and value in places:
            node.replace_input_with(index, places[value])
    for body in bodies(node):
        for inner in body:
            _rewire(inner, places)
        for index, value in enumerate(body.outputs):
            other = places.get(value)
            if other is not None:
                body.outputs[index] = other


def _free_overload(functions: Functions, name: str) -> str:
    """An unused overload number for this composite."""
    for number in count(len(functions)):
        if (DOMAIN, name, str(number)) not in functions:
            return str(number)
    raise AssertionError
