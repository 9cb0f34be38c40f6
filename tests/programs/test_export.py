"""Export: trained tensors in, training out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onward.graph.files
from onward.errors import OptionError, WeightsError
from onward.graph.builder import OpBuilder
from onward.graph.files import load, save
from onward.passes.pipelines import PREPARE
from onward.passes.training_mode import train_mode
from onward.programs.export import export_model, write
from tests.passes.running import assert_same, run_ort

rng = np.random.default_rng(4)
TRUE = np.array(True)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return rng.uniform(0.5, 1.5, shape).astype(np.float32)


def network(dtype: Any = np.float32) -> ir.Model:
    """Linear, BatchNormalization, Dropout, linear; and a loss in addition to the logits."""
    op = OpBuilder(opset=17)
    x, labels = op.input("x", dtype, ("n", 4)), op.input("labels", "int64", ("n",))
    first = op.initializer("first", real(4, 3).astype(dtype))
    bias = op.initializer("bias", real(3).astype(dtype))
    weights = [op.initializer(name, real(3).astype(dtype)) for name in ("s", "b", "m", "v")]
    hidden = op.Add(op.MatMul(x, first), bias)
    hidden.name = "hidden"
    normal, *_ = op.BatchNormalization(hidden, *weights, training_mode=1, outputs=3)
    dropped = op.Dropout(normal, np.float32(0.5), TRUE)
    dropped.name = "dropped"
    logits = op.MatMul(dropped, op.initializer("last", real(3, 2).astype(dtype)))
    loss = op.SoftmaxCrossEntropyLoss(logits, labels)
    model = op.model(logits=logits, loss=loss)
    model.metadata_props["author"] = "nobody"
    model.doc_string = "a network"
    model.producer_name, model.ir_version = "somebody", 9
    return model


def tensors() -> dict[str, Any]:
    shapes = {"first": (4, 3), "bias": (3,), "m": (3,), "v": (3,), "last": (3, 2)}
    return {name: real(*shape) for name, shape in shapes.items()}


def expected(model: ir.Model, given: dict[str, Any], x: Any) -> dict[str, Any]:
    w = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}  # type: ignore[union-attr]
    w.update(given)
    hidden = x @ w["first"] + w["bias"]
    dropped = (hidden - w["m"]) / np.sqrt(w["v"] + 1e-5) * w["s"] + w["b"]
    return {"hidden": hidden, "dropped": dropped, "logits": dropped @ w["last"]}


def names_of(values: Any) -> list[str]:
    return [value.name for value in values]


def test_the_exported_model_computes_with_the_trained_tensors() -> None:
    model, given, x = network(), tensors(), real(5, 4)
    made = export_model(model, given, ["logits"])
    onnx.checker.check_model(ir.to_proto(made), full_check=True)
    assert names_of(made.graph.inputs) == ["x"]
    assert [n.op_type for n in made.graph] == ["MatMul", "Add", "BatchNormalization", "MatMul"]
    assert_same([expected(model, given, x)["logits"]], run_ort(made, {"x": x}))


def test_the_original_stays_as_it_was() -> None:
    model = network()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    export_model(model, tensors(), ["dropped"])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_metadata_stays() -> None:
    model = network()
    made = export_model(model, tensors())
    assert names_of(made.graph.outputs) == ["logits", "loss"]
    assert names_of(made.graph.inputs) == ["x", "labels"]
    assert made.opset_imports == model.opset_imports and made.ir_version == 9
    assert made.metadata_props == {"author": "nobody"} and made.doc_string == "a network"
    assert made.producer_name == "somebody"


@pytest.mark.parametrize(
    "outputs", [["hidden"], ["dropped", "hidden"], ["logits", "dropped"], ["hidden", "hidden"]]
)
def test_any_value_can_be_an_output(outputs: list[str]) -> None:
    """What a Dropout made, too: it keeps its name when the Dropout goes."""
    model, given, x = network(), tensors(), real(5, 4)
    made = export_model(model, given, outputs)
    onnx.checker.check_model(ir.to_proto(made), full_check=True)
    wanted = list(dict.fromkeys(outputs))
    assert names_of(made.graph.outputs) == wanted
    values = expected(model, given, x)
    assert_same([values[name] for name in wanted], run_ort(made, {"x": x}))
    if outputs[0] == outputs[-1]:
        assert "last" not in made.graph.initializers


def test_outputs_that_do_not_exist_are_refused() -> None:
    cases = {
        "hiden": r"the model has no value 'hiden'\ndid you mean 'hidden'\?",
        "x": r"'x' is an input or initializer of the model: it cannot be an output\nthere are '",
        "first": r"'first' is an input or initializer of the model",
    }
    for name, message in cases.items():
        with pytest.raises(OptionError, match=message):
            export_model(network(), {}, [name])
    with pytest.raises(OptionError, match="outputs is empty: an exported model needs"):
        export_model(network(), {}, [])


def test_an_output_needs_a_type() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (3,))
    strange = op.Strange(x, domain="elsewhere")
    strange.name = "strange"
    model = op.model(y=op.Unknown(strange, domain="elsewhere"))
    with pytest.raises(OptionError, match=r"the type of 'strange' is not known.*\nadd it to"):
        export_model(model, {}, ["strange"])


def test_inputs_to_keep_may_be_named() -> None:
    made = export_model(network(), {}, ["logits"], ["labels", "x"])
    assert names_of(made.graph.inputs) == ["labels", "x"]
    with pytest.raises(OptionError, match=r"the model has no input 'labls'\ndid you mean 'labels'"):
        export_model(network(), {}, ["logits"], ["labls", "x"])
    with pytest.raises(OptionError, match=r"outputs depend on input 'labels', which is not among"):
        export_model(network(), {}, ["loss"], ["x"])


# -- tensors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ir.DataType.BFLOAT16.numpy()])
def test_tensors_come_back_in_the_models_type(dtype: Any) -> None:
    given = tensors()
    made = export_model(network(dtype), given, ["hidden"])
    tensor = made.graph.initializers["first"].const_value
    assert tensor is not None and tensor.dtype == ir.DataType.from_numpy(np.dtype(dtype))
    np.testing.assert_array_equal(tensor.numpy(), given["first"].astype(dtype))


def test_tensors_that_do_not_fit_are_refused() -> None:
    cases: list[tuple[Any, Any, str]] = [
        ({"frist": real(4, 3)}, np.float32, r"no initializer 'frist'\ndid you mean 'first'"),
        ({"first": real(3, 4)}, np.float32, r"'first' has shape \(3, 4\), the model \(4, 3\)"),
        (
            {"first": np.ones((4, 3), np.int64)},
            np.float32,
            r"'first' is INT64, the model has FLOAT\nonly floats are rounded",
        ),
        (
            {"first": np.full((4, 3), 1e6, np.float32)},
            np.float16,
            r"'first' holds 1000000\.0, which FLOAT16 cannot\ntrain with smaller",
        ),
    ]
    for given, dtype, message in cases:
        with pytest.raises(WeightsError, match=message):
            export_model(network(dtype), given)


def test_nan_and_infinity_are_not_mistaken_for_overflow() -> None:
    given = {"bias": np.float32([np.nan, np.inf, 1])}
    made = export_model(network(np.float16), given)
    tensor = made.graph.initializers["bias"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), given["bias"].astype(np.float16))


def test_weights_that_were_constant_nodes_are_found() -> None:
    """They are initializers once the model is prepared, under the names that training knows."""
    text = """
        <ir_version: 8, opset_import: ["" : 15, "local" : 1]>
        g (float[n, 2] x) => (float[n, 2] y) {
            w = Constant <value = float[2] {1, 2}> ()
            a = Mul(x, w)
            y = local.shift(a)
        }
        <domain: "local", opset_import: ["" : 15]>
        shift (x) => (y) { b = Constant <value = float[2] {3, 4}> () y = Add(x, b) }"""
    model = load(onnx.parser.parse_model(text))
    names = list(PREPARE(model.clone()).graph.initializers)
    assert len(names) == 2
    given = dict(zip(names, np.float32([[5, 6], [7, 8]])))
    made = export_model(model, given)
    onnx.checker.check_model(ir.to_proto(made))
    x = real(3, 2)
    assert_same([x * [5, 6] + [7, 8]], [y.astype(np.float64) for y in run_ort(made, {"x": x})])


def test_statistics_that_were_merged_are_found() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("n", 3))
    zeros, ones = (op.initializer(n, np.full(3, i, np.float32)) for i, n in enumerate("zo"))
    y = op.BatchNormalization(x, ones, zeros, zeros, ones)
    model = op.model(y=y)
    state = train_mode(PREPARE(model.clone()))
    mean, var = state
    made = export_model(model, {mean: np.full(3, 2, np.float32), var: np.full(3, 4, np.float32)})
    data = real(5, 3)
    assert_same([(data - 2) / np.float32(2)], run_ort(made, {"x": data}))


def test_unused_functions_are_removed() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 15, "local" : 1]>
        g (float[n] x) => (float[n] y, float[n] z) {
            y = local.a(x)
            z = local.c(x)
        }
        <domain: "local", opset_import: ["" : 15, "local" : 1]> a (x) => (y) { y = local.b(x) }
        <domain: "local", opset_import: ["" : 15]> b (x) => (y) { y = Neg(x) }
        <domain: "local", opset_import: ["" : 15]> c (x) => (y) { y = Abs(x) }"""
    made = export_model(load(onnx.parser.parse_model(text)), {}, ["y"])
    assert sorted(key[1] for key in made.functions) == ["a", "b"]
    onnx.checker.check_model(ir.to_proto(made))


