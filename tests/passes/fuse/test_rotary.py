"""Rotary embeddings from sines, cosines and halves."""

from __future__ import annotations

from typing import Any

import pytest

from onward.graph.builder import OpBuilder
from tests.passes.one_graph import built, left_after

X, ANGLES = (2, 4, 5, 8), (2, 5, 4)


def wave(op: OpBuilder, angles: Any, operator: str) -> Any:
    both = op.Concat(angles, angles, axis=-1)
    return op.Unsqueeze(getattr(op, operator)(both), [1])


def rotary(op: OpBuilder, x: Any, angles: Any, *, half: int = 4, split: bool = False) -> Any:
    """As transformers writes it: x cos + rotate_half(x) sin."""
    if split:
        low, high = op.Split(x, axis=-1, num_outputs=2, outputs=2)
    else:
        low, high = op.Slice(x, [0], [half], [3]), op.Slice(x, [half], [2**31], [3])
    turned = op.Concat(op.Neg(high), low, axis=-1)
    return op.Add(
        op.Mul(x, wave(op, angles, "Cos")),
        op.Mul(turned, wave(op, angles, "Sin")),
    )


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    ("x", "angles"),
    [
        (X, ANGLES),
        (X, (1, 5, 4)),
        (("b", 4, "t", 8), ("b", "t", 4)),
        (("b", 4, "t", 8), (1, "t", 4)),
    ],
)
def test_rotation_becomes_one_operator(split: bool, x: Any, angles: Any) -> None:
    model = built(lambda op, x, a: rotary(op, x, a, split=split), x, angles)
    assert "RotaryEmbedding" in left_after(model)


def test_uneven_halves_are_not_fused() -> None:
    model = built(lambda op, x, a: rotary(op, x, a, half=3), X, ANGLES)
    assert "RotaryEmbedding" not in left_after(model)


def test_different_angles_are_not_fused() -> None:
    def mixed(op: OpBuilder, x: Any, a: Any, b: Any) -> Any:
        low, high = op.Slice(x, [0], [4], [3]), op.Slice(x, [4], [8], [3])
        turned = op.Concat(op.Neg(high), low, axis=-1)
        return op.Add(op.Mul(x, wave(op, a, "Cos")), op.Mul(turned, wave(op, b, "Sin")))

    assert "RotaryEmbedding" not in left_after(built(mixed, X, ANGLES, ANGLES))


def test_a_rotated_half_that_is_returned_stays() -> None:
    def and_half(op: OpBuilder, x: Any, a: Any) -> Any:
        low, high = op.Slice(x, [0], [4], [3]), op.Slice(x, [4], [8], [3])
        turned = op.Concat(op.Neg(high), low, axis=-1)
        y = op.Add(op.Mul(x, wave(op, a, "Cos")), op.Mul(turned, wave(op, a, "Sin")))
        return y, turned

    assert "RotaryEmbedding" not in left_after(built(and_half, X, ANGLES))
