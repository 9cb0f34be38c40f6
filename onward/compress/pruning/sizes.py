"""Choose how many units of each group stay: the same share of each, or the best for their cost."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence

import numpy as np

from onward.compress.pruning.axes import Array
from onward.compress.pruning.removal import Removal, removed_labels
from onward.compress.pruning.unit_costs import UnitCosts
from onward.compress.pruning.units import UnitGroup

_LEAST_SHARE = 0.1  # of a group that a search leaves


def select(
    groups: Sequence[UnitGroup], only: Sequence[str], protect: Sequence[str]
) -> list[UnitGroup]:
    """The groups whose name, kind or a weight matches one of `only`, and none of `protect`."""
    return [
        group
        for group in groups
        if (not only or _matches(group, only)) and not _matches(group, protect)
    ]


def _matches(group: UnitGroup, patterns: Sequence[str]) -> bool:
    names = (group.name, group.kind, *(name for name, _ in group.weights))
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def round_count(group: UnitGroup, count: float, multiple: int) -> int:
    """A number of units that kernels like: of positions that are a multiple.

    A group of fewer than twice that many positions is rounded to units.
    """
    width = group.width if group.kind != "recurrent" else 1
    if group.kind == "channels" and group.count >= 4 * multiple:
        multiple *= 2  # convolutions have blocks of 16 channels where vectors have 512 bits
    step = multiple // math.gcd(multiple, width)
    if group.count < 2 * step:
        step = 1
    least = min(step, group.count)
    if group.count - count < 1e-9:
        return group.count
    return max(least, min(group.count, math.floor(count / step + 0.5) * step))


def keep_share(
    groups: Sequence[UnitGroup], importance: Mapping[str, Array], keep: float, multiple: int
) -> Removal:
    """Remove the least important units of each group until this share is left."""
    return {
        group.name: _least(importance[group.name], round_count(group, keep * group.count, multiple))
        for group in groups
    }


def _least(importance: Array, kept: int) -> list[int]:
    """All but the most important units."""
    order = np.argsort(importance, kind="stable")
    return sorted(order[: len(order) - kept].tolist())


def keep_macs(
    groups: Sequence[UnitGroup],
    importance: Mapping[str, Array],
    prices: Mapping[str, float],
    costs: UnitCosts,
    macs: float,
    multiple: int,
    labels: int,
) -> Removal:
    """Remove the units that matter least for their price until these multiplications are left.

    Units of all groups compete: importance is a share of the group's, a price what one unit costs.
    Removes as much as can be removed if that is not enough.
    """
    worth = {
        group.name: importance[group.name] ** 2
        / max(float((importance[group.name] ** 2).sum()), 1e-30)
        / max(prices[group.name], 1e-30)
        for group in groups
    }
    if not worth:
        return {}
    values = np.unique(np.concatenate(list(worth.values())))
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        removal = _below(groups, importance, worth, values[middle], multiple)
        if costs.macs(removed_labels(groups, removal, labels)) <= macs:
            high = middle
        else:
            low = middle + 1
    return _below(groups, importance, worth, values[min(low, len(values) - 1)], multiple)


def _below(
    groups: Sequence[UnitGroup],
    importance: Mapping[str, Array],
    worth: Mapping[str, Array],
    threshold: float,
    multiple: int,
) -> Removal:
    found = {}
    for group in groups:
        kept = int((worth[group.name] > threshold).sum())
        kept = max(kept, math.ceil(_LEAST_SHARE * group.count))
        found[group.name] = _least(importance[group.name], round_count(group, kept, multiple))
    return found
