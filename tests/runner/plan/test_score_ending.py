"""Models whose output is probabilities: the loss reads the scores before them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.losses.classification import BCEWithLogits, CrossEntropy
from onward.runner.plan.model_shapes import read_ports
from onward.runner.plan.one_versus_rest import OneVersusRest
from onward.runner.plan.score_ending import TWO_PROBABILITIES
from onward.sessions.training.session import TrainingSession
from tests.models_ml import ml
from tests.runner.plan.planned_runs import plan_of, reasons, train

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 4)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int64)
DATA = {"x": X, "label": LABELS}
W1 = RNG.normal(size=(4, 1)).astype(np.float32)


def classifier(finish: Callable[[Any, Any], Any], w: Any = W1) -> Any:
    """x @ w, and what is done to it; the model's output is called p."""
    op = onward.OpBuilder()
    scores = op.MatMul(op.input("x", "float32", ("n", 4)), op.initializer("w", w))
    scores.name = "scores"
    return op.model(p=finish(op, scores))


def both(op: Any, z: Any) -> Any:
    p = op.Sigmoid(z)
    return op.Concat(op.Sub(np.ones(1, np.float32), p), p, axis=1)


def stacked(op: Any, z: Any) -> Any:
    """As torch.stack([1 - p, p], -1) of p of shape (n,)."""
    p = op.Squeeze(op.Sigmoid(z), np.array([1]))
    rest = op.Sub(np.float32(1), p)
    last = np.array([-1])
    return op.Concat(op.Unsqueeze(rest, last), op.Unsqueeze(p, last), axis=-1)


@pytest.mark.parametrize("finish", [both, stacked])
def test_two_probabilities_are_trained_as_one_score(finish: Any) -> None:
    plan = plan_of(classifier(finish), DATA)
    assert plan.loss == BCEWithLogits(output="scores", target="target")
    loss = next(each for each in plan.choices if each.what == "loss")
    assert loss.why == (
        "target 'label' has 2 classes, the output their two probabilities; it reads the scores "
        "before the final Sigmoid and Concat"
    )
    # the loss of the first step is the cross entropy of the model's own probabilities
    batch = next(plan.training.epoch(0))
    p = 1 / (1 + np.exp(-(batch.feeds["x"] @ W1)[:, 0]))
    labels = LABELS[batch.positions]
    expected = -np.log(np.where(labels == 1, p, 1 - p)).mean()
    assert train(plan, steps=1)["loss"] == pytest.approx(expected, rel=1e-5)
    assert plan.preprocessing.output == "p" and plan.preprocessing.probabilities
    assert plan.preprocessing.decode({"p": np.array([[0.9, 0.1], [0.2, 0.8]])}) == [0, 1]


def test_names_of_two_classes_follow_the_two_probabilities() -> None:
    data = {"x": X, "label": np.array(["no", "yes"], object)[LABELS].tolist()}
    plan = plan_of(classifier(both), data)
    assert plan.classes == ("no", "yes")
    assert plan.preprocessing.decode({"p": np.array([[0.9, 0.1], [0.2, 0.8]])}) == ["no", "yes"]


def test_cross_entropy_of_two_probabilities_is_binary() -> None:
    plan = plan_of(classifier(both), DATA, loss="cross_entropy")
    assert isinstance(plan.loss, BCEWithLogits) and plan.output == "scores"
    assert reasons(plan)["loss"] == "bce_with_logits"


@pytest.mark.parametrize(
    "finish",
    [
        lambda op, z: op.Identity(op.Sigmoid(z)),
        lambda op, z: op.Squeeze(op.Sigmoid(z), np.array([1])),
        lambda op, z: op.Reshape(op.Sigmoid(z), np.array([-1])),
        lambda op, z: op.Cast(op.Sigmoid(z), to=TensorProto.DOUBLE),
    ],
    ids=["identity", "squeeze", "reshape", "cast"],
)
def test_views_of_a_sigmoid_are_left_out_of_the_loss(finish: Any) -> None:
    plan = plan_of(classifier(finish), DATA)
    assert plan.loss == BCEWithLogits(output="scores", target="target")
    assert train(plan)["loss"] > 0


def test_views_of_a_softmax_keep_its_classes() -> None:
    w = RNG.normal(size=(4, 2)).astype(np.float32)
    plan = plan_of(classifier(lambda op, z: op.Identity(op.Softmax(z, axis=-1)), w), DATA)
    assert plan.loss == CrossEntropy(output="scores", target="target")
    turned = classifier(lambda op, z: op.Reshape(op.Softmax(z, axis=-1), np.array([-1, 1, 2])), w)
    assert read_ports(turned).scores.ending == ""  # the classes moved to another axis


