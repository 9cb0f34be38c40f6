"""Keep what was learned of a quantized model where some of its weights get more bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.compress.learned_rounding.quantized_weights import (
    QuantizedWeight,
    array_of,
    find_weights,
    replace_tensor,
)
from onward.compress.quantization.quantization_plan import Plan, Quantizer


class LearnedWeights:
    """A quantizer that writes learned integers and scales where a plan has their format."""

    def __init__(self, quantizer: Quantizer, learned: ir.Model) -> None:
        self._quantizer, self._learned = quantizer, learned
        self.model, self.plan, self.refused = quantizer.model, quantizer.plan, quantizer.refused

    def groups(self, plan: Plan) -> Sequence[Sequence[str]]:
        """Nodes of a plan that are undone together."""
        return self._quantizer.groups(plan)

    def write(self, plan: Plan) -> ir.Model:
        """A new model that follows a plan."""
        return carry_over(self._learned, self._quantizer.write(plan))


def count_learned(learned: ir.Model, model: ir.Model) -> tuple[int, int]:
    """How many weights of a model have the integers and scales of a learned one; of how many."""
    known = {weight.integers_name: weight for weight in find_weights(learned)}
    pairs = [(weight, known.get(weight.integers_name)) for weight in find_weights(model)]
    kept = [other is not None and _is_same(weight, other) for weight, other in pairs]
    return sum(kept), len(known)


def carry_over(learned: ir.Model, model: ir.Model) -> ir.Model:
    """A model with the learned integers and scales of the weights that both have in one format.

    A model that quantizes data too is returned as it is: its scales depend on each other.
    """
    if any(node.op_type == "QuantizeLinear" for node in model.graph):
        return model
    known = {weight.integers_name: weight for weight in find_weights(learned)}
    changed = model.clone()
    for weight in find_weights(changed):
        other = known.get(weight.integers_name)
        if other is None or not _have_one_format(weight, other):
            continue
        replace_tensor(changed.graph.initializers[weight.integers_name], other.integers())
        replace_tensor(weight.stored_scale, array_of(other.stored_scale))
    return changed


def _is_same(a: QuantizedWeight, b: QuantizedWeight) -> bool:
    return (
        _have_one_format(a, b)
        and np.array_equal(a.integers(), b.integers())
        and np.array_equal(a.scale, b.scale)
    )


def _have_one_format(a: QuantizedWeight, b: QuantizedWeight) -> bool:
    if a.grid != b.grid or (a.zero is None) != (b.zero is None):
        return False
    pairs = [(a.integers(), b.integers()), (a.scale, b.scale)]
    if any(x.shape != y.shape for x, y in pairs):
        return False
    return a.zero is None or b.zero is None or np.array_equal(a.zero, b.zero)
