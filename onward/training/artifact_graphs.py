"""Graphs: a model with its loss becomes the training graph and the eval graph of the artifacts.

Training: inputs = user inputs, parameters, `{p}_grad.accumulation.buffer`, `lazy_reset_grad`;
outputs = loss, other outputs, `{p}_grad.accumulation.out`, `{state}_updated`. Eval: user inputs and
parameters; loss and other outputs. Both are plain ONNX, and name their parts in their metadata.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.gradients.backward import FLOATS
from onward.gradients.model import extend, lift_weights
from onward.gradients.table import GRADIENTS
from onward.graph.graph_ops import GraphOps, taken_names
from onward.graph.graph_ops import extend as extension
from onward.graph.scopes import walk
from onward.passes.downgrade import STOCK_OPSET
from onward.passes.exporters.exporter_warnings import warn_of_exporter
from onward.passes.older_opsets import convert_to_opset
from onward.passes.ort_workarounds import apply_ort_workarounds
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.prune import drop_unused
from onward.passes.training_mode import eval_mode, separate_statistics, train_mode
from onward.passes.value_facts import attribute, input_of, is_constant
from onward.programs import label_ranges
from onward.programs.build import scalar_loss
from onward.programs.label_ranges import LabelRange
from onward.programs.labels import find_labels
from onward.programs.select import restore_parameters
from onward.training.packed_graphs import Wanted, pack_step
from onward.training.trained_parameters import Groups, check_names

GRADIENT = "{}_grad"
BUFFER = "{}_grad.accumulation.buffer"
ACCUMULATED = "{}_grad.accumulation.out"
RESET = "lazy_reset_grad"
UPDATED = "{}_updated"
LABELS = "onward.labels"  # what feeds of class labels may hold; a loss may say it beforehand
_STOCK_IR_VERSION = 10
_MODE_SINCE = 12  # the opset in which Dropout's mode became an input

log = logging.getLogger("onward")


@dataclass(frozen=True)
class TrainingGraphs:
    """The two graphs, and the parameters by name: both take those of float types as inputs."""

    training: ir.Model
    evaluation: ir.Model
    trainable: dict[str, ir.TensorProtocol]
    frozen: dict[str, ir.TensorProtocol]


@dataclass(frozen=True)
class _Parts:
    """Who is who among the names of a model."""

    inputs: list[str]  # the user's, targets last
    outputs: list[str]  # the loss first
    parameters: list[str]  # in the order of the initializers
    trained: list[str]  # parameters, and inputs whose gradients were asked for
    inner: list[str]  # what nodes make whose gradients were asked for
    state: list[str]  # parameters that the forward changes
    labels: list[LabelRange]


def training_graphs(
    model: ir.Model,
    outputs: Sequence[str],
    trainable: Collection[str],
    frozen: Collection[str],
    opset: int = 0,
    tied: Groups = None,
    clips: bool = False,
) -> TrainingGraphs:
    """The graphs of a model whose first output is the loss; the model is changed.

    `trainable` and `frozen` name initializers, which become inputs; `trainable` may also name
    inputs, and what nodes make: its gradient is an output, `{name}_grad`, and not summed. Running
    statistics of BatchNormalization become parameters wherever they move. Integers and flags among
    the frozen (shapes, axes, modes) stay constants: the graphs are built on them. They are in
    `opset`, where it can say them; else in the oldest that can. `tied` are groups of names that
    are one parameter each; None: as the model tells. `clips` tells that the optimizer will clip
    by norm.
    """
    named = [*trainable, *frozen]
    guesses = restore_parameters(model, named, named, tied)
    separate_statistics(model)
    warn_of_exporter(model, trainable, guesses)
    lift_weights(model, named)
    weights = {name: value.const_value for name, value in model.graph.initializers.items()}
    check_names(model, trainable, frozen)
    prepared = PREPARE(model.clone())
    state = train_mode(prepared, lambda node: _stays(node, trainable), unbiased=True)
    trainable = _differentiable(trainable, state, weights)
    kept = {name: _held(weights[name]) for name in weights if name in {*trainable, *frozen, *state}}
    fed = [name for name, tensor in kept.items() if name not in frozen or tensor.dtype in FLOATS]
    inputs = [str(x.name) for x in model.graph.inputs if x.name not in weights]
    trained = [name for name in (*inputs, *fed) if name in trainable]
    labels = [each for each in _labels(prepared) if each.name in inputs]
    inner = [name for name in trainable if name not in {*trained, *weights}]
    parts = _Parts(inputs, list(outputs), fed, trained, inner, list(state), labels)
    return TrainingGraphs(
        training=_training(prepared, parts, state, opset, clips),
        evaluation=_evaluation(model, parts, opset),
        trainable={name: tensor for name, tensor in kept.items() if name in trainable},
        frozen={name: tensor for name, tensor in kept.items() if name not in trainable},
    )


def _labels(model: ir.Model) -> list[LabelRange]:
    """What inputs of class labels may hold: as the loss said, and as its operator does."""
    promised = label_ranges.from_json(model.metadata_props.get(LABELS, "[]"))
    return list({each.name: each for each in (*promised, *find_labels(model))}.values())


def _differentiable(
    trainable: Collection[str],
    state: Collection[str],
    weights: Mapping[str, ir.TensorProtocol | None],
) -> list[str]:
    """Without running statistics, which the forward moves by itself, and without whole numbers.

    Exporters leave shapes and axes among the weights, and scripts ask for all weights there are.
    """
    found = []
    for name in trainable:
        tensor = weights.get(name)
        if name in state:
            log.warning("%r requires no gradient: BatchNormalization moves it in training", name)
        elif tensor is not None and tensor.dtype not in FLOATS:
            log.warning("%r requires no gradient: it is %s", name, tensor.dtype.name)
        else:
            found.append(name)
    return found


def _held(tensor: ir.TensorProtocol | None) -> ir.TensorProtocol:
    assert tensor is not None
    return tensor


def _stays(node: ir.Node, trainable: Collection[str]) -> bool:
    """Whether BatchNormalization keeps its running statistics: nobody trains it, by any sign."""
    if node.op_type != "BatchNormalization" or attribute(node, "training_mode", 0):
        return False
    return not any(value is not None and value.name in trainable for value in node.inputs[1:3])


# -- training --------------------------------------------------------------------------------------


def _training(
    model: ir.Model, parts: _Parts, state: dict[str, str], opset: int, clips: bool
) -> ir.Model:
    graph = model.graph
    _feed(model, parts)
    seed = _scalar_loss(model, parts.outputs[0])
    step = model.clone()
    gradients: dict[str, str] = {}
    if parts.trained or parts.inner:
        gradients = extend(model, {seed: None}, [*parts.trained, *parts.inner], GRADIENTS)
    values = {str(value.name): value for value in graph.outputs}
    _accumulate(model, [(name, values[gradients[name]]) for name in parts.trained])
    values |= {str(value.name): value for value in graph.outputs}
    order = [
        *parts.outputs,
        *(gradients[name] for name in parts.inner),
        *(ACCUMULATED.format(name) for name in parts.trained),
        *(_updated(model, name, values[state[name]], values) for name in parts.state),
    ]
    graph.outputs.clear()
    graph.outputs.extend(values[name] for name in dict.fromkeys(order))
    _describe(model, parts)
    model = _for_onnxruntime(apply_ort_workarounds(TRAINING(model)), opset)
    _name_gradients(model, parts.trained)
    model = _keep_dropout(model)
    wanted = Wanted(
        loss=seed,
        outputs=parts.outputs,
        parameters=[name for name in parts.trained if name in parts.parameters],
        inputs=[name for name in parts.trained if name in parts.inputs],
        inner=parts.inner,
        state={name: state[name] for name in parts.state},
    )
    pack_step(model, step, wanted, squared=clips)
    return model


def _name_gradients(model: ir.Model, trained: Sequence[str]) -> None:
    """A gradient before it is summed is `{p}_grad`: who wants it alone makes it an output.

    Where one value is the gradient of several, the first gives it its name.
    """
    taken = taken_names(model)
    sums = {value.name: value.producer() for value in model.graph.outputs}
    for name in reversed(trained):
        node, wish = sums[ACCUMULATED.format(name)], GRADIENT.format(name)
        assert node is not None
        (alone,) = node.attributes["then_branch"].as_graph()
        g = alone.inputs[0]
        assert g is not None
        if wish not in taken and g.producer() is not None and not g.is_graph_output():
            g.name = wish


def _keep_dropout(model: ir.Model) -> ir.Model:
    """Let Dropout read its mode and its ratio from nodes.

    Where nobody reads the mask, onnxruntime takes Dropout for a copy of its one input that a node
    makes, whatever the mode is: it must have two.
    """
    graph = model.graph
    nodes = [node for node in walk(graph) if _drops(node) and not _mask_is_read(node)]
    if nodes:
        op = extension(model)
        reset = next(value for value in graph.inputs if value.name == RESET)
        now = op.Squeeze(reset, [0])
        always = op.Or(now, op.Not(now))
        one = op.Cast(always, to=int(ir.DataType.FLOAT))
        for node in nodes:
            ratio = input_of(node, 1) or op.constant(np.array(0.5, np.float32))
            node.replace_input_with(1, op.Mul(op.cast_like(one, ratio), ratio))
            node.replace_input_with(2, always)
        graph.sort()
    return drop_unused(model)


def _drops(node: ir.Node) -> bool:
    """Whether a node is a Dropout in training mode."""
    return node.op_type == "Dropout" and len(node.inputs) > 2 and is_constant(node.inputs[2])


def _mask_is_read(node: ir.Node) -> bool:
    return any(mask.uses() or mask.is_graph_output() for mask in node.outputs[1:])


def _updated(model: ir.Model, name: str, new: ir.Value, values: dict[str, ir.Value]) -> str:
    """The output that holds a state's next contents, under the name that devices look for."""
    wanted = UPDATED.format(name)
    if new.name != wanted:  # it was an output already, under another name
        copy = extension(model).Identity(new)
        copy.name = wanted
        values[wanted] = copy
    return wanted


