"""Exchange: how processes share the vectors of a run; data parallel: each has all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.compression.compression import Reducer
from onward.distributed.compression.uncompressed import SumReducer
from onward.distributed.kept_states import find_states, name_states
from onward.distributed.parallel import Parallel
from onward.errors import OnwardError
from onward.graph.dtypes import BY_NUMPY
from onward.programs.program import Array, Layout, gradient_name
from onward.programs.vector_offsets import place_parameters
from onward.providers.provider import Results, SegmentedTraining, Store


class Exchange(Protocol):
    """What processes do between the segments of a step, and around an update.

    A bucket is an update of the engine. Gradients are accumulated over micro-batches: `first` is
    whether a micro-batch is the first since the last update, `last` whether an update follows it.
    All processes call all methods in the same order.
    """

    @property
    def store(self) -> Store:
        """The tensors of the run by name, as one process would have them."""
        ...

    def begin_gradients(self, first: bool, scale: float) -> bool:
        """Begin a backward pass; whether the engine replaces gradients, or adds to them.

        `scale` is the factor of all gradients, which keeps small ones.
        """
        ...

    def before(self, segment: int) -> None:
        """Before a segment of a step, numbered as `SegmentHooks.before` does."""
        ...

    def after(self, bucket: int, first: bool, last: bool) -> None:
        """The gradients of a bucket are complete in this process: start to combine them."""
        ...

    def finish_gradients(self, loss_finite: bool) -> None:
        """Wait for the gradients of all processes, and tell the engine if they are finite."""
        ...

    def finish_update(self, updated: bool) -> None:
        """After an update: share what it changed."""
        ...

    def infer(self, graph: str, feeds: Any) -> Results:
        """The results of "evaluate" or "predict"."""
        ...


class DataParallel:
    """Every process has all tensors; the gradients of a bucket become their sum."""

    def __init__(
        self,
        engine: SegmentedTraining,
        layout: Layout,
        communicator: Communicator,
        parallel: Parallel,
    ) -> None:
        self._engine, self._communicator = engine, communicator
        self.is_exact = parallel.compression is None  # a sum is not estimated
        self._kind = type(parallel.compression).__name__  # in the names of a checkpoint
        self._reducers: list[Reducer] = []
        for update in layout.updates:
            places = place_parameters(layout, update)
            if parallel.compression is None:
                self._reducers.append(SumReducer(communicator))
            else:
                self._reducers.append(parallel.compression.open(communicator, places))
        self._started: list[Work] = []
        self._scale, self._micro = 1.0, 0  # of the accumulated gradients
        self.is_reduced = False  # whether the accumulated gradients are those of all processes
        self.store = ReplicatedStore(engine.store, layout, communicator, self)

    def begin_gradients(self, first: bool, scale: float) -> bool:
        self._scale, self._micro = scale, 1 if first else self._micro + 1
        if self.is_reduced and not first:
            self.reduce_all()
            if self._communicator.rank:  # their sum goes on in the first process
                self._engine.store.clear_gradients()
        self.is_reduced = False
        return first

    def before(self, segment: int) -> None:
        pass

    def after(self, bucket: int, first: bool, last: bool) -> None:
        if last:
            self._reduce(bucket)
            self.is_reduced = True

    def start_reduction(self) -> None:
        """Start to sum the accumulated gradients over the processes, unless they are summed."""
        if not self.is_reduced:
            for bucket in range(len(self._reducers)):
                self._reduce(bucket)
        self.is_reduced = True

    def reduce_all(self) -> None:
        """Sum the accumulated gradients over the processes, and wait for it."""
        self.start_reduction()
        for work in self._started:
            work.wait()
        self._started.clear()

    def _reduce(self, bucket: int) -> None:
        vector = as_tensor(self._engine.store.gradient_buffer(bucket))
        self._started.append(self._reducers[bucket].reduce(vector, self._scale * self._micro))

    def finish_gradients(self, loss_finite: bool) -> None:
        self.reduce_all()
        self._engine.gradients_changed()
        self._engine.finite = finite = bool(self._engine.finite) and loss_finite
        if not finite:
            for reducer in self._reducers:
                reducer.undo()

    def finish_update(self, updated: bool) -> None:
        pass

    def process_state(self) -> dict[str, Array]:
        states = [each.state() for each in self._reducers]
        return name_states(self._communicator, self._kind, states)

    def restore_process_state(self, tensors: Mapping[str, Array]) -> None:
        states = find_states(self._communicator, self._kind, len(self._reducers), tensors)
        before = [each.state() for each in self._reducers]
        try:
            self._restore(states)
        except OnwardError:
            self._restore(before)
            raise

    def _restore(self, states: Sequence[Mapping[str, Array]]) -> None:
        for reducer, state in zip(self._reducers, states, strict=True):
            reducer.restore(state)

    def infer(self, graph: str, feeds: Any) -> Results:
        results: Results = getattr(self._engine, graph)(feeds)
        return results


class ReplicatedStore:
    """A store whose accumulated gradients are those of all processes when they are read.

    Reading and writing gradients is a collective: all processes do it alike.
    """

    def __init__(
        self, held: Store, layout: Layout, communicator: Communicator, exchange: DataParallel
    ) -> None:
        self._held, self._communicator, self._exchange = held, communicator, exchange
        self._gradients = {gradient_name(name) for name in layout.names}

    def read(self, name: str) -> Any:
        array = self._held.read(name)
        if name not in self._gradients or self._exchange.is_reduced:
            return array
        total = torch.tensor(array)
        self._communicator.all_reduce(total).wait()
        return total.numpy()

    def write(self, name: str, tensor: Any) -> None:
        if name not in self._gradients:
            return self._held.write(name, tensor)
        self._exchange.is_reduced = False
        own = 0.0 if self._communicator.rank else 1.0  # their sum is what was written
        self._held.write(name, tensor * own)

    def gradient_buffers(self) -> list[Any]:
        self._exchange.reduce_all()
        return self._held.gradient_buffers()

    def gradient_buffer(self, update: int) -> Any:
        return self.gradient_buffers()[update]

    def parameter_buffers(self) -> list[Any]:
        return self._held.parameter_buffers()

    def bytes_held(self) -> dict[str, int]:
        return bytes_held(self._held)

    def clear_gradients(self) -> None:
        self._exchange.is_reduced = False
        self._held.clear_gradients()


def bytes_held(store: Any) -> dict[str, int]:
    """The bytes of a store's vectors in this process, by kind.

    "parameters", "gradients" and "slots" are there all the time, as parts where they are sharded;
    "gathered" and "temporary" are the most of whole parameters and gradients that were ever held at
    once, and "statistics" those of BatchNormalization.
    """
    return dict(store.bytes_held())


def as_tensor(vector: Any) -> torch.Tensor:
    """A vector of an engine as a tensor in the same memory."""
    if isinstance(vector, torch.Tensor):
        return vector
    if vector.dtype.name == "bfloat16":  # numpy's is not torch's
        return torch.from_numpy(vector.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(vector)


def as_array(tensor: torch.Tensor) -> Any:
    """A tensor of a CPU as an array in the same memory."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BY_NUMPY["bfloat16"].dtype)
    return tensor.numpy()
