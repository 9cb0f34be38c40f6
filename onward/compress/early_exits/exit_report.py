"""The report on a model with exits: who leaves where, what it costs and saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array, Feeds
from onward.compress.early_exits.batch_facts import count_rows
from onward.compress.early_exits.heads import Head, initial_weights
from onward.compress.early_exits.network import ExitNetwork, write_exits
from onward.compress.early_exits.thresholds import NEVER, Thresholds
from onward.compress.early_exits.training import NetworkOutputs
from onward.compress.quality import Quality
from onward.compress.report import Change, Measured, Report
from onward.compress.timing import time_in_turns
from onward.graph.scopes import stored_tensors

_SECONDS = 0.4  # how long each model is timed


@dataclass(frozen=True, kw_only=True)
class TrainedExits:
    """A network with trained heads, and the thresholds that were chosen for it.

    Attributes:
        network: the network; its weights differ from the original's if they were trained, too
        heads: with weights and thresholds
        chosen: the thresholds, and which exit each held-out row takes
        scores: of each exit, and of the network, for each held-out row
        is_joint: whether the network was trained together with the heads
    """

    network: ExitNetwork
    heads: list[Head]
    chosen: Thresholds
    scores: list[Array]
    is_joint: bool

    @property
    def answers(self) -> Array:
        """The scores that each held-out row gets: of the exit that it takes, or the network's."""
        taken = self.chosen.taken
        return np.stack(self.scores)[taken, np.arange(len(taken))]


def report_exits(
    best: TrainedExits,
    original: NetworkOutputs,
    feeds: Feeds,
    *,
    before: ir.Model,
    criterion: str,
    exit_output: bool,
    drop: float,
) -> Report:
    """Write the model, time it on feeds, and report. `original` has the held-out rows."""
    model, keep_one = write_exits(best.network, best.heads, criterion, exit_output=exit_output)
    dynamic = replace(best.network, fixed_batch=None)
    timed, _ = write_exits(dynamic, best.heads, criterion, exit_output=exit_output)
    times = time_in_turns({"before": before, "after": timed}, feeds, seconds=_SECONDS)
    labels = original.labels
    truth = labels if labels is not None else original.scores.argmax(axis=1)
    exits = _figures(best, truth)
    leaves = exits[-1]["share"] < 1
    quality = _quality(original.scores, best.answers)
    accuracy = [
        float(np.mean(scores.argmax(axis=1) == truth)) for scores in (original.scores, best.answers)
    ]
    notes = _notes(best, exits, labels is not None, drop)
    helped = leaves and times["after"] < times["before"]
    after = Measured(
        seconds=times["after"],
        parameters=_parameters(model),
        quality=replace(quality, metric=accuracy[1]),
    )
    return Report(
        task="early-exit",
        model=model,
        helped=helped,
        before=Measured(
            seconds=times["before"],
            parameters=_parameters(before),
            quality=Quality(similarity=1.0, error=0.0, agreement=1.0, metric=accuracy[0]),
        ),
        after=after,
        rejected=None if helped else model,
        rejected_figures=None if helped else after,
        changes=[
            _change(number, head, f"{figures['share']:.1%} leave")
            for number, (head, figures) in enumerate(zip(best.heads, exits[:-1], strict=True))
        ],
        notes=[*notes, *_keep_one_note(keep_one)],
        metric_name="accuracy" if labels is not None else "same answer",
        details={
            "exits": exits,
            "thresholds": list(best.chosen.values),
            "criterion": criterion,
            "held_out_rows": len(truth),
            "lost": best.chosen.lost,
            "expected_operations": best.chosen.cost,
            "timed_rows": count_rows(feeds, best.network.axes),
            "trained_together": best.is_joint,
        },
    )


def report_untrained(
    network: ExitNetwork, criterion: str, hidden: int, exit_output: bool, seed: int
) -> Report:
    """A model whose heads have random weights and whose thresholds let no row leave."""
    rng = np.random.default_rng(seed)
    heads = [
        replace(
            head,
            weights=initial_weights(head.channels, network.classes, hidden, rng),
            threshold=NEVER,
        )
        for head in network.heads
    ]
    model, keep_one = write_exits(network, heads, criterion, exit_output=exit_output)
    note = "no data: the heads are untrained and no row leaves; give data to train them"
    return Report(
        task="early-exit",
        model=model,
        helped=False,
        before=Measured(parameters=_parameters(network.model)),
        after=Measured(parameters=_parameters(model)),
        changes=[_change(number, head, "untrained") for number, head in enumerate(heads)],
        notes=[note, *_keep_one_note(keep_one)],
        details={"thresholds": [NEVER] * len(heads), "criterion": criterion},
    )


def _figures(best: TrainedExits, truth: Array) -> list[dict[str, Any]]:
    """Of each exit, and of the end of the network: share of rows, accuracy of those, threshold."""
    taken, found = best.chosen.taken, []
    names = [*(head.name for head in best.heads), best.network.scores]
    costs = [*best.network.costs, 1.0]
    for number, (name, scores) in enumerate(zip(names, best.scores, strict=True)):
        mine = taken == number
        right = scores.argmax(axis=1) == truth
        found.append(
            {
                "at": name,
                "share": float(np.mean(mine)),
                "accuracy": float(np.mean(right[mine])) if mine.any() else None,
                "accuracy_of_all_rows": float(np.mean(right)),
                "operations": costs[number],
            }
        )
    return found


def _notes(
    best: TrainedExits, exits: Sequence[dict[str, Any]], has_labels: bool, drop: float
) -> list[str]:
    kind = "right" if has_labels else "answered as by the network"
    rows = len(best.chosen.taken)
    notes = [
        f"{each['share']:.1%} of {rows} held-out rows leave at {each['at']!r}, "
        f"{each['accuracy']:.1%} of them {kind}"
        for each in exits[:-1]
        if each["share"]
    ]
    if exits[-1]["share"] == 1:
        return [
            f"no row leaves: no threshold keeps the budget of {drop:.2%}; put the exits later, "
            "give more data, or try hidden=64 or frozen=False"
        ]
    notes.append(f"{exits[-1]['share']:.1%} go to the end")
    if best.is_joint:
        notes.append("the network was trained together with its exits")
    return notes


def _change(number: int, head: Head, reason: str) -> Change:
    classes = len(head.weights["bias"])
    return Change(
        name=head.name,
        operator="",
        format=f"exit {number}: {head.channels} features to {classes} classes",
        reason=reason,
    )


def _keep_one_note(keep_one: bool) -> list[str]:
    if not keep_one:
        return []
    return [
        "one row of each batch always goes on: an operator of the rest does not run on 0 rows; "
        "a batch of 1 saves nothing"
    ]


def _quality(y: Array, z: Array) -> Quality:
    lengths = np.linalg.norm(y, axis=1) * np.linalg.norm(z, axis=1)
    cosines = (y * z).sum(axis=1) / np.where(lengths, lengths, 1.0)
    return Quality(
        similarity=float(np.mean(cosines)),
        error=float(np.linalg.norm(y - z) / max(float(np.linalg.norm(y)), 1e-30)),
        agreement=float(np.mean(y.argmax(axis=1) == z.argmax(axis=1))),
    )


def _parameters(model: ir.Model) -> int:
    return sum(tensor.size for _, tensor in stored_tensors(model))
