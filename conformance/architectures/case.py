"""An architecture to train: its module, one batch, and the loss of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Sizes:
    """How large an architecture is built."""

    hidden: int
    inner: int
    layers: int
    heads: int
    words: int  # of the vocabulary
    batch: int
    length: int  # of a sequence
    image: int  # its height and width
    channels: int  # of the first convolution
    labels: int = 5


SIZES = {
    "test": Sizes(32, 64, 2, 4, 99, 2, 12, 32, 8),
    "bench": Sizes(128, 512, 4, 4, 1000, 8, 64, 64, 32, 10),
}


@dataclass(frozen=True)
class Case:
    """A module in training mode with a batch for it.

    `random`: the forward pass draws numbers, so that two runs agree in distribution alone.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], torch.Tensor] = lambda outputs: outputs.loss
    random: bool = False


Builder = Callable[[Sizes], Case]


def without_dropout(config: Any) -> Any:
    """Set every probability of dropping something to zero in a transformers config."""
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def batch_norm_sizes(s: Sizes) -> Sizes:
    """A batch whose statistics can be differentiated: of two rows, they are rounding alone."""
    return replace(s, batch=max(s.batch, 8))


def words(s: Sizes, *shape: int) -> torch.Tensor:
    """Word numbers; 0, 1 and 2 are left for padding and the marks of starts and ends."""
    return torch.randint(3, s.words, shape or (s.batch, s.length))


def padding_mask(s: Sizes) -> torch.Tensor:
    """1 where a word is, 0 in the last quarter of the first sequence."""
    mask = torch.ones(s.batch, s.length, dtype=torch.long)
    mask[0, -(s.length // 4) :] = 0
    return mask


def images(s: Sizes, size: int | None = None) -> torch.Tensor:
    return torch.randn(s.batch, 3, size or s.image, size or s.image)


def classes(s: Sizes, *shape: int) -> torch.Tensor:
    return torch.randint(s.labels, shape or (s.batch,))


def cross_entropy(labels: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The loss of scores, whose last axis is the classes, against labels."""

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())

    return loss


def squared_error(target: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda y: nn.functional.mse_loss(y, target)
