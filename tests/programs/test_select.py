"""Which tensors are parameters."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD, AdamW, Group
from onward.programs.training_options import TrainingOptions
from onward.sessions.training.session import TrainingSession


def model() -> object:
    """y = (x w) * 0.5 + table[ids]; `unused` leads nowhere."""
    op = onward.OpBuilder()
    x, ids = op.input("x", "float32", ("n", 3)), op.input("ids", "int64", ("n",))
    w = op.initializer("w", np.ones((3, 2), np.float32))
    table = op.initializer("table", np.ones((5, 2), np.float32))
    half = op.initializer("half", np.float32(0.5))
    op.initializer("unused", np.ones((7, 7), np.float32))
    return op.model(y=op.Add(op.Mul(op.MatMul(x, w), half), op.Gather(table, ids)))


def session(**options: object) -> TrainingSession:
    return TrainingSession(model(), MSE(), SGD(lr=0.1), TrainingOptions(**options))  # type: ignore[arg-type]


def test_weights_are_trained_but_single_numbers_are_not() -> None:
    assert list(session().parameters) == ["w", "table"]


def test_trainable_names_are_trained() -> None:
    assert list(session(trainable=["w", "half"]).parameters) == ["w", "half"]
    assert list(session(trainable=["*"], frozen=["t*", "unused"]).parameters) == ["w", "half"]


def test_a_parameter_without_influence_is_an_error_when_it_is_asked_for() -> None:
    with pytest.raises(OptionError, match="trainable: the loss does not depend on 'unused'"):
        session(trainable=["unused"])


MASK = np.arange(1 << 14).reshape(-1, 4) % 4  # of float32, as large as what is bound


def compared(dtype: str = "float32", rows: int = 1) -> ir.Model:
    """y = where(mask == 0, -1, x w), resized: no gradient reaches the mask, nor the scales."""
    op = onward.OpBuilder()
    x = op.input("x", dtype, ("n", 1, rows, 4))
    product = op.Mul(x, op.initializer("w", np.arange(4).astype(dtype)))
    mask = op.Equal(op.initializer("mask", MASK[:rows].astype(dtype)), np.zeros(1, dtype))
    hidden = op.Where(mask, np.full(1, -1, dtype), product)
    scales = op.initializer("scales", np.array([1, 1, 1, 0.5], np.float32))
    return op.model(y=op.Resize(hidden, None, scales, mode="linear"))


@pytest.mark.integration
@pytest.mark.parametrize(("dtype", "rows"), [("float32", 1), ("float16", 1), ("float32", 1 << 12)])
def test_weights_without_gradients_are_not_trained(dtype: str, rows: int, tmp_path: Path) -> None:
    one = TrainingSession(compared(dtype, rows), MSE(), AdamW(lr=0.1, weight_decay=0.5))
    assert list(one.parameters) == ["w"]
    feeds = {"x": np.ones((2, 1, rows, 4), dtype), "target": np.zeros((2, 1, rows, 2), np.float32)}
    for _ in range(3):
        one.step(feeds)
    one.export(tmp_path / "trained.onnx")
    made = {t.name: t for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    mask = onnx.numpy_helper.to_array(made["mask"])
    np.testing.assert_array_equal(mask, MASK[:rows])
    [y] = onward.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": feeds["x"]})
    np.testing.assert_allclose(y, one.predict({"x": feeds["x"]})["y"], rtol=1e-3, atol=1e-3)


def test_named_weights_without_gradients_are_trained() -> None:
    options = TrainingOptions(trainable=["w", "mask"])
    assert list(TrainingSession(compared(), MSE(), SGD(lr=0.1), options).parameters) == [
        "w",
        "mask",
    ]


def test_groups_may_name_weights_without_gradients() -> None:
    options = TrainingOptions(groups=[Group(parameters="mask", lr=0.5)])
    assert list(TrainingSession(compared(), MSE(), SGD(lr=0.1), options).parameters) == ["w"]


def test_a_model_whose_weights_no_gradient_reaches_has_nothing_to_train() -> None:
    with pytest.raises(OptionError, match="there is nothing to train: no float weight is left"):
        TrainingSession(compared(), MSE(), SGD(lr=0.1), TrainingOptions(frozen=["w"]))


@pytest.mark.parametrize("kind", ["Gemm", "MatMul", "Conv", "PRelu"])
def test_a_bias_or_slope_of_one_number_is_trained(kind: str) -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 3, 4) if kind == "Conv" else ("n", 3))
    one = op.initializer("one", np.ones(1, np.float32))
    weight = op.initializer("w", np.ones((1, 3, 1) if kind == "Conv" else (3, 1), np.float32))
    if kind in ("Gemm", "Conv"):
        y = getattr(op, kind)(x, weight, one)
    else:
        y = op.MatMul(x, weight)
        y = op.PRelu(y, one) if kind == "PRelu" else op.Add(one, y)
    small = op.initializer("eps", np.full(1, 1e-5, np.float32))
    found = TrainingSession(op.model(y=op.Add(op.Abs(y), small)), MSE(), SGD(lr=0.1)).parameters
    assert sorted(found) == ["one", "w"]


@pytest.mark.parametrize("version", [3, 8])
def test_initializers_that_are_listed_as_inputs_are_trained(version: int, tmp_path: Path) -> None:
    proto = ir.to_proto(normal())
    for tensor in proto.graph.initializer:
        shape = [*tensor.dims]
        proto.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
        )
    proto.ir_version = version
    one = TrainingSession(proto, MSE(), SGD(lr=0.1))
    assert one.input_names == ["x", "target"]
    assert list(one.parameters) == ["scale0", "bias0", "scale1", "bias1"]
    assert list(one.statistics) == ["mean0", "var0", "mean1", "var1"]
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    one.step({"x": x, "target": np.zeros((4, 2), np.float32)})
    one.export(tmp_path / "trained.onnx")
    [y] = onward.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x})
    np.testing.assert_allclose(y, one.predict({"x": x})["y"], rtol=1e-5, atol=1e-6)


def branches(functions: bool = False) -> onnx.ModelProto:
    """y = x w, with a w in each branch."""
    text = """<ir_version: 10, opset_import: ["": 21FUNCTIONS]>
    g (bool c, float[n, 2] x) => (float[n, 2] y) {
      y = If (c) <
        then_branch = t () => (float[n, 2] p) <float[2, 2] w = {1, 2, 3, 4}> { p = MatMul(x, w) },
        else_branch = e () => (float[n, 2] q) <float[2, 2] w = {5, 6, 7, 8}> { q = CALL(x, w) }
      >
    }"""
    body = """<opset_import: ["": 21], domain: "own"> product (a, b) => (c) { c = MatMul(a, b) }"""
    text = text.replace("FUNCTIONS", ', "own": 1' if functions else "")
    text = text.replace("CALL", "own.product" if functions else "MatMul")
    return onnx.parser.parse_model(text + body * functions)


@pytest.mark.parametrize("functions", [False, True])
def test_weights_of_one_name_in_two_branches_are_two_parameters(
    functions: bool, tmp_path: Path
) -> None:
    model = branches(functions)
    one = TrainingSession(model, MSE(), SGD(lr=0.1))
    assert model == branches(functions)  # it stays as it was
    before = {name: array.copy() for name, array in one.parameters.items()}
    assert sorted(array[0, 0] for array in before.values()) == [1, 5]
    x = np.ones((3, 2), np.float32)
    for which in (True, False, False):
        one.step({"c": np.array(which), "x": x, "target": np.zeros((3, 2), np.float32)})
    assert all((one.parameters[name] != before[name]).all() for name in before)
    one.export(tmp_path / "trained.onnx")
    for which in (True, False):
        feeds = {"c": np.array(which), "x": x}
        [y] = onward.InferenceSession(tmp_path / "trained.onnx").run(None, feeds)
        np.testing.assert_array_equal(y, one.predict(feeds)["y"])


def test_rows_of_a_table_that_were_not_read_stay() -> None:
    one = session()
    feeds = {
        "x": np.ones((2, 3), np.float32),
        "ids": np.array([1, 3]),
        "target": np.zeros((2, 2), np.float32),
    }
    one.step(feeds)
    changed = (one.parameters["table"] != 1).any(1)
    assert changed.tolist() == [False, True, False, True, False]


def normal() -> ir.Model:
    """Two BatchNormalizations, encoder.0 and encoder.1, and a Dropout, encoder.drop."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 2))
    for i in range(2):
        kinds = {"scale": 1.0, "bias": 0.0, "mean": 0.0, "var": 1.0}
        tensors = [op.initializer(f"{n}{i}", np.full(2, a, np.float32)) for n, a in kinds.items()]
        x = op.BatchNormalization(x, *tensors)
        x.name = f"encoder.{i}"
    x = op.Dropout(x, 0.5)
    x.name = "encoder.drop"
    return op.model(y=op.Identity(x))


