"""Int8: gradients are sent in 8 bits, with a scale for each block of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.compression.compression import Reducer
from onward.distributed.compression.reducer_memory import ReducerMemory, is_finite
from onward.distributed.compression.uncompressed import SumReducer
from onward.distributed.reproducible_sum import add_in_order
from onward.distributed.ring_bytes import ring_bytes
from onward.distributed.staged_work import StagedWork
from onward.programs.program import Array
from onward.programs.vector_offsets import Places
from onward.settings import (
    check_fields,
    explain_frozen,
    explain_keywords,
    integer,
    setting_error,
    true_or_false,
)

Tensor = torch.Tensor

_SCALE = 4  # bytes of a block's scale
_SMALLEST = 1e-36  # blocks below it are sent as zeros: 127 / x would not be finite


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class Int8:
    """Send gradients in 8 bits: about a quarter of the bytes.

    Each process receives its part of the vector from all others, adds it in float32, and sends the
    sum in 8 bits to all. So no sum of 8-bit numbers overflows, and each number is rounded twice,
    however many processes there are.

    Attributes:
        block: elements that share a scale; a multiple of 4
        error_feedback: add what the rounding lost to the next step's gradients
    """

    block: int = 256
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_fields(self, block=integer(16), error_feedback=true_or_false)
        if self.block % _SCALE:
            raise setting_error("Int8.block", "a multiple of 4", self.block)

    def open(self, communicator: Communicator, places: Places) -> Reducer:
        if communicator.size == 1 or not places.elements:  # nothing is sent
            return SumReducer(communicator)
        parts = Parts(places.size, communicator.size, self.block)
        return Int8Reducer(communicator, places, parts, self.error_feedback)

    def bytes_sent(self, places: Places, size: int) -> int:
        return 2 * ring_bytes(
            "all_gather", size * Parts(places.size, size, self.block).message, size
        )


class Parts:
    """A vector in one part for each process; each part in equal blocks, the last ones padded."""

    def __init__(self, elements: int, processes: int, block: int) -> None:
        part = -(-elements // processes)
        self.block = min(block, -(-part // _SCALE) * _SCALE)  # smaller for a very short vector
        self.blocks = -(-part // self.block) if part else 0  # of a part
        self.part = self.blocks * self.block  # elements
        self.message = self.part + _SCALE * self.blocks  # bytes that carry a part
        self.processes = processes


class Int8Reducer:
    """Sums a bucket by an all-to-all and an all-gather of 8-bit numbers."""

    def __init__(
        self, communicator: Communicator, places: Places, parts: Parts, error_feedback: bool
    ) -> None:
        self._communicator, self._places, self._parts = communicator, places, parts
        self._memory = ReducerMemory(places.size, error_feedback)

    def reduce(self, vector: Tensor, scale: float = 1.0) -> Work:
        return StagedWork(self._exchange(vector, scale))

    def _exchange(self, vector: Tensor, scale: float) -> Iterator[None]:
        parts, rank = self._parts, self._communicator.rank
        total = self._memory.add_error(vector, scale)
        padded = total.new_zeros(parts.processes * parts.part, dtype=torch.float32)
        padded[: total.numel()] = total
        given = quantize(padded.view(parts.processes, parts.blocks, parts.block))
        received = torch.empty_like(given)
        work = self._communicator.all_to_all(received.view(-1), given.view(-1))
        yield
        work.wait()
        summed = add_in_order(dequantize(received, parts))
        [own] = quantize(summed[None])
        messages = torch.empty_like(given)
        work = self._communicator.all_gather(messages.view(-1), own)
        sent = dequantize(given, parts)  # while the others' parts arrive
        # what the second rounding loses, this process sends the next time
        sent[rank] -= summed - dequantize(own[None], parts)[0]
        work.wait()
        result = dequantize(messages, parts).view(-1)[: vector.numel()]
        vector.copy_(result)
        if is_finite(vector):
            self._memory.keep(total - sent.view(-1)[: total.numel()], scale)
            return
        for gap in self._places.gaps():  # a block that is not finite has them as NaN
            vector[gap] = 0.0

    def undo(self) -> None:
        self._memory.undo()

    def state(self) -> dict[str, Array]:
        return self._memory.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        self._memory.restore(state)


def quantize(values: Tensor) -> Tensor:
    """Messages of float32 values (message, block, element): the blocks' scales, then the values.

    value = scale * number, number from -127 to 127. A block with an infinite value or NaN has such
    a scale, so that all of its values are NaN when they are read.
    """
    largest = values.abs().amax(dim=2, keepdim=True)
    inverse = torch.where(largest < _SMALLEST, 0.0, 127.0 / largest)
    numbers = (values * inverse).round_().nan_to_num_(0.0).to(torch.int8)
    scales = torch.where(largest < _SMALLEST, 0.0, largest / 127.0)
    return torch.cat(
        [scales.flatten(1).view(torch.int8), numbers.flatten(1)], dim=1
    )  # (message, byte)


def dequantize(messages: Tensor, parts: Parts) -> Tensor:
    """The float32 values of messages: (message, block, element)."""
    start = _SCALE * parts.blocks
    scales = messages[:, :start].contiguous().view(torch.float32)
    numbers = messages[:, start:].reshape(-1, parts.blocks, parts.block)
    return numbers.float().mul_(scales[:, :, None])
