"""onward.gradient: what it takes, what it gives, what it refuses."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.errors import MissingGradient, OptionError
from onward.gradients.model import extend, gradient, lift_weights, reached
from onward.gradients.rule import GradientTable
from onward.gradients.table import GRADIENTS
from onward.graph.scopes import graphs_of
from onward.passes.pipelines import PREPARE
from onward.testing import GradientWrong, check_gradient

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]])


def built(write: Any, shape: Any = (2, 3), dtype: str = "float64", **outputs: Any) -> ir.Model:
    op = onward.OpBuilder()
    return op.model(y=write(op, op.input("x", dtype, shape)))


def run(model: ir.Model, names: list[str], **feeds: Any) -> list[Any]:
    return onward.InferenceSession(model).run(names, feeds)


def squared_sum(op: Any, x: Any) -> Any:
    return op.ReduceSum(op.Mul(x, x), keepdims=0)


# -- outputs ---------------------------------------------------------------------------------------


def test_a_scalar_has_a_gradient_by_itself() -> None:
    model = gradient(built(squared_sum), "y", "x")
    y, dx = run(model, ["y", "x_grad"], x=X)
    np.testing.assert_allclose(y, (X * X).sum())
    np.testing.assert_allclose(dx, 2 * X)


def test_several_scalars_are_differentiated_as_their_sum() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float64", (2, 3))
    model = op.model(a=squared_sum(op, x), b=op.ReduceSum(x, keepdims=0))
    (dx,) = run(gradient(model, ["a", "b"], ["x"]), ["x_grad"], x=X)
    np.testing.assert_allclose(dx, 2 * X + 1)


def test_an_output_of_any_shape_takes_a_cotangent() -> None:
    model = gradient(built(lambda op, x: op.Mul(x, x)), {"y": "dy"}, "x")
    (dx,) = run(model, ["x_grad"], x=X, dy=X)
    np.testing.assert_allclose(dx, 2 * X * X)


def test_an_output_with_a_shape_needs_a_cotangent() -> None:
    with pytest.raises(OptionError, match=r"only a scalar has a gradient by itself\ngive the cot"):
        gradient(built(lambda op, x: op.Mul(x, x)), "y", "x")


def test_an_output_must_be_a_float() -> None:
    model = built(lambda op, x: op.Cast(op.ReduceSum(x, keepdims=0), to=7))
    with pytest.raises(OptionError, match="'y' is not of a float type"):
        gradient(model, "y", "x")


# -- with respect to -------------------------------------------------------------------------------


def with_weight() -> ir.Model:
    op = onward.OpBuilder()
    x, w = op.input("x", "float64", (2, 3)), op.initializer("w", np.array([1.0, 2.0, 3.0]))
    hidden = op.Mul(x, w)
    hidden.name = "hidden"
    return op.model(y=op.ReduceSum(op.Sin(hidden), keepdims=0))


def test_inputs_initializers_and_intermediate_values_have_gradients() -> None:
    model = gradient(with_weight(), "y", ["x", "w", "hidden"])
    dx, dw, dh = run(model, ["x_grad", "w_grad", "hidden_grad"], x=X)
    w = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(dh, np.cos(X * w))
    np.testing.assert_allclose(dx, np.cos(X * w) * w)
    np.testing.assert_allclose(dw, (np.cos(X * w) * X).sum(0))


def test_an_initializer_stays_one_and_is_not_folded_into_others() -> None:
    model = gradient(with_weight(), "y", ["w"])
    assert "w" in model.graph.initializers
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_equal_initializers_stay_two() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float64", (3,))
    a, b = (op.initializer(name, np.zeros(3)) for name in "ab")
    total = op.ReduceSum(op.Mul(op.Add(x, a), op.Add(x, b)), keepdims=0)
    model = gradient(op.model(y=total), "y", ["a", "b"])
    assert {"a", "b"} <= set(model.graph.initializers)


def test_names_that_the_model_lacks_are_refused() -> None:
    with pytest.raises(OptionError, match=r"the model has no value 'z'\nit has 'x'"):
        gradient(built(squared_sum), "y", "z")


def test_integers_have_no_gradient() -> None:
    op = onward.OpBuilder()
    i = op.input("i", "int64", (2,))
    model = op.model(y=op.ReduceSum(op.Cast(i, to=1), keepdims=0))
    with pytest.raises(OptionError, match="'i' is INT64: only float values have gradients"):
        gradient(model, "y", "i")


def test_a_value_without_influence_on_the_output_is_refused() -> None:
    op = onward.OpBuilder()
    x, z = op.input("x", "float64", (2,)), op.input("z", "float64", (2,))
    model = op.model(y=op.ReduceSum(x, keepdims=0), other=op.Neg(z))
    with pytest.raises(OptionError, match=r"'y' does not depend on 'z', .*\nleave 'z' out"):
        gradient(model, "y", "z")


def test_extend_can_return_zeros_for_unused_values() -> None:
    op = onward.OpBuilder()
    x, z = op.input("x", "float64", (2,)), op.initializer("z", np.ones((3, 2)))
    inputs = {"x": x, "n": op.input("n", "float64", ("n",))}
    model = PREPARE(op.model(y=op.ReduceSum(op.Mul(x, x), keepdims=0), other=op.Neg(z)))
    with pytest.raises(OptionError, match=r"'y' does not depend on 'z', .*\nleave 'z' out"):
        extend(model.clone(), {"y": None}, ["x", "z"], GRADIENTS)
    names = extend(model, {"y": None}, [*inputs, "z"], GRADIENTS, allow_unused=True)
    assert names == {"x": "x_grad", "n": "n_grad", "z": "z_grad"}
    found = run(model, list(names.values()), x=X[0, :2], n=np.ones(5))
    for gradient_, wanted in zip(found, (2 * X[0, :2], np.zeros(5), np.zeros((3, 2)))):
        np.testing.assert_array_equal(gradient_, wanted)


def test_extend_can_omit_gradients_of_zeros() -> None:
    op = onward.OpBuilder()
    x, z = op.input("x", "float64", (2,)), op.initializer("z", np.ones(2))
    model = op.model(y=op.ReduceSum(op.Where(op.Equal(z, np.ones(1)), x, 0.0), keepdims=0))
    assert list(extend(PREPARE(model.clone()), {"y": None}, ["x", "z"], GRADIENTS)) == ["x", "z"]
    found = extend(PREPARE(model.clone()), {"y": None}, ["x", "z"], GRADIENTS, omit_zeros=True)
    assert found == {"x": "x_grad"}


def test_reached_lists_names_without_changing_the_model() -> None:
    op = onward.OpBuilder()
    x, z = op.input("x", "float64", (2,)), op.initializer("z", np.ones(2))
    hidden = op.Where(op.Equal(z, np.ones(1)), x, 0.0)
    hidden.name = "hidden"
    model = op.model(y=op.ReduceSum(hidden, keepdims=0))
    before = ir.to_proto(model)
    assert reached(model, "y", ["z", "x"]) == ["x"]
    assert reached(model, "hidden", ["z", "x"]) == ["x"]  # of any shape, no output
    assert ir.to_proto(model) == before


def test_the_first_of_two_weights_with_one_name_is_used() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (bool c, float[2] x) => (float[2] y) {
      y = If (c) <
        then_branch = t () => (float[2] p) <float[2] w = {1, 2}> { p = Mul(x, w) },
        else_branch = e () => (float[2] q) <float[2] w = {3, 4}> { q = Mul(x, w) }
      >
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    graphs = graphs_of(model)
    first = graphs[1].initializers["w"]
    lift_weights(model, ["w"])
    assert [list(graph.initializers) for graph in graphs] == [["w"], [], ["w_1"]]
    assert model.graph.initializers["w"] is first
    original = onnx.parser.parse_model(text)
    lift_weights(ir.from_proto(original), ["w"])
    assert original == onnx.parser.parse_model(text)  # it stays as it was
    for which in (True, False):
        feeds = {"c": np.array(which), "x": np.ones(2, np.float32)}
        check_gradient(onnx.parser.parse_model(text), feeds, wrt=["w"])


def test_through_a_piecewise_constant_operator_the_gradient_is_zero() -> None:
    model = built(lambda op, x: op.ReduceSum(op.Floor(x), keepdims=0))
    (dx,) = run(gradient(model, "y", "x"), ["x_grad"], x=X)
    np.testing.assert_array_equal(dx, np.zeros_like(X))


def test_an_output_that_is_an_input_passes_its_cotangent_on() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float64", (2, 3))
    model = op.model(y=op.Mul(x, x), same=x)
    extended = gradient(model, {"y": "dy", "same": "dsame"}, "x")
    (dx,) = run(extended, ["x_grad"], x=X, dy=np.ones_like(X), dsame=3 * np.ones_like(X))
    np.testing.assert_allclose(dx, 2 * X + 3)


def test_an_output_that_is_a_weight_or_an_input_itself_has_a_gradient() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        g (double[2,3] x) => (double[2,3] x, double[3] w, double[2,3] y) <double[3] w = {1, 2, 3}> {
            y = Mul (x, w)
        }"""
    cotangents = {"x": "given_x", "w": "given_w", "y": "given_y"}
    model = gradient(onnx.parser.parse_model(text), cotangents, ["x", "w", "y"])
    ones = {"given_x": np.ones_like(X), "given_w": np.ones(3), "given_y": np.ones_like(X)}
    dx, dw, dy = run(model, ["x_grad", "w_grad", "y_grad"], x=X, **ones)
    np.testing.assert_allclose(dx, np.array([[2.0, 3.0, 4.0]] * 2))
    np.testing.assert_allclose(dw, X.sum(0) + 1)
    np.testing.assert_allclose(dy, np.ones_like(X))


