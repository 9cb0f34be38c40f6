"""The pass of mixed precision on hand-written models: types, casts, patterns, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError, ProviderError
from onward.losses import MSE, CrossEntropy
from onward.optimizers import SGD
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.passes.pipelines import PREPARE
from onward.programs.build import build_program
from onward.programs.precision.gradient_sums import widen_sums
from onward.programs.precision.lower_precision import lower_precision
from onward.programs.precision.precision import Precision
from tests.programs.precision.precision_models import BF16, FP16, assert_casts_are_few

LOW, FLOAT = "BFLOAT16", "FLOAT"


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def lowered(model: ir.Model, **settings: Any) -> ir.Model:
    """A model in mixed precision, its initializers taken as weights."""
    prepared = PREPARE(model.clone())
    lower_precision(prepared, Precision(dtype="bf16", **settings))
    return prepared


def types(model: ir.Model) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node in model.graph:
        dtype = node.outputs[0].dtype
        found.setdefault(node.op_type, set()).add(dtype.name if dtype is not None else "")
    return found


def transformer_layer() -> ir.Model:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4, 8))
    scale = op.initializer("norm", np.ones(8, np.float32))
    h = op.LayerNormalization(x, scale, axis=-1)
    h = op.Add(op.MatMul(h, op.initializer("w", random(8, 8))), op.initializer("b", random(8)))
    h = op.MatMul(op.Gelu(h), op.initializer("v", random(8, 8)))
    y = op.Add(x, h)
    return op.model(y=op.Softmax(y, axis=-1), mean=op.ReduceMean(h, [-1]))


def test_products_and_what_follows_them_are_low_and_sensitive_operators_float32() -> None:
    model = lowered(transformer_layer())
    found = types(model)
    assert found["MatMul"] == found["Gelu"] == {LOW}
    assert found["LayerNormalization"] == found["Softmax"] == found["ReduceMean"] == {FLOAT}
    assert found["Add"] == {LOW, FLOAT}  # a bias follows its product; a residual sum is promoted
    assert [value.name for value in model.graph.outputs] == ["y", "mean"]
    assert {value.dtype for value in model.graph.outputs} == {ir.DataType.FLOAT}
    assert_casts_are_few(model.graph)


def test_without_promotion_residual_sums_are_low() -> None:
    assert types(lowered(transformer_layer(), promote=False))["Add"] == {LOW}


def test_patterns_keep_nodes_in_float32() -> None:
    assert types(lowered(transformer_layer(), float32=["Gelu"]))["Gelu"] == {FLOAT}
    model = PREPARE(transformer_layer())
    products = [node for node in model.graph if node.op_type == "MatMul"]
    products[0].name, products[1].name = "first/product", "second/product"
    lower_precision(model, Precision(float32=["first/*"]))
    dtypes = {n.name: n.outputs[0].dtype for n in model.graph if n.op_type == "MatMul"}
    assert dtypes == {"first/product": ir.DataType.FLOAT, "second/product": ir.DataType.BFLOAT16}


def test_casts_move_before_views_and_weights_are_cast_once() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 8))
    w = op.initializer("w", random(8, 12))
    a, b = op.Split(op.Transpose(w, perm=[1, 0]), num_outputs=2, axis=0, outputs=2)
    h = [op.MatMul(x, op.Transpose(part, perm=[1, 0])) for part in (a, b)]
    model = op.model(y=op.Sub(*h))
    options = {"precision": BF16}
    program = build_program(model, MSE(), SGD(lr=0.1), options)
    graph = program.train.graph
    [weight] = [value for value in graph.inputs if value.name == "w"]
    assert [node.op_type for node, _ in weight.uses()] == ["Cast"]
    forward = [n for n in graph if not str(n.outputs[0].name).startswith(("gradient", "w_grad"))]
    assert [n.op_type for n in forward].count("Cast") == 3  # x, w and y
    assert_casts_are_few(graph)


def test_a_shape_is_read_without_a_cast() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", "time", 8))
    h = op.MatMul(x, op.initializer("w", random(8, 8)))
    size = op.Shape(h, start=0, end=1)
    y = op.Reshape(h, op.Concat(size, np.array([-1]), axis=0))
    model = lowered(op.model(y=y))
    [shape] = [node for node in model.graph if node.op_type == "Shape"]
    assert shape.inputs[0] is not None and shape.inputs[0].dtype == ir.DataType.BFLOAT16


def test_a_constant_that_stands_for_infinity_stays_finite() -> None:
    op = onward.OpBuilder()
    x, keep = op.input("x", "float32", (2, 4)), op.input("keep", "bool", (2, 4))
    h = op.MatMul(x, op.initializer("w", random(4, 4)))
    hidden = op.Where(keep, h, np.float32(np.finfo(np.float32).min))
    model = lowered(op.model(y=op.Softmax(hidden, axis=-1)))
    constants = [v.const_value for v in model.graph.initializers.values() if v.const_value]
    low = [each.numpy() for each in constants if each.dtype == ir.DataType.BFLOAT16]
    assert any(float(each) < -1e38 for each in low if each.size == 1)
    assert all(np.isfinite(each.astype(np.float32)).all() for each in low)


def test_branches_read_low_values_of_the_graph_around_them() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 4] x, bool yes) => (float[2, 4] y) <float[4, 4] w = {
            1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> {
            h = MatMul(x, w)
            y = If(yes) <then_branch = t () => (float[2, 4] u) { u = MatMul(h, w) },
                else_branch = e () => (float[2, 4] v) { v = Softmax(h) }> }""")
    changed = lowered(ir.from_proto(model))
    x = random(2, 4)
    for yes in (True, False):
        feeds = {"x": x, "yes": np.array(yes)}
        exact = onward.InferenceSession(model, providers=["cpu"]).run(None, feeds)
        found = onward.InferenceSession(changed, providers=["torch"]).run(None, feeds)
        np.testing.assert_allclose(found[0], exact[0], atol=0.03)


