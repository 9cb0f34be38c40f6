"""Trainer: Hugging Face Trainer's arguments and methods; forward, backward and update as one step.

    trainer = Trainer(model, TrainingArguments(output_dir="out", bf16=True), train_dataset=rows)
    trainer.train()
    trainer.save_model("trained")

The model returns its loss when it is given labels, as the models of transformers do. It is captured
with the first batch, and trained by a TrainingSession; its parameters are written back at the end,
before a checkpoint and before a callback that takes the model.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from onward.errors import OptionError
from onward.programs.training_options import TrainingOptions
from onward.pytorch.torch_session import open_torch_session, write_to_module
from onward.pytorch.trainer.arguments import read_arguments
from onward.pytorch.trainer.batches import Batch, Loader, label_names, model_columns
from onward.pytorch.trainer.checkpoints import (
    find_checkpoint,
    load_weights,
    read_checkpoint,
    remove_old,
    write_checkpoint,
    write_model,
)
from onward.pytorch.trainer.evaluation import EvaluationResult, run_evaluation
from onward.pytorch.trainer.item_counts import ITEMS, ItemCounts
from onward.pytorch.trainer.label_smoothing import make_smoother
from onward.pytorch.trainer.learning import describe_optimizers, make_optimizer, make_schedule
from onward.pytorch.trainer.run_plan import (
    due_after_step,
    group_updates,
    note_best,
    plan_run,
    updates_per_epoch,
)
from onward.pytorch.trainer.trainer_state import (
    Callbacks,
    PredictionOutput,
    TrainerControl,
    TrainerState,
    TrainOutput,
)
from onward.sessions.training.session import TrainingSession

log = logging.getLogger("onward")
_OURS = ("accumulate", "clip_norm", "schedule", "outputs", "seed")


class Trainer:
    """Trains a module whose forward returns its loss, with the arguments of Hugging Face's Trainer.

    Args:
        model: the module; with labels, its forward returns the loss first, or as `loss`
        args: TrainingArguments of onward.pytorch or of transformers; None: the defaults
        data_collator: makes a batch of a list of rows; None: columns are stacked
        train_dataset: rows, by number or of an IterableDataset: the forward's arguments by name
        eval_dataset: the same, for `evaluate`
        compute_metrics: takes an EvalPrediction, returns numbers by name
        callbacks: objects with methods of transformers.TrainerCallback
        optimizers: (an optimizer of torch or None, None)
        options: other TrainingOptions, such as {"precision": Precision(...)}
        providers: who runs the steps; None: torch on a GPU or for 16 bits, else onnxruntime
    """

    def __init__(
        self,
        model: nn.Module,
        args: Any = None,
        data_collator: Callable[[list[Any]], Batch] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        compute_metrics: Callable[[Any], Mapping[str, float]] | None = None,
        callbacks: Sequence[Any] = (),
        optimizers: tuple[Any, Any] = (None, None),
        options: Mapping[str, Any] | None = None,
        providers: Any = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise OptionError(
                f"Trainer takes a torch.nn.Module, not {type(model).__name__}\n"
                "an ONNX model is trained by onward.train or TrainingSession"
            )
        self.model, self.args = model, read_arguments(args)
        self.data_collator, self.compute_metrics = data_collator, compute_metrics
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.optimizer = describe_optimizers(optimizers)
        self.state, self.control = TrainerState(), TrainerControl()
        self.session: TrainingSession | None = None  # opened with the first batch
        self._items = ItemCounts(model)
        self._smoother = make_smoother(model, self.args)
        self._callbacks = Callbacks(callbacks)
        self._options, self._providers = _other_options(options), providers

    # -- training ------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None) -> TrainOutput:
        """Train until the last step; from a checkpoint's path, or with True from the newest one."""
        resume = resume_from_checkpoint or self.args.resume_from_checkpoint
        loader = self._loader(self.train_dataset, "train_dataset", trains=True)
        per_epoch = updates_per_epoch(self.args, loader.length)
        self.state, self.control = plan_run(self.args, per_epoch), TrainerControl()
        self._write_back()  # of an earlier call
        session = self._open(next(loader.epoch(0)), self.state.max_steps)
        if resume:
            path = find_checkpoint(Path(self.args.output_dir), resume)
            self.state = read_checkpoint(path, session)
        started, first = time.perf_counter(), self.state.global_step
        self._call("on_train_begin")
        if self.args.eval_on_start:
            self.evaluate()
        losses = self._train_epochs(session, loader, per_epoch)
        self._write_back()
        seconds = time.perf_counter() - started
        steps = self.state.global_step - first
        mean = _mean_of_finite(losses)
        metrics = {
            "train_runtime": seconds,
            "train_steps_per_second": steps / max(seconds, 1e-9),
            "train_loss": mean,
            "epoch": self.state.epoch,
        }
        self._log(metrics)
        if self.state.best_model_checkpoint is not None:
            best = Path(self.state.best_model_checkpoint)
            if self.args.load_best_model_at_end:
                load_weights(best, self.model, session)
            if self.args.save_total_limit == 1:  # the newest was kept to resume from
                remove_old(best.parent, 1, {best})
        self._call("on_train_end")
        return TrainOutput(self.state.global_step, mean, metrics)

    def _train_epochs(
        self, session: TrainingSession, loader: Loader, per_epoch: int
    ) -> list[float]:
        """Train from the step of the state to the last one; the losses of the updates."""
        state, losses, waiting = self.state, list[float](), list[list[Any]]()
        epoch = state.global_step // per_epoch
        done = state.global_step % per_epoch  # updates of this epoch that a checkpoint has made
        while state.global_step < state.max_steps and not self.control.should_training_stop:
            self._call("on_epoch_begin")
            place = -1
            for place, micro in enumerate(group_updates(loader.epoch(epoch), self.args)):
                if place < done:
                    continue
                waiting.append(self._update(session, micro))
                state.global_step += 1
                state.epoch = epoch + (place + 1) / per_epoch
                self.control.should_epoch_stop = False
                self._call("on_step_end")
                losses += self._after_step(session, waiting)
                if self.control.should_training_stop or self.control.should_epoch_stop:
                    break
                if state.global_step >= state.max_steps:
                    break
            if place < 0:
                log.warning("Trainer: train_dataset has no more rows at step %d", state.global_step)
                break
            epoch, done = epoch + 1, max(done - place - 1, 0)
            self._call("on_epoch_end")
            losses += self._after_epoch(session, waiting)
        return losses + _read_losses(waiting)

    def _update(self, session: TrainingSession, micro: list[Batch]) -> list[Any]:
        """One update; the results of its batches, whose losses are read later."""
        given = self._items.of_update(micro)
        results = [session.step(_feeds(batch, session)) for batch in given]
        if len(micro) < self.args.gradient_accumulation_steps:
            session.update_weights()
        return results

    # -- what happens after steps and epochs -----------------------------------------------------

    def _after_step(self, session: TrainingSession, waiting: list[list[Any]]) -> list[float]:
        control, due = self.control, due_after_step(self.args, self.state)
        found = list[float]()
        if "logging" in due or control.should_log:
            found = self._log_losses(session, waiting)
        if "eval" in due or control.should_evaluate:
            self._evaluate_and_rate()
        if "save" in due or control.should_save:
            self._save_checkpoint()
        control.should_log = control.should_evaluate = control.should_save = False
        return found

    def _after_epoch(self, session: TrainingSession, waiting: list[list[Any]]) -> list[float]:
        args, control, found = self.args, self.control, list[float]()
        if args.logging_strategy == "epoch" and waiting:
            found = self._log_losses(session, waiting)
        if args.eval_strategy == "epoch":
            self._evaluate_and_rate()
        if args.save_strategy == "epoch" or control.should_save:
            self._save_checkpoint()
        control.should_save = False
        return found

    def _evaluate_and_rate(self) -> None:
        """Evaluate; ask for a checkpoint if the result is the best, and the arguments want it."""
        is_saved = note_best(self.args, self.state, self.evaluate())
        self.control.should_save = self.control.should_save or is_saved

    def _log_losses(self, session: TrainingSession, waiting: list[list[Any]]) -> list[float]:
        """Log the mean loss of the updates since the last time."""
        losses = _read_losses(waiting)
        waiting.clear()
        schedule = session.program.settings.schedule
        rate = self.args.learning_rate
        if self.optimizer is not None:
            rate = float(self.optimizer.param_groups[0]["lr"])
        if schedule is not None:
            rate = schedule.rate(self.state.global_step - 1, rate)
        loss = _mean_of_finite(losses)
        self._log({"loss": loss, "grad_norm": session.gradient_norm, "learning_rate": rate})
        return losses

    def _log(self, logs: Mapping[str, float]) -> None:
        entry = {**logs, "epoch": self.state.epoch}
        self.state.log_history.append({**entry, "step": self.state.global_step})
        self._call("on_log", logs=entry)

    def _call(self, event: str, **others: Any) -> None:
        given = {"model": self.model, **others}
        self._callbacks.call(event, self.args, self.state, self.control, **given)

    # -- evaluating ------------------------------------------------------------------------------

    def evaluate(self, eval_dataset: Any = None, metric_key_prefix: str = "eval") -> dict[str, Any]:
        """The mean loss over rows, and what `compute_metrics` returns, with a prefix."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        found = self._evaluate(data, "eval_dataset", metric_key_prefix, self.compute_metrics)
        self._log(found.metrics)
        self._call("on_evaluate", metrics=found.metrics)
        return {**found.metrics, "epoch": self.state.epoch}

    def predict(self, test_dataset: Any, metric_key_prefix: str = "test") -> PredictionOutput:
        """The model's outputs for rows, their labels, and the metrics."""
        data, prefix = test_dataset, metric_key_prefix
        found = self._evaluate(data, "test_dataset", prefix, self.compute_metrics, predicts=True)
        return PredictionOutput(found.predictions, found.labels, found.metrics)

    def _evaluate(
        self, data: Any, name: str, prefix: str, metrics: Any, *, predicts: bool = False
    ) -> EvaluationResult:
        loader = self._loader(data, name, trains=False)
        session = self.session or self._open(next(loader.epoch(0)), 1)
        counted = (self._items.of_update([batch])[0] for batch in loader.epoch(0))
        batches = (_feeds(batch, session) for batch in counted)
        labels = label_names(self.model, self.args)
        return run_evaluation(session, batches, labels, prefix, metrics, predicts=predicts)

    # -- saving ----------------------------------------------------------------------------------

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Write the model: `save_pretrained` for a model of transformers, else its state_dict."""
        self._write_back()
        write_model(Path(output_dir or self.args.output_dir), self.model)

    def _save_checkpoint(self) -> None:
        self._write_back()
        session = None if self.args.save_only_model else self.session
        folder, limit = Path(self.args.output_dir), self.args.save_total_limit
        write_checkpoint(folder, self.model, session, self.state, limit)
        self._call("on_save")

    def _write_back(self) -> None:
        """Write the trained tensors into the module."""
        if self.session is not None:
            write_to_module(self.session, self.model)

    # -- the session -----------------------------------------------------------------------------

    def _loader(self, dataset: Any, name: str, *, trains: bool) -> Loader:
        if dataset is None:
            raise OptionError(f"Trainer has no {name}\ngive one when you make it")
        columns = model_columns(self.model, self.args)
        return Loader(dataset, self.args, self.data_collator, columns, trains=trains)

    def _open(self, example: Batch, steps: int) -> TrainingSession:
        """Open a session for a number of updates; a batch shows what the model takes."""
        args = self.args
        optimizer = self.optimizer or make_optimizer(self.model, args)
        settings: dict[str, Any] = {
            "accumulate": args.gradient_accumulation_steps,
            "clip_norm": args.max_grad_norm or None,
            "schedule": make_schedule(args, steps),
            "outputs": [],
            "seed": args.seed,
            "precision": args.precision,
        }
        was_training = self.model.training
        self.model.train()
        given = _example(self._items.of_update([example])[0])
        targets = {} if self._smoother is None else self._smoother.take_targets(given)
        self.session = open_torch_session(
            self.model,
            self._smoother,
            optimizer,
            example=given,
            targets=targets,
            options=TrainingOptions(**{**settings, **self._options}),
            providers=self._default_providers(),
        )
        self.model.train(was_training)
        return self.session

    def _default_providers(self) -> Any:
        if self._providers is not None:
            return self._providers
        if torch.cuda.is_available() and not self.args.use_cpu:
            return [("InductorExecutionProvider", {"device": "cuda"})]
        low = self.args.precision or self._options.get("precision")
        return [("TorchExecutionProvider", {"device": "cpu"})] if low else None


def _other_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    for name in options or {}:
        if name in _OURS:
            raise OptionError(
                f"options.{name} is decided by the Trainer's args\nset it there instead"
            )
    return dict(options or {})


def _example(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch as the arguments of a call."""
    return {**batch, ITEMS: torch.from_numpy(batch[ITEMS])} if ITEMS in batch else {**batch}


def _feeds(batch: Batch, session: TrainingSession) -> dict[str, Any]:
    """The tensors of a batch that the session takes, as arrays where the engine is not torch."""
    names = session.input_names
    return {name: _as_feed(batch[name]) for name in names if name in batch}


def _as_feed(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) and value.is_cuda else np.asarray(value)


def _read_losses(waiting: list[list[Any]]) -> list[float]:
    """The mean loss of the batches of each update."""
    return [float(np.mean([float(each["loss"]) for each in results])) for results in waiting]


def _mean_of_finite(losses: list[float]) -> float:
    """The mean of the losses that are finite: updates of others are skipped. NaN if none is."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        return math.nan if losses else 0.0
    return sum(finite) / len(finite)
