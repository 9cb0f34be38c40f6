"""add_exits: give a classifier exits, train them, and choose who leaves where.

report = add_exits("model.onnx", at=["/features.9/Add_output_0"], data="rows.npz",
                   target="label", drop=0.002)
report.save("exits.onnx")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onward.compress.calibration import BATCH, Array, Calibration, Feeds
from onward.compress.early_exits.batch_facts import count_rows, select_rows
from onward.compress.early_exits.exit_report import TrainedExits, report_exits, report_untrained
from onward.compress.early_exits.heads import CRITERIA, Head, confidences
from onward.compress.early_exits.network import (
    ExitNetwork,
    head_scores,
    prepare_network,
    with_thresholds,
)
from onward.compress.early_exits.thresholds import choose_thresholds
from onward.compress.early_exits.training import (
    NetworkOutputs,
    collect_answers,
    train_head,
    train_together,
)
from onward.compress.progress_steps import Progress, no_progress
from onward.compress.report import Report
from onward.errors import DataError, OptionError
from onward.graph.files import Source

HELD_OUT = 0.3  # the share of rows that thresholds are chosen on
_LEAST_ROWS = 20
_STEPS = 1000
_TOGETHER_STEPS = 600


def add_exits(
    model: Source,
    at: Sequence[str],
    *,
    output: str | None = None,
    data: Any = None,
    target: str | None = None,
    drop: float | str = 0.002,
    frozen: bool = True,
    criterion: str = "max_softmax",
    head: str = "auto",
    hidden: int = 0,
    exit_output: bool = True,
    steps: int | None = None,
    seconds: float | None = None,
    rate: float = 1e-3,
    batch: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Add exits to a classifier: rows that are sure early leave, the others go on.

    A head is grown at each named value and trained: with labels by cross entropy, without labels to
    answer as the network does. Thresholds are chosen on rows that no head saw.

    Args:
        model: a classifier; the original is not changed
        at: the names of inner values, or of the nodes that make them
        output: the scores that exits answer; None: the model's first output
        data: rows with the model's inputs. None: heads stay untrained, and no row leaves
        target: the column of the labels
        drop: the share of rows whose answer may become wrong: 0.002 is 0.2 points of accuracy.
            Without labels: the share of rows that may get another answer than the network's
        frozen: the network stays as it is; False: it is trained together with the heads, and kept
            if that saves more within the budget
        criterion: of being sure: "max_softmax", "entropy" or "margin"
        head: "mean" over pixels or tokens, "first" token; "auto": mean
        hidden: units of a hidden layer in each head; 0: a linear head
        exit_output: add the output `exit`: which exit each row took
        steps: of training, for each head or for all together; None: chosen
        seconds: at most so long, for each head or for all together
        rate: the learning rate of training together
        batch: rows of a batch of the data, and of the timing; None: 8
        seed: of the split, the heads and the training
        progress: called with what begins now, how much is done, and of how much
    """
    drop = to_share(drop)
    _check_options(drop, criterion, hidden, steps, seconds)
    show = progress or no_progress
    show("reading the model", 0, None)
    network, rows = prepare_network(
        model,
        at,
        output=output,
        data=data,
        target=target,
        batch=batch,
        head=head,
        seed=seed,
    )
    if data is None:
        return report_untrained(network, criterion, hidden, exit_output, seed)
    show("running the network on the data", 0, None)
    original = collect_answers(
        network.model, network.scores, network.heads, rows.labelled_batches(), network.axes
    )
    held = _held_out(len(original.scores), seed)
    trained = _train_frozen(network, original, held, hidden, steps, seconds, seed, show)
    best = _choose(network, trained, original, original, held, criterion, drop)
    if not frozen:
        together = _train_together(
            network, rows, trained, original, held, steps, seconds, rate, seed, progress
        )
        answers = collect_answers(
            together[0].model,
            network.scores,
            network.heads,
            rows.labelled_batches(),
            network.axes,
        )
        other = _choose(*together, answers, original, held, criterion, drop)
        best = other if other.chosen.cost < best.chosen.cost else best
    show("measuring", 0, None)
    return report_exits(
        best,
        original.rows(held),
        _timed_feeds(rows, network, held, best.chosen.taken, network.fixed_batch or batch or BATCH),
        before=network.model,
        criterion=criterion,
        exit_output=exit_output,
        drop=drop,
    )


def to_share(given: float | str) -> float:
    """A share as a number; text may be in percent.

    >>> to_share("0.2%")
    0.002
    """
    if not isinstance(given, str):
        return given
    text = given.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise OptionError(f"{given!r} is not a share\ngive 0.2% or 0.002") from None


