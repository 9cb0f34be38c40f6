"""Matrix products, EyeLike and Trilu."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from onward.providers.torch.kernels.linear import _matmul_by_sums
from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((2, 0), (0, 4)),
    ((0, 3), (3, 4)),
]
TYPES: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
INTEGERS: list[Any] = [np.int32, np.int64, np.uint32, np.uint64]


def _whole(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).integers(0, 5, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [*TYPES, *INTEGERS])
@pytest.mark.parametrize("left, right", SHAPES)
def test_matmul_matches_numpy(left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    a, b = _whole(dtype, left), _whole(dtype, right)
    (y,) = run_op("MatMul", [a, b])
    assert y.dtype == dtype
    assert_array_equal(y.astype(float), a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("left, right", SHAPES)
def test_matmul_by_sums_matches_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = torch.tensor(_whole(np.int32, left)), torch.tensor(_whole(np.int32, right))
    y = _matmul_by_sums(a, b)
    assert y.dtype == torch.int32
    assert_array_equal(y.numpy(), a.numpy() @ b.numpy())


def test_products_of_unsigned_integers_wrap() -> None:
    a = np.array([[2**32 - 1, 2]], np.uint32)
    b = np.array([[2**32 - 1], [2**31]], np.uint32)
    assert_array_equal(run_op("MatMul", [a, b])[0], a @ b)


@pytest.mark.parametrize("dtype", [*TYPES, *INTEGERS])
@pytest.mark.parametrize("bias", [None, (), (1,), (4,), (1, 4), (2, 1), (2, 4)])
def test_gemm_broadcasts_its_third_input(bias: tuple[int, ...] | None, dtype: Any) -> None:
    c = None if bias is None else _whole(dtype, bias)
    for transposed_a in (0, 1):
        for transposed_b in (0, 1):
            a = _whole(dtype, (3, 2) if transposed_a else (2, 3))
            b = _whole(dtype, (4, 3) if transposed_b else (3, 4))
            attributes = {"transA": transposed_a, "transB": transposed_b, "alpha": 2.0, "beta": 3.0}
            (y,) = run_op("Gemm", [a, b, c], attributes)
            left, right = (a.T if transposed_a else a), (b.T if transposed_b else b)
            want = 2 * (left.astype(float) @ right.astype(float))
            assert y.dtype == dtype
            assert_allclose(
                y.astype(float), want + (0 if c is None else 3 * c.astype(float)), rtol=1e-2
            )


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint64, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("k", [-2, -1, 0, 1, 5])
def test_eye_like_fills_one_diagonal(k: int, dtype: Any) -> None:
    x = np.ones((3, 4), dtype)
    (y,) = run_op("EyeLike", [x], {"k": k})
    assert y.dtype == dtype
    assert_array_equal(y, np.eye(3, 4, k).astype(dtype))
    assert run_op("EyeLike", [x], {"dtype": 12})[0].dtype == np.uint32


@pytest.mark.parametrize(
    "dtype", [np.float32, np.int8, np.uint16, np.uint32, np.uint64, np.bool_, np.complex64]
)
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu_keeps_one_triangle(upper: int, dtype: Any) -> None:
    for shape in ((3, 4), (2, 4, 3), (0, 3), (2, 3, 0)):
        x = np.ones(shape, dtype)
        for k in (None, -5, -1, 0, 1, 5):
            inputs = [x] if k is None else [x, np.array(k)]
            (y,) = run_op("Trilu", inputs, {"upper": upper})
            assert y.dtype == dtype
            want = np.triu(x, k or 0) if upper else np.tril(x, k or 0)
            assert_array_equal(y, want)


def test_eye_like_and_trilu_agree_with_the_reference() -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert_array_equal(
        run_op("EyeLike", [x], {"k": 1})[0], reference_op("EyeLike", [x], {"k": 1})[0]
    )
    assert_array_equal(run_op("Trilu", [x])[0], reference_op("Trilu", [x])[0])
