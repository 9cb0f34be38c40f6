"""AWQ: the weights of large inputs get finer steps, and the inputs are divided by as much.

x w = (x / s) (w s): with s = rms(x)^alpha, the codes of a block follow the weights that matter most.
alpha is the one of the least error of the outputs. See "AWQ: Activation-aware Weight Quantization
for LLM Compression and Acceleration", Lin et al., 2023.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.int8.scaling import can_scale, multiply_weight, scale
from onward.compress.quantization.weights.blocks import Array
from onward.compress.quantization.weights.rounding import output_error, sample_rows
from onward.compress.quantization.weights.scales import round_weights
from onward.passes.rewrite import Names
from onward.passes.value_facts import is_constant, rank

_ALPHAS = tuple(0.1 * step for step in range(1, 10))
_LARGEST = 64.0  # of a factor and of its inverse
_LEAST_INPUT = 1e-4  # of the largest: smaller ones count as that
_WORTH = 0.99  # the share of the error that may be left


def choose_factors(
    weights: Sequence[Array], moments: Array, bits: int, block: int, scheme: str
) -> Array | None:
    """What to multiply the weights of each input by; None if nothing is better.

    Args:
        weights: those that multiply the same inputs, (outputs, inputs) each
        moments: X^T X of the inputs
        bits, block, scheme: see Blocks
    """
    squares = np.diag(moments).astype(np.float64)
    if not np.isfinite(squares).all() or squares.max() <= 0:
        return None
    size = np.sqrt(squares / squares.max())
    rows = np.concatenate([sample_rows(w) for w in weights])

    def error(factors: Array) -> float:
        rounded = round_weights(rows * factors, bits, block, scheme, search=False).widen()
        return output_error(rounded / factors - rows, moments)

    best, least = None, _WORTH * error(np.ones(len(size), np.float32))
    for alpha in _ALPHAS:
        factors = _factors(np.maximum(size, _LEAST_INPUT), alpha)
        lost = error(factors)
        if lost < least:
            best, least = factors, lost
    return best


def _factors(size: Array, alpha: float) -> Array:
    """size^alpha, with 1 in the middle of the largest and the smallest."""
    grown = size**alpha
    grown /= np.sqrt(grown.max() * grown.min())
    return np.asarray(np.clip(grown, 1 / _LARGEST, _LARGEST), np.float32)


def divide_inputs(
    model: ir.Model, value: ir.Value, readers: Collection[ir.Node], factors: Array, names: Names
) -> None:
    """Divide what these nodes read: in the weights that compute it, or by one more node."""
    inverse = 1 / factors
    place = _place_of_vector(value, readers, len(factors))
    if place is not None:
        maker = value.producer()
        assert maker is not None
        multiply_weight(maker, place, inverse, 0, names)
    elif can_scale(value, readers, -1):
        scale(value, inverse, names)
    else:
        _add_mul(model, value, readers, inverse, names)


def _place_of_vector(value: ir.Value, readers: Collection[ir.Node], size: int) -> int | None:
    """The place of the constant that a Mul multiplies channels by, as RMS norms do."""
    node = value.producer()
    if node is None or node.domain != "" or node.op_type != "Mul" or value.is_graph_output():
        return None
    if any(use.node not in readers for use in value.uses()):
        return None
    for place, vector in enumerate(node.inputs):
        if (
            is_constant(vector)
            and rank(vector) == 1
            and vector is not None
            and vector.shape is not None
            and vector.shape[0] == size
        ):
            return place
    return None


def _add_mul(
    model: ir.Model, value: ir.Value, readers: Collection[ir.Node], factors: Array, names: Names
) -> None:
    assert value.type is not None
    numbers = factors.astype(value.type.dtype.numpy())
    name = names.fresh(f"{value.name}/factors")
    constant = ir.val(name, const_value=ir.tensor(numbers, name=name))
    constant.type, constant.shape = value.type, ir.Shape(numbers.shape)
    model.graph.register_initializer(constant)
    made = ir.node("Mul", [value, constant], name=names.fresh(f"{value.name}/divide"))
    result = made.outputs[0]
    result.name = names.fresh(f"{value.name}/divided")
    result.type, result.shape = value.type, value.shape
    first = next(node for node in model.graph if node in readers)
    model.graph.insert_before(first, made)
    for reader in readers:
        reader.replace_input_with(0, result)
