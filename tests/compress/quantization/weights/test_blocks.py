"""Packing of codes, and the numbers that scales and codes stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from onward.compress.quantization.weights.blocks import pack, unpack
from onward.compress.quantization.weights.scales import SCHEMES, round_weights
from onward.compress.quantization.weights.stored import store
from onward.graph.builder import OpBuilder

Array = np.ndarray[Any, Any]


def weights(rows: int, size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 0.05, (rows, size)).astype(np.float32)


@given(st.sampled_from([2, 4, 8]), st.lists(st.integers(0, 255), min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_unpacked_codes_are_the_packed_ones(bits: int, numbers: list[int]) -> None:
    codes = np.array(numbers, np.uint8) & np.uint8((1 << bits) - 1)
    packed = pack(codes, bits)
    assert packed.size == -(-len(codes) * bits // 8)
    assert (unpack(packed, bits, len(codes)) == codes).all()


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("scheme", ["symmetric", "zeros"])
@pytest.mark.parametrize("size", [64, 50])
def test_onnx_dequantizes_stored_weights_to_the_same_numbers(
    bits: int, scheme: str, size: int
) -> None:
    blocks = round_weights(weights(6, size), bits, 32, scheme)
    stored = store(blocks, "rows")
    op = OpBuilder(opset=25)
    inputs = []
    for name, tensor in (
        ("codes", stored.codes), ("scales", ir.tensor(blocks.scales)), ("zeros", stored.zeros),
    ):  # fmt: skip
        if tensor is not None:
            value = ir.val(name, dtype=tensor.dtype, shape=tensor.shape, const_value=tensor)
            op.graph.register_initializer(value)
            inputs.append(value)
    model = op.model(w=op.DequantizeLinear(*inputs, axis=1, block_size=32))
    model.ir_version = 13
    [w] = ReferenceEvaluator(ir.to_proto(model)).run(None, {})
    np.testing.assert_allclose(w, blocks.widen(), rtol=1e-6, atol=1e-7)


def test_columns_are_the_rows_turned() -> None:
    blocks = round_weights(weights(4, 32), 4, 16, "symmetric")
    rows, columns = store(blocks, "rows"), store(blocks, "columns")
    assert (columns.codes.numpy() == rows.codes.numpy().T).all()
    assert (columns.scales.numpy() == rows.scales.numpy().T).all()


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_searched_scales_are_never_worse_than_the_largest_weight(bits: int, scheme: str) -> None:
    w = weights(16, 96, seed=bits)
    w[0, 3] = 1.0  # an outlier
    plain = round_weights(w, bits, 32, scheme, search=False).widen()
    searched = round_weights(w, bits, 32, scheme).widen()
    before = ((plain - w) ** 2).reshape(16, 3, 32).sum(-1)
    after = ((searched - w) ** 2).reshape(16, 3, 32).sum(-1)
    assert (after <= before * (1 + 1e-6)).all()
    assert after.sum() < before.sum()


def test_more_bits_and_smaller_blocks_lose_less() -> None:
    w = weights(32, 256)
    errors = [
        float(((round_weights(w, bits, block, "symmetric").widen() - w) ** 2).sum())
        for bits, block in ((2, 64), (2, 32), (4, 128), (4, 32), (8, 128), (8, 32))
    ]
    assert errors == sorted(errors, reverse=True)


def test_weights_of_a_grid_with_offsets_are_exact() -> None:
    """As GGUF's Q4_1 has them: w = d q + m, with d and m in float16."""
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, (8, 2, 32))
    q[..., 0], q[..., 1] = 0, 15
    d = rng.uniform(0.01, 0.02, (8, 2, 1)).astype(np.float16).astype(np.float32)
    m = rng.uniform(-0.2, -0.1, (8, 2, 1)).astype(np.float16).astype(np.float32)
    w = (d * q + m).reshape(8, 64)
    assert np.abs(round_weights(w, 4, 32, "offsets").widen() - w).max() < 2e-4
    assert np.abs(round_weights(w, 4, 32, "symmetric").widen() - w).max() > 2e-3


def test_blocks_of_zeros_stay_zero() -> None:
    for scheme in SCHEMES:
        assert not round_weights(np.zeros((2, 32), np.float32), 4, 16, scheme).widen().any()


def test_tiny_and_huge_weights_keep_their_size() -> None:
    for factor in (1e-9, 1e9):
        w = weights(4, 32) * np.float32(factor)
        back = round_weights(w, 8, 16, "symmetric").widen()
        assert np.abs(back - w).max() < 0.02 * np.abs(w).max()


def test_small_rows_keep_their_size_beside_large_rows_and_zeros() -> None:
    w = weights(4, 64) * np.array([[1], [1e-7], [1e-9], [1]], np.float32)
    w[:, :32] *= np.array([[1], [0], [1], [0]], np.float32)
    lost = np.abs(round_weights(w, 8, 32, "symmetric").widen() - w).max(axis=1)
    assert (lost < 0.02 * np.abs(w).max(axis=1)).all()
