"""The loss that fits a target and an output, and how the target is encoded for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onward.errors import DataError, OptionError
from onward.losses.classification import KL, BCEWithLogits, CrossEntropy
from onward.losses.combined import Output
from onward.losses.distance import Cosine
from onward.losses.loss import Loss
from onward.losses.regression import L1, MSE, Huber, SmoothL1
from onward.message_text import format_sizes, list_names
from onward.runner.config import TrainConfig
from onward.runner.plan.log_likelihood import LogLikelihood
from onward.runner.plan.model_shapes import ScoresPort, TensorPort
from onward.runner.plan.modified_huber import ModifiedHuber
from onward.runner.plan.one_versus_rest import OneVersusRest
from onward.runner.plan.score_ending import (
    CLIPPED,
    SHARES,
    TWO_CLIPPED,
    TWO_PROBABILITIES,
    TWO_SCORES,
)
from onward.runner.plan.target_facts import TargetFacts, check_several
from onward.runner.plan.training_plan import ChosenSetting

_LIKE_OUTPUT: dict[str, Any] = {
    "mse": MSE, "l1": L1, "huber": Huber, "smooth_l1": SmoothL1, "kl": KL, "cosine": Cosine,
    "bce_with_logits": BCEWithLogits,
}  # fmt: skip
_PAIRS = (TWO_PROBABILITIES, TWO_SCORES, TWO_CLIPPED)
_OWN_LOSSES: dict[str, tuple[str, Callable[[str, str], Loss]]] = {
    "Sigmoid": (
        "bce_with_logits",
        lambda output, target: OneVersusRest(output=output, target=target),
    ),
    CLIPPED: (
        "modified_huber",
        lambda output, target: ModifiedHuber(output=output, target=target, classes=True),
    ),
}  # of classifiers whose classes have a probability each
_FOR_PROBABILITIES = ("mse", "l1", "huber", "smooth_l1", "kl", "cosine", "output")


@dataclass(frozen=True)
class ChosenLoss:
    """A loss, what it reads, and why it was chosen."""

    loss: Loss
    name: str  # as in the config
    output: str  # the value that metrics compare: what the loss reads, or its probabilities
    dtype: str  # of the target's feed
    shape: tuple[int | None, ...]  # of the target's feed
    axis: int | None  # where the classes are
    choice: ChosenSetting


def choose_loss(
    config: TrainConfig,
    port: ScoresPort,
    facts: TargetFacts | None,
    feed: str,
) -> ChosenLoss:
    """The loss of a config, or the one that fits; `feed` is the target's name in the session."""
    if config.loss == "output":
        return ChosenLoss(
            Output(port.output.name), "output", port.output.name, "float32", (), None,
            ChosenSetting("loss", "output", "as given"),
        )  # fmt: skip
    if config.loss == "auto":
        name, why = _guess(port.scores, facts, port.ending == "Sigmoid")
        if port.ending in _PAIRS and name == "bce_with_logits":
            kind = "scores" if port.ending == TWO_SCORES else "probabilities"
            why = why.replace("the output is one number", f"the output their two {kind}")
    else:
        name, why = config.loss, "as given"
        if name == "cross_entropy" and port.ending in _PAIRS:
            name, why = "bce_with_logits", "as given; of two probabilities, it is the binary one"
    reads = port.output if name in _FOR_PROBABILITIES else port.scores
    if port.ending == SHARES and name == "cross_entropy" and _is_row(port, facts):
        return _log_likelihood(config, reads, feed, why)
    if port.ending not in ("", SHARES) and reads is port.scores:
        why = f"{why}; it reads the scores before the final {port.ending}"
    if name != "cross_entropy" and (given := _cross_entropy_settings(config)):
        raise OptionError(
            f"{given[0]} is for classifiers, trained with cross entropy, not with {name}\n"
            f"leave {given[0]} out"
        )
    if name == "cross_entropy" and _has_own_loss(config, port, facts):
        labels = reads.shape[:1]
        shown, make = _OWN_LOSSES[port.ending]
        why = f"{why}, where every class has its own"
        return ChosenLoss(
            make(reads.name, feed), name, port.output.name, "int64", labels, 1,
            ChosenSetting("loss", shown, why),
        )  # fmt: skip
    choice = ChosenSetting("loss", name, why)
    dtype = "float64" if reads.dtype == "float64" else "float32"
    if name == "cross_entropy":
        return _cross_entropy(config, reads, facts, feed, dtype, choice)
    loss: Loss = _LIKE_OUTPUT[name](output=reads.name, target=feed)
    if (
        config.loss == "auto"
        and name == "bce_with_logits"
        and port.ending in (CLIPPED, TWO_CLIPPED)
    ):
        loss = ModifiedHuber(output=reads.name, target=feed)
        choice = ChosenSetting("loss", "modified_huber", why)
    _check_fits(name, reads, facts)
    return ChosenLoss(loss, name, reads.name, dtype, reads.shape, None, choice)


