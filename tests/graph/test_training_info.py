"""TrainingInfo: read, written, checked, and run as one step on stock onnxruntime."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onward
from onward.errors import InvalidModel
from onward.gradients.training_operators import DOMAIN, step_model
from onward.graph.training_info import (
    TrainingInfo,
    read_training_info,
    to_proto,
    write_training_info,
)

MODEL = f"""
    <ir_version: 10, opset_import: ["": 17, "{DOMAIN}": 1]>
    line (float[8,2] x) => (float[8,1] y)
    <float[2,1] w = {{0.1, -0.2}}, float[1] b = {{0}}>
    {{ h = MatMul(x, w)  y = Add(h, b) }}
"""
ALGORITHM = f"""
    step (float[8,1] target) => (float loss, float[2,1] w_new, float[1] b_new, float[2,1] vw_new,
        float[1] vb_new, float[2,1] hw_new, float[1] hb_new, int64 t_new)
    <float rate = {{0.1}}, int64 t = {{0}}, int64 one = {{1}}, float[2,1] vw = {{0, 0}},
     float[1] vb = {{0}}, float[2,1] hw = {{0, 0}}, float[1] hb = {{0}}>
    {{
        off = Sub(y, target)
        squares = Mul(off, off)
        loss = ReduceMean<keepdims=0>(squares)
        dw, db = {DOMAIN}.Gradient<xs=["w", "b"], zs=["x", "target"], y="loss">(w, b, x, target)
        w_new, b_new, vw_new, vb_new, hw_new, hb_new =
            {DOMAIN}.Adam<norm_coefficient = 0.0>(rate, t, w, b, dw, db, vw, vb, hw, hb)
        t_new = Add(t, one)
    }}
"""
START = """
    start () => (float[2,1] w_first, int64 t_first)
    <int64 zero = {0}> {
        w_first = RandomUniform<shape=[2,1], low=-0.1, high=0.1, seed=3.0>()
        t_first = Identity(zero)
    }
"""
BINDING = {name: f"{name}_new" for name in ("w", "b", "vw", "vb", "hw", "hb", "t")}


def model() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(MODEL))


def info() -> TrainingInfo:
    return TrainingInfo(
        algorithm=ir.from_proto(onnx.parser.parse_graph(ALGORITHM)),
        update_binding=BINDING,
        initialization=ir.from_proto(onnx.parser.parse_graph(START)),
        initialization_binding={"w": "w_first", "t": "t_first"},
    )


# -- read and written ------------------------------------------------------------------------------


def test_training_info_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "line.onnx"
    write_training_info(model(), [info()], path)
    (again,) = read_training_info(path)
    assert again.update_binding == BINDING
    assert again.initialization_binding == {"w": "w_first", "t": "t_first"}
    for got, wanted in (
        (again.algorithm, info().algorithm),
        (again.initialization, info().initialization),
    ):
        assert ir.to_proto(got).SerializeToString() == ir.to_proto(wanted).SerializeToString()
    assert to_proto(onward.load(path), [again]) == onnx.load(path)


def test_the_model_still_runs(tmp_path: Path) -> None:
    path = tmp_path / "line.onnx"
    write_training_info(model(), [info()], path)
    x = np.ones((8, 2), np.float32)
    (y,) = onward.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(y, np.full((8, 1), -0.1), rtol=1e-5)


def test_a_model_without_training_info_has_none() -> None:
    assert read_training_info(onnx.parser.parse_model(MODEL)) == []


def test_an_onnx_ir_model_is_refused() -> None:
    with pytest.raises(TypeError, match="give what it was loaded from"):
        read_training_info(model())


# -- checked ---------------------------------------------------------------------------------------


def test_only_initializers_are_updated() -> None:
    wrong = dataclasses.replace(info(), update_binding={"x": "w_new"})
    with pytest.raises(
        InvalidModel, match=r"update_binding updates 'x', which is not an initializer\n"
    ):
        to_proto(model(), [wrong])


def test_only_outputs_update() -> None:
    wrong = dataclasses.replace(info(), update_binding={"w": "dw"})
    with pytest.raises(
        InvalidModel, match=r"update_binding takes 'dw', which is not an output\nthere"
    ):
        to_proto(model(), [wrong])


def test_initialization_bindings_take_its_outputs() -> None:
    wrong = dataclasses.replace(info(), initialization_binding={"w": "loss"})
    with pytest.raises(
        InvalidModel, match="initialization_binding takes 'loss', which is not an out"
    ):
        to_proto(model(), [wrong])


def test_a_variable_is_updated_once() -> None:
    with pytest.raises(InvalidModel, match="two training infos update"):
        to_proto(model(), [info(), info()])


def test_bindings_in_a_file_are_checked() -> None:
    proto = to_proto(model(), [info()])
    proto.training_info[0].update_binding[0].key = "nobody"
    with pytest.raises(InvalidModel, match="'nobody', which is not an initializer"):
        read_training_info(proto)


def test_a_graph_that_onnx_ir_refuses_is_named() -> None:
    proto = to_proto(model(), [info()])
    proto.training_info[0].algorithm.node[0].output[0] = "loss"
    with pytest.raises(InvalidModel, match="the training info's algorithm breaks ONNX's rules"):
        read_training_info(proto)


# -- run -------------------------------------------------------------------------------------------


def test_twenty_steps_on_stock_onnxruntime_make_the_loss_fall() -> None:
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    target = x @ np.array([[1.0], [-2.0]], np.float32) + 0.5
    step = step_model(model(), info())
    session = onward.InferenceSession(
        step, onward.SessionOptions(disable_fallback=True), ["CPUExecutionProvider"]
    )
    names = [arg.name for arg in session.get_outputs()]
    variables: dict[str, np.ndarray] = {}
    losses = []
    for _ in range(20):
        results = dict(zip(names, session.run(None, {"x": x, "target": target, **variables})))
        variables = {name: results[new] for name, new in BINDING.items()}
        losses.append(float(results["loss"]))
    assert losses[-1] < 0.2 * losses[0]
    assert losses == sorted(losses, reverse=True)
    assert variables["t"] == 20


def test_a_step_starts_from_the_initializers() -> None:
    step = step_model(model(), info())
    assert {value.name for value in step.graph.inputs} == {"x", "target", *BINDING}
    assert set(BINDING) <= set(step.graph.initializers)


def test_the_initialization_gives_first_values() -> None:
    graph = info().initialization
    assert graph is not None
    graph.opset_imports.update(model().opset_imports)
    first = ir.Model(graph, ir_version=8)
    w, t = onward.InferenceSession(first).run(["w_first", "t_first"], {})
    assert w.shape == (2, 1) and np.abs(w).max() <= 0.1 and t == 0


def test_names_that_both_graphs_have_are_refused() -> None:
    wrong = info()
    assert wrong.algorithm is not None
    wrong.algorithm.node(0).outputs[0].name = "h"
    with pytest.raises(InvalidModel, match="both have a value 'h'"):
        step_model(model(), wrong)


def test_values_that_nothing_produces_are_refused() -> None:
    graph = onnx.parser.parse_graph("s () => (float[2,1] w_new) { w_new = Neg(nothing) }")
    wrong = TrainingInfo(algorithm=ir.from_proto(graph), update_binding={"w": "w_new"})
    with pytest.raises(InvalidModel, match="reads 'nothing', which neither graph computes"):
        step_model(model(), wrong)
