"""Train heads on the features of a frozen network, or together with it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array, Feeds
from onward.compress.early_exits.batch_facts import count_rows, open_session, select_rows
from onward.compress.early_exits.heads import Head, initial_weights, pool, score, weight_names
from onward.compress.progress_steps import Progress
from onward.errors import DataError
from onward.graph.builder import OpBuilder
from onward.graph.graph_ops import extend
from onward.losses.classification import CrossEntropy
from onward.losses.combined import Total
from onward.optimizers.adam import AdamW
from onward.optimizers.schedules import Cosine
from onward.programs.training_options import TrainingOptions
from onward.runner.finetune.batch_norms import batch_norm_names
from onward.sessions.training.session import TrainingSession

_BATCH = 64
_HEAD_RATE = 1e-2
_LEAST_SPREAD = 1e-6  # a feature that does not vary is not divided by its spread


@dataclass(frozen=True, kw_only=True)
class NetworkOutputs:
    """The scores of a network for rows, and the values that its exits read.

    Attributes:
        features: of each exit: (rows, channels)
        scores: of the network: (rows, classes)
        labels: the right classes; None without labels
    """

    features: list[Array]
    scores: Array
    labels: Array | None

    def rows(self, chosen: Array) -> NetworkOutputs:
        """The answers for these rows."""
        labels = None if self.labels is None else self.labels[chosen]
        return NetworkOutputs(
            features=[each[chosen] for each in self.features],
            scores=self.scores[chosen],
            labels=labels,
        )

    @property
    def targets(self) -> Array:
        """What heads learn: the labels, or the probabilities of the network's own answers."""
        return self.labels if self.labels is not None else probabilities(self.scores)


def probabilities(scores: Array) -> Array:
    """Softmax of scores; scores that are probabilities already stay."""
    if are_probabilities(scores):
        return scores.astype(np.float32)
    p = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True), np.float32)


def are_probabilities(scores: Array) -> bool:
    """Whether each row is positive and adds up to 1."""
    return bool((scores >= 0).all() and np.allclose(scores.sum(axis=-1), 1, atol=1e-3))


def collect_answers(
    model: ir.Model,
    scores: str,
    heads: Sequence[Head],
    batches: Iterable[tuple[Feeds, Any]],
    axes: Mapping[str, int],
) -> NetworkOutputs:
    """Run the network on the data; keep its scores and the pooled features of each exit."""
    probe = model.clone()
    values = {str(v.name): v for node in probe.graph for v in node.outputs}
    op = extend(probe)
    pooled = [pool(op, values[head.name], head) for head in heads]
    probe.graph.outputs[:] = [values[scores], *pooled]
    session = open_session(probe)
    names = [str(value.name) for value in probe.graph.outputs]
    found: list[list[Array]] = [[] for _ in names]
    labels: list[Array] = []
    for feeds, targets in batches:
        rows = count_rows(feeds, axes)
        for kept, each in zip(found, session.run(names, feeds), strict=True):
            kept.append(each)
        if targets is not None:
            labels.append(_classes(targets, rows))
    joined = [np.concatenate(each) for each in found]
    if not np.isfinite(joined[0]).all():
        raise DataError(f"the model's output {scores!r} is not finite on the data")
    classes = joined[0].shape[1]
    labelled = np.concatenate(labels) if labels else None
    if labelled is not None and (labelled.min() < 0 or labelled.max() >= classes):
        raise DataError(
            f"labels are from {labelled.min()} to {labelled.max()}; the model has {classes} "
            f"classes\nlabels must be 0 to {classes - 1}"
        )
    return NetworkOutputs(
        features=[each.astype(np.float32) for each in joined[1:]],
        scores=joined[0].astype(np.float32),
        labels=labelled,
    )


def _classes(targets: Any, rows: int) -> Array:
    """Labels as class numbers: (rows,), or one-hot."""
    labels = np.asarray(targets)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(axis=1)
    labels = labels.reshape(-1)
    is_whole = labels.dtype.kind in "iub" or np.array_equal(labels, np.round(labels))
    if len(labels) != rows or not is_whole:
        raise DataError(
            f"targets have shape {np.shape(targets)} for {rows} rows\n"
            "give one class number for each row"
        )
    return labels.astype(np.int64)


