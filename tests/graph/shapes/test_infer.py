"""Shape inference, and sizes that would break it."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.graph.shapes.infer import fix_dimensions, infer_missing, infer_shapes


def parsed(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def shape_of(model: ir.Model, name: str) -> str:
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs:
                if value.name == name:
                    return f"{value.dtype}{value.shape}" if value.shape is not None else "None"
    raise KeyError(name)


def test_types_and_shapes_are_inferred() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float["n", 3] x, float[3, 4] w) => (float[] y)
        { a = MatMul(x, w) b = Transpose(a) y = ReduceSum<keepdims = 0>(b) }"""
    )
    infer_shapes(model)
    assert shape_of(model, "a") == "FLOAT[n,4]"
    assert shape_of(model, "b") == "FLOAT[4,n]"


def test_shapes_that_are_computed_are_followed() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float["n", 6] x) => (float[a, b, c] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] rest = {2, 3}>
        {
            s = Shape(x)
            n = Slice(s, zero, one)
            t = Concat<axis = 0>(n, rest)
            r = Reshape(x, t)
            y = Relu(r)
        }"""
    )
    infer_shapes(model)
    assert shape_of(model, "r") == "FLOAT[n,2,3]"


def test_an_initializer_that_a_feed_may_override_is_not_followed() -> None:
    text = """<ir_version: 8, opset_import: ["": 21]>
        g (float[6] x{}) => (float[a, b] y) <int64[2] t = {{2, 3}}>
        {{ r = Reshape(x, t) y = Relu(r) }}"""
    fixed, open_ = parsed(text.format("")), parsed(text.format(", int64[2] t"))
    assert shape_of(infer_shapes(fixed), "r") == "FLOAT[2,3]"
    assert "2" not in shape_of(infer_shapes(open_), "r")


def test_unknown_operators_keep_known_shapes() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21, "mine": 1]>
        g (float[2, 3] x) => (float[a, b] y)
        <float[4, 5] known>
        { known = mine.Magic(x) z = Neg(known) y = Relu(z) }"""
    )
    infer_shapes(model)
    assert shape_of(model, "z") == "FLOAT[4,5]"


def test_declared_shapes_are_kept() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float["n", 3] x) => (float["m", 3] y, float z) { y = Relu(x) z = Neg(x) }"""
    )
    infer_shapes(model)
    y, z = model.graph.outputs
    assert (str(y.shape), str(z.shape)) == ("[m,3]", "[]")


def test_an_output_without_a_shape_is_inferred() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float["n", 3] x) => (float[?, ?] y) { y = Relu(x) }"""
    )
    assert str(infer_shapes(model).graph.outputs[0].shape) == "[n,3]"


def test_bodies_of_loops_are_inferred() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (int64 m, bool c, float[2] x) => (float[a] y)
        {
            y = Loop<body = body (int64 i, bool before, v) => (bool after, w)
                { after = Identity(before) d = Neg(v) w = Add(d, x) }>(m, c, x)
        }"""
    )
    infer_shapes(model)
    (loop,) = model.graph
    body = loop.attributes["body"].as_graph()
    assert body.inputs[2].dtype == ir.DataType.FLOAT
    assert body[1].outputs[0].dtype == ir.DataType.FLOAT


def test_a_model_above_two_gigabytes_is_inferred() -> None:
    """The weight is 4 GB that are never written: only its type goes to ONNX."""
    weight = ir.LazyTensor(
        lambda: pytest.fail("the weight was read"),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape([1 << 15, 1 << 15]),
        name="w",
    )
    op = OpBuilder()
    x = op.input("x", "float32", ("n", 1 << 15))
    w = ir.val("w", dtype=ir.DataType.FLOAT, shape=weight.shape, const_value=weight)
    op.graph.register_initializer(w)
    node = ir.node("MatMul", [x, w])
    node.outputs[0].name, node.outputs[0].dtype = "product", ir.DataType.FLOAT
    op.graph.append(node)
    model = op.model(y=op.Relu(node.outputs[0]))
    assert shape_of(infer_shapes(model), "product") == f"FLOAT[n,{1 << 15}]"


BOMBS = {  # nodes, and what is inferred of one of their results
    "Range": ("r = Range(zero, huge, one) q = Cast<to = 1>(r) y = Relu(q)", "q", "FLOAT[huge]"),
    "ConstantOfShape": (
        "r = ConstantOfShape(size) q = Cast<to = 7>(r) a = Add(q, q) y = Neg(a)",
        "a",
        "INT64[huge]",
    ),
    "Expand": (
        "r = Expand(one, size) a = Mul(r, r) s = Slice(a, start, size) y = Cast<to = 1>(s)",
        "s",
        "INT64[huge]",
    ),
    "a product of sizes": (
        "s = Mul(size, size) r = ConstantOfShape(s) q = Squeeze(r) y = Relu(q)",
        "s",
        "INT64[1]",
    ),
    "an input": (
        "a = Add(x, x) b = Unsqueeze(a, start) y = Cast<to = 1>(b)",
        "b",
        "INT64[1,huge]",
    ),
}


@pytest.mark.parametrize(("body", "name", "shape"), BOMBS.values(), ids=BOMBS)
def test_a_huge_vector_is_not_followed(body: str, name: str, shape: str) -> None:
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 21]>
        g (int64[{1 << 50}] x) => (float y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 huge = {{{1 << 50}}},
         int64[1] size = {{{1 << 50}}}, int64[1] start = {{0}}>
        {{ {body} }}"""
    )
    assert shape_of(infer_shapes(model), name) == shape.replace("huge", str(1 << 50))


