"""Expand ONNX's training operators (ai.onnx.preview.training) to standard operators.

`expand(model)` replaces each Gradient node by the gradient graph and each Adam, Adagrad and
Momentum node by its formula: any runtime then runs the model. `step_model` combines a model and its
TrainingInfo into the model of one training step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.errors import InvalidModel, UnsupportedModel
from onward.gradients.backward import backward
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.gradients.table import GRADIENTS
from onward.gradients.training_optimizers import UPDATES
from onward.graph.graph_ops import taken_names
from onward.graph.initializer_names import rename
from onward.graph.scopes import bodies, reads
from onward.graph.training_info import TrainingInfo, check_training_info
from onward.passes.pipelines import PREPARE
from onward.passes.rewrite import Names, nodes_of, substitute
from onward.passes.value_facts import attribute

DOMAIN = "ai.onnx.preview.training"
_CONNECTED = "onward.preview"  # the domain of Gradient nodes that read the values they name


def expand(model: ir.Model, rules: GradientTable = GRADIENTS) -> ir.Model:
    """Prepare a model and expand its training operators, in place.

    Gradient(v, w; xs=[x], zs=[z], y) = d sum(y) / dx, at x = v and z = w.
    """
    for graph in (*model.graphs(), *(f.graph for f in model.functions.values())):
        _connect(graph)
    for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values())):
        imports[_CONNECTED] = 1
    model = PREPARE(model)
    grown = False
    for node in [node for node in nodes_of(model) if node.domain in (DOMAIN, _CONNECTED)]:
        if node.graph is not model.graph:
            raise UnsupportedModel(
                f"{node.op_type} (node {node.name!r}) is inside a subgraph\n"
                "training operators must be in the main graph: move it there"
            )
        if grown and node.op_type == "Gradient":  # a second derivative needs types and defaults
            model = PREPARE(model)
        _expand(model, node, rules)
        grown = True
    for domain in (DOMAIN, _CONNECTED):
        model.opset_imports.pop(domain, None)
    return PREPARE(model)


def _connect(graph: ir.Graph) -> None:
    """Make each Gradient node read the values that it names: passes change names, but keep edges.

    Its inputs are then the given values, y, and the values of xs and zs.
    """
    wanted = [node for node in graph if (node.domain, node.op_type) == (DOMAIN, "Gradient")]
    if not wanted:
        return
    known = _by_name(graph)
    for node in wanted:
        named = [*attribute(node, "xs", ()), *attribute(node, "zs", ())]
        if len(named) != len(node.inputs):
            raise InvalidModel(
                f"Gradient (node {node.name!r}) names {len(named)} values in xs and zs "
                f"and is given {len(node.inputs)}"
            )
        values = []
        for name in (attribute(node, "y", ""), *named):
            if name not in known:
                raise InvalidModel(
                    f"Gradient (node {node.name!r}) names {name!r}, which its graph does not have"
                )
            values.append(known[name])
        given = list(node.inputs)
        node.domain = _CONNECTED
        node.resize_inputs(len(given) + len(values))
        for index, value in enumerate(values, len(given)):
            node.replace_input_with(index, value)


def _expand(model: ir.Model, node: ir.Node, rules: GradientTable) -> None:
    graph, names = model.graph, Names(model)
    op = GradientOps(graph, taken_names(model), model.opset_imports, rules)
    results = _gradients(op, node) if node.op_type == "Gradient" else _update(op, node)
    for old, new in zip(node.outputs, results):
        if old.name:
            substitute(old, new, names)
    graph.remove(node, safe=True)
    graph.sort()


def _update(op: GradientOps, node: ir.Node) -> list[ir.Value]:
    if node.op_type not in UPDATES:
        raise UnsupportedModel(f"{DOMAIN} has no operator {node.op_type} (node {node.name!r})")
    return UPDATES[node.op_type](op, node)


# -- Gradient --------------------------------------------------------------------------------------


def _gradients(op: GradientOps, node: ir.Node) -> list[ir.Value]:
    values = [value for value in node.inputs if value is not None]
    count = (len(values) - 1) // 2
    given, y, named = values[:count], values[count], values[count + 1 :]
    path = _path(op.graph, y, named)
    moved = {old: new for old, new in zip(named, given) if old is not new}
    if moved:
        path, y = _copied(op, path, y, moved)
    xs = given[: len(attribute(node, "xs", ()))]
    found = backward(op, path, {y: op.filled_like(y, 1.0)}, xs)
    return [found[x] if x in found else op.zeros_like(x) for x in xs]


def _path(graph: ir.Graph, y: ir.Value, cut: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that compute y from the values of `cut`, in order."""
    needed, ends, found = {y}, set(cut), []
    for node in reversed(graph):
        if any(value in needed and value not in ends for value in node.outputs):
            found.append(node)
            needed.update(reads(node))
    return found[::-1]


