"""Training and eval graphs: modes, state, trained parameters."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from onward.errors import MissingGradient, OptionError
from onward.passes.value_facts import attribute
from onward.training.artifact_graphs import build_artifact_graphs
from tests.training.nets import (
    MLP,
    arrays,
    convolutional,
    float_info,
    mlp,
    model_of,
    names,
    opened,
)


def lossy(model: object) -> ir.Model:
    """The model with the sum of its output as loss."""
    model = ir.to_proto(model) if isinstance(model, ir.Model) else model
    model.graph.node.append(helper.make_node("ReduceSum", ["output"], ["loss"], keepdims=0))  # type: ignore[attr-defined]
    model.graph.output.insert(0, float_info("loss", []))  # type: ignore[attr-defined]
    return ir.from_proto(model)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def modes(model: ir.Model) -> list[int]:
    nodes = [node for node in model.graph if node.op_type == "BatchNormalization"]
    return [attribute(node, "training_mode", 0) for node in nodes]


@pytest.mark.parametrize(
    ("exported", "trained", "mode"),
    [(0, ["fc.weight"], 0), (0, ["bn.weight"], 1), (0, ["bn.bias"], 1), (1, ["fc.weight"], 1)],
)
def test_batch_norm_trains_if_exported_in_training_mode_or_trained(
    exported: int, trained: list[str], mode: int
) -> None:
    model = lossy(convolutional(training_mode=exported))
    found = build_artifact_graphs(model, ["loss"], trained, [])
    assert modes(found.training) == [mode]
    assert modes(found.evaluation) == [0]
    running = ["bn.running_mean", "bn.running_var"] if mode else []
    assert list(found.frozen) == running
    outputs = [value.name for value in found.training.graph.outputs]
    assert outputs[2:] == [f"{name}_updated" for name in running]


def test_running_statistics_require_no_gradient(caplog: pytest.LogCaptureFixture) -> None:
    model = lossy(convolutional())
    every = [name for name in model.graph.initializers if name.startswith(("bn", "fc"))]
    with caplog.at_level(logging.WARNING, "onward"):
        found = build_artifact_graphs(model, ["loss"], every, [])
    assert list(found.trainable) == ["bn.weight", "bn.bias", "fc.weight", "fc.bias"]
    assert "'bn.running_mean' requires no gradient" in caplog.text


def test_statistics_that_were_outputs_keep_both_names() -> None:
    model = lossy(convolutional())
    norm = next(node for node in model.graph if node.op_type == "BatchNormalization")
    model.graph.outputs.append(norm.outputs[1])
    norm.outputs[1].type, norm.outputs[1].shape = norm.inputs[3].type, norm.inputs[3].shape  # type: ignore[union-attr]
    found = build_artifact_graphs(model, ["loss", "new_mean"], ["fc.weight"], [])
    names = [value.name for value in found.training.graph.outputs]
    assert names[:2] == ["loss", "new_mean"]
    assert names[-2:] == ["bn.running_mean_updated", "bn.running_var_updated"]


def test_dropout_is_active_only_in_the_training_graph() -> None:
    found = build_artifact_graphs(lossy(convolutional(dropout=True)), ["loss"], ["fc.weight"], [])
    (dropout,) = (node for node in found.training.graph if node.op_type == "Dropout")
    for value in dropout.inputs[1:]:  # onnxruntime would remove it else
        assert value is not None and value.producer() is not None
    (idle,) = (node for node in found.evaluation.graph if node.op_type == "Dropout")
    assert list(ir.to_proto(idle).input) == ["flat", "ratio", ""]


@pytest.mark.parametrize("inputs", [["x", "ratio", "on"], ["x", "", "on"], ["x"]])
def test_dropout_of_an_input_is_active(inputs: list[str]) -> None:
    nodes = [
        helper.make_node("Dropout", inputs, ["kept"]),
        helper.make_node("Mul", ["kept", "w"], ["output"]),
    ]
    weights = {"w": np.ones(64, np.float32), "ratio": np.array(0.5, np.float32)}
    weights["on"] = np.array(True)
    model = lossy(model_of(nodes, [float_info("x", [64])], [float_info("output", [64])], weights))
    session = opened(ir.to_proto(build_artifact_graphs(model, ["loss"], ["w"], []).training))
    ones = np.ones(64, np.float32)
    feeds = {"x": ones, "w": ones, "w_grad.accumulation.buffer": ones}
    feeds["lazy_reset_grad"] = np.array([True])
    gradients = [session.run(None, feeds)[1] for _ in range(4)]
    assert {value for each in gradients for value in each.tolist()} == {0.0, 2.0}
    assert any((gradients[0] != each).any() for each in gradients[1:])


def test_gradient_before_the_sum_is_named() -> None:
    proto = ir.to_proto(build_artifact_graphs(lossy(mlp()), ["loss"], [*MLP, "input"], []).training)
    for name in (*MLP, "input"):
        proto.graph.output.add(name=f"{name}_grad")
    feeds = arrays(mlp().graph.initializer)
    feeds["input"] = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    feeds |= {f"{name}_grad.accumulation.buffer": array for name, array in feeds.items()}
    feeds["lazy_reset_grad"] = np.array([False])
    session = opened(proto)
    found = dict(zip(names(session.get_outputs()), session.run(None, feeds)))
    for name in (*MLP, "input"):
        summed = feeds[name] + found[f"{name}_grad"]
        np.testing.assert_array_equal(found[f"{name}_grad.accumulation.out"], summed)


def test_gradient_of_an_inner_value_is_an_output() -> None:
    found = build_artifact_graphs(lossy(mlp()), ["loss"], ["active", "fc1.bias"], [])
    names = [value.name for value in found.training.graph.outputs]
    assert names == ["loss", "active_grad", "fc1.bias_grad.accumulation.out"]
    assert list(found.trainable) == ["fc1.bias"]
    feeds: dict[str, object] = {"fc1.bias": np.zeros(5, np.float32)}
    feeds |= {"input": np.ones((2, 4), np.float32), "lazy_reset_grad": np.array([True])}
    feeds["fc1.bias_grad.accumulation.buffer"] = np.zeros(5, np.float32)
    (gradient,) = opened(ir.to_proto(found.training)).run(["active_grad"], feeds)
    weight = arrays(mlp().graph.initializer)["fc2.weight"]  # (3, 5)
    np.testing.assert_allclose(gradient, [weight.sum(0)] * 2, rtol=1e-6)


def test_gradient_name_that_is_taken_is_not_used() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["w_grad"]),
        helper.make_node("Mul", ["w_grad", "w"], ["output"]),
    ]
    model = model_of(
        nodes, [float_info("x", [2])], [float_info("output", [2])], {"w": np.ones(2, np.float32)}
    )
    made = build_artifact_graphs(lossy(model), ["loss"], ["w"], []).training
    named = [value.name for node in made.graph for value in node.outputs]
    assert named.count("w_grad") == 1
    assert opened(ir.to_proto(made))


def test_parameters_of_branches_are_found() -> None:
    branch = [
        helper.make_graph(
            [helper.make_node("Mul", ["x", name], [f"y_{name}"])],
            name,
            [],
            [float_info(f"y_{name}", [3])],
            [helper.make_tensor(name, 1, [3], [1.0, 2.0, 3.0])],
        )
        for name in ("a", "b")
    ]
    nodes = [
        helper.make_node("If", ["which"], ["output"], then_branch=branch[0], else_branch=branch[1])
    ]
    inputs = [float_info("x", [3]), helper.make_tensor_value_info("which", 9, [])]
    model = lossy(model_of(nodes, inputs, [float_info("output", [3])], {}))
    found = build_artifact_graphs(model, ["loss"], ["a"], ["b"])
    assert list(found.trainable) == ["a"]
    assert list(found.frozen) == ["b"]


def test_computed_shapes_are_folded_before_differentiation() -> None:
    """As torch's exporter writes attention: the number of axes takes folding to find."""
    nodes = [
        helper.make_node("Sub", ["three", "one"], ["two"]),
        helper.make_node("Slice", ["sizes", "zero", "two"], ["shape"]),
        helper.make_node("Reshape", ["y", "shape"], ["matrix"]),
        helper.make_node("Gather", ["matrix", "row"], ["output"], axis=0),
    ]
    nodes.insert(0, helper.make_node("Mul", ["x", "w"], ["y"]))
    integers = {"three": [3], "one": [1], "zero": [0], "sizes": [2, -1, 7], "row": [1]}
    weights = {name: np.array(value) for name, value in integers.items()}
    model = model_of(
        nodes,
        [float_info("x", [6])],
        [float_info("output", [1, 3])],
        weights | {"w": np.ones(6, "f")},
    )
    found = build_artifact_graphs(lossy(model), ["loss"], ["w"], [])
    session = opened(ir.to_proto(found.training))
    x = np.arange(6, dtype=np.float32)
    feeds = {"x": x, "w": x, "w_grad.accumulation.buffer": x, "lazy_reset_grad": np.array([True])}
    assert session.run(None, feeds)[1].tolist() == [0, 0, 0, 3, 4, 5]


