"""Replace the gradient of a normalisation, and the sums and dropout around it, by one operator.

    dy = Add(d1, d2, ...)                         dx, dscale, db, masked, total =
    dx, dscale, db = LayerNormalizationGrad(dy)       NormGradient(x, scale, ..., d1, d2, ...)
    dx = Add(dx, residual)
    masked = MaskedScale(dx, DropoutMask(key))
    total = ReduceSum(masked)

The residual stream of a transformer has all of them, and each alone reads and writes it once. A
gradient without sums or dropout around it is replaced, too (kernels/norm_gradient.py says why).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import onnx_ir as ir

from onward.graph.dtypes import HALVES
from onward.passes.composites import is_call
from onward.passes.drop_unused import drop_unused
from onward.passes.random_functions import DOMAIN as RANDOM
from onward.passes.random_functions import DROPOUT_MASK, MASKED_SCALE
from onward.passes.rewrite import take_over
from onward.passes.value_facts import attribute, dims, input_of, ints, made_by, rank, scalar, static
from onward.providers.torch.kernels.norm_gradient import MOST_COLUMNS, MOST_TERMS
from onward.providers.torch.private_domain import DOMAIN

LAYER, RMS = "LayerNormalizationGrad", "RMSNormalizationGrad"
_DY = {LAYER: 6, RMS: 3}  # the gradient of y among the inputs
_TYPES = HALVES | {ir.DataType.FLOAT}


def fuse_norm_gradients(model: ir.Model) -> None:
    """Replace the gradients of normalisations over the last axes, in place."""
    found = False
    for node in [node for node in model.graph if is_call(node) and node.op_type in _DY]:
        if _is_supported(node):
            _Match(node, model.graph).replace()
            found = True
    if found:
        model.opset_imports[DOMAIN] = 1
        drop_unused(model)


def _is_supported(call: ir.Node) -> bool:
    """Whether the operator has a kernel: known columns of one type, and no other gradients."""
    x, scale, dy = call.inputs[0], call.inputs[1], input_of(call, _DY[call.op_type])
    if x is None or scale is None or dy is None or x.dtype not in _TYPES:
        return False
    sizes, axis = static(scale), attribute(call, "axis", -1)
    if not sizes or (dims(x) or ())[axis:] != sizes or prod(sizes) > MOST_COLUMNS:
        return False
    if scale.dtype != x.dtype or dy.dtype != x.dtype:
        return False
    if call.op_type == RMS:
        return True
    statistics = [input_of(call, place) for place in (4, 5)]
    others = [input_of(call, place) for place in (7, 8)]  # of the statistics themselves
    return None not in statistics and not any(others)


@dataclass
class _Match:
    """A gradient, and the nodes around it that its operator takes over."""

    call: ir.Node
    graph: ir.Graph

    @cached_property
    def _order(self) -> dict[ir.Node, int]:
        return {node: index for index, node in enumerate(self.graph)}

    def replace(self) -> None:
        terms = self._terms()
        dx = self._gradient(0)
        add, residual = self._residual(dx)
        total = dx if add is None else add.outputs[0]
        mask = self._mask(total, add or self.call)
        bias = None if mask is None else self._bias(mask)
        x, scale = self.call.inputs[:2]
        statistics = self.call.inputs[4:6] if self.call.op_type == LAYER else (None, None)
        key = None if mask is None else mask.inputs[1].producer().inputs[0]  # type: ignore[union-attr]
        node = ir.Node(
            DOMAIN,
            "NormGradient",
            [x, scale, *statistics, residual, key, *terms],
            self._attributes(mask),
            num_outputs=5,
            name=self.call.name,
        )
        self.graph.insert_before(add or self.call, node)
        olds = [total, self._gradient(1), self._gradient(2)]
        olds += [None if each is None else each.outputs[0] for each in (mask, bias)]
        for old, new in zip(olds, node.outputs):
            new.name = ""
            if old is not None:
                take_over(old, new)
        replaced = [each for each in (self.call, add, mask, bias) if each is not None]
        self.graph.remove(replaced, safe=False)
        for each in replaced:
            for index in range(len(each.inputs)):
                each.replace_input_with(index, None)

    def _gradient(self, place: int) -> ir.Value | None:
        """The gradient with respect to an input, if something reads it."""
        for where, value in zip(attribute(self.call, "wrt"), self.call.outputs):
            if where == place and value.name and (value.uses() or value.is_graph_output()):
                return value
        return None

    def _terms(self) -> list[ir.Value]:
        """The values whose sum is the gradient of y; only sums that nothing else reads count."""
        dy = self.call.inputs[_DY[self.call.op_type]]
        assert dy is not None
        terms = [dy]
        for _ in range(MOST_TERMS):
            sums = [(place, self._sum(each)) for place, each in enumerate(terms)]
            place, parts = next((each for each in sums if each[1]), (0, []))
            if not parts or len(terms) - 1 + len(parts) > MOST_TERMS:
                break
            terms[place : place + 1] = parts
        return terms

    def _sum(self, value: ir.Value) -> list[ir.Value]:
        """The values of the same shape that are added to a value, if it has one reader."""
        node = made_by(value, "Add", "Sum")
        shape = dims(value)
        if node is None or node.graph is not self.graph or value.is_graph_output() or shape is None:
            return []
        parts = [each for each in node.inputs if each is not None]
        same = all(dims(each) == shape and each.dtype == value.dtype for each in parts)
        return parts if same and len(value.uses()) == 1 else []

    def _residual(self, dx: ir.Value | None) -> tuple[ir.Node | None, ir.Value | None]:
        """A sum that is the only reader of dx, and what it adds."""
        uses = [] if dx is None else list(dx.uses())
        if dx is None or len(uses) != 1 or dx.is_graph_output():
            return None, None
        add = uses[0].node
        if add.op_type != "Add" or add.domain or add.graph is not self.graph:
            return None, None
        residual = add.inputs[1 - uses[0].idx]
        if residual is None or dims(residual) != dims(dx) or dims(dx) is None:
            return None, None
        others = [
            use.node for value in self.call.outputs if value is not dx for use in value.uses()
        ]
        is_early = any(self._order.get(each, -1) < self._order[add] for each in others)
        return (None, None) if is_early else (add, residual)

    def _mask(self, total: ir.Value | None, place: ir.Node) -> ir.Node | None:
        """A dropout's gradient that reads dx, if its numbers can be drawn by the operator."""
        for use in () if total is None else total.uses():
            node = use.node
            if (node.domain, node.op_type) != (RANDOM, MASKED_SCALE) or use.idx != 0:
                continue
            mask = node.inputs[1].producer() if node.inputs[1] is not None else None
            if mask is None or (mask.domain, mask.op_type) != (RANDOM, DROPOUT_MASK):
                continue
            key = mask.inputs[0]
            drawn = None if key is None else key.producer()
            is_known = drawn is None or self._order.get(drawn, 1 << 60) < self._order[place]
            if key is not None and is_known and scalar(node.inputs[2]) is not None:
                return node if node.graph is self.graph else None
        return None

    def _bias(self, mask: ir.Node) -> ir.Node | None:
        """The sum over all rows of what dropout's gradient returns: that of a bias."""
        masked = mask.outputs[0]
        count, axis = rank(masked), attribute(self.call, "axis", -1)
        for use in masked.uses():
            node = use.node
            if node.op_type != "ReduceSum" or node.domain or count is None:
                continue
            axes = ints(input_of(node, 1))
            rows = list(range(axis % count))
            if axes is None or attribute(node, "keepdims", 1) or node.graph is not self.graph:
                continue
            if sorted(each % count for each in axes) == rows:
                return node
        return None

    def _attributes(self, mask: ir.Node | None) -> list[ir.Attr]:
        epsilon = attribute(self.call, "epsilon", 1e-5)
        axis = attribute(self.call, "axis", -1)
        found = [ir.AttrInt64("axis", axis), ir.AttrFloat32("epsilon", epsilon)]
        if mask is None:
            return found
        drawn = mask.inputs[1].producer()  # type: ignore[union-attr]
        factor = scalar(mask.inputs[2])
        assert drawn is not None and factor is not None
        found += [ir.AttrInt64("node", attribute(drawn, "node"))]
        found += [ir.AttrFloat32("ratio", attribute(drawn, "ratio"))]
        return [*found, ir.AttrFloat32("factor", factor)]
