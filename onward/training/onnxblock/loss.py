"""Losses as blocks: they read an output of the model and a target, which becomes an input.

A mean and a sum are single numbers, of no axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.external import referenced
from onward.graph.graph_ops import extend
from onward.losses.combined import build_with_parts
from onward.losses.loss import Loss
from onward.passes.pipelines import PREPARE
from onward.programs import label_ranges
from onward.programs.labels import labels_of_loss
from onward.training.artifact_graphs import LABELS
from onward.training.onnxblock import _graph_utils, blocks, model_accessor
from onward.training.onnxblock.blocks import Name
from onward.training.onnxblock.onnxblock import to_ir

_REDUCTIONS = ("mean", "sum", "none")


class _Loss(blocks.Block):
    """A loss with a reduction and a target."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise RuntimeError(
                f"Reduction {reduction} not supported.\nit must be one of {', '.join(_REDUCTIONS)}"
            )
        self._reduction = reduction

    def _target(self, like: Name, name: Name) -> Name:
        """The value of this name, or a new input of the type and shape of `like`."""
        if _graph_utils.node_arg_exists(self.base, name):
            return name
        return str(blocks.InputLike(like)(name))

    def _reduce(self, loss: Name) -> Name:
        if self._reduction == "none":
            return loss
        block = blocks.ReduceMean if self._reduction == "mean" else blocks.ReduceSum
        return str(block(keepdims=False)(loss))

    def _weights(self, token: str, weights: Any, like: Name) -> Name:
        """Weights as a constant, in the type of what they multiply."""
        kind = _graph_utils.get_value_info(self.base, like).type.tensor_type.elem_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        return self.initializer(token, np.asarray(weights, dtype))


class MSELoss(_Loss):
    """reduce((x - target)^2)"""

    def build(self, loss_input_name: Name, target_name: Name = "target") -> Name:
        target = self._target(loss_input_name, target_name)
        difference = self.node("Sub", [loss_input_name, target])
        return self._reduce(self.node("Mul", [difference, difference]))


class L1Loss(_Loss):
    """reduce(|x - target|)"""

    def build(self, loss_input_name: Name, target_name: Name = "target") -> Name:
        target = self._target(loss_input_name, target_name)
        return self._reduce(self.node("Abs", [self.node("Sub", [loss_input_name, target])]))


