"""FixedScale: hooks of segments that scale gradients, and exchange nothing."""

from __future__ import annotations


class FixedScale:
    """SegmentHooks of a process that computes by itself."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def before(self, segment: int) -> None:
        pass

    def scale(self) -> float:
        return self._factor

    def after(self, update: int) -> None:
        pass
