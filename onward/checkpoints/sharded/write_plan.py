"""Plan which process writes which range, so that every element is written once.

What only one process holds, that one writes. What several hold (replicated tensors, the equal
shards of hybrid sharding) they share: large ranges are cut evenly, small ones go to the process
with the fewest bytes to write. The plan is a function of what is held, so that all processes
compute it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onward.checkpoints.sharded.pieces import Piece, Span
from onward.checkpoints.tensor_files import TensorMetadata
from onward.errors import CheckpointError
from onward.graph.dtypes import BY_NUMPY

SMALLEST_SHARE = 1 << 16  # bytes; cutting less saves no time


@dataclass(frozen=True)
class HeldTensor:
    """The ranges of a tensor that a process holds."""

    spec: TensorMetadata
    spans: tuple[Span, ...]


Held = Mapping[str, HeldTensor]  # by tensor
Plan = list[dict[str, list[Span]]]  # by rank: the ranges that it writes, by tensor


def held_by(pieces: Mapping[str, Sequence[Piece]]) -> dict[str, HeldTensor]:
    """What a process holds, without the data."""
    return {
        name: HeldTensor(each[0].spec, tuple(sorted(piece.span for piece in each)))
        for name, each in pieces.items()
    }


def plan_writes(held: Sequence[Held]) -> Plan:
    """The ranges that each rank writes; CheckpointError if an element is on no rank."""
    plan: Plan = [{} for _ in held]
    loads = [0] * len(held)
    shared: list[tuple[int, str, Span, list[int]]] = []
    for name, spec in _specs(held).items():
        width = _element_bytes(spec)
        for span, holders in _intervals(name, spec, held):
            if len(holders) == 1:
                plan[holders[0]].setdefault(name, []).append(span)
                loads[holders[0]] += width * (span[1] - span[0])
            else:
                shared.append((width, name, span, holders))
    shared.sort(key=lambda each: (-each[0] * (each[2][1] - each[2][0]), each[1], each[2]))
    for width, name, span, holders in shared:
        writers = _writers(width * (span[1] - span[0]), holders, loads)
        for rank, cut in zip(writers, _even_cuts(span, len(writers))):
            if cut[0] == cut[1]:  # fewer elements than writers
                continue
            plan[rank].setdefault(name, []).append(cut)
            loads[rank] += width * (cut[1] - cut[0])
    return [{name: _joined(spans) for name, spans in each.items()} for each in plan]


def _specs(held: Sequence[Held]) -> dict[str, TensorMetadata]:
    specs: dict[str, TensorMetadata] = {}
    for rank, tensors in enumerate(held):
        for name, tensor in tensors.items():
            if specs.setdefault(name, tensor.spec) != tensor.spec:
                raise CheckpointError(
                    f"tensor {name!r} is {tensor.spec.dtype}{list(tensor.spec.shape)} on rank "
                    f"{rank}, and {specs[name].dtype}{list(specs[name].shape)} on another\n"
                    "save the same model on every rank"
                )
    return specs


def _element_bytes(spec: TensorMetadata) -> int:
    return BY_NUMPY[spec.dtype].bits // 8


def _intervals(
    name: str, spec: TensorMetadata, held: Sequence[Held]
) -> Iterator[tuple[Span, list[int]]]:
    """A tensor cut wherever a piece begins or ends, and the ranks that hold each interval."""
    size = math.prod(spec.shape)
    if not size:  # the first rank that knows it writes an empty range
        yield (0, 0), [next(rank for rank, tensors in enumerate(held) if name in tensors)]
        return
    changes: dict[int, list[tuple[int, int]]] = {0: [], size: []}
    for rank, tensors in enumerate(held):
        for start, stop in tensors[name].spans if name in tensors else ():
            if start < stop:
                changes.setdefault(start, []).append((rank, 1))
                changes.setdefault(stop, []).append((rank, -1))
    places, count = sorted(changes), dict.fromkeys(range(len(held)), 0)
    holders: set[int] = set()
    for start, stop in itertools.pairwise(places):
        for rank, change in changes[start]:
            count[rank] += change
            (holders.add if count[rank] else holders.discard)(rank)
        if not holders:
            raise CheckpointError(
                f"elements [{start}, {stop}) of tensor {name!r} {list(spec.shape)} are on no rank\n"
                "give the pieces of all ranks, which together hold every tensor whole"
            )
        yield (start, stop), sorted(holders)


def _writers(size: int, holders: list[int], loads: list[int]) -> list[int]:
    count = max(1, min(len(holders), size // SMALLEST_SHARE))
    return sorted(sorted(holders, key=lambda rank: (loads[rank], rank))[:count])


def _even_cuts(span: Span, count: int) -> list[Span]:
    start, stop = span
    places = [start + (stop - start) * number // count for number in range(count + 1)]
    return list(itertools.pairwise(places))


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Ranges in order, those that touch as one."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def pieces_to_write(
    pieces: Mapping[str, Sequence[Piece]], planned: Mapping[str, Sequence[Span]]
) -> dict[str, list[Piece]]:
    """The planned ranges, cut from the pieces that hold them; views."""
    found: dict[str, list[Piece]] = {}
    for name, spans in planned.items():
        cuts = [
            piece.cut((max(piece.start, start), min(piece.stop, stop)))
            for start, stop in spans
            for piece in _without_overlap(pieces[name])
            if max(piece.start, start) < min(piece.stop, stop) or start == stop
        ]
        found[name] = cuts
    return found


def _without_overlap(pieces: Sequence[Piece]) -> Iterator[Piece]:
    end = -1
    for piece in sorted(pieces, key=lambda piece: piece.span):
        if end < 0 or piece.start >= end:
            yield piece
        elif piece.stop > end:
            yield piece.cut((end, piece.stop))
        end = max(end, piece.stop)
