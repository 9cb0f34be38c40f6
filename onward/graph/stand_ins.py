"""Operators that ONNX infers nothing about, said for its inference in operators of like shapes.

Those that onnxruntime's optimiser writes into transformers (com.microsoft), and some of ONNX's own.
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
_EXTRA = "onward.extra"  # the name of nodes that are not the graph's


def like_first(node: ir.Node) -> list[ir.Value]:
    """The node's outputs that surely have the type and shape of its first input."""
    indices = _LIKE_FIRST.get((node.domain, node.op_type), ())
    return [node.outputs[i] for i in indices if i < len(node.outputs) and node.outputs[i].name]


def replace(node: ir.Node, proto: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Rewrite the node's message as its stand-in; what else must follow it."""
    outputs = [str(value.name) for value in like_first(node)]
    if outputs:
        first = proto.input[0]
        proto.CopyFrom(onnx.helper.make_node("Identity", [first], outputs[:1], name=proto.name))
        return [onnx.helper.make_node("Identity", [first], [y], name=_EXTRA) for y in outputs[1:]]
    if node.domain == "com.microsoft" and node.op_type in ("FusedMatMul", "TransposeMatMul"):
        _as_einsum(node, proto)
    return []


def _as_einsum(node: ir.Node, proto: onnx.NodeProto) -> None:
    """A product of turned matrices; a batch that moves has no such spelling."""
    flags = {name: attribute.value for name, attribute in node.attributes.items()}
    b = node.inputs[1]
    if flags.get("transBatchA") or flags.get("transBatchB"):
        return
    left = "...km" if flags.get("transA") else "...mk"
    right = "nk" if flags.get("transB") else "kn"
    alone = b is not None and b.shape is not None and len(b.shape) == 2
    equation = f"{left},{right if alone else '...' + right}->...mn"
    made = onnx.helper.make_node("Einsum", proto.input, proto.output, proto.name, equation=equation)
    proto.CopyFrom(made)


def insert(graph: onnx.GraphProto, after: dict[int, list[onnx.NodeProto]]) -> None:
    """Put further nodes behind those at these places."""
    nodes = [each for i, node in enumerate(graph.node) for each in (node, *after.get(i, ()))]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def own(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Without the nodes that were inserted."""
    return [node for node in nodes if node.name != _EXTRA]