def _cross_entropy_settings(config: TrainConfig) -> list[str]:
    """The names of given settings that only a cross entropy has."""
    given = {
        "mixup": bool(config.mixup),
        "label_smoothing": bool(config.label_smoothing),
        "ignore_index": config.ignore_index is not None,
    }
    return [name for name, is_given in given.items() if is_given]


def _log_likelihood(config: TrainConfig, reads: TensorPort, feed: str, why: str) -> ChosenLoss:
    """The cross entropy of probabilities that have no scores."""
    if given := _cross_entropy_settings(config):
        raise OptionError(
            f"{given[0]} needs scores, and output {reads.name!r} is probabilities that have none\n"
            f"leave {given[0]} out, or use a model that ends in its scores or a Softmax"
        )
    return ChosenLoss(
        LogLikelihood(output=reads.name, target=feed), "cross_entropy", reads.name, "int64",
        reads.shape[:1], 1, ChosenSetting("loss", "cross_entropy", f"{why}, of its probabilities"),
    )  # fmt: skip


def _is_row(port: ScoresPort, facts: TargetFacts | None) -> bool:
    """Whether each row has one class."""
    return facts is not None and not facts.shape and len(port.scores.shape) == 2


def _has_own_loss(config: TrainConfig, port: ScoresPort, facts: TargetFacts | None) -> bool:
    """Whether each class has a probability of its own, which a cross entropy would not train."""
    is_plain = config.loss == "auto" and not _cross_entropy_settings(config)
    return is_plain and port.ending in _OWN_LOSSES and _is_row(port, facts)


def _guess(port: TensorPort, facts: TargetFacts | None, has_sigmoids: bool) -> tuple[str, str]:
    if facts is None:
        return "mse", "the output has the shape of the input, and there is no target"
    named = f"target {facts.column!r}"
    one = port.rest in ((), (1,))
    if facts.is_discrete and not one and len(port.shape) == 2:
        return "cross_entropy", f"{named} has {_count(facts)} classes, output {_sizes(port)}"
    if facts.is_one_hot and not has_sigmoids and _agree(facts.shape, port.rest):
        return "cross_entropy", f"{named} has a single 1 in each row, output {_sizes(port)}"
    if facts.is_discrete and facts.is_two and one:
        return "bce_with_logits", f"{named} has 2 classes, the output is one number"
    if facts.kind in ("text", "bool") and not facts.shape and one:
        check_several(facts)
        raise DataError(
            f"{named} has {_count(facts)} classes ({list_names(map(str, facts.values))}), but the "
            f"model's output {port.name!r} is one number\n"
            f"use a model of {_count(facts)} outputs, or give it a new last layer: "
            f"new_head={_count(facts)}"
        )
    if facts.kind != "float" and not one and class_axis(port, facts.shape) is not None:
        return "cross_entropy", f"{named} has a class for each place of output {_sizes(port)}"
    same = _agree(facts.shape, port.rest) or (not facts.shape and one)
    if facts.kind == "bool" and same:
        return "bce_with_logits", f"{named} has true or false for each output"
    if facts.is_binary and same and facts.shape:
        return "bce_with_logits", f"{named} has 0 or 1 for each output"
    if same:
        return "mse", f"{named} has numbers, output {_sizes(port)}"
    raise DataError(
        f"no loss fits {named}, {facts.kind} of shape ({format_sizes(facts.shape)}) in a row, and "
        f"output {port.name!r} of shape {_sizes(port)}\n" + _advice(facts, port)
    )


