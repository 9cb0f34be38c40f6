"""Modes: what a model does in training and not afterwards, put on and taken off.

    state = train_mode(model)     # {"bn.running_mean": "bn.running_mean_updated", ...}
    eval_mode(model)

In training, BatchNormalization normalises with the statistics of the batch and moves its running
ones towards them, and Dropout drops. Afterwards the one uses its running statistics, the other is
gone.
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
from onward.names import suggest_names
from onward.passes.prune import drop_unused
from onward.passes.rewrite import Names, substitute
from onward.passes.value_facts import attribute, input_of, is_constant, made_by, scalar

Frozen = Callable[[ir.Node], bool] | Collection[str]

MEAN, VAR = 3, 4  # BatchNormalization's inputs; the outputs that renew them are 1 and 2
KINDS = {MEAN: "running_mean", VAR: "running_var"}
# what eval_mode reads: on a node, what it had before; on an output, the state that it renews
_MOMENTUM, _RENEWS = "onward.momentum", "onward.renews"
_STATE = {MEAN: "onward.running_mean", VAR: "onward.running_var"}
_MASK_SINCE = 12  # the opset in which Dropout's mode became an input
_MODE_SINCE = 7  # the opset in which is_test went

log = logging.getLogger("onward")


def train_mode(model: ir.Model, frozen: Frozen = (), *, unbiased: bool = False) -> dict[str, str]:
    """Put a prepared model into training mode, in place; its state's names to their new contents'.

    The state are the running statistics of BatchNormalization, initializers of the main graph. The
    values that hold their new contents, `{name}_updated`, become outputs of the graph, after those
    that it has:

        new = momentum old + (1 - momentum) batch

    ONNX takes the variance of the batch itself (divided by n), torch an estimate (by n - 1): with
    `unbiased`, the new variance is torch's. A layer that is called twice moves its statistics
    twice, the first call first. Nodes that are `frozen` (a test, or names of nodes or of their
    outputs) are in inference mode afterwards. Those whose statistics are computed or fed, and those
    in branches and loops, from which no state comes back, keep the mode that they have: a log line
    names them. Whoever runs passes over the result lets the state be fed first, or they take it
    for constants.
    """
    is_frozen, names = _test(model, frozen), Names(model)
    opset = model.opset_imports[""]
    for node in _modal(model):
        if is_frozen(node) and node.op_type == "Dropout":
            if is_random(node):
                keep_all(node, opset, names)
        elif is_frozen(node):
            _infer(node, opset, names, model.graph)
        elif node.op_type == "Dropout":
            _drop(node, opset, names)
    untie_statistics(model)
    op = extend(model)
    states: dict[str, ir.Value] = {}
    for node in _modal(model):
        if node.op_type != "BatchNormalization" or is_frozen(node):
            continue
        why = _no_state(model, node)
        if why is None:
            _train(op, node, states, unbiased)
        else:
            log.warning("BatchNormalization %r keeps its mode: %s", node.name, why)
    taken = taken_names(model)
    updated = {name: _return(model.graph, new, name, taken) for name, new in states.items()}
    model.graph.sort()
    return updated


def eval_mode(model: ir.Model) -> ir.Model:
    """Put a model into inference mode, in place: any opset, subgraphs and functions included.

    Dropout(x) becomes x, its mask all true; BatchNormalization uses its running statistics, which
    stay as they are. What the graph takes and returns keeps its name; other random operators stay.
    """
    names = Names(model)
    for value in list(model.graph.outputs):
        state = value.metadata_props.pop(_RENEWS, None)
        if state is not None and value.producer() is not None:
            substitute(value, _given(model.graph, state), names)
    for graph, opset in _parts(model):
        for node in list(walk(graph)):
            if node.op_type == "Dropout" and node.domain == "":
                keep_all(node, opset, names)
            elif _is_batch_norm(node):
                _infer(node, opset, names, graph)
    return drop_unused(model)


def untie_statistics(model: ir.Model) -> ir.Model:
    """Running statistics that only look alike become tensors of their own.

    Exporters merge initializers of equal content: the zeros of two fresh layers are one tensor
    then, and one of them may be a bias. Two nodes have statistics in common only if they have all
    else in common too, as a layer that is called twice has. The copies are named by the first
    output of their node: `{output}.running_mean`.
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


def _test(model: ir.Model, frozen: Frozen) -> Callable[[ir.Node], bool]:
    """Whether a node is frozen; names that no node has are refused."""
    if callable(frozen):
        return frozen
    frozen = {frozen} if isinstance(frozen, str) else set(frozen)
    known = [name for node in _modal(model) for name in _names(node)]
    for name in sorted(frozen - set(known)):
        raise OptionError(
            f"no BatchNormalization or Dropout is named {name!r}, so it cannot be frozen\n"
            f"{suggest_names(name, known)}"
        )
    return lambda node: not frozen.isdisjoint(_names(node))