def _feed(model: ir.Model, parts: _Parts) -> None:
    """Parameters become inputs, after those of the user; their data goes elsewhere."""
    graph = model.graph
    given = {str(value.name): value for value in graph.inputs} | dict(graph.initializers)
    graph.inputs.clear()
    for name in parts.parameters:
        value = graph.initializers.pop(name)
        value.const_value = None
    graph.inputs.extend(given[name] for name in (*parts.inputs, *parts.parameters))


def _scalar_loss(model: ir.Model, name: str) -> str:
    """The value to differentiate, which the graph returns as well: the loss as one number."""
    loss = next(value for value in model.graph.outputs if value.name == name)
    number = scalar_loss(extension(model), loss)
    if number is not loss:
        model.graph.outputs.append(number)
    return str(number.name)


def _accumulate(model: ir.Model, gradients: Sequence[tuple[str, ir.Value]]) -> None:
    """out = reset ? g : buffer + g; what a buffer held before a reset is never looked at."""
    op = extension(model)
    buffers = [ir.val(BUFFER.format(name), type=g.type, shape=g.shape) for name, g in gradients]
    model.graph.inputs.extend(buffers)
    reset = op.input(RESET, "bool", [1])
    for (name, g), buffer in zip(gradients, buffers):
        # onnxruntime takes an If in a third of the time that it takes a Where
        branches = {
            "then_branch": _branch(op, "Identity", g),
            "else_branch": _branch(op, "Add", buffer, g),
        }
        [out] = op.typed("If", [reset], branches, like=[g])
        out.name = ACCUMULATED.format(name)
        model.graph.outputs.append(out)


