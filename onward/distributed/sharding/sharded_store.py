"""ShardedStore: the tensors of a run by name, of which each process holds parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from onward.checkpoints.sharded.pieces import Piece
from onward.distributed.communicator import Communicator
from onward.distributed.exchange import as_array, as_tensor
from onward.distributed.process_groups import ProcessGroups
from onward.distributed.sharding.gathered_parameters import GatheredParameters
from onward.programs.bucket_parts import BucketParts, Sharding
from onward.programs.program import Array, Layout, gradient_name, slot_name
from onward.providers.provider import PartStore

Tensor = torch.Tensor


class GradientState(Protocol):
    """What a store must know of the gradients that are accumulated."""

    is_reduced: bool

    @property
    def unreduced_over(self) -> Communicator | None: ...

    @property
    def gathered(self) -> GatheredParameters: ...

    def reduce_all(self) -> None: ...

    def settle(self) -> None: ...

    def finish_update(self, updated: bool) -> None: ...


class _Home(NamedTuple):
    """Where a tensor is: its bucket, and which vectors of it."""

    bucket: int
    parameter: str
    kind: str  # "parameters", "gradients", or "slots"
    slot: str = ""


class ShardedStore:
    """A Store whose `read` joins the parts of all processes.

    Reading parameters, slots and gradients is a collective: all processes call it alike, in the
    same order, and all get the whole tensor. `write` takes the whole tensor in each process and
    keeps the own part, without communication. Statistics are whole in each process.
    """

    def __init__(
        self,
        layout: Layout,
        sharding: Sharding,
        groups: ProcessGroups,
        parts: PartStore,
        gradients: GradientState,
    ) -> None:
        self._sharding, self._groups = sharding, groups
        self._parts, self._gradients = parts, gradients
        self._shapes = {name: shape for name, (_, shape) in layout.tensors().items()}
        self._homes: dict[str, _Home] = {}
        for i, bucket in enumerate(sharding.buckets):
            for name in bucket.update.parameters:
                self._homes[name] = _Home(i, name, "parameters")
                self._homes[gradient_name(name)] = _Home(i, name, "gradients")
                self._shapes[gradient_name(name)] = self._shapes[name]
            for slot, shapes in bucket.update.slots.items():
                for name in shapes:
                    self._homes[slot_name(slot, name)] = _Home(i, name, "slots", slot)

    # -- whole tensors -------------------------------------------------------------------------

    def read(self, name: str) -> Array:
        """A whole tensor; all processes of the run call it alike."""
        home = self._homes.get(name)
        if home is None:
            array: Array = self._parts.read(name)
            return array
        over = self._gradients.unreduced_over if home.kind == "gradients" else None
        if self._is_whole(home, over):
            found = self._in_whole(home).to("cpu", copy=over is not None)
        else:
            found = self._join(name, home)
        if over is not None and over.size > 1:
            over.all_reduce(found).wait()
        view: Array = as_array(found).reshape(self._shapes[name])
        view.flags.writeable = False
        return view

    def write(self, name: str, tensor: Any) -> None:
        """Replace a tensor by another of its shape, given whole; each process keeps its part."""
        home = self._homes.get(name)
        if home is None:
            return self._parts.write(name, tensor)
        own = self._own_tensor(home)
        dtype = self._dtype(home)
        flat = np.asarray(tensor).astype(dtype, casting="same_kind", copy=False).reshape(-1)
        given = as_tensor(np.ascontiguousarray(flat))
        if home.kind == "gradients":
            return self._write_gradient(home, given)
        if home.kind == "parameters":
            self._gradients.gathered.release_all()
            if self._sharding.has_whole_parameters:
                self._in_whole(home).copy_(given)
        piece = self._span(home, self._sharding.rank)
        if own is not None:
            own.copy_(given[piece])

    def _write_gradient(self, home: _Home, given: Tensor) -> None:
        """Write a sum over all processes: to one copy of the model, zeros to the others."""
        self._gradients.settle()
        self._gradients.is_reduced = False
        given = given * (0.0 if self._groups.copies.rank else 1.0)
        piece, own = self._span(home, self._sharding.rank), self._own_tensor(home)
        if self._sharding.has_whole_gradients:
            self._in_whole(home).zero_()
            if own is not None:
                self._in_whole(home)[piece].copy_(given[piece])
        elif own is not None:
            own.copy_(given[piece])

    def parameter_buffers(self) -> list[Any]:
        """The own parts of the parameters, one for each update."""
        return self._parts.parameter_buffers()

    def gradient_buffers(self) -> list[Any]:
        """The own part of the accumulated gradients of each bucket, summed over all processes."""
        self._gradients.reduce_all()
        return self._parts.gradient_buffers()

    def gradient_buffer(self, update: int) -> Any:
        return self.gradient_buffers()[update]

    def clear_gradients(self) -> None:
        self._gradients.settle()
        self._gradients.is_reduced = False
        self._parts.clear_gradients()

    def bytes_held(self) -> dict[str, int]:
        """The bytes of the vectors that this process holds, by kind."""
        return dict(self._parts.bytes_held())

    # -- parts ---------------------------------------------------------------------------------

    def own_pieces(self) -> dict[str, Piece]:
        """The pieces of parameters and slots that this process holds, by name.

        They are views where the memory is the CPU's. Copies of the model hold the same pieces; a
        piece may be empty, and is then left out.
        """
        found = {}
        for name, home in self._homes.items():
            own = self._own_tensor(home) if home.kind != "gradients" else None
            if own is not None and own.numel():
                where = self._span(home, self._sharding.rank)
                array = as_array(own.cpu())
                shape = self._shapes[name]
                found[name] = Piece(array=array, start=where.start, shape=shape)
        return found

    def write_pieces(self, ranges: Iterable[tuple[str, int, Any]]) -> None:
        """Replace elements of own pieces: name, start in the flattened tensor, array of one axis.

        Call `finish_writing` when all are written.
        """
        self._gradients.gathered.release_all()
        for name, start, array in ranges:
            home = self._homes[name]
            own, where = self._own_tensor(home), self._span(home, self._sharding.rank)
            given = as_tensor(np.ascontiguousarray(array).reshape(-1))
            first = start - where.start
            assert own is not None and first >= 0 and first + len(given) <= own.numel(), name
            own[first : first + len(given)].copy_(given)

    def finish_writing(self) -> None:
        """Join the parameters that are held whole, after all processes wrote their pieces."""
        self._gradients.finish_update(True)

    def _own_tensor(self, home: _Home) -> Tensor | None:
        """The own elements of a tensor, flattened, in the memory of the parts."""
        part, bucket = self._parts.own_part(home.bucket), self._sharding.buckets[home.bucket]
        if home.kind == "slots" and not bucket.update.flat:
            held = part.slots[home.slot].get(home.parameter)
            return None if held is None else as_tensor(held).view(-1)
        vector = part.slots[home.slot] if home.kind == "slots" else getattr(part, home.kind)
        where = _slice_in_part(bucket, home.parameter, self._sharding.rank)
        return None if where is None else as_tensor(vector)[where]

    def _span(self, home: _Home, rank: int) -> slice:
        """The elements of a flattened tensor that a process holds."""
        bucket = self._sharding.buckets[home.bucket]
        if bucket.update.flat:
            return _span_in_tensor(bucket, home.parameter, rank)
        shape = bucket.places.shapes[home.parameter]
        if home.kind == "slots":
            shape = bucket.update.slots[home.slot][home.parameter]
        size = int(np.prod(shape, dtype=np.int64))
        return slice(0, size if home.parameter in bucket.owned[rank] else 0)

    def _dtype(self, home: _Home) -> np.dtype[Any]:
        update = self._sharding.buckets[home.bucket].update
        return update.slot_dtype(home.slot) if home.kind == "slots" else np.dtype(update.dtype)

    def _is_whole(self, home: _Home, unreduced: Communicator | None) -> bool:
        """Whether this process has the whole tensor, or its own sum of it."""
        if home.kind == "parameters":
            return self._sharding.has_whole_parameters
        is_own_sum = unreduced is not None and self._sharding.has_whole_gradients
        return home.kind == "gradients" and is_own_sum

    def _in_whole(self, home: _Home) -> Tensor:
        """A tensor in the whole vector of its bucket."""
        hold = self._parts.hold_parameters
        if home.kind == "gradients":
            hold = self._parts.hold_gradients
        where = self._sharding.buckets[home.bucket].places.slices[home.parameter]
        return as_tensor(hold(home.bucket))[where]

    def _join(self, name: str, home: _Home) -> Tensor:
        """Join the pieces of a tensor: each process sends its own to the others."""
        shards, works = self._groups.shards, []
        size = int(np.prod(self._shapes[name], dtype=np.int64))
        own = self._own_tensor(home)
        found = torch.empty(size, dtype=getattr(torch, self._dtype(home).name))
        for rank in range(shards.size):
            view = found[self._span(home, rank)]
            if rank == shards.rank and own is not None:
                view.copy_(own)
            if view.numel():
                is_narrow = view.dtype == torch.bfloat16  # not every group sends these
                sent = view.view(torch.uint8) if is_narrow else view
                works.append(shards.broadcast(sent, rank))
        for work in works:
            work.wait()
        return found


def _slice_in_part(bucket: BucketParts, name: str, rank: int) -> slice | None:
    """The elements of a process's part that are of a tensor; None if there are none."""
    start, stop = bucket.ranges[rank]
    where = bucket.places.slices[name]
    first, last = max(start, where.start), min(stop, where.stop)
    return slice(first - start, last - start) if first < last else None


def _span_in_tensor(bucket: BucketParts, name: str, rank: int) -> slice:
    """The elements of a flattened tensor that are in a process's part."""
    where, limits = bucket.places.slices[name], bucket.ranges[rank]
    first, last = max(limits[0], where.start), min(limits[1], where.stop)
    return slice(first - where.start, last - where.start) if first < last else slice(0, 0)