def test_an_invalid_model_is_left_to_the_engine() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float[2, 3] x) => (float[a, b] y) { z = MatMul(x, x) y = Relu(z) }"""
    )
    assert shape_of(infer_shapes(model), "y") == "FLOAT[a,b]"


def heads(op: OpBuilder, x: Any) -> Any:
    return op.Reshape(op.Exp(x), op.Concat(op.Shape(x, end=1), [2, 4], axis=0))


def test_a_dimension_is_fixed_by_its_name() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 8))
    model = fix_dimensions(op.model(y=heads(op, x)), {"batch": 5, "nobody": 3})
    assert [str(value.shape) for value in (*model.graph.inputs, *model.graph.outputs)] == [
        "[5,8]",
        "[5,2,4]",
    ]
    assert all(isinstance(dim, int) for node in model.graph for dim in node.outputs[0].shape or ())


def test_a_dimension_is_fixed_by_its_denotation() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("n", 8))
    assert x.shape is not None
    x.shape = ir.Shape(["n", 8], ["DATA_BATCH", None])
    model = fix_dimensions(op.model(y=op.Exp(x)), {}, {"DATA_BATCH": 7})
    assert str(model.graph.inputs[0].shape) == "[7,8]"
    assert str(model.graph.outputs[0].shape) == "[7,8]"
    assert model.graph.inputs[0].shape is not None
    assert model.graph.inputs[0].shape.get_denotation(0) == "DATA_BATCH"


def test_models_with_functions_are_inferred() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21, "local": 1]>
        g (float["n", 3] x) => (float[a, b] y) { z = local.twice(x) w = Neg(z) y = Relu(w) }
        <domain: "local", opset_import: ["": 21]> twice (a) => (b) { b = Add(a, a) }"""
    )
    assert shape_of(infer_shapes(model), "w") == "FLOAT[n,3]"


def test_an_unknown_size_of_attention_is_not_zero() -> None:
    """onnx 1.23 infers 0 for it, and passes it on to whatever reads the result."""
    op = OpBuilder(opset=23)
    q, k, v = (op.input(name, "float32", ["batch", name, f"{name}_size"]) for name in "qkv")
    y = op.Attention(q, k, v, q_num_heads=4, kv_num_heads=2)
    z = op.Relu(y)
    for value in (y, z):
        value.type = value.shape = None
    infer_shapes(op.model(z=z))
    for value in (y, z):
        assert value.shape is not None
        assert list(value.shape)[:2] == ["batch", "q"]
        assert not isinstance(value.shape[2], int)


# -- ranks that operators demand -------------------------------------------------------------------


def test_a_convs_input_has_its_weights_rank() -> None:
    """An If whose branches differ has no rank by itself; what reads it says what it must be."""
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[1,2,n,1] x, float[1,2,n] z) => (float[1,3,m] y)
        <float[3,2,1] w = {1, 2, 3, 4, 5, 6}> {
            h = If (c) <
                then_branch = t () => (p) { axes = Constant <value = int64[1] {3}> ()
                                            p = Squeeze (x, axes) },
                else_branch = e () => (q) { q = Identity (x) }>
            r = Relu (h)
            y = Conv (r, w)
        }"""
    )
    infer_shapes(model)
    assert shape_of(model, "r").count(",") == 2 and shape_of(model, "h").count(",") == 2


def test_an_stft_has_four_axes() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,n] x, int64 step, float[400] window) => (float[k] y) {
            axes = Constant <value = int64[2] {1, 2}> ()
            s = STFT (x, step, window)
            p = ReduceSumSquare (s)
            y = Squeeze (p, axes)
        }"""
    )
    infer_shapes(model)
    assert shape_of(model, "s").count(",") == 3


def test_a_fully_typed_graph_is_not_inferred_again(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OpBuilder()
    model = op.model(y=op.Neg(op.input("x", "float32", (2, 3))))
    monkeypatch.setattr(
        "onward.graph.shapes.infer.infer_shapes", lambda model: pytest.fail("asked")
    )
    infer_missing(model)
    model.graph.outputs[0].shape = None
    monkeypatch.setattr("onward.graph.shapes.infer.infer_shapes", lambda model: "asked")
    assert infer_missing(model) == "asked"


def test_elements_of_a_sequence_have_separate_sizes() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float["n", 3] x, int64[2] sizes) => (float["k", 3] y) {
            s = SplitToSequence<axis = 0>(x, sizes)
            i = Constant<value_int = 0>()
            j = Constant<value_int = 1>()
            a = SequenceAt(s, i)
            b = SequenceAt(s, j)
            y = Concat<axis = 0>(a, b)
        }"""
    )
    infer_shapes(model)
    assert shape_of(model, "a") == shape_of(model, "b") == "FLOAT[None,3]"
