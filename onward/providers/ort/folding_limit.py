"""Limits on onnxruntime's constant folding, and the optimizers of it to leave out.

Without limits it computes any number of results of up to 1 GiB each, and strings of any size: a
small model could fill the memory.
"""

from __future__ import annotations

from onward.graph.scan.model_scan import ModelScan

SETTING = "optimization.constant_folding_max_output_size_in_bytes"

_LARGEST = 1 << 30  # bytes of one result: onnxruntime's default
_USUAL = 1 << 26  # ... of a model with small weights
_ALL = 1 << 32  # bytes of all results of unknown size together
_LEAST = 1 << 20


def max_folded_bytes(look: ModelScan) -> int:
    """The bytes of one result that may be folded: what transposes and widens weights stays.

    Results of unknown size share `_ALL` and eight times the weights.
    """
    wanted = max(_USUAL, 4 * look.largest_weight)
    share = (_ALL + 8 * look.weight_bytes) // max(look.growth.unknown, 1)
    return min(_LARGEST, max(_LEAST, min(wanted, share)))


def disabled_optimizers(look: ModelScan) -> list[str]:
    """The optimizers to leave out.

    Folding may take long, or make texts that nothing bounds. And float weights between nodes of
    quantized data would be rounded to 8 bits with one scale, although the model does not say so.
    """
    found = ["ConstantFolding"] if look.growth.heavy else []
    return [*found, "WeightBiasQuantization"] if look.products.has_float_weights else found
