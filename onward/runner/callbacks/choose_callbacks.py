"""The callbacks of a run, in their order, as its settings ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onward.errors import OptionError, OptionTypeError
from onward.runner.callback import Callback
from onward.runner.callbacks.csv_log import MetricsCsv
from onward.runner.callbacks.early_stopping import EarlyStopping
from onward.runner.callbacks.logged_steps import LoggedSteps
from onward.runner.callbacks.nonfinite_guard import NonFiniteGuard
from onward.runner.callbacks.profile_steps import ProfileSteps
from onward.runner.callbacks.run_record import RunRecord
from onward.runner.callbacks.sample_text import sample_text
from onward.runner.callbacks.team_speed import TeamSpeed
from onward.runner.callbacks.tensorboard import TensorBoard
from onward.runner.callbacks.trackers import track
from onward.runner.callbacks.unfreezing import Unfreezing
from onward.runner.callbacks.write_report import WriteReport
from onward.runner.config import TrainConfig
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.team import ALONE, Team

_METHODS = [name for name in vars(Callback) if not name.startswith("_")]


def choose_callbacks(
    config: TrainConfig, plan: TrainingPlan, given: Sequence[Callback], team: Team = ALONE
) -> list[Callback]:
    """The guard first, then those that write; the user's last but for the record and the report.

    These describe the run as it ended, whatever the user's callbacks did. Of several processes,
    only the first one writes; the user's callbacks are called in all of them.
    """
    if config.profile is not None and team.size > 1:
        raise OptionError("profile shows the steps of one process\nprofile a run in one process")
    if team.is_sharded and (config.tensorboard or config.sample_text):
        name = "tensorboard" if config.tensorboard else "sample_text"
        raise OptionError(
            f"{name} needs all weights in one process, and each has a part\n"
            f"leave out {name}, or --shard"
        )
    if not isinstance(given, Iterable):
        raise OptionTypeError(
            f"callbacks is {given!r:.80}, not a list\ngive one: callbacks=[EarlyStopping(3)]"
        )
    for place, each in enumerate(given):
        if isinstance(each, type) or not all(hasattr(each, name) for name in _METHODS):
            what = f"the class {each.__name__}" if isinstance(each, type) else repr(each)
            raise OptionTypeError(
                f"callbacks[{place}] is {what:.80}, not a Callback\n"
                "give an object of a class that inherits from onward.runner.callback.Callback"
            )
    chosen: list[Callback] = [NonFiniteGuard()]
    if plan.adapted.stages:
        chosen.append(Unfreezing())
    if config.patience is not None:
        if plan.validation is None:
            raise OptionError(
                "patience counts evaluations, and no rows are held out to evaluate on\n"
                "hold some out: --validation-split 0.1, give --validation, or leave patience out"
            )
        chosen.append(EarlyStopping(config.patience))
    if team.rank:
        writers = 1 + config.tensorboard + len(config.track)
        # each reads the gradient's norm, which the processes may compute together
        return [*chosen, *(LoggedSteps() for _ in range(writers)), *given]
    if config.profile is not None:
        chosen.append(ProfileSteps(config.profile))
    chosen.append(MetricsCsv())
    if config.sample_text:
        chosen.append(sample_text(plan, config.sample_text))
    if config.tensorboard:
        chosen.append(TensorBoard())
    if team.size > 1:
        chosen.append(TeamSpeed())
    chosen += [*given, RunRecord(), WriteReport()]
    return chosen + [track(name) for name in config.track]
