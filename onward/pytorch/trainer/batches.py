"""Batches of a dataset, in the order in which transformers.Trainer reads them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from onward.errors import OptionError
from onward.pytorch.trainer.arguments import TrainingArguments

Batch = Mapping[str, Any]
Collator = Callable[[list[Any]], Batch]

_LABELS = {"label": "labels", "label_ids": "labels"}


class ShuffledRows:
    """The numbers of all rows in a random order, another one in each epoch.

    >>> list(ShuffledRows(3, seed=0)) == torch.randperm(3, generator=seeded(0)).tolist()
    True
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed, self.epoch = count, seed, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        order: list[int] = torch.randperm(
            self._count, generator=seeded(self._seed + self.epoch)
        ).tolist()
        return iter(order)


def seeded(seed: int) -> torch.Generator:
    """A generator of random numbers on the CPU."""
    return torch.Generator().manual_seed(seed)


class Loader:
    """Batches of a dataset, with the columns that the model takes."""

    def __init__(
        self,
        dataset: Any,
        arguments: TrainingArguments,
        collator: Collator | None,
        columns: Sequence[str] | None,
        *,
        trains: bool,
    ) -> None:
        by_number = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        is_stream = isinstance(dataset, IterableDataset)
        if not by_number and not is_stream:
            raise OptionError(
                f"a dataset must support dataset[i] and len(dataset), but {type(dataset).__name__} "
                "does not\n"
                "give a list, a torch.utils.data.Dataset with __len__ and __getitem__, or a "
                "torch.utils.data.IterableDataset with max_steps"
            )
        per_device = "train" if trains else "eval"
        size = getattr(arguments, f"per_device_{per_device}_batch_size")
        drops = arguments.dataloader_drop_last  # of the other Trainer in both cases
        count = len(dataset) if hasattr(dataset, "__len__") else None
        self._dataset, self._count, self._size, self._drops = dataset, count, int(size), drops
        seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
        self._rows = None
        if trains and not is_stream:  # a stream has an order of its own
            self._rows = ShuffledRows(len(dataset), seed)
        collate, kept = collator or collate_rows, None if columns is None else {*columns}

        def join(rows: list[Any]) -> Batch:
            return collate([_columns(row, kept) for row in rows])

        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=size, sampler=self._rows, shuffle=False, drop_last=drops,
            collate_fn=join, num_workers=arguments.dataloader_num_workers,
        )  # fmt: skip

    @property
    def length(self) -> int | None:
        """How many batches an epoch has; None: it is not known."""
        if self._count is None:
            return None
        return self._count // self._size if self._drops else math.ceil(self._count / self._size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        if self._rows is None and hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(number)  # it shuffles by itself
        if self._rows is not None:
            self._rows.epoch = number
        return iter(self._loader)


def _columns(row: Any, kept: set[str] | None) -> Any:
    if kept is None or not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if name in kept}


def collate_rows(rows: list[Any]) -> Batch:
    """Stack the columns of rows; `label` and `label_ids` become `labels`.

    >>> collate_rows([{"x": [1, 2], "label": 0}, {"x": [3, 4], "label": 1}])["labels"]
    tensor([0, 1])
    """
    batch: dict[str, Any] = {}
    first = rows[0] if isinstance(rows[0], Mapping) else vars(rows[0])
    for name, value in first.items():
        if value is None or isinstance(value, str):
            continue
        column = [row[name] if isinstance(row, Mapping) else vars(row)[name] for row in rows]
        tensors = [torch.as_tensor(np.asarray(each)) for each in column]
        if any(each.shape != tensors[0].shape for each in tensors):
            raise OptionError(
                f"rows of one batch have {name!r} of different shapes\n"
                "pad them to one length, or give a data_collator that does"
            )
        batch[_LABELS.get(str(name), str(name))] = torch.stack(tensors)
    return batch


def model_columns(model: nn.Module, arguments: TrainingArguments) -> list[str] | None:
    """The columns that a model's forward takes, and the labels; None: all of them."""
    if not arguments.remove_unused_columns:
        return None
    parameters = inspect.signature(model.forward).parameters.values()
    if any(each.kind is each.VAR_KEYWORD and not _is_known(model) for each in parameters):
        return None
    return [*(each.name for each in parameters), *_LABELS, *label_names(model, arguments)]


def _is_known(model: nn.Module) -> bool:
    """Whether it is a model of transformers: its other keywords are no columns of data."""
    return hasattr(model, "main_input_name")


def label_names(model: nn.Module, arguments: TrainingArguments) -> list[str]:
    """The arguments of a model that are labels."""
    if arguments.label_names is not None:
        return list(arguments.label_names)
    taken = inspect.signature(model.forward).parameters
    found = [name for name in taken if "label" in name]
    if "QuestionAnswering" in type(model).__name__:
        found += [name for name in taken if name in ("start_positions", "end_positions")]
    return found
