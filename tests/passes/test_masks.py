"""Masks are recognised, however they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.passes.masks import MaskMeaning, MaskReader
from onward.passes.pipelines import PREPARE

CAUSAL, PADDED = MaskMeaning(causal=True, padded=False), MaskMeaning(causal=False, padded=True)
BOTH, NOTHING = MaskMeaning(causal=True, padded=True), MaskMeaning(causal=False, padded=False)
LOWEST = np.float32(np.finfo(np.float32).min)
INF = np.float32(np.inf)
Write = Callable[[Any, ir.Value, ir.Value], ir.Value]


def sizes(op: Any, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Batch and length, as scalars."""
    batch, length = (op.Shape(x, start=axis, end=axis + 1) for axis in (0, 1))
    return op.Squeeze(batch, [0]), op.Squeeze(length, [0])


def positions(op: Any, ids: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The queries' and the keys' positions, (length, 1) and (length,)"""
    j = op.Range(0, sizes(op, ids)[1], 1)
    return op.Unsqueeze(j, [1]), j


def causal(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    i, j = positions(op, ids)
    return op.Unsqueeze(op.LessOrEqual(j, i), [0, 1])


def triangle(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    _, length = sizes(op, ids)
    square = op.Reshape(op.Expand(length, np.array([2])), [2])
    ones = op.Expand(np.array(True), square)
    return op.Trilu(op.Cast(ones, to=1), upper=0)


def triangle_of_booleans(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    return op.Cast(triangle(op, ids, seen), to=9)


def lowest_above(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    return op.Where(causal(op, ids, seen), np.float32(0), LOWEST)


def infinite_above(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    return op.Where(causal(op, ids, seen), np.float32(0), -INF)


def buffer(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    table = op.initializer("table", np.tri(40, dtype=bool)[None, None])
    length = op.Shape(ids, start=1, end=2)
    rows = op.Slice(table, [0], length, [2])
    return op.Slice(rows, [0], length, [3])


def window(width: int) -> Write:
    def write(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
        i, j = positions(op, ids)
        return op.And(causal(op, ids, seen), op.Less(op.Sub(i, j), np.int64(width)))

    return write


def padding(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    batch, length = sizes(op, ids)
    ends = [op.Reshape(batch, [1]), [1], op.Reshape(length, [1]), op.Reshape(length, [1])]
    return op.Expand(op.Unsqueeze(op.Cast(seen, to=9), [1, 2]), op.Concat(*ends, axis=0))


def added_padding(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    rows = op.Cast(padding(op, ids, seen), to=1)
    return op.Mul(op.Sub(np.float32(1), rows), LOWEST)


def added_padding_of_any_number(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    rows = op.Unsqueeze(op.Cast(seen, to=1), [1, 2])
    added = op.Mul(op.Sub(np.float32(1), rows), LOWEST)
    return op.Add(added, op.Cast(op.Not(everything(op, ids, seen)), to=1))


def padding_of_ids(pad: int) -> Write:
    def write(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
        return padding(op, ids, op.Not(op.Equal(ids, np.int64(pad))))

    return write


def causal_padding(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    return op.And(causal(op, ids, seen), padding(op, ids, seen))


def added_causal_padding(hidden: np.float32) -> Write:
    def write(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
        return op.Where(causal_padding(op, ids, seen), np.float32(0), hidden)

    return write


def everything(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    i, _ = positions(op, ids)
    return op.Expand(op.GreaterOrEqual(i, 0), op.Shape(causal(op, ids, seen)))


def transposed(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    return op.Transpose(causal(op, ids, seen), perm=[0, 1, 3, 2])


def learnt(op: Any, ids: ir.Value, seen: ir.Value) -> ir.Value:
    return op.Where(causal(op, ids, seen), op.initializer("bias", np.float32(0)), -INF)


CASES: dict[str, tuple[Write, MaskMeaning | None]] = {
    "causal": (causal, CAUSAL),
    "a triangle of numbers": (triangle, None),
    "a triangle": (triangle_of_booleans, CAUSAL),
    "the lowest number above": (lowest_above, CAUSAL),
    "minus infinity above": (infinite_above, CAUSAL),
    "a buffer": (buffer, CAUSAL),
    "a window": (window(3), None),
    "a wide window": (window(100), None),
    "a window beyond what is tried": (window(1 << 20), None),
    "padding": (padding, PADDED),
    "added padding": (added_padding, PADDED),
    "padding found in ids": (padding_of_ids(0), PADDED),
    "padding of another number": (padding_of_ids(7), PADDED),
    "padding of a negative number": (padding_of_ids(-100), PADDED),
    "what is added is any number": (added_padding_of_any_number, PADDED),
    "causal padding": (causal_padding, BOTH),
    "added causal padding": (added_causal_padding(-INF), BOTH),
    "causal padding with rows that see all": (added_causal_padding(LOWEST), None),
    "everything": (everything, NOTHING),
    "transposed": (transposed, None),
}


def model(write: Write, batch: Any = "batch", length: Any = "length") -> ir.Model:
    op = OpBuilder()
    ids = op.input("ids", "int64", (batch, length))
    seen = op.input("seen", "int64", (batch, length))
    return PREPARE(op.model(mask=write(op, ids, seen)))


def meaning(made: ir.Model, length: Any = "length", parameters: Any = ()) -> MaskMeaning | None:
    return MaskReader(made, parameters).read(made.graph.outputs[0], length, length)


@pytest.mark.parametrize("name", CASES)
def test_a_mask_of_any_size_has_its_meaning(name: str) -> None:
    write, expected = CASES[name]
    assert meaning(model(write)) == expected


@pytest.mark.parametrize("name", [name for name in CASES if "window" not in name])
def test_a_mask_of_fixed_size_has_its_meaning(name: str) -> None:
    write, expected = CASES[name]
    assert meaning(model(write, 2, 6), 6) == expected


def test_window_wider_than_the_mask_is_causal() -> None:
    assert meaning(model(window(100), 2, 6), 6) == CAUSAL
    assert meaning(model(window(5), 2, 6), 6) is None


def test_a_mask_that_training_changes_has_no_meaning() -> None:
    assert meaning(model(learnt)) == CAUSAL
    assert meaning(model(learnt), parameters=["bias"]) is None


def test_a_bias_of_zeros_has_no_meaning() -> None:
    op = OpBuilder()
    made = op.model(mask=op.Identity(op.initializer("bias", np.zeros((4, 4), np.float32))))
    assert meaning(made, 4) is None


def test_a_mask_of_another_length_than_the_keys_has_no_meaning() -> None:
    made = model(causal)
    reader = MaskReader(made)
    assert reader.read(made.graph.outputs[0], "length", "keys") is None
    assert reader.read(made.graph.outputs[0], "length", None) is None
    assert reader.read(made.graph.outputs[0], "batch", "length") is None


def test_a_mask_that_is_fed_has_no_meaning() -> None:
    op = OpBuilder()
    made = op.model(mask=op.Identity(op.input("given", "bool", (2, 1, 6, 6))))
    assert meaning(made, 6) is None
