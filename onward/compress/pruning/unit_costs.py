"""UnitCosts: the multiplications of a model, as a function of the units that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Array, Axis, Positions, rank
from onward.compress.pruning.units import UnitGroup
from onward.graph.costs.node_costs import fix_inputs, model_costs, node_cost
from onward.graph.scopes import walk
from onward.graph.shapes.declared import infer_from_inputs
from onward.graph.shapes.value_dependent import infer_computed_shapes


def count_macs(model: ir.Model, sizes: Mapping[str, int]) -> int:
    """The multiplications of one run; a dynamic dimension is `sizes[name]`, or 1."""
    return int(model_costs(model, sizes).flops // 2)


@dataclass(frozen=True)
class Product:
    """One sum of products.

    Attributes:
        macs: its multiplications in the whole model
        axes: the labels along each axis that it multiplies or sums over
    """

    macs: float
    axes: tuple[Array, ...]


class UnitCosts:
    """The multiplications that are left once units are removed, estimated from the products."""

    def __init__(self, model: ir.Model, positions: Positions, sizes: Mapping[str, int]) -> None:
        self._count = len(positions.labels)
        self._products = _find_products(model, positions, sizes)

    def macs(self, removed: Array | None = None) -> float:
        """The multiplications of all products without the removed labels."""
        if removed is None:
            return sum(product.macs for product in self._products)
        kept = ~removed
        return sum(
            product.macs * float(np.prod([kept[labels].mean() for labels in product.axes]))
            for product in self._products
        )

    def of_units(self, groups: Sequence[UnitGroup]) -> dict[str, float]:
        """The multiplications that one unit of each group costs while all others are there."""
        each = np.zeros(self._count)
        for product in self._products:
            for labels in product.axes:
                np.add.at(each, labels, product.macs / max(len(labels), 1))
        return {group.name: float(each[group.labels].mean()) for group in groups}


def _find_products(
    model: ir.Model, positions: Positions, sizes: Mapping[str, int]
) -> list[Product]:
    sized = model.clone()
    fix_inputs(sized, sizes)
    infer_computed_shapes(infer_from_inputs(sized, numbers=True))
    found = []
    for node, same in zip(walk(model.graph), walk(sized.graph), strict=True):
        flops = node_cost(same).flops
        for share, axes in _multiplied_axes(node):
            labels = [positions.of(axis) for axis in axes]
            known = tuple(each for each in labels if each is not None and len(each))
            found.append(Product(flops / 2 * share, known))
    return found


def _multiplied_axes(node: ir.Node) -> list[tuple[float, list[Axis]]]:
    """The axes of a node's products, and the share of its multiplications that each has."""
    if node.op_type in ("Conv", "ConvTranspose"):
        w = node.inputs[1]
        return [(1.0, [(w, 0), (w, 1)])] if w is not None else []
    if node.op_type in ("LSTM", "GRU", "RNN"):
        w, r = node.inputs[1], node.inputs[2]
        if w is None or r is None or w.const_value is None or r.const_value is None:
            return []
        inputs, hidden = (float(v.const_value.shape.numpy()[2]) for v in (w, r))  # type: ignore[union-attr]
        share = inputs / (inputs + hidden)
        return [(share, [(w, 1), (w, 2)]), (1 - share, [(r, 1), (r, 2)])]
    if node.op_type in ("MatMul", "Gemm"):
        a, y = node.inputs[0], node.outputs[0]
        axes = [(y, place) for place in range(rank(y) or 0)]
        if a is not None and rank(a):
            axes.append((a, 0 if node.attributes.get_int("transA", 0) else (rank(a) or 1) - 1))
        return [(1.0, axes)]
    return []
