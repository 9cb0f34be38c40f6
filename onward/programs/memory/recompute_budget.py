"""Choose what to compute again so that the activations fit a budget, in the least time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.programs.memory.layer_cuts import Boundary, cut_into_layers
from onward.programs.memory.saved_values import SavedValueSearch
from onward.programs.memory.schedule import make_schedule, peak_of

_PRICES = tuple(2.0**-i for i in (0, 1, 2, 3, 4, 5, 6, 8, 12))  # of a byte's time, in bytes
_LAYERS = (2, 4, 6, 8, 12, 16, 24, 32)
_SMALLEST_LAYER = 3  # nodes
_ABOUT = 1.02  # of the lowest peak: not worth more time
_LATER = 0.25  # how much more a byte of the last layer costs: it waits for a shorter time


@dataclass(frozen=True)
class RecomputeChoice:
    """Storages to save, and what that costs."""

    saved: frozenset[ir.Value] = field(repr=False)
    time: float  # of repeated nodes, in bytes that memory could move in that time
    peak: int  # bytes of activations that are alive at once


@dataclass(frozen=True)
class _Option:
    """What one layer may save."""

    saved: frozenset[ir.Value]
    nbytes: int
    time: float


class BudgetSearch:
    """Searches choices for one train graph."""

    def __init__(self, search: SavedValueSearch, elsewhere: Collection[str]) -> None:
        self._search, self._elsewhere = search, elsewhere
        self._parts, self._sizes = search.parts, search.sizes
        self._choices: dict[frozenset[ir.Value], RecomputeChoice] = {}

    def nothing_repeated(self) -> RecomputeChoice:
        return self.evaluate(self._search.all_saved())

    def evaluate(self, saved: Collection[ir.Value]) -> RecomputeChoice:
        """The time and the peak of a choice."""
        key = frozenset(saved)
        if key not in self._choices:
            steps = make_schedule(self._parts, key)
            peak = peak_of(steps, self._sizes.bytes_of, self._elsewhere)
            time = sum(self._sizes.time_of(step.node) for step in steps if step.again)
            self._choices[key] = RecomputeChoice(key, time, peak)
        return self._choices[key]

    def least_memory(self) -> RecomputeChoice:
        """The choice with the lowest peak, whatever it costs."""
        found = [self.nothing_repeated()]
        for boundaries in self._divisions():
            saved = self._search.cheapest(_PRICES[-1], _crossing(boundaries))
            found.append(self.evaluate(saved))
            found.append(self.evaluate(saved | self._end_of_forward(boundaries)))
        least = min(choice.peak for choice in found)
        enough = [choice for choice in found if choice.peak <= _ABOUT * least]
        return min(enough, key=lambda choice: choice.time)

    def fit(self, budget: int) -> RecomputeChoice | None:
        """The fastest choice whose peak is within the budget; None if there is none."""
        if self.nothing_repeated().peak <= budget:
            return self.nothing_repeated()
        found = [self._fit_layers(each, budget) for each in self._divisions()]
        fitting = [choice for choice in found if choice is not None]
        return min(fitting, key=lambda choice: choice.time, default=None)

    def _end_of_forward(self, boundaries: Sequence[Boundary]) -> set[ir.Value]:
        """What waits of the last layer: the backward pass starts there, and needs it at once."""
        start = max((each.after for each in boundaries), default=-1)
        return {v for v in self._search.all_saved() if self._parts.place[v] > start}

    def _divisions(self) -> list[list[Boundary]]:
        """Ways to cut the forward pass into layers."""
        found: dict[tuple[int, ...], list[Boundary]] = {}
        most = max(_LAYERS[0], len(self._parts.forward) // _SMALLEST_LAYER)
        for count in (each for each in _LAYERS if each <= most):
            boundaries = cut_into_layers(self._parts, self._sizes, count)
            found.setdefault(tuple(each.after for each in boundaries), boundaries)
        return list(found.values())

    def _fit_layers(self, boundaries: Sequence[Boundary], budget: int) -> RecomputeChoice | None:
        """Replace the options of layers by ones with fewer bytes, the cheapest bytes first."""
        options = self._options(boundaries)
        upgrades = sorted(
            _Upgrade.of(layer, i, each, len(options))
            for layer, each in enumerate(options)
            for i in range(1, len(each))
        )

        def choice(count: int) -> RecomputeChoice:
            state = [0] * len(options)
            for upgrade in upgrades[:count]:
                state[upgrade.layer] = max(state[upgrade.layer], upgrade.option)
            return self.evaluate({v for each, i in zip(options, state) for v in each[i].saved})

        if choice(len(upgrades)).peak > budget:
            return None
        counts = range(len(upgrades) + 1)
        first = bisect_right(counts, -budget, key=lambda count: -choice(count).peak - 1)
        return next((c for c in map(choice, counts[first:]) if c.peak <= budget), None)

    def _options(self, boundaries: Sequence[Boundary]) -> list[list[_Option]]:
        """For each layer, what it may save: at falling prices of time, ever fewer bytes."""
        always = _crossing(boundaries)
        ends = [each.after for each in sorted(boundaries, key=lambda each: each.after)]
        found: list[list[_Option]] = [[] for _ in range(len(ends) + 1)]
        sets = [self._search.all_saved()]
        sets += [self._search.cheapest(price, always) for price in _PRICES]
        for saved in sets:
            own: list[set[ir.Value]] = [set() for _ in found]
            times = [0.0] * len(found)
            for value in saved:
                own[bisect_left(ends, self._parts.place[value])].add(value)
            for node in self._search.repeated(saved):
                layer = bisect_left(ends, self._parts.place[node.outputs[0]])
                times[layer] += self._sizes.time_of(node)
            for options, values, time in zip(found, own, times):
                nbytes = sum(map(self._sizes.bytes_of, values))
                if not options or (nbytes < options[-1].nbytes and time > options[-1].time):
                    options.append(_Option(frozenset(values), nbytes, time))
        return found


@dataclass(frozen=True, order=True)
class _Upgrade:
    """The step from one option of a layer to the next."""

    price: float  # time for each byte that is saved less
    layer: int
    option: int

    @classmethod
    def of(cls, layer: int, option: int, options: Sequence[_Option], layers: int) -> _Upgrade:
        last, this = options[option - 1], options[option]
        price = (this.time - last.time) / max(last.nbytes - this.nbytes, 1)
        return cls(price * (1 + _LATER * layer / layers), layer, option)


def _crossing(boundaries: Sequence[Boundary]) -> set[ir.Value]:
    return {value for each in boundaries for value in each.crossing}
