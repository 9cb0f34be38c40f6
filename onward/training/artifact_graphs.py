"""Build the training graph and the eval graph of the artifacts from a model with its loss.

Training: inputs = user inputs, parameters, `{p}_grad.accumulation.buffer`, `lazy_reset_grad`;
outputs = loss, other outputs, `{p}_grad.accumulation.out`, `{state}_updated`. Eval: user inputs and
parameters; loss and other outputs. Both are plain ONNX, and their metadata
lists the names of each kind.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.gradients.model import extend, lift_weights
from onward.gradients.table import GRADIENTS
from onward.graph.dtypes import FLOATS
from onward.graph.graph_ops import GraphOps, taken_names
from onward.graph.graph_ops import extend as extension
from onward.passes.downgrade import STOCK_OPSET
from onward.passes.exporters.exporter_warnings import warn_of_exporter
from onward.passes.older_opsets import in_opset
from onward.passes.ort_workarounds import apply_ort_workarounds
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.training_mode import train_mode, untie_statistics
from onward.passes.value_facts import attribute
from onward.programs import label_ranges
from onward.programs.build import scalar_loss
from onward.programs.label_ranges import LabelRange
from onward.programs.labels import find_labels
from onward.programs.select import restore_parameters
from onward.training.kept_dropout import eval_mode_with_dropout, keep_training_dropout
from onward.training.packed_graphs import GraphNames, pack_step
from onward.training.trained_parameters import Groups, check_names

GRADIENT = "{}_grad"
BUFFER = "{}_grad.accumulation.buffer"
ACCUMULATED = "{}_grad.accumulation.out"
RESET = "lazy_reset_grad"
UPDATED = "{}_updated"
LABELS = "onward.labels"  # metadata: the ranges of class labels; a loss may have written it
_STOCK_IR_VERSION = 10

log = logging.getLogger("onward")


@dataclass(frozen=True)
class ArtifactGraphs:
    """The two graphs, and the parameters by name: both take those of float types as inputs."""

    training: ir.Model
    evaluation: ir.Model
    trainable: dict[str, ir.TensorProtocol]
    frozen: dict[str, ir.TensorProtocol]


def build_artifact_graphs(
    model: ir.Model,
    outputs: Sequence[str],
    trainable: Collection[str],
    frozen: Collection[str],
    opset: int = 0,
    tied: Groups = None,
    clips: bool = False,
) -> ArtifactGraphs:
    """Build both graphs of a model whose first output is the loss; the model is changed.

    `trainable` and `frozen` name initializers, which become inputs; `trainable` may also name
    inputs and values of nodes: their gradients are outputs, `{name}_grad` for values of nodes,
    which are not summed. Running statistics of BatchNormalization become parameters if training
    changes them. Frozen integers and bools (shapes, axes, modes) stay constants: the graphs are
    built on them. The graphs are in `opset`, or in the oldest one that has their operators. `tied`
    are groups of names that are one parameter each; None: as the model ties them. `clips`: the
    optimizer will clip by norm.
    """
    named = [*trainable, *frozen]
    guesses = restore_parameters(model, named, named, tied)
    untie_statistics(model)
    warn_of_exporter(model, trainable, guesses)
    lift_weights(model, named)
    weights = {name: value.const_value for name, value in model.graph.initializers.items()}
    check_names(model, trainable, frozen)
    prepared = PREPARE(model.clone())
    state = train_mode(prepared, lambda node: _keeps_statistics(node, trainable), unbiased=True)
    trainable = _differentiable(trainable, state, weights)
    named = [name for name in weights if name in {*trainable, *frozen, *state}]
    kept = {name: tensor for name in named if (tensor := weights[name]) is not None}
    fed = [name for name, tensor in kept.items() if name not in frozen or tensor.dtype in FLOATS]
    inputs = [str(x.name) for x in model.graph.inputs if x.name not in weights]
    trained = [name for name in (*inputs, *fed) if name in trainable]
    labels = [each for each in _labels(prepared) if each.name in inputs]
    inner = [name for name in trainable if name not in {*trained, *weights}]
    names = GraphNames(inputs, list(outputs), fed, trained, inner, state, labels)
    return ArtifactGraphs(
        training=_build_training(prepared, names, opset, clips),
        evaluation=_build_evaluation(model, names, opset),
        trainable={name: tensor for name, tensor in kept.items() if name in trainable},
        frozen={name: tensor for name, tensor in kept.items() if name not in trainable},
    )


def _labels(model: ir.Model) -> list[LabelRange]:
    """The ranges of class labels among the inputs: of the metadata and of the loss operator."""
    promised = label_ranges.from_json(model.metadata_props.get(LABELS, "[]"))
    return list({each.name: each for each in (*promised, *find_labels(model))}.values())


def _differentiable(
    trainable: Collection[str],
    state: Collection[str],
    weights: Mapping[str, ir.TensorProtocol | None],
) -> list[str]:
    """The names to train, without running statistics and integers.

    Exporters store shapes and axes as weights, and scripts ask for gradients of all weights.
    """
    found = []
    for name in trainable:
        tensor = weights.get(name)
        if name in state:
            log.warning("%r requires no gradient: BatchNormalization updates it in training", name)
        elif tensor is not None and tensor.dtype not in FLOATS:
            log.warning("%r requires no gradient: it is %s", name, tensor.dtype.name)
        else:
            found.append(name)
    return found


def _keeps_statistics(node: ir.Node, trainable: Collection[str]) -> bool:
    """Whether BatchNormalization stays in inference mode: neither set to training nor trained."""
    if node.op_type != "BatchNormalization" or attribute(node, "training_mode", 0):
        return False
    return not any(value is not None and value.name in trainable for value in node.inputs[1:3])


# -- training --------------------------------------------------------------------------------------


def _build_training(model: ir.Model, names: GraphNames, opset: int, clips: bool) -> ir.Model:
    graph = model.graph
    _make_parameters_inputs(model, names)
    loss = _add_scalar_loss(model, names.outputs[0])
    step = model.clone()
    gradients: dict[str, str] = {}
    if names.trained or names.inner:
        gradients = extend(model, {loss: None}, [*names.trained, *names.inner], GRADIENTS)
    values = {str(value.name): value for value in graph.outputs}
    _accumulate(model, [(name, values[gradients[name]]) for name in names.trained])
    values |= {str(value.name): value for value in graph.outputs}
    order = [
        *names.outputs,
        *(gradients[name] for name in names.inner),
        *(ACCUMULATED.format(name) for name in names.trained),
        *(_updated(model, name, values[new], values) for name, new in names.state.items()),
    ]
    graph.outputs.clear()
    graph.outputs.extend(values[name] for name in dict.fromkeys(order))
    _write_metadata(model, names)
    model = _to_stock_opset(apply_ort_workarounds(TRAINING(model)), opset)
    _name_gradients(model, names.trained)
    model = keep_training_dropout(model, RESET)
    pack_step(model, step, names, loss, squared=clips)
    return model


def _name_gradients(model: ir.Model, trained: Sequence[str]) -> None:
    """Name each gradient before it is summed `{p}_grad`, so that users can make it an output.

    A value that is the gradient of several parameters is named after the first.
    """
    taken = taken_names(model)
    sums = {value.name: value.producer() for value in model.graph.outputs}
    for name in reversed(trained):
        node, wish = sums[ACCUMULATED.format(name)], GRADIENT.format(name)
        assert node is not None
        (copy,) = node.attributes["then_branch"].as_graph()
        g = copy.inputs[0]
        assert g is not None
        if wish not in taken and g.producer() is not None and not g.is_graph_output():
            g.name = wish


def _updated(model: ir.Model, name: str, new: ir.Value, values: dict[str, ir.Value]) -> str:
    """The output with a statistic's next contents, under the name that Module looks for."""
    wanted = UPDATED.format(name)
    if new.name != wanted:  # it was an output already, under another name
        copy = extension(model).Identity(new)
        copy.name = wanted
        values[wanted] = copy
    return wanted