def train_head(
    features: Array,
    targets: Array,
    head: Head,
    *,
    classes: int,
    hidden: int,
    steps: int,
    seconds: float | None,
    seed: int,
) -> Head:
    """Train one head on features; they are standardized, which its first layer then contains."""
    mean = features.mean(axis=0)
    spread = np.maximum(features.std(axis=0), _LEAST_SPREAD)
    rng = np.random.default_rng(seed)
    head = replace(head, weights=initial_weights(head.channels, classes, hidden, rng))
    op = OpBuilder()
    x = op.input("features", "float32", ("batch", head.channels))
    model = op.model(scores=_as_score(op, x, head))
    loss = CrossEntropy(target="target", soft_labels=targets.ndim == 2)
    options = TrainingOptions(schedule=Cosine(steps=steps), seed=seed)
    with TrainingSession(model, loss, AdamW(lr=_HEAD_RATE), options) as session:
        standard = (features - mean) / spread
        end = None if seconds is None else time.monotonic() + seconds
        for rows in _row_batches(len(features), steps, rng):
            session.step({"features": standard[rows], "target": targets[rows]})
            if end is not None and time.monotonic() > end:
                break
        names = weight_names(0, head)
        trained = {key: np.array(session.parameters[name]) for key, name in names.items()}
    first = "hidden." if hidden else ""
    weight = trained[f"{first}weight"] / spread[:, None]
    trained[f"{first}bias"] = trained[f"{first}bias"] - mean @ weight
    trained[f"{first}weight"] = weight
    return replace(head, weights={k: v.astype(np.float32) for k, v in trained.items()})


def _as_score(op: Any, x: ir.Value, head: Head) -> ir.Value:
    return score(op, x, head, 0)


def _row_batches(rows: int, steps: int, rng: np.random.Generator) -> Iterator[Array]:
    """Batches of row numbers, shuffled again in each pass over the rows."""
    size, done = min(_BATCH, rows), 0
    while done < steps:
        order = rng.permutation(rows)
        for start in range(0, rows - size + 1, size):
            if done == steps:
                return
            yield order[start : start + size]
            done += 1


def train_together(
    model: ir.Model,
    scores: str,
    heads: Sequence[Head],
    batches: Sequence[tuple[Feeds, Array]],
    axes: Mapping[str, int],
    *,
    steps: int,
    seconds: float | None,
    rate: float,
    seed: int,
    progress: Progress | None,
) -> list[Head]:
    """Train the network and its heads; the model's weights change in place."""
    whole = model.clone()
    values = {str(v.name): v for node in whole.graph for v in node.outputs}
    op = extend(whole)
    answers = [
        score(op, pool(op, values[head.name], head), head, number)
        for number, head in enumerate(heads)
    ]
    for number, answer in enumerate(answers):
        answer.name = f"exit_{number}.scores"
    whole.graph.outputs[:] = [values[scores], *answers]
    soft = batches[0][1].ndim == 2
    parts = {
        f"part {place}": CrossEntropy(output=str(v.name), target="exit_target", soft_labels=soft)
        for place, v in enumerate(whole.graph.outputs)
    }
    options = TrainingOptions(
        schedule=Cosine(steps=steps), seed=seed, frozen_batch_norms=batch_norm_names(whole)
    )
    end = None if seconds is None else time.monotonic() + seconds
    with TrainingSession(whole, Total(parts), AdamW(lr=rate), options) as session:
        for done, (feeds, targets) in enumerate(_feed_batches(batches, axes, steps, seed)):
            if progress is not None:
                progress("training the network and its exits", done, steps)
            session.step({**feeds, "exit_target": targets})
            if end is not None and time.monotonic() > end:
                break
        trained = {name: np.array(array) for name, array in session.parameters.items()}
    for name, array in trained.items():
        if name in model.graph.initializers:
            value = model.graph.initializers[name]
            value.const_value = ir.tensor(array, name=name)
    return [
        replace(head, weights={k: trained[n] for k, n in weight_names(number, head).items()})
        for number, head in enumerate(heads)
    ]


def _feed_batches(
    batches: Sequence[tuple[Feeds, Array]], axes: Mapping[str, int], steps: int, seed: int
) -> Iterator[tuple[Feeds, Array]]:
    """Shuffled batches: of rows where all batches have the same shapes, else batch by batch."""
    rng = np.random.default_rng(seed)
    joined = _join(batches, axes)
    if joined is not None:
        feeds, targets = joined
        for rows in _row_batches(len(targets), steps, rng):
            yield select_rows(feeds, axes, rows), targets[rows]
        return
    done = 0
    while done < steps:
        for place in rng.permutation(len(batches)):
            if done < steps:
                yield batches[int(place)]
                done += 1


def _join(
    batches: Sequence[tuple[Feeds, Array]], axes: Mapping[str, int]
) -> tuple[Feeds, Array] | None:
    first = batches[0][0]
    for name, axis in axes.items():
        shapes = {np.delete(np.shape(feeds[name]), axis).tobytes() for feeds, _ in batches}
        if len(shapes) > 1:
            return None
    if any(name not in axes for name in first):
        return None  # an input without a batch axis may differ from batch to batch
    feeds = {
        name: np.concatenate([each[name] for each, _ in batches], axis=axis)
        for name, axis in axes.items()
    }
    return feeds, np.concatenate([targets for _, targets in batches])
