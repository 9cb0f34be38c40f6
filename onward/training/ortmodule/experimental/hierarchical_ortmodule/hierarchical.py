"""HierarchicalORTModule: the largest submodules that can be captured run on graphs."""

from __future__ import annotations

from onward.pytorch.fallback import CannotCapture
from onward.training.ortmodule._logger import LOGGER
from onward.training.ortmodule.ortmodule import ORTModule


class HierarchicalORTModule(ORTModule):
    """Wrap a module of which only parts can be captured; PyTorch runs the rest, without a warning.

    An ORTModule does the same with a warning, or with an error where the policy forbids it.

        from onward.training.ortmodule.experimental.hierarchical_ortmodule import (
            HierarchicalORTModule,
        )

        model = HierarchicalORTModule(model)
    """

    def _report(self, path: str, kind: str, reason: CannotCapture) -> None:
        LOGGER.info("%s (%s) runs in PyTorch: %s", path or "the module", kind, reason)