def _modal(model: ir.Model) -> list[ir.Node]:
    """The nodes that have modes, subgraphs included."""
    nodes = (node for node in walk(model.graph) if node.domain == "")
    return [node for node in nodes if node.op_type in ("BatchNormalization", "Dropout")]


def _names(node: ir.Node) -> list[str]:
    return [str(name) for name in (node.name, node.outputs[0].name) if name]


def _drop(node: ir.Node, opset: int, names: Names) -> None:
    """training_mode = true, whatever it was; a ratio of 0 drops nothing."""
    if scalar(input_of(node, 1)) == 0:
        keep_all(node, opset, names)
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


def _no_state(model: ir.Model, node: ir.Node) -> str | None:
    """Why a node's statistics cannot be state; None if they can."""
    if node.graph is not model.graph:
        return "it is inside a branch or a loop, from which no state comes back"
    for index, kind in KINDS.items():
        if not _root(node, index).is_initializer():
            return f"its {kind} {_root(node, index).name!r} is not an initializer"
    return None


def _train(op: GraphOps, node: ir.Node, states: dict[str, ir.Value], unbiased: bool) -> None:
    """Let the node give the batch's statistics, and move the running ones towards them.

    At momentum 0 the node's running statistics are the batch's, which its gradient needs as well.
    onnxruntime writes them over what it was given, which is scratch then.
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
            _return_instead(op, running, new)
        states[name] = new


def _correction(op: GraphOps, node: ir.Node, var: ir.Value) -> ir.Value | float:
    """n / (n - 1), n the numbers that one channel has; 1 for a single one."""
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


def _return(graph: ir.Graph, new: ir.Value, state: str, taken: set[str]) -> str:
    """The name of a state's new content as an output of the graph, which it becomes."""
    if not new.is_graph_output():
        new.name = free_name(f"{state}_updated", taken)
        graph.outputs.append(new)
    new.metadata_props[_RENEWS] = state
    return str(new.name)


def _return_instead(op: GraphOps, old: ir.Value, new: ir.Value) -> None:
    """Let the graph return `new` under the name of `old`."""
    outputs = op.graph.outputs
    for i, value in enumerate(outputs):
        if value is old:
            outputs[i] = new
    old.name, new.name = op.name("BatchNormalization"), old.name
    new.type, new.shape = old.type, old.shape


# -- inference -----------------------------------------------------------------------------------


def _parts(model: ir.Model) -> Iterator[tuple[ir.Graph, int]]:
    """The model's graph and its functions', each with its opset."""
    yield model.graph, _opset(model.opset_imports)
    for function in model.functions.values():
        yield function.graph, _opset(function.opset_imports)


def _opset(imports: dict[str, int]) -> int:
    return imports.get("", imports.get("ai.onnx", 1))


def keep_all(node: ir.Node, opset: int, names: Names) -> None:
    """Dropout that drops nothing: x, and a mask of true where somebody reads it."""
    x, graph = node.inputs[0], node.graph
    assert x is not None and graph is not None
    if any(y.uses() or y.is_graph_output() for y in node.outputs[1:]):
        if opset < _MASK_SINCE:
            return  # it has no training mode, and its mask's type depends on the opset
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


def _infer(node: ir.Node, opset: int, names: Names, graph: ir.Graph) -> None:
    """BatchNormalization with its running statistics, and nothing but y."""
    for index, key in _STATE.items():
        name = node.metadata_props.pop(key, None)
        if name is not None:
            node.replace_input_with(index, _given(graph, name))
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


def _given(graph: ir.Graph, name: str) -> ir.Value:
    """An initializer or an input of the graph."""
    for value in (*graph.initializers.values(), *graph.inputs):
        if value.name == name:
            return value
    raise InvalidModel(f"the model has lost the running statistics {name!r}")


# -- who reads what ------------------------------------------------------------------------------


def _is_batch_norm(node: ir.Node) -> bool:
    return node.op_type == "BatchNormalization" and node.domain == ""


def _root(node: ir.Node, index: int) -> ir.Value:
    """An input, seen through Identity."""
    value = node.inputs[index]
    assert value is not None
    while (copied := made_by(value, "Identity")) is not None and copied.inputs[0] is not None:
        value = copied.inputs[0]
    return value


def _all_uses(value: ir.Value) -> set[tuple[ir.Node, int]]:
    """Who reads a value, or an Identity of it, and as which input."""
    found: set[tuple[ir.Node, int]] = set()
    for node, index in value.uses():
        found |= _beyond(node, index)
    return found


def _beyond(node: ir.Node, index: int) -> set[tuple[ir.Node, int]]:
    if node.op_type != "Identity" or node.domain or node.outputs[0].is_graph_output():
        return {(node, index)}
    copies: Iterable[set[tuple[ir.Node, int]]] = map(_all_uses, node.outputs)
    return functools.reduce(set.union, copies, set())
