"""The nodes of a low-rank adapter, and the weight that they amount to.

    y = x W  becomes  y = x W + s (x A) B       a branch next to the layer
    y = x W  becomes  y = x (W + s A B)         a sum, where other nodes read the weight as well

A and B are kept in the layout of the weight: (in, r) and (r, out) for a weight (in, out); (r, in)
and (out, r) for (out, in), as in PyTorch; (r, in, *kernel) and (out, r, 1, ...) for Conv. With a
magnitude m per output (DoRA), the layer reads m (W + s A B) / |W + s A B|.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps
from onward.passes.exporters.provenance import sources
from onward.passes.training_mode import free_name
from onward.passes.value_facts import attribute
from onward.runner.finetune.linear_layers import LinearLayer, all_readers

Array = np.ndarray[Any, Any]

_EPSILON = 1e-12  # added to squared norms: an output whose weights are all zero has no direction
_EPSILON_HALF = 1e-7  # of float16, which has no smaller number
_RATIO_INPUT_SINCE = 12  # the opset in which Dropout's ratio became an input
_AXES_INPUT_SINCE = 13  # the opset in which ReduceSum's axes became an input


@dataclass(frozen=True, kw_only=True)
class LowRankPair:
    """The tensors that adapt one weight, by name."""

    weight: str
    a: str
    b: str
    magnitude: str | None  # of DoRA
    shape: tuple[int, ...]  # of the weight as a matrix or a kernel
    out_first: bool  # whether that is (out, in)
    is_branch: bool  # whether the pair is next to the layer, or added to the weight

    @property
    def names(self) -> list[str]:
        return [self.a, self.b, *([self.magnitude] if self.magnitude else [])]

    def merged(self, weight: Array, tensors: Mapping[str, Array], scale: float) -> Array:
        """The weight that the layer amounts to, in float64."""
        a, b = (np.asarray(tensors[name], np.float64) for name in (self.a, self.b))
        flat = (b.reshape(len(b), -1) @ a.reshape(len(a), -1)) if self.out_first else a @ b
        whole = np.asarray(weight, np.float64).reshape(self.shape)
        whole = whole + scale * flat.reshape(self.shape)
        if self.magnitude is not None:
            m = np.asarray(tensors[self.magnitude], np.float64)
            whole = whole * (m / norms(whole, self.out_first, _epsilon(weight.dtype)))
        return whole.reshape(weight.shape)


def norms(weight: Array, out_first: bool, epsilon: float) -> Array:
    """The norm of the weights of each output, with axes of size 1 for the others."""
    axes = _input_axes(weight.ndim, out_first)
    return np.asarray(np.sqrt(np.square(weight).sum(axes, keepdims=True) + epsilon))


def _input_axes(rank: int, out_first: bool) -> tuple[int, ...]:
    return tuple(range(1, rank)) if out_first else (0,)


def _epsilon(dtype: Any) -> float:
    return _EPSILON_HALF if dtype == np.float16 else _EPSILON


@dataclass(frozen=True, kw_only=True)
class LowRankBuilder:
    """Adds pairs to a graph."""

    op: GraphOps
    taken: set[str]
    rank: int
    scale: float
    dropout: float
    seed: int
    dora: bool

    def adapt(self, layers: Sequence[LinearLayer]) -> LowRankPair:
        """Add a pair for the weight that these layers share."""
        first = layers[0]
        alike = {(each.out_first, each.dtype, each.shape) for each in layers}
        others = set(all_readers(first.weight)) - {each.node for each in layers}
        products = all(each.is_product for each in layers)
        as_branch = (
            products
            and len(alike) == 1
            and not self.dora
            and not others
            and not first.weight.is_graph_output()
        )
        if self.dropout and not as_branch:
            why = "DoRA normalises it" if self.dora else "it is read in several ways"
            raise OptionError(
                f"dropout: weight {first.weight.name!r} cannot have it, because {why}\n"
                "set dropout=0, or leave the weight out of the targets"
            )
        pair = self._create(first, as_branch)
        a, b = (self.op.graph.initializers[name] for name in (pair.a, pair.b))
        if not as_branch:
            self._add_to_weight(first, pair, a, b)
            return pair
        for layer in layers:
            self._add_branch(layer, a, b)
        return pair

    def _create(self, layer: LinearLayer, as_branch: bool) -> LowRankPair:
        """Initialise a pair: A as torch initialises linear layers, B zero."""
        tensor = layer.weight.const_value
        assert tensor is not None
        name, shape = str(layer.weight.name), layer.shape
        kind = layer.dtype.numpy() if as_branch else tensor.dtype.numpy()
        size_in = math.prod(shape[1:]) if layer.out_first else shape[0]
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        bound = 1 / math.sqrt(max(size_in, 1))  # kaiming_uniform(a=sqrt(5))
        if layer.out_first:
            first = (self.rank, *shape[1:])
            second = (shape[0], self.rank, *([1] * (len(shape) - 2)))
        else:
            first, second = (shape[0], self.rank), (self.rank, shape[1])
        made = {
            "lora_A": rng.uniform(-bound, bound, first).astype(kind),
            "lora_B": np.zeros(second, kind),
        }
        if self.dora:
            weight = np.asarray(tensor.numpy(), np.float64).reshape(shape)
            sizes = norms(weight, layer.out_first, _epsilon(kind))
            made["lora_magnitude"] = sizes.astype(kind)
        origins = sources(layer.weight)  # the parameter that torch's exporter transposed
        stem = origins[0] if len(origins) == 1 else name
        names = {key: free_name(f"{stem}.{key}", self.taken) for key in made}
        for key, array in made.items():
            self.op.initializer(names[key], array)
        return LowRankPair(
            weight=name,
            a=names["lora_A"],
            b=names["lora_B"],
            magnitude=names.get("lora_magnitude"),
            shape=shape,
            out_first=layer.out_first,
            is_branch=as_branch,
        )

    def _add_branch(self, layer: LinearLayer, a: ir.Value, b: ir.Value) -> None:
        """y + s (x A) B"""
        op, node = self.op, layer.node
        x, y, uses = node.inputs[0], node.outputs[0], list(node.outputs[0].uses())
        assert x is not None
        x, scale = self._dropped(x, layer), self.scale
        if layer.is_conv:
            hidden = op.node("Conv", [x, a], {**_attributes(node)})
            result = op.Conv(self._scaled(hidden, scale, layer.dtype), b)
        else:
            if node.op_type == "Gemm":
                scale *= attribute(node, "alpha", 1.0)
                x = op.Transpose(x, perm=[1, 0]) if attribute(node, "transA", 0) else x
            if layer.out_first:
                a, b = op.Transpose(a, perm=[1, 0]), op.Transpose(b, perm=[1, 0])
            result = op.MatMul(self._scaled(op.MatMul(x, a), scale, layer.dtype), b)
        _replace_reads(op, y, uses, op.Add(y, result))

    def _dropped(self, x: ir.Value, layer: LinearLayer) -> ir.Value:
        if not self.dropout:
            return x
        if self.op.opset() < _RATIO_INPUT_SINCE:
            return self.op.Dropout(x, ratio=self.dropout)  # type: ignore[no-any-return]
        return self.op.Dropout(x, np.array(self.dropout, np.float32))  # type: ignore[no-any-return]

    def _scaled(self, x: Any, scale: float, dtype: ir.DataType) -> ir.Value:
        if scale == 1:
            return x  # type: ignore[no-any-return]
        return self.op.Mul(x, np.array(scale, dtype.numpy()))  # type: ignore[no-any-return]

    def _add_to_weight(
        self, layer: LinearLayer, pair: LowRankPair, a: ir.Value, b: ir.Value
    ) -> None:
        """W + s A B; with a magnitude, m (W + s A B) / |W + s A B|"""
        op, weight, uses = self.op, layer.weight, list(layer.weight.uses())
        assert weight.const_value is not None
        shape, dtype = layer.shape, weight.const_value.dtype
        held = tuple(weight.const_value.shape.numpy())
        if len(shape) > 2:
            a = op.Reshape(a, [self.rank, -1])
            b = op.Reshape(b, [shape[0], self.rank])
        product = op.MatMul(b, a) if layer.out_first else op.MatMul(a, b)
        product = self._scaled(product, self.scale, dtype)
        if len(shape) > 2:
            product = op.Reshape(product, list(shape))
        total = op.Add(weight if held == shape else op.Reshape(weight, list(shape)), product)
        if pair.magnitude is not None:
            axes = list(_input_axes(len(shape), layer.out_first))
            squares = op.Mul(total, total)
            if op.opset() < _AXES_INPUT_SINCE:
                summed = op.ReduceSum(squares, axes=axes, keepdims=1)
            else:
                summed = op.ReduceSum(squares, axes, keepdims=1)
            epsilon = np.array(_epsilon(dtype.numpy()), dtype.numpy())
            norm = op.Sqrt(op.Add(summed, epsilon))
            magnitude = op.graph.initializers[pair.magnitude]
            total = op.Mul(total, op.Div(magnitude, norm))
        if held != shape:
            total = op.Reshape(total, list(held))
        for node, index in uses:
            node.replace_input_with(index, total)


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: each.value for name, each in node.attributes.items()}


def _replace_reads(
    op: GraphOps, old: ir.Value, uses: Sequence[tuple[ir.Node, int]], new: ir.Value
) -> None:
    """Let readers of a value, and the graph's outputs, read another; an output keeps its name."""
    new.type, new.shape = old.type or new.type, old.shape or new.shape
    for node, index in uses:
        node.replace_input_with(index, new)
    if not old.is_graph_output():
        return
    outputs = op.graph.outputs
    for index, value in enumerate(outputs):
        if value is old:
            outputs[index] = new
    old.name, new.name = op.name(f"{old.name}_base"), old.name
    new.metadata_props.update(old.metadata_props)
