"""Federated averaging: the mean of the clients' parameters, weighted by their rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward.errors import DataError

Array = np.ndarray[Any, Any]

log = logging.getLogger("onward")

_CHUNK = 1 << 16  # numbers that are averaged at once: bounds the extra memory


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends back after a round: its parameters, and from how many rows they are."""

    client: str
    parameters: Sequence[Array]
    rows: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AveragedRound:
    """The parameters after a round, and which clients are in them."""

    parameters: list[Array]
    clients: tuple[str, ...]
    rows: int
    left_out: Mapping[str, str]  # client: why
    metrics: Mapping[str, float]  # weighted by rows, of the metrics that all clients have


def average_updates(
    updates: Sequence[ClientUpdate],
    before: Sequence[Array],
    failures: Mapping[str, str] | None = None,
) -> AveragedRound:
    """The mean of the updates (FedAvg): sum(rows * parameters) / sum(rows).

    The result does not depend on the order of the updates. An update with NaN, or with parameters
    of another number, type or shape than `before`, is left out and logged, as are `failures` (by
    client). If none remains, the parameters stay as they were before.

    >>> one = ClientUpdate("a", [np.float32([1, 2])], rows=30)
    >>> two = ClientUpdate("b", [np.float32([3, 4])], rows=10)
    >>> average_updates([one, two], [np.zeros(2, np.float32)]).parameters
    [array([1.5, 2.5], dtype=float32)]
    """
    left_out, used = dict(failures or {}), []
    for update in updates:
        problem = find_problem(update, before)
        if problem is None:
            used.append(update)
        else:
            left_out[update.client] = problem
    for client, reason in left_out.items():
        log.warning("client %s is left out of this round: %s", client, reason)
    rows = [update.rows for update in used]
    if not used:
        return AveragedRound(list(before), (), 0, left_out, {})
    parameters = [
        weighted_mean([update.parameters[i] for update in used], rows) for i in range(len(before))
    ]
    clients = tuple(sorted(update.client for update in used))
    metrics = average_metrics([update.metrics for update in used], rows)
    return AveragedRound(parameters, clients, sum(rows), left_out, metrics)


def find_problem(update: ClientUpdate, before: Sequence[Array]) -> str | None:
    """Why an update cannot be averaged; None if it can."""
    if update.rows <= 0:
        return "it trained on no rows"
    if len(update.parameters) != len(before):
        return f"it sent {len(update.parameters)} parameters, the model has {len(before)}"
    for number, (array, old) in enumerate(zip(update.parameters, before)):
        if (array.dtype, array.shape) != (old.dtype, old.shape):
            return (
                f"its parameter {number} is {array.dtype} of shape {array.shape}, "
                f"the model's {old.dtype} of shape {old.shape}"
            )
        if not np.isfinite(array).all():
            return f"its parameter {number} holds NaN or infinity"
    return None


def weighted_mean(arrays: Sequence[Array], weights: Sequence[int]) -> Array:
    """The weighted mean of arrays of one shape, rounded from the exact sum of the products.

    Products of float32 and row counts below 2**29 are exact in float64.

    >>> weighted_mean([np.float32([1e8]), np.float32([1]), np.float32([-1e8])], [1, 2, 1])
    array([0.5], dtype=float32)
    """
    total = sum(weights)
    if not arrays or total <= 0:
        raise DataError("a mean needs arrays and weights above 0\ngive at least one with rows")
    flat = [array.reshape(-1) for array in arrays]
    mean = np.empty(arrays[0].size, arrays[0].dtype)
    for start in range(0, mean.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        terms = [array[part].astype(np.float64) * rows for array, rows in zip(flat, weights)]
        mean[part] = (exact_sum(terms) / total).astype(mean.dtype)
    return mean.reshape(arrays[0].shape)


def exact_sum(terms: Sequence[Array]) -> Array:
    """The sum of float64 vectors, each number rounded once: the same in every order.

    Knuth's two-sum keeps what each addition rounds away. Where those rests add up without rounding,
    `high + low` is the exact sum; the few other numbers are added by math.fsum.
    """
    high, low = terms[0].copy(), np.zeros_like(terms[0])
    rounded = np.zeros(len(high), bool)
    for term in terms[1:]:
        high, rest = _two_sum(high, term)
        low, lost = _two_sum(low, rest)
        rounded |= lost != 0
    total: Array = high + low
    for i in np.flatnonzero(rounded):
        total[i] = math.fsum(float(term[i]) for term in terms)
    return total


def average_metrics(
    metrics: Sequence[Mapping[str, float]], rows: Sequence[int]
) -> dict[str, float]:
    """The mean of each metric that all clients have, weighted by their rows."""
    names = [name for name in metrics[0] if all(name in each for each in metrics)]
    total = sum(rows)
    return {
        name: math.fsum(each[name] * count for each, count in zip(metrics, rows)) / total
        for name in names
    }


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e) with a + b = s + e exactly, s the rounded sum."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)
