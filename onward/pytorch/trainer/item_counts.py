"""The number of labels that a loss is divided by, which models of transformers take as an argument.

Their losses are sums over labels, divided by `num_items_in_batch`: the labels of all batches of an
update. So a batch with more labels counts more, as it would in one large batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

ITEMS = "num_items_in_batch"
_IGNORED = -100


class ItemCounts:
    """Counts labels as transformers.Trainer does; batches of other models stay as they are."""

    def __init__(self, model: nn.Module) -> None:
        own = getattr(model, "accepts_loss_kwargs", None)
        forward = inspect.signature(model.forward).parameters.values()
        takes = any(each.kind is each.VAR_KEYWORD for each in forward) if own is None else bool(own)
        loss = getattr(model, "loss_function", None) if takes else None
        self._counts = loss is not None
        # a model whose loss is not named, such as GPT2LMHeadModel, is counted without the shift
        named = getattr(model, "loss_type", None) is not None
        self._shifted = named and getattr(loss, "__name__", "") == "ForCausalLMLoss"

    def of_update(self, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The batches of one update, each with its share of all of their labels."""
        given = [dict(batch) for batch in batches]
        if self._counts and all("labels" in batch for batch in given):
            total = sum(_count(batch["labels"], self._shifted) for batch in given)
            for batch in given:  # the session averages over batches
                batch[ITEMS] = np.array(max(total, 1) / len(given), np.float32)
        return given


def _count(labels: Any, shifted: bool) -> int:
    array = np.asarray(labels)
    return int((array[..., 1:] != _IGNORED).sum() if shifted else (array != _IGNORED).sum())
