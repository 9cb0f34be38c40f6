"""Models whose layers are inside of If: quantized or pruned there, or named as left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress import prune, quantize
from onward.compress.calibration import Calibration
from onward.compress.pruning import pruning_report
from onward.compress.quantization.int8.quantizer import Int8Quantizer
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession
from tests.compress.pruning.law import check_law

Array = np.ndarray[Any, Any]
WEIGHTS = ("inside", "outside", "shared")  # of the branch, of the main graph, of both branches


def make_model(weights: str = "inside", *, head: bool = False) -> ir.Model:
    """Two layers in each branch of an If: relu(x w1 + b1) w2 + b2; with a head, one behind it."""
    rng = np.random.default_rng(0)
    op = OpBuilder(18)
    x, flag = op.input("x", "float32", ("batch", 64)), op.input("flag", "bool", ())
    made: dict[str, ir.Value] = {}

    def weight(inner: OpBuilder, name: str, *shape: int) -> ir.Value:
        if name not in made:
            array = (rng.normal(size=shape) / 8).astype(np.float32)
            made[name] = (inner if weights == "inside" else op).initializer(name, array)
        return made[name]

    branches = []
    for branch in ("then", "else"):
        inner, prefix = OpBuilder(18), "both" if weights == "shared" else branch
        w1, b1 = weight(inner, f"{prefix}_w1", 64, 128), weight(inner, f"{branch}_b1", 128)
        w2, b2 = weight(inner, f"{prefix}_w2", 128, 32), weight(inner, f"{branch}_b2", 32)
        y = inner.Add(inner.MatMul(inner.Relu(inner.Gemm(x, w1, b1)), w2), b2)
        y.name = f"{branch}_y"
        inner.graph.outputs.append(y)
        branches.append(inner.graph)
    y = op.If(flag, then_branch=branches[0], else_branch=branches[1])
    y.type, y.shape = x.type, ir.Shape([ir.SymbolicDim("batch"), 32])
    return op.model(y=op.MatMul(op.Tanh(y), weight(op, "head", 32, 64)) if head else y)


def rows() -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [
        {"x": rng.normal(size=(8, 64)).astype(np.float32), "flag": np.array(flag)}
        for flag in (True, False)
    ]


def error(model: ir.Model, changed: ir.Model) -> float:
    """The largest relative error of both branches."""
    sessions = InferenceSession(model), InferenceSession(changed)
    pairs = [[each.run(None, feeds)[0] for each in sessions] for feeds in rows()]
    return max(float(np.linalg.norm(z - y) / np.linalg.norm(y)) for y, z in pairs)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("bits", "most"), [(8, 0.02), (4, 0.2), (2, 0.8)])
def test_weights_of_inner_graphs_are_stored_in_few_bits(
    weights: str, bits: int, most: float
) -> None:
    model = make_model(weights)
    quantizer = WeightQuantizer(model, bits=bits)
    assert len(quantizer.plan) == 4 and not quantizer.refused
    written = quantizer.write(quantizer.plan)
    assert error(model, written) < most
    names = [name for graph in written.graphs() for name in graph.initializers]
    assert not [name for name in names if name.endswith(("_w1", "_w2"))]  # no float weight is left


def test_int8_names_the_layers_that_it_leaves() -> None:
    model = make_model(head=True)
    quantizer = Int8Quantizer(model, Calibration(rows(), InferenceSession(model).get_inputs()))
    assert len(quantizer.plan) == 1 and len(quantizer.refused) == 4
    (note,) = (each for each in quantizer.notes if "VNNI" not in each)  # of this processor
    assert "and 3 more stayed float inside of If, Loop or Scan" in note
    assert error(model, quantizer.write(quantizer.plan)) < 0.05


def test_report_of_a_model_that_is_all_inside_says_so() -> None:
    report = quantize(make_model(), rows(), "int8", memory=False)
    assert not report.helped and report.rejected is None
    assert "4 of its layers: it is inside If, Loop or Scan" in report.notes[0]
    assert "int4 stores weights of inner graphs, too" in report.notes[1]
    assert [change.reason for change in report.changes] == ["it is inside If, Loop or Scan"] * 4


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("importance", ["magnitude", "activation", "gradient"])
def test_units_of_inner_graphs_are_removed(
    weights: str, importance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_turns(models: dict[str, Any], feeds: Any, **options: Any) -> dict[str, float]:
        return dict.fromkeys(models, 1.0)

    monkeypatch.setattr(pruning_report, "time_in_turns", take_turns)
    report = prune(make_model(weights), rows(), keep=0.5, importance=importance)
    assert {change.format for change in report.changes} == {"64 of 128 units"}
    assert len(report.changes) == (1 if weights == "shared" else 2)
    assert 0 < error(make_model(weights), report.model) < 1
    note = f"rated by magnitude: {importance} has no figures of them"
    is_measured = importance == "gradient" and weights != "inside"  # of weights of the main graph
    assert (note in " ".join(report.notes)) == (importance != "magnitude" and not is_measured)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("head", [False, True])
def test_model_without_inner_units_equals_the_one_with_zeros(weights: str, head: bool) -> None:
    for seed in range(4):  # of the feeds, so that both branches run
        groups = check_law(make_model(weights, head=head), seed, {"batch": 3})
        assert len(groups) == (1 if weights == "shared" else 2)
