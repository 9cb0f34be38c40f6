"""TopK: of a bucket of gradients, each process sends its largest ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.compression.compression import Reducer
from onward.distributed.compression.reducer_memory import ReducerMemory, is_finite
from onward.distributed.compression.uncompressed import SumReducer
from onward.distributed.ring_bytes import ring_bytes
from onward.distributed.staged_work import StagedWork
from onward.errors import OptionError
from onward.programs.program import Array
from onward.programs.vector_offsets import Places
from onward.settings import (
    above,
    check_fields,
    explain_frozen,
    explain_keywords,
    setting_error,
    true_or_false,
)

_STRIDE = 61  # of the sample: a prime, so that it takes elements of all columns of a matrix
_ITEM = 8  # bytes of an element: its float32 value and its int32 index


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class TopK:
    """Send the largest gradients only, with their indices.

    Every process receives the choice of every other one, so the bytes grow with the number of
    processes: more than 1 / share of them send more than without compression.

    Attributes:
        share: of the elements of a bucket, how many are sent
        error_feedback: add what was not sent to the next step's gradients
    """

    share: float = 0.01
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_fields(self, share=above(0.0), error_feedback=true_or_false)
        if self.share > 1.0:
            raise setting_error("TopK.share", "a number above 0, at most 1", self.share)

    def open(self, communicator: Communicator, places: Places) -> Reducer:
        if places.size > torch.iinfo(torch.int32).max:
            raise OptionError(
                f"TopK cannot number the {places.size:,} elements of one bucket in 32 bits\n"
                "use Int8() or HalfPrecision() for a model with so large a tensor"
            )
        if communicator.size == 1 or not places.elements:  # nothing is sent
            return SumReducer(communicator)
        memory = ReducerMemory(places.size, self.error_feedback)
        return TopKReducer(communicator, self.count(places), memory)

    def bytes_sent(self, places: Places, size: int) -> int:
        return ring_bytes("all_gather", size * _ITEM * self.count(places), size)

    def count(self, places: Places) -> int:
        """The number of elements that a process sends, the same on all processes."""
        elements = places.elements
        return min(elements, max(1, round(self.share * elements)))


class TopKReducer:
    """Sums the `count` largest elements of each process."""

    def __init__(self, communicator: Communicator, count: int, memory: ReducerMemory) -> None:
        self._communicator, self._count, self._memory = communicator, count, memory

    def reduce(self, vector: torch.Tensor, scale: float = 1.0) -> Work:
        return StagedWork(self._exchange(vector, scale))

    def _exchange(self, vector: torch.Tensor, scale: float) -> Iterator[None]:
        total = self._memory.add_error(vector, scale)
        chosen = find_largest(total.abs(), self._count)
        values = total[chosen].float()
        message = torch.cat([values.view(torch.int32), chosen.to(torch.int32)])
        messages = message.new_empty(self._communicator.size * message.numel())
        work = self._communicator.all_gather(messages, message)
        yield
        work.wait()
        vector.zero_()
        for received in messages.view(self._communicator.size, 2, self._count):
            # one process after the other: the same order of additions everywhere
            vector.index_add_(0, received[1], received[0].view(torch.float32).to(vector.dtype))
        if is_finite(vector):
            total[chosen] -= values
            self._memory.keep(total, scale)

    def undo(self) -> None:
        self._memory.undo()

    def state(self) -> dict[str, Array]:
        return self._memory.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        self._memory.restore(state)


def find_largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the `count` largest values, not sorted.

    NaN counts as the largest, so what is not finite is sent and reaches all processes. A sample
    shows about where the limit is, so that only few values are compared with each other.
    """
    sample = values[::_STRIDE]
    share = count / max(1, values.numel())
    likely = int(1.2 * share * sample.numel()) + 32  # above the limit, with some to spare
    if likely >= sample.numel():
        return torch.topk(values, count, sorted=False).indices
    limit = torch.topk(sample, likely, sorted=False).values.min()
    candidates = torch.nonzero(~(values < limit)).view(-1)  # NaN is among them
    if candidates.numel() < count:
        return torch.topk(values, count, sorted=False).indices
    return candidates[torch.topk(values[candidates], count, sorted=False).indices]
