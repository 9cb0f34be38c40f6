"""PowerSGD: matrices of gradients are sent as products of two thin ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.compression.compression import Reducer
from onward.distributed.compression.low_rank import (
    join_tensors,
    orthonormal_basis,
    split_factors,
    split_matrices,
)
from onward.distributed.compression.reducer_memory import ReducerMemory, is_finite
from onward.distributed.compression.uncompressed import SumReducer
from onward.distributed.ring_bytes import ring_bytes
from onward.distributed.staged_work import StagedWork
from onward.programs.program import Array
from onward.programs.vector_offsets import Places
from onward.settings import (
    check_fields,
    choice,
    explain_frozen,
    explain_keywords,
    integer,
    number,
    true_or_false,
)

Tensor = torch.Tensor


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """Send a matrix of gradients as P Q', two matrices of `rank` columns.

    P = M Q, summed and made orthonormal; Q = M' P, summed. M is a tensor of two or more dimensions
    as a matrix of its first one. Vectors and small matrices are sent as they are.

    Attributes:
        rank: columns of P and Q; more are more exact
        start_step: steps that are sent uncompressed first, while gradients change fast
        warm_start: start from the last step's Q instead of random numbers
        error_feedback: add what was not sent to the next step's gradients
        minimum_rate: compress a matrix only if this many times fewer numbers are sent
        factors: the type that P and Q are sent in
        seed: of the first Q
    """

    rank: int = 4
    start_step: int = 0
    warm_start: bool = True
    error_feedback: bool = True
    minimum_rate: float = 2.0
    factors: Literal["float32", "bfloat16", "float16"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(
            self,
            rank=integer(1),
            start_step=integer(0),
            warm_start=true_or_false,
            error_feedback=true_or_false,
            minimum_rate=number(1.0),
            factors=choice("float32", "bfloat16", "float16"),
            seed=integer(0),
        )

    def open(self, communicator: Communicator, places: Places) -> Reducer:
        if communicator.size == 1 or not places.elements:  # nothing is sent
            return SumReducer(communicator)
        return PowerSGDReducer(self, communicator, places)

    def bytes_sent(self, places: Places, size: int) -> int:
        """The bytes of a step from `start_step` on."""
        matrices, rest = split_matrices(places, self.rank, self.minimum_rate)
        item = 4 if self.factors == "float32" else 2
        rows = sum(each.rows * each.rank for each in matrices)
        columns = sum(each.columns * each.rank for each in matrices)
        uncompressed = sum(each.stop - each.start for each in rest)
        return (
            ring_bytes("all_reduce", 4 * uncompressed, size)
            + ring_bytes("all_reduce", item * rows, size)
            + ring_bytes("all_reduce", item * columns, size)
        )


class PowerSGDReducer:
    """Sums the tensors of a bucket: matrices as P Q', the rest as it is.

    Every process computes P Q' from the same P and Q, so the results are the same bits where the
    machines compute alike.
    """

    def __init__(self, settings: PowerSGD, communicator: Communicator, places: Places) -> None:
        self._settings, self._communicator = settings, communicator
        self._matrices, self._rest = split_matrices(places, settings.rank, settings.minimum_rate)
        self._type: torch.dtype = getattr(torch, settings.factors)
        self._memory = ReducerMemory(places.size, settings.error_feedback)

    def reduce(self, vector: Tensor, scale: float = 1.0) -> Work:
        if self._memory.step < self._settings.start_step:
            return StagedWork(self._sum(vector, scale))
        return StagedWork(self._estimate(vector, scale))

    def _sum(self, vector: Tensor, scale: float) -> Iterator[None]:
        self._memory.begin()
        work = self._communicator.all_reduce(vector)
        yield
        work.wait()
        if is_finite(vector):
            self._memory.keep(None, scale)

    def _estimate(self, vector: Tensor, scale: float) -> Iterator[None]:
        total = self._memory.add_error(vector, scale)
        matrices = [each.of(total) for each in self._matrices]
        rest = join_tensors([total[place] for place in self._rest], total, torch.float32)
        rest_sent = self._start_sum(rest)
        bases = [orthonormal_basis(each.to(total)) for each in self._start_factors()]
        p = join_tensors([m @ q for m, q in zip(matrices, bases)], total, self._type)
        p_sent = self._start_sum(p)
        yield
        _wait(p_sent)
        finite = is_finite(p)  # the same on all processes: all send the next factor, or none
        if finite:
            shapes = [(each.rows, each.rank) for each in self._matrices]
            bases = [orthonormal_basis(each) for each in split_factors(p.to(total.dtype), shapes)]
            local = join_tensors(
                [m.T @ basis for m, basis in zip(matrices, bases)], total, self._type
            )
            q = local.clone()
            _wait(self._start_sum(q))
            finite = is_finite(q)
            self._write_matrices(vector, bases, q)
            self._subtract(matrices, bases, local.to(total.dtype))
        else:
            for each in self._matrices:
                each.of(vector).fill_(torch.nan)
        _wait(rest_sent)
        self._write_rest(vector, total, rest)
        if finite and is_finite(rest):
            self._memory.keep(total, scale, self._split_q(q.float()))

    def _start_factors(self) -> Sequence[Tensor]:
        """The first Q of a step: the last one, or random numbers, equal on all processes."""
        if self._settings.warm_start and self._memory.factors:
            return self._memory.factors
        generator = torch.Generator().manual_seed(self._settings.seed + self._memory.step)
        return [torch.randn(m.columns, m.rank, generator=generator) for m in self._matrices]

    def _start_sum(self, tensor: Tensor) -> Work | None:
        return self._communicator.all_reduce(tensor) if tensor.numel() else None

    def _split_q(self, q: Tensor) -> list[Tensor]:
        return split_factors(q, [(each.columns, each.rank) for each in self._matrices])

    def _write_matrices(self, vector: Tensor, bases: Sequence[Tensor], q: Tensor) -> None:
        for each, p, factor in zip(self._matrices, bases, self._split_q(q.to(vector.dtype))):
            torch.mm(p, factor.T, out=each.of(vector))

    def _subtract(self, matrices: Sequence[Tensor], bases: Sequence[Tensor], q: Tensor) -> None:
        """Leave in each matrix what this process did not send of it."""
        for matrix, p, factor in zip(matrices, bases, self._split_q(q)):
            matrix.addmm_(p, factor.T, alpha=-1.0)

    def _write_rest(self, vector: Tensor, total: Tensor, rest: Tensor) -> None:
        """Write the sums of the uncompressed tensors; nothing of them is left to send."""
        start = 0
        for place in self._rest:
            end = start + place.stop - place.start
            vector[place] = rest[start:end]
            total[place] = 0.0
            start = end

    def undo(self) -> None:
        self._memory.undo()

    def state(self) -> dict[str, Array]:
        return self._memory.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        self._memory.restore(state)


def _wait(work: Work | None) -> None:
    if work is not None:
        work.wait()
