"""Label smoothing of a Trainer: the loss of the model's logits, as transformers.Trainer has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from onward.errors import OptionError
from onward.pytorch.huggingface_folder import predicts_next_tokens
from onward.pytorch.trainer.arguments import TrainingArguments
from onward.pytorch.trainer.item_counts import ITEMS

_IGNORED = -100
_LABELS = "labels"


class LabelSmoother(nn.Module):
    """(1 - s) of the cross entropy, and s of the mean -log p over all classes.

    `shifted`: the logits of a token are compared with the label of the next one.
    """

    def __init__(self, factor: float, shifted: bool) -> None:
        super().__init__()
        self.factor, self.shifted = factor, shifted

    def forward(self, outputs: Any, labels: Tensor, items: Tensor | None = None) -> Tensor:
        """The loss, divided by `items` labels; None: by those that are not ignored."""
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if self.shifted:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        minus_log = -torch.log_softmax(logits, -1)
        kept = labels != _IGNORED
        own = minus_log.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        each = (1 - self.factor) * own + self.factor * minus_log.mean(-1)
        count = kept.sum() if items is None else items
        return torch.where(kept, each, 0.0).sum() / count

    def take_targets(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Take the labels, and their number where it is counted, out of a batch."""
        if _LABELS not in batch:
            raise OptionError(
                "label_smoothing_factor needs labels, and the batches have none\n"
                f"give the rows a column {_LABELS!r}, or leave the setting out"
            )
        return {name: batch.pop(name) for name in (_LABELS, ITEMS) if name in batch}


def make_smoother(model: nn.Module, arguments: TrainingArguments) -> LabelSmoother | None:
    """The loss for a label_smoothing_factor; None: the model's own."""
    if not arguments.label_smoothing_factor:
        return None
    config = getattr(model, "config", None)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise OptionError(
            "label_smoothing_factor does not support multi-label classification "
            "(config.problem_type)\nleave it out"
        )
    return LabelSmoother(arguments.label_smoothing_factor, predicts_next_tokens(model))
