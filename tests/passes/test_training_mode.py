"""BatchNormalization and Dropout, into training mode and out of it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onward
from onward.errors import InvalidModel, OptionError
from onward.graph.builder import OpBuilder
from onward.graph.files import load
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.training_mode import eval_mode, separate_statistics, train_mode
from tests.passes.running import assert_same, run_ort, run_reference

rng = np.random.default_rng(2)
X = rng.normal(1.0, 2.0, (6, 3, 4)).astype(np.float32)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return rng.uniform(0.5, 1.5, shape).astype(np.float32)


def norm(op: OpBuilder, x: Any, name: str = "bn", *, momentum: float = 0.8, **options: Any) -> Any:
    """A BatchNormalization of 3 channels with its statistics."""
    shifts = [("scale", real(3)), ("bias", real(3)), ("mean", real(3)), ("var", real(3))]
    weights = [op.initializer(f"{name}.{kind}", array) for kind, array in shifts]
    made = op.BatchNormalization(x, *weights, momentum=momentum, **options)
    first = made[0] if isinstance(made, tuple) else made
    first.producer().name = name
    return made


def one_norm(shape: tuple[Any, ...] = ("batch", 3, 4), **options: Any) -> ir.Model:
    op = OpBuilder()
    return PREPARE(op.model(y=norm(op, op.input("x", "float32", shape), **options)))


def statistics(x: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    return x.mean((0, 2)), x.var((0, 2))


def given(model: ir.Model, name: str) -> np.ndarray[Any, Any]:
    return model.graph.initializers[name].const_value.numpy()  # type: ignore[union-attr]


def feed_state(model: ir.Model, names: Any) -> dict[str, Any]:
    """Let initializers be fed, as training does; their first contents."""
    feeds = {}
    for name in names:
        value = model.graph.initializers.pop(name)
        feeds[name] = value.const_value.numpy().copy()  # type: ignore[union-attr]
        value.const_value = None
        model.graph.inputs.append(value)
    return feeds


def names_of(values: Any) -> list[str]:
    return [value.name for value in values]


# -- BatchNormalization -------------------------------------------------------------------------


@pytest.mark.parametrize("run", [run_ort, run_reference])
@pytest.mark.parametrize("shape", [("batch", 3, 4), (6, 3, 4)], ids=["dynamic", "static"])
@pytest.mark.parametrize("unbiased", [False, True])
def test_batch_statistics_normalise_and_update_the_running_ones(
    run: Any, shape: Any, unbiased: bool
) -> None:
    model = one_norm(shape)
    scale, bias = given(model, "bn.scale"), given(model, "bn.bias")
    old_mean, old_var = given(model, "bn.mean"), given(model, "bn.var")
    state = train_mode(model, unbiased=unbiased)
    assert state == {"bn.mean": "bn.mean_updated", "bn.var": "bn.var_updated"}
    assert names_of(model.graph.outputs) == ["y", *state.values()]
    assert names_of(model.graph.inputs) == ["x"]
    y, mean, var = run(model, {"x": X})
    batch_mean, batch_var = statistics(X)
    wanted = (X - batch_mean[:, None]) / np.sqrt(batch_var + 1e-5)[:, None]
    n = 24
    spread = batch_var * (n / (n - 1) if unbiased else 1)
    assert_same([wanted * scale[:, None] + bias[:, None]], [y])
    assert_same([0.8 * old_mean + 0.2 * batch_mean], [mean])
    assert_same([0.8 * old_var + 0.2 * spread], [var])


def test_a_channel_with_one_number_has_no_unbiased_variance_but_stays_finite() -> None:
    op = OpBuilder()
    model = PREPARE(op.model(y=norm(op, op.input("x", "float32", ("batch", 3)))))
    train_mode(model, unbiased=True)
    results = run_ort(model, {"x": X[:1, :, 0]})
    assert all(np.isfinite(result).all() for result in results)


def test_unbiased_variance_of_unknown_rank() -> None:
    model = one_norm()
    model.graph.inputs[0].shape = None
    model.graph.outputs[0].shape = None
    state = train_mode(model, unbiased=True)
    results = dict(zip(names_of(model.graph.outputs), run_ort(model, {"x": X})))
    wanted = 0.8 * given(model, "bn.var") + 0.2 * statistics(X)[1] * 24 / 23
    assert_same([wanted], [results[state["bn.var"]]])


def test_onnxruntime_does_not_change_its_feeds() -> None:
    model = one_norm()
    state = train_mode(model)
    feeds = feed_state(model, state)
    first = {name: array.copy() for name, array in feeds.items()}
    run_ort(model, {"x": X, **feeds})
    for name, array in first.items():
        np.testing.assert_array_equal(array, feeds[name])


def test_nan_batch_does_not_stay_in_the_statistics() -> None:
    """The session must not keep it: onnxruntime writes over what BatchNormalization was given."""
    import onnxruntime

    model = one_norm()
    feeds = feed_state(model, train_mode(model))
    grown = onward.gradient(model, {"y": "dy"}, ["bn.scale", "x"])
    data = ir.to_proto(grown).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    feeds |= {"x": X, "dy": np.ones_like(X)}
    before = session.run(None, feeds)
    session.run(None, {**feeds, "x": X * np.nan})
    assert_same(before, session.run(None, feeds), 0)


def test_statistics_that_are_nan_do_not_reach_the_batch() -> None:
    model = one_norm()
    feeds = feed_state(model, train_mode(model))
    y, *_ = run_ort(model, {"x": X, **{name: array * np.nan for name, array in feeds.items()}})
    assert np.isfinite(y).all()


def test_frozen_nodes_stay_in_inference_mode() -> None:
    def two() -> ir.Model:
        op = OpBuilder()
        x = op.input("x", "float32", ("batch", 3, 4))
        return PREPARE(op.model(y=norm(op, norm(op, x, "first"), "second")))

    names = ["second.mean", "second.var"]
    assert list(train_mode(two(), ["first"])) == names
    assert list(train_mode(two(), lambda node: node.name == "first")) == names
    model = two()
    output = str(next(iter(model.graph)).outputs[0].name)
    assert list(train_mode(model, {output})) == names
    (first,) = [node for node in model.graph if node.name == "first"]
    assert first.attributes["training_mode"].value == 0 and len(first.outputs) == 1


def test_unknown_frozen_name_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"no BatchNorm.* is named 'bm', so it cannot be frozen\nthere are 'bn'"
    ):
        train_mode(one_norm(), ["bm"])


def test_eval_mode_restores_the_model() -> None:
    model = one_norm()
    wanted = run_ort(model, {"x": X})
    train_mode(model, unbiased=True)
    back = eval_mode(model)
    (node,) = [node for node in back.graph if node.op_type == "BatchNormalization"]
    assert node.attributes["momentum"].value == pytest.approx(0.8)
    assert names_of(node.inputs[3:]) == ["bn.mean", "bn.var"]
    y, mean, var = run_ort(back, {"x": X})
    assert_same(wanted, [y])
    assert_same([given(model, "bn.mean"), given(model, "bn.var")], [mean, var])


def test_eval_mode_finds_fed_statistics() -> None:
    model = one_norm()
    wanted = run_ort(model, {"x": X})
    feeds = feed_state(model, train_mode(model))
    assert_same(wanted, run_ort(eval_mode(model), {"x": X, **feeds})[:1])


def test_eval_mode_names_missing_statistics() -> None:
    model = one_norm()
    train_mode(model)
    model.graph.initializers["bn.mean"].name = "other"
    with pytest.raises(InvalidModel, match=r"does not have 'bn\.mean', the running statistics"):
        eval_mode(model)


def test_a_node_that_trains_already_stays() -> None:
    """Its running outputs keep their names, in the graph and in other nodes."""
    op = OpBuilder()
    x = op.input("x", "float32", (6, 3, 4))
    y, mean, var = norm(op, x, training_mode=1, outputs=3)
    model = PREPARE(op.model(y=y, mean=mean, twice=op.Mul(var, 2.0)))
    wanted = run_ort(model, {"x": X})
    state = train_mode(model)
    assert state["bn.mean"] == "mean"
    assert names_of(model.graph.outputs) == ["y", "mean", "twice", state["bn.var"]]
    assert_same(wanted, run_ort(model, {"x": X})[:3])


def test_layer_called_twice_updates_its_statistics_twice() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 4))
    kinds = ("scale", "bias", "mean", "var")
    weights = [op.initializer(kind, real(3)) for kind in kinds]
    first = op.BatchNormalization(x, *weights, momentum=0.8)
    model = PREPARE(op.model(y=op.BatchNormalization(op.Mul(first, 3.0), *weights, momentum=0.5)))
    old = given(model, "mean")
    assert train_mode(model) == {"mean": "mean_updated", "var": "var_updated"}
    _, mean, _ = run_ort(model, {"x": X})
    once = 0.8 * old + 0.2 * X.mean((0, 2))
    assert_same([0.5 * once + 0.5 * 3 * given(model, "bias")], [mean])


def test_merged_statistics_are_separated() -> None:
    """Zeros that are the means of two layers and the bias of a third part."""
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 4))
    zeros = op.initializer("zeros", np.zeros(3, np.float32))
    ones = op.initializer("ones", np.ones(3, np.float32))
    a = op.BatchNormalization(x, ones, zeros, zeros, ones)
    b = op.BatchNormalization(a, ones, zeros, zeros, ones)
    model = PREPARE(op.model(y=b))
    wanted = run_ort(model, {"x": X})
    copy = separate_statistics(model.clone())
    assert_same(wanted, run_ort(copy, {"x": X}))
    state = train_mode(model)
    kinds = ("running_mean", "running_var")
    assert list(state) == [f"{a.name}.{kind}" for kind in kinds]  # one layer: all is shared
    assert all(name in copy.graph.initializers for name in state)

    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 4))
    zeros = op.initializer("zeros", np.zeros(3, np.float32))
    a = op.BatchNormalization(x, real(3), real(3), zeros, real(3))
    b = op.BatchNormalization(a, real(3), real(3), zeros, real(3))
    model = PREPARE(op.model(y=b))
    assert f"{a.name}.running_mean" in train_mode(model)
    assert "zeros" not in train_mode(model)


def test_statistics_behind_identities_are_state() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 4))
    mean, var = op.initializer("mean", real(3)), op.initializer("var", real(3))
    copies = [op.Identity(op.Identity(value)) for value in (mean, var)]
    model = PREPARE(op.model(y=op.BatchNormalization(x, real(3), real(3), *copies)))
    assert list(train_mode(model)) == ["mean", "var"]


def test_nodes_with_fed_or_computed_statistics_keep_their_mode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    op = OpBuilder()
    x, mean = op.input("x", "float32", ("batch", 3, 4)), op.input("mean", "float32", (3,))
    y = op.BatchNormalization(x, real(3), real(3), mean, op.Exp(mean))
    model = PREPARE(op.model(y=y))
    feeds = {"x": X, "mean": real(3)}
    wanted = run_ort(model, feeds)
    with caplog.at_level(logging.WARNING, "onward"):
        assert train_mode(model) == {}
    assert "keeps its mode: its running_mean 'mean' is not an initializer" in caplog.text
    assert_same(wanted, run_ort(model, feeds))


def branched() -> ir.Model:
    return load(
        onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (bool c, float[n, 3] x) => (float[n, 3] y)
        <float[3] s = {1, 2, 3}, float[3] b = {0, 1, 0}, float[3] m = {1, 1, 1},
         float[3] v = {1, 2, 1}, float r = {0.5}, bool t = {1}>
        {
            y = If (c) <
                then_branch = g1 () => (float[n, 3] a) { a = BatchNormalization(x, s, b, m, v) },
                else_branch = g2 () => (float[n, 3] d) { d = Dropout(x, r, t) }
            >
        }""")
    )