@pytest.mark.parametrize(
    ("names", "moved"),
    [
        ([], ["mean0", "var0", "mean1", "var1"]),
        (["encoder.0"], ["mean1", "var1"]),
        (["*.1"], ["mean0", "var0"]),
        (["encoder.[0-9]"], []),
    ],
)
def test_batch_norms_are_frozen_by_name_or_pattern(names: list[str], moved: list[str]) -> None:
    options = TrainingOptions(frozen_batch_norms=names)
    assert list(TrainingSession(normal(), MSE(), SGD(lr=0.1), options).statistics) == moved


def test_a_pattern_of_batch_norms_leaves_dropout_alone() -> None:
    options = TrainingOptions(frozen_batch_norms=["*"])
    one = TrainingSession(normal(), MSE(), SGD(lr=0.1), options)
    feeds = {"x": np.ones((64, 2), np.float32), "target": np.zeros((64, 2), np.float32)}
    assert not one.statistics and (one.step(feeds)["y"] == 0).any()


@pytest.mark.parametrize("name", ["encoder.drop", "encoder.7*"])
def test_an_unknown_batch_norm_is_refused_with_similar_names(name: str) -> None:
    message = (
        rf"frozen_batch_norms: {re.escape(repr(name))} matches no BatchNormalization of the model\n"
        r"patterns are written like 'encoder\.\*'; (did you mean|there are) '.*encoder\.[01]'"
    )
    with pytest.raises(OptionError, match=message):
        options = TrainingOptions(frozen_batch_norms=[name])
        TrainingSession(normal(), MSE(), SGD(lr=0.1), options)


