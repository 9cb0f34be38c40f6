"""Consecutive nodes are merged or removed."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.passes.simplify.consecutive_nodes import holds
from tests.passes.one_graph import Build, built, left_after

T = ir.DataType


def through(op: OpBuilder, x: Any, *types: ir.DataType) -> Any:
    for each in types:
        x = op.Cast(x, to=each)
    return x


@pytest.mark.parametrize(
    ("types", "casts"),
    [
        ((T.DOUBLE, T.FLOAT), 0),
        ((T.DOUBLE, T.FLOAT16), 1),
        ((T.DOUBLE, T.INT32), 1),
        ((T.FLOAT16, T.FLOAT), 2),
        ((T.BFLOAT16, T.DOUBLE), 2),
        ((T.INT32, T.FLOAT), 2),
        ((T.BOOL, T.FLOAT), 2),
    ],
)
def test_lossless_cast_in_between_is_removed(types: Any, casts: int) -> None:
    def chain(op: OpBuilder, x: Any) -> Any:
        return through(op, op.Relu(x), *types)

    assert left_after(built(chain, (3, 4)), 1).count("Cast") == casts


def test_a_wider_type_holds_a_narrower_one() -> None:
    order = [T.BOOL, T.UINT8, T.INT16, T.INT32, T.INT64]
    assert all(holds(wide, narrow) for i, wide in enumerate(order) for narrow in order[:i])
    assert not any(holds(narrow, wide) for i, wide in enumerate(order) for narrow in order[:i])
    assert holds(T.FLOAT, T.INT16) and not holds(T.FLOAT, T.INT32)
    assert holds(T.FLOAT, T.BFLOAT16) and not holds(T.FLOAT16, T.BFLOAT16)
    assert not holds(T.UINT8, T.INT8) and not holds(T.INT64, T.FLOAT)
    assert not holds(T.STRING, T.FLOAT)


def merge(op: OpBuilder, x: Any) -> Any:
    a, b = op.Split(x, [1, 2], axis=0, outputs=2)
    return op.Concat(a, b, axis=-2)


def take_apart(op: OpBuilder, x: Any) -> Any:
    y = op.Neg(x)
    a, b = op.Split(op.Concat(x, y, axis=1), [4, 4], axis=1, outputs=2)
    return op.Add(a, b)


CHAINS: dict[str, tuple[Build, list[str]]] = {
    "reshapes": (lambda op, x: op.Reshape(op.Reshape(x, [12]), [2, -1]), ["Reshape"]),
    "flatten": (lambda op, x: op.Reshape(op.Flatten(x, axis=0), [6, 2]), ["Reshape"]),
    "inverse transposes": (lambda op, x: op.Relu(op.Transpose(op.Transpose(x))), ["Relu"]),
    "unsqueezes": (lambda op, x: op.Unsqueeze(op.Unsqueeze(x, [-1]), [0, 2]), ["Unsqueeze"]),
    "unsqueeze of squeeze": (
        lambda op, x: op.Unsqueeze(op.Squeeze(op.ReduceSum(x, [0]), [0]), [0]),
        ["ReduceSum"],
    ),
    "concats": (
        lambda op, x: op.Concat(op.Concat(x, x, axis=0), x, axis=-2),
        ["Concat"],
    ),
    "put together again": (lambda op, x: op.Relu(merge(op, x)), ["Relu"]),
    "taken apart again": (take_apart, ["Add", "Neg"]),
    "expand before add": (
        lambda op, x: op.Add(op.Expand(op.ReduceSum(x, [0]), [3, 4]), x),
        ["Add", "ReduceSum"],
    ),
    "relu of clip": (lambda op, x: op.Relu(op.Clip(x, 0.0, 2.0)), ["Clip"]),
    "relu of relu": (lambda op, x: op.Relu(op.Relu(x)), ["Relu"]),
    "ones move": (
        lambda op, x: op.Relu(op.Transpose(op.Unsqueeze(x, [1]), perm=[1, 0, 2])),
        ["Relu", "Reshape"],
    ),
}


@pytest.mark.parametrize(("build", "left"), list(CHAINS.values()), ids=list(CHAINS))
def test_a_pair_becomes_one(build: Build, left: list[str]) -> None:
    assert left_after(built(build, (3, 4)), 1) == left


PAIRS: dict[str, tuple[Build, list[str]]] = {
    "a copied size": (
        lambda op, x: op.Reshape(op.Reshape(x, [2, 2, 3]), [0, 6]),
        ["Reshape", "Reshape"],
    ),
    "other axes": (
        lambda op, x: op.Squeeze(op.Unsqueeze(op.ReduceSum(x, [0]), [1]), [0]),
        ["ReduceSum", "Squeeze", "Unsqueeze"],
    ),
    "parts in another order": (
        lambda op, x: op.Concat(*reversed(op.Split(x, [1, 2], axis=0, outputs=2)), axis=0),
        ["Concat", "Split"],
    ),
    "other seams": (
        lambda op, x: op.Split(op.Concat(x, op.Neg(x), axis=1), [2, 6], axis=1, outputs=2),
        ["Concat", "Neg", "Split"],
    ),
    "relu of a low clip": (lambda op, x: op.Relu(op.Clip(x, -1.0, 2.0)), ["Clip", "Relu"]),
    "expand wider": (lambda op, x: op.Add(op.Expand(x, [2, 3, 4]), x), ["Add", "Expand"]),
}


@pytest.mark.parametrize(("build", "left"), list(PAIRS.values()), ids=list(PAIRS))
def test_a_pair_that_does_not_fit_stays(build: Build, left: list[str]) -> None:
    assert left_after(built(build, (3, 4)), 1) == left


def test_two_permutations_become_one() -> None:
    def turned(op: OpBuilder, x: Any) -> Any:
        return op.Transpose(op.Transpose(x, perm=[1, 2, 0]), perm=[1, 0, 2])

    assert left_after(built(turned, (2, 3, 4)), 1) == ["Transpose"]


def test_transpose_between_reshapes_is_one_transpose() -> None:
    def as_torch_writes_it(op: OpBuilder, x: Any) -> Any:
        shape = op.Shape(x)
        rows, columns = op.Slice(shape, [2], [3]), op.Slice(shape, [3], [4])
        flat = op.Reshape(x, op.Concat([-1], rows, columns, axis=0))
        turned = op.Transpose(flat, perm=[0, 2, 1])
        batch = op.Slice(shape, [0], [2])
        return op.Relu(op.Reshape(turned, op.Concat(batch, columns, rows, axis=0)))

    assert left_after(built(as_torch_writes_it, ("b", 2, "t", 5)), 1) == ["Relu", "Transpose"]
    assert left_after(built(as_torch_writes_it, (2, 3, 4, 5)), 1) == ["Relu", "Transpose"]


def test_a_flat_transpose_of_other_matrices_stays() -> None:
    def other(op: OpBuilder, x: Any) -> Any:
        turned = op.Transpose(op.Reshape(x, [3, 8, 5]), perm=[0, 2, 1])
        return op.Relu(op.Reshape(turned, [2, 3, 5, 4]))

    assert left_after(built(other, (2, 3, 4, 5)), 1) == ["Relu", "Reshape", "Reshape", "Transpose"]
