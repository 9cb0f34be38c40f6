"""ONNX's own training operators (ai.onnx.preview.training) written in standard ones.

`expand(model)` puts the gradient graph in the place of each Gradient node and the formula in the
place of each Adam, Adagrad and Momentum node: any runtime then runs the model. `step_model` joins a
model and its TrainingInfo into the model of one training step.
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
_CONNECTED = "onward.preview"  # where a Gradient is, once it reads what it names


def expand(model: ir.Model, rules: GradientTable = GRADIENTS) -> ir.Model:
    """The model, in place, with its training operators in standard ones; prepared.

    Gradient(v, w; xs=[x], zs=[z], y) = d sum(y) / dx, with v in the place of x and w in that of z.
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
                f"{node.op_type} (node {node.name!r}) stands inside a subgraph\n"
                "training operators are run in a model's own graph: move it there"
            )
        if grown and node.op_type == "Gradient":  # of a gradient: types and defaults are asked for
            model = PREPARE(model)
        _expand(model, node, rules)
        grown = True
    for domain in (DOMAIN, _CONNECTED):
        model.opset_imports.pop(domain, None)
    return PREPARE(model)


def _connect(graph: ir.Graph) -> None:
    """Let each Gradient node read the values that it names: passes rename, edges they keep.

    Its inputs are then the values given, y, and the values of xs and zs.
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
    """The nodes that make y from the values of the cut, in order."""
    needed, ends, found = {y}, set(cut), []
    for node in reversed(graph):
        if any(value in needed and value not in ends for value in node.outputs):
            found.append(node)
            needed.update(reads(node))
    return found[::-1]


def _copied(
    op: GradientOps, path: Sequence[ir.Node], y: ir.Value, moved: Mapping[ir.Value, ir.Value]
) -> tuple[list[ir.Node], ir.Value]:
    """The path once more, at other values; what does not depend on them is not copied."""
    twins, copies = dict(moved), []
    for node in path:
        if not any(value in twins for value in reads(node)):
            copies.append(node)
            continue
        copy = ir.node(
            node.op_type,
            [twins.get(value, value) if value is not None else None for value in node.inputs],
            domain=node.domain,
            num_outputs=len(node.outputs),
            name=op.name(node.op_type),
        )
        copy.attributes.update(_own_bodies(op, node, twins))
        for old, new in zip(node.outputs, copy.outputs):
            new.name = op.name(node.op_type) if old.name else ""
            new.type, new.shape = old.type, old.shape
            twins[old] = new
        op.graph.append(copy)
        copies.append(copy)
    return copies, twins.get(y, y)


def _own_bodies(
    op: GradientOps, node: ir.Node, twins: Mapping[ir.Value, ir.Value]
) -> dict[str, ir.Attr]:
    """A node's attributes, its subgraphs copied, in which the twins stand."""
    attributes = dict(node.attributes)
    for name, held in node.attributes.items():
        if held.type is ir.AttributeType.GRAPH:
            body = held.as_graph().clone(allow_outer_scope_values=True)
            _rename(op, body, twins)
            attributes[name] = ir.AttrGraph(name, body)
    return attributes


def _rename(op: GradientOps, body: ir.Graph, twins: Mapping[ir.Value, ir.Value]) -> None:
    for value in (*body.inputs, *list(body.initializers.values())):
        rename(value, op.name("copy"))
    for inner in body:
        inner.name = op.name(inner.op_type)
        for index, read in enumerate(inner.inputs):
            if read is not None and read in twins:
                inner.replace_input_with(index, twins[read])
        for value in inner.outputs:
            value.name = op.name(inner.op_type) if value.name else ""
        for deeper in bodies(inner):
            _rename(op, deeper, twins)
    for index, value in enumerate(body.outputs):
        if value in twins:
            body.outputs[index] = twins[value]


# -- TrainingInfo ----------------------------------------------------------------------------------


def step_model(model: ir.Model, info: TrainingInfo) -> ir.Model:
    """One step of a training algorithm as a model: the inference graph, then the algorithm's.

    Its outputs are those of both. The variables, which `info.update_binding` maps to the outputs
    that hold their next values, are inputs whose first values stand as initializers: feed each
    step's results to the next.
    """
    check_training_info(model, [info])
    step = model.clone()
    if info.algorithm is None:
        return step
    _join(step.graph, info.algorithm.clone(allow_outer_scope_values=True))
    for node in nodes_of(step):
        step.opset_imports.setdefault(node.domain, 1)
    for name in info.update_binding:
        variable = step.graph.initializers[name]
        if not variable.is_graph_input():
            step.graph.inputs.append(variable)
    step.ir_version = max(step.ir_version or 0, 8)  # initializers that feeds may override
    return step


def initial_model(model: ir.Model, info: TrainingInfo) -> ir.Model | None:
    """What gives the variables their first values, as `info.initialization_binding` says."""
    if info.initialization is None:
        return None
    graph = info.initialization.clone()
    graph.opset_imports.update(model.opset_imports)
    return ir.Model(
        graph, ir_version=max(model.ir_version or 0, 8), functions=list(model.functions.values())
    )


def _join(graph: ir.Graph, algorithm: ir.Graph) -> None:
    """Append a graph that reads the values of another by their names."""
    known = _by_name(graph)
    for name in set(known) & set(_by_name(algorithm)):
        raise InvalidModel(f"the model and its training algorithm both have a value {name!r}")
    _bind(algorithm, known)
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


def _bind(graph: ir.Graph, known: Mapping[str | None, ir.Value]) -> None:
    """Let values that a graph reads and does not make be those of these names."""
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is not None and _is_loose(value):
                if value.name not in known:
                    raise InvalidModel(
                        f"the training algorithm's {node.op_type} (node {node.name!r}) reads "
                        f"{value.name!r}, which neither graph makes"
                    )
                node.replace_input_with(index, known[value.name])
        for body in bodies(node):
            _bind(body, known)
    for index, value in enumerate(graph.outputs):
        if _is_loose(value) and value.name in known:
            graph.outputs[index] = known[value.name]


def _by_name(graph: ir.Graph) -> dict[str | None, ir.Value]:
    made = [value for node in graph for value in node.outputs]
    return {v.name: v for v in (*graph.inputs, *graph.initializers.values(), *made) if v.name}


def _is_loose(value: ir.Value) -> bool:
    return value.graph is None and value.producer() is None