@pytest.mark.parametrize("name", ["x", "dy"])
def test_a_cotangent_with_a_taken_name_is_refused(name: str) -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float64", (2,))
    model = op.model(y=op.Sin(x), z=op.Cos(x))
    with pytest.raises(OptionError, match=rf"the cotangent of 'z' cannot be named '{name}': .*\n"):
        gradient(model, {"y": "dy", "z": name}, "x")


def test_a_cotangent_may_have_the_name_that_the_gradient_would_have() -> None:
    model = gradient(built(lambda op, x: op.Sin(x)), {"y": "x_grad"}, "x")
    assert [value.name for value in model.graph.outputs] == ["y", "x_grad_grad"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_a_name_that_is_taken_gets_longer() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float64", (2,))
    model = op.model(y=op.ReduceSum(x, keepdims=0), x_grad=op.Neg(x))
    assert gradient(model, "y", "x").graph.outputs[-1].name == "x_grad_grad"


def test_weights_inside_a_subgraph_have_gradients() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        g (double[2,3] x, bool c) => (double y) {
            h = If (c) <
                then_branch = t () => (double[2,3] a) <double[3] inner = {1, 2, 3}> {
                    a = Mul (x, inner)
                },
                else_branch = e () => (double[2,3] b) { b = Neg (x) }
            >
            y = ReduceSum <keepdims = 0> (h)
        }"""
    model = gradient(onnx.parser.parse_model(text), "y", ["inner", "x"])
    for taken, wanted in ((True, X.sum(0)), (False, np.zeros(3))):
        (dw,) = run(model, ["inner_grad"], x=X, c=np.array(taken))
        np.testing.assert_allclose(dw, wanted)


def test_a_weight_that_a_subgraph_returns_has_a_gradient() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        g (double[2,3] x, bool c) => (double y) {
            w = If (c) <
                then_branch = t () => (double[3] inner) <double[3] inner = {1, 2, 3}> { },
                else_branch = e () => (double[3] b) <double[3] b = {0, 0, 0}> { }
            >
            h = Mul (x, w)
            y = ReduceSum <keepdims = 0> (h)
        }"""
    model = gradient(onnx.parser.parse_model(text), "y", "inner")
    for taken, wanted in ((True, X.sum(0)), (False, np.zeros(3))):
        (dw,) = run(model, ["inner_grad"], x=X, c=np.array(taken))
        np.testing.assert_allclose(dw, wanted)


# -- rules -----------------------------------------------------------------------------------------


def cubed() -> ir.Model:
    op = onward.OpBuilder()
    x = op.input("x", "float64", (2,))
    (y,) = (op.node("Cube", [x], {}, domain="mine"),)
    y.type, y.shape = x.type, x.shape
    return op.model(y=op.ReduceSum(y, keepdims=0))


def test_an_operator_without_a_rule_is_named_with_what_to_do() -> None:
    with pytest.raises(MissingGradient, match=r"no gradient rule for mine::Cube \(node ") as caught:
        gradient(cubed(), "y", "x")
    assert "rules=GRADIENTS | mine" in str(caught.value)


def test_a_users_rule_is_used() -> None:
    mine = GradientTable()

    @mine("Cube", domain="mine")
    def cube(op: Any, node: ir.Node, dy: ir.Value) -> Any:
        """dx = 3 x^2 dy"""
        (x,) = node.inputs
        return op.Mul(dy, op.Mul(op.Mul(x, x), 3.0))

    model = gradient(cubed(), "y", "x", rules=GRADIENTS | mine)
    assert "x_grad" in [value.name for value in model.graph.outputs]


def test_two_rules_for_one_operator_are_refused() -> None:
    mine = GradientTable()
    mine("Sin")(lambda op, node, dy: dy)
    with pytest.raises(ValueError, match=r"ai\.onnx::Sin since 1 is entered twice"):
        GRADIENTS | mine


# -- what it is made of ----------------------------------------------------------------------------


def test_stock_onnxruntime_loads_the_model_as_it_is_saved() -> None:
    model = gradient(built(squared_sum, dtype="float32"), "y", "x")
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    (dx,) = session.run(["x_grad"], {"x": X.astype(np.float32)})
    np.testing.assert_allclose(dx, 2 * X.astype(np.float32))


def test_only_requested_gradients_are_computed() -> None:
    op = onward.OpBuilder()
    x, w = op.input("x", "float64", (2, 3)), op.initializer("w", np.ones((3, 4)))
    model = op.model(y=op.MatMul(x, w))
    both, one = (gradient(model, {"y": "dy"}, names) for names in (["x", "w"], ["w"]))
    assert len(list(one.graph)) < len(list(both.graph))
    assert [node.op_type for node in one.graph].count("MatMul") + [
        node.op_type for node in one.graph
    ].count("Gemm") == 2


def test_known_shapes_leave_no_shape_arithmetic() -> None:
    op = onward.OpBuilder()
    x, b = op.input("x", "float64", (4, 3)), op.initializer("b", np.ones(3))
    y = op.ReduceMean(op.Softmax(op.Reshape(op.Add(x, b), [2, 6]), axis=-1), keepdims=0)
    kinds = {node.op_type for node in gradient(op.model(y=y), "y", ["x", "b"]).graph}
    assert not kinds & {"Shape", "NonZero", "Equal", "Concat", "ConstantOfShape"}


def test_a_size_that_has_a_name_needs_no_shape_arithmetic_either() -> None:
    op = onward.OpBuilder()
    h = op.input("x", "float32", ("batch", 4))
    for i in range(3):
        w, b = (
            op.initializer(f"w{i}", np.ones((4, 4), "f")),
            op.initializer(f"b{i}", np.ones(4, "f")),
        )
        h = op.Tanh(op.Add(op.MatMul(h, w), b))
    model = gradient(op.model(y=h), {"y": "dy"}, ["w0", "b0", "w2", "b2"])
    assert not {node.op_type for node in model.graph} & {"Shape", "NonZero", "Equal", "Expand"}


def test_the_callers_model_stays_as_it_was() -> None:
    model = built(squared_sum)
    before = ir.to_proto(model).SerializeToString()
    gradient(model, "y", "x")
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_is_not_changed(collecting: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable() if collecting else gc.disable()
        model = built(squared_sum)
        gradient(model, "y", "x")
        with pytest.raises(OptionError):
            gradient(model, "z", "x")
        assert gc.isenabled() is collecting
    finally:
        gc.enable() if before else gc.disable()


def test_second_derivatives_are_gradients_of_gradients() -> None:
    model = built(lambda op, x: op.ReduceSum(op.Mul(op.Sin(x), op.Mul(x, x)), keepdims=0))
    first = gradient(model, "y", "x")
    second = gradient(first, {"x_grad": "v"}, "x")
    names = [value.name for value in second.graph.outputs]
    assert names == ["y", "x_grad", "x_grad_grad"]
    check_gradient(first, {"x": X}, outputs=["x_grad"], wrt=["x"])


def test_model_local_functions_are_differentiated() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21, "local": 1]>
        g (double[2,3] x) => (double[2,3] y) { y = local.squash(x) }
        <opset_import: ["": 21], domain: "local">
        squash (a) => (b) { s = Sin(a)  b = Mul(s, a) }
    """
    check_gradient(onnx.parser.parse_model(text), {"x": X})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_have_the_type_of_their_values(dtype: str) -> None:
    model = gradient(built(squared_sum, dtype=dtype), "y", "x")
    assert model.graph.outputs[-1].dtype == model.graph.inputs[0].dtype


# -- the checker -----------------------------------------------------------------------------------


def test_the_checker_names_the_input_and_its_worst_element() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float64", (2,))
    y = op.Mul(x, op.Mul(x, x))
    model = op.model(y=y)
    rules = _with_wrong_rule("Mul")
    with pytest.raises(GradientWrong, match=r"gradient of 'x': .*\nworst element: x\["):
        check_gradient(model, {"x": np.array([1.0, 2.0])}, rules=rules)


def _with_wrong_rule(operator: str) -> GradientTable:
    """All rules, of which that of one operator is wrong."""
    table = GradientTable()
    for domain, name in GRADIENTS:
        rule = GRADIENTS.find(domain, name, 100)
        assert rule is not None
        wrong = not domain and name == operator
        table(name, domain=domain)((lambda op, node, dy: (dy, dy)) if wrong else rule)
    return table


def test_the_checker_draws_feeds_where_none_are_given() -> None:
    assert set(check_gradient(with_weight())) == {"x", "w"}


def test_the_checker_needs_a_float_output() -> None:
    op = onward.OpBuilder()
    model = op.model(y=op.Shape(op.input("x", "float64", (2,))))
    with pytest.raises(OptionError, match="no float output"):
        check_gradient(model)


def test_the_checker_holds_a_float32_gradient_against_a_float64_copy() -> None:
    op = onward.OpBuilder()
    x, w = op.input("x", "float32", (4, 3)), op.initializer("w", np.ones((3, 5), np.float32))
    model = op.model(y=op.Tanh(op.MatMul(x, w)))
    found = check_gradient(model, double=True, providers=["CPUExecutionProvider"])
    assert {dx.dtype.name for dx in found.values()} == {"float32"}


def test_the_checker_reports_a_gradient_that_is_imprecise_in_float32() -> None:
    """(x + 10^8) - 10^8 is x in float64, and next to nothing in float32."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", (3,))
    far = op.Sub(op.Add(x, np.float32(1e8)), np.float32(1e8))
    model = op.model(y=op.Mul(far, far))
    feeds = {"x": np.array([0.5, 1.0, 2.0], np.float32)}
    with pytest.raises(GradientWrong, match=r"'x': in float32 it is off by .* a float64 copy"):
        check_gradient(model, feeds, double=True, step=1e-2)


def test_merged_parameters_have_separate_gradients() -> None:
    text = """<ir_version: 10, opset_import: ["": 20], producer_name: "pytorch">
    g (float[2] x) => (float y) <float[2] w1 = {2, 3}>
    { w2 = Identity(w1) a = Mul(x, w1)
      b = Mul(a, a) c = Mul(b, w2) y = ReduceSum<keepdims=0>(c) }"""
    made = gradient(onnx.parser.parse_model(text), "y", ["w1", "w2"])
    x = np.array([1, 2], np.float32)
    d1, d2 = run(made, ["w1_grad", "w2_grad"], x=x)
    np.testing.assert_allclose(d1, [2 * 2 * 2, 2 * 3 * 4 * 3])  # of w1^2 w2 x^2
    np.testing.assert_allclose(d2, [4, 36])