def _advice(facts: TargetFacts, port: TensorPort) -> str:
    if facts.kind == "float" and not facts.shape and len(port.shape) == 2:
        return "for numbers, use a model of one output, or new_head=1; classes are whole numbers"
    return "say the loss, the target, or use a model whose output fits"


def _cross_entropy(
    config: TrainConfig,
    port: TensorPort,
    facts: TargetFacts | None,
    feed: str,
    dtype: str,
    choice: ChosenSetting,
) -> ChosenLoss:
    if facts is None:
        raise OptionError("cross entropy needs a target\nsay it: target='...'")
    is_row = not facts.shape or (facts.is_one_hot and _agree(facts.shape, port.rest))
    axis = 1 if len(port.shape) == 2 and is_row else class_axis(port, facts.shape)
    if axis is None:
        raise DataError(
            f"cross entropy needs a class for each row: target {facts.column!r} has the shape "
            f"({format_sizes(facts.shape)}), output {port.name!r} {_sizes(port)}\n"
            "name another target, or another loss"
        )
    if facts.kind == "float" and not facts.is_one_hot:
        raise DataError(
            f"cross entropy needs classes, but target {facts.column!r} has floats\n"
            "name a target of texts or whole numbers, or take another loss"
        )
    soft = bool(config.mixup)
    loss = CrossEntropy(
        output=port.name,
        target=feed,
        axis=axis,
        label_smoothing=config.label_smoothing,
        ignore_index=config.ignore_index,
        soft_labels=soft,
    )
    shape = port.shape[:axis] + port.shape[axis + 1 :]
    return ChosenLoss(loss, "cross_entropy", port.name, "int64", shape, axis, choice)


def class_axis(port: TensorPort, labels: tuple[int | None, ...]) -> int | None:
    """The axis that an output has and labels of this shape do not: the last, or 1."""
    rank = len(port.shape)
    if rank < 2 or rank != len(labels) + 2:
        return None
    axes = (rank - 1, 1) if rank == 3 else (1, rank - 1)
    for axis in axes:
        if _agree(labels, port.shape[1:axis] + port.shape[axis + 1 :]):
            return axis
    return None


def _check_fits(name: str, port: TensorPort, facts: TargetFacts | None) -> None:
    if facts is None:
        return
    one = not facts.shape and port.rest in ((), (1,), (None,))
    if not one and not _agree(facts.shape, port.rest):
        raise DataError(
            f"{name} compares numbers of one shape: target {facts.column!r} has "
            f"({format_sizes(facts.shape)}) in a row, output {port.name!r} {_sizes(port)}\n"
            "name another target or loss, or use a model whose output fits"
        )
    if facts.kind == "text" and name != "bce_with_logits":
        raise DataError(
            f"{name} compares numbers, but target {facts.column!r} has texts\n"
            "take cross_entropy, or a target of numbers"
        )


def _agree(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    return len(a) == len(b) and all(m == n or None in (m, n) for m, n in zip(a, b))


def _count(facts: TargetFacts) -> int:
    return len(facts.class_names or facts.values)


def _sizes(port: TensorPort) -> str:
    return f"({format_sizes(port.shape)})"