def _branch(op: GraphOps, op_type: str, *inputs: ir.Value) -> ir.Graph:
    """A body of one node that reads values from outside and gives one of the last one's type."""
    node = ir.node(op_type, inputs)
    result = node.outputs[0]
    result.name, result.type, result.shape = op.name(op_type), inputs[-1].type, inputs[-1].shape
    return ir.Graph((), [result], nodes=[node], name=op.name("accumulate"))


# -- evaluation ------------------------------------------------------------------------------------


def _evaluation(model: ir.Model, parts: _Parts, opset: int) -> ir.Model:
    _feed(model, parts)
    dropouts = _set_aside_dropout(model)
    eval_mode(model)
    for node in dropouts:
        node.domain = ""
    _describe(model, parts)
    if model.opset_imports.get("", 1) > STOCK_OPSET:
        model = PREPARE(model)
    return _for_onnxruntime(apply_ort_workarounds(model), opset)


def _set_aside_dropout(model: ir.Model) -> list[ir.Node]:
    """Dropout nodes without their mode, under a name by which `eval_mode` does not take them out.

    Users look for them in their eval models, as in the peer's; onnxruntime takes them for copies.
    """
    if model.opset_imports.get("", 1) < _MODE_SINCE:
        return []
    nodes = [node for node in model.graph if node.op_type == "Dropout" and not node.domain]
    idle = [node for node in nodes if not _mask_is_read(node)]
    for node in idle:
        node.resize_inputs(3)
        node.replace_input_with(2, None)
        node.domain = "onward.aside"
    return idle


def _for_onnxruntime(model: ir.Model, opset: int) -> ir.Model:
    """In an opset that the stock wheel loads, if its operators can be said there."""
    if model.opset_imports.get("", 1) > STOCK_OPSET:
        try:
            model = convert_to_opset(model, opset)
        except UnsupportedModel:  # its own forward needs a newer one
            return model
    model.ir_version = min(max(model.ir_version or 0, 8), _STOCK_IR_VERSION)
    return model


def _describe(model: ir.Model, parts: _Parts) -> None:
    """What the device asks: which names are whose."""
    said = {
        "inputs": parts.inputs,
        "outputs": parts.outputs,
        "trainable": parts.trained,
        "frozen": [name for name in parts.parameters if name not in parts.trained],
        "state": parts.state,
    }
    model.metadata_props.update({f"onward.{key}": json.dumps(v) for key, v in said.items()})
    model.metadata_props[LABELS] = label_ranges.to_json(parts.labels)
    model.producer_name = "onward"


def stock(proto: onnx.ModelProto, wanted: int = 0) -> onnx.ModelProto:
    """A model that blocks have built, in an opset that the stock wheel loads."""
    opset = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    if opset <= STOCK_OPSET and proto.ir_version <= _STOCK_IR_VERSION:
        return proto
    model = ir.from_proto(proto)
    return ir.to_proto(_for_onnxruntime(PREPARE(model) if opset > STOCK_OPSET else model, wanted))
