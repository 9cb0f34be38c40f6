"""Optimizer blocks: each builds an optimizer graph for a training block's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onward.optimizers import adam, sgd
from onward.optimizers.clip import MARGIN, ClipByNorm
from onward.optimizers.groups import Group
from onward.optimizers.optimizer import Optimizer
from onward.training import optimizer_graph
from onward.training.onnxblock import _graph_utils, blocks, model_accessor
from onward.training.onnxblock.blocks import Name
from onward.training.onnxblock.onnxblock import ForwardBlock, Parameters


class ClipGradNorm(blocks.Block):
    """Scale a sequence of gradients down so that their norm is at most max_norm.

    g min(1, max_norm / (norm + 1e-6)), with the norm of all of them as one vector
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self.max_norm = max_norm

    def build(self, gradients_name: Name) -> Name:
        kind = _graph_utils.get_value_info(self.base, gradients_name).type.sequence_type.elem_type
        squares = self._mapped(gradients_name, kind, ["ReduceSumSquare"], keepdims=0)
        total = self.node("ConcatFromSequence", [squares], axis=0, new_axis=1)
        norm = self.node("Sqrt", [self.node("ReduceSum", [total], keepdims=0)])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        epsilon = self.initializer("epsilon", dtype.type(MARGIN))
        most = self.initializer("max_norm", dtype.type(self.max_norm))
        one = self.initializer("one", dtype.type(1.0))
        ratio = self.node("Div", [most, self.node("Add", [norm, epsilon])])
        return self._mapped(gradients_name, kind, ["Mul", self.node("Min", [ratio, one])])

    def _mapped(
        self, sequence: Name, kind: onnx.TypeProto, call: list[str], **attributes: Any
    ) -> Name:
        """A sequence of `operator(element, others...)`, for each element."""
        each, result = (_graph_utils.generate_graph_name(token) for token in ("each", "result"))
        operator, *others = call
        body = onnx.helper.make_graph(
            [onnx.helper.make_node(operator, [each, *others], [result], **attributes)],
            "body",
            [onnx.helper.make_value_info(each, kind)],
            [onnx.helper.make_value_info(result, kind)],
        )
        return self.node("SequenceMap", [sequence], body=body)


class OptimizerBlock(ForwardBlock):
    """The graph of any optimizer of onward.optimizers, with groups of other settings.

    `clip_grad` is a ClipGradNorm, or a block that takes the name of a sequence and returns one.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        clip_grad: blocks.Block | None = None,
        groups: Sequence[Group] = (),
    ) -> None:
        super().__init__()
        self._optimizer, self._clip_grad, self._groups = optimizer, clip_grad, groups

    def build(self, parameters: Parameters) -> Name:
        """Takes the result of TrainingBlock.parameters(); returns the name of the flag output."""
        trainable, _ = parameters
        types = {ir.DataType(tensor.data_type) for tensor in trainable}
        if len(types) != 1:
            given = ", ".join(sorted(kind.name for kind in types)) or "none at all"
            raise RuntimeError(
                "An optimizer graph takes its parameters as one sequence of one type, and "
                f"was given {given}\nAsk for gradients, with requires_grad, of parameters of one "
                "type."
            )
        shapes = {tensor.name: tuple(tensor.dims) for tensor in trainable}
        plan = optimizer_graph.plan_optimizer(self._optimizer, self._groups, shapes, *types)
        model = ir.from_proto(self.base)
        optimizer_graph.add_inputs(model.graph, plan)
        self.base.CopyFrom(ir.to_proto(model))
        gradients = optimizer_graph.GRADIENTS
        if self._clip_grad is not None:
            gradients = str(self._clip_grad(gradients))
        opset = model_accessor.current().opset
        model = optimizer_graph.write_update(ir.from_proto(self.base), plan, gradients, opset)
        model.graph.name = f"{type(self._optimizer).__name__} optimizer"
        optimizer_graph.write_metadata(model, plan)
        self._attach_updates(model, plan)
        self.base.CopyFrom(ir.to_proto(model))
        return optimizer_graph.FLAG

    def _attach_updates(self, model: ir.Model, plan: optimizer_graph.OptimizerPlan) -> None:
        """Attach a session's updates, unless a custom block clips: sessions cannot do that."""
        clip = self._clip_grad
        if clip is None:
            optimizer_graph.attach_updates(model, plan)
        elif type(clip) is ClipGradNorm:
            optimizer_graph.attach_updates(model, plan, ClipByNorm(max_norm=clip.max_norm))

    @property
    def clips_by_norm(self) -> bool:
        return type(self._clip_grad) is ClipGradNorm

    def _finish(self, accessor: model_accessor.ModelAccessor, output: Any) -> Any:
        """Keep the graph's outputs: there are more of them than the flag that `build` returns."""
        _graph_utils.check(accessor.model)
        self._model = onnx.ModelProto()
        self._model.CopyFrom(accessor.model)
        return output


class AdamW(OptimizerBlock):
    """AdamW as the transformers library and the peer had it: decay after the update.

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,
    p = (1 - lr weight_decay) (p - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps))
    """

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: blocks.Block | None = None,
    ) -> None:
        optimizer = adam.AdamW(
            betas=(betas[0], betas[1]),
            eps=eps,
            weight_decay=weight_decay,
            correct_bias=bool(bias_correction),
            style="transformers",
        )
        super().__init__(optimizer, clip_grad)


class SGD(OptimizerBlock):
    """p = p - lr g"""

    def __init__(self, clip_grad: blocks.Block | None = None) -> None:
        super().__init__(sgd.SGD(), clip_grad)
