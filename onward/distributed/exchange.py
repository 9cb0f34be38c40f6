"""Exchange: how processes combine the gradients of a bucket; data parallel: by their sum."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.compression.compression import Reducer
from onward.distributed.compression.uncompressed import SumReducer
from onward.distributed.parallel import Parallel
from onward.programs.program import Layout
from onward.programs.vector_offsets import place_parameters
from onward.providers.provider import Store


class Exchange(Protocol):
    """Combines gradients over processes, bucket by bucket, while others are computed."""

    def reduce(self, bucket: int, scale: float) -> None:
        """Start to combine the gradients of a bucket, which are gradients times `scale`."""
        ...

    def finish(self) -> None:
        """Wait for all buckets that were started."""
        ...

    def undo(self) -> None:
        """Forget the last buckets, because their update is skipped."""
        ...


class DataParallel:
    """Every process has all tensors; the gradients of a bucket become their sum."""

    def __init__(
        self, store: Store, layout: Layout, communicator: Communicator, parallel: Parallel
    ) -> None:
        self._store = store
        self._reducers: list[Reducer] = []
        for update in layout.updates:
            places = place_parameters(layout, update)
            if parallel.compression is None:
                self._reducers.append(SumReducer(communicator))
            else:
                self._reducers.append(parallel.compression.open(communicator, places))
        self._started: list[Work] = []

    def reduce(self, bucket: int, scale: float) -> None:
        vector = as_tensor(self._store.gradient_buffer(bucket))
        self._started.append(self._reducers[bucket].reduce(vector, scale))

    def finish(self) -> None:
        for work in self._started:
            work.wait()
        self._started.clear()

    def undo(self) -> None:
        for reducer in self._reducers:
            reducer.undo()


def as_tensor(vector: Any) -> torch.Tensor:
    """A vector of an engine as a tensor in the same memory."""
    return vector if isinstance(vector, torch.Tensor) else torch.from_numpy(vector)
