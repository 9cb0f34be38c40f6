"""MeasuredInputs: what layers multiply their weights by, measured by runs of the float model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.progress_steps import Progress
from onward.compress.quantization.weights.blocks import Array
from onward.compress.quantization.weights.moments import (
    fits_at_once,
    measure_moments,
    measure_squares,
)
from onward.compress.quantization.weights.prepare import LARGEST_IN_MEMORY
from onward.compress.quantization.weights.rounding import Inputs
from onward.compress.quantization.weights.sites import WeightMatrix
from onward.graph.files import weight_bytes


class MeasuredInputs:
    """Measures the inputs of stores; moments that fit into memory are kept until `forget`."""

    def __init__(
        self, model: ir.Model, calibration: Calibration | None, method: str, progress: Progress
    ) -> None:
        self._model, self._calibration = model, calibration
        self._method, self._progress = method, progress
        self._kept: dict[str, Array] = {}

    @property
    def can_measure(self) -> bool:
        """Whether the float model is run: not a huge one, unless the method needs it."""
        if self._calibration is None or self._calibration.is_random:
            return False
        return (
            self._method not in ("auto", "rtn", "mse")
            or weight_bytes(self._model) <= LARGEST_IN_MEMORY
        )

    def names(self, each: WeightMatrix) -> list[str]:
        """The names of the data that a weight multiplies, if they are values of the main graph."""
        values = (site.data for site in each.sites if site.node.graph is self._model.graph)
        return list(dict.fromkeys(str(value.name) for value in values if value is not None))

    def squares(self, stores: Sequence[WeightMatrix]) -> dict[WeightMatrix, Inputs]:
        """The squares of the inputs of stores, where they can be measured."""
        names = {each: self.names(each) for each in stores}
        if not self.can_measure:
            return {}
        assert self._calibration is not None
        self._progress("measure the layers' inputs", 0, None)
        sizes = {name: each.shape[1] for each, found in names.items() for name in found}
        if fits_at_once(sizes.values()):  # rounding needs them too
            for moments in measure_moments(self._model, sizes, self._calibration):
                self._kept |= moments
            squares = {name: np.diag(each) for name, each in self._kept.items()}
        else:
            squares = measure_squares(self._model, sizes, self._calibration)
        return {
            each: _inputs_of(each, Inputs(squares=_add([squares[name] for name in found])))
            for each, found in names.items()
            if found
        }

    def moments(self, stores: Sequence[WeightMatrix]) -> Iterator[dict[WeightMatrix, Inputs]]:
        """The moments of the inputs of stores, of as many at a time as there is memory for."""
        names = {each: found for each in stores if (found := self.names(each))}
        if not names:
            return
        assert self._calibration is not None
        sizes = {name: each.shape[1] for each, found in names.items() for name in found}
        measured: Iterable[dict[str, Array]] = [self._kept]
        if any(name not in self._kept for name in sizes):
            self._progress("measure the layers' inputs", 0, None)
            measured = measure_moments(self._model, sizes, self._calibration)
        for moments in measured:
            known: dict[tuple[str, ...], Inputs] = {}
            ready: dict[WeightMatrix, Inputs] = {}
            for each, found in names.items():
                if found[0] in moments:  # of several inputs, those that were measured with it
                    these = tuple(name for name in found if name in moments)
                    if these not in known:
                        known[these] = Inputs(moments=_add([moments[name] for name in these]))
                    ready[each] = _inputs_of(each, known[these])
            yield ready

    def forget(self) -> None:
        """Release the moments that were kept."""
        self._kept = {}


def _inputs_of(each: WeightMatrix, products: Inputs) -> Inputs:
    """The inputs of a weight, given those of its products."""
    return products.with_lookups() if each.is_table else products


def _add(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.sum(arrays, axis=0)
