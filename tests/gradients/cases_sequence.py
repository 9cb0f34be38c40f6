"""Cases of rules/sequence.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, normal
from tests.gradients.cases_control import body

THREE = {"a": normal(2, 3), "b": normal(2, 3, seed=1), "c": normal(2, 3, seed=2)}
UNEVEN = {"a": normal(2, 3), "b": normal(4, 3), "c": normal(1, 3)}
ONE, LAST = np.array(1), np.array(-1)


def at(op: Any, a: Any, b: Any, c: Any) -> Any:
    """Two positions, one of them read twice: gradients of the sequence are added up."""
    s = op.SequenceConstruct(a, b, c)
    return op.Mul(op.SequenceAt(s, ONE), op.SequenceAt(s, LAST)), op.Sin(op.SequenceAt(s, ONE))


def inserted(position: Any) -> Any:
    def write(op: Any, a: Any, b: Any, c: Any) -> Any:
        s = op.SequenceInsert(op.SequenceConstruct(a, b), c, position)
        return op.Sin(op.ConcatFromSequence(s, axis=0))

    return write


def erased(position: Any) -> Any:
    def write(op: Any, a: Any, b: Any, c: Any) -> Any:
        s = op.SequenceErase(op.SequenceConstruct(a, b, c), position)
        return op.Sin(op.ConcatFromSequence(s, axis=0))

    return write


def joined(**attributes: Any) -> Any:
    def write(op: Any, a: Any, b: Any, c: Any) -> Any:
        return op.Sin(op.ConcatFromSequence(op.SequenceConstruct(a, b, c), **attributes))

    return write


def split(sizes: Any, **attributes: Any) -> Any:
    def write(op: Any, x: Any) -> Any:
        s = op.SplitToSequence(x, sizes, **attributes)
        return op.Mul(op.SequenceAt(s, ONE), op.SequenceAt(s, ONE))

    return write


def mapped(op: Any, a: Any, b: Any, c: Any) -> Any:
    """each <- sin(each) c, over a and b; c goes whole."""
    kinds = [("each", a.dtype, a.shape), ("whole", c.dtype, c.shape)]
    graph = body(kinds, lambda inner, each, whole: inner.Mul(inner.Sin(each), whole))
    node = ir.node("SequenceMap", [op.SequenceConstruct(a, b), c], {"body": graph})
    node.outputs[0].name = op.name("SequenceMap")
    node.outputs[0].type = ir.SequenceType(ir.TensorType(a.dtype))
    op.graph.append(node)
    return op.ConcatFromSequence(node.outputs[0], axis=0)


def held(op: Any, x: Any) -> Any:
    return op.Sin(op.OptionalGetElement(op.Optional(op.Mul(x, x))))


CASES = [
    Case("SequenceConstruct", joined(axis=0), THREE),
    Case("SequenceAt", at, THREE),
    Case("SequenceInsert", inserted(None), THREE, "at the end"),
    Case("SequenceInsert", inserted(np.array(0)), THREE, "in front"),
    Case("SequenceInsert", inserted(LAST), THREE, "before the last"),
    Case("SequenceErase", erased(LAST), THREE, "counted from the end"),
    Case("SequenceErase", erased(None), THREE, "the last"),
    Case("SequenceErase", erased(np.array(0)), THREE, "the first"),
    Case("ConcatFromSequence", joined(axis=0), UNEVEN, "uneven"),
    Case("ConcatFromSequence", joined(axis=-1), THREE, "the last axis"),
    Case("ConcatFromSequence", joined(axis=1, new_axis=1), THREE, "a new axis"),
    Case("SplitToSequence", split(None), {"x": normal(3, 4)}, "ones"),
    Case("SplitToSequence", split(None, keepdims=0), {"x": normal(3, 4)}, "without the axis"),
    Case("SplitToSequence", split(np.array(2), axis=1), {"x": normal(3, 5)}, "of one size"),
    Case("SplitToSequence", split(np.array([1, 3])), {"x": normal(4, 2)}, "of given sizes"),
    Case("SequenceMap", mapped, THREE),
    Case("Optional", held, {"x": normal(2, 3)}),
    Case("OptionalGetElement", held, {"x": normal(2, 3)}),
]
