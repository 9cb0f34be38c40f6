"""JoinedColumns: several columns of numbers as one, such as the targets of a regression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onward.errors import DataError
from onward.runner.data.dataset import Array, Column, Dataset, choose_columns, names_of_classes


class JoinedColumns:
    """A dataset in which columns of one number each are one column, an array, under a new name.

    >>> from onward.runner.data.in_memory import ArrayDataset
    >>> data = ArrayDataset({"x": np.zeros((2, 3)), "u": [1, 2], "v": [0.5, 1.5]})
    >>> joined = JoinedColumns(data, ["u", "v"], "target")
    >>> joined.read(np.arange(2), ["target"])["target"].tolist()
    [[1.0, 0.5], [2.0, 1.5]]
    """

    def __init__(self, dataset: Dataset, names: Sequence[str], joined: str) -> None:
        chosen = choose_columns(dataset.columns, names, "the data")
        for name in chosen:
            column = dataset.columns[name]
            if not column.is_number or column.shape:
                raise DataError(
                    f"the target is made of {len(chosen)} columns, of which {name!r} is {column}\n"
                    "give one column, or several of numbers"
                )
        kind = np.result_type(*(dataset.columns[name].dtype for name in chosen))
        self._dataset, self._names, self._joined = dataset, chosen, joined
        self.columns = {name: each for name, each in dataset.columns.items() if name not in chosen}
        self.columns[joined] = Column(kind, (len(chosen),))
        self.class_names = names_of_classes(dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        names = choose_columns(self.columns, columns, "the data")
        plain = [name for name in names if name != self._joined]
        parts = self._names if self._joined in names else []
        found = self._dataset.read(positions, [*plain, *parts])
        batch = {name: found[name] for name in plain}
        if parts:
            kind = self.columns[self._joined].dtype
            batch[self._joined] = np.stack([found[name] for name in parts], axis=1).astype(kind)
        return batch
