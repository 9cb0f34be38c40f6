"""prune: remove whole channels, heads, units and layers from a model, and measure the result.

report = prune("model.onnx", "rows.npz", keep=0.5, tune="5min")
report.save("pruned.onnx")
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.distillation.match_teacher import match_teacher
from onward.compress.distillation.trimmed_batches import trimmed_batches
from onward.compress.progress_steps import Progress, no_progress
from onward.compress.pruning import activations, importance, sizes, sparse_masks, speed
from onward.compress.pruning.axes import Array, Positions
from onward.compress.pruning.layers import remove_layers
from onward.compress.pruning.prune_settings import Goal, check_importance, make_goal, read_time
from onward.compress.pruning.removal import Removal, remove_units, removed_labels
from onward.compress.pruning.unit_costs import UnitCosts, count_macs
from onward.compress.pruning.units import Group, find_groups, find_positions, finish, prepare
from onward.compress.quality import Judge, OwnMetric, Quality
from onward.compress.report import Change, Measured, Report
from onward.compress.timing import time_in_turns
from onward.errors import OptionError
from onward.graph.files import Source, load, weight_bytes
from onward.losses.loss import Loss
from onward.providers.choose import Asked
from onward.runner.metrics.metric import Metric
from onward.sessions.inference import InferenceSession

_LARGE = 1 << 30  # bytes; a protobuf message ends at 2 GiB


def prune(
    model: Source,
    data: Any = None,
    *,
    keep: float | None = None,
    speedup: float | None = None,
    macs: int | str | None = None,
    layers: int = 0,
    pattern: str | None = None,
    sparsity: float | None = None,
    importance: str = "magnitude",
    target: str | None = None,
    metric: str | Metric | OwnMetric | None = None,
    loss: Loss | None = None,
    provider: str = "cpu",
    multiple: int = 8,
    tune: float | str | None = None,
    learning_rate: float = 3e-4,
    only: Sequence[str] = (),
    protect: Sequence[str] = (),
    batch: int | None = None,
    limit: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Report:
    """Remove what a model's outputs need least, whole units at a time; the model is not changed.

    Args:
        model: the model
        data: what `Calibration` takes: a file, rows, feeds; None: random feeds
        keep: the share of each group of units that stays; 0.5 if nothing else is asked for
        speedup: how many times as fast the model has to become, measured on `provider`
        macs: how many multiplications a run may have: 1e9, "1G"
        layers: how many residual blocks to remove, in addition
        pattern, sparsity: zeros inside the weights instead: "2:4", or this share of all. They
            bring no speed on a CPU
        importance: "magnitude" of the weights, "activation" (needs data: the variance that goes
            with a unit; its mean goes into the next bias), or "gradient" (the change of the loss,
            or of the outputs, to first order)
        target: the column of the data that holds the targets of `metric` and `loss`
        metric: a metric's name, a Metric or a function that runs the model
        loss: for importance="gradient"
        provider: the provider that will run the model
        multiple: sizes are multiples of this where a group is large enough
        tune: how long to recover by distillation from the original: 300, "5min"
        learning_rate: of tuning
        only, protect: patterns of groups that may be pruned, or may not: names of weights, or a
            kind: "channels", "heads", "units", "recurrent"
        batch: rows of a batch; a run is timed with 1 if it is not given
        limit: the number of batches to read at most
        folder: where an interrupted tuning is kept; the same call continues it
        seed: of random feeds and of tuning
        progress: called with what begins now, how much is done and the total
    """
    goal = make_goal(keep, speedup, macs, layers, pattern, sparsity)
    check_importance(importance)
    if multiple < 1:
        raise OptionError(f"multiple must be at least 1, not {multiple}")
    seconds = read_time(tune)
    progress("read the model", 0, None)
    original = load(model)
    inputs = InferenceSession(original, providers=[provider]).get_inputs()
    calibration = Calibration(data, inputs, target=target, batch=batch, limit=limit, seed=seed)
    timed = Calibration(data, inputs, target=target, batch=batch or 1, limit=1, seed=seed).first()
    judge = Judge(original, calibration, metric=metric, providers=[provider])
    task = _Pruning(original, calibration, timed, judge, [provider], goal, progress, seed, multiple)
    changed = task.run(importance, loss, target, only, protect)
    if seconds is not None:
        changed = task.recover(changed, seconds, learning_rate, folder)
    return task.report(changed)


@dataclass(frozen=True)
class _Changed:
    """A pruned model, what was done, and sentences about it."""

    model: ir.Model
    changes: list[Change]
    notes: list[str]
    reached: bool = True


@dataclass
class _Pruning:
    """One call of `prune`: the original, the data, and the steps."""

    original: ir.Model
    calibration: Calibration
    timed: Mapping[str, Any]
    judge: Judge
    providers: Asked
    goal: Goal
    progress: Progress
    seed: int
    multiple: int

    def run(
        self,
        kind: str,
        loss: Loss | None,
        target: str | None,
        only: Sequence[str],
        protect: Sequence[str],
    ) -> _Changed:
        """Remove what the goal asks for."""
        self.progress("find what can be removed", 0, None)
        ready = prepare(self.original)
        if self.goal.is_sparse:
            model, changes = sparse_masks.zero_weights(ready, self.goal.pattern, self.goal.sparsity)
            return _Changed(model, changes, [sparse_masks.NO_SPEED])
        changes, notes, reached = [], [], True
        if self.goal.layers:
            ready, names = remove_layers(ready, self.goal.layers, self.judge, self.progress)
            changes += [Change(name=n, operator="Add", format="layer removed") for n in names]
            notes.append(f"{len(names)} residual blocks became the identity")
        if self.goal.cuts_units:
            cut = _UnitCut(self, ready, only, protect)
            cut.rate(kind, loss, target)
            ready, more, reached = cut.cut()
            changes, notes = changes + more, notes + cut.notes
        if self.calibration.is_random:
            notes.append("no data was given: the quality was measured on random feeds")
        return _Changed(ready, changes, notes, reached)

    def recover(
        self,
        changed: _Changed,
        seconds: float,
        rate: float,
        folder: str | os.PathLike[str] | None,
    ) -> _Changed:
        """Train the pruned model to give the original's outputs; the better of both stays."""
        trimmed = trimmed_batches(self.original, self.calibration)
        judge = self.judge if trimmed is None else Judge(self.original, trimmed)
        before = judge.rate(changed.model)
        tuned = match_teacher(
            changed.model,
            self.original,
            trimmed or self.calibration,
            seconds=seconds,
            learning_rate=rate,
            folder=folder,
            seed=self.seed,
            progress=self.progress,
        )
        after = judge.rate(tuned)
        if not _is_better(after, before):
            note = "tuning did not help; the model is as it was cut"
            return replace(changed, notes=[*changed.notes, note])
        note = f"tuning: similarity {before.similarity:.4f} to {after.similarity:.4f}"
        return replace(changed, model=tuned, notes=[*changed.notes, note])

    def report(self, changed: _Changed) -> Report:
        """Measure the model and the original in turns."""
        self.progress("measure the result", 0, None)
        model = finish(changed.model)
        times = time_in_turns(
            {"before": self.original, "after": model}, self.timed, providers=self.providers
        )
        before = self._measure(self.original, times["before"], self.judge.original)
        after = self._measure(model, times["after"], self.judge.rate(model))
        notes, found = list(changed.notes), times["before"] / times["after"]
        if self.goal.speedup is not None and not changed.reached:
            notes.insert(
                0,
                f"{self.goal.speedup:g} times as fast was not reached: the fastest model found "
                f"is {found:.2f} times as fast",
            )
        elif found < 1 and not self.goal.is_sparse:
            notes.append(
                "the model is smaller, but not faster here: kernels like multiples of 16, and a "
                "model this small spends its time outside of them"
            )
        is_best = bool(changed.changes) and not changed.reached
        return Report(
            task="prune",
            model=model,
            helped=bool(changed.changes) and changed.reached,
            before=before,
            after=after,
            changes=changed.changes,
            notes=notes,
            metric_name=self.judge.metric_name,
            rejected=model if is_best else None,
            rejected_figures=after if is_best else None,
        )

    def _measure(self, model: ir.Model, seconds: float, quality: Quality) -> Measured:
        weights = [v.const_value for g in model.graphs() for v in g.initializers.values()]
        tensors = [tensor for tensor in weights if tensor is not None]
        return Measured(
            file_bytes=_count_bytes(model),
            seconds=seconds,
            quality=quality,
            macs=count_macs(model, self.open_sizes()),
            parameters=sum(tensor.size for tensor in tensors),
        )

    def open_sizes(self) -> dict[str, int]:
        """The sizes of open dimensions in the feeds that are timed."""
        found: dict[str, int] = {}
        for value in self.calibration.inputs:
            for place, size in enumerate(np.shape(self.timed.get(value.name, ()))):
                dim = value.shape[place] if place < len(value.shape) else None
                if not isinstance(dim, int):
                    found[f"{value.name}:{place}"] = size
                if isinstance(dim, str):
                    found[dim] = size
        return found


