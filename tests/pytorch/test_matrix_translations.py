"""Small matrices, diagonals and distances: results and gradients of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module
from tests.pytorch.eager import Calls, assert_elementwise

_GENERATOR = torch.Generator().manual_seed(1)
MATRICES = torch.randn(6, 3, 3, generator=_GENERATOR) + torch.eye(3)
OTHERS = torch.randn(6, 3, 3, generator=_GENERATOR)
VECTORS = torch.randn(6, 3, generator=_GENERATOR)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(
    "function", [torch.linalg.det, torch.inverse, torch.linalg.inv, lambda x: x.slogdet()[1]]
)
def test_functions_of_small_matrices_are_those_of_torch(function: Any, rows: int) -> None:
    assert_elementwise(function, MATRICES[:, :rows, :rows].double())
    assert_elementwise(function, MATRICES[0, :rows, :rows].double())


@pytest.mark.parametrize(
    "solve",
    [
        torch.linalg.solve,
        lambda a, b: torch.linalg.solve(a, b, left=False),
        lambda a, b: torch.linalg.solve(a, b[0]),
        lambda a, b: torch.linalg.solve(a[0], b[0, 0]),
        lambda a, b: torch.linalg.solve_ex(a, b)[0],
    ],
)
def test_solutions_are_those_of_torch(solve: Any) -> None:
    assert_elementwise(solve, MATRICES.double(), OTHERS.double())


def test_each_matrix_may_have_its_vector() -> None:
    assert_elementwise(torch.linalg.solve, MATRICES.double(), VECTORS.double())


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("inv", torch.linalg.inv),
        ("solve", lambda x: torch.linalg.solve(x, x)),
    ],
)
def test_larger_matrices_run_in_torch(name: str, function: Any) -> None:
    x = torch.eye(4).requires_grad_()
    reason = f"torch.linalg.{name} of matrices with more than 3 rows has no ONNX operators"
    with pytest.warns(FallbackWarning, match=reason):
        Module(Calls(function))(x)


@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_diagonals_are_replaced(offset: int) -> None:
    size = torch.diagonal(torch.ones(4, 5), offset).shape[0]
    assert_elementwise(
        lambda x, y: x.diagonal_scatter(y, offset), torch.randn(4, 5), torch.randn(size)
    )


@pytest.mark.parametrize("dims", [(-1, 0), (2, 0), (0, 2)])
def test_diagonals_of_other_axes_are_replaced(dims: tuple[int, int]) -> None:
    size = torch.diagonal(torch.ones(3, 6, 4), 1, *dims).shape[-1]
    assert_elementwise(
        lambda x, y: x.diagonal_scatter(y, 1, *dims), torch.ones(3, 6, 4), torch.randn(6, size)
    )


def test_determinants_of_larger_matrices_are_those_of_torch() -> None:
    x = torch.randn(2, 5, 5, generator=_GENERATOR)
    assert_elementwise(lambda x: torch.linalg.det(x) / 10, x)
    assert_elementwise(lambda x: torch.slogdet(x)[1], x)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, float("inf")])
def test_distances_of_pairs_are_those_of_torch(p: float) -> None:
    x = torch.cat([VECTORS, VECTORS[:1]])  # a distance of 0, too
    assert_elementwise(lambda x: F.pdist(x, p), x)
    captured = Module(Calls(lambda x: F.pdist(x, p)), {"fallback": "forbid"})
    for rows in (3, 6, 1):
        torch.testing.assert_close(captured(x[:rows]), F.pdist(x[:rows], p))
