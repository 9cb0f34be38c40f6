"""Put a model into training mode or into inference mode.

    state = train_mode(model)     # {"bn.running_mean": "bn.running_mean_updated", ...}
    eval_mode(model)

In training mode, BatchNormalization normalises with the statistics of the batch and updates its
running statistics, and Dropout drops. In inference mode, BatchNormalization uses its running
statistics, and Dropout is removed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from onward.errors import InvalidModel, OptionError
from onward.graph.graph_ops import GraphOps, Size, extend, taken_names
from onward.graph.operators import is_random
from onward.graph.scopes import walk
from onward.message_text import suggest_names
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Names, substitute
from onward.passes.value_facts import attribute, input_of, is_constant, made_by, scalar

Frozen = Callable[[ir.Node], bool] | Collection[str]

MEAN, VAR = 3, 4  # BatchNormalization's inputs; outputs 1 and 2 are their updates
KINDS = {MEAN: "running_mean", VAR: "running_var"}
# metadata for eval_mode: on a node, its former attributes; on an output, the state it updates
_MOMENTUM, _UPDATES = "onward.momentum", "onward.renews"
_STATE = {MEAN: "onward.running_mean", VAR: "onward.running_var"}
_MASK_SINCE = 12  # the opset in which Dropout's mode became an input
_MODE_SINCE = 7  # the opset that removed is_test

log = logging.getLogger("onward")


def train_mode(model: ir.Model, frozen: Frozen = (), *, unbiased: bool = False) -> dict[str, str]:
    """Put a prepared model into training mode, in place; returns {state: its updated output}.

    The state is the running statistics of BatchNormalization, initializers of the main graph. Their
    updated values, `{name}_updated`, become the last outputs of the graph:

        new = momentum old + (1 - momentum) batch

    ONNX divides the variance of the batch by n, torch by n - 1: with `unbiased`, the new variance
    is torch's. A layer that is called twice updates its statistics twice, in the order of calls.
    Nodes that are `frozen` (a predicate, or names of nodes or of their outputs) are put into
    inference mode. Nodes with computed or fed statistics, and nodes in branches and loops, which
    cannot return state, keep their mode: a log line names them. Make the state graph inputs before
    you run passes over the result, which would take initializers for constants.
    """
    is_frozen, names = _frozen_predicate(model, frozen), Names(model)
    opset = model.opset_imports[""]
    for node in _nodes_with_modes(model):
        if is_frozen(node) and node.op_type == "Dropout":
            if is_random(node):
                disable_dropout(node, opset, names)
        elif is_frozen(node):
            _set_inference(node, opset, names, model.graph)
        elif node.op_type == "Dropout":
            _enable_dropout(node, opset, names)
    separate_statistics(model)
    op = extend(model)
    states: dict[str, ir.Value] = {}
    for node in _nodes_with_modes(model):
        if node.op_type != "BatchNormalization" or is_frozen(node):
            continue
        why = _why_stateless(model, node)
        if why is None:
            _set_training(op, node, states, unbiased)
        else:
            log.warning("BatchNormalization %r keeps its mode: %s", node.name, why)
    taken = taken_names(model)
    updated = {name: _add_output(model.graph, new, name, taken) for name, new in states.items()}
    model.graph.sort()
    return updated


def eval_mode(model: ir.Model) -> ir.Model:
    """Put a model into inference mode, in place: any opset, subgraphs and functions included.

    Dropout(x) becomes x, its mask all true; BatchNormalization uses its running statistics, which
    stay as they are. The graph's inputs and outputs keep their names; other random operators stay.
    """
    names = Names(model)
    for value in list(model.graph.outputs):
        state = value.metadata_props.pop(_UPDATES, None)
        if state is not None and value.producer() is not None:
            substitute(value, _find_value(model.graph, state), names)
    for graph, opset in _graphs_with_opsets(model):
        for node in list(walk(graph)):
            if node.op_type == "Dropout" and node.domain == "":
                disable_dropout(node, opset, names)
            elif _is_batch_norm(node):
                _set_inference(node, opset, names, graph)
    return drop_unused(model)


def separate_statistics(model: ir.Model) -> ir.Model:
    """Give each layer its own running statistics where an exporter merged equal tensors.

    Exporters merge initializers of equal content, such as the zeros of two new layers or of a bias.
    Two nodes share statistics only if they share all other inputs too, as a layer that is called
    twice does. The copies are named after the first output of their node: `{output}.running_mean`.
    """
    owners: dict[ir.Value, dict[object, list[tuple[ir.Node, int]]]] = {}
    for node in model.graph:
        for index in (MEAN, VAR) if _is_batch_norm(node) else ():
            root = _root(node, index)
            if root.is_initializer() and root.graph is model.graph:
                key = (index, *(_root(node, i) for i in (1, 2, MEAN, VAR)))
                owners.setdefault(root, {}).setdefault(key, []).append((node, index))
    taken = taken_names(model)
    for root, groups in owners.items():
        readers = {use for places in groups.values() for use in places}
        if len(groups) == 1 and _all_uses(root) <= readers and not root.is_graph_output():
            continue
        for places in groups.values():
            copy = _copy(model.graph, root, places[0], taken)
            for node, index in places:
                node.replace_input_with(index, copy)
    return model


def _copy(graph: ir.Graph, root: ir.Value, place: tuple[ir.Node, int], taken: set[str]) -> ir.Value:
    node, index = place
    name = free_name(f"{node.outputs[0].name}.{KINDS[index]}", taken)
    copy = ir.val(name, type=root.type, shape=root.shape, const_value=root.const_value)
    graph.register_initializer(copy)
    return copy


def free_name(wish: str, taken: set[str]) -> str:
    name, count = wish, 0
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    taken.add(name)
    return name


# -- training ------------------------------------------------------------------------------------


def _frozen_predicate(model: ir.Model, frozen: Frozen) -> Callable[[ir.Node], bool]:
    """A predicate for frozen nodes; names that no node has are refused."""
    if callable(frozen):
        return frozen
    frozen = {frozen} if isinstance(frozen, str) else set(frozen)
    known = [name for node in _nodes_with_modes(model) for name in _names(node)]
    for name in sorted(frozen - set(known)):
        raise OptionError(
            f"no BatchNormalization or Dropout is named {name!r}, so it cannot be frozen\n"
            f"{suggest_names(name, known)}"
        )
    return lambda node: not frozen.isdisjoint(_names(node))


def _nodes_with_modes(model: ir.Model) -> list[ir.Node]:
    """The BatchNormalization and Dropout nodes, subgraphs included."""
    nodes = (node for node in walk(model.graph) if node.domain == "")
    return [node for node in nodes if node.op_type in ("BatchNormalization", "Dropout")]


def _names(node: ir.Node) -> list[str]:
    return [str(name) for name in (node.name, node.outputs[0].name) if name]


def _enable_dropout(node: ir.Node, opset: int, names: Names) -> None:
    """Set training_mode to true; a Dropout of ratio 0 is removed instead."""
    if scalar(input_of(node, 1)) == 0:
        disable_dropout(node, opset, names)
        return
    graph, mode = node.graph, input_of(node, 2)
    assert graph is not None
    if is_constant(mode) and scalar(mode):
        return
    name = names.fresh(f"{node.outputs[0].name}/training_mode")
    tensor = ir.tensor(np.array(True), name=name)
    true = ir.val(name, dtype=tensor.dtype, shape=ir.Shape(()), const_value=tensor)
    graph.register_initializer(true)
    node.resize_inputs(3)
    node.replace_input_with(2, true)


def _why_stateless(model: ir.Model, node: ir.Node) -> str | None:
    """Why a node's statistics cannot be state; None if they can."""
    if node.graph is not model.graph:
        return "it is inside a branch or a loop, which cannot return state"
    for index, kind in KINDS.items():
        if not _root(node, index).is_initializer():
            return f"its {kind} {_root(node, index).name!r} is not an initializer"
    return None


