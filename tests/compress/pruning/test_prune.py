"""prune(): goals, importance, recovery, layers, zeros, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onward
from onward.compress import prune
from onward.compress.calibration import Calibration
from onward.compress.pruning import prune as pruning
from onward.compress.pruning import pruning_report, speed
from onward.compress.pruning.activations import (
    ActivationMoments,
    find_consumers,
    measure_moments,
)
from onward.compress.pruning.residual_blocks import find_blocks
from onward.compress.pruning.unit_costs import count_macs
from onward.compress.pruning.units import find_positions, prepare
from onward.compress.timing import time_in_turns
from onward.errors import OptionError
from onward.losses.classification import CrossEntropy
from onward.sessions.inference import InferenceSession
from tests.compress.pruning.law import Net


@pytest.fixture(autouse=True)
def short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for milliseconds: no test reads the times."""

    def take_short_turns(models: Any, feeds: Any, **options: Any) -> dict[str, float]:
        return time_in_turns(models, feeds, **{**options, "seconds": 0.001})

    monkeypatch.setattr(pruning_report, "time_in_turns", take_short_turns)


def make_mlp(hidden: int = 64) -> ir.Model:
    op = Net(1)
    x = op.input("x", "float32", ("batch", 8))
    h = op.Relu(op.Gemm(x, op.weight(8, hidden), op.weight(hidden)))
    h = op.Add(op.MatMul(h, op.weight(hidden, 32)), op.weight(32))
    return op.finish(op.Gemm(op.Relu(h), op.weight(32, 4), op.weight(4)))


def make_residual(blocks: int = 3) -> ir.Model:
    op = Net(2)
    h = op.MatMul(op.input("x", "float32", ("batch", 8)), op.weight(8, 16))
    for number in range(blocks):
        f = op.MatMul(op.Tanh(op.MatMul(h, op.weight(16, 16))), op.weight(16, 16))
        h = op.Add(h, op.Mul(f, 0.01 if number == 1 else 1.0))
    return op.finish(op.MatMul(h, op.weight(16, 4)))


def make_rows(count: int = 64) -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((count, 8)).astype(np.float32)
    return {"x": x, "label": random.integers(0, 4, count)}


def macs_of(model: ir.Model) -> int:
    return count_macs(model, {})


def test_half_of_each_group_stays() -> None:
    report = prune(make_mlp(), make_rows(), keep=0.5)
    assert [change.format for change in report.changes] == ["32 of 64 units", "16 of 32 units"]
    assert report.helped and report.after.macs is not None and report.before.macs is not None
    assert report.after.macs < 0.5 * report.before.macs
    assert report.after.parameters == 8 * 32 + 32 + 32 * 16 + 16 + 16 * 4 + 4


def test_original_is_not_changed_and_the_same_seed_gives_the_same_bytes() -> None:
    model = make_mlp()
    before = ir.to_proto(model).SerializeToString()
    first = ir.to_proto(prune(model, make_rows()).model).SerializeToString()
    assert ir.to_proto(model).SerializeToString() == before
    assert ir.to_proto(prune(model, make_rows()).model).SerializeToString() == first


@pytest.mark.parametrize("importance", ["magnitude", "activation", "gradient"])
def test_units_without_effect_go_first(importance: str) -> None:
    model = make_mlp(16)
    weights = [v for v in model.graph.initializers.values() if v.shape == ir.Shape([16, 32])]
    array = weights[0].const_value.numpy().copy()  # type: ignore[union-attr]
    array[::2] = 0  # nothing reads every second unit
    weights[0].const_value = ir.tensor(array, name=weights[0].name)
    first = next(v for v in model.graph.initializers.values() if len(v.shape or ()) == 2)
    small = first.const_value.numpy().copy()  # type: ignore[union-attr]
    small[:, ::2] *= 1e-3
    first.const_value = ir.tensor(small, name=first.name)
    report = prune(
        model, make_rows(), keep=0.5, importance=importance, only=[str(first.name)], multiple=1
    )
    assert report.changes[0].format == "8 of 16 units"
    assert report.after.quality is not None and report.after.quality.error < 1e-5