def _check_options(
    drop: float, criterion: str, hidden: int, steps: int | None, seconds: float | None
) -> None:
    if not 0 <= drop < 1:
        raise OptionError(f"drop must be a share from 0 to 1, not {drop}\n0.002 is 0.2 points")
    if criterion not in CRITERIA:
        raise OptionError(f"no criterion {criterion!r}\nit must be one of {', '.join(CRITERIA)}")
    if hidden < 0:
        raise OptionError(f"hidden must be 0 or more units, not {hidden}")
    if steps is not None and steps < 1:
        raise OptionError(f"steps must be at least 1, not {steps}")
    if seconds is not None and seconds <= 0:
        raise OptionError(f"seconds must be above 0, not {seconds}")


def _held_out(rows: int, seed: int) -> Array:
    """Which rows thresholds are chosen on; heads are trained on the others."""
    if rows < _LEAST_ROWS:
        raise DataError(
            f"the data has {rows} rows; exits need at least {_LEAST_ROWS} to be trained and checked"
        )
    mask = np.zeros(rows, np.bool_)
    mask[np.random.default_rng(seed).permutation(rows)[: max(1, round(HELD_OUT * rows))]] = True
    return mask


def _train_frozen(
    network: ExitNetwork,
    answers: NetworkOutputs,
    held: Array,
    hidden: int,
    steps: int | None,
    seconds: float | None,
    seed: int,
    show: Progress,
) -> list[Head]:
    part = answers.rows(~held)
    heads = []
    for number, head in enumerate(network.heads):
        show(f"training the exit at {head.name}", number, len(network.heads))
        heads.append(
            train_head(
                part.features[number],
                part.targets,
                head,
                classes=network.classes,
                hidden=hidden,
                steps=steps or _STEPS,
                seconds=seconds,
                seed=seed + number,
            )
        )
    return heads


def _train_together(
    network: ExitNetwork,
    rows: Calibration,
    heads: list[Head],
    original: NetworkOutputs,
    held: Array,
    steps: int | None,
    seconds: float | None,
    rate: float,
    seed: int,
    progress: Progress | None,
) -> tuple[ExitNetwork, list[Head]]:
    """The network and the heads, trained on the rows that are not held out."""
    batches: list[tuple[Feeds, Array]] = []
    start = 0
    for feeds in rows.batches():
        count = count_rows(feeds, network.axes)
        chosen = np.flatnonzero(~held[start : start + count])
        if len(chosen):
            targets = original.targets[start + chosen]
            batches.append((select_rows(feeds, network.axes, chosen), targets))
        start += count
    other = replace(network, model=network.model.clone())
    trained = train_together(
        other.model,
        network.scores,
        heads,
        batches,
        network.axes,
        steps=steps or _TOGETHER_STEPS,
        seconds=seconds,
        rate=rate,
        seed=seed,
        progress=progress,
    )
    return other, trained


def _choose(
    network: ExitNetwork,
    heads: list[Head],
    answers: NetworkOutputs,
    original: NetworkOutputs,
    held: Array,
    criterion: str,
    drop: float,
) -> TrainedExits:
    """Choose thresholds; what training together costs the network counts against the budget."""
    part, before = answers.rows(held), original.rows(held)
    labels = before.labels if before.labels is not None else before.scores.argmax(axis=1)
    scores = [head_scores(x, h) for x, h in zip(part.features, heads, strict=True)]
    sure = [confidences(each, criterion) for each in scores]
    right = [each.argmax(axis=1) == labels for each in scores]
    final_right = part.scores.argmax(axis=1) == labels
    worse = float(np.mean(before.scores.argmax(axis=1) == labels) - np.mean(final_right))
    chosen = choose_thresholds(sure, right, final_right, network.costs, drop - max(worse, 0.0))
    return TrainedExits(
        network=network,
        heads=with_thresholds(heads, chosen.values),
        chosen=chosen,
        scores=[*scores, part.scores],
        is_joint=answers is not original,
    )


def _timed_feeds(
    rows: Calibration, network: ExitNetwork, held: Array, taken: Array, count: int
) -> Feeds:
    """A batch of held-out rows in which the exits have the shares of all held-out rows."""
    order = np.argsort(taken, kind="stable")
    places = np.floor((np.arange(count) + 0.5) * len(order) / count).astype(np.int64)
    wanted = np.sort(np.flatnonzero(held)[order[places]])
    parts: list[Feeds] = []
    start = 0
    for feeds in rows.batches():
        size = count_rows(feeds, network.axes)
        inside = wanted[(wanted >= start) & (wanted < start + size)] - start
        if len(inside):
            parts.append(select_rows(feeds, network.axes, inside))
        start += size
    try:
        return {
            name: np.concatenate([part[name] for part in parts], axis=network.axes[name])
            if name in network.axes
            else parts[0][name]
            for name in parts[0]
        }
    except ValueError:  # batches of different lengths: the longest part stands for all
        return max(parts, key=lambda part: count_rows(part, network.axes))
