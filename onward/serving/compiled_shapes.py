"""Runs in which the engine may compile for minutes: the first of each set of shapes.

Such a run is no sign that the model hangs: it may take COMPILE_FACTOR times as long as another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

COMPILE_FACTOR = 12.0
# Engines that build kernels or plans for the shapes of a run. None of them says when it does.
_COMPILING = frozenset(
    {
        "CoreMLExecutionProvider",
        "InductorExecutionProvider",
        "MIGraphXExecutionProvider",
        "NvTensorRTRTXExecutionProvider",
        "OpenVINOExecutionProvider",
        "QNNExecutionProvider",
        "TensorrtExecutionProvider",
        "VitisAIExecutionProvider",
    }
)
_MOST = 10_000  # sets of shapes that are kept


def may_compile(providers: Sequence[str]) -> bool:
    """Whether an engine among these compiles during a run."""
    return not _COMPILING.isdisjoint(providers)


class CompiledShapes:
    """The sets of shapes that an engine has run, for one run at a time."""

    __slots__ = ("_seen", "is_compiling")

    def __init__(self) -> None:
        self._seen: set[frozenset[Any]] = set()
        self.is_compiling = False  # a run of new shapes is under way

    def run(self, feeds: Mapping[str, Any], call: Callable[[], T]) -> T:
        """Call, and keep the shapes if it succeeds."""
        shapes = frozenset((name, np.shape(feed)) for name, feed in feeds.items())
        if shapes in self._seen:
            return call()
        self.is_compiling = True
        try:
            found = call()
        finally:
            self.is_compiling = False
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen.add(shapes)
        return found
