"""Classifiers of one class against the rest, and sigmoids written out, as skl2onnx writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.errors import OptionError
from onward.losses.classification import BCEWithLogits
from onward.runner.plan.joined_scores import join_scores
from onward.runner.plan.log_likelihood import LogLikelihood
from onward.runner.plan.model_shapes import read_ports
from onward.runner.plan.one_versus_rest import OneVersusRest
from onward.runner.plan.score_ending import TWO_PROBABILITIES
from onward.sessions.training.session import TrainingSession
from tests.models_ml import ml
from tests.runner.plan.planned_runs import plan_of, train

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 4)).astype(np.float32)
W = RNG.normal(size=(4, 3)).astype(np.float32)
B = RNG.normal(size=3).astype(np.float32)
node = helper.make_node


class Writer:
    """A graph that is written node by node, with constants."""

    def __init__(self, opset: int, dtype: Any = np.float32) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.opset, self.dtype = opset, dtype

    def __call__(self, kind: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
        made = f"v{len(self.nodes)}"
        names = [self.constant(each) for each in inputs]
        self.nodes.append(node(kind, names, [made], domain=domain, **attributes))
        return made

    def constant(self, given: Any) -> str:
        if isinstance(given, str):
            return given
        array = np.asarray(given)
        array = array.astype(self.dtype) if array.dtype.kind == "f" else array
        name = f"c{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def column(self, value: str) -> str:
        """The second column, as a Slice of this opset."""
        if self.opset < 10:
            return self("Slice", value, starts=[1], ends=[2], axes=[1])
        return self("Slice", value, np.array([1]), np.array([2]), np.array([1]))

    def total(self, value: str) -> str:
        if self.opset < 13:
            return self("ReduceSum", value, axes=[1])
        return self("ReduceSum", value, np.array([1]))

    def written_sigmoid(self, scores: str) -> str:
        negated = self("Mul", scores, np.float32(-1))
        return self("Reciprocal", self("Add", self("Exp", negated), np.float32(1)))

    def finish(self, probabilities: str, labels: list[Any], shown: str = "") -> onnx.ModelProto:
        """The label by ArgMax, and the probabilities."""
        chosen = self("ArgMax", shown or probabilities, axis=1)
        table = np.array(labels, object if isinstance(labels[0], str) else np.int32)
        found = self("ArrayFeatureExtractor", table, chosen, domain="ai.onnx.ml")
        label = self("Reshape", found, np.array([-1]))
        kind = TensorProto.STRING if isinstance(labels[0], str) else TensorProto.INT32
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        outputs = [
            helper.make_tensor_value_info(label, kind, ["n"]),
            helper.make_tensor_value_info(probabilities, dtype, ["n", len(labels)]),
        ]
        inputs = [helper.make_tensor_value_info("X", dtype, ["n", 4])]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, [*self.constants.values()])
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=7)


def logistic(op: Writer, column: int) -> str:
    """The two probabilities of a LogisticRegression: a Sigmoid of -z and z."""
    w, b = W[:, column], B[column]
    name = f"p{len(op.nodes)}"
    op.nodes.append(
        ml(
            "LinearClassifier", ["X"], [f"label_{name}", name],
            coefficients=[*(-w).tolist(), *w.tolist()], intercepts=[float(-b), float(b)],
            classlabels_ints=[0, 1], post_transform="LOGISTIC",
        )
    )  # fmt: skip
    op.nodes[-1].name = f"linear_{name}"
    return name


def network(op: Writer, column: int) -> str:
    """The two probabilities of an MLPClassifier: 1 - p and p."""
    p = op("Sigmoid", op("Add", op("MatMul", "X", W[:, column : column + 1]), B[column]))
    return op("Concat", op("Sub", np.float32(1), p), p, axis=1)


def against_the_rest(estimator: Any, opset: int) -> onnx.ModelProto:
    """A OneVsRestClassifier of three classes."""
    op = Writer(opset)
    columns = [op.column(estimator(op, place)) for place in range(3)]
    joined = op("Concat", *columns, axis=1)
    shares = op("LpNormalization", joined, axis=1, p=1)
    return op.finish(shares, [3, 7, 9], joined)


def gradient_descent(opset: int, handles_zeros: bool) -> onnx.ModelProto:
    """An SGDClassifier with log_loss of three classes."""
    op = Writer(opset)
    p = op.written_sigmoid(op("Add", op("MatMul", "X", W), B))
    total = op.total(p)
    if handles_zeros:
        empty = op("Not", op("Cast", total, to=TensorProto.BOOL))
        mask = op("Cast", empty, to=TensorProto.FLOAT)
        top = op("Add", p, mask)
        return op.finish(
            op("Div", top, op("Add", total, op("Mul", mask, np.float32(3)))), [3, 7, 9]
        )
    return op.finish(op("Div", p, total), [3, 7, 9])


def in_double() -> onnx.ModelProto:
    """A LogisticRegression of one class against the rest, in float64."""
    op = Writer(13, np.float64)
    p = op("Sigmoid", op("Add", op("MatMul", "X", W), B))
    return op.finish(op("Div", p, op.total(op("Abs", p))), [3, 7, 9])


THREE = {
    "logistic": lambda: against_the_rest(logistic, 9),
    "logistic, opset 17": lambda: against_the_rest(logistic, 17),
    "network": lambda: against_the_rest(network, 13),
    "gradient descent": lambda: gradient_descent(11, False),
    "gradient descent, opset 17": lambda: gradient_descent(17, True),
    "in double": in_double,
}


@pytest.mark.parametrize("make", THREE.values(), ids=THREE)
def test_each_class_against_the_rest_is_trained_on_its_score(make: Any) -> None:
    numbers = np.arange(60) % 3
    data = {"X": X, "y": np.array([3, 7, 9])[numbers]}
    plan = plan_of(make(), data, target="y")
    assert isinstance(plan.loss, OneVersusRest) and plan.classes == (3, 7, 9)
    batch = next(plan.training.epoch(0))
    answers = np.eye(3)[batch.feeds[plan.target]]
    assert (batch.feeds[plan.target] == numbers[batch.positions]).all()
    z = np.asarray(batch.feeds["X"]) @ W + B
    expected = np.mean(np.logaddexp(0, z) - answers * z)
    assert train(plan, steps=1)["loss"] == pytest.approx(expected, rel=1e-5)


def test_metrics_of_one_against_the_rest_are_of_its_probabilities() -> None:
    data = {"X": X, "y": np.array([3, 7, 9])[np.arange(60) % 3]}
    plan = plan_of(against_the_rest(logistic, 17), data, target="y", metrics=["log_loss"])
    assert plan.validation is not None
    rows = plan.validation.positions
    p = 1 / (1 + np.exp(-(X[rows] @ W + B)))
    logs = np.log(p / p.sum(1, keepdims=True))[np.arange(len(rows)), rows % 3]
    [metric] = plan.make_metrics()
    session = TrainingSession(plan.adapted.model, plan.loss, plan.optimizer, plan.options)
    for batch in plan.validation.epoch(0):
        metric.update(session.evaluate(batch.feeds)[plan.output], batch.feeds[plan.target])
    assert metric.result() == pytest.approx(-logs.mean(), rel=1e-5)


def doubted(op: Writer, column: int) -> str:
    """The two probabilities of a LogisticRegression, divided by their sum."""
    return op("Normalizer", logistic(op, column), domain="ai.onnx.ml", norm="L1")


def test_shares_without_scores_are_trained_on_their_logarithms() -> None:
    numbers = np.arange(60) % 3
    data = {"X": X, "y": np.array([3, 7, 9])[numbers]}
    plan = plan_of(against_the_rest(doubted, 17), data, target="y", metrics=["accuracy", "auc"])
    assert isinstance(plan.loss, LogLikelihood) and plan.classes == (3, 7, 9)
    batch = next(plan.training.epoch(0))
    p = 1 / (1 + np.exp(-(np.asarray(batch.feeds["X"]) @ W + B)))
    own = (p / p.sum(1, keepdims=True))[np.arange(len(p)), numbers[batch.positions]]
    assert train(plan, steps=1)["loss"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
    with pytest.raises(OptionError, match="label_smoothing needs scores, and output"):
        plan_of(against_the_rest(doubted, 17), data, target="y", label_smoothing=0.1)


def test_numbers_below_0_are_no_shares() -> None:
    op = Writer(17)
    shares = op("LpNormalization", op("MatMul", "X", W), axis=1, p=1)
    model = onward.load(op.finish(shares, [3, 7, 9]), any_domain=True)
    assert read_ports(model).scores.ending == ""


def test_joined_scores_keep_the_results() -> None:
    model = against_the_rest(logistic, 17)
    joined = join_scores(onward.load(model, any_domain=True))
    assert [str(value.name) for value in joined.graph.outputs] == [
        value.name for value in model.graph.output
    ]
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"X": X})
    found = onward.InferenceSession(joined).run(None, {"X": X})
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize("divided", [False, True])
def test_two_classes_against_each_other_have_one_score(divided: bool) -> None:
    op = Writer(17)
    joined = op("Concat", op.column(logistic(op, 0)), axis=1)
    both = op("Concat", op("Sub", np.float32(1), joined), joined, axis=1)
    shares = op("LpNormalization", both, axis=1, p=1) if divided else both
    plan = plan_of(op.finish(shares, ["no", "yes"], both), two_classes(), target="y")
    check_binary(plan)


def test_a_written_sigmoid_of_two_classes_has_one_score() -> None:
    op = Writer(11)
    p = op.written_sigmoid(op("Add", op("MatMul", "X", W[:, :1]), B[:1]))
    both = op("Concat", op("Sub", np.float32(1), p), p, axis=1)
    model = op.finish(both, ["no", "yes"])
    assert read_ports(onward.load(model, any_domain=True)).scores.ending == TWO_PROBABILITIES
    check_binary(plan_of(model, two_classes(), target="y"))


def two_classes() -> dict[str, Any]:
    return {"X": X, "y": np.array(["no", "yes"], object)[(X[:, 0] > 0).astype(int)].tolist()}


def check_binary(plan: Any) -> None:
    assert isinstance(plan.loss, BCEWithLogits) and plan.classes == ("no", "yes")
    batch = next(plan.training.epoch(0))
    z = np.asarray(batch.feeds["X"]) @ W[:, 0] + B[0]
    expected = np.mean(np.logaddexp(0, z) - (X[batch.positions, 0] > 0) * z)
    assert train(plan, steps=1)["loss"] == pytest.approx(expected, rel=1e-5)


def test_several_labels_are_trained_on_their_scores() -> None:
    op = Writer(17)
    p = op("Concat", *(op.column(logistic(op, place)) for place in range(3)), axis=1)
    signs = op("Sign", op("Sub", p, np.full((1, 3), 0.5, np.float32)))
    label = op("Clip", op("Cast", signs, to=TensorProto.INT64), np.int64(0))
    outputs = [
        helper.make_tensor_value_info(label, TensorProto.INT64, ["n", 3]),
        helper.make_tensor_value_info(p, TensorProto.FLOAT, ["n", 3]),
    ]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph(op.nodes, "g", inputs, outputs, [*op.constants.values()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    answers = (X[:, :3] > 0).astype(np.int64)
    plan = plan_of(model, {"X": X, "y": answers}, target="y")
    assert isinstance(plan.loss, BCEWithLogits)
    batch = next(plan.training.epoch(0))
    z = np.asarray(batch.feeds["X"]) @ W + B
    expected = np.mean(np.logaddexp(0, z) - answers[batch.positions] * z)
    assert train(plan, steps=1)["loss"] == pytest.approx(expected, rel=1e-5)


def test_other_columns_are_not_joined() -> None:
    op = Writer(17)
    columns = [op.column(logistic(op, 0)), op("Relu", op.column(logistic(op, 1)))]
    model = onward.load(op.finish(op("Concat", *columns, axis=1), [0, 1]), any_domain=True)
    assert join_scores(model) is model


@pytest.mark.integration
def test_a_trained_one_against_the_rest_answers_with_its_labels(tmp_path: Path) -> None:
    labels = np.array([3, 7, 9])[X[:, :3].argmax(1)]
    model = against_the_rest(logistic, 17)
    onnx.save(model, tmp_path / "m.onnx")
    run = onward.train(
        tmp_path / "m.onnx", {"X": X, "y": labels}, target="y", runs=str(tmp_path), epochs=60,
        learning_rate=0.1, validation_split=0,
    )  # fmt: skip
    found, shares = onnxruntime.InferenceSession(run.model).run(None, {"X": X})
    assert (found == labels).mean() > 0.9
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
