"""For shape inference only: stand-ins for operators whose shapes ONNX does not infer.

Operators that onnxruntime's optimiser writes into transformers (com.microsoft), and some of ONNX's.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

# (domain, operator) -> its outputs that have the type and shape of its first input
_LIKE_FIRST = {
    ("", "GroupNormalization"): (0,),
    ("", "SimplifiedLayerNormalization"): (0,),
    ("com.microsoft", "SimplifiedLayerNormalization"): (0,),
    ("com.microsoft", "SkipLayerNormalization"): (0, 3),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): (0, 3),
    ("com.microsoft", "SkipGroupNorm"): (0, 1),
    **{
        ("com.microsoft", operator): (0,)
        for operator in (
            *("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "BiasAdd", "BiasSoftmax", "GroupNorm"),
            *("BiasDropout", "RotaryEmbedding"),
        )
    },
}
HIDDEN = "onward.hidden"  # a domain that inference does not know
_EXTRA = "onward.extra"  # the name of nodes that are not the graph's


def like_first(node: ir.Node) -> list[ir.Value]:
    """The node's outputs that have the type and shape of its first input."""
    indices = _LIKE_FIRST.get((node.domain, node.op_type), ())
    return [node.outputs[i] for i in indices if i < len(node.outputs) and node.outputs[i].name]


def substitute_node(node: ir.Node, proto: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Rewrite the node's message as its substitute; returns nodes to insert after it."""
    outputs = [str(value.name) for value in like_first(node)]
    if outputs:
        first = proto.input[0]
        proto.CopyFrom(onnx.helper.make_node("Identity", [first], outputs[:1], name=proto.name))
        return [onnx.helper.make_node("Identity", [first], [y], name=_EXTRA) for y in outputs[1:]]
    if node.domain == "com.microsoft" and node.op_type in ("FusedMatMul", "TransposeMatMul"):
        _as_einsum(node, proto)
    if changes_length(node):
        proto.domain = HIDDEN
    return []


def changes_length(node: ir.Node) -> bool:
    """Whether a DFT changes the length; ONNX assumes that an unknown length stays."""
    if node.op_type != "DFT" or node.domain != "":
        return False
    return bool(node.attributes.get_int("onesided", 0)) or _input(node, 1) is not None


def transform_shape(node: ir.Node) -> ir.Shape | None:
    """The output shape of such a DFT: n, or n // 2 + 1 if it is one-sided."""
    x = node.inputs[0] if node.inputs else None
    if not changes_length(node) or x is None or x.shape is None or len(x.shape) < 2:
        return None
    inverse, onesided = (node.attributes.get_int(name, 0) for name in ("inverse", "onesided"))
    sizes: list[int | ir.SymbolicDim | None] = list(x.shape)
    sizes[-1] = 1 if inverse and onesided else 2
    axis = _number(_input(node, 2), node.attributes.get_int("axis", -2))
    if axis is None or not -len(sizes) <= axis < len(sizes):
        return ir.Shape([*[None] * (len(sizes) - 1), sizes[-1]])
    read = x.shape[axis]
    whole = 2 * (read - 1) if isinstance(read, int) and inverse and onesided else read
    length = _number(_input(node, 1), whole if isinstance(whole, int) else None)
    sizes[axis] = length // 2 + 1 if length is not None and onesided and not inverse else length
    return ir.Shape(sizes)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _number(value: ir.Value | None, absent: int | None) -> int | None:
    """A constant's number; None if it is computed in the run."""
    if value is None:
        return absent
    known = value.const_value is not None and not value.is_graph_input()
    return int(value.const_value.numpy().item()) if known else None  # type: ignore[union-attr]


def _as_einsum(node: ir.Node, proto: onnx.NodeProto) -> None:
    """Write a matrix product with transposes as Einsum; transposed batches have no such form."""
    flags = {name: attribute.value for name, attribute in node.attributes.items()}
    b = node.inputs[1]
    if flags.get("transBatchA") or flags.get("transBatchB"):
        return
    left = "...km" if flags.get("transA") else "...mk"
    right = "nk" if flags.get("transB") else "kn"
    is_matrix = b is not None and b.shape is not None and len(b.shape) == 2
    equation = f"{left},{right if is_matrix else '...' + right}->...mn"
    made = onnx.helper.make_node("Einsum", proto.input, proto.output, proto.name, equation=equation)
    proto.CopyFrom(made)


def insert_nodes_after(graph: onnx.GraphProto, after: dict[int, list[onnx.NodeProto]]) -> None:
    """Insert nodes after those at these indices."""
    nodes = [each for i, node in enumerate(graph.node) for each in (node, *after.get(i, ()))]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def without_inserted(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes without those that were inserted."""
    return [node for node in nodes if node.name != _EXTRA]