def test_integer_weights_require_no_gradient(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [helper.make_node("Gather", ["table", "rows"], ["output"])]
    weights = {"table": np.ones((3, 2), np.float32), "rows": np.array([0, 1])}
    model = lossy(model_of(nodes, [], [float_info("output", [2, 2])], weights))
    with caplog.at_level(logging.WARNING, "onward"):
        found = build_artifact_graphs(model, ["loss"], ["rows", "table"], [])
    assert list(found.trainable) == ["table"] and not found.frozen
    assert "'rows' requires no gradient: it is INT64" in caplog.text


def test_integer_input_has_no_gradient() -> None:
    nodes = [helper.make_node("Gather", ["table", "rows"], ["output"])]
    inputs = [helper.make_tensor_value_info("rows", 7, [2])]
    weights = {"table": np.ones((3, 2), np.float32)}
    model = lossy(model_of(nodes, inputs, [float_info("output", [2, 2])], weights))
    with pytest.raises(OptionError, match="'rows' is INT64: only float values have gradients"):
        build_artifact_graphs(model, ["loss"], ["rows"], [])


def test_an_operator_without_a_rule_is_named() -> None:
    nodes = [helper.make_node("Mystery", ["x", "w"], ["output"], domain="ops.mine", name="it")]
    proto = model_of(
        nodes, [float_info("x", [3])], [float_info("output", [3])], {"w": np.ones(3, np.float32)}
    )
    proto.opset_import.append(helper.make_opsetid("ops.mine", 1))
    with pytest.raises(MissingGradient, match=r"no gradient rule for ops\.mine::Mystery"):
        build_artifact_graphs(lossy(proto), ["loss"], ["w"], [])


def test_the_gradients_of_the_graph_are_counted() -> None:
    found = build_artifact_graphs(lossy(mlp()), ["loss"], ["fc2.weight", "fc2.bias"], [])
    assert operators(found.training).count("If") == 2  # one for each buffer
    assert len(operators(found.training)) <= 16