def test_nodes_in_branches_keep_their_statistics(caplog: pytest.LogCaptureFixture) -> None:
    model = PREPARE(branched())
    with caplog.at_level(logging.WARNING, "onward"):
        assert train_mode(model) == {}
    assert "it is inside a branch or a loop, which cannot return state" in caplog.text


def test_branches_and_loops_go_to_inference_mode() -> None:
    x = real(5, 3)
    model = eval_mode(branched())
    assert_same([x], run_ort(model, {"c": np.array(False), "x": x}))
    assert "t" not in model.graph.initializers


def test_functions_go_to_inference_mode() -> None:
    model = load(
        onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[n, 3] x, float[3] s, float[3] v) => (float[n, 3] y) { y = local.block(x, s, v) }
        <domain: "local", opset_import: ["" : 21]>
        block (x, s, v) => (y) {
            a, m, w = BatchNormalization <training_mode = 1> (x, s, s, s, v)
            r = Constant <value_float = 0.5> ()
            t = Constant <value = bool {1}> ()
            y, mask = Dropout(a, r, t)
        }""")
    )
    eval_mode(model)
    feeds = {"x": real(5, 3), "s": real(3), "v": real(3)}
    wanted = (feeds["x"] - feeds["s"]) / np.sqrt(feeds["v"] + 1e-5) * feeds["s"] + feeds["s"]
    onnx.checker.check_model(ir.to_proto(model))
    assert_same([wanted], run_ort(PREPARE(model), feeds))


@pytest.mark.parametrize("opset", [6, 7, 9, 11, 14])
def test_eval_mode_of_old_opsets(opset: int) -> None:
    outputs = "a, m, w" if opset > 9 else "a, m, w, p, q"
    ratio = ", r" if opset >= 12 else ""
    mode = "<training_mode = 1>" if opset >= 14 else ""
    text = f"""
        <ir_version: 6, opset_import: ["" : {opset}]>
        g (float[n, 3] x) => (float[n, 3] y)
        <float[3] s = {{1, 2, 3}}, float[3] v = {{1, 2, 1}}, float r = {{0.5}}>
        {{
            {outputs} = BatchNormalization {mode} (x, s, s, s, v)
            y = Dropout(a{ratio})
        }}"""
    model = eval_mode(load(onnx.parser.parse_model(text)))
    assert [node.op_type for node in model.graph] == ["BatchNormalization"]
    s, v = np.array([1, 2, 3]), np.array([1, 2, 1])
    x = real(5, 3)
    wanted = ((x - s) / np.sqrt(v + 1e-5) * s + s).astype(np.float32)
    onnx.checker.check_model(ir.to_proto(model))
    assert_same([wanted], run_ort(PREPARE(model), {"x": x}))


@pytest.mark.parametrize("spatial", [0, 1])
def test_per_activation_statistics_are_not_state(spatial: int) -> None:
    """spatial=0 is plain arithmetic once it is prepared: it stays as it is."""
    text = f"""
        <ir_version: 6, opset_import: ["" : 7]>
        g (float[n, 3] x) => (float[n, 3] y)
        <float[3] s = {{1, 2, 3}}, float[3] v = {{1, 2, 1}}, float[3] m = {{1, 2, 1}}>
        {{ y = BatchNormalization <spatial = {spatial}> (x, s, s, m, v) }}"""
    model = PREPARE(load(onnx.parser.parse_model(text)))
    assert list(train_mode(model)) == (["m", "v"] if spatial else [])


# -- Dropout -------------------------------------------------------------------------------------


def dropout(ratio: Any, mode: Any = None, *, mask: bool = False) -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", ("n",))
    if mode == "fed":
        mode = op.input("training", "bool", ())
    outputs = op.Dropout(x, ratio, mode, outputs=2)
    made = {"y": op.Neg(outputs[0]), **({"mask": outputs[1]} if mask else {})}
    return PREPARE(op.model(**made))


@pytest.mark.parametrize("mode", [None, False, True, "fed"])
def test_dropout_drops_in_training_and_is_removed_for_inference(mode: Any) -> None:
    x = np.ones(4000, np.float32)
    model = dropout(np.float32(0.25), mode, mask=True)
    inputs = names_of(model.graph.inputs)
    assert train_mode(model) == {}
    feeds = {"x": x, **({"training": np.array(False)} if mode == "fed" else {})}
    y, mask = run_ort(model, feeds)
    assert 0.7 < mask.mean() < 0.8
    np.testing.assert_allclose(y, mask / -0.75, rtol=1e-6)
    back = eval_mode(model)
    assert names_of(back.graph.inputs) == inputs
    assert names_of(back.graph.outputs) == ["y", "mask"]
    y, mask = run_ort(back, feeds)
    assert mask.all() and mask.dtype == np.bool_ and (y == -1).all()
    assert "Dropout" not in {node.op_type for node in back.graph}


def test_a_ratio_of_0_drops_nothing() -> None:
    model = dropout(np.float32(0))
    train_mode(model)
    assert [node.op_type for node in model.graph] == ["Neg"]


def test_a_frozen_dropout_drops_nothing() -> None:
    model = dropout(np.float32(0.5), True)
    (node,) = [node for node in model.graph if node.op_type == "Dropout"]
    train_mode(model, [str(node.name)])
    assert [node.op_type for node in model.graph] == ["Neg"]


def test_other_random_operators_stay_in_inference() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (3,))
    model = eval_mode(op.model(y=op.Add(x, op.RandomNormalLike(x)), z=op.Bernoulli(x)))
    assert {node.op_type for node in model.graph} == {"Add", "RandomNormalLike", "Bernoulli"}


# -- with gradients ------------------------------------------------------------------------------


def test_running_statistics_and_gradients_come_from_one_node() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 4))
    y = norm(op, op.Mul(norm(op, x, "first"), 2.0), "second")
    model = PREPARE(op.model(loss=op.ReduceMean(op.Mul(y, y), keepdims=0)))
    state = train_mode(model, unbiased=True)
    feed_state(model, state)
    grown = onward.gradient(model, "loss", ["x", "first.scale", "second.bias"])
    trained = [n for n in grown.graph if n.attributes.get_int("training_mode", 0)]
    assert len(trained) == 2
    assert set(state.values()) <= set(names_of(grown.graph.outputs))


def test_passes_do_not_fold_fed_state() -> None:
    model = one_norm()
    feeds = feed_state(model, train_mode(model))
    wanted = run_ort(model, {"x": X, **feeds})
    assert_same(wanted, run_ort(TRAINING(model), {"x": X, **feeds}))


def test_two_nodes_with_the_same_statistics_have_separate_gradients() -> None:
    """onnxruntime overwrites what each is given: that must not be one tensor."""
    feeds = {"x": X, "m": real(3), "v": real(3), "n": real(3), "w": real(3), "loss_cotangent": X}
    found = []
    for second in ("mv", "nw"):
        op = OpBuilder()
        x = op.input("x", "float32", (6, 3, 4))
        inputs = {name: op.input(name, "float32", (3,)) for name in "mvnw"}
        ones = op.initializer("ones", np.ones(3, np.float32))
        y = x
        for names in ("mv", second):
            stats = [inputs[name] for name in names]
            y, *_ = op.BatchNormalization(
                op.Mul(y, y), ones, ones, *stats, training_mode=1, outputs=3
            )
        grown = onward.gradient(op.model(y=y), {"y": "loss_cotangent"}, ["x", "ones"])
        found.append(run_ort(grown, feeds))
    assert_same(*found)
