"""Replace sequences with known elements by tensors: SplitToSequence by Split, SequenceConstruct.

    s = SplitToSequence(x, 32, axis=2)         q, k, v = Split(x, [32, 32, 32], axis=2)
    q, k, v = SequenceAt(s, 0), ...       ->

torch's exporter writes every `split`, `chunk` and `unbind` as a sequence unless it optimises. ONNX
has no bfloat16 in SequenceInsert and SequenceErase, which gradients of sequences use, and engines
fuse nothing across a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.passes.rewrite import Names, Ops, insert_made_nodes, nodes_of, remove_node, substitute
from onward.passes.value_facts import attribute, dims, input_of, ints, rank

_MOST_PIECES = 1024  # with more outputs, Split is not better than a sequence


def replace_sequences_by_splits(model: ir.Model) -> ir.Model:
    """Replace sequences by tensors where every reader needs known elements, or the length.

    SplitToSequence becomes Split; the elements of SequenceConstruct are read directly.

    The readers are SequenceAt at constant positions, SequenceLength and ConcatFromSequence. Shapes
    must be inferred: the number of pieces of a given size depends on the axis.
    """
    names = Names(model)
    for node in [node for node in nodes_of(model) if node.op_type in _MAKERS]:
        if node.domain == "" and not node.outputs[0].is_graph_output():
            _MAKERS[node.op_type](node, names)
    return model


def _write_split(node: ir.Node, names: Names) -> None:
    sizes, readers = _sizes(node), [reader for reader, _ in node.outputs[0].uses()]
    if sizes is None or not all(_needs_only_pieces(each, len(sizes)) for each in readers):
        return
    op, needs_pieces = Ops(), any(each.op_type != "SequenceLength" for each in readers)
    pieces = _split(op, node, sizes) if needs_pieces else []
    insert_made_nodes(node, op, names)
    is_squeezed = input_of(node, 1) is None and not attribute(node, "keepdims", 1)
    squeezed = _axis(node) if is_squeezed else None
    for reader in readers:
        here = Ops()
        value = (
            _read(here, reader, pieces, squeezed)
            if pieces
            else here.constant(np.array(len(sizes), np.int64))
        )
        _replace(reader, value, here, names)
    assert node.graph is not None
    remove_node(node, node.graph)


def _read_listed(node: ir.Node, names: Names) -> None:
    """SequenceAt(SequenceConstruct(x, y), 1) -> y, where every reader needs known elements.

    A sequence with an element that no reader takes stays: that element would lose its gradient, 0.
    """
    pieces = [value for value in node.inputs if value is not None]
    readers = [reader for reader, _ in node.outputs[0].uses()]
    if not all(_needs_only_pieces(each, len(pieces)) for each in readers):
        return
    if not _take_every_piece(readers, len(pieces)):
        return
    for reader in readers:
        here = Ops()
        _replace(reader, _read(here, reader, pieces, None), here, names)
    assert node.graph is not None
    remove_node(node, node.graph)


def _replace(reader: ir.Node, value: ir.Value, op: Ops, names: Names) -> None:
    insert_made_nodes(reader, op, names)
    substitute(reader.outputs[0], value, names)
    assert reader.graph is not None
    remove_node(reader, reader.graph)


_MAKERS = {"SplitToSequence": _write_split, "SequenceConstruct": _read_listed}


def replace_sequences_by_slices(model: ir.Model) -> ir.Model:
    """Replace pieces of one size, of an axis of unknown size, by Slice.

    For models that read no piece beyond the end, such as captures of modules: a sequence would
    refuse it, and Slice returns an empty tensor.
    """
    names = Names(model)
    for node in [node for node in nodes_of(model) if node.op_type == "SplitToSequence"]:
        if node.domain == "" and not node.outputs[0].is_graph_output():
            _write_slices(node, names)
    return model


def _write_slices(node: ir.Node, names: Names) -> None:
    readers = [reader for reader, _ in node.outputs[0].uses()]
    x, size, axis = node.inputs[0], input_of(node, 1), _axis(node)
    places = [ints(each.inputs[1]) if each.op_type == "SequenceAt" else None for each in readers]
    known = all(place is not None and place[0] >= 0 for place in places)
    if size is None or rank(size) != 0 or axis is None or not known:
        return
    for reader, place in zip(readers, places):
        assert place is not None and reader.graph is not None
        op = Ops()
        step = op.Reshape(op.Cast(size, to=ir.DataType.INT64), [1])
        bounds = [op.Mul(step, np.array([place[0] + i], np.int64)) for i in (0, 1)]
        piece = op.Slice(x, *bounds, [axis])
        insert_made_nodes(reader, op, names)
        substitute(reader.outputs[0], piece, names)
        remove_node(reader, reader.graph)
    assert node.graph is not None
    remove_node(node, node.graph)


def _axis(node: ir.Node) -> int | None:
    """The axis that is split, counted from the front."""
    axes, axis = rank(node.inputs[0]), int(attribute(node, "axis", 0))
    return None if axes is None or not -axes <= axis < axes else axis % axes


def _sizes(node: ir.Node) -> list[int] | None:
    """The sizes of the pieces along the axis; None if they are unknown."""
    shape, axis, split = dims(node.inputs[0]), _axis(node), input_of(node, 1)
    if shape is None or axis is None:
        return None
    given, total = ints(split), shape[axis]
    if split is not None and rank(split) == 1:
        return given if given and len(given) <= _MOST_PIECES else None
    chunk = 1 if split is None else given[0] if given else 0
    if not isinstance(total, int) or chunk < 1 or total > chunk * _MOST_PIECES:
        return None
    return [min(chunk, total - start) for start in range(0, total, chunk)]


def _needs_only_pieces(reader: ir.Node, pieces: int) -> bool:
    """Whether a reader of the sequence can be computed from its pieces, as tensors."""
    if reader.domain != "":
        return False
    if reader.op_type == "SequenceAt":
        position = ints(reader.inputs[1])
        return position is not None and len(position) == 1 and -pieces <= position[0] < pieces
    if reader.op_type == "ConcatFromSequence":
        return pieces > 0
    return reader.op_type == "SequenceLength"


def _take_every_piece(readers: Sequence[ir.Node], pieces: int) -> bool:
    if any(each.op_type == "ConcatFromSequence" for each in readers):
        return True
    places = [ints(each.inputs[1]) or [] for each in readers if each.op_type == "SequenceAt"]
    return {place % pieces for found in places for place in found} == {*range(pieces)}


def _split(op: Ops, node: ir.Node, sizes: Sequence[int]) -> Sequence[ir.Value]:
    """The pieces, as tensors that keep the axis."""
    x, axis = node.inputs[0], _axis(node)
    assert x is not None and x.shape is not None and axis is not None
    pieces = op.many("Split", len(sizes), x, np.array(sizes, np.int64), axis=axis)
    for piece, size in zip(pieces, sizes):
        piece.type = x.type
        piece.shape = ir.Shape([*x.shape[:axis], size, *x.shape[axis + 1 :]])
    return pieces


def _read(op: Ops, reader: ir.Node, pieces: Sequence[ir.Value], squeezed: int | None) -> ir.Value:
    """The result of a reader of the sequence; the axis `squeezed` of the pieces is removed."""
    if reader.op_type == "SequenceLength":
        return op.constant(np.array(len(pieces), np.int64))
    if reader.op_type == "SequenceAt":
        pieces = [pieces[position] for position in ints(reader.inputs[1]) or ()]
    if squeezed is not None:
        pieces = [op.Squeeze(piece, [squeezed]) for piece in pieces]
    if reader.op_type == "SequenceAt":
        return pieces[0]
    axis = int(attribute(reader, "axis"))
    if attribute(reader, "new_axis", 0):
        pieces = [op.Unsqueeze(piece, [axis]) for piece in pieces]
    value: ir.Value = op.Concat(*pieces, axis=axis)
    return value
