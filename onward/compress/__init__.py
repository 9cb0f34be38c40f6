"""Make models smaller and faster, and measure what it costs.

Names are imported when first used, so that importing this is fast.

from onward.compress import quantize, prune, distill
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.compress.calibration import Calibration as Calibration
    from onward.compress.distillation.distill import distill as distill
    from onward.compress.distillation.hidden_values import Hidden as Hidden
    from onward.compress.distillation.shrink import shrink as shrink
    from onward.compress.early_exits.add_exits import add_exits as add_exits
    from onward.compress.early_exits.network import set_thresholds as set_thresholds
    from onward.compress.edge.edge_export import export_for_edge as export_for_edge
    from onward.compress.learned_rounding.quantize_aware import (
        QuantizationAware as QuantizationAware,
    )
    from onward.compress.learned_rounding.quantize_aware import export_quantized as export_quantized
    from onward.compress.learned_rounding.quantize_aware import quantize_aware as quantize_aware
    from onward.compress.learned_rounding.tune_rounding import tune_rounding as tune_rounding
    from onward.compress.learned_rounding.tune_settings import Tune as Tune
    from onward.compress.packing.pack import pack as pack
    from onward.compress.packing.unpack import unpack as unpack
    from onward.compress.pruning.prune import prune as prune
    from onward.compress.quantization.quantize import quantize as quantize
    from onward.compress.report import Report as Report

_MODULE_OF = {
    "Calibration": "onward.compress.calibration",
    "Hidden": "onward.compress.distillation.hidden_values",
    "QuantizationAware": "onward.compress.learned_rounding.quantize_aware",
    "Report": "onward.compress.report",
    "Tune": "onward.compress.learned_rounding.tune_settings",
    "add_exits": "onward.compress.early_exits.add_exits",
    "distill": "onward.compress.distillation.distill",
    "export_for_edge": "onward.compress.edge.edge_export",
    "export_quantized": "onward.compress.learned_rounding.quantize_aware",
    "pack": "onward.compress.packing.pack",
    "prune": "onward.compress.pruning.prune",
    "quantize": "onward.compress.quantization.quantize",
    "quantize_aware": "onward.compress.learned_rounding.quantize_aware",
    "set_thresholds": "onward.compress.early_exits.network",
    "shrink": "onward.compress.distillation.shrink",
    "tune_rounding": "onward.compress.learned_rounding.tune_rounding",
    "unpack": "onward.compress.packing.unpack",
}

__all__ = [*_MODULE_OF]

if not TYPE_CHECKING:  # for a type checker, every name would exist

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(
                f"module 'onward.compress' has no attribute {name!r}\nit has {', '.join(__all__)}"
            )
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