def _count_bytes(model: ir.Model) -> int:
    """The size of a model's file; of a large one, that of its weights."""
    weights = weight_bytes(model)
    return weights if weights > _LARGE else len(ir.to_proto(model).SerializeToString())


def _is_better(a: Quality, b: Quality) -> bool:
    if not math.isfinite(a.error):
        return False
    return a.error < b.error or (a.similarity > b.similarity)


class _UnitCut:
    """The choice of units, and the model without them."""

    def __init__(
        self, task: _Pruning, model: ir.Model, only: Sequence[str], protect: Sequence[str]
    ) -> None:
        self._task, self._model = task, model
        self._positions: Positions = find_positions(model)
        everything = find_groups(model, self._positions)
        self._groups = sizes.select(everything, only, protect)
        self._importance: dict[str, Array] = {}
        self._moments: dict[str, activations.Moments] = {}
        self.notes: list[str] = []
        if self._groups:
            return
        if everything:
            names = ", ".join(dict.fromkeys(group.kind for group in everything))
            raise OptionError(
                f"nothing to prune: only= and protect= leave out all groups\nthere are {names}"
            )
        raise OptionError(
            "nothing to prune: every axis of the model's weights has to keep its size, because of "
            "its inputs, outputs or operators\nlayers= removes residual blocks, sparsity= sets "
            "weights to zero"
        )

    def rate(self, kind: str, loss: Loss | None, target: str | None) -> None:
        """Rate every unit."""
        task = self._task
        task.progress(f"rate {sum(group.count for group in self._groups)} units", 0, None)
        found = importance.by_magnitude(self._model, self._positions, self._groups)
        rated = found
        if kind == "activation":
            consumers = activations.find_consumers(self._model, self._positions)
            self._moments = activations.measure_moments(
                self._model, consumers, task.calibration, task.providers
            )
            rated = importance.by_activation(
                consumers, self._moments, self._positions, self._groups
            )
            rated = {name: each for name, each in rated.items() if each.any()}
        if kind == "gradient":
            rated = importance.by_gradient(
                self._model,
                self._positions,
                self._groups,
                task.calibration,
                loss=loss,
                providers=task.providers,
                seed=task.seed,
            )
        left = [group.name for group in self._groups if group.name not in rated]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            self.notes.append(
                f"the units of {left[0]}{more} were rated by magnitude: {kind} has no figures of "
                "them (it has none inside of If, Loop or Scan)"
            )
        self._importance = {**found, **rated}

    def cut(self) -> tuple[ir.Model, list[Change], bool]:
        """The model without the units, what was removed, and whether the goal was reached."""
        goal, reached = self._task.goal, True
        if goal.keep is not None:
            removal = sizes.keep_share(
                self._groups, self._importance, goal.keep, self._task.multiple
            )
        elif goal.macs is not None:
            removal, reached = self._reach_macs(goal.macs)
        else:
            removal, reached = self._reach_speedup(goal.speedup or 1.0)
        return self._write(removal), self._changes(removal), reached

    def _costs(self) -> UnitCosts:
        return UnitCosts(self._model, self._positions, self._task.open_sizes())

    def _reach_macs(self, macs: int) -> tuple[Removal, bool]:
        costs = self._costs()
        total = count_macs(self._model, self._task.open_sizes())
        if macs >= total:
            raise OptionError(f"the model has {total} multiplications already\nask for fewer")
        fixed = total - costs.macs()  # of other operators
        prices = costs.of_units(self._groups)
        wanted = float(macs - fixed)
        removal: Removal = {}
        for _ in range(4):  # the estimate leaves out operators that become smaller too
            removal = self._choose(costs, prices, wanted)
            counted = count_macs(self._write(removal), self._task.open_sizes())
            if counted <= macs:
                return removal, True
            wanted -= counted - macs
        self.notes.append(
            f"{macs} multiplications were not reached: the smallest model found has {counted}"
        )
        return removal, False

    def _choose(self, costs: UnitCosts, prices: Mapping[str, float], macs: float) -> Removal:
        return sizes.keep_macs(
            self._groups,
            self._importance,
            prices,
            costs,
            macs,
            self._task.multiple,
            len(self._positions.labels),
        )

    def _reach_speedup(self, speedup: float) -> tuple[Removal, bool]:
        costs, task = self._costs(), self._task
        prices = speed.measure_prices(
            self._model,
            self._groups,
            costs.of_units(self._groups),
            task.timed,
            task.providers,
            task.progress,
        )
        found = speed.reach_speedup(
            task.original,
            lambda share: self._choose(costs, prices, share * costs.macs()),
            self._write,
            speedup,
            task.timed,
            task.providers,
            task.progress,
        )
        return found.removal, found.reached

    def _write(self, removal: Removal) -> ir.Model:
        """The model without these units, their means in the biases if they were measured."""
        if not self._moments:
            return remove_units(self._model, removal)
        copy = self._model.clone()
        positions = find_positions(copy)
        removed = removed_labels(find_groups(copy, positions), removal, len(positions.labels))
        return remove_units(
            activations.fold_means(copy, removed, positions, self._moments), removal
        )

    def _changes(self, removal: Removal) -> list[Change]:
        return [
            Change(
                name=group.name,
                operator=_reader(self._model, group),
                format=f"{group.count - len(removal[group.name])} of {group.count} {group.kind}",
            )
            for group in self._groups
            if removal.get(group.name)
        ]


def _reader(model: ir.Model, group: Group) -> str:
    for graph in model.graphs():
        value = graph.initializers.get(group.weights[0][0])
        if value is not None:
            for use in value.uses():
                return use.node.op_type
    return ""
