"""onward.sweep: search for the settings of a run by training with many of them."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onward.errors import OptionError, SweepFailed
from onward.graph.paths import to_path, writing
from onward.runner.run import INTERRUPTED
from onward.runner.sweep.importances import measure_importances
from onward.runner.sweep.study_journal import (
    PruneName,
    import_optuna,
    open_study,
    owning,
    quiet_optuna,
    retry,
    retry_running,
    seed_sampler,
)
from onward.runner.sweep.sweep_files import open_folder
from onward.runner.sweep.sweep_page import render_sweep
from onward.runner.sweep.sweep_plan import SweepPlan, plan_sweep
from onward.runner.sweep.sweep_result import (
    AGAIN,
    FAILED,
    SweepResult,
    TrialRow,
    read_row,
    sort_rows,
    write_best,
)
from onward.runner.sweep.sweep_trial import (
    PRUNED,
    TRAIN,
    RunTrial,
    TrialResult,
    describe_error,
    same_error,
)
from onward.runner.sweep.trial_runners import (
    InProcessRunner,
    TrialRunner,
    WorkerRunner,
    run_side_by_side,
)

_SAME_ERRORS = 3  # of the first trials, after which the sweep ends
ShowTrial = Callable[[TrialRow], None]


def sweep(
    model: Any,
    data: Any = None,
    *,
    search: Mapping[str, Any] | None = None,
    ablate: Mapping[str, Any] | None = None,
    grid: bool = False,
    trials: int = 20,
    workers: int = 1,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    timeout: float | None = None,
    prune: PruneName = "median",
    validation: Any = None,
    run_trial: RunTrial | str = TRAIN,
    finished: ShowTrial | None = None,
    **settings: Any,
) -> SweepResult:
    """Train with many settings and return the trials, the best first.

    `search` is a search space by setting: a list of values, or a range of numbers such as
    "1e-4..1e-1:log", "1..8" or "16..64:step=16". `grid` tries every combination of lists;
    `ablate` tries the settings as they are, and each listed change by itself. After `timeout`
    seconds no trial is started. `finished` is called after each trial. All other keywords are
    settings of `onward.train`.

        result = onward.sweep(
            "model.onnx", "data.csv", target="y", trials=20,
            search={"learning_rate": "1e-4..1e-1:log", "batch_size": [16, 32, 64]},
        )
        print(result.best.settings, result.command)

    The folder holds the runs of all trials, best.toml and sweep.html. With `resume`, a sweep that
    was interrupted continues in its folder.
    """
    given = {"model": model, "data": data, "validation": validation, **settings}
    given = {name: value for name, value in given.items() if value is not None}
    plan = plan_sweep(given, search, ablate, grid, trials, workers, timeout, prune)
    if workers > 1 and not isinstance(run_trial, str):
        raise OptionError(
            "workers of other processes import run_trial by name\n"
            'give "module:function", or workers=1'
        )
    with quiet_optuna():
        where = None if folder is None else to_path(folder)
        path = open_folder(where, resume, plan)
        with owning(path):
            study = open_study(path, prune)
            driver = _Sweep(plan, path, study, run_trial, finished)
            try:
                driver.run()
            finally:  # also after Ctrl-C: the page and the best config of what there is
                result = driver.write_result()
    if result.best is None:
        errors = [row.error for row in result.rows if row.state == FAILED]
        raise SweepFailed(f"no trial of the sweep finished: {(errors or ['none ran'])[0]}")
    return result


class _Sweep:
    """The state of a sweep while it runs; its methods are called from several threads."""

    def __init__(
        self,
        plan: SweepPlan,
        folder: Path,
        study: Any,
        run_trial: RunTrial | str,
        finished: ShowTrial | None,
    ) -> None:
        self.plan, self.folder, self.study, self.run_trial = plan, folder, study, run_trial
        self._show = finished
        self._lock = threading.Lock()
        self._stopping = False
        self._running = 0
        self._deadline = math.inf if plan.timeout is None else time.monotonic() + plan.timeout
        self._distributions = {
            name: values.distribution(import_optuna()) for name, values in plan.space.items()
        }

    def run(self) -> None:
        """Run trials until there are enough; the main path of a sweep."""
        retry_running(self.study)
        self._queue_points()
        if self.plan.workers == 1:
            self._work(InProcessRunner(self.run_trial))
            return
        runners: list[TrialRunner] = [
            WorkerRunner(str(self.run_trial), self.folder, self.plan.prune, number)
            for number in range(1, self.plan.workers + 1)
        ]
        try:
            run_side_by_side(runners, self._work, self._stop)
        finally:
            for runner in runners:
                runner.close()

    def _queue_points(self) -> None:
        """Queue the points of a grid or of ablations that were not tried yet."""
        known = [self._fixed(trial) for trial in self.study.get_trials(deepcopy=False)]
        for point in self.plan.points:
            encoded = {name: self.plan.space[name].encode(v) for name, v in point.items()}
            if encoded not in known:
                self.study.enqueue_trial(encoded)

    def _fixed(self, trial: Any) -> dict[str, Any]:
        return dict(trial.system_attrs.get("fixed_params") or trial.params)

    def _work(self, runner: TrialRunner) -> None:
        while (trial := self._next_trial()) is not None:
            try:
                result = runner.run(trial, self._settings(trial))
                interrupted = result.stopped == INTERRUPTED
            except Exception as error:
                self._end(trial, error)
                continue
            except KeyboardInterrupt:
                interrupted, result = True, None
            if interrupted or result is None:
                self._give_up(trial)
                raise KeyboardInterrupt
            self._end(trial, result)

    def _next_trial(self) -> Any:
        with self._lock:
            if self._stopping or time.monotonic() >= self._deadline:
                return None
            rows = self._rows()
            done = sum(row.state != AGAIN for row in rows)
            if done + self._running >= self.plan.trials:
                return None
            seed_sampler(self.study, self.plan.seed)
            trial = self.study.ask(self._distributions)
            self._running += 1
            return trial

    def _settings(self, trial: Any) -> dict[str, Any]:
        """The settings of a trial: the sweep's, its own values, and its run folder."""
        own = {name: self.plan.space[name].decode(v) for name, v in trial.params.items()}
        place = {"runs": str(self.folder / "runs"), "name": f"trial-{trial.number:04d}"}
        return {**self.plan.settings, **self.plan.trial_settings, **own, **place}

    def _end(self, trial: Any, outcome: TrialResult | Exception) -> None:
        """Record how a trial ended; raises after the first trials' common error."""
        with self._lock:
            self._running -= 1
            if self._stopping and isinstance(outcome, Exception):
                retry(self.study, trial)  # its process was stopped with the others
                return
            error = outcome if isinstance(outcome, Exception) else self._record(trial, outcome)
            if error is not None:
                trial.set_user_attr("error", describe_error(error))
                self.study.tell(trial, state=import_optuna().trial.TrialState.FAIL)
            rows = self._rows()
            row = next(each for each in rows if each.number == trial.number)
        if self._show is not None:
            self._show(row)
        self._check_first_errors(rows, error)

    def _record(self, trial: Any, result: TrialResult) -> Exception | None:
        """Record a result; returns the error if its number cannot be compared."""
        trial.set_user_attr("run", result.folder)
        trial.set_user_attr("numbers", dict(result.numbers))
        trial.set_user_attr("higher_is_better", result.higher_is_better)
        try:
            score = result.score()
        except (OptionError, ArithmeticError) as error:
            return error
        monitored = [result.monitor, result.higher_is_better]
        kept = self.study.user_attrs.get("monitored")
        if kept is None:
            self.study.set_user_attr("monitored", monitored)
        elif list(kept) != monitored:
            return OptionError(
                f"the run monitors {result.monitor}, other trials {kept[0]}\n"
                "give the number that all have with --monitor"
            )
        if result.stopped == PRUNED:
            self.study.tell(trial, state=import_optuna().trial.TrialState.PRUNED)
        else:
            self.study.tell(trial, score)
        return None

    def _check_first_errors(self, rows: list[TrialRow], error: Exception | None) -> None:
        ended = [row for row in rows if row.state != AGAIN]
        failed = [row.error for row in ended if row.state == FAILED]
        if error is not None and len(ended) == len(failed) == _SAME_ERRORS and same_error(failed):
            self._stop()
            raise SweepFailed(
                f"the first {_SAME_ERRORS} trials failed with the same error: {failed[0]}"
            ) from error

    def _give_up(self, trial: Any) -> None:
        with self._lock:
            self._running -= 1
            self._stopping = True
            retry(self.study, trial)

    def _stop(self) -> None:
        self._stopping = True

    def _rows(self) -> list[TrialRow]:
        """The trials that have ended, in their order."""
        trials = self.study.get_trials(deepcopy=False)
        return [read_row(each, self.plan.space) for each in trials if each.state.is_finished()]

    def write_result(self) -> SweepResult:
        """The result so far; writes best.toml and sweep.html."""
        monitor, higher = self.study.user_attrs.get("monitored", ("", False))
        rows = sort_rows(self._rows(), higher)
        shares, method = measure_importances(self.study, rows)
        result = SweepResult(self.folder, rows, monitor, higher, shares, method)
        write_best(result, self.plan.settings)
        with writing(result.page):
            result.page.write_text(render_sweep(result, self.plan.space), "utf-8")
        return result
