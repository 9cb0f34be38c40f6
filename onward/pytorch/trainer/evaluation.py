"""Evaluate a session over batches: the mean loss, predictions, labels and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.programs.program import LOSS
from onward.pytorch.trainer.trainer_state import EvalPrediction
from onward.sessions.training.session import TrainingSession

Array = np.ndarray[Any, Any]

_IGNORED = -100  # fills arrays of batches whose lengths differ


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The result of an evaluation."""

    predictions: Any
    labels: Any
    metrics: dict[str, float]


def run_evaluation(
    session: TrainingSession,
    batches: Iterable[Mapping[str, Any]],
    labels: Sequence[str],
    prefix: str,
    compute_metrics: Callable[[Any], Mapping[str, float]] | None,
    *,
    predicts: bool,
) -> EvaluationResult:
    """Evaluate all batches; rows count equally in the mean loss, as in transformers.Trainer."""
    total, rows = 0.0, 0
    outputs: list[list[Array]] = []
    targets: list[list[Array]] = []
    needs_outputs = predicts or compute_metrics is not None
    for feeds in batches:
        size = max(len(each) for each in feeds.values() if np.ndim(each))
        given = [np.asarray(feeds[name]) for name in labels if name in feeds]
        if given or not labels:
            total += float(session.evaluate(feeds)[LOSS]) * size
            rows += size
        if needs_outputs:
            own = {name: feeds[name] for name in session.program.inputs}
            outputs.append([np.asarray(each) for each in session.predict(own).values()])
            targets.append(given)
    predictions, answers = _joined(outputs), _joined(targets)
    metrics = {f"{prefix}_loss": total / rows} if rows else {}
    if compute_metrics is not None and answers is not None:
        found = compute_metrics(EvalPrediction(predictions, answers))
        metrics |= {_prefixed(name, prefix): float(value) for name, value in found.items()}
    return EvaluationResult(predictions=predictions, labels=answers, metrics=metrics)


def _prefixed(name: str, prefix: str) -> str:
    return name if name.startswith(f"{prefix}_") else f"{prefix}_{name}"


def _joined(batches: list[list[Array]]) -> Any:
    """The arrays of all batches, one below the other: one array, a tuple of them, or None."""
    if not batches or not batches[0]:
        return None
    joined = [_concatenate(parts) for parts in zip(*batches)]
    return joined[0] if len(joined) == 1 else tuple(joined)


def _concatenate(parts: Sequence[Array]) -> Array:
    """Rows of all parts; shorter ones are filled with -100, the label that losses ignore."""
    sizes = [max(each.shape[axis] for each in parts) for axis in range(1, parts[0].ndim)]
    filled = []
    for part in parts:
        behind = [(0, size - own) for own, size in zip(part.shape[1:], sizes)]
        filled.append(np.pad(part, [(0, 0), *behind], constant_values=_IGNORED))
    return np.concatenate(filled)
