"""The matrices of a bucket that are worth sending as products of two thin ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from onward.programs.vector_offsets import Places

Tensor = torch.Tensor


@dataclass(frozen=True)
class Matrix:
    """A tensor of a bucket as a matrix, and the rank of its estimate."""

    place: slice
    rows: int
    columns: int
    rank: int

    def of(self, vector: Tensor) -> Tensor:
        return vector[self.place].view(self.rows, self.columns)


def split_matrices(places: Places, rank: int, rate: float) -> tuple[list[Matrix], list[slice]]:
    """The tensors that are worth compressing, and the places of the others."""
    matrices, rest = [], []
    for name, place in places.slices.items():
        shape, elements = places.shapes[name], place.stop - place.start
        rows = shape[0] if len(shape) > 1 else 1
        columns = elements // rows if rows else 0
        least = min(rank, rows, columns)
        if least and (rows + columns) * least * rate <= elements:
            matrices.append(Matrix(place, rows, columns, least))
        elif elements:
            rest.append(place)
    return matrices, rest


def orthonormal_basis(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the columns; of columns that are zero, some other basis."""
    basis: Tensor = torch.linalg.qr(matrix).Q
    return basis


def join_tensors(tensors: Sequence[Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Tensors as one vector."""
    if not tensors:
        return like.new_empty(0, dtype=dtype)
    return torch.cat([each.reshape(-1).to(dtype) for each in tensors])


def split_factors(vector: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The matrices that `join_tensors` joined."""
    sizes = [rows * columns for rows, columns in shapes]
    return [part.view(shape) for part, shape in zip(torch.split(vector, sizes), shapes)]