def softmax(op: Any, z: Any, axes: Any = (1,)) -> Any:
    exp = op.Exp(op.Sub(z, op.ReduceMax(z, np.array([1]), keepdims=1)))
    return op.Div(exp, op.ReduceSum(exp, np.array(axes), keepdims=1))


@pytest.mark.parametrize(
    "finish",
    [
        lambda op, z: op.Clip(op.Softmax(z, axis=-1), np.float32(1e-7), np.float32(1 - 1e-7)),
        lambda op, z: op.Clip(op.Softmax(z, axis=-1), np.float32(1e-7)),
        softmax,
        lambda op, z: op.Clip(softmax(op, z), np.float32(0), np.float32(1)),
    ],
    ids=["clipped", "clipped below", "written out", "both"],
)
def test_clipped_and_written_probabilities_are_those_of_scores(finish: Any) -> None:
    w = RNG.normal(size=(4, 2)).astype(np.float32)
    plan = plan_of(classifier(finish, w), DATA)
    assert isinstance(plan.loss, CrossEntropy) and reasons(plan)["loss"] == "cross_entropy"
    assert read_ports(classifier(finish, w)).scores.ending == "Softmax"
    # the loss of the first step is the cross entropy of the model's own probabilities
    batch = next(plan.training.epoch(0))
    exp = np.exp(batch.feeds["x"] @ w)
    p = exp / exp.sum(1, keepdims=True)
    expected = -np.log(p[np.arange(len(p)), LABELS[batch.positions]]).mean()
    assert train(plan, steps=1)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "finish",
    [
        lambda op, z: op.Clip(op.Softmax(z, axis=-1), np.float32(0.1), np.float32(0.9)),
        lambda op, z: softmax(op, z, (0,)),
        lambda op, z: op.Div(op.Exp(z), op.ReduceSum(z, np.array([1]), keepdims=1)),
    ],
    ids=["clipped far from 0 and 1", "over rows", "another sum"],
)
def test_other_quotients_and_clips_are_no_probabilities(finish: Any) -> None:
    w = RNG.normal(size=(4, 2)).astype(np.float32)
    assert read_ports(classifier(finish, w)).scores.ending == ""


@pytest.mark.parametrize(
    "finish",
    [
        lambda op, z: op.Concat(op.Sigmoid(z), op.Sigmoid(z), axis=1),
        lambda op, z: op.Concat(op.Sub(np.float32(2), op.Sigmoid(z)), op.Sigmoid(z), axis=1),
        lambda op, z: op.Concat(op.Sub(np.float32(1), z), op.Sigmoid(z), axis=1),
        lambda op, z: op.Concat(op.Sigmoid(z), op.Sub(np.float32(1), op.Sigmoid(z)), axis=1),
        lambda op, z: op.Concat(op.Sub(np.float32(1), op.Sigmoid(z)), op.Sigmoid(z), axis=0),
    ],
    ids=["twice", "two", "another", "reversed", "rows"],
)
def test_other_concats_are_no_probabilities(finish: Any) -> None:
    assert read_ports(classifier(finish)).scores.ending == ""


def test_sigmoid_of_each_class_is_trained_as_it_is() -> None:
    """As LogisticRegression of two classes: the scores are -z and z."""
    w = np.concatenate([-W1, W1], 1)
    plan = plan_of(classifier(lambda op, z: op.Sigmoid(z), w), DATA)
    assert plan.loss == OneVersusRest(output="scores", target="target")
    loss = next(each for each in plan.choices if each.what == "loss")
    assert loss.value == "bce_with_logits" and loss.why.endswith(
        "before the final Sigmoid, where every class has its own"
    )
    batch = next(plan.training.epoch(0))
    p = 1 / (1 + np.exp(-(batch.feeds["x"] @ W1)[:, 0]))
    expected = -np.log(np.where(LABELS[batch.positions] == 1, p, 1 - p)).mean()
    assert train(plan, steps=1)["loss"] == pytest.approx(expected, rel=1e-5)


