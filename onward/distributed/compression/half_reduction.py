"""HalfPrecision: gradients are sent, and added, in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.ring_bytes import ring_bytes
from onward.distributed.staged_work import StagedWork
from onward.programs.program import Array
from onward.programs.vector_offsets import Places
from onward.settings import check_fields, choice, explain_frozen, explain_keywords


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class HalfPrecision:
    """Send gradients in 16 bits: half of the bytes.

    Attributes:
        dtype: "bfloat16", with the range of float32 and 8 bits of precision, or "float16", with
            11 bits and a range up to 65504: a sum beyond it is infinite on all processes, and the
            step is skipped; use it with a loss scale
    """

    dtype: Literal["bfloat16", "float16"] = "bfloat16"

    def __post_init__(self) -> None:
        check_fields(self, dtype=choice("bfloat16", "float16"))

    def open(self, communicator: Communicator, places: Places) -> HalfReducer:
        return HalfReducer(communicator, getattr(torch, self.dtype))

    def bytes_sent(self, places: Places, size: int) -> int:
        return ring_bytes("all_reduce", 2 * places.size, size)


class HalfReducer:
    """Sums a bucket by one all-reduce in 16 bits; it keeps nothing."""

    def __init__(self, communicator: Communicator, dtype: torch.dtype) -> None:
        self._communicator, self._dtype = communicator, dtype

    def reduce(self, vector: torch.Tensor, scale: float = 1.0) -> Work:
        return StagedWork(self._sum(vector))

    def _sum(self, vector: torch.Tensor) -> Iterator[None]:
        half = vector.to(self._dtype)
        work = self._communicator.all_reduce(half)
        yield
        work.wait()
        vector.copy_(half)

    def undo(self) -> None:
        pass

    def state(self) -> dict[str, Array]:
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        pass
