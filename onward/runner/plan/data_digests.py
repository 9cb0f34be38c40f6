"""Digests of a plan's data: runs that are resumed, and all processes of a run, need the same."""

from __future__ import annotations

from dataclasses import replace

from onward.runner.data.batches import Batches
from onward.runner.data.column_digests import digest_columns
from onward.runner.plan.training_plan import TrainingPlan


def with_digests(plan: TrainingPlan) -> TrainingPlan:
    """The plan with digests of the columns that its batches read, those of validation included."""
    found = _digests(plan.training)
    held_out = plan.validation
    if held_out is not None and held_out.dataset is not plan.training.dataset:
        found |= {f"validation {name}": each for name, each in _digests(held_out).items()}
    return replace(plan, digests=found)


def _digests(batches: Batches) -> dict[str, str]:
    return digest_columns(batches.dataset, batches.columns)