def test_one_versus_rest_is_the_binary_cross_entropy_of_torch() -> None:
    torch = pytest.importorskip("torch")
    w = RNG.normal(size=(4, 3)).astype(np.float32)
    data = {"x": X, "label": np.arange(40) % 3}
    plan = plan_of(classifier(lambda op, z: op.Sigmoid(z), w), data, batch_size=40,
                   validation_split=0, optimizer="sgd", learning_rate=0.5)  # fmt: skip
    assert isinstance(plan.loss, OneVersusRest)
    batch = next(plan.training.epoch(0))
    weight = torch.tensor(w, requires_grad=True)
    answers = torch.nn.functional.one_hot(torch.tensor(batch.feeds["target"]), 3).float()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.tensor(batch.feeds["x"]) @ weight, answers
    )
    expected.backward()
    session = TrainingSession(plan.adapted.model, plan.loss, plan.optimizer, plan.options)
    assert float(session.step(batch.feeds)["loss"]) == pytest.approx(expected.item(), rel=1e-5)
    step = w - session.parameters["w"]
    np.testing.assert_allclose(step / 0.5, weight.grad.numpy(), atol=1e-6)


def test_cross_entropy_that_is_given_stays(tmp_path: Path) -> None:
    w = RNG.normal(size=(4, 2)).astype(np.float32)
    model = classifier(lambda op, z: op.Sigmoid(z), w)
    assert isinstance(plan_of(model, DATA, loss="cross_entropy").loss, CrossEntropy)
    assert isinstance(plan_of(model, DATA, label_smoothing=0.1).loss, CrossEntropy)


# -- as skl2onnx writes them (its nodes, for opset 9)


def scikit_learn(labels: list[Any], zipped: bool) -> onnx.ModelProto:
    """An MLPClassifier of two classes: probabilities, the label by ArgMax, and a ZipMap."""
    kind = TensorProto.STRING if isinstance(labels[0], str) else TensorProto.INT64
    names = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    node = helper.make_node
    nodes = [
        node("Cast", ["X"], ["cast_input"], to=TensorProto.FLOAT),
        node("MatMul", ["cast_input", "coefficient"], ["mul_result"]),
        node("Sigmoid", ["mul_result"], ["out_activations_result"]),
        node("Sub", ["unity", "out_activations_result"], ["negative_class_proba"]),
        node("Concat", ["negative_class_proba", "out_activations_result"], ["probabilities"],
             axis=1),
        node("ArgMax", ["probabilities"], ["argmax_output"], axis=1),
        ml("ArrayFeatureExtractor", ["classes", "argmax_output"], ["extracted"]),
        node("Reshape", ["extracted", "shape_tensor"], ["output_label"]),
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info("output_label", kind, ["n"])]
    if zipped:
        nodes.append(ml("ZipMap", ["probabilities"], ["output_probability"], **{names: labels}))
        outputs.append(onnx.ValueInfoProto(name="output_probability"))
    else:
        outputs.append(helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2]))
    classes = helper.make_tensor("classes", kind, [2], labels)
    if kind == TensorProto.STRING:
        classes = helper.make_tensor("classes", kind, [2], [each.encode() for each in labels])
    constants = [
        numpy_helper.from_array(W1, "coefficient"),
        numpy_helper.from_array(np.ones(1, np.float32), "unity"),
        numpy_helper.from_array(np.array([-1]), "shape_tensor"),
        classes,
    ]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 9), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=6)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("labels", [[0, 1], ["no", "yes"]])
def test_scikit_learn_keeps_its_outputs(tmp_path: Path, labels: list[Any], zipped: bool) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(scikit_learn(labels, zipped), path)
    assert read_ports(onward.load(path)).scores.ending == TWO_PROBABILITIES
    target = np.array(labels, object)[LABELS].tolist()
    run = onward.train(
        path, {"X": X, "y": target}, target="y", runs=str(tmp_path / "runs"), epochs=60,
        learning_rate=0.1, validation_split=0,
    )  # fmt: skip
    before, after = (onnxruntime.InferenceSession(each) for each in (path, run.model))
    assert [each.name for each in after.get_outputs()] == [
        each.name for each in before.get_outputs()
    ]
    found, scored = after.run(None, {"X": X})
    assert (np.asarray(found) == np.asarray(target)).mean() > 0.95
    if zipped:
        scored = np.array([[row[each] for each in labels] for row in scored])
    np.testing.assert_allclose(np.sum(scored, 1), 1, rtol=1e-5)
    own = np.where(LABELS == 1, np.asarray(scored)[:, 1], np.asarray(scored)[:, 0])
    assert own.mean() > 0.8  # probabilities are trained, not only their order
