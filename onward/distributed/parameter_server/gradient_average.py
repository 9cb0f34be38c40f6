"""GradientAverage: the gradients of one update, added up by their weights as they come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np

from onward.programs.program import Array, Spec

Tensors = Mapping[str, Array]


class _Tensors(Protocol):
    """The types and shapes that a push must have."""

    @property
    def parameters(self) -> Mapping[str, Spec]: ...

    @property
    def statistics(self) -> Mapping[str, Spec]: ...


class GradientAverage:
    """The average of several workers' gradients, weighted by rows, without keeping each."""

    def __init__(self) -> None:
        self.workers: set[str] = set()
        self.staleness: list[int] = []
        self._weights: list[float] = []
        self._gradients: dict[str, Array] = {}
        self._statistics: dict[str, Array] = {}

    def __len__(self) -> int:
        return len(self._weights)

    def add(
        self, worker: str, gradients: Tensors, statistics: Tensors, weight: float, staleness: int
    ) -> None:
        """Add the gradients of a push."""
        self.workers.add(worker)
        self.staleness.append(staleness)
        if not self._weights:  # the first ones are kept as they are: one alone needs no division
            self._gradients, self._statistics = dict(gradients), dict(statistics)
        else:
            if len(self._weights) == 1:
                first = self._weights[0]
                self._gradients = _scaled(self._gradients, first)
                self._statistics = _scaled(self._statistics, first)
            _add(self._gradients, gradients, weight)
            _add(self._statistics, statistics, weight)
        self._weights.append(weight)

    def result(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The averages of gradients and of statistics."""
        if len(self._weights) == 1:
            return self._gradients, self._statistics
        share = 1.0 / sum(self._weights)
        return _scaled(self._gradients, share), _scaled(self._statistics, share)

    def rate(self) -> float:
        """The factor of the learning rate: 1 / (1 + staleness), averaged by the weights."""
        scaled = [w / (1 + s) for w, s in zip(self._weights, self.staleness)]
        return sum(scaled) / sum(self._weights)


def _scaled(tensors: Tensors, factor: float) -> dict[str, Array]:
    return {name: _times(tensor, factor) for name, tensor in tensors.items()}


def _add(total: dict[str, Array], tensors: Tensors, weight: float) -> None:
    for name, tensor in tensors.items():
        with np.errstate(all="ignore"):
            counts = tensor.dtype.kind in "biu"
            total[name] = tensor if counts else total[name] + _times(tensor, weight)


def _times(tensor: Array, factor: float) -> Array:
    """A tensor times a number; an overflow is found before the update, whole numbers stay."""
    if tensor.dtype.kind in "biu":  # a statistic that counts: the last one is taken
        return tensor
    with np.errstate(all="ignore"):
        product: Array = tensor * tensor.dtype.type(factor)
    return product


def refuse_push(
    gradients: Tensors, statistics: Tensors, weight: float, known: _Tensors
) -> Literal["malformed", "nonfinite"] | None:
    """Why a push cannot be used; None if it can."""
    if not math.isfinite(weight) or weight <= 0:
        return "malformed"
    if not _fit(gradients, known.parameters) or not _fit(statistics, known.statistics):
        return "malformed"
    tensors = (*gradients.values(), *statistics.values())
    return None if all(np.isfinite(tensor).all() for tensor in tensors) else "nonfinite"


def _fit(tensors: Tensors, known: Mapping[str, Spec]) -> bool:
    """Whether tensors have the names, types and shapes of those that are known."""
    return tensors.keys() == known.keys() and all(
        (tensors[name].dtype, tensors[name].shape) == spec for name, spec in known.items()
    )
