"""The sizes of buckets: parameters that are reduced together, as one padded vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onward.errors import OptionError
from onward.programs.buckets import split_updates
from onward.programs.program import Layout, Program, UpdateLayout
from onward.programs.vector_offsets import place

LINE = 64  # bytes to which tensors in a vector, and the shards of a vector, are padded

Names = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Parameters of one update whose gradients lie in one vector. Sizes are in bytes."""

    names: tuple[str, ...]
    nbytes: int  # of the vector, each tensor padded to 64 bytes
    slots: float  # bytes of optimizer state for each byte of the vector: 2 for Adam
    separate: int = 0  # state of an update that needs whole tensors: each tensor has one owner
    largest: int = 0  # of `separate`, the largest state of one tensor

    def padded(self, shards: int) -> int:
        """The bytes of the vector when it is cut into `shards` equal parts of whole lines."""
        return self.shard(shards) * shards

    def shard(self, shards: int) -> int:
        """The bytes of one of `shards` parts."""
        return math.ceil(self.nbytes / (LINE * shards)) * LINE


def measure_buckets(layout: Layout, grouped: Sequence[Names] | None = None) -> list[Bucket]:
    """The sizes of buckets, given as lists of names; None: each update of the layout is one."""
    if grouped is None:
        grouped = [update.parameters for update in layout.updates]
    update_of = {name: update for update in layout.updates for name in update.parameters}
    listed = [name for names in grouped for name in names]
    if sorted(listed) != sorted(update_of):
        raise OptionError(
            "buckets must contain every parameter of the program once\n"
            "or give no buckets: each update is then one"
        )
    shapes = {parameter.name: parameter.shape for parameter in layout.parameters}
    found = []
    for names in grouped:
        update = update_of[names[0]]
        if any(update_of[name] is not update for name in names):
            raise OptionError(f"the bucket of {names[0]!r} has parameters of several updates")
        vector = place({name: shapes[name] for name in names}, np.dtype(update.dtype))
        nbytes = vector.size * np.dtype(update.dtype).itemsize
        slots = _slot_share(update) if update.flat else 0
        state = [] if update.flat else [_slot_bytes(update, name) for name in names]
        found.append(
            Bucket(
                names=tuple(names),
                nbytes=nbytes,
                slots=slots,
                separate=sum(state),
                largest=max(state, default=0),
            )
        )
    return found


def bucket_names(program: Program, limit: int) -> list[Names]:
    """The parameters of each bucket of at most `limit` bytes, as a run cuts its updates."""
    # as if all updates were flat, so that no graph is copied for each bucket
    updates = tuple(replace(update, flat=True) for update in program.layout.updates)
    plain = replace(program, layout=replace(program.layout, updates=updates))
    return [update.parameters for update in split_updates(plain, limit).program.layout.updates]


def _slot_bytes(update: UpdateLayout, name: str) -> int:
    """The bytes of a parameter's slots that are stored for each tensor."""
    return sum(
        math.prod(named[name]) * update.slot_dtype(slot).itemsize
        for slot, named in update.slots.items()
        if name in named
    )


def _slot_share(update: UpdateLayout) -> float:
    """The bytes of the slots for each byte of the parameters."""
    nbytes = sum(update.slot_dtype(slot).itemsize for slot in update.slots)
    return nbytes / np.dtype(update.dtype).itemsize
