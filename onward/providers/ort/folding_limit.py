"""Limits on onnxruntime's constant folding, so that a small model cannot fill the memory.

Without them it computes any number of results of up to 1 GiB each, and strings of any size.
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
    """The optimizers to leave out: folding may take long, or make texts that nothing bounds."""
    return ["ConstantFolding"] if look.growth.heavy else []