def _copied(
    op: GradientOps, path: Sequence[ir.Node], y: ir.Value, moved: Mapping[ir.Value, ir.Value]
) -> tuple[list[ir.Node], ir.Value]:
    """A copy of the path that reads other values; nodes that do not depend on them are reused."""
    replaced, copies = dict(moved), []
    for node in path:
        if not any(value in replaced for value in reads(node)):
            copies.append(node)
            continue
        copy = ir.node(
            node.op_type,
            [replaced.get(value, value) if value is not None else None for value in node.inputs],
            domain=node.domain,
            num_outputs=len(node.outputs),
            name=op.name(node.op_type),
        )
        copy.attributes.update(_copied_attributes(op, node, replaced))
        for old, new in zip(node.outputs, copy.outputs):
            new.name = op.name(node.op_type) if old.name else ""
            new.type, new.shape = old.type, old.shape
            replaced[old] = new
        op.graph.append(copy)
        copies.append(copy)
    return copies, replaced.get(y, y)


def _copied_attributes(
    op: GradientOps, node: ir.Node, replaced: Mapping[ir.Value, ir.Value]
) -> dict[str, ir.Attr]:
    """A node's attributes; its subgraphs are copied and read the replaced values."""
    attributes = dict(node.attributes)
    for name, held in node.attributes.items():
        if held.type is ir.AttributeType.GRAPH:
            body = held.as_graph().clone(allow_outer_scope_values=True)
            _rename(op, body, replaced)
            attributes[name] = ir.AttrGraph(name, body)
    return attributes


def _rename(op: GradientOps, body: ir.Graph, replaced: Mapping[ir.Value, ir.Value]) -> None:
    for value in (*body.inputs, *list(body.initializers.values())):
        rename(value, op.name("copy"))
    for inner in body:
        inner.name = op.name(inner.op_type)
        for index, read in enumerate(inner.inputs):
            if read is not None and read in replaced:
                inner.replace_input_with(index, replaced[read])
        for value in inner.outputs:
            value.name = op.name(inner.op_type) if value.name else ""
        for deeper in bodies(inner):
            _rename(op, deeper, replaced)
    for index, value in enumerate(body.outputs):
        if value in replaced:
            body.outputs[index] = replaced[value]


# -- TrainingInfo ----------------------------------------------------------------------------------


def step_model(model: ir.Model, info: TrainingInfo) -> ir.Model:
    """One step of a training algorithm as a model: the inference graph, then the algorithm's.

    Its outputs are those of both. The variables, which `info.update_binding` maps to the outputs
    with their next values, are inputs whose first values are initializers: feed each step's
    results to the next.
    """
    check_training_info(model, [info])
    step = model.clone()
    if info.algorithm is None:
        return step
    _append_algorithm(step.graph, info.algorithm.clone(allow_outer_scope_values=True))
    for node in nodes_of(step):
        step.opset_imports.setdefault(node.domain, 1)
    for name in info.update_binding:
        variable = step.graph.initializers[name]
        if not variable.is_graph_input():
            step.graph.inputs.append(variable)
    step.ir_version = max(step.ir_version or 0, 8)  # initializers that feeds may override
    return step


def _append_algorithm(graph: ir.Graph, algorithm: ir.Graph) -> None:
    """Append the algorithm's graph, which reads the values of `graph` by name."""
    known = _by_name(graph)
    for name in set(known) & set(_by_name(algorithm)):
        raise InvalidModel(f"the model and its training algorithm both have a value {name!r}")
    _bind_outer_values(algorithm, known)
    outputs, initializers = list(algorithm.outputs), list(algorithm.initializers.values())
    inputs, nodes = list(algorithm.inputs), list(algorithm)
    for values in (algorithm.inputs, algorithm.outputs, algorithm.initializers):
        values.clear()
    algorithm.remove(nodes)
    for value in initializers:
        graph.register_initializer(value)
    graph.inputs.extend(value for value in inputs if value not in list(graph.inputs))
    graph.extend(nodes)
    graph.outputs.extend(value for value in outputs if value not in list(graph.outputs))


def _bind_outer_values(graph: ir.Graph, known: Mapping[str | None, ir.Value]) -> None:
    """Replace values that a graph reads and does not compute by the known ones of the same name."""
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is not None and _is_unbound(value):
                if value.name not in known:
                    raise InvalidModel(
                        f"the training algorithm's {node.op_type} (node {node.name!r}) reads "
                        f"{value.name!r}, which neither graph computes"
                    )
                node.replace_input_with(index, known[value.name])
        for body in bodies(node):
            _bind_outer_values(body, known)
    for index, value in enumerate(graph.outputs):
        if _is_unbound(value) and value.name in known:
            graph.outputs[index] = known[value.name]


def _by_name(graph: ir.Graph) -> dict[str | None, ir.Value]:
    made = [value for node in graph for value in node.outputs]
    return {v.name: v for v in (*graph.inputs, *graph.initializers.values(), *made) if v.name}


def _is_unbound(value: ir.Value) -> bool:
    return value.graph is None and value.producer() is None
