"""Piece: a range of a flattened tensor that one process holds.

Piece(array=shard, start=1000, shape=(64, 32))    # elements [1000, 1000 + len(shard))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.checkpoints.file_header import type_code
from onward.checkpoints.tensor_files import Array, TensorMetadata
from onward.errors import CheckpointError

Span = tuple[int, int]  # [start, stop) of a flattened tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """Elements [start, stop) of a tensor of this shape, flattened in C order.

    Attributes:
        array: the elements, 1-D and contiguous, such as a view of a flat vector
        start: the place of the first of them in the flattened tensor
        shape: of the whole tensor

    >>> piece = Piece(array=np.zeros(4, np.float32), start=2, shape=(3, 3))
    >>> piece.span, piece.spec
    ((2, 6), TensorMetadata(dtype='float32', shape=(3, 3)))
    """

    array: Array
    start: int
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "start", int(self.start))
        if not isinstance(self.array, np.ndarray) or self.array.ndim != 1:
            given = getattr(self.array, "shape", type(self.array).__name__)
            raise CheckpointError(
                f"a piece of a checkpoint must be a numpy array of one axis, not {given}\n"
                "give array.reshape(-1), and the shape of the whole tensor as `shape`"
            )
        if not 0 <= self.start <= self.stop <= self.spec_size:
            raise CheckpointError(
                f"a piece of a checkpoint covers [{self.start}, {self.stop}) of a tensor of shape "
                f"{self.shape}, which has {self.spec_size} elements\ngive its place in the "
                "flattened tensor as `start`"
            )

    @property
    def stop(self) -> int:
        return self.start + len(self.array)

    @property
    def span(self) -> Span:
        return self.start, self.stop

    @property
    def spec(self) -> TensorMetadata:
        """The type and shape of the whole tensor."""
        return TensorMetadata(self.array.dtype.name, self.shape)

    @property
    def spec_size(self) -> int:
        """The number of elements of the whole tensor."""
        return math.prod(self.shape)

    def cut(self, span: Span) -> Piece:
        """The part of this piece that is [start, stop) of the tensor; a view."""
        start, stop = span
        array = self.array[start - self.start : stop - self.start]
        return Piece(array=array, start=start, shape=self.shape)


Pieces = Mapping[str, "Piece | Sequence[Piece]"]  # by tensor; several for ranges with gaps


def listed_pieces(pieces: Pieces) -> dict[str, list[Piece]]:
    """Pieces by tensor, as lists; refuses what is not a piece, and pieces that disagree."""
    found: dict[str, list[Piece]] = {}
    for name, given in pieces.items():
        each = [given] if isinstance(given, Piece) else list(given)
        for piece in each:
            if not isinstance(piece, Piece):
                raise CheckpointError(
                    f"{name!r}: a {type(piece).__name__} is not a Piece\n"
                    "give Piece(array=..., start=..., shape=...), or whole_pieces(tensors)"
                )
            type_code(name, piece.array)
            if piece.spec != each[0].spec:
                raise CheckpointError(
                    f"{name!r}: a piece of {piece.spec} and one of {each[0].spec}\n"
                    "give pieces of one tensor the same type and shape"
                )
        if each:
            found[name] = each
    return found


def whole_pieces(tensors: Mapping[str, Any]) -> dict[str, Piece]:
    """Whole tensors as pieces, such as those of `TrainingSession.checkpoint()`.

    >>> whole_pieces({"w": np.zeros((2, 3))})["w"].span
    (0, 6)
    """
    return {
        name: Piece(array=np.ascontiguousarray(tensor).reshape(-1), start=0, shape=np.shape(tensor))
        for name, tensor in tensors.items()
    }