def _set_training(op: GraphOps, node: ir.Node, states: dict[str, ir.Value], unbiased: bool) -> None:
    """Let the node return the batch's statistics, and update the running ones from them.

    With momentum 0 its running outputs are the batch's statistics, which the gradient needs too.
    onnxruntime overwrites the statistics inputs, so they are scratch tensors.
    """
    momentum = attribute(node, "momentum")
    roots = {index: _root(node, index) for index in KINDS}
    node.resize_outputs(3)
    node.attributes["momentum"] = ir.AttrFloat32("momentum", 0.0)
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
    node.metadata_props[_MOMENTUM] = repr(momentum)
    for index, root in roots.items():
        name = str(root.name)
        node.metadata_props[_STATE[index]] = name
        node.replace_input_with(index, op.scratch(root))
        running = batch = node.outputs[index - 2]
        uses = list(running.uses())
        running.name = running.name or op.name("BatchNormalization")
        running.type, running.shape = root.type, root.shape
        if unbiased and index == VAR:
            batch = op.Mul(batch, _correction(op, node, root))
        old = states.get(name, root)
        new = op.Add(op.Mul(old, momentum), op.Mul(batch, 1 - momentum))
        new.shape = root.shape
        for reader, place in uses:
            reader.replace_input_with(place, new)
        if running.is_graph_output():
            _replace_output(op, running, new)
        states[name] = new


def _correction(op: GraphOps, node: ir.Node, var: ir.Value) -> ir.Value | float:
    """n / (n - 1), n the number of elements of a channel; 1 for n = 1."""
    x = node.inputs[0]
    assert x is not None
    if x.shape is None:
        size: Size = op.Reshape(op.Div(op.Size(x), op.Size(var)), [1])
    else:
        size = op.product(op.size(x, 0), *op.sizes(x)[2:])
    if isinstance(size, int):
        return size / max(size - 1, 1)
    n = op.Cast(size, to=int(var.dtype or 1))
    return op.Div(n, op.Max(op.Sub(n, 1.0), 1.0))  # type: ignore[no-any-return]