def test_the_ir_version_rises_if_weights_are_not_inputs() -> None:
    model = network()
    model.ir_version, model.opset_imports[""] = 3, 15
    copy = export_model(model, tensors())
    assert (copy.ir_version, model.ir_version) == (8, 3)
    onnx.checker.check_model(ir.to_proto(copy))


def test_initializers_that_are_inputs_too_stay_so() -> None:
    """As they had to before IR version 4; unused ones go from both lists."""
    text = """
        <ir_version: 3, opset_import: ["" : 8]>
        g (float[n, 2] x, float[2] w, float[2] u) => (float[n, 2] y, float[n, 2] z)
        <float[2] w = {1, 2}, float[2] u = {3, 4}>
        { y = Mul(x, w) z = Add(x, u) }"""
    made = export_model(load(onnx.parser.parse_model(text)), {"w": np.float32([5, 6])}, ["y"])
    assert names_of(made.graph.inputs) == ["x", "w"] and list(made.graph.initializers) == ["w"]
    onnx.checker.check_model(ir.to_proto(made))


# -- files ---------------------------------------------------------------------------------------


def test_large_weights_go_to_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onward.graph.files, "_EMBEDDED_AT_MOST", 16)
    given, x = tensors(), real(5, 4)
    save(network(), tmp_path / "original.onnx")
    program: Any = SimpleNamespace(model=tmp_path / "original.onnx")
    write(program, given, tmp_path / "trained.onnx", ["logits"])
    assert (tmp_path / "trained.onnx.data").exists()
    onnx.checker.check_model(str(tmp_path / "trained.onnx"), full_check=True)
    original = load(tmp_path / "original.onnx")
    wanted = expected(original, given, x)["logits"]
    assert_same([wanted], run_ort(load(tmp_path / "trained.onnx"), {"x": x}))


def test_a_program_without_its_model_cannot_export(tmp_path: Path) -> None:
    program: Any = SimpleNamespace(model=None)
    with pytest.raises(OptionError, match=r"does not contain the model .* nothing to export\nc"):
        write(program, {}, tmp_path / "trained.onnx")
