"""Find sizes that reach a measured speedup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.pruning.removal import Removal, remove_units
from onward.compress.pruning.units import UnitGroup
from onward.compress.timing import time_in_turns
from onward.providers.choose import Asked

_MOST_CANDIDATES = 8  # kinds of groups whose price is measured
_MOST_ROUNDS = 7
_CLOSE = 1.06  # how far above the wanted speedup a search stops
_LEAST_LEFT = 0.02  # share of the multiplications
_MARGIN = 1.01  # two timings of the same model differ by as much


@dataclass(frozen=True)
class SpeedSearchResult:
    """The result of a search: what to remove, and how many times as fast the model then is."""

    removal: Removal
    speedup: float
    reached: bool


def measure_prices(
    model: ir.Model,
    groups: Sequence[UnitGroup],
    macs: Mapping[str, float],
    feeds: Mapping[str, Any],
    providers: Asked,
    progress: Progress,
) -> dict[str, float]:
    """The seconds that one unit of each group costs: measured with half of the group gone.

    Groups of the same kind, size and multiplications are measured once; where many kinds are, the
    largest. The others are taken to cost as much for their multiplications as those on average.
    """
    alike: dict[tuple[Any, ...], list[UnitGroup]] = {}
    for group in groups:
        alike.setdefault(
            (group.kind, group.count, group.width, round(macs[group.name])), []
        ).append(group)
    largest = sorted(
        alike.values(), key=lambda each: -macs[each[0].name] * each[0].count * len(each)
    )[:_MOST_CANDIDATES]
    progress("measure what each kind of unit costs", 0, None)
    candidates: dict[str, ir.Model] = {"": model}
    for same in largest:
        halves = {group.name: list(range(group.count // 2)) for group in same}
        candidates[same[0].name] = remove_units(model, halves)
    times = time_in_turns(candidates, feeds, providers=providers, seconds=0.15)
    prices: dict[str, float] = {}
    saved = counted = 0.0
    for same in largest:
        gone = sum(group.count // 2 for group in same)
        seconds = max(times[""] - times[same[0].name], 0.0)
        saved, counted = saved + seconds, counted + gone * macs[same[0].name]
        prices |= dict.fromkeys((group.name for group in same), seconds / max(gone, 1))
    average = saved / counted if counted else 1.0
    floor = 0.1 * average  # a unit that measures as free still has some price
    return {
        group.name: max(
            prices.get(group.name, average * macs[group.name]), floor * macs[group.name]
        )
        for group in groups
    }


def reach_speedup(
    model: ir.Model,
    choose: Callable[[float], Removal],
    write: Callable[[Removal], ir.Model],
    speedup: float,
    feeds: Mapping[str, Any],
    providers: Asked,
    progress: Progress,
) -> SpeedSearchResult:
    """Search for the largest share of multiplications at which the model is fast enough.

    `choose(share)` says what to remove; each candidate is cut and timed in turns with the model.
    """
    share, low, high = 1 / speedup, _LEAST_LEFT, 1.0
    best: SpeedSearchResult | None = None
    fastest: SpeedSearchResult | None = None
    for number in range(_MOST_ROUNDS):
        progress(f"measure a model with {share:.0%} of the multiplications", number, _MOST_ROUNDS)
        removal = choose(share)
        times = time_in_turns(
            {"before": model, "after": write(removal)}, feeds, providers=providers, seconds=0.4
        )
        measured = times["before"] / times["after"]
        found = SpeedSearchResult(removal, measured, measured >= speedup * _MARGIN)
        if fastest is None or measured > fastest.speedup:
            fastest = found
        if found.reached:
            if best is None or measured < best.speedup:
                best = found
            if measured <= speedup * _CLOSE:
                break
            low = share
        else:
            high = share
        guess = share * measured / (speedup * (1 + (_CLOSE - 1) / 2))
        share = guess if low < guess < high else (low + high) / 2
        if high - low < 0.01:
            break
    assert fastest is not None
    return best or fastest
