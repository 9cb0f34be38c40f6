"""The callbacks of a run, in their order, as its settings ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from onward.runner.callback import Callback
from onward.runner.callbacks.csv_log import MetricsCsv
from onward.runner.callbacks.early_stopping import EarlyStopping
from onward.runner.callbacks.nonfinite_guard import NonFiniteGuard
from onward.runner.callbacks.profile_steps import ProfileSteps
from onward.runner.callbacks.run_record import RunRecord
from onward.runner.callbacks.sample_text import sample_text
from onward.runner.callbacks.tensorboard import TensorBoard
from onward.runner.callbacks.trackers import track
from onward.runner.callbacks.unfreezing import Unfreezing
from onward.runner.callbacks.write_report import WriteReport
from onward.runner.config import TrainConfig
from onward.runner.plan.training_plan import TrainingPlan


def choose_callbacks(
    config: TrainConfig, plan: TrainingPlan, given: Sequence[Callback]
) -> list[Callback]:
    """The guard first, then those that write; the user's last but for the record and the report.

    These describe the run as it ended, whatever the user's callbacks did.
    """
    chosen: list[Callback] = [NonFiniteGuard()]
    if plan.adapted.stages:
        chosen.append(Unfreezing())
    if config.patience is not None:
        chosen.append(EarlyStopping(config.patience))
    if config.profile is not None:
        chosen.append(ProfileSteps(config.profile))
    chosen.append(MetricsCsv())
    if config.sample_text:
        chosen.append(sample_text(plan, config.sample_text))
    if config.tensorboard:
        chosen.append(TensorBoard())
    chosen += [*given, RunRecord(), WriteReport()]
    return chosen + [track(name) for name in config.track]
