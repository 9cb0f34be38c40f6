"""Low-rank adapters (LoRA, DoRA): small matrices that train while the model's weights stay.

adapted = add_lora(model, rank=8, targets=["*attention*"])
session = TrainingSession(adapted.model, loss, optimizer, {"trainable": adapted.names})
merged = merge_lora(adapted, session.parameters)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import WeightsError
from onward.graph.files import least_ir_version
from onward.graph.graph_ops import extend, taken_names
from onward.programs.export import export_model
from onward.runner.finetune.linear_layers import find_layers, prepare_layers
from onward.runner.finetune.low_rank import Array, LowRankBuilder, LowRankPair
from onward.settings import above, check_fields, integer, list_of, number, optional, true_or_false


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """The settings of low-rank adapters; `add_lora` explains them."""

    rank: int
    targets: Sequence[str] = ("*",)
    alpha: float | None = None
    dropout: float = 0.0
    seed: int = 0
    dora: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            rank=integer(1),
            targets=list_of(str, "a list of names or patterns", "['*attention*']"),
            alpha=optional(above(0.0)),
            dropout=number(0.0, 1.0, below=True),
            seed=integer(0),
            dora=true_or_false,
        )

    @property
    def scale(self) -> float:
        """The factor of the product of a pair: alpha / rank."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A model with low-rank adapters.

    Attributes:
        model: the model that trains; at the start it computes what the base computes
        names: the parameters of the adapters, for TrainingOptions.trainable
        base: the model without adapters
        pairs: the tensors of each adapted weight, by name
        settings: the arguments of `add_lora`
    """

    model: ir.Model
    names: tuple[str, ...]
    base: ir.Model
    pairs: tuple[LowRankPair, ...]
    settings: LoraSettings

    def tensors(self) -> dict[str, Array]:
        """The adapters' tensors, as the model holds them."""
        found = self.model.graph.initializers
        return {name: _array(found[name]) for name in self.names}


def add_lora(
    model: ir.Model,
    rank: int,
    targets: Sequence[str] = ("*",),
    alpha: float | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    dora: bool = False,
) -> Adapted:
    """Add low-rank adapters to a copy of a model: y = x W becomes y = x W + alpha / rank (x A) B.

    Layers are MatMul, Gemm, Conv (not grouped) and com.microsoft's Attention whose weights are
    initializers of the main graph. A is random, B is zero. A weight that is used several times has
    one pair.

    Args:
        model: the base model, which does not change
        rank: the number of columns of A and rows of B
        targets: names or patterns of weights (those of torch's parameters as well, where its
            exporter computed weights from them), or of the nodes that read them
        alpha: the scale of the adapters, times rank; None: rank, so that the scale is 1
        dropout: the share of x that is dropped before A while training
        seed: of the random matrices
        dora: also train the norm of each output's weights, separately from their direction

    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> w = op.initializer("fc.weight", np.ones((4, 3), np.float32))
    >>> model = op.model(y=op.MatMul(op.input("x", "float32", ("batch", 4)), w))
    >>> add_lora(model, rank=2).names
    ('fc.weight.lora_A', 'fc.weight.lora_B')
    """
    settings = LoraSettings(
        rank=rank, targets=targets, alpha=alpha, dropout=dropout, seed=seed, dora=dora
    )
    base = prepare_layers(model)
    adapted = base.clone()
    builder = LowRankBuilder(
        op=extend(adapted),
        taken=taken_names(adapted),
        rank=settings.rank,
        scale=settings.scale,
        dropout=settings.dropout,
        seed=settings.seed,
        dora=settings.dora,
    )
    pairs = tuple(builder.adapt(each) for each in find_layers(adapted, settings.targets))
    adapted.graph.sort()
    adapted.ir_version = least_ir_version(adapted)
    names = tuple(name for pair in pairs for name in pair.names)
    return Adapted(model=adapted, names=names, base=base, pairs=pairs, settings=settings)


def merge_lora(adapted: Adapted, tensors: Mapping[str, Any] | None = None) -> ir.Model:
    """The base model with the adapters in its weights: the same graph, in inference mode.

    Tensors that do not belong to the adapters, such as those of a new head, are set as they are.

    Args:
        adapted: what `add_lora` or `load_adapter` returned
        tensors: trained tensors by name, such as `session.parameters`; None: the model's own
    """
    given = split_tensors(adapted, adapted.tensors() if tensors is None else tensors)
    merged = adapted.base.clone()
    for pair in adapted.pairs:
        value = merged.graph.initializers[pair.weight]
        weight = pair.merged(_array(value), given.pairs, adapted.settings.scale)
        held = adapted.model.graph.initializers[pair.a].dtype
        _set_weight(value, weight, held if pair.is_branch else None)
    return export_model(merged, given.others)


@dataclass(frozen=True)
class TrainedTensors:
    """Trained tensors: those of the adapters, and others of the model."""

    pairs: dict[str, Array]
    others: dict[str, Array]


def split_tensors(adapted: Adapted, tensors: Mapping[str, Any]) -> TrainedTensors:
    """Separate the adapters' tensors from others; refuse missing ones and other shapes."""
    known = adapted.model.graph.initializers
    arrays = {name: np.asarray(tensors[name]) for name in tensors}
    for name in adapted.names:
        shape = tuple(_array(known[name]).shape)
        if name not in arrays:
            raise WeightsError(
                f"the tensors lack {name!r}, a parameter of the adapters\n"
                "give all of them, as session.parameters does"
            )
        if arrays[name].shape != shape:
            raise WeightsError(
                f"tensor {name!r} has shape {arrays[name].shape}, the adapter {shape}\n"
                "give the tensors of the model that add_lora returned"
            )
    pairs = {name: arrays.pop(name) for name in adapted.names}
    return TrainedTensors(pairs, arrays)


def _set_weight(value: ir.Value, array: Array, computed: ir.DataType | None) -> None:
    """Give an initializer new data; one that is cast to a wider type becomes of that type.

    Rounded to float16, a merged weight would lose what the adapter changed.
    """
    assert value.const_value is not None
    dtype = value.const_value.dtype
    if computed is not None and computed.itemsize > dtype.itemsize:
        dtype = computed
        _set_type(value, dtype)
    rounded = np.ascontiguousarray(array.astype(dtype.numpy()))
    value.const_value = ir.Tensor(rounded, dtype=dtype, name=str(value.name))


def _set_type(value: ir.Value, dtype: ir.DataType) -> None:
    """Set the type of a weight, and of what is made of it before a Cast."""
    value.type = ir.TensorType(dtype)
    for node, _ in value.uses():
        if node.op_type in ("Identity", "Transpose", "Reshape"):
            _set_type(node.outputs[0], dtype)


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())
