"""How far onnxruntime may fold constants while it loads a model, so that no model is a bomb.

Alone, it computes every result of up to 1 GiB, as many as there are, and texts of any size.
"""

from __future__ import annotations

from onward.graph.scan.model_scan import ModelScan

SETTING = "optimization.constant_folding_max_output_size_in_bytes"

_LARGEST = 1 << 30  # bytes of one result: onnxruntime's own bound
_USUAL = 1 << 26  # ... that no weight is as large as
_ALL = 1 << 32  # bytes of all results whose sizes are not known beforehand
_LEAST = 1 << 20


def largest_result(look: ModelScan) -> int:
    """The bytes of one result that may be folded: what transposes and widens weights stays.

    Results whose sizes a look does not see share `_ALL` and eight times the weights.
    """
    wanted = max(_USUAL, 4 * look.largest_weight)
    share = (_ALL + 8 * look.weight_bytes) // max(look.growth.unknown, 1)
    return min(_LARGEST, max(_LEAST, min(wanted, share)))


def switched_off(look: ModelScan) -> list[str]:
    """The optimizers to leave out: folding may take long, or make texts that nothing bounds."""
    return ["ConstantFolding"] if look.growth.heavy else []