def _make_parameters_inputs(model: ir.Model, names: GraphNames) -> None:
    """Turn parameters from initializers into inputs, after those of the user."""
    graph = model.graph
    given = {str(value.name): value for value in graph.inputs} | dict(graph.initializers)
    graph.inputs.clear()
    for name in names.parameters:
        value = graph.initializers.pop(name)
        value.const_value = None
    graph.inputs.extend(given[name] for name in (*names.inputs, *names.parameters))


def _add_scalar_loss(model: ir.Model, name: str) -> str:
    """Add the loss as one number, which is differentiated, to the outputs; its name."""
    loss = next(value for value in model.graph.outputs if value.name == name)
    number = scalar_loss(extension(model), loss)
    if number is not loss:
        model.graph.outputs.append(number)
    return str(number.name)


def _accumulate(model: ir.Model, gradients: Sequence[tuple[str, ir.Value]]) -> None:
    """out = reset ? g : buffer + g; after a reset, the buffer is not read."""
    op = extension(model)
    buffers = [ir.val(BUFFER.format(name), type=g.type, shape=g.shape) for name, g in gradients]
    model.graph.inputs.extend(buffers)
    reset = op.input(RESET, "bool", [1])
    for (name, g), buffer in zip(gradients, buffers):
        # onnxruntime runs an If three times as fast as a Where
        branches = {
            "then_branch": _branch(op, "Identity", g),
            "else_branch": _branch(op, "Add", buffer, g),
        }
        [out] = op.typed("If", [reset], branches, like=[g])
        out.name = ACCUMULATED.format(name)
        model.graph.outputs.append(out)


