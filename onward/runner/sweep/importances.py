"""How much each searched setting mattered: shares of the monitored number's variance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.runner.sweep.study_journal import import_optuna
from onward.runner.sweep.sweep_result import TrialRow

FANOVA = "fANOVA (Hutter et al. 2014), the share of the variance that a setting explains"
RANKS = "the share of the variance of the trials' ranks that a setting explains (omega squared)"
Array = np.ndarray[Any, Any]
_LEAST = 4  # trials below which no share means anything
_QUARTERS = 4


def measure_importances(study: Any, rows: Sequence[TrialRow]) -> tuple[dict[str, float], str]:
    """Shares by setting, the largest first, and how they were measured; empty for few trials."""
    measured = [row for row in rows if row.value is not None]
    if len(measured) < _LEAST or len({row.value for row in measured}) < 2:
        return {}, RANKS
    importance = import_optuna().importance
    try:
        evaluator = importance.FanovaImportanceEvaluator(seed=0)  # needs scikit-learn
        found = importance.get_param_importances(study, evaluator=evaluator)
        return {name: float(share) for name, share in found.items()}, FANOVA
    except (ImportError, RuntimeError, ValueError):
        return rank_importances(measured), RANKS


def rank_importances(rows: Sequence[TrialRow]) -> dict[str, float]:
    """The share of the variance of the trials' ranks that each setting explains by itself.

    omega^2 = (S_without - S - k S / (n - p)) / S_total: S is the squared error of an additive
    model of n trials with p columns, S_without that of the model without the k columns of a
    setting. Ranks, because one diverged trial would be all of the variance otherwise; the other
    settings are in the model, because a search tries good values together.
    """
    ranks = np.argsort(np.argsort([row.value or 0.0 for row in rows])).astype(float)
    total = float(((ranks - ranks.mean()) ** 2).sum())
    columns = {
        name: _columns([row.settings.get(name) for row in rows]) for name in rows[0].settings
    }
    shares = {}
    for name, own in columns.items():
        others = [each for key, each in columns.items() if key != name]
        full = _squared_error(ranks, [*others, own])
        free = len(rows) - 1 - sum(each.shape[1] for each in columns.values())
        chance = own.shape[1] * full / free if free > 0 else 0.0
        shares[name] = max(0.0, (_squared_error(ranks, others) - full - chance) / total)
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _columns(values: Sequence[Any]) -> Array:
    """A column of 0 and 1 for each group of values but the first."""
    groups = np.array(_groups(values))
    columns: Array = groups[:, None] == np.unique(groups)[None, 1:]
    return columns.astype(float)


def _squared_error(ranks: Array, columns: Sequence[Array]) -> float:
    matrix = np.concatenate([np.ones((len(ranks), 1)), *columns], axis=1)
    weights = np.linalg.lstsq(matrix, ranks)[0]
    return float(((ranks - matrix @ weights) ** 2).sum())


def _groups(values: Sequence[Any]) -> list[int]:
    """The group of each value: equal values, or quarters of many different numbers."""
    keys = [json.dumps(value) for value in values]
    distinct = sorted(set(keys))
    are_numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if not are_numbers or len(distinct) <= _QUARTERS:
        return [distinct.index(key) for key in keys]
    ends = np.quantile(np.array(values, float), np.arange(1, _QUARTERS) / _QUARTERS)
    return [int(group) for group in np.searchsorted(ends, np.array(values, float))]
