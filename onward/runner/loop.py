"""The training loop, from the first step to the exported model.

Everything else that happens during a run is a callback (`callback.py`). Several processes go
through the loop in step: where one of them may stop or fail alone, they agree (`team.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

from onward.runner.callback import Callback
from onward.runner.data.batches import DataBatch
from onward.runner.evaluate import evaluate
from onward.runner.events import Outputs, StepRecord
from onward.runner.export_run import export_run
from onward.runner.run import Run
from onward.runner.run_checkpoints import begin_save, end_save, hold_best
from onward.runner.team import run_and_ask

SECONDS_BETWEEN_SAVES = 30.0  # where --save-every is left out, and of best states


def train_loop(run: Run, callbacks: Sequence[Callback]) -> None:
    """Train until the last step, or until something stops the run; then save and export."""
    accumulate = run.config.gradient_accumulation_steps
    run.saved_at = run.clock()
    started = run.saved_at - run.seconds
    for callback in callbacks:
        callback.on_start(run)
    on_step = [(each.steps_between, each.on_step) for each in callbacks if _has_on_step(each)]
    run.agree()
    _finish_step(run, callbacks)  # a resumed run may have been stopped within an evaluation
    due = _next_due(run)
    earlier: list[Outputs] = []  # results of batches that await an update
    while not run.is_over:
        for batch in _batches(run):
            rate = run.session.expected_learning_rate
            results = run.session.step(batch.feeds)
            run.rows += batch.whole
            run.batch += 1
            run.micro += 1
            if run.micro < accumulate:
                earlier.append(results)
                continue
            run.micro = 0
            run.step += 1
            run.seconds = run.clock() - started
            record = StepRecord(run.step, run.epoch, batch, results, rate, earlier)
            earlier = []
            for steps_between, call in on_step:
                if run.step % steps_between == 0:
                    call(run, record)
            if run.step >= due or run.saving is not None:
                _finish_step(run, callbacks)
                due = _next_due(run)
            if run.is_over:
                break
        run.agree()
        if run.ends_epoch and not run.is_interrupted:
            for callback in callbacks:
                callback.on_epoch(run, run.epoch)
            run.epoch, run.batch = run.epoch + 1, 0
    end_save(run, callbacks)  # if it failed, the state is saved again
    _save(run, callbacks)
    end_save(run, callbacks)
    export_run(run)
    for callback in callbacks:
        callback.on_end(run)


def _batches(run: Run) -> Generator[DataBatch]:
    """This process's part of each batch of the epoch, until a process asks to stop.

    A part that cannot be read ends all processes, before the others begin the step.
    """
    with contextlib.closing(run.plan.training.epoch(run.epoch, start=run.batch)) as epoch:
        if run.team.size == 1:  # nothing to agree on, which would take time at each step
            for batch in epoch:
                if run.stopped and not run.micro:
                    return
                yield batch
            return
        while not run.ends_epoch:
            batch, is_asked = run_and_ask(run.team, lambda: next(epoch), run.asked is not None)
            if is_asked and not run.micro:
                run.adopt_stop()
                return
            yield batch


def _has_on_step(callback: Callback) -> bool:
    """Whether a callback does something at each step: a call costs time, even of nothing."""
    return getattr(callback.on_step, "__func__", None) is not Callback.on_step


def _finish_step(run: Run, callbacks: Sequence[Callback]) -> None:
    """Evaluate and save, where it is time for it and not done yet."""
    if run.saving is not None and run.saving.save.is_done:
        end_save(run, callbacks)
    ends = run.ends_epoch or run.step == run.plan.steps
    if _is_due(run, run.config.evaluate_every, ends) and run.step > max(run.evaluated, 0):
        evaluation = evaluate(run)
        if evaluation is not None:
            run.evaluated = run.step
            run.evaluations.append(evaluation)
            run.best = evaluation if evaluation.is_best else run.best
            for callback in callbacks:
                callback.on_evaluate(run, evaluation)
            run.agree()
            if evaluation.is_best:
                hold_best(run, callbacks)
    if run.step > max(run.saved, 0) and _is_save_due(run, ends):
        begin_save(run, callbacks)


def _next_due(run: Run) -> int:
    """No evaluation and no checkpoint is due before this step."""
    left = (len(run.plan.training) - run.batch) // run.config.gradient_accumulation_steps
    found = [run.step + max(left, 1), run.plan.steps]
    every = (run.config.evaluate_every, run.config.save_every)
    return min(found + [run.step - run.step % n + n for n in every if n])


def _is_due(run: Run, every: int | None, ends: bool) -> bool:
    """Whether it is time for something that happens every so many steps; None: every epoch."""
    return run.step % every == 0 if every else ends


def _is_save_due(run: Run, ends: bool) -> bool:
    """Whether it is time for a checkpoint, which costs as much after a short epoch as after a long.

    An evaluation that was the best is written with the next one, and after some time alone.
    """
    is_best = run.best is not None and run.best.step == run.step
    if run.config.save_every and run.step % run.config.save_every == 0:
        return True
    if not is_best and (run.config.save_every or not ends):
        return False
    return bool(run.team.largest(run.clock() - run.saved_at >= SECONDS_BETWEEN_SAVES))


def _save(run: Run, callbacks: Sequence[Callback]) -> None:
    if run.step != run.saved:
        begin_save(run, callbacks)
