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
    from onward.compress.pruning.prune import prune as prune
    from onward.compress.report import Report as Report

_MODULE_OF = {
    "Calibration": "onward.compress.calibration",
    "distill": "onward.compress.distillation.distill",
    "Hidden": "onward.compress.distillation.hidden_values",
    "shrink": "onward.compress.distillation.shrink",
    "Report": "onward.compress.report",
    "prune": "onward.compress.pruning.prune",
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