def shared_ones(version: int) -> onnx.ModelProto:
    """A fresh BatchNormalization: scale and variance are one tensor, bias and mean another."""
    text = f"""<ir_version: 8, opset_import: ["": {version}]>
    g (float[n, 2] x) => (float[n, 2] y) <float[2] ones = {{1, 1}}, float[2] zeros = {{0, 0}}>
    {{ y = BatchNormalization(x, ones, zeros, zeros, ones) }}"""
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("version", [9, 15])
def test_a_scale_that_is_the_variance_too_is_trained_and_the_variance_is_state(
    version: int, tmp_path: Path
) -> None:
    one = TrainingSession(shared_ones(version), MSE(), SGD(lr=0.1))
    assert list(one.parameters) == ["ones", "zeros"]
    assert list(one.statistics) == ["y.running_mean", "y.running_var"]
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    one.step({"x": x, "target": np.full((4, 2), 3, np.float32)})
    assert (one.parameters["ones"] != one.statistics["y.running_var"]).all()
    one.export(tmp_path / "trained.onnx")
    [y] = onward.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x})
    np.testing.assert_allclose(y, one.predict({"x": x})["y"], rtol=1e-5, atol=1e-6)
    names = {"trainable": ["zeros"]}
    assert list(TrainingSession(shared_ones(version), MSE(), SGD(lr=0.1), names).parameters) == [
        "zeros"
    ]
