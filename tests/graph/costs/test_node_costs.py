"""Costs, compared with published figures and with arithmetic by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, parser

from onward.graph.builder import OpBuilder
from onward.graph.costs.attention_flops import ATTENTION_FLOPS
from onward.graph.costs.flops import NodeCall, Tensor
from onward.graph.costs.node_costs import Cost, Costs, model_costs, node_cost


def costs_of(text: str, **sizes: int) -> Costs:
    header = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
    return model_costs(ir.from_proto(parser.parse_model(f"{header} g {text}")), sizes)


def conv(op: OpBuilder, x: Any, out: int, into: int, kernel: int, stride: int = 1, group: int = 1):  # type: ignore[no-untyped-def]
    """A convolution without bias whose output is as large as its stride lets it."""
    weight = op.initializer(
        f"w{len(op.graph.initializers)}", np.zeros((out, into // group, kernel, kernel), np.float32)
    )
    pads = [kernel // 2] * 4
    return op.Conv(
        x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group
    )


def macs(op: OpBuilder, y: Any) -> float:
    """Multiply-adds of the convolutions, in 1e9."""
    found = model_costs(op.model(y=y)).operators
    return found["Conv"].flops / 2e9


def test_resnet_18_has_the_multiply_adds_that_torchvision_says() -> None:
    op = OpBuilder()
    x = conv(op, op.input("x", "float32", (1, 3, 224, 224)), 64, 3, 7, 2)
    x = op.MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for block in range(2):
            step = stride if block == 0 else 1
            y = conv(op, conv(op, x, out, width, 3, step), out, out, 3)
            x = op.Add(y, conv(op, x, out, width, 1, step) if (step, width) != (1, out) else x)
            width = out
    assert macs(op, x) + 512 * 1000 / 1e9 == pytest.approx(1.814, abs=5e-4)


def test_mobilenet_v2_has_the_multiply_adds_that_torchvision_says() -> None:
    op = OpBuilder()
    x = conv(op, op.input("x", "float32", (1, 3, 224, 224)), 32, 3, 3, 2)
    width = 32
    plan = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    for expand, out, count, first in [*plan, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]:
        for block in range(count):
            hidden = width * expand
            y = conv(op, x, hidden, width, 1) if expand > 1 else x
            y = conv(op, y, hidden, hidden, 3, first if block == 0 else 1, group=hidden)
            x, width = conv(op, y, out, hidden, 1), out
    assert macs(op, conv(op, x, 1280, 320, 1)) + 1280 * 1000 / 1e9 == pytest.approx(0.301, abs=5e-4)


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("(float[2,3,4,5] a, float[2,3,5,6] b) => (y) { y = MatMul(a, b) }", 2 * 6 * 4 * 6 * 5),
        ("(float[5] a, float[5] b) => (y) { y = MatMul(a, b) }", 10),
        ("(float[4,5] a, float[6,5] b, float[6] c) => (y) { y = Gemm<transB=1>(a,b,c) }", 240 + 24),
        ("(float[5,4] a, float[5,6] b) => (y) { y = Gemm<transA=1>(a,b) }", 240),
        ("(float[1,8,9,9] x, float[4,4,3,3] w) => (y) { y = Conv<group=2>(x, w) }", 2 * 196 * 36),
        (
            "(float[1,8,9,9] x, float[4,8,3,3] w, float[4] b) => (y) "
            "{ y = Conv<dilations=[2,2]>(x, w, b) }",
            2 * 100 * 72 + 100,
        ),
        ("(float[1,8,9,9] x, float[8,2,3,3] w) => (y) { y = ConvTranspose<group=2>(x, w) }",
         2 * 648 * 18),
        ('(float[2,3,4] a, float[2,4,5] b) => (y) { y = Einsum<equation="bij,bjk->bik">(a, b) }',
         2 * 2 * 3 * 4 * 5),
        ('(float[3,4] a) => (y) { y = Einsum<equation="ij->ji">(a) }', 0),
        ('(float[3,4] a, float[3,4] b) => (y) { y = Einsum<equation="ij,ij->ij">(a, b) }', 12),
        ('(float[2,3,4] a, float[4,5] b) => (y) { y = Einsum<equation="...j,jk->...k">(a, b) }',
         2 * 2 * 3 * 4 * 5),
        ("(float[7,2,3] x, float[1,20,3] w, float[1,20,5] r) => (y) "
         "{ y = LSTM<hidden_size=5>(x, w, r) }", 14 * (2 * 160 + 16 * 5)),
        ("(float[7,2,3] x, float[2,15,3] w, float[2,15,5] r) => (y) "
         '{ y = GRU<hidden_size=5, direction="bidirectional">(x, w, r) }',
         14 * (2 * 240 + 14 * 2 * 5)),
        ("(float[2,8] x, float[8] s) => (y) { y = LayerNormalization(x, s) }", 16 * 7),
        ("(float[2,8] x, float[8] s) => (y) { y = RMSNormalization(x, s) }", 16 * 5),
        ("(float[2,8] x) => (y) { y = Softmax(x) }", 80),
        ("(float[2,8] x) => (y) { y = ReduceMean(x) }", 16),
        ("(float[1,2,8,8] x) => (y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }", 128),
        ("(float[1,2,8,8] x) => (y) { y = GlobalAveragePool(x) }", 128),
        ("(float[4,1] a, float[1,5] b) => (y) { y = Add(a, b) }", 20),
        ("(float[4] a, float[4] b, float[4] c) => (y) { y = Max(a, b, c) }", 8),
        ("(uint8[4,5] a, int8[5,6] b) => (y) { y = MatMulInteger(a, b) }", 240),
        ("(float[4,5] x) => (y) { y = Transpose(x) }", 0),
        ("(float[8,4,2,6] q, float[8,4,3,6] k, float[8,4,3,7] v) => (y) { y = Attention(q, k, v) }",
         2 * 3 * (8 * 4 * 2 * 6 + 8 * 4 * 2 * 7) + 5 * 8 * 4 * 2 * 3),
    ],
)  # fmt: skip
def test_flops_of_operators(text: str, flops: float) -> None:
    found = costs_of(text)
    assert found.flops == flops
    assert found.total.basis == "rule"


def contrib(
    operator: str, inputs: list[tuple[int, ...] | None], out: tuple[int, ...], **attributes: Any
) -> float:
    """FLOPs of one node of com.microsoft, whose shapes ONNX does not infer."""
    proto = helper.make_node(
        operator, [f"i{n}" for n in range(len(inputs))], ["y"], domain="com.microsoft", **attributes
    )
    node = ir.from_proto(proto)
    assert isinstance(node, ir.Node)
    shapes = {f"i{n}": shape for n, shape in enumerate(inputs)} | {"y": out}
    return node_cost(node, lambda v: Tensor(ir.DataType.FLOAT, shapes[str(v.name)])).flops


def test_flops_of_contrib_operators() -> None:
    assert contrib("FusedMatMul", [(5, 4), (5, 6)], (4, 6), transA=1) == 240
    assert contrib("MatMulNBits", [(4, 32), (8, 1, 16), (8,)], (4, 8), K=32, N=8) == 2 * 32 * 32
    conv = [(1, 3, 8, 8), (4, 3, 3, 3), (4,)]
    assert contrib("FusedConv", conv, (1, 4, 6, 6), activation="Relu") == 144 * (54 + 2)  # type: ignore[arg-type]
    attention = [(2, 7, 12), (2, 9, 12), (2, 9, 12)]
    assert contrib("MultiHeadAttention", attention, (2, 7, 12), num_heads=3) == (  # type: ignore[arg-type]
        2 * 9 * (168 + 168) + 5 * 2 * 3 * 7 * 9
    )
    grouped = [(2, 7, 12), (2, 7, 4), (2, 7, 4), (2, 1, 9, 4)]
    assert contrib("GroupQueryAttention", grouped, (2, 7, 12), num_heads=3) == (  # type: ignore[arg-type]
        2 * 16 * (168 + 168) + 5 * 2 * 3 * 7 * 16
    )
    packed = contrib("Attention", [(2, 7, 12), (12, 36), (36,)], (2, 7, 12), num_heads=3)
    assert packed == 2 * 14 * 432 + 14 * 36 + 2 * 7 * 336 + 5 * 42 * 7


def test_bytes_of_a_node() -> None:
    found = costs_of("(float[4,5] a, float[5] b) => (y) { y = Add(a, b) }").nodes[0].cost
    assert (found.read, found.written) == (80 + 20, 80)


def test_views_move_nothing_and_gather_reads_its_result() -> None:
    text = """(float[1000,8] t, int64[3] i) => (y)
        { r = Gather(t, i)
          s = Constant<value_ints=[-1]>()
          y = Reshape(r, s) }"""
    gather, _, reshape = (node.cost for node in costs_of(text).nodes)
    assert (gather.read, gather.written) == (96 + 24, 96)
    assert reshape == Cost()


def test_a_dynamic_dimension_has_the_given_size_or_one() -> None:
    text = "(float[batch,4,n] x) => (y) { y = Relu(x) }"
    found = costs_of(text, batch=8)
    assert found.flops == 8 * 4
    assert found.sizes == {"batch": 8, "n": 1}
    assert costs_of(text, **{"x:0": 3, "n": 5}).flops == 3 * 4 * 5


def test_shapes_that_are_computed_are_followed() -> None:
    text = """(float[batch,seq,8] x) => (y)
        { s = Shape(x)
          i = Constant<value_ints=[0]>()
          b = Gather(s, i)
          m = Constant<value_ints=[-1]>()
          t = Concat<axis=0>(b, m)
          a = Abs(b)
          z = ConstantOfShape(a)
          r = Reshape(x, t)
          q = Relu(z)
          y = Add(r, r) }"""
    found = costs_of(text, batch=2, seq=3)
    assert found.count("unknown") == 0
    assert found.flops == 1 + 2 + 2 * 3 * 8  # Abs, which ONNX does not follow; Relu; Add


def test_a_loop_with_a_known_bound_counts_every_iteration() -> None:
    text = """(float[4] x) => (y)
        { n = Constant<value_int=10>()
          c = Constant<value=bool {1}>()
          y = Loop(n, CONDITION, x)
              <body = b (int64 i, bool ci, float[4] v) => (bool co, float[4] w)
                  { co = Identity(ci)
                    w = Relu(v) }> }"""
    bound = costs_of(text.replace("CONDITION", ""))
    assert (bound.flops, bound.total.basis) == (40, "rule")
    assert costs_of(text.replace("CONDITION", "c")).flops == 40
    free = costs_of(text.replace("CONDITION", "c").replace("Identity(ci)", "Not(ci)"))
    assert (free.flops, free.total.basis) == (5, "once")


def test_an_if_costs_its_dearer_branch() -> None:
    text = """(bool c, float[4] x) => (y)
        { y = If(c) <then_branch = a () => (float[4] p) { p = Sigmoid(x) },
                     else_branch = b () => (float[4] q) { q = Relu(x) }> }"""
    assert costs_of(text).flops == 16


def test_the_basis_of_unknown_operators_and_shapes() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Odd", ["x"], ["y"], domain="some.where"),
            helper.make_node("Odd", ["y"], ["z"], domain="some.where"),
            helper.make_node("Relu", ["z"], ["w"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, None)],
        value_info=[helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("some.where", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    found = model_costs(ir.from_proto(model))
    assert [node.cost.basis for node in found.nodes] == ["estimate", "unknown", "unknown"]
    assert found.nodes[0].operator == "some.where::Odd"
    assert found.count("estimate") == 1


def test_parameters_are_counted_and_the_model_is_unchanged() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    model = op.model(y=op.MatMul(x, op.initializer("w", np.ones((4, 3), np.float32))))
    found = model_costs(model, {"batch": 2})
    assert (found.parameters, found.parameter_bytes, found.flops) == (12, 48, 48)
    assert str(model.graph.inputs[0].shape) == "[batch,4]"


def test_a_local_function_costs_what_its_body_does() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
        g (float[4] x) => (float[4] y) { y = local.twice(x) }
        <opset_import: ["" : 20], domain: "local"> twice (a) => (b) { b = Add(a, a) }"""
    assert model_costs(ir.from_proto(parser.parse_model(text))).flops == 4


def test_flops_of_attention_operators() -> None:
    assert len(ATTENTION_FLOPS) == 6
    node = ir.Node("", "Attention", [], num_outputs=1)
    q = Tensor(ir.DataType.FLOAT, (1, 2, 6))
    rule = ATTENTION_FLOPS.find("", "Attention", 23)
    assert rule is not None
    assert rule(NodeCall(node, (q, q, q), (q,))) == 2 * 2 * 24 + 5 * 2 * 2
