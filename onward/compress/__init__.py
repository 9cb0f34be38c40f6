"""Make models smaller and faster, and measure what it costs.

Names are imported when first used, so that importing this is fast.

from onward.compress import quantize, prune, distill
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.compress.calibration import Calibration as Calibration
    from onward.compress.early_exits.add_exits import add_exits as add_exits
    from onward.compress.early_exits.network import set_thresholds as set_thresholds
    from onward.compress.edge.export import export_for_edge as export_for_edge
    from onward.compress.quantization.quantize import quantize as quantize
    from onward.compress.report import Report as Report

_MODULE_OF = {
    "Calibration": "onward.compress.calibration",
    "Report": "onward.compress.report",
    "add_exits": "onward.compress.early_exits.add_exits",
    "export_for_edge": "onward.compress.edge.export",
    "set_thresholds": "onward.compress.early_exits.network",
    "quantize": "onward.compress.quantization.quantize",
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
