"""Give a model a new last layer: in place of its own, or behind its features.

head = new_head(model, outputs=3)
session = TrainingSession(head.model, loss, optimizer, {"trainable": head.names})
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.dtypes import FLOATS
from onward.graph.files import least_ir_version
from onward.graph.graph_ops import extend, taken_names
from onward.graph.initializer_names import rename
from onward.graph.shapes.infer import infer_shapes
from onward.passes.drop_unused import drop_unused
from onward.passes.exporters.provenance import CALL
from onward.passes.rewrite import Names
from onward.passes.training_mode import free_name
from onward.passes.value_facts import Array, attribute, input_of
from onward.runner.finetune.last_layer import (
    LastLayer,
    add_initializer,
    find_last_layer,
    find_output,
    resize_reshape,
    update_shapes,
)
from onward.runner.finetune.linear_layers import prepare_layers
from onward.settings import integer, nonempty_name, optional


@dataclass(frozen=True, kw_only=True)
class NewHead:
    """A model with a new last layer, and the names of that layer's parameters."""

    model: ir.Model
    names: tuple[str, ...]


def new_head(model: ir.Model, outputs: int, output: str | None = None, seed: int = 0) -> NewHead:
    """Replace the last linear layer of a copy of a model by a new one with `outputs` outputs.

    The layer is a Gemm, a MatMul with or without an Add, or a Conv. What follows it (Softmax,
    Sigmoid, pooling, Flatten) stays. The new parameters are `head.weight`, initialised as
    torch initialises linear layers, and `head.bias`, zero, if the layer had a bias.

    Args:
        model: the model, which does not change
        outputs: the number of outputs of the new layer, such as the number of classes
        output: the model's output that the layer makes; None: the first
        seed: of the new weights

    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> w = op.initializer("fc.weight", np.ones((4, 10), np.float32))
    >>> logits = op.MatMul(op.input("x", "float32", ("batch", 4)), w)
    >>> head = new_head(op.model(classes=op.Softmax(logits, axis=-1)), outputs=3)
    >>> head.names, str(head.model.graph.outputs[0].shape)
    (('head.weight',), '[batch,3]')
    """
    outputs, seed = integer(1)("outputs", outputs), integer(0)("seed", seed)
    output = optional(nonempty_name)("output", output)
    changed = prepare_layers(model)
    path = find_last_layer(find_output(changed, output))
    before = path.layer.shape[0 if path.layer.out_first else 1]
    made = _replace_parameters(changed, path, outputs, seed)
    for node in path.behind:
        if node.op_type == "Reshape":
            resize_reshape(changed, node, path.axis, before, outputs)
    update_shapes(changed, path, before, outputs)
    drop_unused(changed)  # the old parameters, so that the new ones may have their names
    taken = taken_names(changed) - {str(value.name) for value in made.values()}
    for kind, value in made.items():
        rename(value, free_name(f"head.{kind}", taken))
    changed.ir_version = least_ir_version(changed)
    return NewHead(model=changed, names=tuple(str(value.name) for value in made.values()))


def add_head(model: ir.Model, outputs: int, output: str | None = None, seed: int = 0) -> NewHead:
    """Add a linear layer behind an output of a copy of a model, such as the features of a text.

    The layer takes the output's last axis, and its result replaces the output, under the name
    `scores`; the parameters are `head.weight` and `head.bias`.

    Args:
        model: the model, which does not change
        outputs: the number of outputs of the layer
        output: the model's output that holds the features; None: the first
        seed: of the new weights

    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> model = op.model(features=op.Tanh(op.input("x", "float32", ("batch", 4))))
    >>> head = add_head(model, outputs=3)
    >>> head.names, str(head.model.graph.outputs[0].shape)
    (('head.weight', 'head.bias'), '[batch,3]')
    """
    outputs, seed = integer(1)("outputs", outputs), integer(0)("seed", seed)
    output = optional(nonempty_name)("output", output)
    changed = prepare_layers(model)
    features = find_output(changed, output)
    size = _last_size(changed, features)
    if not isinstance(size, int) or features.dtype not in FLOATS:
        raise OptionError(
            f"output {features.name!r} cannot have a layer behind it: its last size is not known, "
            "or it does not hold floats\nname another output"
        )
    op, taken = extend(changed), taken_names(changed)
    kind = ir.DataType(features.dtype or 1).numpy()
    weight = _new_weight((size, outputs), size, seed).astype(kind)
    names = [free_name(f"head.{each}", taken) for each in ("weight", "bias")]
    w = op.initializer(names[0], weight)
    scores = op.Add(op.MatMul(features, w), op.initializer(names[1], np.zeros(outputs, kind)))
    scores.name = free_name("scores", taken)
    scores.type = features.type
    if features.shape:
        scores.shape = ir.Shape([*features.shape[:-1], outputs])
    graph_outputs = changed.graph.outputs
    graph_outputs[graph_outputs.index(features)] = scores
    changed.ir_version = least_ir_version(changed)
    return NewHead(model=changed, names=tuple(names))


def _last_size(model: ir.Model, output: ir.Value) -> object:
    """The last size of an output, as declared or else inferred; not an int if it is not known."""
    size = output.shape[-1] if output.shape else None
    if isinstance(size, int):
        return size
    copy = model.clone()
    inferred = find_output(copy, str(output.name))
    inferred.shape = None  # what is declared stays
    infer_shapes(copy)
    return inferred.shape[-1] if inferred.shape else None


def _new_weight(shape: tuple[int, ...], size_in: int, seed: int) -> Array:
    """Random weights in the range that torch draws those of linear layers from."""
    bound = 1 / math.sqrt(max(size_in, 1))  # kaiming_uniform(a=sqrt(5))
    return np.random.default_rng(seed).uniform(-bound, bound, shape)


def _replace_parameters(
    model: ir.Model, path: LastLayer, outputs: int, seed: int
) -> dict[str, ir.Value]:
    """Let the layer read new parameters: "weight", and "bias" if it has one."""
    layer, node, names = path.layer, path.layer.node, Names(model)
    shape = layer.shape
    sizes_in = shape[1:] if layer.out_first else shape[:1]
    out_first = layer.is_conv or bool(attribute(node, "transB", 0))
    new_shape = (outputs, *sizes_in) if out_first else (*sizes_in, outputs)
    kind = layer.dtype.numpy()
    weight = _new_weight(new_shape, math.prod(sizes_in), seed).astype(kind)
    made = {"weight": add_initializer(model, names.fresh("head.weight"), weight)}
    node.replace_input_with(1, made["weight"])
    owner, index = path.bias or (node, 2)
    if input_of(owner, index) is not None:
        sizes = (outputs, *([1] * (len(shape) - 2))) if path.bias and layer.is_conv else (outputs,)
        made["bias"] = add_initializer(model, names.fresh("head.bias"), np.zeros(sizes, kind))
        owner.replace_input_with(index, made["bias"])
    for each in (node, owner):  # whose arguments of torch's program are gone
        each.metadata_props.pop(CALL, None)
    return made
