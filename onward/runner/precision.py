"""Mixed precision: products in 16 bits, everything else in float32.

    half = to_mixed_precision(model, "bfloat16")
    options = TrainingOptions(loss_scale=loss_scale_for("bfloat16"))
    session = TrainingSession(half, loss, optimizer, options, providers=["torch"])
    trained = export_model(model, {**session.parameters, **session.statistics})

The weights stay float32 parameters, which the optimizer updates, and are cast in the graph:
`y = MatMul(x, w)` becomes `y = Cast(MatMul(Cast(x), Cast(w)))`. Their gradients are float32. Names
do not change, so that the original model takes the trained tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.graph.files import least_ir_version
from onward.graph.graph_ops import GraphOps, extend
from onward.graph.operators import VIEWS
from onward.graph.shapes.infer import infer_shapes
from onward.measure.tuning.tune_training import torch_devices
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.passes.prune import drop_unused
from onward.providers.choose import INDUCTOR, TORCH, Asked, available, full_name, mentions_auto
from onward.runner.finetune.linear_layers import prepare_layers
from onward.settings import choice

TYPES = {"bfloat16": ir.DataType.BFLOAT16, "float16": ir.DataType.FLOAT16}
# products: most of the work, and their kernels add up in float32
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Attention")
_LEAST_OPSET = 13  # of MatMul and Gemm in bfloat16
_GPUS = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")


def to_mixed_precision(model: ir.Model, dtype: str) -> ir.Model:
    """A copy of a model whose MatMul, Gemm, Conv, ConvTranspose and Attention are in 16 bits.

    Nodes of the main graph that compute in float32 are changed; normalizations, softmax, losses and
    what is in branches and loops stay. A product that reads another one's result, directly or
    through reshapes, reads it in 16 bits.

    Args:
        model: the model, which does not change
        dtype: "bfloat16" or "float16"

    >>> import numpy as np
    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> w = op.initializer("w", np.ones((4, 2), np.float32))
    >>> model = op.model(y=op.MatMul(op.input("x", "float32", ("batch", 4)), w))
    >>> [node.op_type for node in to_mixed_precision(model, "bfloat16").graph]
    ['Cast', 'Cast', 'MatMul', 'Cast']
    """
    kind = TYPES[choice(*TYPES)("dtype", dtype)]
    copy = prepare_layers(model)
    if copy.opset_imports[""] < _LEAST_OPSET:
        raise UnsupportedModel(
            f"the model is of opset {copy.opset_imports['']}, whose products have no {dtype}\n"
            f"export it in opset {_LEAST_OPSET} or newer, or train in float32"
        )
    infer_shapes(copy)
    products = [node for node in copy.graph if _is_product(node)]
    if not products:
        raise OptionError(
            f"the model has no {', '.join(_PRODUCTS)} in float32: there is nothing to compute in "
            f"{dtype}\ntrain it without mixed precision"
        )
    narrow = _Narrowing(extend(copy), kind)
    for node in products:
        narrow.change(node)
    copy.graph.sort()
    drop_unused(copy)
    copy.ir_version = least_ir_version(copy)
    return copy


def loss_scale_for(dtype: str | None) -> DynamicLossScale | None:
    """The loss scale that training in a type needs: float16 loses small gradients.

    >>> loss_scale_for("float16").initial, loss_scale_for("bfloat16")
    (65536.0, None)
    """
    return DynamicLossScale() if dtype == "float16" else None


def choose_precision(setting: str, providers: Asked = None) -> str | None:
    """The type of mixed precision for a setting: "none", "auto", "bfloat16" or "float16".

    auto is bfloat16 on a GPU and none on a CPU: onnxruntime's kernels there compute float16 in
    float32, and torch's are faster in 16 bits only on processors with instructions for them. None:
    float32.

    >>> choose_precision("auto", ["cpu"]), choose_precision("float16", ["cpu"])
    (None, 'float16')
    """
    setting = choice("none", "auto", *TYPES)("mixed_precision", setting)
    if setting == "none":
        return None
    named = [] if mentions_auto(providers) else _named(providers)
    if setting == "auto":
        return "bfloat16" if named and _is_on_gpu(*named[0]) else None
    if setting == "bfloat16" and named and named[0][0] == "CPUExecutionProvider":
        raise OptionError(
            "mixed_precision: ONNX Runtime has no products in bfloat16 on a CPU\n"
            "choose float16, or another provider, such as torch"
        )
    return setting


def _named(providers: Asked) -> list[tuple[str, Mapping[str, Any]]]:
    """Providers by their full names, with their options; the default ones if none are given."""
    given: Sequence[Any] = available()[:1] if providers is None else providers
    given = [given] if isinstance(given, str) else given
    pairs = [(each, {}) if isinstance(each, str) else each for each in given]
    return [(full_name(name), options) for name, options in pairs]


def _is_on_gpu(name: str, options: Mapping[str, Any]) -> bool:
    if name in (TORCH, INDUCTOR):
        device = str(options.get("device", "auto"))
        return torch_devices([name])[0] == "cuda" if device == "auto" else device != "cpu"
    return name in _GPUS


def _is_product(node: ir.Node) -> bool:
    return (
        node.domain == ""
        and node.op_type in _PRODUCTS
        and node.inputs[0] is not None
        and node.inputs[0].dtype == ir.DataType.FLOAT
        and not any(isinstance(each.value, ir.Graph) for each in node.attributes.values())
    )


class _Narrowing:
    """Changes products to a 16-bit type, and remembers the 16-bit copies of values."""

    def __init__(self, op: GraphOps, dtype: ir.DataType) -> None:
        self._op, self._dtype = op, dtype
        self._copies: dict[ir.Value, ir.Value] = {}

    def change(self, node: ir.Node) -> None:
        """Let a node read 16-bit copies of its float inputs; its readers read float32."""
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == ir.DataType.FLOAT:
                node.replace_input_with(index, self._narrow(value))
        for value in node.outputs:
            if value.name and (value.uses() or value.is_graph_output()):
                self._widen(value)

    def _narrow(self, value: ir.Value) -> ir.Value:
        """The 16-bit copy of a value; of a view, the view of the copy."""
        if value not in self._copies:
            maker = value.producer()
            first = None if maker is None else maker.inputs[0]
            if maker is not None and first is not None and self._is_view_of_copy(maker):
                inputs = [self._narrow(first), *maker.inputs[1:]]
                attributes = {name: each.value for name, each in maker.attributes.items()}
                made = self._op.node(maker.op_type, inputs, attributes)
            else:
                made = self._op.Cast(value, to=int(self._dtype))
            assert isinstance(made, ir.Value)
            made.type, made.shape = ir.TensorType(self._dtype), value.shape
            self._copies[value] = made
        return self._copies[value]

    def _is_view_of_copy(self, node: ir.Node) -> bool:
        """Whether a node only moves elements of what is there in 16 bits already."""
        if node.domain != "" or node.op_type not in (*VIEWS, "Transpose") or len(node.outputs) > 1:
            return False
        first = node.inputs[0]
        maker = None if first is None else first.producer()
        return first in self._copies or (maker is not None and self._is_view_of_copy(maker))

    def _widen(self, value: ir.Value) -> None:
        """Cast a product's result to float32 under its own name, for all that read it."""
        uses, wide = list(value.uses()), self._op.Cast(value, to=int(ir.DataType.FLOAT))
        wide.type, wide.shape = value.type, value.shape
        for node, index in uses:
            node.replace_input_with(index, wide)
        outputs = self._op.graph.outputs
        for index, output in enumerate(outputs):
            if output is value:
                outputs[index] = wide
        name = value.name
        value.name = self._op.name(f"{name}_half")
        value.type = ir.TensorType(self._dtype)
        wide.name = name
        wide.metadata_props.update(value.metadata_props)
        self._copies[wide] = value