def test_an_old_model_is_upgraded_first() -> None:
    model = onnx.parser.parse_model("""<ir_version: 4, opset_import: ["": 9]>
        g (float[N, 4] x) => (float[N, 4] y) <float[4, 4] w = {
            1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> {
            h = MatMul(x, w) y = LeakyRelu(h) }""")
    session = onward.TrainingSession(
        model, MSE(), SGD(lr=0.1), {"precision": BF16}, providers=["torch"]
    )
    feeds = {"x": random(3, 4), "target": 1 - random(3, 4)}
    first = float(session.step(feeds)["loss"])
    assert float(session.step(feeds)["loss"]) < first


# -- sums of gradients -------------------------------------------------------------------------


def test_gradients_of_a_shared_weight_are_added_in_float32() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 8))
    w = op.initializer("w", random(8, 8))
    h = x
    for _ in range(3):
        h = op.Tanh(op.MatMul(h, w))
    program = build_program(op.model(y=h), MSE(), SGD(lr=0.1), {"precision": BF16})
    total = next(v for v in program.train.graph.outputs if v.name == "w_grad")
    maker = total.producer()
    assert maker is not None and maker.op_type == "Sum" and len(maker.inputs) == 3
    assert {value.dtype for value in maker.inputs if value} == {ir.DataType.FLOAT}


def test_sums_of_the_forward_pass_stay_as_they_are() -> None:
    op = onward.OpBuilder()
    a, b = op.input("a", "bfloat16", (2,)), op.input("b", "bfloat16", (2,))
    model = op.model(y=op.Cast(op.Add(a, b), to=1))
    forward = {*model.graph}
    widen_sums(model, forward)
    assert [node.op_type for node in model.graph] == ["Add", "Cast"]
    widen_sums(model, ())
    assert [node.op_type for node in model.graph] == ["Cast", "Cast", "Add"]
    assert model.graph.outputs[0].name == "y"


# -- settings and refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("fp64", "TrainingOptions.precision must be 'bf16' or 'fp16', not 'fp64'"),
        (16, "must be the name of a type or a Precision"),
        ({"dtyp": "bf16"}, "has no setting 'dtyp'"),
        ({"dtype": "fp8"}, "must be 'bf16' or 'fp16', not 'fp8'"),
        ({"promote": 1.5}, "promote must be"),
    ],
)
def test_a_wrong_precision_is_refused(given: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        onward.TrainingOptions(precision=given)


def test_names_of_types() -> None:
    for name in ("bf16", "bfloat16", {"dtype": "bf16"}, Precision()):
        options = onward.TrainingOptions(precision=name)
        assert options.precision == Precision(dtype="bf16") and options.loss_scale is None
    assert onward.TrainingOptions(precision="fp32").precision is None
    assert onward.TrainingOptions(precision="fp16").loss_scale == DynamicLossScale()
    assert onward.TrainingOptions(precision="fp16", loss_scale=8.0).loss_scale == 8.0


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="no operator and no node is called 'MatMull'"):
        build_program(
            transformer_layer(), MSE(output="y"), SGD(lr=0.1),
            {"precision": Precision(float32=["MatMull"])},
        )  # fmt: skip


def test_a_model_without_products_is_refused() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    model = op.model(y=op.Mul(x, op.initializer("w", np.ones(4, np.float32))))
    with pytest.raises(OptionError, match="nothing to compute in bfloat16"):
        build_program(model, MSE(), SGD(lr=0.1), {"precision": "bf16"})


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_onnxruntime_refuses_16_bits_on_a_cpu(precision: str) -> None:
    for providers in (None, ["cpu"]):
        with pytest.raises(ProviderError, match=r"in float32 on a CPU(.|\n)*TorchExecution"):
            onward.TrainingSession(
                transformer_layer(), MSE(output="y"), SGD(lr=0.1), {"precision": precision},
                providers=providers,
            )  # fmt: skip


def test_a_processor_without_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (transformer_layer(), MSE(output="y"), SGD(lr=0.1), {"precision": "bf16"})
    providers = [("torch", {"device": "cpu"})]
    where = "onward.providers.low_precision.processor_flags"
    monkeypatch.setattr(where, lambda: frozenset({"avx2"}))
    with pytest.raises(ProviderError, match=r"no instructions for bfloat16\ntrain on a GPU"):
        onward.TrainingSession(*given, providers=providers)
    monkeypatch.setattr(where, lambda: frozenset({"avx2", "amx_bf16"}))
    session = onward.TrainingSession(*given, providers=providers)
    session.step({"x": random(2, 4, 8), "target": random(2, 4, 8)})


def test_a_saved_program_keeps_its_precision(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    model = op.model(y=op.Relu(op.MatMul(x, op.initializer("w", random(4, 3)))))
    program = onward.compile_training(model, CrossEntropy(), SGD(lr=0.1), {"precision": FP16})
    loaded = onward.TrainingSession(program.save(tmp_path / "program"), providers=["cpu"])
    assert loaded._layout.settings.precision == "float16"
    feeds = {"x": random(4, 4), "labels": np.arange(4) % 3}
    losses = [float(loaded.step(feeds)["loss"]) for _ in range(5)]
    assert losses[-1] < losses[0]