def test_activation_puts_the_mean_of_removed_units_into_the_bias() -> None:
    op = Net(3)
    x = op.input("x", "float32", ("batch", 8))
    bias = op.initializer("b", np.linspace(1, 9, 16, dtype=np.float32))
    weight = op.initializer("w0", np.zeros((8, 16), np.float32))  # constant units
    y = op.MatMul(op.Relu(op.Add(op.MatMul(x, weight), bias)), op.weight(16, 4))
    report = prune(op.finish(op.Add(y, op.weight(4))), make_rows(), importance="activation")
    assert report.after.quality is not None and report.after.quality.error < 1e-5


def test_gradient_of_a_loss_with_labels() -> None:
    report = prune(
        make_mlp(), make_rows(), importance="gradient", target="label", loss=CrossEntropy()
    )
    assert report.helped


def test_multiplications_are_reached() -> None:
    model = make_mlp()
    wanted = macs_of(model) // 3
    report = prune(model, make_rows(), macs=wanted, multiple=4)
    assert report.helped and report.after.macs is not None and report.after.macs <= wanted


def test_multiplications_that_cannot_be_reached_are_reported() -> None:
    report = prune(make_mlp(), make_rows(), macs=1)
    assert not report.helped and "were not reached" in report.notes[0]


def test_speedup_is_searched_with_measured_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_turns(models: dict[str, Any], feeds: Any, **options: Any) -> dict[str, float]:
        return {name: float(macs_of(onward.load(m))) for name, m in models.items()}

    monkeypatch.setattr(pruning_report, "time_in_turns", take_turns)
    monkeypatch.setattr(speed, "time_in_turns", take_turns)
    report = prune(make_mlp(), make_rows(), speedup=2.0, multiple=2)
    assert report.helped and report.speedup is not None and 2.0 <= report.speedup < 2.3
    best = prune(make_mlp(), make_rows(), speedup=1000.0)
    assert not best.helped and "1000 times as fast was not reached" in best.notes[0]


def test_layers_that_matter_least_become_the_identity() -> None:
    model = make_residual()
    names = [block.name for block in find_blocks(model)]
    report = prune(model, make_rows(), layers=1)
    assert [change.name for change in report.changes] == [names[1]]
    assert report.after.quality is not None and report.after.quality.similarity > 0.999


@pytest.mark.integration
def test_tuning_recovers_and_the_better_model_stays(tmp_path: Path) -> None:
    rows = make_rows(128)
    cut = prune(make_mlp(), rows, keep=0.5)
    tuned = prune(make_mlp(), rows, keep=0.5, tune=3, learning_rate=1e-2, folder=tmp_path)
    assert tuned.after.quality is not None and cut.after.quality is not None
    assert tuned.after.quality.error < cut.after.quality.error
    assert tuned.after.macs == cut.after.macs


