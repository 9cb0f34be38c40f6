"""Gradients of sequences and optionals: the gradient of a sequence is a sequence."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable, absent
from onward.gradients.subgraph_copies import SubgraphCopy, captures
from onward.passes.value_facts import attribute, constant, input_of

gradient = GradientTable()


@gradient("SequenceConstruct")
def sequence_construct(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx_i = dy_i"""
    return [op.SequenceAt(dy, index) for index in range(len(node.inputs))]


@gradient("SequenceAt")
def sequence_at(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """ds is zero but for dy at the position"""
    s, position = node.inputs
    assert s is not None
    at = _from_front(op, s, position)
    return op.SequenceInsert(op.SequenceErase(op.zeros_like(s), at), dy, at)


@gradient("SequenceInsert")
def sequence_insert(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """ds = dy without the position, dx = dy at the position"""
    s, position = node.inputs[0], input_of(node, 2)
    assert s is not None
    at = op.SequenceLength(s) if position is None else _from_front(op, s, position)
    return op.SequenceErase(dy, at), op.SequenceAt(dy, at)


@gradient("SequenceErase")
def sequence_erase(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """ds = dy with a zero put back at the position"""
    s, position = node.inputs[0], input_of(node, 1)
    assert s is not None
    at = _from_front(op, s, position)
    gone = op.SequenceAt(s, at)
    return op.SequenceInsert(dy, op.zeros_like(gone), at)


def _from_front(op: GradientOps, s: ir.Value, position: ir.Value | None) -> ir.Value:
    """A non-negative position (None: the last), which is valid if the length changes."""
    known = constant(position)
    if position is not None and known is not None and known >= 0:
        return position
    if position is None:
        return op.Sub(op.SequenceLength(s), 1)
    at = op.Cast(position, to=ir.DataType.INT64)
    return op.Where(op.Less(at, 0), op.Add(at, op.SequenceLength(s)), at)


@gradient("ConcatFromSequence")
def concat_from_sequence(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """ds = dy cut where the elements met"""
    (s,) = node.inputs
    assert s is not None
    axis = attribute(node, "axis")
    if attribute(node, "new_axis", 0):
        return op.SplitToSequence(dy, axis=axis, keepdims=0)
    lengths = op.map_sequence(lambda inner, x: inner.Gather(inner.Shape(x), [axis], axis=0), s)
    lengths.type, lengths.shape = ir.SequenceType(ir.TensorType(ir.DataType.INT64)), ir.Shape([1])
    sizes = op.ConcatFromSequence(lengths, axis=0)
    return op.SplitToSequence(dy, sizes, axis=axis)


@gradient("SplitToSequence")
def split_to_sequence(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = the pieces joined again"""
    split, keepdims = input_of(node, 1), attribute(node, "keepdims", 1)
    new = int(split is None and not keepdims)
    return op.ConcatFromSequence(dy, axis=attribute(node, "axis", 0), new_axis=new)


@gradient("SequenceMap")
@absent
def sequence_map(op: GradientOps, node: ir.Node, *dys: ir.Value | None) -> Any:
    """ds = SequenceMap { the reverse of the body }; tensors that go whole are summed over it."""
    original = node.attributes["body"].as_graph()
    captured = captures(op, node)
    if captured:
        raise ValueError(f"its subgraph captures {captured[0].name!r}: pass it as an input")
    given = [value for value in node.inputs if value is not None]
    fed = [k for k, dy in enumerate(dys) if dy is not None]
    found: dict[ir.Value, ir.Value] = {}
    for index, value in enumerate(given):
        if value not in op.active:
            continue
        body = SubgraphCopy(op, original)
        body.bind({each: body.like(each, each) for each in original.inputs})
        seeds = [
            (body.outputs[k], body.like(original.outputs[k], original.outputs[k])) for k in fed
        ]
        wanted = body.at(original.inputs[index])
        result = body.backward(seeds, [wanted]).get(wanted)
        graph = body.finish([result or body.op.zeros_like(wanted)])
        whole = not isinstance(value.type, ir.SequenceType)
        like = value if not whole else ir.val("", type=ir.SequenceType(value.type))  # type: ignore[arg-type]
        inputs = [*given, *(dy for dy in dys if dy is not None)]
        (each,) = op.typed("SequenceMap", inputs, {"body": graph}, [like])
        if whole:  # one tensor, which the subgraph of every element reads
            each = op.ReduceSum(op.ConcatFromSequence(each, axis=0, new_axis=1), [0], keepdims=0)
        found[value] = op.total([found[value], each]) if value in found else each
    return found


@gradient("Optional")
@absent
def optional(op: GradientOps, node: ir.Node, dy: ir.Value | None) -> Any:
    """dx = dy: an optional carries the gradient of what it holds"""
    return dy


@gradient("OptionalGetElement")
@absent
def optional_get_element(op: GradientOps, node: ir.Node, dy: ir.Value | None) -> Any:
    """dx = dy"""
    return dy


gradient.none("integer", "SequenceLength")
gradient.none("boolean", "OptionalHasElement")
gradient.none("constant", "SequenceEmpty")
