"""The rows of a DataLoader of torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onward.errors import DataError
from onward.runner.data.in_memory import paired_target
from onward.runner.data.open_data import open_data

torch = pytest.importorskip("torch")
X = torch.arange(20.0).reshape(10, 2)


class Named(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"x": X[place], "text": "abcdefghij"[place], "label": place % 2}


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[Any]:
        return iter(Named()[place] for place in range(10))


def load(dataset: Any, **settings: Any) -> Any:
    return open_data(torch.utils.data.DataLoader(dataset, **settings))


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_come_in_the_order_of_the_dataset(shuffle: bool) -> None:
    pairs = torch.utils.data.TensorDataset(X, torch.arange(10))
    data = load(pairs, batch_size=4, shuffle=shuffle, drop_last=True)
    batch = data.read(np.arange(10))
    assert batch["y"].tolist() == list(range(10)) and batch["x"].tolist() == X.tolist()
    assert paired_target(data) == "y"


@pytest.mark.parametrize("dataset", [Named(), Stream()])
@pytest.mark.parametrize("size", [3, None])
def test_batches_of_dicts_are_taken_apart(dataset: Any, size: int | None) -> None:
    data = load(dataset, batch_size=size)
    assert {name: str(column) for name, column in data.columns.items()} == {
        "x": "float32[2]", "text": "text", "label": "int64",
    }  # fmt: skip
    assert data.read([9])["text"].tolist() == ["j"]


def test_samplers_choose_rows() -> None:
    chosen = torch.utils.data.SubsetRandomSampler([7, 2, 5])
    assert load(Named(), batch_size=2, sampler=chosen).read([0, 1, 2])["text"].tolist() == list(
        "cfh"
    )
    batches = load(Named(), batch_sampler=[[3, 1], [0]])
    assert batches.read([0, 1, 2])["text"].tolist() == list("dba")


def test_inputs_in_a_tuple() -> None:
    nested = [((X[place], X[place, :1]), place) for place in range(4)]
    assert list(load(nested, batch_size=2).columns) == ["x_0", "x_1", "y"]


WRONG = [
    (lambda rows: {"x": torch.zeros(2), "n": torch.zeros(3)}, "batch 0 .* parts of different leng"),
    (lambda rows: {"x": torch.zeros(2), "n": 7}, "batch 0 of the DataLoader has int where an arr"),
]


@pytest.mark.parametrize(("collate", "message"), WRONG)
def test_batches_without_rows_are_refused(collate: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(Named(), batch_size=2, collate_fn=collate)