def test_ctrl_c_while_tuning_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> ir.Model:
        raise KeyboardInterrupt

    monkeypatch.setattr(pruning, "match_teacher", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prune(make_mlp(), make_rows(), tune="5min")


@pytest.mark.parametrize(("asked", "share"), [({"pattern": "2:4"}, 0.5), ({"sparsity": 0.9}, 0.9)])
def test_zeros_inside_weights_bring_no_speed(asked: dict[str, Any], share: float) -> None:
    report = prune(make_mlp(), make_rows(), **asked)
    weights = [v for v in report.model.graph.initializers.values() if len(v.shape or ()) == 2]
    for value in weights:
        array = value.const_value.numpy()  # type: ignore[union-attr]
        assert abs(float((array == 0).mean()) - share) < 0.03
    assert "no speed on a CPU" in report.notes[0]
    assert report.after.macs == report.before.macs


def test_pattern_counts_along_the_summed_axis() -> None:
    report = prune(make_mlp(), make_rows(), pattern="2:4")
    weight = next(
        v for v in report.model.graph.initializers.values() if v.shape == ir.Shape([64, 32])
    )
    array = weight.const_value.numpy()  # type: ignore[union-attr]
    assert ((array.reshape(16, 4, 32) != 0).sum(axis=1) == 2).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep must be more than 0 and at most 1, not 0"),
        ({"keep": 1.5}, "keep must be more than 0 and at most 1, not 1.5"),
        ({"keep": 0.5, "speedup": 2.0}, "keep and speedup cannot both be given"),
        ({"speedup": 0.5}, "speedup must be more than 1"),
        ({"macs": "many"}, "macs is a number such as 1G"),
        ({"tune": "soon"}, "tune is a time such as 5min"),
        ({"importance": "luck"}, "there is no importance 'luck'"),
        ({"pattern": "4:2"}, "pattern is N:M"),
        ({"sparsity": 2.0}, "sparsity must be between 0 and 1"),
        ({"layers": 3}, "no residual blocks"),
        ({"multiple": 0}, "multiple must be at least 1"),
        ({"only": ["heads"]}, "only= and protect= leave out all groups"),
        ({"macs": "1T"}, "must be below the"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        prune(make_mlp(), make_rows(), **options)


def test_model_with_nothing_to_prune_is_refused() -> None:
    op = Net()
    model = op.finish(op.MatMul(op.input("x", "float32", (2, 8)), op.weight(8, 4)))
    with pytest.raises(OptionError, match="nothing to prune"):
        prune(model)


def test_saved_model_runs_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    prune(make_mlp(), keep=0.25).save(path)
    x = np.ones((3, 8), np.float32)
    (y,) = InferenceSession(path).run(None, {"x": x})
    (z,) = InferenceSession(path, providers=["reference"]).run(None, {"x": x})
    np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6)


def moments(model: ir.Model, *batches: Any) -> dict[str, ActivationMoments]:
    """The moments of what the consumers of a model read, over these batches of its input."""
    ready = prepare(model)
    consumers = find_consumers(ready, find_positions(ready))
    inputs = InferenceSession(ready).get_inputs()
    data = Calibration([{"x": batch} for batch in batches], inputs)
    return measure_moments(ready, consumers, data)


def test_batches_count_by_their_rows_in_the_moments_of_activations() -> None:
    x = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    whole, parts = moments(make_mlp(), x), moments(make_mlp(), x[:17], x[17:])
    assert whole.keys() == parts.keys() and whole
    for name in whole:
        np.testing.assert_allclose(parts[name].mean, whole[name].mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(parts[name].variance, whole[name].variance, rtol=1e-4, atol=1e-6)


def test_nan_inside_the_model_is_left_out_of_the_moments_of_activations() -> None:
    op = Net(1)
    h = op.Gemm(op.input("x", "float32", ("batch", 8)), op.weight(8, 16), op.weight(16))
    h = op.Sqrt(op.Add(h, 50.0))
    model = op.finish(op.Gemm(h, op.weight(16, 4), op.weight(4)))
    good = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    bad = 1000 * good  # below -50 somewhere: the square root is NaN
    [expected], [found] = (moments(model, *each).values() for each in ([good], [good, bad]))
    np.testing.assert_array_equal(found.mean, expected.mean)
    assert moments(model, bad) == {}
    report = prune(model, [{"x": good}, {"x": bad}], importance="activation", keep=0.5)
    tensors = [each.const_value for each in report.model.graph.initializers.values()]
    assert all(np.isfinite(tensor.numpy()).all() for tensor in tensors if tensor is not None)


def test_a_model_that_ends_with_maps_is_pruned(tmp_path: Path) -> None:
    """Classifiers of scikit-learn end with a ZipMap, whose type onnx-ir does not write."""
    model = mlp_with_maps()
    rows = {"x": np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)}
    report = prune(model, keep=0.5, data=rows)
    report.save(tmp_path / "small.onnx")
    assert report.after.file_bytes == (tmp_path / "small.onnx").stat().st_size
    scores = InferenceSession(tmp_path / "small.onnx").run(None, rows)[0]
    assert len(scores) == 32 and set(scores[0]) == {0, 1, 2, 3}


def mlp_with_maps() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w, v = (rng.normal(size=each).astype(np.float32) for each in ((64, 64), (64, 4)))
    kind = onnx.helper.make_map_type_proto(
        onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
            onnx.helper.make_node("Relu", ["a"], ["b"]),
            onnx.helper.make_node("MatMul", ["b", "v"], ["c"]),
            onnx.helper.make_node("Softmax", ["c"], ["p"]),
            onnx.helper.make_node(
                "ZipMap", ["p"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3]
            ),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 64])],
        [onnx.helper.make_value_info("y", onnx.helper.make_sequence_type_proto(kind))],
        [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(v, "v")],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_rows_of_an_input_without_a_shape() -> None:
    model = mlp_with_maps()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    rows = {"x": np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)}
    assert prune(model, sparsity=0.5, data=rows).after.quality is not None