class BCEWithLogitsLoss(_Loss):
    """reduce(weight ((1 - t) x + (1 + (pos_weight - 1) t) softplus(-x)))

    The cross entropy of sigmoid(x), without the logarithm of a rounded zero.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._weight, self._pos_weight = weight, pos_weight

    def build(self, loss_input_name: Name, target_name: Name = "target") -> Name:
        x, t = loss_input_name, self._target(loss_input_name, target_name)
        if self._pos_weight is None:  # softplus(x) - x t
            loss = self.node("Sub", [self._softplus(x), self.node("Mul", [x, t])])
        else:
            one = self._weights("one", 1.0, x)
            more = self._weights("bceloss.pos_weight", np.asarray(self._pos_weight) - 1, x)
            times = self.node("Add", [one, self.node("Mul", [more, t])])
            decay = self._softplus(self.node("Neg", [x]))
            negative = self.node("Mul", [self.node("Sub", [one, t]), x])
            loss = self.node("Add", [negative, self.node("Mul", [times, decay])])
        if self._weight is not None:
            loss = self.node("Mul", [self._weights("bceloss.weight", self._weight, x), loss])
        return self._reduce(loss)

    def _softplus(self, x: Name) -> Name:
        """log(1 + exp(x)); onnxruntime has Softplus only for float32."""
        kind = _graph_utils.get_value_info(self.base, x).type.tensor_type.elem_type
        if kind == onnx.TensorProto.FLOAT:
            return self.node("Softplus", [x])
        decay = self.node("Exp", [self.node("Neg", [self.node("Abs", [x])])])
        grown = self.node("Log", [self.node("Add", [self._weights("one", 1.0, x), decay])])
        above = self.node("Max", [x, self._weights("zero", 0.0, x)])  # a Relu is flat at 0
        return self.node("Add", [above, grown])


class CrossEntropyLoss(_Loss):
    """-log softmax(scores)[label], weighted by class; labels of `ignore_index` do not count.

    Scores are (batch, classes, ...), labels (batch, ...) of int64.
    """

    def __init__(
        self, weight: Any = None, reduction: str = "mean", ignore_index: int | None = None
    ) -> None:
        super().__init__(reduction)
        self._weight, self._ignore_index = weight, ignore_index

    def build(self, scores_input_name: Name, labels_name: Name = "labels") -> Name:
        if not _graph_utils.node_arg_exists(self.base, labels_name):
            self._add_labels(scores_input_name, labels_name)
        self._check_labels(scores_input_name, labels_name)
        inputs = [scores_input_name, labels_name]
        if self._weight is not None:
            inputs.append(self._weights("celoss.weight", self._weight, scores_input_name))
        return self.node(
            "SoftmaxCrossEntropyLoss",
            inputs,
            token="loss",
            reduction=self._reduction,
            ignore_index=self._ignore_index,
        )

    def _add_labels(self, scores: Name, name: Name) -> None:
        """An input of the scores' shape without the axis of the classes."""
        kind = _graph_utils.get_value_info(self.base, scores).type.tensor_type
        shape: Sequence[Any] | None = None
        if kind.HasField("shape"):
            sizes = [
                d.dim_value if d.HasField("dim_value") else d.dim_param or None
                for d in kind.shape.dim
            ]
            if len(sizes) < 2:
                raise RuntimeError(
                    f"cross entropy reads scores of (batch, classes, ...), and {scores!r} has "
                    f"rank {len(sizes)}\nreshape it, or take BCEWithLogitsLoss for one class"
                )
            shape = [sizes[0], *sizes[2:]]
        self.base.graph.input.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, shape)
        )

    def _check_labels(self, scores: Name, name: Name) -> None:
        """Check that an existing value of this name holds class labels: int64 or int32."""
        try:
            kind = _graph_utils.get_value_info(self.base, name).type.tensor_type.elem_type
        except LookupError:  # the value of a custom operator
            return
        if kind not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            given = onnx.TensorProto.DataType.Name(kind)
            raise RuntimeError(
                f"cross entropy reads labels of INT64 or INT32, and {name!r} is {given}\n"
                f"if it is one more output of the model: loss_input_names=[{scores!r}]"
            )


class LossBlock(blocks.Block):
    """Any loss of onward.losses, or an object with such a `build(op, values)`."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self._loss = loss

    def build(self, *output_names: Name) -> Name | tuple[Name, ...]:
        """The loss; after it, the terms of a Total, as `loss.{part}`."""
        accessor = model_accessor.current()
        model = PREPARE(to_ir(accessor.model, accessor.folder))
        graph = model.graph
        known = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
        known |= {str(y.name): y for node in graph for y in node.outputs if y.name}
        values = {name: known[name] for name in output_names} | known
        loss, parts = build_with_parts(self._loss, extend(model), values)
        promised = label_ranges.from_json(model.metadata_props.get(LABELS, "[]"))
        model.metadata_props[LABELS] = label_ranges.to_json(
            (*promised, *labels_of_loss(self._loss, values))
        )
        for name, value in {
            "loss": loss,
            **{f"loss.{n}": part for n, part in parts.items()},
        }.items():
            if not value.is_graph_output():
                value.name = value.name if name in known else name
                graph.outputs.append(value)
        with referenced(model):
            accessor.replace(ir.to_proto(model))
        self.base = accessor.model
        names = tuple(str(value.name) for value in (loss, *parts.values()))
        return names if parts else names[0]