def _add_output(graph: ir.Graph, new: ir.Value, state: str, taken: set[str]) -> str:
    """Make a state's updated value an output of the graph; its name."""
    if not new.is_graph_output():
        new.name = free_name(f"{state}_updated", taken)
        graph.outputs.append(new)
    new.metadata_props[_UPDATES] = state
    return str(new.name)


def _replace_output(op: GraphOps, old: ir.Value, new: ir.Value) -> None:
    """Replace a graph output, which keeps its name."""
    outputs = op.graph.outputs
    for i, value in enumerate(outputs):
        if value is old:
            outputs[i] = new
    old.name, new.name = op.name("BatchNormalization"), old.name
    new.type, new.shape = old.type, old.shape


# -- inference -----------------------------------------------------------------------------------


def _graphs_with_opsets(model: ir.Model) -> Iterator[tuple[ir.Graph, int]]:
    """The graphs of the model and of its functions, each with its opset."""
    yield model.graph, _opset(model.opset_imports)
    for function in model.functions.values():
        yield function.graph, _opset(function.opset_imports)


def _opset(imports: dict[str, int]) -> int:
    return imports.get("", imports.get("ai.onnx", 1))


def disable_dropout(node: ir.Node, opset: int, names: Names) -> None:
    """Replace a Dropout by its input, and its mask, if it is used, by all true."""
    x, graph = node.inputs[0], node.graph
    assert x is not None and graph is not None
    if any(y.uses() or y.is_graph_output() for y in node.outputs[1:]):
        if opset < _MASK_SINCE:
            return  # no training mode in this opset, and the mask's type depends on it
        wish = f"{node.outputs[1].name}/shape"
        shape = ir.node("Shape", [x], name=names.fresh(wish))
        true = {"value": ir.tensor(np.array([True]))}
        mask = ir.node("ConstantOfShape", shape.outputs, true, name=names.fresh(wish))
        for made in (shape, mask):
            made.outputs[0].name = names.fresh(wish)
            graph.insert_before(node, made)
        shape.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        substitute(node.outputs[1], mask.outputs[0], names)
    substitute(node.outputs[0], x, names)
    graph.remove(node, safe=True)


def _set_inference(node: ir.Node, opset: int, names: Names, graph: ir.Graph) -> None:
    """Let BatchNormalization use its running statistics and return only y."""
    for index, key in _STATE.items():
        name = node.metadata_props.pop(key, None)
        if name is not None:
            node.replace_input_with(index, _find_value(graph, name))
    momentum = node.metadata_props.pop(_MOMENTUM, None)
    if momentum is not None:
        node.attributes["momentum"] = ir.AttrFloat32("momentum", float(momentum))
    for index, running in enumerate(node.outputs):
        given = node.inputs[MEAN if index % 2 else VAR]
        if index and given is not None and (running.uses() or running.is_graph_output()):
            substitute(running, given, names)
    node.resize_outputs(1)
    if "training_mode" in node.attributes:
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
    if opset < _MODE_SINCE:
        node.attributes["is_test"] = ir.AttrInt64("is_test", 1)


def _find_value(graph: ir.Graph, name: str) -> ir.Value:
    """An initializer or an input of the graph, by name."""
    for value in (*graph.initializers.values(), *graph.inputs):
        if value.name == name:
            return value
    raise InvalidModel(
        f"the model does not have {name!r}, the running statistics of a BatchNormalization\n"
        "do not rename or remove them between training and export"
    )


# -- readers -------------------------------------------------------------------------------------


def is_trained_batch_norm(node: ir.Node) -> bool:
    """Whether `train_mode` has put this BatchNormalization into training mode."""
    return _is_batch_norm(node) and _MOMENTUM in node.metadata_props


def _is_batch_norm(node: ir.Node) -> bool:
    return node.op_type == "BatchNormalization" and node.domain == ""


def _root(node: ir.Node, index: int) -> ir.Value:
    """An input, or what it is an Identity of."""
    value = node.inputs[index]
    assert value is not None
    while (copied := made_by(value, "Identity")) is not None and copied.inputs[0] is not None:
        value = copied.inputs[0]
    return value


def _all_uses(value: ir.Value) -> set[tuple[ir.Node, int]]:
    """The node inputs that read a value, or an Identity of it."""
    found: set[tuple[ir.Node, int]] = set()
    for node, index in value.uses():
        found |= _behind_identity(node, index)
    return found


def _behind_identity(node: ir.Node, index: int) -> set[tuple[ir.Node, int]]:
    if node.op_type != "Identity" or node.domain or node.outputs[0].is_graph_output():
        return {(node, index)}
    copies: Iterable[set[tuple[ir.Node, int]]] = map(_all_uses, node.outputs)
    return functools.reduce(set.union, copies, set())