def _branch(op: GraphOps, op_type: str, *inputs: ir.Value) -> ir.Graph:
    """A branch of one node over outer values; its result has the type of the last one."""
    node = ir.node(op_type, inputs)
    result = node.outputs[0]
    result.name, result.type, result.shape = op.name(op_type), inputs[-1].type, inputs[-1].shape
    return ir.Graph((), [result], nodes=[node], name=op.name("accumulate"))


# -- evaluation ------------------------------------------------------------------------------------


def _build_evaluation(model: ir.Model, names: GraphNames, opset: int) -> ir.Model:
    _make_parameters_inputs(model, names)
    eval_mode_with_dropout(model)
    _write_metadata(model, names)
    if model.opset_imports.get("", 1) > STOCK_OPSET:
        model = PREPARE(model)
    return _to_stock_opset(apply_ort_workarounds(model), opset)


def _to_stock_opset(model: ir.Model, opset: int) -> ir.Model:
    """Lower a model to an opset that the stock wheel loads, if it has the model's operators."""
    if model.opset_imports.get("", 1) > STOCK_OPSET:
        try:
            model = in_opset(model, opset)
        except UnsupportedModel:  # the user's operators need a newer one
            return model
    model.ir_version = min(max(model.ir_version or 0, 8), _STOCK_IR_VERSION)
    return model


def _write_metadata(model: ir.Model, names: GraphNames) -> None:
    """List the names that Module needs, by their kind."""
    lists = {
        "inputs": names.inputs,
        "outputs": names.outputs,
        "trainable": names.trained,
        "frozen": [name for name in names.parameters if name not in names.trained],
        "state": list(names.state),
    }
    model.metadata_props.update({f"onward.{key}": json.dumps(v) for key, v in lists.items()})
    model.metadata_props[LABELS] = label_ranges.to_json(names.labels)
    model.producer_name = "onward"


def to_stock_opset(proto: onnx.ModelProto, wanted: int = 0) -> onnx.ModelProto:
    """Lower a model that blocks have built to an opset that the stock wheel loads."""
    opset = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    if opset <= STOCK_OPSET and proto.ir_version <= _STOCK_IR_VERSION:
        return proto
    model = ir.from_proto(proto)
    return ir.to_proto(_to_stock_opset(PREPARE(model) if opset > STOCK_OPSET else model, wanted))
